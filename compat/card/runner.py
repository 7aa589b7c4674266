"""Runs rows side by side and compares what they note with the recording.

The answers of one row do not depend on other rows: each has topics and groups of its own, or only reads shared ones.
After a row that got no answer the runner asks whether the broker is still there. If it is not, the remaining rows are
not run.
"""

from __future__ import annotations

import json
import struct
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from compat.card.client import Client
from compat.card.connection import NONE, Security
from compat.card.outcome import differences
from compat.card.registry import NotOffered, Row
from compat.card.session import Failed, Session

EQUAL, DIFFERS, ACCEPTED, NOT_OFFERED, NOT_RUN = "equal", "differs", "accepted", "not offered", "not run"
RECORDING = Path(__file__).with_name("expected.json")
JOBS = 8
WHOLE_LIMIT_S = 600.0
Notes = Mapping[str, Any]
Difference = tuple[str, str, str]


@dataclass
class Result:
    """A row's result.

    Shape   differences: where, Kafka's value, this broker's value; text: why the row could not be completed, what is
            missing, or why the outcome is accepted
    """

    row: Row
    status: str
    seconds: float = 0.0
    text: str = ""
    differences: Sequence[Difference] = ()
    notes: Notes = field(default_factory=dict)

    def lines(self) -> list[str]:
        """The result in words."""
        found = [self.text] if self.text else []
        return found + [f"{where}: Kafka {theirs}; this broker {ours}" for where, theirs, ours in self.differences]


@dataclass
class Card:
    """All results, in the order of the rows.

    Shape   gone: why the rows ended early; left: what could not be cleaned up
    """

    place: str
    results: list[Result]
    seconds: float
    gone: str = ""
    left: Sequence[str] = ()

    def count(self, status: str, area: str | None = None) -> int:
        """How many rows have a status."""
        return sum(each.status == status and area in (None, each.row.area) for each in self.results)

    @property
    def is_equal(self) -> bool:
        """Whether rows have run and no row differs from Kafka."""
        return self.count(EQUAL) > 0 and not self.count(DIFFERS) and not self.count(NOT_RUN)


def recording(path: Path = RECORDING) -> dict[str, Notes]:
    """The notes of each row on Apache Kafka, by the row's id."""
    rows: dict[str, Notes] = json.loads(path.read_text())["rows"]
    return rows


class Runner:
    """One run of some rows on one broker. Errors: BrokerGone if there is none."""

    def __init__(
        self, bootstrap_servers: str, *, jobs: int = JOBS, row_limit_s: float | None = None,
        whole_limit_s: float = WHOLE_LIMIT_S, security: Security = NONE,
    ) -> None:  # fmt: skip
        self.session = Session(bootstrap_servers, security)
        self.jobs, self.row_limit_s, self.whole_limit_s = jobs, row_limit_s, whole_limit_s
        self.gone = ""
        self._asking = threading.Lock()
        self._clients: set[Client] = set()
        self._ends = 0.0

    def run(
        self, rows: Sequence[Row], expected: Mapping[str, Notes], *, on_result: Callable[[Result], None] | None = None
    ) -> Card:
        """Run rows, then remove what they made, also after Ctrl-C."""
        began = time.monotonic()
        self._ends = began + self.whole_limit_s

        def one(row: Row) -> Result:
            result = self._result(row, expected.get(row.id))
            if on_result is not None:
                on_result(result)
            return result

        left: list[str] = []
        found: dict[str, Result] = {}
        try:
            self.session.prepare()
            with ThreadPoolExecutor(self.jobs) as pool:
                # The slowest rows first, so that none of them is alone at the end.
                ordered = sorted(rows, key=lambda row: -row.limit_s)
                try:
                    for is_harsh in (False, True):
                        phase = [row for row in ordered if row.is_harsh == is_harsh]
                        found |= {result.row.id: result for result in pool.map(one, phase)}
                except KeyboardInterrupt:
                    pool.shutdown(wait=False, cancel_futures=True)
                    for client in self._clients.copy():
                        client.deadline.at = began  # its row ends at its next wait
                    raise
        finally:
            left = [] if self.gone else self.session.clean()
        results = [found[row.id] for row in rows]
        return Card(self.session.place, results, time.monotonic() - began, self.gone, left)

    def _result(self, row: Row, expected: Notes | None) -> Result:
        if self.gone:
            return Result(row, NOT_RUN, text=self.gone)
        if time.monotonic() > self._ends:
            return Result(row, NOT_RUN, text=f"the whole time of {self.whole_limit_s:.0f} s was over")
        began = time.monotonic()
        client = Client(self.session, self.row_limit_s or row.limit_s)
        self._clients.add(client)
        try:
            row.run(client)
            result = judged(row, expected, client.notes, client.skipped)
        except NotOffered as missing:
            result = Result(row, NOT_OFFERED, text=str(missing))
        except Failed as failure:
            result = Result(row, DIFFERS, text=str(failure))
        except OSError as failure:
            result = Result(row, DIFFERS, text=f"no connection: {failure}")
        except (LookupError, TypeError, ValueError, AttributeError, struct.error) as failure:
            text = f"the answer lacks what the row reads ({type(failure).__name__}: {failure})"
            result = Result(row, DIFFERS, text=text)
        finally:
            client.close()
            self._clients.discard(client)
        result.seconds, result.notes = time.monotonic() - began, client.notes
        if result.status == DIFFERS and result.text:
            self._find_out(row)
        return result

    def _find_out(self, row: Row) -> None:
        """Whether the broker is still there."""
        with self._asking:
            if not self.gone and not self.session.is_alive():
                self.gone = f"the broker at {self.session.place} stopped answering, at the latest in the row {row.id!r}"


def judged(row: Row, expected: Notes | None, notes: Notes, skipped: Collection[str] = ()) -> Result:
    """Compare a row's notes with the recording, except for the labels that the row has skipped."""
    if expected is None:
        return Result(row, DIFFERS, text="nothing is recorded for this row (python -m compat --record)")
    found = differences({label: value for label, value in expected.items() if label not in skipped}, notes)
    if not found:
        return Result(row, EQUAL)
    if row.accepted and all(ours in row.accepted for _, _, ours in found):
        return Result(row, ACCEPTED, text=row.reason, differences=found)
    return Result(row, DIFFERS, differences=found)
