"""Making sure that a closed segment is whole before it leaves this machine.

What is copied to the tier will be read when nothing of it is here any more, so it is compared with itself first: every
batch has its CRC and leader epoch, follows the one before and ends before the next segment; both indexes say what the
log says, entry by entry; the snapshot of the producers at its end is there and can be read. A damaged log is an error
and stays here. The rest is made anew from the log, which knows it all.

Source  KAFKA-15401; row D10 of the list of faults
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kbroker.runtime.worker import Runner, run_here
from kbroker.storage import loader
from kbroker.storage.checkpoint import write_atomically
from kbroker.storage.durable import sync, sync_names
from kbroker.storage.producer_state import ProducerState, parse_snapshot
from kbroker.storage.reading_through import ClosedSegment, read_through
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


def seal(log: Log, segment: Segment, *, next_offset: int, run: Runner = run_here) -> SealedSegment:
    """Check a closed segment, and make anew what of its indexes and its snapshot is not as it should be. Blocking.

    The caller holds off the log's removal. `run` reads the segment, perhaps in another process.
    Errors  CORRUPT_MESSAGE (the log itself is damaged), KAFKA_STORAGE_ERROR (also where the segment is gone)
    """
    assert not segment.is_active
    with log.disk_errors():
        leader_epochs = _read_through(log, segment, next_offset, run)
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


def _read_through(log: Log, segment: Segment, next_offset: int, run: Runner) -> tuple[tuple[int, int], ...]:
    """Compare a segment and its indexes with each other; the leader epochs of its batches. Errors: CORRUPT_MESSAGE."""
    closed = ClosedSegment(
        log=segment.log_path,
        offset_index=segment.path(INDEX_SUFFIX),
        time_index=segment.path(TIME_INDEX_SUFFIX),
        base_offset=segment.base_offset,
        next_offset=next_offset,
        size=segment.size,
        interval_bytes=segment.interval_bytes,
        leader_epochs=tuple(log.leader_epochs.entries),
    )
    found = run(read_through, log.disk, closed)
    if found.good_bytes != segment.size or found.file_bytes != segment.size:
        raise KafkaError(
            ErrorCode.CORRUPT_MESSAGE,
            f"{segment.log_path} is damaged at position {found.good_bytes} of {segment.size}: it is not copied",
        )
    if not found.indexes_are_right:
        log.report(f"{segment.path(INDEX_SUFFIX)} or its time index is not what the segment says: both are built anew")
        segment.rebuild_indexes()
        segment.sync(with_indexes=True)
    return found.leader_epochs


def _snapshot_at(log: Log, offset: int) -> str:
    """The path of the snapshot of the producers at `offset`, made from the log if it is missing or damaged.

    It is durable then. A roll does not sync it, because the batches tell the same; soon they may be only remote.
    """
    path = f"{log.directory}/{file_name(offset, SNAPSHOT_SUFFIX)}"
    try:
        file = log.disk.open(path)
        try:
            parse_snapshot(file.pread(file.size(), 0))
            sync(file)
        finally:
            file.close()
        sync_names(log.disk, log.directory)
    except (FileNotFoundError, ValueError) as error:
        log.report(f"{path} is built anew: {error}")
        producers = ProducerState(log.log_start_offset, limit=log.config.max_producers)
        loader.load_producers(
            producers,
            log.segments,
            list(log.snapshots),
            disk=log.disk,
            directory=log.directory,
            log_end_offset=offset,
            report=log.report,
        )
        write_atomically(log.disk, path, producers.format_snapshot())
        if offset not in log.snapshots:
            log.snapshots.append(offset)
    return path
