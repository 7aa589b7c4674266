"""``__cluster_metadata-0`` of a single voter: load, append, sync, snapshot, and delete old data.

The directory has Kafka's files: segments and indexes as for any partition, ``quorum-state``, ``partition.metadata``,
and snapshots. At every start the voter raises the quorum epoch, stores it, and appends a LeaderChange. An empty log
then gets the records of ``bootstrap.checkpoint`` in one metadata transaction. A batch is synced before any caller gets
a response, and before the next batch is written (see replay.py for why).

On a full disk the log uses space from the reserve (kbroker/storage/reserve.py). If no reserve is left, an append fails,
leaves the log unchanged, and can be retried.

The records of one decision are in one batch, so they are written completely or not at all. Records that exceed 8 MiB go
into several batches in one metadata transaction.

After a snapshot, the log before it can be deleted. Snapshots are deleted, oldest first, when all files together exceed
metadata.max.retention.bytes or when they are older than metadata.max.retention.ms. The newest snapshot always remains,
and the log always reaches back to the oldest remaining one, so that an older snapshot and the log can replace a damaged
snapshot.

Blocking; one caller at a time.

Source: KIP-595, KIP-630, KIP-866; KafkaMetadataLog of Apache Kafka 4.3.1.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final

from kbroker.controller import records, snapshots
from kbroker.controller.bootstrap import bootstrap_records
from kbroker.controller.features import METADATA_VERSION
from kbroker.controller.quorum_state import FILE_NAME as QUORUM_STATE
from kbroker.controller.quorum_state import QuorumState, format_quorum_state, parse_quorum_state
from kbroker.controller.records import encode_value
from kbroker.controller.replay import LogEnd, LogSegment, Replay
from kbroker.controller.snapshots import SnapshotId
from kbroker.metadata.errors import UnusableMetadata
from kbroker.metadata.image import Image, ImageBuilder, Record
from kbroker.metadata.names import CLUSTER_METADATA_TOPIC
from kbroker.metadata.parts import CLUSTER_METADATA_TOPIC_ID
from kbroker.metadata.snapshot import image_records
from kbroker.runtime.ports import Disk
from kbroker.storage.checkpoint import read_file, write_atomically
from kbroker.storage.durable import lacks_space
from kbroker.storage.files import FilePool
from kbroker.storage.log import Log
from kbroker.storage.log_config import LogConfig
from kbroker.storage.reserve import SpaceReserve
from wire.errors import ErrorCode, KafkaError, Malformed
from wire.stored.metadata import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    EndTransactionRecord,
)
from wire.types import uuid_to_text

DIRECTORY: Final = f"{CLUSTER_METADATA_TOPIC}-0"
_PARTITION_METADATA: Final = "partition.metadata"
_LOG_SUFFIX: Final = ".log"

Report = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataLogConfig:
    """The settings metadata.log.* and metadata.max.retention.*.

    Units  bytes and milliseconds, as in the names; a negative retention means no limit, a snapshot interval of 0 means
           never
    """

    segment_bytes: int = 1 << 30
    segment_ms: int = 604_800_000
    max_record_bytes_between_snapshots: int = 20 << 20
    max_snapshot_interval_ms: int = 3_600_000
    max_retention_bytes: int = 104_857_600
    max_retention_ms: int = 604_800_000
    max_batch_bytes: int = records.MAX_BATCH_BYTES


class Staged:
    """Encoded records to write: batches, each of which is written and synced separately."""

    __slots__ = ("batches", "end_offset")

    def __init__(self, batches: list[list[bytes]], end_offset: int) -> None:
        self.batches = batches
        self.end_offset = end_offset


class MetadataLog:
    """The log of the only voter of this quorum. Created by `load`; call `begin_epoch` before the first append.

    epoch       the controller epoch of this process
    reserve     disk space for a full disk
    end_offset  the offset of the next staged record
    """

    def __init__(
        self,
        log: Log,
        *,
        node_id: int,
        config: MetadataLogConfig,
        quorum_epoch: int,
        snapshot_ids: list[SnapshotId],
        bytes_since_snapshot: int,
        last_timestamp_ms: int,
        reserve: SpaceReserve,
    ) -> None:
        self._log = log
        self.reserve = reserve
        self._disk = log.disk
        self._directory = log.directory
        self._node_id = node_id
        self._config = config
        self._snapshots = snapshot_ids
        self._bytes_since_snapshot = bytes_since_snapshot
        self._last_snapshot_ms: int | None = None
        self.epoch = quorum_epoch
        self.end_offset = log.log_end_offset
        self.last_timestamp_ms = last_timestamp_ms

    # -- loading

    @classmethod
    def load(
        cls,
        root: str,
        *,
        disk: Disk,
        node_id: int,
        config: MetadataLogConfig,
        timestamp_ms: int,
        clean_shutdown: bool = False,
        may_be_empty: bool = True,
        reserve: SpaceReserve | None = None,
        report: Report,
    ) -> tuple[MetadataLog, Image]:
        """Open the log under a log directory, or create it, and replay it: the newest complete snapshot, then the
        records after it. `may_be_empty` is False if a broker has run here before, because then the log must have
        records.

        Raises UnusableMetadata if the files are inconsistent or of an unknown version, OSError from the disk.
        """
        directory = f"{root}/{DIRECTORY}"
        reserve = reserve or SpaceReserve(disk, root, 0)
        if not disk.exists(directory):
            if not may_be_empty:
                raise _lost(root, "is missing")
            disk.make_directory(directory)
            disk.sync_directory(root)
        if not disk.exists(f"{directory}/{_PARTITION_METADATA}"):
            text = f"version: 0\ntopic_id: {uuid_to_text(CLUSTER_METADATA_TOPIC_ID)}\n"
            write_atomically(disk, f"{directory}/{_PARTITION_METADATA}", text.encode())
        names = _without_leftovers(disk, directory)
        quorum_epoch = _read_quorum_epoch(disk, directory, node_id)
        snapshot_ids = snapshots.snapshot_ids(names)
        builder, snapshot = _newest_snapshot(disk, directory, snapshot_ids, report)
        segments = log_segments(directory, names)
        _check_reach(directory, segments, snapshot)
        replay = Replay(
            disk,
            segments,
            start_offset=snapshot.end_offset,
            highest_epoch=quorum_epoch,
            clean_shutdown=clean_shutdown,
        )
        for batch in replay:
            for record in records.batch_records(batch):
                builder.replay(record)
        end = replay.end
        epoch = max(end.epoch, snapshot.epoch)
        image = builder.build(offset=max(end.end_offset, snapshot.end_offset) - 1, epoch=epoch)
        if not may_be_empty and not image.metadata_version:
            raise _lost(root, "holds no records")
        if end.torn_at is not None:
            path, position = end.torn_at
            report(f"{path} ends in an unfinished batch at byte {position}; it was never acknowledged and is removed")
        try:
            log = reserve.spend_on(
                lambda: _open_log(
                    directory,
                    disk,
                    config,
                    end,
                    timestamp_ms=timestamp_ms,
                    clean_shutdown=clean_shutdown,
                    report=report,
                )
            )
        except KafkaError as error:
            raise UnusableMetadata(f"the metadata log cannot be opened: {error.message}") from error
        if log.log_end_offset < snapshot.end_offset:
            log.truncate_fully_and_start_at(snapshot.end_offset)
        metadata_log = cls(
            log,
            node_id=node_id,
            config=config,
            quorum_epoch=max(quorum_epoch, epoch),
            snapshot_ids=snapshot_ids,
            bytes_since_snapshot=replay.size,
            last_timestamp_ms=end.timestamp_ms,
            reserve=reserve,
        )
        assert image.end_offset == log.log_end_offset, f"{image.end_offset=}, {log.log_end_offset=}"
        return metadata_log, image

    def begin_epoch(self, image: Image, *, timestamp_ms: int, bootstrap: str | None = None) -> Image:
        """Become the leader of the next epoch: write quorum-state and LeaderChange, bootstrap an empty log, abort an
        open transaction.

        bootstrap is the path of ``bootstrap.checkpoint``, used for an empty log. Returns the new image. Synced.
        """
        self.epoch += 1
        state = QuorumState(leader_id=self._node_id, leader_epoch=self.epoch, voted_id=-1, voters=(self._node_id,))
        path = f"{self._directory}/{QUORUM_STATE}"
        self.reserve.spend_on(lambda: write_atomically(self._disk, path, format_quorum_state(state)))
        change = records.leader_change_batch(
            voter_id=self._node_id, base_offset=self.end_offset, epoch=self.epoch, timestamp_ms=timestamp_ms
        )
        self._append(change, timestamp_ms)
        self.end_offset += 1
        needed: list[Record] = []
        if image.open_transaction is not None:
            needed.append(AbortTransactionRecord(reason="Controller failover"))
        if not image.metadata_version:
            first = bootstrap_records(self._disk, bootstrap)
            needed += [BeginTransactionRecord(name="Bootstrap records"), *first, EndTransactionRecord()]
        if needed:
            values = [encode_value(record, METADATA_VERSION) for record in needed]
            self.write(self.stage(values, metadata_version=METADATA_VERSION), timestamp_ms=timestamp_ms)
        return image.apply(needed, offset=self.end_offset - 1, epoch=self.epoch)

    # -- appending

    def fits(self, values: list[bytes], *, onto: Staged) -> bool:
        """Whether the records of one more decision fit into the staged batch."""
        return len(onto.batches) == 1 and _size(onto.batches[0]) + _size(values) <= self._config.max_batch_bytes

    def stage(self, values: list[bytes], *, metadata_version: int, onto: Staged | None = None) -> Staged:
        """Assign offsets to the encoded records of one decision, without writing anything.

        `onto` adds them to an already staged batch; `fits` must have returned True. Records that need several batches
        are framed by a metadata transaction, whose Begin record takes the first offset.
        """
        if onto is not None:
            onto.batches[0] += values
            self.end_offset = onto.end_offset = onto.end_offset + len(values)
            return onto
        batches = [values]
        if _size(values) > self._config.max_batch_bytes:
            begin, end = BeginTransactionRecord(name="Large decision"), EndTransactionRecord()
            framed = [encode_value(begin, metadata_version), *values, encode_value(end, metadata_version)]
            batches = _split(framed, self._config.max_batch_bytes)
        self.end_offset += sum(map(len, batches))
        return Staged(batches, self.end_offset)

    def write(self, staged: Staged, *, timestamp_ms: int) -> None:
        """Append and sync.

        Errors  KAFKA_STORAGE_ERROR if the disk is full: nothing was appended, and the staged records lose their
                offsets; UnusableMetadata for any other failure: the state of the log is unknown, and the process must
                stop (D8)
        """
        start = offset = self._log.log_end_offset
        try:
            if len(staged.batches) > 1:
                self._expect_room(sum(map(_size, staged.batches)))
            for values in staged.batches:
                batch = records.data_batch(values, base_offset=offset, epoch=self.epoch, timestamp_ms=timestamp_ms)
                self._append(batch, timestamp_ms)
                offset += len(values)
        except KafkaError as error:
            if self._log.log_end_offset != start:
                raise UnusableMetadata(f"a decision is only partly in the metadata log: {error.message}") from error
            self.end_offset = start
            raise
        assert offset == staged.end_offset, f"{offset=}, staged to {staged.end_offset}"

    def _expect_room(self, size: int) -> None:
        """Refuse to write several batches unless all of them fit, because a partial write could not be undone.

        Errors  KAFKA_STORAGE_ERROR
        """
        if self._disk.free_bytes(self._directory) + self.reserve.held_bytes < 2 * size:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"the disk has no space for {size} bytes of metadata")

    def _append(self, batch: bytes, timestamp_ms: int) -> None:
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
        self.last_timestamp_ms = timestamp_ms

    # -- snapshots

    def snapshot_is_due(self, *, now_ms: int) -> bool:
        """Whether records were appended since the last snapshot, and enough bytes or enough time for another one."""
        if self._last_snapshot_ms is None:
            self._last_snapshot_ms = now_ms
        if not self._bytes_since_snapshot:
            return False
        if self._bytes_since_snapshot >= self._config.max_record_bytes_between_snapshots:
            return True
        interval_ms = self._config.max_snapshot_interval_ms
        return interval_ms > 0 and now_ms - self._last_snapshot_ms >= interval_ms

    def note_snapshot(self, *, now_ms: int) -> None:
        """Reset the counters: a snapshot of everything appended so far is about to be written."""
        self._bytes_since_snapshot = 0
        self._last_snapshot_ms = now_ms

    def write_snapshot(self, image: Image, *, timestamp_ms: int) -> SnapshotId:
        """Write the image as a snapshot file. Shares no state with `write`, so both may run concurrently. OSError."""
        snapshot = SnapshotId(image.end_offset, image.epoch)
        snapshots.write_snapshot(
            self._disk,
            f"{self._directory}/{snapshot.file_name}",
            image_records(image),
            metadata_version=image.metadata_version,
            epoch=image.epoch,
            last_contained_log_timestamp=self.last_timestamp_ms,
            timestamp_ms=timestamp_ms,
        )
        return snapshot

    def adopt_snapshot(self, snapshot: SnapshotId, *, timestamp_ms: int, now_ms: int) -> None:
        """Register a written snapshot, roll the segment, and delete what is no longer needed."""
        self._snapshots = sorted({*self._snapshots, snapshot})
        self._log.roll(timestamp_ms=timestamp_ms)
        self.clean(timestamp_ms=timestamp_ms, now_ms=now_ms)

    def clean(self, *, timestamp_ms: int, now_ms: int) -> None:
        """Delete old snapshots by size and age, and the log before the oldest remaining one. OSError."""
        paths = {snapshot: f"{self._directory}/{snapshot.file_name}" for snapshot in self._snapshots}
        sizes = {snapshot: self._disk.size(path) for snapshot, path in paths.items()}
        total = self._log.size + sum(sizes.values())
        while len(self._snapshots) > 1:
            oldest = self._snapshots[0]
            age_ms = timestamp_ms - self._disk.modified_ms(paths[oldest])
            too_old = 0 <= self._config.max_retention_ms < age_ms
            too_large = 0 <= self._config.max_retention_bytes < total
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


# -- helpers for loading


def log_segments(directory: str, names: list[str]) -> list[LogSegment]:
    """The segments in a sorted list of a directory's file names."""
    logs = [name for name in names if name.endswith(_LOG_SUFFIX)]
    return [LogSegment(int(name.removesuffix(_LOG_SUFFIX)), f"{directory}/{name}") for name in logs]


def _lost(root: str, what: str) -> UnusableMetadata:
    return UnusableMetadata(
        f"{root}/{DIRECTORY} {what}, but a broker has used {root} before; restore {DIRECTORY} from a backup, or move "
        f"{root} away to start an empty cluster"
    )


def _without_leftovers(disk: Disk, directory: str) -> list[str]:
    """The names in the directory, after deleting the leftovers of an interrupted snapshot or cleanup."""
    names = []
    for name in disk.list(directory):
        if name.endswith((snapshots.PART_SUFFIX, snapshots.DELETED_SUFFIX)):
            disk.unlink(f"{directory}/{name}")
        else:
            names.append(name)
    return names


def _read_quorum_epoch(disk: Disk, directory: str, node_id: int) -> int:
    path = f"{directory}/{QUORUM_STATE}"
    try:
        data = read_file(disk, path)
    except FileNotFoundError:
        return 0
    state = parse_quorum_state(data, path)
    if state.voters and state.voters != (node_id,):
        raise UnusableMetadata(
            f"{path} lists the voters {list(state.voters)}; this node, {node_id}, must be the only voter"
        )
    return state.leader_epoch


def _newest_snapshot(
    disk: Disk, directory: str, snapshot_ids: list[SnapshotId], report: Report
) -> tuple[ImageBuilder, SnapshotId]:
    """A builder with the newest complete snapshot replayed. Damaged snapshots are removed from the list and renamed."""
    while snapshot_ids:
        snapshot = snapshot_ids[-1]
        path = f"{directory}/{snapshot.file_name}"
        builder = ImageBuilder(Image())
        try:
            contents = snapshots.read_snapshot(disk, path)
        except Malformed as error:
            report(f"{error}; using the previous snapshot")
            snapshot_ids.pop()
            with suppress(FileNotFoundError):
                disk.rename(path, path.removesuffix(snapshots.SUFFIX) + snapshots.DELETED_SUFFIX)
            continue
        for record in contents.records:
            builder.replay(record)
        return builder, snapshot
    return ImageBuilder(Image()), SnapshotId(0, 0)


def _check_reach(directory: str, segments: list[LogSegment], snapshot: SnapshotId) -> None:
    if segments and segments[0].base_offset > snapshot.end_offset:
        raise UnusableMetadata(
            f"{directory} starts at offset {segments[0].base_offset}, but no complete snapshot reaches it "
            f"(the newest ends at {snapshot.end_offset})"
        )


def _open_log(
    directory: str,
    disk: Disk,
    config: MetadataLogConfig,
    end: LogEnd,
    *,
    timestamp_ms: int,
    clean_shutdown: bool,
    report: Report,
) -> Log:
    return Log.load(
        directory,
        disk=disk,
        config=LogConfig(
            segment_bytes=config.segment_bytes,
            segment_ms=config.segment_ms,
            retention_ms=-1,
            retention_bytes=-1,
            max_message_bytes=config.max_batch_bytes,
            file_delete_delay_ms=0,
        ),
        topic=CLUSTER_METADATA_TOPIC,
        partition=0,
        topic_id=CLUSTER_METADATA_TOPIC_ID,
        clean_shutdown=clean_shutdown,
        recovery_point=end.end_offset,
        log_start_offset=0,
        timestamp_ms=timestamp_ms,
        files=FilePool(disk, limit=64),
        report=report,
    )


# -- helpers for appending


def _size(values: list[bytes]) -> int:
    return sum(map(len, values)) + records.RECORD_OVERHEAD_BYTES * len(values)


def _split(values: list[bytes], limit: int) -> list[list[bytes]]:
    batches: list[list[bytes]] = [[]]
    size = 0
    for value in values:
        more = len(value) + records.RECORD_OVERHEAD_BYTES
        if batches[-1] and size + more > limit:
            batches.append([])
            size = 0
        batches[-1].append(value)
        size += more
    return batches
