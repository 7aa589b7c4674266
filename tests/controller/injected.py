"""Metadata records that no request of a test's clients can cause."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kbroker.controller.decisions import decides
from kbroker.runtime.outcome import Outcome


@dataclass
class Injected:
    """A request that a test registers with its controller; `records` makes the records."""

    records: Callable[[], list[Any]]


async def inject(controller: Any, records: Callable[[], list[Any]]) -> None:
    """Commit and publish these records through the embedded controller of a test's broker."""

    def decide(_context: Any, request: Injected) -> Outcome[None]:
        return Outcome(request.records(), None)

    controller.decisions[Injected] = decides(Injected)(decide)
    await controller.ask(Injected(records), type(None))
