"""``__cluster_metadata-0`` on the disk: append, sync, snapshot, and delete old data.

The log stores what its user appends. The user of an embedded controller is the leader (metadata_leader.py), which makes
the batches; the user of a broker without one is a follower (metadata_follower.py), which fetches them.
metadata_loading.py opens the log.

The directory has Kafka's files: segments and indexes as for any partition, ``quorum-state``, ``partition.metadata``,
and snapshots. A batch is synced before the next one is written (see replay.py for why).

On a full disk the log uses space from the reserve (kbroker/storage/reserve.py). If no reserve is left, an append fails,
leaves the log unchanged, and can be retried.

After a snapshot, the log before it can be deleted. Snapshots are deleted, oldest first, when all files together exceed
metadata.max.retention.bytes or when they are older than metadata.max.retention.ms. The newest snapshot always remains,
and the log always reaches back to the oldest remaining one, so that an older snapshot and the log can replace a damaged
snapshot.

Blocking; one caller at a time.

Source: KIP-595, KIP-630; KafkaMetadataLog of Apache Kafka 4.3.1.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from kbroker.config.metadata import MetadataSettings
from kbroker.controller import snapshots
from kbroker.controller.quorum_state import FILE_NAME as QUORUM_STATE
from kbroker.controller.quorum_state import QuorumState, format_quorum_state
from kbroker.controller.replay import LogSegment
from kbroker.controller.snapshots import SnapshotId
from kbroker.metadata.errors import UnusableMetadata
from kbroker.metadata.image import Image
from kbroker.metadata.names import CLUSTER_METADATA_TOPIC
from kbroker.metadata.snapshot import image_records, quorum_records
from kbroker.runtime.ports import File
from kbroker.storage.checkpoint import write_atomically
from kbroker.storage.durable import lacks_space
from kbroker.storage.files import FileRange
from kbroker.storage.loader import offset_of
from kbroker.storage.log import Log
from kbroker.storage.reserve import SpaceReserve
from kbroker.storage.segment import LOG_SUFFIX
from wire.errors import ErrorCode, KafkaError

DIRECTORY: Final = f"{CLUSTER_METADATA_TOPIC}-0"


class MetadataLog:
    """The stored log and its snapshots.

    epoch            the newest quorum epoch that this node knows
    max_batch_bytes  the largest batch that may be appended
    reserve          disk space for a full disk
    """

    def __init__(
        self,
        log: Log,
        *,
        config: MetadataSettings,
        max_batch_bytes: int,
        epoch: int,
        snapshot_ids: list[SnapshotId],
        bytes_since_snapshot: int,
        last_timestamp_ms: int,
        reserve: SpaceReserve,
    ) -> None:
        self._log = log
        self._config = config
        self.max_batch_bytes = max_batch_bytes
        self.epoch = epoch
        self.reserve = reserve
        self._disk = log.disk
        self._directory = log.directory
        self._snapshots = snapshot_ids
        self._bytes_since_snapshot = bytes_since_snapshot
        self._last_snapshot_ms: int | None = None
        self._last_timestamp_ms = last_timestamp_ms

    def begin_epoch(self, state: QuorumState) -> None:
        """Store the state of the quorum, so that no epoch is used twice. Later batches belong to its epoch."""
        path = f"{self._directory}/{QUORUM_STATE}"
        self.reserve.spend_on(lambda: write_atomically(self._disk, path, format_quorum_state(state)))
        self.epoch = state.leader_epoch

    # -- appending

    def append(self, batch: bytes, *, timestamp_ms: int) -> None:
        """Append a batch of the current epoch, and sync.

        Errors  KAFKA_STORAGE_ERROR if the disk is full: nothing was appended; UnusableMetadata for any other failure:
                the state of the log is unknown, and the process must stop (D8)
        """
        append = partial(self._log.append, batch, leader_epoch=self.epoch, timestamp_ms=timestamp_ms)
        end_offset = self._log.log_end_offset
        try:
            self.reserve.spend_on(append)
            self.reserve.spend_on(self._log.flush)
        except KafkaError as error:
            if lacks_space(error) and self._log.state.failure is None and self._log.log_end_offset == end_offset:
                raise  # nothing was appended
            raise UnusableMetadata(f"the metadata log cannot be written: {error.message}") from error
        self._bytes_since_snapshot += len(batch)
        self._last_timestamp_ms = timestamp_ms

    def append_fetched(self, batches: bytes, *, epoch: int, timestamp_ms: int) -> None:
        """Append whole batches that an observer has fetched, the last of which has this epoch. They are not synced: the
        controllers have them.

        Errors  KAFKA_STORAGE_ERROR, with nothing appended; CORRUPT_MESSAGE
        """

        def append() -> None:
            plan = self._log.plan_append_as_follower(batches, timestamp_ms=timestamp_ms)
            if plan is not None:
                self._log.write(plan)
                self._log.commit(plan)

        self.reserve.spend_on(append)
        self.epoch = max(self.epoch, epoch)
        self._bytes_since_snapshot += len(batches)
        self._last_timestamp_ms = timestamp_ms

    def truncate_to(self, offset: int) -> None:
        """Delete the batches from this offset on, which the leader does not have."""
        self._log.truncate_to(offset)

    @property
    def last_epoch(self) -> int:
        """The epoch of the last batch in the log or the newest snapshot, 0 if there is none."""
        return max(self._log.leader_epochs.latest, self.newest_snapshot.epoch)

    @property
    def newest_snapshot(self) -> SnapshotId:
        """The newest snapshot; (0, 0) if there is none."""
        return self._snapshots[-1] if self._snapshots else SnapshotId(0, 0)

    def expect_room(self, size: int) -> None:
        """Refuse to append several batches unless all of them fit, because a partial write could not be undone.

        Errors  KAFKA_STORAGE_ERROR
        """
        if self._disk.free_bytes(self._directory) + self.reserve.held_bytes < 2 * size:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"the disk has no space for {size} bytes of metadata")

    # -- reading, in any thread

    def read(self, offset: int, *, max_bytes: int, end_offset: int) -> FileRange | None:
        """Whole batches from this offset on that end at or before `end_offset`, the first one even if it is larger.

        Errors  OFFSET_OUT_OF_RANGE, KAFKA_STORAGE_ERROR
        """
        return self._log.read(offset, max_bytes=max_bytes, end_offset=end_offset).records

    def end_of_epoch(self, epoch: int) -> tuple[int, int]:
        """The largest epoch up to this one, and its end (exclusive); (-1, -1) if the log does not know it."""
        return self._log.leader_epochs.end_offset_for(epoch, self._log.log_end_offset)

    def open_snapshot(self, snapshot: SnapshotId) -> tuple[File, int]:
        """A snapshot file and its size. OSError."""
        path = self.snapshot_path(snapshot)
        return self._disk.open(path), self._disk.size(path)

    # -- snapshots

    def snapshot_is_due(self, *, now_ms: int) -> bool:
        """Whether records were appended since the last snapshot, and enough bytes or enough time for another one."""
        if self._last_snapshot_ms is None:
            self._last_snapshot_ms = now_ms
        if not self._bytes_since_snapshot:
            return False
        if self._bytes_since_snapshot >= self._config.metadata_log_max_record_bytes_between_snapshots:
            return True
        interval_ms = self._config.metadata_log_max_snapshot_interval_ms
        return interval_ms > 0 and now_ms - self._last_snapshot_ms >= interval_ms

    def note_snapshot(self, *, now_ms: int) -> None:
        """Reset the counters: a snapshot of everything appended so far is about to be written."""
        self._bytes_since_snapshot = 0
        self._last_snapshot_ms = now_ms

    def sync(self) -> None:
        """Make the log durable, before a snapshot of it is written: a start does not read again what is before the
        snapshot, and could not find damage there. The caller prevents appends. Errors: KAFKA_STORAGE_ERROR
        """
        self.reserve.spend_on(self._log.flush)

    def write_snapshot(self, image: Image, *, timestamp_ms: int) -> SnapshotId:
        """Write the image as a snapshot file. Shares no state with `write`, so both may run concurrently. OSError."""
        snapshot = SnapshotId(image.end_offset, image.epoch)
        snapshots.write_snapshot(
            self._disk,
            self.snapshot_path(snapshot),
            image_records(image),
            metadata_version=image.metadata_version,
            epoch=image.epoch,
            last_contained_log_timestamp=self._last_timestamp_ms,
            timestamp_ms=timestamp_ms,
            quorum=quorum_records(image),
        )
        return snapshot

    def adopt_snapshot(self, snapshot: SnapshotId, *, timestamp_ms: int, now_ms: int) -> None:
        """Register a written snapshot, roll the segment, and delete what is no longer needed."""
        self._snapshots = sorted({*self._snapshots, snapshot})
        self._log.roll(timestamp_ms=timestamp_ms)
        self.clean(timestamp_ms=timestamp_ms, now_ms=now_ms)

    def snapshot_path(self, snapshot: SnapshotId) -> str:
        """Where this snapshot is stored."""
        return f"{self._directory}/{snapshot.file_name}"

    def start_at_snapshot(self, snapshot: SnapshotId, *, timestamp_ms: int, now_ms: int) -> None:
        """Continue after a snapshot that is stored, without the records before it."""
        self._log.truncate_fully_and_start_at(snapshot.end_offset)
        self.epoch = max(self.epoch, snapshot.epoch)
        self.note_snapshot(now_ms=now_ms)
        self.adopt_snapshot(snapshot, timestamp_ms=timestamp_ms, now_ms=now_ms)

    def clean(self, *, timestamp_ms: int, now_ms: int) -> None:
        """Delete old snapshots by size and age, and the log before the oldest remaining one. OSError."""
        paths = {snapshot: self.snapshot_path(snapshot) for snapshot in self._snapshots}
        sizes = {snapshot: self._disk.size(path) for snapshot, path in paths.items()}
        total = self._log.size + sum(sizes.values())
        while len(self._snapshots) > 1:
            oldest = self._snapshots[0]
            age_ms = timestamp_ms - self._disk.modified_ms(paths[oldest])
            too_old = 0 <= self._config.metadata_max_retention_ms < age_ms
            too_large = 0 <= self._config.metadata_max_retention_bytes < total
            if not too_old and not too_large:
                break
            # Rename first: after a crash between the two steps, loading deletes the renamed file.
            doomed = paths[oldest].removesuffix(snapshots.SUFFIX) + snapshots.DELETED_SUFFIX
            self._disk.rename(paths[oldest], doomed)
            self._disk.unlink(doomed)
            self._snapshots.pop(0)
            before = self._log.size
            self._forget_before(self._snapshots[0].end_offset, timestamp_ms=timestamp_ms, now_ms=now_ms)
            total -= sizes[oldest] + before - self._log.size

    def _forget_before(self, offset: int, *, timestamp_ms: int, now_ms: int) -> None:
        self._log.raise_log_start_offset(offset)
        plan = self._log.plan_retention(high_watermark=self._log.log_end_offset, timestamp_ms=timestamp_ms)
        if plan:
            self._log.apply_retention(plan, now_ms=now_ms, timestamp_ms=timestamp_ms)
            self._log.unlink_doomed(now_ms)

    @property
    def log_end_offset(self) -> int:
        """The offset of the next record."""
        return self._log.log_end_offset

    @property
    def log_start_offset(self) -> int:
        """The first offset that is still in the log."""
        return self._log.log_start_offset

    @property
    def snapshot_ids(self) -> list[SnapshotId]:
        """The existing snapshots, oldest first."""
        return list(self._snapshots)

    def close(self) -> None:
        """Sync and close everything. Errors: KAFKA_STORAGE_ERROR."""
        self.reserve.spend_on(self._log.close, keeps_half=True)


def log_segments(directory: str, names: list[str]) -> list[LogSegment]:
    """The segments in a sorted list of a directory's file names."""
    found = ((name, offset_of(name, LOG_SUFFIX)) for name in names)
    return [LogSegment(base_offset, f"{directory}/{name}") for name, base_offset in found if base_offset is not None]
