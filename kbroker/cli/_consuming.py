"""The loop of `kbroker consume`: find the start and end offsets, print records, and commit the printed offsets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, BinaryIO, Final

from kafka import KafkaConsumer
from kafka.errors import KafkaError, NoOffsetForPartitionError, OffsetOutOfRangeError
from kafka.structs import OffsetAndMetadata, TopicPartition

from kbroker.cli import CommandFailed
from kbroker.cli._positions import Position, Range, TopicPartitions
from kbroker.cli._records import Render

UNKNOWN_EPOCH: Final = -1
POLL_MS: Final = 200
"""Length of one wait. The loop checks its end conditions after each wait."""


class Reader:
    """Prints the records that a consumer reads.

    Shape  _ends maps partitions to their exclusive end offsets, if they have one; _printed are the offsets to commit,
           after the last flushed record; _pending are the offsets after printed records that are not flushed yet
    """

    def __init__(self, consumer: KafkaConsumer, out: BinaryIO, render: Render, delimiter: bytes) -> None:
        self._consumer = consumer
        self._out = out
        self._render = render
        self._delimiter = delimiter
        self._ends: dict[TopicPartition, int] = {}
        self._end_ms: int | None = None
        self._done: set[TopicPartition] = set()
        self._pending: dict[TopicPartition, int] = {}
        self._printed: dict[TopicPartition, int] = {}

    def read(
        self,
        topics: Sequence[TopicPartitions],
        *,
        partitions: Sequence[int] | None,
        reading: Range,
        is_member: bool,
        count: int | None,
        exits_at_end: bool,
        timeout_ms: int | None,
    ) -> None:
        """Print records up to the end. Errors: CommandFailed, KafkaError."""
        assigned = self._existing(topics, partitions)
        if is_member:
            self._consumer.subscribe(sorted({each.topic for each in topics}))
        else:
            self._consumer.assign(assigned)
            self._begin(assigned, reading.start)
            self._end_ms = reading.end_ms
            if exits_at_end:
                self._ends = dict(self._consumer.end_offsets(assigned))
            if reading.end_ms is not None:
                self._ends |= self._offsets_at(assigned, reading.end_ms)
        try:
            self._loop(is_member, count, exits_at_end, timeout_ms)
        finally:
            if is_member:
                self._commit()

    def _loop(self, is_member: bool, count: int | None, exits_at_end: bool, timeout_ms: int | None) -> None:
        printed = idle_ms = 0
        while not self._is_over(is_member, exits_at_end):
            wait_ms = POLL_MS if timeout_ms is None else min(POLL_MS, timeout_ms)
            try:
                found = self._consumer.poll(timeout_ms=wait_ms, max_records=None if count is None else count - printed)
            except (NoOffsetForPartitionError, OffsetOutOfRangeError) as error:
                raise CommandFailed(f"records were deleted before they were read: {error}") from error
            before = printed
            for partition, records in found.items():
                printed += self._print(partition, records)
            self._out.flush()
            self._printed |= self._pending
            self._pending.clear()
            if printed == count:
                return
            if printed > before:
                idle_ms = 0
                if is_member:
                    self._commit()
            else:
                idle_ms += wait_ms
            if timeout_ms is not None and idle_ms >= timeout_ms:
                return

    def _print(self, partition: TopicPartition, records: Sequence[Any]) -> int:
        """Print the records before the end; return how many."""
        end = self._ends.get(partition)
        number = 0
        for record in records:
            if partition in self._done or (end is not None and record.offset >= end):
                break
            if self._end_ms is not None and end is None and record.timestamp >= self._end_ms:
                # At the start, no record had this timestamp, so this is the first one.
                self._done.add(partition)
                break
            self._out.write(self._render(record) + self._delimiter)
            self._pending[partition] = record.offset + 1
            number += 1
        return number

    def _is_over(self, is_member: bool, exits_at_end: bool) -> bool:
        """Whether every partition has been read up to its end."""
        assignment = self._consumer.assignment()
        if is_member and exits_at_end and (new := sorted(assignment - self._ends.keys())):
            self._ends |= self._consumer.end_offsets(new)
        if not assignment or (not self._ends and not self._done):
            return False
        return all(self._is_at_end(partition) for partition in assignment)

    def _is_at_end(self, partition: TopicPartition) -> bool:
        if partition in self._done:
            return True
        end = self._ends.get(partition)
        if end is None:
            return False
        position = self._consumer.position(partition, timeout_ms=POLL_MS)
        return position is not None and position >= end

    def _existing(self, topics: Sequence[TopicPartitions], only: Sequence[int] | None) -> list[TopicPartition]:
        found: set[TopicPartition] = set()
        for topic, listed in topics:
            existing = self._consumer.partitions_for_topic(topic)
            if not existing:
                raise CommandFailed(f"topic {topic!r} does not exist")
            wanted = set(listed if listed is not None else only if only is not None else existing)
            if missing := sorted(wanted - set(existing)):
                raise CommandFailed(f"topic {topic!r} has no partition {', '.join(map(str, missing))}")
            found |= {TopicPartition(topic, index) for index in wanted}
        return sorted(found)

    def _begin(self, partitions: Sequence[TopicPartition], start: Position) -> None:
        """Set the start positions. Raises CommandFailed for an offset that is not in a log."""
        consumer = self._consumer
        starts = consumer.beginning_offsets(partitions)
        ends = consumer.end_offsets(partitions)
        at = self._offsets_at(partitions, start.number) if start.anchor == "timestamp" else {}
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
                    name = f"{partition.topic}-{partition.partition}"
                    raise CommandFailed(f"offset {position} is not in {name}, which has {first} to {end}")
            consumer.seek(partition, position)

    def _offsets_at(self, partitions: Sequence[TopicPartition], timestamp_ms: int) -> dict[TopicPartition, int]:
        """The first offsets at or after a timestamp; partitions without such a record are missing."""
        found = self._consumer.offsets_for_times(dict.fromkeys(partitions, timestamp_ms))
        return {partition: each.offset for partition, each in found.items() if each is not None and each.offset >= 0}

    def _commit(self) -> None:
        """Commit the printed offsets of the partitions that are still assigned to this member."""
        ours = self._consumer.assignment()
        offsets = {
            partition: OffsetAndMetadata(offset, "", UNKNOWN_EPOCH)
            for partition, offset in self._printed.items()
            if partition in ours
        }
        self._printed.clear()
        if not offsets:
            return
        try:
            self._consumer.commit(offsets)
        except KafkaError as error:
            raise CommandFailed(f"the printed offsets could not be committed: {error}") from error
