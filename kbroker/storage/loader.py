"""Opening a log: from names and indexes after a clean shutdown, by recovery after an unclean one.

After a clean shutdown the loader does not scan the log. It uses file names and sizes, the last index entry of the
active segment and the batches after it, the epoch checkpoint and the newest producer snapshot. Missing or visibly
damaged files are rebuilt from the log.

After an unclean shutdown the loader reads every segment that may hold data after the recovery point and rebuilds its
indexes, epochs and producers. A batch is valid if its header is plausible, its CRC is right and its offsets ascend. At
the first invalid batch the loader truncates the log and deletes all later segments. It also deletes segments after a
gap: without compaction a gap means that a loss of power took the end of a segment. Recovery is idempotent, so a crash
during recovery does no harm.

Source  LogLoader of Apache Kafka 4.3.1; the treatment of gaps and of a malformed epoch checkpoint is stricter than
        Kafka's
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from kbroker.storage.checkpoint import read_file
from kbroker.storage.durable import lacks_space, sync, sync_names
from kbroker.storage.index import CorruptIndex
from kbroker.storage.leader_epoch import EPOCH_CHECKPOINT, LeaderEpochs, parse_epochs
from kbroker.storage.leftovers import finish_file_changes, has_leftovers
from kbroker.storage.log_config import LogConfig
from kbroker.storage.log_files import LogFiles
from kbroker.storage.segment import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    Segment,
    file_name,
)
from kbroker.storage.segment_recovery import RecoveredSegment, recover_segment
from kbroker.storage.segments import unlink_newest_first
from wire.batch_header import BatchHeader

_OFFSET_DIGITS: Final = 20
_SCAN_BYTES: Final = 1 << 20


@dataclass(slots=True, eq=False)
class LoadedLog:
    """A log after loading; `recovery_point` is the part of the given one that is certain."""

    files: LogFiles
    log_start_offset: int
    log_end_offset: int
    recovery_point: int


def offset_of(name: str, suffix: str) -> int | None:
    """The offset in a file name with that suffix, None for other names."""
    stem = name[: -len(suffix)]
    return int(stem) if name.endswith(suffix) and len(stem) == _OFFSET_DIGITS and stem.isdecimal() else None


class Loader:
    """Loads the files of one log. Blocking. Errors: OSError."""

    def __init__(self, files: LogFiles, config: LogConfig) -> None:
        self._files = files
        self._config = config
        self._segments_read: dict[int, RecoveredSegment] = {}  # what recovery found, by base_offset

    def load(
        self,
        *,
        clean_shutdown: bool,
        recovery_point: int,
        log_start_offset: int,
        timestamp_ms: int,
        cleaned_offset: int = 0,
    ) -> LoadedLog:
        """See the module docstring."""
        files, config, directory = self._files, self._config, self._files.directory
        names = files.disk.list(directory)
        if has_leftovers(names):
            finish_file_changes(files.pool, directory, names, files.report)
            names = files.disk.list(directory)
        segments = files.segments
        segments.replace(self._segments_in(names, timestamp_ms))
        files.snapshots = sorted(offset for name in names if (offset := offset_of(name, SNAPSHOT_SUFFIX)) is not None)
        epochs = files.leader_epochs = self._stored_epochs(names)
        if segments and not clean_shutdown:
            doubtful = segments.from_offset(recovery_point)[0]
            self._check_epochs(self._last_before(doubtful), log_start_offset)
            self._recover_from(recovery_point, cleaned_offset)
            # The data that was read may not be durable: after a truncation it may have replaced data that the
            # checkpoint covers.
            recovery_point = min(recovery_point, doubtful.base_offset)
        self._rebuild_missing_indexes(frozenset(names))
        log_end_offset = log_start_offset
        if segments:
            log_end_offset, last = self._find_end()
            if clean_shutdown:
                self._check_epochs(last or self._last_before(segments.active), log_start_offset)
            if log_end_offset < log_start_offset:
                files.report(
                    f"{directory} ends at {log_end_offset}, before its start offset {log_start_offset}; it is emptied"
                )
                log_end_offset = log_start_offset
                self._remove(tuple(segments))
                epochs.clear()
        if not segments:
            interval_bytes = config.index_interval_bytes
            segments.replace([files.create_segment(log_start_offset, interval_bytes, created_ms=timestamp_ms)])
        if not config.remote_storage_enable:
            log_start_offset = max(log_start_offset, segments.first.base_offset)
        epochs.truncate_from_end(log_end_offset)
        self._complete_start(log_start_offset)
        epochs.truncate_from_start(log_start_offset)
        self._remove_useless_snapshots(log_end_offset)
        self._check_transaction_indexes(log_end_offset)
        files.producers.limit = config.max_producers
        files.load_producers(
            files.producers,
            files.snapshots,
            log_end_offset,
            trusts_absence=clean_shutdown,
            segments_read=self._segments_read,
            indexed=[segment.base_offset for segment in self._without_transactions()],
        )
        for segment in self._without_transactions():
            segment.write_transactions()
        files.producers.expire(timestamp_ms, config.producer_id_expiration_ms)
        files.has_unsynced_names = segments.active.has_unsynced_files or not log_end_offset
        recovery_point = log_end_offset if clean_shutdown else min(recovery_point, log_end_offset)
        return LoadedLog(files, log_start_offset, log_end_offset, recovery_point)

    # --- segments -----------------------------------------------------------------------------------------------------

    def _segments_in(self, names: Sequence[str], timestamp_ms: int) -> list[Segment]:
        files, interval_bytes = self._files, self._config.index_interval_bytes
        return [
            Segment(
                files.pool,
                files.directory,
                base_offset,
                interval_bytes=interval_bytes,
                size=files.disk.size(f"{files.directory}/{name}"),
                created_ms=timestamp_ms,
            )
            for name in names
            if (base_offset := offset_of(name, LOG_SUFFIX)) is not None
        ]

    def _recover_from(self, recovery_point: int, cleaned_offset: int = 0) -> None:
        """Read all segments that may hold data after the recovery point. Below cleaned_offset there may be gaps."""
        epochs, report = self._files.leader_epochs, self._files.report
        doubtful = self._files.segments.from_offset(recovery_point)
        end = doubtful[0].base_offset
        # The epoch checkpoint may be newer than the rest of the log; the batches decide.
        epochs.truncate_from_end(max(recovery_point, end) + 1)
        for at, segment in enumerate(doubtful):
            may_have_gap = self._config.is_compacting or segment.base_offset <= cleaned_offset
            if end != segment.base_offset and not may_have_gap:
                self._files.report(
                    f"{segment.log_path} does not follow offset {end}: it and later segments are removed"
                )
                self._remove(doubtful[at:])
                return
            recovered = self._segments_read[segment.base_offset] = recover_segment(segment, epochs)
            end, cut = recovered.next_offset, recovered.cut_bytes
            if cut:
                # Sync at once, so that the old bytes cannot reappear after new ones.
                sync(segment.open().file)
                report(f"{segment.log_path}: truncated {cut} bytes after offset {end} that are not valid batches")
                self._remove(doubtful[at + 1 :])
                return

    def _rebuild_missing_indexes(self, names: frozenset[str]) -> None:
        for segment in self._files.segments:
            if file_name(segment.base_offset, TXN_INDEX_SUFFIX) not in names:
                segment.reset_transactions(has_file=False)
            for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX):
                if file_name(segment.base_offset, suffix) not in names and not segment.has_unsynced_files:
                    if segment.size:  # an empty segment's index files need neither a report nor a sync
                        self._files.report(f"{segment.path(suffix)} is missing and is rebuilt")
                    segment.rebuild_indexes()

    def _check_transaction_indexes(self, log_end_offset: int) -> None:
        """Rebuild damaged transaction indexes of segments that recovery has not read."""
        segments = tuple(self._files.segments)
        for at, segment in enumerate(segments):
            try:
                segment.transaction_index.check(segment.base_offset)
            except CorruptIndex as error:
                self._files.report(f"{error}: the index is rebuilt")
                end = segments[at + 1].base_offset if at + 1 < len(segments) else log_end_offset
                self._files.rebuild_transactions(segment, end)

    def _without_transactions(self) -> list[Segment]:
        """The segments that recovery has read and whose transaction indexes must be made again."""
        found = {base_offset for base_offset, one in self._segments_read.items() if one.has_transactions}
        return [segment for segment in self._files.segments if segment.base_offset in found]

    def _find_end(self) -> tuple[int, BatchHeader | None]:
        """Prepare the active segment for writing; returns (log_end_offset, its last batch)."""
        active = self._files.segments.active
        try:
            last = active.resume()
        except CorruptIndex as error:
            # Only after a clean shutdown, if something else has modified the file since.
            self._files.report(f"{error}: the segment is recovered")
            self._recover_from(active.base_offset)
            last = active.resume()
        return active.base_offset if last is None else last.next_offset, last

    def _last_before(self, limit: Segment) -> BatchHeader | None:
        """The last batch of the last non-empty segment before `limit`."""
        before = [one for one in self._files.segments if one.size and one.base_offset < limit.base_offset]
        return before[-1].last_batch() if before else None

    def _remove(self, doomed: Sequence[Segment]) -> None:
        """Delete segments at the end of the log, or all of them."""
        unlink_newest_first(doomed)
        self._files.segments.remove(doomed)

    # --- leader epochs and snapshots ----------------------------------------------------------------------------------

    def _stored_epochs(self, names: Sequence[str]) -> LeaderEpochs:
        path = f"{self._files.directory}/{EPOCH_CHECKPOINT}"
        try:
            text = read_file(self._files.disk, path).decode() if EPOCH_CHECKPOINT in names else ""
            return LeaderEpochs(parse_epochs(text))
        except ValueError as error:
            self._files.report(f"{path} is malformed: {error}")
            return LeaderEpochs()

    def _check_epochs(self, last: BatchHeader | None, log_start_offset: int) -> None:
        """Rebuild the epoch checkpoint unless it has the right epoch for the newest batch that recovery does not read.

        The file is replaced as a whole, so if that epoch is right, the earlier ones are too. Entries below the log
        start may be missing.
        """
        if last is None or last.next_offset <= log_start_offset:
            return
        files, epochs = self._files, self._files.leader_epochs
        if epochs.epoch_for_offset(max(last.base_offset, log_start_offset)) == last.partition_leader_epoch:
            return
        files.report(f"{files.directory}/{EPOCH_CHECKPOINT} does not match the batches and is rebuilt from them")
        before = epochs.entries
        epochs.clear()
        for segment in files.segments:
            for _, header in segment.scan(0, chunk_bytes=_SCAN_BYTES):
                if header.partition_leader_epoch > epochs.latest:
                    epochs.assign(header.partition_leader_epoch, header.base_offset)
        # Only this file has the epochs of batches that are only in the tier.
        epochs.complete_start(entry for entry in before if entry[1] < files.segments.first.base_offset)
        try:
            files.write_epochs()
        except OSError as error:
            if not lacks_space(error):
                raise
            # The next flush writes them.

    def _complete_start(self, log_start_offset: int) -> None:
        """Find the epochs between the log's start and the first known one.

        They were dropped when log_start_offset rose. They are needed again if a crash lost the new log_start_offset.
        """
        segments, epochs = self._files.segments, self._files.leader_epochs
        known = epochs.entries
        start = max(log_start_offset, segments.first.base_offset)
        if not known or known[0][1] <= start:
            return
        epochs.clear()
        for segment in segments.from_offset(start):
            for _, header in segment.scan(0, chunk_bytes=_SCAN_BYTES):
                if known[0][1] > header.base_offset and header.next_offset > start:
                    epochs.assign(header.partition_leader_epoch, max(header.base_offset, start))
            if segment.base_offset >= known[0][1]:
                break
        for epoch, start_offset in known:
            epochs.assign(epoch, start_offset)

    def _remove_useless_snapshots(self, log_end_offset: int) -> None:
        """Keep the snapshots at segment starts and the newest one, from the last close. Those after the end are
        invalid.
        """
        files = self._files
        kept = {segment.base_offset for segment in files.segments}
        kept.add(max((offset for offset in files.snapshots if offset <= log_end_offset), default=-1))
        useless = [offset for offset in files.snapshots if offset > log_end_offset or offset not in kept]
        for offset in useless:
            files.disk.unlink(files.snapshot_path(offset))
            files.snapshots.remove(offset)
        if useless:
            # A removed snapshot must not reappear after a loss of power.
            sync_names(files.disk, files.directory)
