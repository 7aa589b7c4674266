"""Make a log durable: periodic flushes and the close."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbroker.storage import maintenance
from kbroker.storage.checkpoint import replace_file
from kbroker.storage.durable import sync_names
from kbroker.storage.segment import SEGMENT_SUFFIXES, SNAPSHOT_SUFFIX, Segment, file_name

if TYPE_CHECKING:
    from kbroker.storage.log import Log


def sync_files(log: Log, segments: tuple[Segment, ...], active: Segment) -> None:
    """Sync segments in order; a segment that a roll closes at the same time is marked for the next flush."""
    for segment in segments:
        if segment is active or segment.has_unsynced_files:
            segment.has_unsynced_files = False
            try:
                segment.sync(with_indexes=segment is not active)
            except FileNotFoundError:
                continue  # retention has deleted it since
            except OSError:
                segment.has_unsynced_files = True
                raise
            if segment is active and segment.is_finished:
                # A roll in another thread needs the indexes synced too, and may have set this flag before it was
                # cleared here.
                segment.has_unsynced_files = True
    if log.needs_directory_sync:
        log.needs_directory_sync = False
        try:
            sync_names(log.disk, log.directory)
        except OSError:
            log.needs_directory_sync = True
            raise


def close(log: Log) -> None:
    """Make the log durable and complete its files, so that the next load need not look into them. Blocking."""
    if log.is_closed:
        return
    if log.state.failure is not None:
        forget_files(log)
        log.is_closed = True
        return
    if log.log_end_offset:
        # A log that never held a batch has nothing to write, so thousands of them close quickly.
        try:
            _complete_files(log)
        except OSError as error:
            raise log.storage_error(error) from error
    log.recovery_point = log.log_end_offset
    forget_files(log)
    log.is_closed = True


def _complete_files(log: Log) -> None:
    """Write and sync what a clean shutdown guarantees: data, indexes, producers if there are any, epochs, names.

    For a log without index entries only data and names that are not durable yet are synced. The next load reads such a
    log completely and detects damage in the rest. With thousands of small logs this saves most of the time.
    """
    maintenance.remove_retired(log, 0)
    active = log.tail.segment
    is_tiny = len(log.segments) == 1 and not active.index_entries
    changed = log.recovery_point < log.log_end_offset or any(s.has_unsynced_files for s in log.segments)
    if changed or active.unwritten_entries:
        active.add_time_entry()
        active.write_indexes()
        for segment in log.segments:
            if segment is active or segment.has_unsynced_files:
                segment.sync(with_indexes=not is_tiny)
    syncs = len(log.producers) > 0
    names_changed = write_snapshot(log, log.log_end_offset, sync=syncs and not is_tiny) and syncs
    if log.leader_epochs.needs_writing(log.log_end_offset):
        maintenance.write_epochs(log, sync=not is_tiny, syncs_names=False)
        names_changed = names_changed or not is_tiny
    if log.needs_directory_sync or names_changed or (changed and not is_tiny):
        sync_names(log.disk, log.directory)


def forget_files(log: Log) -> None:
    """Drop a log's files from the pool, because their paths are about to be renamed or removed."""
    for segment in log.segments:
        for suffix in SEGMENT_SUFFIXES:
            log.files.forget(segment.path(suffix))


def write_snapshot(log: Log, offset: int, *, sync: bool) -> bool:
    """Write the producer snapshot at `offset` unless nothing changed since the last one; True if it was written.

    The caller syncs the directory.
    """
    if offset <= log.producers.snapshot_offset:
        return False
    path = f"{log.directory}/{file_name(offset, SNAPSHOT_SUFFIX)}"
    replace_file(log.disk, path, log.producers.format_snapshot(), sync=sync)
    log.producers.snapshot_offset = offset
    if offset not in log.snapshots:
        log.snapshots.append(offset)
    return True
