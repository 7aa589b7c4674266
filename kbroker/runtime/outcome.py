"""The result of a decision: the records to append, and the response to send once they are committed.

The controller and the coordinators share this pattern (ARCHITECTURE.md, "Names"): a decision does not change state. Its
response waits until its records are in the log, and only ``replay(record)`` changes state.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

R = TypeVar("R")


@dataclass(frozen=True, slots=True, eq=False)
class Outcome(Generic[R]):
    """The result of one decision.

    Shape    records are stored-record messages in replay order; may be empty
    Meaning  the records become visible together or not at all; the response is valid only once they are visible
    """

    records: list[Any] = field(repr=False)
    response: R
