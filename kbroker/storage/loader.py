"""Opening a log: from names and indexes after a clean shutdown, by recovery after an unclean one.

After a clean shutdown the loader does not scan the log. It uses file names and sizes, the last index entry of the
active segment and the batches after it, the epoch checkpoint and the newest producer snapshot. Missing or visibly
damaged files are rebuilt from the log.

After an unclean shutdown the loader reads every segment that may hold data after the recovery point, as
`kbroker.storage.recovery` describes, and rebuilds its indexes, epochs and producers. Recovery is idempotent, so a crash
during recovery does no harm.

Source  LogLoader of Apache Kafka 4.3.1; the treatment of gaps and of a malformed epoch checkpoint is stricter than
        Kafka's
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from kbroker.runtime.ports import Disk
from kbroker.storage.batches import BatchHeader, scan_headers
from kbroker.storage.checkpoint import read_file, write_atomically
from kbroker.storage.durable import lacks_space, sync_names
from kbroker.storage.files import FilePool
from kbroker.storage.leader_epoch import LeaderEpochs, format_epochs, parse_epochs
from kbroker.storage.leftovers import finish_file_changes, has_leftovers
from kbroker.storage.log_config import LogConfig
from kbroker.storage.producer_state import ProducerEntry, ProducerState, parse_snapshot, read_marker
from kbroker.storage.recovery import Recovery
from kbroker.storage.segment import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    Segment,
    file_name,
)
from kbroker.storage.segment_recovery import RecoveredSegment, producer_headers
from kbroker.storage.segments import SegmentList
from wire.batch_header import CONTROL_BIT, NO_PRODUCER_ID

EPOCH_CHECKPOINT: Final = "leader-epoch-checkpoint"
_OFFSET_DIGITS: Final = 20

Report = Callable[[str], None]
_NOT_READ: Final[Mapping[int, RecoveredSegment]] = {}


@dataclass(slots=True)
class LoadedLog:
    """The state of a log after loading; `recovery_point` is the part of the given one that is certain."""

    segments: SegmentList
    log_start_offset: int
    log_end_offset: int
    recovery_point: int
    leader_epochs: LeaderEpochs
    producers: ProducerState
    snapshots: list[int]


def offset_of(name: str, suffix: str) -> int | None:
    """The offset in a file name with that suffix, None for other names."""
    stem = name[: -len(suffix)]
    return int(stem) if name.endswith(suffix) and len(stem) == _OFFSET_DIGITS and stem.isdecimal() else None


def load(
    directory: str,
    *,
    files: FilePool,
    config: LogConfig,
    clean_shutdown: bool,
    recovery_point: int,
    log_start_offset: int,
    timestamp_ms: int,
    report: Report,
) -> LoadedLog:
    """See the module docstring. Errors: OSError."""
    disk = files.disk
    names = disk.list(directory)
    if has_leftovers(names):
        finish_file_changes(files, directory, names, report)
        names = disk.list(directory)
    segments = _find_segments(files, directory, names, config=config, timestamp_ms=timestamp_ms)
    snapshots = sorted(offset for name in names if (offset := offset_of(name, SNAPSHOT_SUFFIX)) is not None)
    epochs = _load_epochs(disk, directory, names, report)

    recovery = Recovery(segments, epochs, tolerates_gaps=config.is_compacting, report=report)
    if segments and not clean_shutdown:
        doubtful = segments.from_offset(recovery_point)[0]
        if not _agree(epochs, _last_before(segments, doubtful), log_start_offset):
            _rebuild_epochs(disk, directory, segments, epochs, report)
        recovery.recover_from(recovery_point)
        # The data that was read may not be durable: after a truncation it may have replaced data that the checkpoint
        # covers.
        recovery_point = min(recovery_point, doubtful.base_offset)
    _rebuild_missing_indexes(segments, frozenset(names), report)
    log_end_offset, last = recovery.find_end()
    last = (last or _last_before(segments, segments.active)) if clean_shutdown and segments else None
    if not _agree(epochs, last, log_start_offset):
        _rebuild_epochs(disk, directory, segments, epochs, report)
    if segments and log_end_offset < log_start_offset:
        report(f"{directory} ends at {log_end_offset}, before its start offset {log_start_offset}; it is emptied")
        recovery.remove(tuple(segments))
        epochs.clear()
    if not segments:
        log_end_offset = log_start_offset
        segments.add(
            Segment.create(
                files,
                directory,
                log_start_offset,
                interval_bytes=config.index_interval_bytes,
                created_ms=timestamp_ms,
            )
        )
    if not config.remote_storage_enable:
        log_start_offset = max(log_start_offset, segments.first.base_offset)
    epochs.truncate_from_end(log_end_offset)
    _complete_start(epochs, segments, log_start_offset)
    epochs.truncate_from_start(log_start_offset)

    kept_snapshots = _useful_snapshots(snapshots, segments, log_end_offset)
    for offset in snapshots:
        if offset not in kept_snapshots:
            disk.unlink(f"{directory}/{file_name(offset, SNAPSHOT_SUFFIX)}")
    if len(kept_snapshots) < len(snapshots):
        # A removed snapshot must not reappear after a loss of power.
        sync_names(disk, directory)
    producers = ProducerState(log_start_offset, limit=config.max_producers)
    load_producers(
        producers,
        segments,
        kept_snapshots,
        disk=disk,
        directory=directory,
        log_end_offset=log_end_offset,
        report=report,
        trusts_absence=clean_shutdown,
        read=recovery.segments_read,
    )
    producers.expire(timestamp_ms, config.producer_id_expiration_ms)
    return LoadedLog(
        segments=segments,
        log_start_offset=log_start_offset,
        log_end_offset=log_end_offset,
        recovery_point=log_end_offset if clean_shutdown else min(recovery_point, log_end_offset),
        leader_epochs=epochs,
        producers=producers,
        snapshots=kept_snapshots,
    )


def _useful_snapshots(snapshots: Sequence[int], segments: SegmentList, log_end_offset: int) -> list[int]:
    """The snapshots at segment starts and the newest one, from the last close. Those after the end are invalid."""
    bases = {segment.base_offset for segment in segments}
    newest = max((offset for offset in snapshots if offset <= log_end_offset), default=-1)
    return [offset for offset in snapshots if offset <= log_end_offset and (offset in bases or offset == newest)]


def _find_segments(
    files: FilePool, directory: str, names: Sequence[str], *, config: LogConfig, timestamp_ms: int
) -> SegmentList:
    found = []
    for name in names:
        base_offset = offset_of(name, LOG_SUFFIX)
        if base_offset is not None:
            size = files.disk.size(f"{directory}/{name}")
            found.append(
                Segment(
                    files,
                    directory,
                    base_offset,
                    interval_bytes=config.index_interval_bytes,
                    size=size,
                    created_ms=timestamp_ms,
                )
            )
    return SegmentList(found)


def _rebuild_missing_indexes(segments: SegmentList, names: frozenset[str], report: Report) -> None:
    for segment in segments:
        for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX):
            if file_name(segment.base_offset, suffix) not in names and not segment.has_unsynced_files:
                if segment.size:  # an empty segment's index files need neither a report nor a sync
                    report(f"{segment.path(suffix)} is missing and is rebuilt")
                segment.rebuild_indexes()


def _load_epochs(disk: Disk, directory: str, names: Sequence[str], report: Report) -> LeaderEpochs:
    path = f"{directory}/{EPOCH_CHECKPOINT}"
    try:
        return LeaderEpochs(parse_epochs(read_file(disk, path).decode()) if EPOCH_CHECKPOINT in names else ())
    except ValueError as error:
        report(f"{path} is malformed: {error}")
        return LeaderEpochs()


def _rebuild_epochs(disk: Disk, directory: str, segments: SegmentList, epochs: LeaderEpochs, report: Report) -> None:
    """Rebuild the epoch checkpoint from the headers of all batches."""
    report(f"{directory}/{EPOCH_CHECKPOINT} does not match the batches and is rebuilt from them")
    before = epochs.entries
    epochs.clear()
    for segment in segments:
        for _, header in scan_headers(segment.open().file, 0, segment.size, chunk_bytes=1 << 20):
            if header.partition_leader_epoch > epochs.latest:
                epochs.assign(header.partition_leader_epoch, header.base_offset)
    # Only this file has the epochs of batches that are only in the tier.
    epochs.complete_start(entry for entry in before if entry[1] < segments.first.base_offset)
    entries = epochs.entries
    try:
        write_atomically(disk, f"{directory}/{EPOCH_CHECKPOINT}", format_epochs(entries).encode())
    except OSError as error:
        if not lacks_space(error):
            raise
        epochs.note_unwritten()  # the next flush writes them
    else:
        epochs.note_written(entries)


def _complete_start(epochs: LeaderEpochs, segments: SegmentList, log_start_offset: int) -> None:
    """Find the epochs between the log's start and the first known one.

    They were dropped when log_start_offset rose. They are needed again if a crash lost the new log_start_offset.
    """
    known = epochs.entries
    start = max(log_start_offset, segments.first.base_offset)
    if not known or known[0][1] <= start:
        return
    epochs.clear()
    for segment in segments.from_offset(start):
        for _, header in scan_headers(segment.open().file, 0, segment.size, chunk_bytes=1 << 20):
            if known[0][1] > header.base_offset and header.next_offset > start:
                epochs.assign(header.partition_leader_epoch, max(header.base_offset, start))
        if segment.base_offset >= known[0][1]:
            break
    for epoch, start_offset in known:
        epochs.assign(epoch, start_offset)


def _last_before(segments: SegmentList, limit: Segment) -> BatchHeader | None:
    """The last batch of the last non-empty segment before `limit`."""
    for segment in reversed([segment for segment in segments if segment.base_offset < limit.base_offset]):
        if segment.size:
            return segment.last_batch()
    return None


def _agree(epochs: LeaderEpochs, last: BatchHeader | None, log_start_offset: int) -> bool:
    """Whether the checkpoint gives the right epoch for the newest batch that recovery does not read.

    The file is replaced as a whole, so if that epoch is right, the earlier ones are too. Entries below the log start
    may be missing.
    """
    if last is None or last.next_offset <= log_start_offset:
        return True
    return epochs.epoch_for_offset(max(last.base_offset, log_start_offset)) == last.partition_leader_epoch


def load_producers(
    producers: ProducerState,
    segments: SegmentList,
    snapshots: list[int],
    *,
    disk: Disk,
    directory: str,
    log_end_offset: int,
    report: Report,
    trusts_absence: bool = False,
    read: Mapping[int, RecoveredSegment] = _NOT_READ,
) -> None:
    """Bring the producers up to log_end_offset from the newest good snapshot and the batches after it.

    Without a snapshot every batch of the segments is read, even below log_start_offset: a producer may resend a batch
    whose records have been deleted. Damaged snapshots are deleted and removed from the list. With `trusts_absence` a
    log without snapshots has no producers. Segments in `read` were read by recovery and are not read again.
    """
    had_snapshots = bool(snapshots)
    start = segments.first.base_offset
    producers.clear(start)
    for offset in sorted((offset for offset in snapshots if offset <= log_end_offset), reverse=True):
        path = f"{directory}/{file_name(offset, SNAPSHOT_SUFFIX)}"
        try:
            entries = parse_snapshot(read_file(disk, path))
        except (ValueError, FileNotFoundError) as error:
            report(f"{path} is ignored: {error}")
            snapshots.remove(offset)
            with suppress(FileNotFoundError):
                disk.unlink(path)
            continue
        _set_heard_times(entries, segments, disk)
        producers.restore(offset, entries)
        start = offset
        break
    if start < log_end_offset and (had_snapshots or not trusts_absence):
        _replay(producers, segments, start, log_end_offset, read)
    producers.end_offset = log_end_offset


def _set_heard_times(entries: Sequence[ProducerEntry], segments: SegmentList, disk: Disk) -> None:
    """Set heard_ms, a lower bound of the producers' idle time, because a snapshot has only record timestamps.

    A producer cannot have written after the last write to the segment that holds its last batch, or to the first
    remaining segment.
    """
    held = tuple(segments)
    bases = [segment.base_offset for segment in held]
    written_ms: dict[str, int] = {}
    for entry in entries:
        if entry.batches:
            path = held[max(bisect_right(bases, entry.last_offset) - 1, 0)].log_path
            if path not in written_ms:
                with suppress(FileNotFoundError):  # retention has deleted it since
                    written_ms[path] = disk.modified_ms(path)
            entry.heard_ms = written_ms.get(path, -1)


def _replay(
    producers: ProducerState, segments: SegmentList, start: int, end: int, read: Mapping[int, RecoveredSegment]
) -> None:
    for segment in segments.from_offset(start):
        recovered = read.get(segment.base_offset)
        if recovered is not None and recovered.producer_batches is not None and start <= segment.base_offset:
            for header in producer_headers(segment, recovered.producer_batches):
                producers.note(header)
            continue
        found = segment.find(start) if segment.size else None
        if found is None:
            continue
        file = segment.open().file
        for position, header in scan_headers(file, found[0], segment.size, chunk_bytes=1 << 18):
            if header.base_offset >= end:
                return
            if header.producer_id != NO_PRODUCER_ID:
                is_control = header.attributes & CONTROL_BIT
                marker = read_marker(file.pread(header.size, position), 0) if is_control else None
                producers.note(header, marker)
