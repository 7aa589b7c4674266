"""Check one segment: every batch of its log, and its indexes.

The log is read once, in pieces of a few MiB. Each batch is checked completely: its header, its CRC, the framing of
every record (which requires decompression), and the fields that the CRC does not cover. Base offsets must continue
where the batch before ended (after a compaction they may skip offsets). Leader epochs must never fall and must match
the checkpoint.

Each index entry must point to a batch. The writer chooses which batches get an entry, so a missing entry cannot be
detected. But the last entry of a time index must hold the segment's largest timestamp, except in the last segment,
whose end is read at startup anyway.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from struct import Struct
from typing import Final, NamedTuple, Protocol

from kbroker.runtime.ports import ReadableDisk
from kbroker.storage.batch_reader import BatchReader
from kbroker.storage.checkpoint import read_file
from kbroker.storage.control_records import read_control
from kbroker.storage.index import OFFSET_ENTRY, TIME_ENTRY, TRANSACTION_ENTRY
from kbroker.storage.leader_epoch import LeaderEpochs
from kbroker.storage.segment import INDEX_SUFFIX, LOG_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX, file_name
from wire.batch_header import CODEC_MASK
from wire.compression import decompress_pieces
from wire.errors import Malformed
from wire.record_batch import MAX_DECOMPRESSED_BYTES, RecordBatch
from wire.record_walk import RecordWalk, walk_pieces

PROGRESS_BYTES: Final = 4 << 20
Progress = Callable[[int], None]


class Findings(Protocol):
    """Receives the findings.

    Shape  count is the number of findings so far
    """

    count: int

    def add(self, path: str, text: str, *, position: int | None = None) -> None:
        """Report an error in a file, with its position in bytes if it has one."""
        ...

    def hint(self, path: str, text: str) -> None:
        """Report something unusual that is not an error."""
        ...


class Expected(NamedTuple):
    """What other files say about the log.

    Shape  log_start is the offset below which nothing is checked; epochs is None if unknown; recovery_point is None
           after a clean shutdown, when no recovery is due
    """

    is_compacted: bool
    log_start: int
    epochs: LeaderEpochs | None
    recovery_point: int | None


@dataclass(slots=True)
class Reach:
    """The end of the log as checked so far: the next offset, the newest leader epoch, and whether they are certain."""

    next_offset: int
    epoch: int = -1
    is_known: bool = True


class _Deferred:
    """Findings about indexes; reported only if the next start does not rebuild the indexes."""

    def __init__(self) -> None:
        self.count = 0
        self.findings: list[tuple[str, str, int | None]] = []

    def add(self, path: str, text: str, *, position: int | None = None) -> None:
        self.count += 1
        self.findings.append((path, text, position))

    def hint(self, path: str, text: str) -> None:
        self.add(path, text)


class SegmentCheck:
    """The check of one segment; `check` advances `reach` to its end."""

    def __init__(
        self,
        disk: ReadableDisk,
        directory: str,
        base_offset: int,
        *,
        is_last: bool,
        expected: Expected,
        report: Findings,
        progress: Progress,
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._base_offset = base_offset
        self._is_last = is_last
        self._expected = expected
        self._report = report
        self._progress = progress
        self._log = self._path(LOG_SUFFIX)
        self._positions: dict[int, list[tuple[int, int]]] = {}  # position -> entries that point to it: (number, offset)
        self._times: dict[int, list[tuple[int, int]]] = {}  # offset -> time entries for it: (number, timestamp)
        self._greatest = -1  # largest timestamp so far
        self._of_indexes = _Deferred()

    def _path(self, suffix: str) -> str:
        return f"{self._directory}/{file_name(self._base_offset, suffix)}"

    def check(self, names: frozenset[str], reach: Reach) -> None:
        """Read and check the log and the indexes; `names` are the files of the directory. OSError."""
        before = self._report.count
        self._load_index(names, INDEX_SUFFIX)
        times = self._load_index(names, TIME_INDEX_SUFFIX)
        self._check_log(reach)
        point = self._expected.recovery_point
        if point is not None and reach.next_offset > point:
            # The next start reads this segment and rebuilds its indexes in any case.
            return
        if self._report.count == before:
            # If the log itself is damaged, entries without a batch are expected.
            self._report_entries_without_batch()
            if not self._times and not self._is_last:
                self._compare_last_time(times[-1][0] if times else -1)
        for path, text, position in self._of_indexes.findings:
            self._report.add(path, text, position=position)
        self._check_transactions(names, reach)

    # --- the log ---

    def _check_log(self, reach: Reach) -> None:
        file = self._disk.open(self._log, writable=False)
        try:
            reader = BatchReader(file)
            reported = 0
            for batch in reader:
                self._check_batch(batch, reader.position, reach)
                if reader.position - reported >= PROGRESS_BYTES:
                    self._progress(reader.position - reported)
                    reported = reader.position
            self._progress(reader.end - reported)
            if reader.error is None:
                return
            point = self._expected.recovery_point
            if self._is_last and point is not None and reach.next_offset >= point:
                text = f"no whole batch follows offset {reach.next_offset} at byte {reader.position}: {reader.error}"
                self._report.hint(
                    self._log, f"{text}; the broker did not stop properly, and its next start truncates it"
                )
            else:
                self._report.add(self._log, reader.error, position=reader.position)
            reach.is_known = False
        finally:
            file.close()

    def _check_batch(self, batch: RecordBatch, position: int, reach: Reach) -> None:
        def add(text: str) -> None:
            self._report.add(self._log, f"the batch at offset {batch.base_offset} {text}", position=position)

        if batch.magic != 2:
            add(f"has format {batch.magic}, which is not checked here")
            reach.is_known = False
            return
        self._check_offsets(batch, reach, add)
        self._check_epoch(batch, reach, add)
        if not batch.crc_is_valid():
            add("has a wrong CRC")
        else:
            self._check_records(batch, add)
            self._greatest = max(self._greatest, batch.max_timestamp)
        self._compare_entries(batch, position)
        reach.next_offset, reach.is_known = max(reach.next_offset, batch.last_offset + 1), True

    def _check_offsets(self, batch: RecordBatch, reach: Reach, add: Callable[[str], None]) -> None:
        if batch.base_offset < self._base_offset:
            add(f"is before the segment's first offset, {self._base_offset}")
        elif not reach.is_known:
            return
        elif batch.base_offset < reach.next_offset:
            add(f"does not follow offset {reach.next_offset - 1}")
        elif batch.base_offset > reach.next_offset and not self._expected.is_compacted:
            add(f"does not follow offset {reach.next_offset - 1}: the offsets between are missing")
        if batch.last_offset - self._base_offset > 0x7FFF_FFFF:
            add(f"ends {batch.last_offset - self._base_offset} after the segment's first offset")

    def _check_epoch(self, batch: RecordBatch, reach: Reach, add: Callable[[str], None]) -> None:
        epoch = batch.partition_leader_epoch
        if epoch < reach.epoch:
            add(f"has leader epoch {epoch}, after one of {reach.epoch}")
        reach.epoch = max(reach.epoch, epoch)
        epochs, point = self._expected.epochs, self._expected.recovery_point
        if epochs is None or batch.base_offset < self._expected.log_start:
            return
        if point is not None and batch.base_offset >= point:
            return
        # Check the last offset too: an epoch cannot start inside a batch.
        for offset in (batch.base_offset, batch.last_offset):
            known = epochs.epoch_for_offset(offset)
            if known != epoch:
                add(f"has leader epoch {epoch}, but leader-epoch-checkpoint has {known}")
                return

    def _check_records(self, batch: RecordBatch, add: Callable[[str], None]) -> None:
        try:
            if batch.is_control:
                for record in batch.records():
                    read_control(record)
            elif batch.record_count == batch.last_offset_delta + 1:
                pieces = decompress_pieces(batch.codec, batch.payload, max_bytes=MAX_DECOMPRESSED_BYTES)
                walk_pieces(RecordWalk(batch.record_count), pieces)
            elif not self._expected.is_compacted:
                add(f"has {batch.record_count} records for {batch.last_offset_delta + 1} offsets")
            else:
                self._check_sparse_records(batch, add)
        except Malformed as error:
            add(f"cannot be read: {error}")
        except ValueError:  # unknown codec
            add(f"has the unknown codec {batch.attributes & CODEC_MASK}")

    @staticmethod
    def _check_sparse_records(batch: RecordBatch, add: Callable[[str], None]) -> None:
        previous = batch.base_offset - 1
        for record in batch.records():
            if not previous < record.offset <= batch.last_offset:
                add(f"has a record at offset {record.offset} after one at {previous}")
                return
            previous = record.offset

    # --- indexes ---

    def _load_index(self, names: frozenset[str], suffix: str) -> list[tuple[int, int]]:
        """Read the entries and store them by the position or offset that they point to."""
        path = self._path(suffix)
        if path.rpartition("/")[2] not in names:
            self._of_indexes.add(path, "is missing")
            return []
        is_offsets = suffix == INDEX_SUFFIX
        entry = OFFSET_ENTRY if is_offsets else TIME_ENTRY
        entries = index_entries(self._disk, path, entry, self._of_indexes)
        previous = (-1, -1)
        for number, found in enumerate(entries):
            if found[0] <= previous[0] or found[1] < previous[1] + is_offsets:
                text = f"entry {number} ({found[0]}, {found[1]}) does not follow ({previous[0]}, {previous[1]})"
                self._of_indexes.add(path, text, position=number * entry.size)
            previous = found
            if is_offsets:
                self._positions.setdefault(found[1], []).append((number, self._base_offset + found[0]))
            else:
                self._times.setdefault(self._base_offset + found[1], []).append((number, found[0]))
        return entries

    def _compare_entries(self, batch: RecordBatch, position: int) -> None:
        for number, offset in self._positions.pop(position, ()):
            if offset != batch.last_offset:
                text = f"offset {offset} at position {position}, but the batch there ends with {batch.last_offset}"
                self._report_entry(INDEX_SUFFIX, number, text)
        for number, timestamp in self._times.pop(batch.last_offset, ()):
            if timestamp != batch.max_timestamp:
                text = f"timestamp {timestamp} at offset {batch.last_offset}, but the log has {batch.max_timestamp}"
                self._report_entry(TIME_INDEX_SUFFIX, number, text)

    def _report_entries_without_batch(self) -> None:
        for position, entries in sorted(self._positions.items()):
            for number, offset in entries:
                self._report_entry(
                    INDEX_SUFFIX, number, f"offset {offset} at position {position}, but no batch begins there"
                )
        for offset, entries in sorted(self._times.items()):
            for number, timestamp in entries:
                text = f"timestamp {timestamp} at offset {offset}, but no batch ends with that offset"
                self._report_entry(TIME_INDEX_SUFFIX, number, text)

    def _compare_last_time(self, last_time: int) -> None:
        if last_time != self._greatest:
            text = f"its last timestamp is {last_time}, but the largest timestamp of the segment is {self._greatest}"
            self._of_indexes.add(self._path(TIME_INDEX_SUFFIX), text)

    def _report_entry(self, suffix: str, number: int, text: str) -> None:
        size = (OFFSET_ENTRY if suffix == INDEX_SUFFIX else TIME_ENTRY).size
        self._of_indexes.add(self._path(suffix), f"entry {number} has {text}", position=number * size)

    def _check_transactions(self, names: frozenset[str], reach: Reach) -> None:
        path = self._path(TXN_INDEX_SUFFIX)
        if path.rpartition("/")[2] not in names:
            return
        data = read_file(self._disk, path)
        size = TRANSACTION_ENTRY.size
        if len(data) % size:
            self._report.add(path, f"{len(data)} bytes, not a multiple of the entry size {size}")
        for number in range(len(data) // size):
            version, _, first, last, stable = TRANSACTION_ENTRY.unpack_from(data, number * size)
            if version != 0 or not 0 <= first <= last < reach.next_offset or not 0 <= stable <= reach.next_offset:
                text = f"entry {number} is invalid: version {version}, offsets {first} to {last}, last stable {stable}"
                self._report.add(path, text, position=number * size)


def index_entries(
    disk: ReadableDisk, path: str, entry: Struct, findings: Findings | None = None
) -> list[tuple[int, int]]:  # fmt: skip
    """The entries of an index without preallocated zeros; reports a size that is not a multiple of the entry size.

    A file of one entry is not preallocated: its zeros are the timestamp 0 at the segment's first offset.
    """
    data = read_file(disk, path)
    whole = len(data) - len(data) % entry.size
    if whole != len(data) and findings is not None:
        findings.add(path, f"{len(data)} bytes, not a multiple of the entry size {entry.size}", position=whole)
    used = len(data[:whole].rstrip(b"\0"))
    used += -used % entry.size
    if whole == TIME_ENTRY.size == entry.size:
        used = whole
    return list(entry.iter_unpack(data[: min(used, whole)]))
