"""The files of one log: its segments, leader epochs and producer snapshots, and the files that wait for their deletion.

`Log` decides what happens and keeps the offsets; this module carries it out on the disk.

The order of steps ensures that after a crash between any two of them the loader reaches the same result:
- epochs are truncated before the data, so they are never ahead of it
- whole segments are removed before a segment is truncated
- segments at the end are removed newest first and those at the start oldest first, so the log stays contiguous
- the `.log` file is removed before the segment's other files, because the loader removes indexes without a log

Source  UnifiedLog, LocalLog of Apache Kafka 4.3.1
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from typing import Final

from kbroker.runtime.ports import Disk
from kbroker.storage.checkpoint import read_file, replace_file
from kbroker.storage.doomed import Doomed
from kbroker.storage.durable import lacks_space, sync_names
from kbroker.storage.durable import sync as sync_file
from kbroker.storage.files import FilePool
from kbroker.storage.leader_epoch import EPOCH_CHECKPOINT, LeaderEpochs, format_epochs
from kbroker.storage.log_config import LogConfig
from kbroker.storage.producer_state import ProducerEntry, ProducerState, parse_snapshot, read_marker
from kbroker.storage.segment import (
    DELETED_SUFFIX,
    SEGMENT_SUFFIXES,
    SNAPSHOT_SUFFIX,
    THROUGH_SUFFIX,
    Segment,
    file_name,
)
from kbroker.storage.segment_recovery import RecoveredSegment, producer_headers
from kbroker.storage.segments import SegmentList, unlink_newest_first, unlink_segment
from wire.batch_header import NO_PRODUCER_ID, BatchHeader

_NONE_READ: Final[Mapping[int, RecoveredSegment]] = {}


def ignore(_message: str) -> None:
    """The default `report`: drops the message."""


class LogFiles:
    """See the module docstring. `kbroker.storage.loader` fills it.

    Shape   snapshots are the offsets of the producer snapshots; doomed are the renamed files of removed segments
    Note    has_unsynced_names: the names of files may not be durable yet. An empty log does not sync them until it
            holds a batch
    Errors  OSError from all methods that write. They block
    """

    def __init__(self, directory: str, *, pool: FilePool, report: Callable[[str], None]) -> None:
        self.directory = directory
        self.pool = pool
        self.report = report
        self.segments = SegmentList()
        self.leader_epochs = LeaderEpochs()
        self.producers = ProducerState()
        self.snapshots: list[int] = []
        self.doomed = Doomed()
        self.has_unsynced_names = True

    @property
    def disk(self) -> Disk:
        return self.pool.disk

    def use(self, pool: FilePool, report: Callable[[str], None]) -> None:
        """Use another pool and another receiver of reports from now on."""
        self.pool, self.report = pool, report
        for segment in self.segments:
            segment.use(pool)

    def forget(self) -> None:
        """Drop the files of all segments from the pool, because their paths are about to be renamed or removed."""
        for segment in self.segments:
            for suffix in SEGMENT_SUFFIXES:
                self.pool.forget(segment.path(suffix))

    # --- epochs and producers -----------------------------------------------------------------------------------------

    def write_epochs(
        self, entries: list[tuple[int, int]] | None = None, *, sync: bool = True, syncs_names: bool = True
    ) -> None:
        """Write and sync the leader epoch checkpoint, by default with the current epochs.

        The caller must prevent other appends and truncations, which would write the same file in another thread.
        """
        entries = self.leader_epochs.entries if entries is None else entries
        try:
            path = f"{self.directory}/{EPOCH_CHECKPOINT}"
            replace_file(self.disk, path, format_epochs(entries).encode(), sync=sync)
            if syncs_names:
                sync_names(self.disk, self.directory)
        except OSError:
            self.leader_epochs.note_unwritten()
            raise
        self.leader_epochs.note_written(entries)

    def write_epochs_of(self, headers: Sequence[BatchHeader]) -> None:
        """Make the epochs durable before a recovery point after these batches is."""
        epochs, last = self.leader_epochs, headers[-1]
        if epochs.needs_writing(last.next_offset) or last.partition_leader_epoch > epochs.latest:
            coming = LeaderEpochs(epochs.entries)  # a copy: another thread may raise the start
            for header in headers:
                coming.assign(header.partition_leader_epoch, header.base_offset)
            self.write_epochs(coming.entries)

    def snapshot_path(self, offset: int) -> str:
        return f"{self.directory}/{file_name(offset, SNAPSHOT_SUFFIX)}"

    def write_snapshot(self, offset: int, *, sync: bool) -> bool:
        """Write the producer snapshot at `offset` unless nothing changed since the last one; True if it was written.

        The caller syncs the directory.
        """
        if offset <= self.producers.snapshot_offset:
            return False
        replace_file(self.disk, self.snapshot_path(offset), self.producers.format_snapshot(), sync=sync)
        self.producers.snapshot_offset = offset
        if offset not in self.snapshots:
            self.snapshots.append(offset)
        return True

    def load_producers(
        self,
        producers: ProducerState,
        snapshots: list[int],
        log_end_offset: int,
        *,
        trusts_absence: bool = False,
        segments_read: Mapping[int, RecoveredSegment] = _NONE_READ,
        indexed: Collection[int] = (),
    ) -> None:
        """Bring the producers up to log_end_offset from the newest good snapshot and the batches after it.

        Without a snapshot every batch of the segments is read, even below log_start_offset: a producer may resend a
        batch whose records have been deleted. Damaged snapshots are deleted and removed from the list. With
        `trusts_absence` a log without snapshots has no producers. Segments that recovery has read are not read again.
        `indexed` are the base offsets of segments whose empty transaction indexes get their entries.
        """
        had_snapshots = bool(snapshots)
        start = self.segments.first.base_offset
        producers.clear(start)
        newest = min(indexed, default=log_end_offset)
        for offset in sorted((offset for offset in snapshots if offset <= newest), reverse=True):
            path = self.snapshot_path(offset)
            try:
                entries = parse_snapshot(read_file(self.disk, path))
            except (ValueError, FileNotFoundError) as error:
                self.report(f"{path} is ignored: {error}")
                snapshots.remove(offset)
                with suppress(FileNotFoundError):
                    self.disk.unlink(path)
                continue
            self._set_heard_times(entries)
            producers.restore(offset, entries)
            start = offset
            break
        if start < log_end_offset and (had_snapshots or not trusts_absence):
            self._replay(producers, start, log_end_offset, segments_read, indexed)
        producers.end_offset = log_end_offset

    def _set_heard_times(self, entries: Sequence[ProducerEntry]) -> None:
        """Set heard_ms, a lower bound of the producers' idle time, because a snapshot has only record timestamps.

        A producer cannot have written after the last write to the segment that holds its last batch, or to the first
        remaining segment.
        """
        held = tuple(self.segments)
        written_ms: dict[str, int] = {}
        for entry in entries:
            if entry.batches:
                at = bisect_right(held, entry.last_offset, key=lambda segment: segment.base_offset)
                path = held[max(at - 1, 0)].log_path
                if path not in written_ms:
                    with suppress(FileNotFoundError):  # retention has deleted it since
                        written_ms[path] = self.disk.modified_ms(path)
                entry.heard_ms = written_ms.get(path, -1)

    def rebuild_transactions(self, segment: Segment, end: int) -> None:
        """Make a segment's transaction index again from the log; `end` is the offset after the segment."""
        segment.reset_transactions()
        self.load_producers(ProducerState(), self.snapshots, end, indexed=(segment.base_offset,))
        segment.write_transactions()
        sync_names(self.disk, self.directory)

    def _replay(
        self,
        producers: ProducerState,
        start: int,
        end: int,
        segments_read: Mapping[int, RecoveredSegment],
        indexed: Collection[int],
    ) -> None:
        for segment in self.segments.from_offset(start):
            recovered = segments_read.get(segment.base_offset)
            if recovered is not None and recovered.producer_batches is not None and start <= segment.base_offset:
                for header in producer_headers(segment, recovered.producer_batches):
                    producers.note(header)
                continue
            found = segment.find(start) if segment.size else None
            if found is None:
                continue
            file = segment.open().file
            for position, header in segment.scan(found[0], chunk_bytes=1 << 18):
                if header.base_offset >= end:
                    return
                if header.producer_id != NO_PRODUCER_ID:
                    marker = read_marker(file.pread(header.size, position), 0) if header.is_control else None
                    aborted = producers.note(header, marker)
                    if aborted is not None and segment.base_offset in indexed:
                        segment.add_aborted(aborted)

    # --- rolling and syncing ------------------------------------------------------------------------------------------

    def begin_segment(
        self, base_offset: int, *, config: LogConfig, timestamp_ms: int, jitter_ms: Callable[[int], int], syncs: bool
    ) -> Segment:
        """Complete the active segment's files and create the next segment's. Readers see no change.

        `syncs` makes the closed segment durable now; otherwise the next flush does.
        """
        old = self.segments.active
        old.add_time_entry()
        old.write_indexes()
        old.is_finished = True
        if syncs:
            old.sync(with_indexes=True)
        old.has_unsynced_files = not syncs
        self.write_snapshot(base_offset, sync=False)
        if self.has_unsynced_names or not old.transaction_index.is_empty:
            # If this name were lost and the next one kept, the log would seem to start at the next one. A transaction
            # index is created by its first entry, and recovery does not miss it if the recovery point is after it.
            sync_names(self.disk, self.directory)
        self.has_unsynced_names = True
        segment = self.create_segment(base_offset, config.index_interval_bytes, created_ms=timestamp_ms)
        jitter_bound = min(config.segment_jitter_ms, config.segment_ms)
        segment.jitter_ms = jitter_ms(jitter_bound) if jitter_bound > 0 else 0
        return segment

    def create_segment(self, base_offset: int, interval_bytes: int, *, created_ms: int) -> Segment:
        """Create the files of an empty segment."""
        return Segment.create(
            self.pool, self.directory, base_offset, interval_bytes=interval_bytes, created_ms=created_ms
        )

    def sync(self, segments: Sequence[Segment], active: Segment) -> None:
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
        if self.has_unsynced_names:
            self.has_unsynced_names = False
            try:
                sync_names(self.disk, self.directory)
            except OSError:
                self.has_unsynced_names = True
                raise

    def complete(self, log_end_offset: int, *, recovery_point: int) -> None:
        """Write and sync what a clean shutdown guarantees: data, indexes, producers if there are any, epochs, names.

        For a log without index entries only data and names that are not durable yet are synced. The next load reads
        such a log completely and detects damage in the rest. With thousands of small logs this saves most of the time.
        """
        active = self.segments.active
        is_tiny = len(self.segments) == 1 and not active.index_entries and active.transaction_index.is_empty
        changed = recovery_point < log_end_offset or any(s.has_unsynced_files for s in self.segments)
        if changed or active.unwritten_entries:
            active.add_time_entry()
            active.write_indexes()
            for segment in self.segments:
                if segment is active or segment.has_unsynced_files:
                    segment.sync(with_indexes=not is_tiny)
        syncs = len(self.producers) > 0
        names_changed = self.write_snapshot(log_end_offset, sync=syncs and not is_tiny) and syncs
        if self.leader_epochs.needs_writing(log_end_offset):
            self.write_epochs(sync=not is_tiny, syncs_names=False)
            names_changed = names_changed or not is_tiny
        if self.has_unsynced_names or names_changed or (changed and not is_tiny):
            sync_names(self.disk, self.directory)

    # --- truncating ---------------------------------------------------------------------------------------------------

    def truncate(self, offset: int) -> int:
        """Delete every batch that ends at or after `offset`, and return where the log ends now."""
        self.leader_epochs.truncate_from_end(offset)
        self.write_epochs()
        remaining = [segment for segment in self.segments if segment.base_offset <= offset]
        unlink_newest_first([segment for segment in self.segments if segment.base_offset > offset])
        self.segments.replace(remaining)
        active = remaining[-1]
        found = active.find(offset) if active.size else None
        if found is not None:
            # Sync at once: after a loss of power, old batches could reappear after new ones and count as part of the
            # log.
            active.truncate(found[0], offset)
            sync_file(active.open().file)
        last = active.resume()
        next_offset = active.base_offset if last is None else last.next_offset
        self._remove_snapshots(above=next_offset)
        sync_names(self.disk, self.directory)
        return next_offset

    def start_again_at(
        self,
        offset: int,
        *,
        interval_bytes: int,
        epochs: Iterable[tuple[int, int]] = (),
        producers: Sequence[ProducerEntry] = (),
    ) -> None:
        """Delete all segments, epochs and producers, and create an empty segment at `offset`. `epochs` and `producers`
        are those of the records before it, which only the tier has.

        A log that begins at `offset` must have them. So the segment is created last: a crash before that leaves the
        first segments of the old log, or no segment at all.
        """
        self.leader_epochs.clear()
        self.write_epochs()
        self._remove_snapshots(above=-1)
        created_ms = self.segments.active.created_ms
        unlink_newest_first(tuple(self.segments))
        self.producers.restore(offset, producers)
        if producers:
            replace_file(self.disk, self.snapshot_path(offset), self.producers.format_snapshot(), sync=True)
            self.snapshots.append(offset)
        for epoch, start_offset in epochs:
            self.leader_epochs.assign(epoch, start_offset)
        if producers or self.leader_epochs.entries:
            self.write_epochs()
        self.segments.replace([self.create_segment(offset, interval_bytes, created_ms=created_ms)])
        sync_names(self.disk, self.directory)

    def _remove_snapshots(self, *, above: int) -> None:
        for offset in [offset for offset in self.snapshots if offset > above]:
            with suppress(FileNotFoundError):
                self.disk.unlink(self.snapshot_path(offset))
            self.snapshots.remove(offset)

    # --- deleting segments --------------------------------------------------------------------------------------------

    def sync_snapshot(self, offset: int) -> None:
        """Make the producer snapshot at an offset durable. Its producers may have no batches after it, so once the
        segments before it are deleted, nothing else knows their last batches.
        """
        if offset in self.snapshots:
            with closing(self.disk.open(self.snapshot_path(offset))) as file:
                sync_file(file)
            sync_names(self.disk, self.directory)

    def release(self, segments: Sequence[Segment]) -> None:
        """Remove the oldest segments from the log; `doom` or a restart removes their files."""
        self.segments.remove(segments)
        for segment in segments:
            segment.is_gone = True
            if segment.base_offset in self.snapshots:
                self.snapshots.remove(segment.base_offset)

    def doom(self, segments: Sequence[Segment], due_ms: int) -> None:
        """Rename the files of released segments, for `unlink_doomed`. Repeatable after an error."""
        try:
            self._rename(segments, due_ms)
        except OSError as error:
            if not lacks_space(error):
                raise
            self._unlink(segments)

    def _rename(self, segments: Sequence[Segment], due_ms: int) -> None:
        """Rename the files of segments, oldest first, and make that durable.

        If power fails, any subset of the unsynced renames may be lost, and a log that gets back one segment but not the
        next has a hole. So if there are several, the last one is first given a name that makes the next start delete
        all segments up to it (`leftovers`). The number of syncs does not depend on the number of segments.
        """
        last_path = segments[-1].log_path
        if len(segments) > 1:
            self.pool.forget(last_path)
            with suppress(FileNotFoundError):  # an earlier attempt got this far
                self.disk.rename(last_path, last_path + THROUGH_SUFFIX)
            sync_names(self.disk, self.directory)
        for segment in segments:
            for path in (segment.path(suffix) for suffix in (*SEGMENT_SUFFIXES, SNAPSHOT_SUFFIX)):
                self.pool.forget(path)
                with suppress(FileNotFoundError):
                    self.disk.rename(path, path + DELETED_SUFFIX)
                    self.doomed.add(due_ms, path + DELETED_SUFFIX)
        sync_names(self.disk, self.directory)
        if len(segments) > 1:
            self.disk.rename(last_path + THROUGH_SUFFIX, last_path + DELETED_SUFFIX)
            self.doomed.add(due_ms, last_path + DELETED_SUFFIX)

    def _unlink(self, segments: Sequence[Segment]) -> None:
        """Remove segments at once: the disk is full, and a longer name may need another block."""
        for segment in segments:
            unlink_segment(segment)
            for path in (segment.path(SNAPSHOT_SUFFIX), segment.log_path + THROUGH_SUFFIX):
                with suppress(FileNotFoundError):
                    self.disk.unlink(path)
            sync_names(self.disk, self.directory)
