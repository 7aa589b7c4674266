"""One pass of the cleaner over a log: builds the map of the dirty part and writes the cleaned segments. Blocking.

A pass runs in steps of a few MiB, so that its caller can throttle it, end it between two steps, and replace segments as
soon as each group is done. It only reads the log and writes `.cleaned` files; `cleaning_files` makes them
part of the log. The steps may run in another process, because they keep the interpreter busy (`advance`). The caller
checks before the replacement that the log still has the segments that were read.

Each cleaned segment ends with the last batch that was read, if need be without records. So its last offset is still
known, and a later segment follows without a gap; recovery then sees if a loss of power took the end of a segment.

Source  Cleaner of Apache Kafka 4.3.1
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from kbroker.runtime.ports import Buffer, Disk
from kbroker.storage.batch_reader import BatchReader
from kbroker.storage.cleaning import SourceSegment, below, group_segments
from kbroker.storage.cleaning_batches import BatchCleaner, CleanedRecords, KnownProducer, unpacked
from kbroker.storage.cleaning_map import OffsetMap
from kbroker.storage.cleaning_records import scan_keys
from kbroker.storage.cleaning_transactions import CleanedTransactions
from kbroker.storage.files import FilePool
from kbroker.storage.segment import (
    CLEANED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SEGMENT_SUFFIXES,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    Segment,
    file_name,
)
from kbroker.storage.transaction_index import AbortedTransaction
from wire.errors import Malformed
from wire.record_batch import RecordBatch

STEP_BYTES: Final = 8 << 20
_WRITE_BYTES: Final = 1 << 20
_VIEW_BYTES: Final = 256 << 10


class CleaningPlan(NamedTuple):
    """The input of a pass.

    Shape  segments are all that start below first_uncleanable_offset; aborted are the transactions that begin there
    Units  map_entries is the number of keys of the map; horizon_ms is the delete horizon that the pass sets
    """

    directory: str
    segments: tuple[tuple[int, int], ...]
    first_dirty_offset: int
    first_uncleanable_offset: int
    aborted: tuple[AbortedTransaction, ...]
    producers: Mapping[int, KnownProducer]
    timestamp_ms: int
    map_entries: int
    max_decompressed_bytes: int
    segment_bytes: int
    index_bytes: int
    interval_bytes: int
    horizon_ms: int


class Progress(NamedTuple):
    """Bytes that were read and written since the last step."""

    bytes_read: int
    bytes_written: int


class CleanedSegment(NamedTuple):
    """The `.cleaned` files of base_offsets[0] are complete, and replace the segments with these base offsets."""

    base_offsets: tuple[int, ...]
    size: int
    has_transactions: bool


class Finished(NamedTuple):
    """The end of a pass: the log is clean up to end_offset. Units: utilization of the map, 0 to 1."""

    end_offset: int
    utilization: float
    records: CleanedRecords


Step = Progress | CleanedSegment | Finished


def clean(disk: Disk, plan: CleaningPlan) -> Iterator[Step]:
    """Run a pass, step by step. Errors: OSError; Malformed if the log is damaged or cannot be cleaned."""
    pool = FilePool(disk)
    try:
        yield from _Pass(disk, pool, plan).run()
    finally:
        pool.close()


class _Pass:
    def __init__(self, disk: Disk, pool: FilePool, plan: CleaningPlan) -> None:
        self._disk = disk
        self._pool = pool
        self._plan = plan
        self._map = OffsetMap(plan.map_entries, plan.first_dirty_offset)
        self._max_decompressed_bytes = plan.max_decompressed_bytes
        self._read = self._written = 0
        self._sources = [self._source(base_offset, size) for base_offset, size in plan.segments]

    def _source(self, base_offset: int, size: int) -> SourceSegment:
        index, time_index = (self._path(base_offset, suffix) for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX))
        return SourceSegment(
            base_offset,
            size,
            *(self._disk.size(path) if self._disk.exists(path) else 0 for path in (index, time_index)),
        )

    def _path(self, base_offset: int, suffix: str) -> str:
        return f"{self._plan.directory}/{file_name(base_offset, suffix)}"

    def run(self) -> Iterator[Step]:
        plan = self._plan
        yield from self._build_map()
        end_offset = self._map.latest_offset + 1
        if end_offset <= plan.first_dirty_offset:
            raise Malformed(
                f"the batch with offset {plan.first_dirty_offset} has more keys than log.cleaner.dedupe.buffer.size "
                f"can hold, {self._map.limit}"
            )
        self._map.complete()
        cleaner = BatchCleaner(
            self._map,
            CleanedTransactions(plan.aborted),
            plan.producers,
            timestamp_ms=plan.timestamp_ms,
            horizon_ms=plan.horizon_ms,
            max_decompressed_bytes=plan.max_decompressed_bytes,
        )
        for group in group_segments(
            below(self._sources, end_offset),
            segment_bytes=plan.segment_bytes,
            index_bytes=plan.index_bytes,
            end_offset=plan.first_uncleanable_offset,
        ):
            yield from self._clean_group(group, cleaner)
        yield Finished(end_offset, self._map.utilization, cleaner.stats)

    # --- the map ------------------------------------------------------------------------------------------------------

    def _build_map(self) -> Iterator[Progress]:
        """Read the dirty part until the map is full."""
        plan, offsets, start = self._plan, self._map, self._plan.first_dirty_offset
        transactions = CleanedTransactions(one for one in plan.aborted if one.last_offset >= start)
        ends = [one.base_offset for one in self._sources[1:]] + [plan.first_uncleanable_offset]
        for source, end in zip(self._sources, ends, strict=True):
            if end <= start:
                continue
            for batch in self._batches(source):
                if not offsets.latest_offset < batch.base_offset <= batch.last_offset < end or not batch.crc_is_valid():
                    # Checked before a segment is replaced: a damaged key would displace the record of another one.
                    raise Malformed(
                        f"the batch at offset {batch.base_offset} is damaged: its CRC or its offsets are wrong"
                    )
                is_aborted = transactions.may_drop(batch)
                if batch.last_offset >= start:
                    if not (batch.is_control or is_aborted) and not self._add(batch):
                        yield self._progress()
                        return
                    offsets.latest_offset = batch.last_offset
                if self._read >= STEP_BYTES:
                    yield self._progress()
            offsets.latest_offset = end - 1  # the segment may end with a gap
        yield self._progress()

    def _add(self, batch: RecordBatch) -> bool:
        """Add a batch to the map; False if the map is full. If the batch begins in the clean part, all of it is added:
        its records supersede older ones of their keys too.
        """
        if not batch.record_count:
            return True
        keys, tombstones = scan_keys(*unpacked(batch, self._max_decompressed_bytes), batch.record_count)
        return self._map.put(batch.base_offset, keys, tombstones)

    # --- cleaned segments ---------------------------------------------------------------------------------------------

    def _clean_group(self, group: tuple[SourceSegment, ...], cleaner: BatchCleaner) -> Iterator[Step]:
        plan = self._plan
        output = _Output(self._pool, plan)
        output.begin(group[0].base_offset)
        kept_before = len(cleaner.transactions.kept)
        dropped: RecordBatch | None = None
        for source in group:
            for batch in self._batches(source):
                kept = cleaner.clean(batch)
                dropped = batch if kept is None else None
                if kept is not None:
                    self._written += kept.size
                    output.add(kept)
                if self._read >= STEP_BYTES:
                    yield self._progress()
        if dropped is not None:
            output.add(cleaner.emptied(dropped))
        output.finish(cleaner.transactions.kept[kept_before:], has_file=self._had_transactions(group))
        yield self._progress()
        yield CleanedSegment(tuple(one.base_offset for one in group), output.size, output.has_transactions)

    def _had_transactions(self, group: tuple[SourceSegment, ...]) -> bool:
        return any(self._disk.exists(self._path(one.base_offset, TXN_INDEX_SUFFIX)) for one in group)

    def _batches(self, source: SourceSegment) -> Iterator[RecordBatch]:
        if not source.size:
            return
        path = self._path(source.base_offset, LOG_SUFFIX)
        reader = BatchReader(self._disk.open(path, writable=False), max_bytes=source.size)
        for batch in reader:
            self._read += batch.size
            yield batch
        if reader.position != source.size:
            raise Malformed(f"{path} is damaged at position {reader.position} of {source.size}")

    def _progress(self) -> Progress:
        step = Progress(self._read, self._written)
        self._read = self._written = 0
        return step


class _Output:
    """The files of a cleaned segment. Adjacent batches of one buffer are written as one piece."""

    def __init__(self, pool: FilePool, plan: CleaningPlan) -> None:
        self._pool = pool
        self._plan = plan
        self._parts: list[Buffer] = []
        self._buffer: Buffer = b""
        self._start = self._end = 0  # the piece of _buffer that is not in _parts yet
        self._pending = 0
        self.size = 0
        self.has_transactions = False

    def begin(self, base_offset: int) -> None:
        plan = self._plan
        self._segment = Segment.create(
            self._pool,
            plan.directory,
            base_offset,
            interval_bytes=plan.interval_bytes,
            created_ms=plan.timestamp_ms,
            extension=CLEANED_SUFFIX,
        )

    def add(self, batch: RecordBatch) -> None:
        if batch.buffer is not self._buffer or batch.position != self._end:
            self._end_piece()
            self._buffer, self._start = batch.buffer, batch.position
        self._end = batch.position + batch.size
        self._segment.note_batch(batch, self.size)
        self.size += batch.size
        self._pending += batch.size
        if self._pending >= _WRITE_BYTES:
            self._write()

    def _end_piece(self) -> None:
        if self._end > self._start:
            piece: Buffer = memoryview(self._buffer)[self._start : self._end]
            # A small piece must not keep a whole read in memory until it is written.
            self._parts.append(bytes(piece) if len(piece) < _VIEW_BYTES else piece)
        self._buffer, self._start, self._end = b"", 0, 0

    def _write(self) -> None:
        self._end_piece()
        data = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        self._segment.open().file.pwrite(data, self.size - self._pending)
        self._parts.clear()
        self._pending = 0

    def finish(self, aborted: list[AbortedTransaction], *, has_file: bool) -> None:
        """Complete the files and make them durable.

        A segment that replaces one with a transaction index gets one too, even an empty one, so that the old one never
        stays behind.
        """
        if self._pending:
            self._write()
        segment = self._segment
        segment.add_time_entry()
        self.has_transactions = has_file or bool(aborted)
        if self.has_transactions:
            self._pool.create(segment.path(TXN_INDEX_SUFFIX)).file.truncate(0)
        for one in aborted:
            segment.add_aborted(one)
        segment.sync(with_indexes=True)
        for suffix in SEGMENT_SUFFIXES:
            self._pool.forget(segment.path(suffix))


# --- passes in another process ----------------------------------------------------------------------------------------

_running: dict[str, Iterator[Step]] = {}


def begin(disk: Disk, plan: CleaningPlan) -> None:
    """Start a pass in this process; replaces an unfinished one over the same directory."""
    end(plan.directory)
    _running[plan.directory] = clean(disk, plan)


def advance(directory: str) -> Step:
    """The next step of a pass in this process. Blocking. Errors: those of `clean`, after which the pass has ended."""
    try:
        step = next(_running[directory])
    except BaseException:
        end(directory)
        raise
    if isinstance(step, Finished):
        end(directory)
    return step


def end(directory: str) -> None:
    """End a pass in this process before it is finished."""
    running = _running.pop(directory, None)
    if running is not None:
        running.close()  # type: ignore[attr-defined]  # a generator
