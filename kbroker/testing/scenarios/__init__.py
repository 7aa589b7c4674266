"""Scenarios: failures of a replicated partition as stories that `kbroker simulate` shows.

    python -m kbroker.testing.scenarios                          # a line of JSON for each scenario
    python -m kbroker.testing.scenarios zombie-leader            # a line for its beginning, each step and its end
    python -m kbroker.testing.scenarios kip-101-record-lost --rule old

A scenario is a function that drives real nodes in virtual time (`kbroker.testing.cluster`): it produces over the wire,
kills nodes and cuts links, and after each step the state of all replicas is read from the nodes. The sentences explain;
all numbers come from the run. Each module of this package whose name does not begin with `_` has some scenarios.

An old rule is a mutant (`kbroker.testing.mutants`), which must be installed before the broker's modules are imported.
Therefore this file and the modules with scenarios import neither the broker nor the cluster.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from kbroker.testing.mutants import Mutant

if TYPE_CHECKING:
    from kbroker.testing.scenarios._stage import Stage

OLD: Final = "old"
NEW: Final = "new"
TWO_SEGMENTS: Final = 1_500
"""local.retention.bytes that keeps the active segment of a scenario and the one before it."""

Tell = Callable[["Stage"], Awaitable[dict[str, Any]]]


@dataclass(frozen=True, slots=True)
class OldRule:
    """A rule that Kafka has replaced: the mutant that has it, and one sentence on each of both rules."""

    mutant: Mutant
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class Scenario:
    """See `scenario`."""

    name: str
    title: str
    summary: str
    opening: str
    lesson: str
    source: str
    tell: Tell
    brokers: int
    old_rule: OldRule | None = None
    settings: Mapping[str, object] = field(default_factory=dict)
    has_tier: bool = False

    @property
    def rules(self) -> list[str]:
        """The rules with which it can run."""
        return [OLD, NEW] if self.old_rule is not None else [NEW]

    def rule_text(self, rule: str) -> str:
        """One sentence on a rule; empty if there is only one."""
        if self.old_rule is None:
            return ""
        return self.old_rule.old if rule == OLD else self.old_rule.new


def scenario(
    name: str,
    *,
    title: str,
    summary: str,
    opening: str,
    lesson: str,
    source: str,
    brokers: int = 2,
    old_rule: OldRule | None = None,
    settings: Mapping[str, object] | None = None,
    has_tier: bool = False,
) -> Callable[[Tell], Scenario]:
    """Declare a scenario; the function tells it, and returns the facts that decide it.

    Shape  summary is one sentence for the list; opening says in a few sentences what is going to happen, lesson what
           it teaches; settings are those of the nodes
    """

    def decorate(tell: Tell) -> Scenario:
        return Scenario(
            name,
            title,
            summary,
            _joined(opening),
            _joined(lesson),
            source,
            tell,
            brokers,
            old_rule,
            settings or {},
            has_tier,
        )

    return decorate


def scenarios() -> dict[str, Scenario]:
    """All scenarios by name, in the order in which one should read them."""
    found: dict[str, Scenario] = {}
    for module in pkgutil.iter_modules(__path__):
        if not module.name.startswith("_"):
            for each in vars(import_module(f"{__name__}.{module.name}")).values():
                if isinstance(each, Scenario):
                    found[each.name] = each
    return found


def epochs_text(entries: Sequence[Sequence[int]]) -> str:
    """Leader epochs with the offsets where they begin: 0@0 2@7."""
    return " ".join(f"{epoch}@{start}" for epoch, start in entries)


def _joined(text: str) -> str:
    return " ".join(text.split())
