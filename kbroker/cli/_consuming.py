"""The loop of `kbroker consume`: find the start and end offsets, print records, and commit the printed offsets."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import BinaryIO, Final

from kbroker.cli import CommandFailed
from kbroker.cli._admin import explain
from kbroker.cli._groups import led_partitions
from kbroker.cli._positions import Position, Range, TopicPartitions
from kbroker.cli._records import Render
from kbroker.client.cluster import Cluster, Partition
from kbroker.client.consuming import Consumer, Received
from kbroker.client.membership import Member
from kbroker.client.operations import list_offsets
from wire.errors import ErrorCode, KafkaError

POLL_MS: Final = 200
"""Length of one wait. The loop checks its end conditions after each wait."""


class Reader:
    """Prints the records that a consumer reads.

    Shape  _ends maps partitions to their exclusive end offsets, if they have one; _printed are the offsets to commit,
           after the last flushed record; _pending are the offsets after printed records that are not flushed yet
    """

    def __init__(
        self, cluster: Cluster, consumer: Consumer, member: Member | None, *, out: BinaryIO, render: Render,
        delimiter: bytes, reset: str,
    ) -> None:  # fmt: skip
        self._cluster = cluster
        self._consumer = consumer
        self._member = member
        self._out = out
        self._render = render
        self._delimiter = delimiter
        self._reset = reset
        self._ends: dict[Partition, int] = {}
        self._end_ms: int | None = None
        self._done: set[Partition] = set()
        self._pending: dict[Partition, int] = {}
        self._printed: dict[Partition, int] = {}

    def read(
        self,
        topics: Sequence[TopicPartitions],
        *,
        partitions: Sequence[int] | None,
        reading: Range,
        count: int | None,
        exits_at_end: bool,
        timeout_ms: int | None,
    ) -> None:
        """Print records up to the end. Errors: CommandFailed, KafkaError."""
        assigned = self._existing(topics, partitions)
        if self._member is None:
            self._begin(assigned, reading.start)
            self._end_ms = reading.end_ms
            if exits_at_end:
                self._ends = self._consumer.ends(assigned, "latest")
            if reading.end_ms is not None:
                self._ends |= self._offsets_at(assigned, reading.end_ms)
        try:
            self._loop(count, exits_at_end, timeout_ms)
        finally:
            self._commit()

    def _loop(self, count: int | None, exits_at_end: bool, timeout_ms: int | None) -> None:
        printed = idle_ms = 0
        while not self._is_over(exits_at_end):
            wait_ms = POLL_MS if timeout_ms is None else min(POLL_MS, timeout_ms)
            found = self._poll(wait_ms, None if count is None else count - printed)
            before = printed
            for record in found:
                printed += self._print(record)
            self._out.flush()
            self._printed |= self._pending
            self._pending.clear()
            if printed == count:
                return
            if printed > before:
                idle_ms = 0
                self._commit()
            else:
                idle_ms += wait_ms
            if timeout_ms is not None and idle_ms >= timeout_ms:
                return

    def _poll(self, wait_ms: int, max_records: int | None) -> list[Received]:
        if self._member is not None:
            if self._member.poll(wait_ms):
                self._consumer.assign(self._committed(self._member))
            if not self._member.is_joined:
                self._consumer.assign({})
                return []
        try:
            return self._consumer.poll(timeout_ms=wait_ms, max_records=max_records)
        except KafkaError as error:
            if error.code is not ErrorCode.OFFSET_OUT_OF_RANGE:
                raise
            raise CommandFailed(f"records were deleted before they were read: {explain(error)}") from error

    def _committed(self, member: Member) -> dict[Partition, int]:
        """Where the group continues; partitions without an offset begin at the end that the flags choose."""
        committed = member.committed()
        found = {each: committed[each].offset for each in member.assignment if each in committed}
        return found | self._consumer.ends(member.assignment - found.keys(), self._reset)

    def _print(self, record: Received) -> int:
        """Print a record before the end; return how many."""
        partition = record.topic, record.partition
        end = self._ends.get(partition)
        if partition in self._done or (end is not None and record.offset >= end):
            return 0
        if self._end_ms is not None and end is None and record.timestamp >= self._end_ms:
            # At the start, no record had this timestamp, so this is the first one.
            self._done.add(partition)
            return 0
        self._out.write(self._render(record) + self._delimiter)
        self._pending[partition] = record.offset + 1
        return 1

    def _is_over(self, exits_at_end: bool) -> bool:
        """Whether every partition has been read up to its end."""
        assignment = self._consumer.positions
        if self._member is not None and exits_at_end and (new := assignment.keys() - self._ends.keys()):
            self._ends |= self._consumer.ends(new, "latest")
        if not assignment or (not self._ends and not self._done):
            return False
        return all(each in self._done or at >= self._ends.get(each, at + 1) for each, at in assignment.items())

    def _existing(self, topics: Sequence[TopicPartitions], only: Sequence[int] | None) -> list[Partition]:
        found: set[Partition] = set()
        led = led_partitions(self._cluster, {topic for topic, _ in topics})
        for topic, listed in topics:
            existing = {index for name, index in led if name == topic}
            if not existing:
                raise CommandFailed(f"topic {topic!r} does not exist")
            wanted = set(listed if listed is not None else only if only is not None else existing)
            if missing := sorted(wanted - existing):
                raise CommandFailed(f"topic {topic!r} has no partition {', '.join(map(str, missing))}")
            found |= {(topic, index) for index in wanted}
        return sorted(found)

    def _begin(self, partitions: Sequence[Partition], start: Position) -> None:
        """Set the start positions. Raises CommandFailed for an offset that is not in a log."""
        starts = self._consumer.ends(partitions, "earliest")
        ends = self._consumer.ends(partitions, "latest")
        at = self._offsets_at(partitions, start.number) if start.anchor == "timestamp" else {}
        positions = {}
        for partition in partitions:
            first, end = starts[partition], ends[partition]
            if start.anchor == "beginning":
                position = first
            elif start.anchor == "end":
                position = end
            elif start.anchor == "tail":
                position = max(first, end - start.number)
            elif start.anchor == "timestamp":
                position = at.get(partition, end)
            else:
                position = start.number
                if not first <= position <= end:
                    name = f"{partition[0]}-{partition[1]}"
                    raise CommandFailed(f"offset {position} is not in {name}, which has {first} to {end}")
            positions[partition] = position
        self._consumer.assign(positions)

    def _offsets_at(self, partitions: Collection[Partition], timestamp_ms: int) -> dict[Partition, int]:
        """The first offsets at or after a timestamp; partitions without such a record are missing."""
        found = list_offsets(self._cluster, dict.fromkeys(partitions, timestamp_ms))
        return {partition: each.offset for partition, each in found.items() if each.offset >= 0}

    def _commit(self) -> None:
        """Commit the printed offsets of the partitions that are still assigned to this member."""
        if self._member is None:
            return
        offsets = {partition: at for partition, at in self._printed.items() if partition in self._member.assignment}
        try:
            self._member.commit(offsets)
        except KafkaError as error:
            raise CommandFailed(f"the printed offsets could not be committed: {explain(error)}") from error
        self._printed.clear()  # a commit that a signal interrupts is repeated in the end
