"""The loop of `kbroker consume`: find the start and end offsets, print records, and commit the printed offsets."""

from __future__ import annotations

import argparse
import os
import sys
from bisect import bisect_left
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack, closing
from typing import Any, Final, TypeVar

from kbroker.cli import CommandFailed
from kbroker.cli._admin import client_settings, connected, explain
from kbroker.cli._groups import expand
from kbroker.cli._positions import Position, Range
from kbroker.cli._progress import Progress
from kbroker.cli._records import OnlyValues, Render
from kbroker.cli._say import records_out
from kbroker.client.cluster import Cluster, Partition
from kbroker.client.consuming import SETTINGS, Consumer, Received
from kbroker.client.membership import Member
from kbroker.client.operations import EARLIEST, LATEST, list_offsets
from wire.errors import ErrorCode, KafkaError

T = TypeVar("T")

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
        progress = stack.enter_context(Progress("consume", "received", cluster))
        Reader(cluster, member, settings, options, reading=reading, render=render, progress=progress).read()


class Reader:
    """Prints the records that a consumer reads.

    Shape  _ends maps partitions to their exclusive end offsets, if they have one; _written and _printed are the next
           offsets after the records that were written, and after those that were flushed, which may be committed
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
        progress: Progress,
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
        self._progress = progress
        # Without timestamps to compare, and nothing but values to print, no record needs an object.
        self._has_only_values = isinstance(render, OnlyValues) and reading.end_ms is None
        self._ends: dict[Partition, int] = {}
        self._done: set[Partition] = set()
        self._written: dict[Partition, int] = {}
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
        except BrokenPipeError:
            raise
        except OSError as error:  # the client converts those of its connections
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is buffered would fail again
            raise CommandFailed(f"cannot write the records: {error.strerror}") from error
        finally:
            self._commit()

    def _loop(self, count: int | None, timeout_ms: int | None) -> None:
        now_ms = self._cluster.env.now_ms
        printed, printed_ms = 0, now_ms()
        wait_ms = POLL_MS if timeout_ms is None else min(POLL_MS, timeout_ms)
        while not self._is_over():
            most = None if count is None else count - printed
            found = self._print_values(wait_ms, most) if self._has_only_values else self._print_records(wait_ms, most)
            self._out.flush()
            self._printed |= self._written
            self._written.clear()
            printed += found
            if printed == count:
                return
            if found:
                self._commit()
                printed_ms = now_ms()
            elif timeout_ms is not None and now_ms() - printed_ms >= timeout_ms:
                return

    def _print_records(self, wait_ms: int, most: int | None) -> int:
        """Print the next records, at most so many; return their number."""
        size = 0
        found = self._poll(lambda: self._consumer.poll(timeout_ms=wait_ms, max_records=most), wait_ms)
        found = [each for each in found if not self._is_after_end(each)]
        for record in found:
            size += self._out.write(self._render(record))
        self._written |= {(each.topic, each.partition): each.offset + 1 for each in found}
        self._count(len(found), size)
        return len(found)

    def _print_values(self, wait_ms: int, most: int | None) -> int:
        """The same for records of which only the values are printed, many at once."""
        assert isinstance(self._render, OnlyValues)
        printed = size = 0
        for each in self._poll(lambda: self._consumer.poll_values(timeout_ms=wait_ms), wait_ms):
            partition = each.topic, each.partition
            end = self._ends.get(partition)
            count = len(each.values) if end is None else bisect_left(each.offsets, end)
            if most is not None:
                count = min(count, most - printed)
            if count:
                size += self._out.write(self._render.all(each.values[:count]))
                self._written[partition] = each.offsets[count - 1] + 1
                printed += count
        self._count(printed, size)
        return printed

    def _count(self, records: int, size: int) -> None:
        if records:
            self._progress.add(records, size)
        elif self._member is not None and not self._member.is_joined:
            self._progress.waits_for(f"group {self._options.group} assigns the partitions", is_trouble=False)
        elif not self._consumer.positions:
            said = f"group {self._options.group} has no partition for this member (Ctrl-C ends the command)"
            self._progress.waits_for(said, is_trouble=False)
        else:
            self._progress.waits_for("no new records (Ctrl-C ends the command)", is_trouble=False)

    def _poll(self, poll: Callable[[], list[T]], wait_ms: int) -> list[T]:
        if self._member is not None:
            if self._member.poll(wait_ms):
                self._consumer.assign(self._committed(self._member))
            if not self._member.is_joined:
                self._consumer.assign({})
                return []
        try:
            return poll()
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
