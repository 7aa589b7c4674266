"""Dumps indexes, producer snapshots and checkpoints, and compares the indexes with the log.

Kafka preallocates the index of an active segment, so zeros at its end are not entries. For each entry of `.index`, the
batch at its position must end with its offset. Each entry of `.timeindex` must have the last offset and the greatest
timestamp of a batch, and the entries must ascend.

Source: DumpLogSegments, OffsetIndex, TimeIndex, TransactionIndex of Apache Kafka 4.3.1.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from typing import Final, NamedTuple

from kbroker.cli._dump_output import OptionalLong, Printer, Problems
from kbroker.runtime.ports import Disk, File
from kbroker.storage.batch_reader import BatchReader
from kbroker.storage.checkpoint import parse_offsets, read_file
from kbroker.storage.index import OFFSET_ENTRY, TIME_ENTRY, TRANSACTION_ENTRY
from kbroker.storage.leader_epoch import parse_epochs
from kbroker.storage.producer_state import snapshot_rows
from kbroker.storage.verifying import index_entries
from wire.batch_header import MAX_SEQUENCE
from wire.errors import Malformed
from wire.record_batch import NO_TIMESTAMP, RecordBatch

LOOK_UP_BYTES: Final = 16 << 10

Entry = tuple[int, int]


class IndexOptions(NamedTuple):
    """What to print of an index: only the result of the broker's sanity check, only mismatches, or everything."""

    sanity_only: bool
    verify_only: bool


def dump_index(disk: Disk, path: str, printer: Printer, problems: Problems, options: IndexOptions) -> None:
    """Print an offset index and compare it with its log."""
    base_offset = _base_offset(path, problems)
    entries = index_entries(disk, path, OFFSET_ENTRY, problems)
    if not entries:
        _print_verdict(path, "is empty.", printer)
        return
    if options.sanity_only:
        _check_ascending(path, entries, 0, printer, problems)
        return
    with _opened_log(disk, path, problems) as log:
        for number, (relative, position) in enumerate(entries):
            offset = base_offset + relative
            if log is not None:
                found = _batch_at(log, position)
                if found is None or found.last_offset != offset:
                    there = "there is no batch" if found is None else f"the batch there ends with {found.last_offset}"
                    text = f"entry {number} has offset {offset} at position {position} of the log, {there}"
                    problems.add(path, text, position=number * OFFSET_ENTRY.size)
            if not options.verify_only:
                printer.row("entry", {"offset": offset, "position": position})


def dump_time_index(disk: Disk, path: str, printer: Printer, problems: Problems, options: IndexOptions) -> None:
    """Print a time index and compare it with its log and offset index."""
    base_offset = _base_offset(path, problems)
    entries = index_entries(disk, path, TIME_ENTRY, problems)
    if options.sanity_only:
        _check_ascending(path, [(offset, timestamp) for timestamp, offset in entries], 1, printer, problems)
        return
    if not entries:
        return
    with _opened_log(disk, path, problems) as log:
        positions = _positions(disk, path) if log is not None else []
        previous = NO_TIMESTAMP
        for number, (timestamp, relative) in enumerate(entries):
            offset = base_offset + relative
            if log is not None:
                wrong = _check_time_entry(log, positions, timestamp, offset, relative)
                if wrong is None and previous >= timestamp:
                    wrong = f"timestamp {timestamp} follows {previous}"
                if wrong is not None:
                    problems.add(path, f"entry {number}: {wrong}", position=number * TIME_ENTRY.size)
            if not options.verify_only:
                printer.row("entry", {"timestamp": timestamp, "offset": offset})
            previous = timestamp


def _check_time_entry(log: File, positions: list[Entry], timestamp: int, offset: int, relative: int) -> str | None:
    """The problem of an entry of a time index; None if it is correct."""
    at = bisect_right(positions, (relative, 0x7FFF_FFFF)) - 1
    reader = BatchReader(log, positions[at][1] if at >= 0 else 0, chunk_bytes=LOOK_UP_BYTES)
    batch = next((batch for batch in reader if batch.last_offset >= offset), None)
    if batch is None:
        return f"offset {offset} is not in the log"
    if batch.last_offset != offset:
        return f"offset {offset} is not the last of its batch, that is {batch.last_offset}"
    try:
        greatest = max((record.timestamp for record in batch.records()), default=NO_TIMESTAMP)
    except Malformed as error:
        return f"the batch that ends with offset {offset} cannot be read: {error}"
    return None if greatest == timestamp else f"timestamp {timestamp}, in the log it is {greatest}"


def _check_ascending(path: str, entries: list[Entry], field: int, printer: Printer, problems: Problems) -> None:
    """The sanity check with which a starting broker decides whether to rebuild an index; (offset, other) entries."""
    if entries and entries[-1][0] < 0:
        problems.add(path, f"the last offset is {-entries[-1][0]} below the segment's first")
    elif entries and field and entries[-1][field] < entries[0][field]:
        problems.add(path, f"the last timestamp {entries[-1][field]} is less than the first, {entries[0][field]}")
    else:
        _print_verdict(path, "passed sanity check.", printer)


def _print_verdict(path: str, text: str, printer: Printer) -> None:
    printer.line(f"{path} {text}", "verdict", path=path, text=text)


def dump_transaction_index(disk: Disk, path: str, printer: Printer, problems: Problems) -> None:
    """Print the aborted transactions of a segment."""
    data = read_file(disk, path)
    whole = len(data) - len(data) % TRANSACTION_ENTRY.size
    for number, entry in enumerate(TRANSACTION_ENTRY.iter_unpack(data[:whole])):
        if entry[0] != 0:
            text = f"entry {number} has version {entry[0]}, where only 0 exists"
            problems.add(path, text, position=number * TRANSACTION_ENTRY.size)
            return
        names = ("version", "producerId", "firstOffset", "lastOffset", "lastStableOffset")
        printer.row("aborted", dict(zip(names, entry, strict=True)))
    if whole != len(data):
        problems.add(path, f"{len(data) - whole} bytes, where an entry has {TRANSACTION_ENTRY.size}", position=whole)


def dump_producer_snapshot(disk: Disk, path: str, printer: Printer, problems: Problems) -> None:
    """Print a producer snapshot: one row for each batch, the oldest of a producer first."""
    try:
        rows = snapshot_rows(read_file(disk, path))
    except ValueError as error:
        problems.add(path, str(error))
        return
    for row in rows:
        first = row.current_txn_first_offset
        fields: dict[str, object] = {
            "producerId": row.producer_id,
            "producerEpoch": row.producer_epoch,
            "coordinatorEpoch": row.coordinator_epoch,
            "currentTxnFirstOffset": OptionalLong(first if first >= 0 else None),
            "lastTimestamp": row.timestamp_ms,
        }
        if row.last_offset >= 0:
            fields |= {
                "firstSequence": (row.last_sequence - row.offset_delta) & MAX_SEQUENCE,
                "lastSequence": row.last_sequence,
                "lastOffset": row.last_offset,
                "offsetDelta": row.offset_delta,
                "timestamp": row.timestamp_ms,
            }
        printer.row("producer", fields)


def dump_leader_epochs(disk: Disk, path: str, printer: Printer, problems: Problems) -> None:
    """Print the start offset of each leader epoch of a partition. Kafka's tool does not support this file."""
    for epoch, start_offset in problems.parsed(disk, path, parse_epochs) or ():
        printer.row("epoch", {"leaderEpoch": epoch, "startOffset": start_offset})


def dump_offset_checkpoint(disk: Disk, path: str, printer: Printer, problems: Problems) -> None:
    """Print an offset checkpoint of a log directory. Kafka's tool does not support this file."""
    for (topic, partition), offset in (problems.parsed(disk, path, parse_offsets) or {}).items():
        printer.row("checkpoint", {"topic": topic, "partition": partition, "offset": offset})


def _base_offset(path: str, problems: Problems) -> int:
    stem = path.rpartition("/")[2].partition(".")[0]
    if stem.isascii() and stem.isdigit():
        return int(stem)
    problems.add(path, "the file name is not an offset, so offsets are shown relative to the segment's base offset")
    return 0


@contextmanager
def _opened_log(disk: Disk, path: str, problems: Problems) -> Iterator[File | None]:
    """The log of an index; None, after a report, if it cannot be opened."""
    directory, slash, name = path.rpartition("/")
    log = f"{directory}{slash}{name.partition('.')[0]}.log"
    try:
        file = disk.open(log, writable=False)
    except OSError as error:
        problems.add(path, f"cannot be compared with the log: {error.strerror}: {log}")
        yield None
        return
    with closing(file):
        yield file


def _positions(disk: Disk, path: str) -> list[Entry]:
    """The entries of a time index's offset index, to find batches quickly; empty if it is missing or damaged."""
    index = path.removesuffix(".timeindex") + ".index"
    found: list[Entry] = []
    with suppress(OSError):
        found = index_entries(disk, index, OFFSET_ENTRY)
    return found if found == sorted(found) and all(position >= 0 for _, position in found) else []


def _batch_at(log: File, position: int) -> RecordBatch | None:
    """The header of the batch at a position of a log; None if there is no batch."""
    if position < 0 or position >= log.size():
        return None
    try:
        return RecordBatch(log.pread(61, position))
    except Malformed:
        return None
