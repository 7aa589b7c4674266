"""The history of a simulated run while it is recorded, in virtual time."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

import trio

from kbroker.metadata.names import TRANSACTION_STATE_TOPIC
from kbroker.testing.checkers import Finding
from kbroker.testing.history import Event, Function, Type
from wire.record_batch import RecordBatch


class History:
    """Lines for the checkers, and what clients see that has no line.

    Shape  unordered: producers whose sends may be repeated; uncommitted: readers with isolation level
           read_uncommitted; consumer_groups: groups of KIP-848; complaints: findings of the clients themselves; batches
           maps partition -> base offset -> the bytes of the batch that a reader received first; deleted maps partition
           -> the highest offset below which a client has asked to delete, and confirmed what a leader has answered;
           lossy: topics with unclean elections, which may lose and replace records; excused: partitions that faults
           have entitled to do so; compacted: topics; has_healed: whether all faults have ended
    """

    def __init__(self, *, lossy: frozenset[str] = frozenset(), compacted: frozenset[str] = frozenset()) -> None:
        self.lossy = lossy
        self.compacted = compacted
        self.excused: set[str] = set()
        self.has_healed = False
        self.events: list[Event] = []
        self.counts: Counter[tuple[Function, Type]] = Counter()
        self.unordered: list[str] = []
        self.uncommitted: set[str] = set()
        self.consumer_groups: set[str] = set()
        self.complaints: list[Finding] = []
        self.batches: dict[str, dict[int, bytes]] = defaultdict(dict)
        self.deleted: dict[str, int] = defaultdict(int)
        self.confirmed: dict[str, int] = defaultdict(int)
        self._answers: dict[tuple[str, Function, str], tuple[Any, ...]] = {}

    @staticmethod
    def now() -> int:
        """Milliseconds of virtual time."""
        return int(trio.current_time() * 1000)

    def note(self, process: str, function: Function, kind: Type, key: str = "", **fields: Any) -> None:
        """Append a line; the fields are those of Event."""
        self.counts[function, kind] += 1
        self.events.append(Event(at_ms=self.now(), process=process, function=function, type=kind, key=key, **fields))

    def answered(self, process: str, function: Function, key: str, **fields: Any) -> None:
        """Append an answer of a node, unless it equals the last one of this node since `heal`."""
        answer = tuple(fields.values())
        if self._answers.get((process, function, key)) != answer:
            self._answers[process, function, key] = answer
            self.note(process, function, Type.OK, key, **fields)

    def heal(self) -> None:
        """Note that the harness has ended all faults."""
        self.note("harness", Function.HEAL, Type.OK)
        self.has_healed = True
        self._answers.clear()

    def complain(self, check: str, kind: str, key: str, offset: int, text: str) -> None:
        """Add a finding; the same one counts once."""
        finding = Finding(check, kind, key, offset, text)
        if finding not in self.complaints:
            self.complaints.append(finding)

    def is_lossy(self, key: str) -> bool:
        """Whether a partition may lose records."""
        return key in self.excused or key.rpartition("-")[0] in self.lossy

    def is_compacted(self, key: str) -> bool:
        """Whether records of a partition may be removed, and their batches written again."""
        return key.rpartition("-")[0] in self.compacted

    def may_hang(self, key: str) -> bool:
        """Whether a transaction may stay open in a partition: its marker, or the coordinator's record of it, is lost.

        As in Kafka, an operator then has to end it with kafka-transactions.
        """
        return self.is_lossy(key) or any(one.startswith(f"{TRANSACTION_STATE_TOPIC}-") for one in self.excused)

    def received(self, process: str, key: str, batch: RecordBatch) -> bool:
        """A client has received a batch: its CRC must be valid, and its bytes the same for all readers, unless it may
        have been cleaned. Returns whether its records can be read.
        """
        data = bytes(batch.data)
        known = self.batches[key].get(batch.base_offset)
        if known == data:
            return True
        if not batch.crc_is_valid():
            self.complain("K12", "bad-crc", key, batch.base_offset, f"{process} receives a batch with a wrong CRC")
            return False
        if known is None or self.is_lossy(key):
            self.batches[key][batch.base_offset] = data
        elif not self.is_compacted(key):
            self.complain("K2", "batch-differs", key, batch.base_offset, f"{process} receives other bytes than before")
        return True
