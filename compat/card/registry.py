"""Areas and rows. A module of `rows/` makes an area and adds its rows when it is imported."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from compat.card.client import Client

Run = Callable[["Client"], None]
ROW_LIMIT_S = 20.0


class NotOffered(Exception):
    """The broker does not offer what a row needs; the message says what is missing."""


@dataclass(frozen=True)
class Row:
    """One row of the card.

    Shape   accepted: other outcomes that are not reported as differences, by the label of the note; `reason` says why
            Kafka's own is not required; is_harsh: what it sends may end a fragile broker, so it runs after the others
    Units   limit_s is the row's whole time
    """

    area: str
    name: str
    run: Run
    limit_s: float = ROW_LIMIT_S
    accepted: Sequence[str] = ()
    reason: str = ""
    is_harsh: bool = False

    @property
    def id(self) -> str:
        """The area and the name, as in the recording and in `--only`."""
        return f"{self.area}: {self.name}"


@dataclass
class Area:
    """Rows about one part of the protocol."""

    name: str
    is_harsh: bool = False
    rows: list[Row] = field(default_factory=list)

    def row(self, name: str, *, limit_s: float = ROW_LIMIT_S) -> Callable[[Run], Run]:
        """Add the decorated function as a row."""

        def add(run: Run) -> Run:
            self.add(name, run, limit_s=limit_s)
            return run

        return add

    def add(
        self, name: str, run: Run, *, limit_s: float = ROW_LIMIT_S, accepted: Sequence[str] = (), reason: str = ""
    ) -> None:
        """Add a row. Errors: AssertionError if its name is taken."""
        assert all(row.name != name for row in self.rows), f"two rows {name!r}"
        self.rows.append(Row(self.name, name, run, limit_s, tuple(accepted), reason, self.is_harsh))


ORDER = (
    "versions", "frames", "metadata", "batches", "produce", "offsets", "fetch", "topics", "configs", "groups",
    "consumer_groups", "transactions", "tier", "quotas",
)  # fmt: skip


def all_rows() -> list[Row]:
    """Every row, area by area."""
    from compat.card import rows  # noqa: PLC0415  (its modules import this one)

    found = {module.name for module in pkgutil.iter_modules(rows.__path__)}
    assert found == set(ORDER), f"rows/ and ORDER differ: {found ^ set(ORDER)}"
    areas: list[Area] = [importlib.import_module(f"compat.card.rows.{name}").AREA for name in ORDER]
    return [row for area in areas for row in area.rows]
