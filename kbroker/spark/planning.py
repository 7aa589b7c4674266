"""The driver's part of a read: resolves options to offsets, and offsets to pieces.

Batch queries do both once. Streaming queries resolve offsets again for each batch, and plan pieces between offsets that
may come from a checkpoint.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping
from contextlib import ExitStack, closing
from typing import NamedTuple

from kbroker.spark.committed import AbortedTransactions
from kbroker.spark.errors import InvalidOption, OffsetsNotCovered, OffsetsOutOfRange
from kbroker.spark.inventory import Bounds, Extent, open_inventory
from kbroker.spark.leasing import HeldOffsets
from kbroker.spark.options import SourceOptions
from kbroker.spark.pieces import Piece, Task
from kbroker.spark.plan import Hole, PartitionState, divided, joined, task_size, tile
from kbroker.spark.positions import AtOffsets, AtTimestamp, AtTimestamps, Edge, Offsets, Partition, Position
from kbroker.spark.remote_times import load_indexes
from kbroker.spark.stores import open_store
from kbroker.tiered.api import RemoteLogSegmentMetadata, RemoteStorageError
from kbroker.tiered.indexes import RemoteIndexes

logger = logging.getLogger("kbroker.spark")


class Range(NamedTuple):
    """What a batch query reads. Units: end offsets are exclusive."""

    extent: Extent
    start: Offsets
    end: Offsets


class Planner:
    """All methods raise KbrokerSourceError."""

    def __init__(self, options: SourceOptions) -> None:
        self.options = options
        self._stack = ExitStack()
        self._inventory = open_inventory(options, self._stack)
        self._aborted = AbortedTransactions(options) if options.is_committed_only else None
        self.held = HeldOffsets(options)

    def close(self) -> None:
        """Close the connections."""
        self._stack.close()

    # --- offsets ------------------------------------------------------------------------------------------------------

    def extent(self) -> Extent:
        """The subscribed partitions that exist, and their current bounds."""
        return self._inventory.extent(self.options.subscription)

    def batch_range(self) -> Range:
        """The offsets where a batch query begins and ends."""
        extent = self.extent()
        start, end = self.starting(extent), self._resolved("ending", self.options.ending, extent.bounds)
        is_by_offsets = isinstance(self.options.starting, AtOffsets) and isinstance(self.options.ending, AtOffsets)
        for partition in start:
            if start[partition] > end[partition]:
                if is_by_offsets:
                    raise InvalidOption(
                        f"startingOffsets is {start[partition]}, but endingOffsets is {end[partition]}",
                        remedy="correct one of them",
                        at=partition,
                    )
                start[partition] = end[partition]
        return Range(extent, start, end)

    def starting(self, extent: Extent) -> Offsets:
        """The offsets where reading begins, by the options."""
        return self._resolved("starting", self.options.starting, extent.bounds)

    def _resolved(self, edge: str, position: Position | None, bounds: Mapping[Partition, Bounds]) -> Offsets:
        match position:
            case AtTimestamp(timestamp_ms):
                return self._at(edge, dict.fromkeys(bounds, timestamp_ms), bounds)
            case AtTimestamps(timestamps_ms):
                _check_all(timestamps_ms, bounds, f"{edge}OffsetsByTimestamp")
                return self._at(edge, timestamps_ms, bounds)
            case AtOffsets(offsets):
                _check_all(offsets, bounds, f"{edge}Offsets")
                return {each: self._within(each, offsets[each], bounds[each], f"{edge}Offsets") for each in bounds}
        assert position is not None, "for_batch and for_streaming add the defaults"
        return {each: _edge(position, there) for each, there in bounds.items()}

    def _at(self, edge: str, timestamps_ms: Mapping[Partition, int], bounds: Mapping[Partition, Bounds]) -> Offsets:
        """The first offset at or after the time in each partition; the end if there is none."""
        found = self._inventory.offsets_at(timestamps_ms)
        offsets: Offsets = {}
        for partition, there in bounds.items():
            offset = found[partition]
            # Records that arrived after the ends were looked up are not part of this read.
            if offset is None or offset >= there.end_offset:
                offset = there.end_offset
                if edge == "starting" and not self.options.latest_without_match:
                    raise OffsetsOutOfRange(
                        "no record is at or after the starting timestamp",
                        remedy="give an earlier one, or set startingOffsetsByTimestampStrategy=latest",
                        at=partition,
                    )
            offsets[partition] = offset
        return offsets

    def _within(self, partition: Partition, offset: int | Edge, there: Bounds, what: str) -> int:
        """The offset, checked to exist. Errors: OffsetsOutOfRange, unless failOnDataLoss=false."""
        if isinstance(offset, Edge):
            return _edge(offset, there)
        if there.log_start_offset <= offset <= there.end_offset:
            return offset
        nearest = min(max(offset, there.log_start_offset), there.end_offset)
        error = OffsetsOutOfRange(
            f"{what} has {offset}; the topic has the offsets {there.log_start_offset} to {there.end_offset - 1}",
            remedy=f"name existing offsets (-2 earliest, -1 latest); failOnDataLoss=false uses the nearest, {nearest}",
            at=partition,
            offset=offset,
        )
        self.options.lose(error)
        return nearest

    # --- pieces -------------------------------------------------------------------------------------------------------

    def tasks(self, start: Mapping[Partition, int], end: Mapping[Partition, int], extent: Extent) -> list[Task]:
        """The tasks for the executors. Their pieces tile the offset ranges from start to end."""
        wanted = [partition for partition in end if start[partition] < end[partition]]
        states = self._inventory.states(wanted, extent.bounds)
        tiled: list[Piece] = []
        for partition, state in zip(wanted, states, strict=True):
            tiled += self._covered(state, start[partition], end[partition])
        options = self.options
        least, most = options.min_partitions, options.max_records_per_partition
        pieces = divided(tiled, self._indexes, at_least=least, most_records=most)
        if least is not None or most is not None:
            return [(piece,) for piece in pieces]
        # Spark tells a Python source nothing about its executors. In local mode they have the cores of this machine.
        return joined(pieces, task_bytes=task_size(pieces, cores=os.cpu_count() or 1))

    def _covered(self, state: PartitionState, start: int, end: int) -> list[Piece]:
        """The pieces of a partition. Errors: OffsetsNotCovered, unless failOnDataLoss=false."""
        found: list[Piece] = []
        tiled: Iterable[Piece | Hole] = tile(state, start, end)
        if self._aborted is not None:
            tiled = self._aborted.marked(state, tiled)
        for piece in tiled:
            if isinstance(piece, Hole):
                error = OffsetsNotCovered(
                    f"no finished segment in the store has the offsets {piece.start_offset} to {piece.end_offset - 1}",
                    remedy="name the broker (kafka.bootstrap.servers), which may have them, or run kbroker tier scrub;"
                    " failOnDataLoss=false skips them",
                    at=state.id[1:],
                    offset=piece.start_offset,
                )
                self.options.lose(error)
            else:
                found.append(piece)
        return found

    def _indexes(self, segment: RemoteLogSegmentMetadata) -> RemoteIndexes | None:
        assert self.options.store is not None
        try:
            found = load_indexes(open_store(self.options.store), segment, with_times=False)
        except RemoteStorageError as error:
            logger.warning(
                "the index of a segment cannot be read; the segment will be read from its beginning: %s", error
            )
            return None
        if found is None:
            logger.warning(
                "the index of %s is damaged or missing; the segment will be read from its beginning", segment
            )
        return found


def batch_tasks(options: SourceOptions) -> list[Task]:
    """The tasks of a batch query. `options` are those of `SourceOptions.for_batch`."""
    with closing(Planner(options)) as planner:
        wanted = planner.batch_range()
        planner.held.hold(wanted.start)
        return planner.tasks(wanted.start, wanted.end, wanted.extent)


def _edge(edge: Edge, there: Bounds) -> int:
    return there.log_start_offset if edge is Edge.EARLIEST else there.end_offset


def _check_all(given: Mapping[Partition, object], there: Mapping[Partition, Bounds], option: str) -> None:
    """Checks that the option names exactly the partitions that are read. Errors: InvalidOption."""
    for partitions, said in (
        (there.keys() - given.keys(), "does not name"),
        (given.keys() - there.keys(), "names partitions that are not read:"),
    ):
        if partitions:
            names = ", ".join(f"{topic}-{index}" for topic, index in sorted(partitions))
            raise InvalidOption(
                f"{option} {said} {names}", remedy="name each partition that is read, -2 for earliest and -1 for latest"
            )
