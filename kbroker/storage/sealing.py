"""Making sure that a closed segment is whole before it leaves this machine.

What is copied to the tier will be read when nothing of it is here any more, so it is compared with itself first: every
batch has its CRC and leader epoch, follows the one before and ends before the next segment; both indexes say what the
log says, entry by entry; the snapshot of the producers at its end is there and can be read. A damaged log is an error
and stays here. The rest is made anew from the log, which knows it all.

Source  KAFKA-15401; row D10 of the list of faults
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kbroker.storage import loader
from kbroker.storage.batches import scan_valid_batches
from kbroker.storage.checkpoint import read_file, write_atomically
from kbroker.storage.index import TIME_ENTRY
from kbroker.storage.producer_state import ProducerState, parse_snapshot
from kbroker.storage.segment import (
    INDEX_SUFFIX,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    Segment,
    file_name,
)
from wire.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from kbroker.storage.log import Log


CHUNK_BYTES: Final = 32 << 10
"""Reading so much at once lets the event loop run about every millisecond even where all batches are small."""


@dataclass(frozen=True, slots=True)
class SealedSegment:
    """A closed segment whose files are what they should be.

    Shape  the others are paths; transaction_index is None where there is none, or an empty one
    Units  size in bytes; next_offset is where the next segment begins; max_timestamp_ms is the file's age where no
           record has a timestamp
    Shape  leader_epochs is (leader_epoch, start_offset) as the batches tell it, also of what lies below the log's start
    """

    base_offset: int
    next_offset: int
    size: int
    max_timestamp_ms: int
    leader_epochs: tuple[tuple[int, int], ...]
    log: str
    offset_index: str
    time_index: str
    transaction_index: str | None
    producer_snapshot: str


def seal(log: Log, segment: Segment, *, next_offset: int) -> SealedSegment:
    """Check a closed segment, and make anew what of its indexes and its snapshot is not as it should be. Blocking.

    The caller holds off the log's removal.
    Errors  CORRUPT_MESSAGE (the log itself is damaged), KAFKA_STORAGE_ERROR (also where the segment is gone)
    """
    assert not segment.is_active
    with log.disk_errors():
        leader_epochs = _read_through(log, segment, next_offset)
        segment.load_timestamps()
        transactions = segment.path(TXN_INDEX_SUFFIX)
        has_transactions = log.disk.exists(transactions) and log.disk.size(transactions) > 0
        return SealedSegment(
            base_offset=segment.base_offset,
            next_offset=next_offset,
            size=segment.size,
            max_timestamp_ms=(
                segment.max_timestamp if segment.max_timestamp >= 0 else log.disk.modified_ms(segment.log_path)
            ),
            leader_epochs=leader_epochs,
            log=segment.log_path,
            offset_index=segment.path(INDEX_SUFFIX),
            time_index=segment.path(TIME_INDEX_SUFFIX),
            transaction_index=transactions if has_transactions else None,
            producer_snapshot=_snapshot_at(log, next_offset),
        )


def _read_through(log: Log, segment: Segment, next_offset: int) -> tuple[tuple[int, int], ...]:
    """Compare a segment and its indexes with each other; the leader epochs of its batches. Errors: CORRUPT_MESSAGE."""
    time_index = _read(log, segment.path(TIME_INDEX_SUFFIX))
    made = Segment(segment.files, segment.directory, segment.base_offset, interval_bytes=segment.interval_bytes)
    made.begin_indexes()
    file = segment.open().file
    matched, wanted = 0, _time_entry(time_index, 0)
    epochs = log.leader_epochs.entries
    epoch = 0
    found: list[tuple[int, int]] = []
    for position, header in scan_valid_batches(file, segment.size, chunk_bytes=CHUNK_BYTES):
        base_offset = header.base_offset
        if base_offset < segment.base_offset or header.next_offset > next_offset:
            break
        while epoch + 1 < len(epochs) and epochs[epoch + 1][1] <= base_offset:
            epoch += 1
        if epochs and epochs[epoch][1] <= base_offset and epochs[epoch][0] != header.partition_leader_epoch:
            break  # no CRC is over this field
        if not found or found[-1][0] != header.partition_leader_epoch:
            found.append((header.partition_leader_epoch, base_offset if found else segment.base_offset))
        made.note_batch(header, position)
        if wanted == (made.max_timestamp, made.max_timestamp_offset - segment.base_offset):
            matched += TIME_ENTRY.size
            wanted = _time_entry(time_index, matched)
    if made.size != segment.size or file.size() != segment.size:
        raise KafkaError(
            ErrorCode.CORRUPT_MESSAGE,
            f"{segment.log_path} is damaged at position {made.size} of {segment.size}: it is not copied",
        )
    made.add_time_entry()
    # A stop writes the largest timestamp so far into the time index, so that may have more entries than are due.
    if (
        _read(log, segment.path(INDEX_SUFFIX)) != made.offset_index.gathered()
        or matched != len(time_index)
        or not _has_all(time_index, made.time_index.gathered())
    ):
        log.report(f"{segment.path(INDEX_SUFFIX)} or its time index is not what the segment says: both are built anew")
        segment.rebuild_indexes()
        segment.sync(with_indexes=True)
    return tuple(found)


def _read(log: Log, path: str) -> bytes:
    """What an index file holds, to its last byte; nothing where it is missing."""
    try:
        return read_file(log.disk, path)
    except FileNotFoundError:
        return b""


def _time_entry(data: bytes, position: int) -> tuple[int, int] | None:
    return TIME_ENTRY.unpack_from(data, position) if position + TIME_ENTRY.size <= len(data) else None


def _has_all(data: bytes, due: bytes) -> bool:
    """Whether a time index has all entries that are due, in their order. As bytes: there may be a million of them."""
    found = TIME_ENTRY.iter_unpack(data)
    return all(one in found for one in TIME_ENTRY.iter_unpack(due))


def _snapshot_at(log: Log, offset: int) -> str:
    """The path of the snapshot of the producers at `offset`, made from the log if it is missing or damaged."""
    path = f"{log.directory}/{file_name(offset, SNAPSHOT_SUFFIX)}"
    try:
        parse_snapshot(read_file(log.disk, path))
    except (FileNotFoundError, ValueError) as error:
        log.report(f"{path} is built anew: {error}")
        producers = ProducerState(log.log_start_offset, limit=log.config.max_producers)
        loader.load_producers(
            producers,
            log.segments,
            list(log.snapshots),
            disk=log.disk,
            directory=log.directory,
            log_start_offset=log.log_start_offset,
            log_end_offset=offset,
            report=log.report,
        )
        write_atomically(log.disk, path, producers.format_snapshot())
        if offset not in log.snapshots:
            log.snapshots.append(offset)
    return path
