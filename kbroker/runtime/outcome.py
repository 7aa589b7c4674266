"""What a decision returns: the records to append, and the response to send once they are committed.

Controller, groups, transactions and remote-log metadata share this one pattern (ARCHITECTURE.md, "Decisions"): a
decision changes nothing by itself; the response is parked until its records are in the log, and only ``replay(record)``
moves the state.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Outcome(Generic[R]):
    """The result of one decision.

    Shape    records are stored-record messages in the order in which they must be replayed; may be empty
    Meaning  all of them become visible together, or none; the response is true only then
    """

    records: list[Any] = field(repr=False)
    response: R
