"""Opening a log: by what is there, after a clean stop; by reading it, after any other.

After a clean stop nothing is scanned: names and sizes, the last entry of the active segment's index and what is behind
it, the epochs, the newest producer snapshot. A file that is missing or visibly damaged is made anew from the log even
then.

After a crash every segment that may hold anything behind the recovery point is read: batches are taken while their
headers make sense, their CRC is right and their offsets ascend. At the first that fails the log is cut and all later
segments go; so do segments behind a gap, because without a compaction a gap means that the end of a segment was lost
with the power. Indexes, epochs and producers of what was read are built anew. Doing it twice gives the same, so a crash
during recovery is only a crash.

Source  LogLoader of Apache Kafka 4.3.1; the treatment of gaps and of a malformed epoch checkpoint is stricter than
        Kafka's
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from kbroker.runtime.ports import Disk
from kbroker.storage.batches import CONTROL_BIT, NO_PRODUCER_ID, BatchHeader, scan_headers
from kbroker.storage.checkpoint import TEMPORARY_SUFFIX, read_file, write_atomically
from kbroker.storage.files import FilePool
from kbroker.storage.index import CorruptIndex
from kbroker.storage.leader_epoch import LeaderEpochs, format_epochs, parse_epochs
from kbroker.storage.log_config import LogConfig
from kbroker.storage.producer_state import ProducerState, parse_snapshot, read_marker
from kbroker.storage.segment import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    INDEX_SUFFIX,
    INDEX_SUFFIXES,
    LOG_SUFFIX,
    SEGMENT_SUFFIXES,
    SNAPSHOT_SUFFIX,
    SWAP_SUFFIX,
    TIME_INDEX_SUFFIX,
    Segment,
    file_name,
)
from kbroker.storage.segments import SegmentList

EPOCH_CHECKPOINT: Final = "leader-epoch-checkpoint"
_OFFSET_DIGITS: Final = 20

Report = Callable[[str], None]


@dataclass(slots=True)
class LoadedLog:
    """What was found; `recovery_point` is what still holds of the one given."""

    segments: SegmentList
    log_start_offset: int
    log_end_offset: int
    recovery_point: int
    leader_epochs: LeaderEpochs
    producers: ProducerState
    snapshots: list[int]


def offset_of(name: str, suffix: str) -> int | None:
    """The offset in a file name of that suffix, None if the name is not of that kind."""
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
    """See the module's text. Errors: OSError."""
    disk = files.disk
    names = disk.list(directory)
    if _has_leftovers(names):
        _finish_file_changes(files, directory, names, report)
        names = disk.list(directory)
    segments = _find_segments(files, directory, names, timestamp_ms=timestamp_ms)
    snapshots = sorted(offset for name in names if (offset := offset_of(name, SNAPSHOT_SUFFIX)) is not None)
    epochs = _load_epochs(disk, directory, names, segments, report)
    interval_bytes = config.index_interval_bytes

    if not clean_shutdown:
        _recover(segments, epochs, recovery_point, config, report)
    _rebuild_missing_indexes(segments, frozenset(names), interval_bytes, report)
    log_end_offset = _find_end(segments, epochs, config, report)
    if log_end_offset < log_start_offset:
        report(f"{directory} ends at {log_end_offset}, before its start at {log_start_offset}: it is begun anew there")
        _remove(segments, tuple(segments), disk)
        epochs.clear()
        snapshots = _keep_snapshots(disk, directory, snapshots, frozenset())
    if not segments:
        log_end_offset = log_start_offset
        segments.add(Segment.create(files, directory, log_start_offset, created_ms=timestamp_ms))
    log_start_offset = max(log_start_offset, segments.first.base_offset)
    epochs.truncate_from_end(log_end_offset)
    epochs.truncate_from_start(log_start_offset)

    bases = frozenset(segment.base_offset for segment in segments)
    strays = [offset for offset in snapshots if offset not in bases]
    if not clean_shutdown or len(strays) > 1:
        newest = max((offset for offset in strays if offset <= log_end_offset), default=-1)
        kept = bases | {newest} if newest > max(bases) else bases
        snapshots = _keep_snapshots(
            disk, directory, snapshots, frozenset(base for base in kept if base <= log_end_offset)
        )
    if not clean_shutdown:
        disk.sync_directory(directory)
    producers = ProducerState(log_start_offset)
    load_producers(
        producers,
        segments,
        snapshots,
        files=files,
        directory=directory,
        log_start_offset=log_start_offset,
        log_end_offset=log_end_offset,
        report=report,
        trusts_absence=clean_shutdown,
    )
    producers.expire(timestamp_ms, config.producer_id_expiration_ms)
    return LoadedLog(
        segments=segments,
        log_start_offset=log_start_offset,
        log_end_offset=log_end_offset,
        recovery_point=log_end_offset if clean_shutdown else min(recovery_point, log_end_offset),
        leader_epochs=epochs,
        producers=producers,
        snapshots=snapshots,
    )


# --- files ------------------------------------------------------------------------------------------------------------


def _has_leftovers(names: Sequence[str]) -> bool:
    """Whether a roll, a compaction, a deletion or a checkpoint was interrupted here, or an index stands alone."""
    logs = {name[:_OFFSET_DIGITS] for name in names if name.endswith(LOG_SUFFIX)}
    return any(
        name.endswith((DELETED_SUFFIX, CLEANED_SUFFIX, SWAP_SUFFIX, TEMPORARY_SUFFIX))
        or (name.endswith(INDEX_SUFFIXES) and name[:_OFFSET_DIGITS] not in logs)
        for name in names
    )


def _finish_file_changes(files: FilePool, directory: str, names: Sequence[str], report: Report) -> None:
    """Finish or undo what was interrupted: .deleted and .cleaned files go, .swap files take their place."""
    disk = files.disk

    def unlink(name: str) -> None:
        with suppress(FileNotFoundError):
            disk.unlink(f"{directory}/{name}")

    cleaned = [name for name in names if name.endswith(CLEANED_SUFFIX)]
    swaps = [name for name in names if name.endswith(SWAP_SUFFIX)]
    for name in names:
        # A `.checkpoint.deleted` is a snapshot of the metadata log, whose owner removes it.
        if (name.endswith(DELETED_SUFFIX) and not name.endswith(".checkpoint" + DELETED_SUFFIX)) or (
            name.endswith(TEMPORARY_SUFFIX) and not name.startswith("bootstrap")
        ):
            unlink(name)
    # Swap files at or behind a .cleaned one are of a split that did not come to its end; the original is still there.
    first_cleaned = min((int(name[:_OFFSET_DIGITS]) for name in cleaned), default=None)
    for name in [
        *cleaned,
        *(s for s in swaps if first_cleaned is not None and int(s[:_OFFSET_DIGITS]) >= first_cleaned),
    ]:
        report(f"{directory}/{name} is what an interrupted compaction left, and is removed")
        unlink(name)
    swaps = [name for name in swaps if first_cleaned is None or int(name[:_OFFSET_DIGITS]) < first_cleaned]
    if swaps:
        _complete_swaps(files, directory, names, swaps, report)
    logs = {name[:_OFFSET_DIGITS] for name in disk.list(directory) if name.endswith(LOG_SUFFIX)}
    for name in names:
        if name.endswith(INDEX_SUFFIXES) and name[:_OFFSET_DIGITS] not in logs:
            report(f"{directory}/{name} is an index without a log, and is removed")
            unlink(name)
    disk.sync_directory(directory)


def _complete_swaps(
    files: FilePool, directory: str, names: Sequence[str], swaps: Sequence[str], report: Report
) -> None:
    """Put compacted segments into the place of those that they were made of."""
    disk = files.disk
    log_swaps = [name for name in swaps if name.endswith(LOG_SUFFIX + SWAP_SUFFIX)]
    if log_swaps:
        first = min(int(name[:_OFFSET_DIGITS]) for name in log_swaps)
        end = first
        for name in log_swaps:
            file = disk.open(f"{directory}/{name}", writable=False)
            for _, header in scan_headers(file, 0, file.size(), chunk_bytes=1 << 20):
                end = max(end, header.next_offset)
            file.close()
        for name in names:
            if name.endswith(SEGMENT_SUFFIXES) and first <= int(name[:_OFFSET_DIGITS]) < end:
                with suppress(FileNotFoundError):
                    disk.unlink(f"{directory}/{name}")
    # Indexes first: until the log has its name, the swap is still there to be completed again.
    for name in sorted(swaps, key=lambda name: name.endswith(LOG_SUFFIX + SWAP_SUFFIX)):
        report(f"{directory}/{name} is what a compaction had finished, and takes its place")
        disk.rename(f"{directory}/{name}", f"{directory}/{name[: -len(SWAP_SUFFIX)]}")


def _find_segments(files: FilePool, directory: str, names: Sequence[str], *, timestamp_ms: int) -> SegmentList:
    found = []
    for name in names:
        base_offset = offset_of(name, LOG_SUFFIX)
        if base_offset is not None:
            size = files.disk.size(f"{directory}/{name}")
            found.append(Segment(files, directory, base_offset, size=size, created_ms=timestamp_ms))
    return SegmentList(found)


def _remove(segments: SegmentList, doomed: Sequence[Segment], disk: Disk) -> None:
    """Unlink segments, the newest first, so that what a crash leaves has no hole."""
    for segment in reversed(doomed):
        for suffix in SEGMENT_SUFFIXES:
            segment.files.forget(segment.path(suffix))
            with suppress(FileNotFoundError):
                disk.unlink(segment.path(suffix))
    segments.remove(doomed)


def _keep_snapshots(disk: Disk, directory: str, snapshots: Sequence[int], kept: frozenset[int]) -> list[int]:
    for offset in snapshots:
        if offset not in kept:
            with suppress(FileNotFoundError):
                disk.unlink(f"{directory}/{file_name(offset, SNAPSHOT_SUFFIX)}")
    return [offset for offset in snapshots if offset in kept]


# --- data -------------------------------------------------------------------------------------------------------------


def _recover(
    segments: SegmentList, epochs: LeaderEpochs, recovery_point: int, config: LogConfig, report: Report
) -> None:
    """Read what the recovery point does not vouch for, and cut the log where it stops making sense."""
    if not segments:
        return
    disk = segments.first.files.disk

    def note_epoch(_position: int, header: BatchHeader) -> None:
        if header.partition_leader_epoch > epochs.latest:
            epochs.assign(header.partition_leader_epoch, header.base_offset)

    doubtful = segments.from_offset(recovery_point)
    if doubtful[0].base_offset <= recovery_point:
        # What the checkpoint says of epochs beyond the part that is durable may be of a history that was lost.
        epochs.truncate_from_end(max(recovery_point, doubtful[0].base_offset) + 1)
    end: int | None = None
    for at, segment in enumerate(doubtful):
        if end is not None and segment.base_offset != end and not config.is_compacting:
            report(f"{segment.log_path} does not follow offset {end}: it and all behind it are removed")
            _remove(segments, doubtful[at:], disk)
            return
        end = segment.base_offset

        def note(position: int, header: BatchHeader) -> None:
            nonlocal end
            note_epoch(position, header)
            end = header.next_offset

        cut = segment.recover(config.index_interval_bytes, note)
        if cut:
            segment.open().file.sync()
            report(f"{segment.log_path}: {cut} bytes behind offset {end} are no valid batches and were cut")
            _remove(segments, doubtful[at + 1 :], disk)
            return


def _rebuild_missing_indexes(segments: SegmentList, names: frozenset[str], interval_bytes: int, report: Report) -> None:
    for segment in segments:
        for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX):
            if segment.size and file_name(segment.base_offset, suffix) not in names and not segment.has_unsynced_files:
                report(f"{segment.path(suffix)} is missing and is built anew")
                segment.rebuild_indexes(interval_bytes)


def _find_end(segments: SegmentList, epochs: LeaderEpochs, config: LogConfig, report: Report) -> int:
    """log_end_offset; -1 without segments."""
    if not segments:
        return -1
    active = segments.active
    try:
        return active.resume(config.index_interval_bytes)
    except CorruptIndex as error:
        # Only after a clean stop, when nobody has read the segment yet: then somebody else has written to it.
        report(f"{error}, after a clean stop: the segment is read anew")
    _recover(segments, epochs, active.base_offset, config, report)
    return segments.active.resume(config.index_interval_bytes)


def _load_epochs(
    disk: Disk, directory: str, names: Sequence[str], segments: SegmentList, report: Report
) -> LeaderEpochs:
    path = f"{directory}/{EPOCH_CHECKPOINT}"
    try:
        return LeaderEpochs(parse_epochs(read_file(disk, path).decode()) if EPOCH_CHECKPOINT in names else ())
    except ValueError as error:
        report(f"{path} is malformed ({error}) and is built anew from the batches")
    epochs = LeaderEpochs()
    for segment in segments:
        for _, header in scan_headers(segment.open().file, 0, segment.size, chunk_bytes=1 << 20):
            if header.partition_leader_epoch > epochs.latest:
                epochs.assign(header.partition_leader_epoch, header.base_offset)
    write_atomically(disk, path, format_epochs(epochs.entries).encode())
    epochs.is_dirty = False
    return epochs


def load_producers(
    producers: ProducerState,
    segments: SegmentList,
    snapshots: list[int],
    *,
    files: FilePool,
    directory: str,
    log_start_offset: int,
    log_end_offset: int,
    report: Report,
    trusts_absence: bool = False,
) -> None:
    """Bring the producers to log_end_offset: the newest good snapshot, then the batches behind it.

    Damaged snapshots are deleted and taken from the list. With `trusts_absence` a log without any snapshot has no
    producers.
    """
    disk = files.disk
    had_snapshots = bool(snapshots)
    start = log_start_offset
    producers.clear(log_start_offset)
    for offset in sorted((offset for offset in snapshots if offset <= log_end_offset), reverse=True):
        path = f"{directory}/{file_name(offset, SNAPSHOT_SUFFIX)}"
        try:
            producers.restore(offset, parse_snapshot(read_file(disk, path)))
        except (ValueError, FileNotFoundError) as error:
            report(f"{path} is not used: {error}")
            snapshots.remove(offset)
            with suppress(FileNotFoundError):
                disk.unlink(path)
            continue
        start = offset
        break
    if start < log_end_offset and (had_snapshots or not trusts_absence):
        _replay(producers, segments, start, log_end_offset)
    producers.end_offset = log_end_offset


def _replay(producers: ProducerState, segments: SegmentList, start: int, end: int) -> None:
    for segment in segments.from_offset(start):
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
