"""The loop of `kbroker consume`: find the start and end offsets, print records, and commit the printed offsets."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack, closing
from typing import Any, Final

from kbroker.cli import CommandFailed
from kbroker.cli._admin import client_settings, connected, explain
from kbroker.cli._groups import expand
from kbroker.cli._positions import Position, Range
from kbroker.cli._records import Render
from kbroker.cli._say import records_out
from kbroker.client.cluster import Cluster, Partition
from kbroker.client.consuming import SETTINGS, Consumer, Received
from kbroker.client.membership import Member
from kbroker.client.operations import EARLIEST, LATEST, list_offsets
from wire.errors import ErrorCode, KafkaError

POLL_MS: Final = 200
"""Length of one wait. The loop checks its end conditions after each wait."""


def read(options: argparse.Namespace, reading: Range, render: Render) -> None:
    """Print records up to the end that the flags set. Errors: CommandFailed."""
    settings = client_settings(options, known=SETTINGS)
    with ExitStack() as stack:
        cluster = stack.enter_context(connected(settings))
        member = None
        if options.group is not None:
            topics = [each.topic for each in options.topic]
            member = stack.enter_context(closing(Member(settings, options.group, topics)))
        Reader(cluster, member, settings, options, reading=reading, render=render).read()


class Reader:
    """Prints the records that a consumer reads.

    Shape  _ends maps partitions to their exclusive end offsets, if they have one; _printed are the offsets to commit,
           after the last flushed record
    """

    def __init__(
        self,
        cluster: Cluster,
        member: Member | None,
        settings: Mapping[str, Any],
        options: argparse.Namespace,
        *,
        reading: Range,
        render: Render,
    ) -> None:
        self._cluster = cluster
        self._member = member
        self._options = options
        self._reading = reading
        # Where a member begins without an offset of the group, or if its offset is not in the log.
        self._reset = EARLIEST if reading.start.anchor == "beginning" else LATEST
        self._consumer = Consumer(
            cluster,
            settings,
            is_committed_only=options.isolation_level == "read_committed",
            reset=None if member is None else self._reset,
        )
        self._out = records_out(is_json=options.format == "json")
        self._render = render
        self._ends: dict[Partition, int] = {}
        self._done: set[Partition] = set()
        self._printed: dict[Partition, int] = {}

    def read(self) -> None:
        """Print records up to the end. Errors: CommandFailed, KafkaError."""
        only = self._options.partition
        topics = [
            each if each.partitions is not None else each._replace(partitions=only) for each in self._options.topic
        ]
        partitions = expand(self._cluster, topics)
        if self._member is None:
            self._begin(partitions, self._reading.start)
            if self._options.exit_at_end:
                self._ends = self._consumer.ends(partitions, LATEST)
            if self._reading.end_ms is not None:
                self._ends |= self._offsets_at(partitions, self._reading.end_ms)
        try:
            self._loop(self._options.count, self._options.timeout_ms)
        finally:
            self._commit()

    def _loop(self, count: int | None, timeout_ms: int | None) -> None:
        now_ms = self._cluster.env.now_ms
        printed, printed_ms = 0, now_ms()
        wait_ms = POLL_MS if timeout_ms is None else min(POLL_MS, timeout_ms)
        while not self._is_over():
            most = None if count is None else count - printed
            found = [each for each in self._poll(wait_ms, most) if not self._is_after_end(each)]
            for record in found:
                self._out.write(self._render(record))
            self._out.flush()
            self._printed |= {(each.topic, each.partition): each.offset + 1 for each in found}
            printed += len(found)
            if printed == count:
                return
            if found:
                self._commit()
                printed_ms = now_ms()
            elif timeout_ms is not None and now_ms() - printed_ms >= timeout_ms:
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

    def _is_after_end(self, record: Received) -> bool:
        partition = record.topic, record.partition
        end = self._ends.get(partition)
        end_ms = self._reading.end_ms
        if end_ms is not None and end is None and record.timestamp >= end_ms:
            # At the start, no record had this timestamp, so this is the first one.
            self._done.add(partition)
        return partition in self._done or (end is not None and record.offset >= end)

    def _is_over(self) -> bool:
        """Whether every partition has been read up to its end."""
        positions = self._consumer.positions
        if self._member is not None and self._options.exit_at_end:
            if not self._member.is_joined:
                return False
            self._ends |= self._consumer.ends(positions.keys() - self._ends.keys(), LATEST)
        elif not self._ends and not self._done:
            return False
        return all(each in self._done or at >= self._ends.get(each, at + 1) for each, at in positions.items())

    def _begin(self, partitions: Sequence[Partition], start: Position) -> None:
        """Set the start positions. Raises CommandFailed for an offset that is not in a log."""
        starts = self._consumer.ends(partitions, EARLIEST)
        ends = self._consumer.ends(partitions, LATEST)
        at = self._offsets_at(partitions, start.number) if start.anchor == "timestamp" else {}
        positions = {}
        for partition in partitions:
            first, end = starts[partition], ends[partition]
            positions[partition] = {
                "beginning": first,
                "end": end,
                "tail": max(first, end - start.number),
                "timestamp": at.get(partition, end),
                "offset": start.number,
            }[start.anchor]
            if start.anchor == "offset" and not first <= start.number <= end:
                topic, index = partition
                raise CommandFailed(f"offset {start.number} is not in {topic}-{index}, which has {first} to {end}")
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
