"""Start a new segment, and undo a failed append.

Source  UnifiedLog.roll, LocalLog.roll of Apache Kafka 4.3.1
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbroker.storage import maintenance
from kbroker.storage.durable import sync_names
from kbroker.storage.flushing import write_snapshot
from kbroker.storage.leader_epoch import LeaderEpochs
from kbroker.storage.plans import AppendPlan
from kbroker.storage.reading import Tail
from kbroker.storage.segment import Segment

if TYPE_CHECKING:
    from kbroker.storage.log import Log


def write_epochs_for(log: Log, plan: AppendPlan) -> None:
    """Make the epochs durable before a recovery point after their batches is."""
    epochs = log.leader_epochs
    if epochs.needs_writing(plan.next_offset) or plan.headers[-1].partition_leader_epoch > epochs.latest:
        coming = LeaderEpochs(epochs.entries)  # a copy: another thread may raise the start
        for header in plan.headers:
            coming.assign(header.partition_leader_epoch, header.base_offset)
        maintenance.write_epochs(log, coming.entries)


def prepare_roll(log: Log, base_offset: int, timestamp_ms: int) -> Segment:
    """Complete the active segment's files and create the next segment's; blocking. Readers see no change."""
    old = log.tail.segment
    old.add_time_entry()
    old.write_indexes()
    old.is_finished = True
    if max(log.recovery_point, log.persisted_recovery_point) >= log.log_end_offset:
        # Recovery trusts everything below a recovery point, so a closed segment below it must be completely durable:
        # its indexes if a flush came before the roll, and its data if the log was truncated and has grown again.
        old.sync(with_indexes=True)
        old.has_unsynced_files = False
    else:
        old.has_unsynced_files = True
    write_snapshot(log, base_offset, sync=False)
    if log.needs_directory_sync:
        # If this name were lost and the next one kept, the log would seem to start at the next one.
        sync_names(log.disk, log.directory)
    jitter_bound = min(log.config.segment_jitter_ms, log.config.segment_ms)
    jitter_ms = log.jitter_ms(jitter_bound) if jitter_bound > 0 else 0
    log.needs_directory_sync = True
    return Segment.create(
        log.files,
        log.directory,
        base_offset,
        interval_bytes=log.config.index_interval_bytes,
        created_ms=timestamp_ms,
        jitter_ms=jitter_ms,
    )


def install(log: Log, segment: Segment) -> Tail:
    """Make a prepared segment the active one. Remove an empty one before it; only a log that skips offsets has one."""
    old = log.tail.segment
    if not old.size:
        maintenance.remove_files(log, old)
        log.segments.remove([old])
    old.is_active, segment.is_active = False, True
    log.segments.add(segment)
    log.tail = tail = Tail(segment, log.log_end_offset, 0)
    return tail


def cut_back(log: Log, segment: Segment, error: OSError) -> None:
    """Truncate the file to its old end after a failed write; if that fails too, take the directory offline."""
    try:
        if segment is not log.tail.segment:
            maintenance.remove_files(log, segment)
        else:
            log.files.open(segment.log_path).file.truncate(segment.size)
    except OSError:
        log.state.fail(error)


def may_hold_earlier_than(log: Log, timestamp_ms: int) -> bool:
    """See `Log.may_hold_earlier_than`.

    A restart loses the time when a segment was created, but all its batches are newer than those of the segment before.
    """
    active = log.segments.active
    if not active.size:
        return False
    if active.base_offset != log.loaded_active_offset:
        return active.created_ms < timestamp_ms
    before = tuple(log.segments)[-2:-1]
    with log.disk_errors():
        return not before or log.disk.modified_ms(before[0].log_path) < timestamp_ms
