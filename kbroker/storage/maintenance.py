"""Maintenance of a log: truncation, retention, deletion of files.

The order of steps ensures that after a crash between any two of them the loader reaches the same result:
- epochs are truncated before the data, so they are never ahead of it
- whole segments are removed before a segment is truncated
- segments at the end are removed newest first and those at the start oldest first, so the log stays contiguous
- the `.log` file is removed before the segment's other files, because the loader removes indexes without a log
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from kbroker.runtime.event_log import get_logger
from kbroker.storage import loader
from kbroker.storage.checkpoint import replace_file
from kbroker.storage.durable import lacks_space, sync_names
from kbroker.storage.durable import sync as sync_file
from kbroker.storage.leader_epoch import format_epochs
from kbroker.storage.retention import RetentionPlan, judge, local_limits
from kbroker.storage.retention import plan_retention as decide_retention
from kbroker.storage.segment import (
    DELETED_SUFFIX,
    SEGMENT_SUFFIXES,
    SNAPSHOT_SUFFIX,
    THROUGH_SUFFIX,
    Segment,
    file_name,
)
from kbroker.storage.segments import unlink_newest_first
from wire.errors import KafkaError

if TYPE_CHECKING:
    from kbroker.storage.log import Log

logger = get_logger(__name__)


def epoch_path(log: Log) -> str:
    return f"{log.directory}/{loader.EPOCH_CHECKPOINT}"


def write_epochs(
    log: Log, entries: list[tuple[int, int]] | None = None, *, sync: bool = True, syncs_names: bool = True
) -> None:
    """Write and sync the leader epoch checkpoint, by default with the current epochs.

    The caller must prevent other appends and truncations, which would write the same file in another thread.
    """
    entries = log.leader_epochs.entries if entries is None else entries
    try:
        replace_file(log.disk, epoch_path(log), format_epochs(entries).encode(), sync=sync)
        if syncs_names:
            sync_names(log.disk, log.directory)
    except OSError:
        log.leader_epochs.note_unwritten()
        raise
    log.leader_epochs.note_written(entries)


def remove_files(log: Log, segment: Segment) -> None:
    """Unlink a segment's files at once; readers that have them open can continue."""
    segment.is_gone = True
    for suffix in SEGMENT_SUFFIXES:
        path = segment.path(suffix)
        log.files.forget(path)
        with suppress(FileNotFoundError):
            log.disk.unlink(path)


def remove_snapshots(log: Log, *, above: int) -> None:
    for offset in [offset for offset in log.snapshots if offset > above]:
        with suppress(FileNotFoundError):
            log.disk.unlink(f"{log.directory}/{file_name(offset, SNAPSHOT_SUFFIX)}")
        log.snapshots.remove(offset)


# --- truncation -------------------------------------------------------------------------------------------------------


def truncate_to(log: Log, offset: int) -> bool:
    """See `Log.truncate_to`."""
    if offset >= log.log_end_offset:
        # The epochs may still be ahead: a leader starts its epoch before its first batch, and another leader may have
        # followed it.
        log.leader_epochs.truncate_from_end(log.log_end_offset)
        return False
    if offset < log.segments.first.base_offset:
        start = min(log.log_start_offset, offset) if log.config.remote_storage_enable else offset
        truncate_fully_and_start_at(log, offset, log_start_offset=start)
        return True
    with log.disk_errors():
        _truncate_to(log, offset)
    return True


def _truncate_to(log: Log, offset: int) -> None:
    log.generation += 1
    log.leader_epochs.truncate_from_end(offset)
    write_epochs(log)
    remaining = [segment for segment in log.segments if segment.base_offset <= offset]
    unlink_newest_first([segment for segment in log.segments if segment.base_offset > offset])
    log.segments.replace(remaining)
    active = remaining[-1]
    found = active.find(offset) if active.size else None
    if found is not None:
        # Sync at once: after a loss of power, old batches could reappear after new ones and count as part of the log.
        active.truncate(found[0], offset)
        sync_file(active.open().file)
    last = active.resume()
    next_offset = active.base_offset if last is None else last.next_offset
    remove_snapshots(log, above=next_offset)
    sync_names(log.disk, log.directory)
    _restart_at(log, next_offset)
    loader.load_producers(
        log.producers,
        log.segments,
        log.snapshots,
        disk=log.disk,
        directory=log.directory,
        log_end_offset=next_offset,
        report=log.report,
    )


def truncate_fully_and_start_at(log: Log, offset: int, *, log_start_offset: int | None = None) -> None:
    """See `Log.truncate_fully_and_start_at`."""
    remove_retired(log, 0)
    with log.disk_errors():
        log.generation += 1
        log.leader_epochs.clear()
        write_epochs(log)
        remove_snapshots(log, above=-1)
        unlink_newest_first(tuple(log.segments))
        created_ms = log.segments.active.created_ms
        segment = Segment.create(
            log.files,
            log.directory,
            offset,
            interval_bytes=log.config.index_interval_bytes,
            created_ms=created_ms,
        )
        log.segments.replace([segment])
        sync_names(log.disk, log.directory)
    log.log_start_offset = offset if log_start_offset is None else log_start_offset
    log.local_log_start_offset = offset
    log.producers.clear(offset)
    _restart_at(log, offset)
    log.recovery_point = offset


def _restart_at(log: Log, next_offset: int) -> None:
    log.log_end_offset = next_offset
    log.recovery_point = min(log.recovery_point, next_offset)
    log.log_start_offset = min(log.log_start_offset, next_offset)
    log.local_log_start_offset = min(log.local_log_start_offset, next_offset)
    log.restart_reading()


# --- retention --------------------------------------------------------------------------------------------------------


def plan_retention(
    log: Log, *, high_watermark: int, timestamp_ms: int, highest_offset_in_remote_storage: int | None
) -> RetentionPlan:
    """See `Log.plan_retention`."""
    segments = tuple(log.segments)

    def largest_timestamp(at: int) -> int:
        segment = segments[at]
        segment.load_timestamps()
        if segment.max_timestamp >= 0:
            return segment.max_timestamp
        # For records without timestamps the age of the file counts, as in Kafka.
        return log.disk.modified_ms(segment.log_path)

    is_copied = highest_offset_in_remote_storage is not None
    verdicts = judge(
        segments,
        largest_timestamp=largest_timestamp,
        limits=local_limits(log.config, is_copied=is_copied),
        log_start_offset=log.log_start_offset,
        log_end_offset=log.log_end_offset,
        high_watermark=high_watermark,
        timestamp_ms=timestamp_ms,
        waits_for_copy=is_copied,
        highest_offset_in_remote_storage=highest_offset_in_remote_storage,
    )
    with log.disk_errors():
        return decide_retention(verdicts)


def retire(log: Log, plan: RetentionPlan, *, timestamp_ms: int, tiered: bool) -> None:
    """See `Log.retire`."""
    names = frozenset(plan.doomed)
    if plan.rolls:
        try:
            log.roll(timestamp_ms=timestamp_ms)
        except KafkaError as error:
            if not lacks_space(error):
                raise
            # On a full disk the active segment stays until deleting the others has freed space for a new one.
            names -= {log.segments.active.base_offset}
    doomed = tuple(segment for segment in log.segments if segment.base_offset in names)
    if not doomed:
        return
    assert doomed[-1] is not log.segments.active
    assert doomed == tuple(log.segments)[: len(doomed)]
    remaining = tuple(log.segments)[len(doomed) :]
    # Raise the offsets first, so that no reader looks for the segments.
    start_offset = remaining[0].base_offset
    log.local_log_start_offset = max(log.local_log_start_offset, start_offset)
    if not tiered:
        log.raise_log_start_offset(max(log.log_start_offset, start_offset))
    log.retired.append(doomed)
    log.segments.replace(remaining)
    for segment in doomed:
        segment.is_gone = True
        if segment.base_offset in log.snapshots:
            log.snapshots.remove(segment.base_offset)
    # One line per log and pass, because a pass over a long idle log may remove hundreds of segments.
    logger.info(
        "retention removes segments",
        topic=log.topic,
        partition=log.partition,
        segments=len(doomed),
        bytes=sum(segment.size for segment in doomed),
        below_offset=start_offset,
        reasons=", ".join(dict.fromkeys(plan.reasons)),
    )


def remove_retired(log: Log, now_ms: int) -> None:
    """See `Log.remove_retired`."""
    due_ms = now_ms + log.config.file_delete_delay_ms
    with log.disk_errors():
        while log.retired:
            try:
                _doom_segments(log, log.retired[0], due_ms)
            except OSError as error:
                if not lacks_space(error):
                    raise
                _unlink_segments(log, log.retired[0])
            log.retired.popleft()


def _doom_segments(log: Log, segments: Sequence[Segment], due_ms: int) -> None:
    """Rename the files of segments, oldest first, and make that durable.

    If power fails, any subset of the unsynced renames may be lost, and a log that gets back one segment but not the
    next has a hole. So if there are several, the last one is first given a name that makes the next start delete all
    segments up to it (`leftovers`). The number of syncs does not depend on the number of segments.
    """
    last_path = segments[-1].log_path
    if len(segments) > 1:
        log.files.forget(last_path)
        with suppress(FileNotFoundError):  # an earlier attempt got this far
            log.disk.rename(last_path, last_path + THROUGH_SUFFIX)
        sync_names(log.disk, log.directory)
    for segment in segments:
        for suffix in (*SEGMENT_SUFFIXES, SNAPSHOT_SUFFIX):
            _doom(log, segment.path(suffix), due_ms)
    sync_names(log.disk, log.directory)
    if len(segments) > 1:
        log.disk.rename(last_path + THROUGH_SUFFIX, last_path + DELETED_SUFFIX)
        log.doomed_files.add(due_ms, last_path + DELETED_SUFFIX)


def _unlink_segments(log: Log, segments: Sequence[Segment]) -> None:
    """Remove segments at once: the disk is full, and a longer name may need another block."""
    for segment in segments:
        remove_files(log, segment)
        for path in (segment.path(SNAPSHOT_SUFFIX), segment.log_path + THROUGH_SUFFIX):
            with suppress(FileNotFoundError):
                log.disk.unlink(path)
        sync_names(log.disk, log.directory)


def _doom(log: Log, path: str, due_ms: int) -> None:
    log.files.forget(path)
    with suppress(FileNotFoundError):
        log.disk.rename(path, path + DELETED_SUFFIX)
        log.doomed_files.add(due_ms, path + DELETED_SUFFIX)


def unlink_doomed(log: Log, now_ms: int) -> int:
    """See `Log.unlink_doomed`."""
    with log.disk_errors():
        return log.doomed_files.remove_due(now_ms, log.disk.unlink)
