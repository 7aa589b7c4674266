"""Check and repair a closed segment before it is copied to the tier.

The copy may be read when the local files no longer exist, so the segment is checked first. Each batch must have a valid
CRC and the right leader epoch, follow the batch before and end before the next segment. Both indexes must match the log
entry by entry. The producer snapshot at the segment's end must exist and be readable. A segment with a damaged log is
an error and is not copied. Indexes and snapshot are rebuilt from the log if necessary.

Source  KAFKA-15401; row D10 of the list of faults
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kbroker.runtime.ports import Runner
from kbroker.storage.checkpoint import write_atomically
from kbroker.storage.durable import sync, sync_names
from kbroker.storage.producer_state import ProducerState, parse_snapshot
from kbroker.storage.reading_through import read_through
from kbroker.storage.segment import INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX, Segment
from wire.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from kbroker.storage.log import Log


@dataclass(frozen=True, slots=True)
class SealedSegment:
    """A closed segment whose files are complete and correct.

    Shape  the other fields are paths; transaction_index is None if it is missing or empty
    Units  size in bytes; next_offset is where the next segment begins; max_timestamp_ms is the file's modification time
           if no record has a timestamp
    Shape  leader_epochs is (leader_epoch, start_offset) from the batches, including those below the log start
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


def seal(log: Log, segment: Segment, *, next_offset: int, run: Runner) -> SealedSegment:
    """Check a closed segment and rebuild its indexes and snapshot if necessary. Blocking.

    The caller prevents the removal of the log. `run` reads the segment, perhaps in another process.
    Errors  CORRUPT_MESSAGE (the log itself is damaged), KAFKA_STORAGE_ERROR (also if the segment is gone)
    """
    assert not segment.is_active
    with log.disk_errors():
        leader_epochs = _read_through(log, segment, next_offset, run)
        transactions = segment.path(TXN_INDEX_SUFFIX)
        has_transactions = log.disk.exists(transactions) and log.disk.size(transactions) > 0
        return SealedSegment(
            base_offset=segment.base_offset,
            next_offset=next_offset,
            size=segment.size,
            max_timestamp_ms=segment.newest_ms(),
            leader_epochs=leader_epochs,
            log=segment.log_path,
            offset_index=segment.path(INDEX_SUFFIX),
            time_index=segment.path(TIME_INDEX_SUFFIX),
            transaction_index=transactions if has_transactions else None,
            producer_snapshot=_snapshot_at(log, next_offset),
        )


def _read_through(log: Log, segment: Segment, next_offset: int, run: Runner) -> tuple[tuple[int, int], ...]:
    """Check a segment and its indexes; returns the leader epochs of its batches. Errors: CORRUPT_MESSAGE."""
    found = run(read_through, segment, next_offset, log.leader_epochs.entries)
    if found.good_bytes != segment.size or found.file_bytes != segment.size:
        raise KafkaError(
            ErrorCode.CORRUPT_MESSAGE,
            f"{segment.log_path} is damaged at position {found.good_bytes} of {segment.size}: it is not copied",
        )
    if not found.indexes_are_right:
        log.files.report(f"{segment.path(INDEX_SUFFIX)} or its time index does not match the segment: both are rebuilt")
        segment.rebuild_indexes()
        segment.sync(with_indexes=True)
    return found.leader_epochs


def _snapshot_at(log: Log, offset: int) -> str:
    """The path of the producer snapshot at `offset`, rebuilt from the log if it is missing or damaged.

    Makes it durable. A roll does not sync it, because the batches have the same information, but those may soon be only
    in the tier.
    """
    path = log.files.snapshot_path(offset)
    try:
        file = log.disk.open(path)
        try:
            parse_snapshot(file.pread(file.size(), 0))
            sync(file)
        finally:
            file.close()
        sync_names(log.disk, log.directory)
    except (FileNotFoundError, ValueError) as error:
        log.files.report(f"{path} is rebuilt: {error}")
        producers = ProducerState(log.log_start_offset, limit=log.config.max_producers)
        log.files.load_producers(producers, list(log.files.snapshots), offset)
        write_atomically(log.disk, path, producers.format_snapshot())
        if offset not in log.files.snapshots:
            log.files.snapshots.append(offset)
    return path
