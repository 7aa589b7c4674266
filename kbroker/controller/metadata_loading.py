"""Open ``__cluster_metadata-0``: the newest complete snapshot, then the records after it.

A start deletes the leftovers of an interrupted snapshot, and ignores damaged snapshots as long as the log reaches back
to an older one. replay.py judges damage of the log.

Blocking.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final

from kbroker.config.metadata import MetadataSettings
from kbroker.controller import records, snapshots
from kbroker.controller.metadata_log import DIRECTORY, MetadataLog, log_segments
from kbroker.controller.quorum_state import FILE_NAME as QUORUM_STATE
from kbroker.controller.quorum_state import parse_quorum_state
from kbroker.controller.replay import LogSegment, Replay
from kbroker.controller.snapshots import SnapshotId
from kbroker.metadata.errors import UnusableMetadata
from kbroker.metadata.image import Image, ImageBuilder
from kbroker.metadata.names import CLUSTER_METADATA_TOPIC
from kbroker.metadata.parts import CLUSTER_METADATA_TOPIC_ID
from kbroker.runtime.ports import Disk
from kbroker.storage.checkpoint import read_file, write_atomically
from kbroker.storage.files import FilePool
from kbroker.storage.log import Log
from kbroker.storage.log_config import LogConfig
from kbroker.storage.plans import DirectoryState
from kbroker.storage.reserve import SpaceReserve
from wire.errors import KafkaError, Malformed
from wire.record_batch import RecordBatch
from wire.types import uuid_to_text

_PARTITION_METADATA: Final = "partition.metadata"
_EMPTY_LOG: Final = SnapshotId(0, 0)

Report = Callable[[str], None]


def load_metadata_log(
    root: str,
    *,
    disk: Disk,
    node_id: int | None,
    config: MetadataSettings,
    max_batch_bytes: int = records.MAX_BATCH_BYTES,
    timestamp_ms: int,
    clean_shutdown: bool = False,
    may_be_empty: bool = True,
    reserve: SpaceReserve | None = None,
    unapplied: list[RecordBatch] | None = None,
    state: DirectoryState | None = None,
    report: Report,
) -> tuple[MetadataLog, Image]:
    """Open the log under a log directory, or create it, and replay it. `may_be_empty` is False if a broker has run here
    before, because then the log must have records. node_id is the only voter, None for an observer. state is that of
    the log directory, which fails if this log cannot be written; None gives the log a state of its own.

    An observer passes the list `unapplied`. The image is then that of the snapshot, and the batches after it, which may
    not be committed, are added to the list. Damage only shortens an observer's log: it fetches the rest again.

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
        is_observer=unapplied is not None,
    )
    for batch in replay:
        if unapplied is not None:
            unapplied.append(batch)
            continue
        for record in records.batch_records(batch):
            builder.replay(record)
    end = replay.end
    epoch = max(end.epoch, snapshot.epoch)
    applied = SnapshotId(max(end.end_offset, snapshot.end_offset), epoch) if unapplied is None else snapshot
    image = builder.build(offset=applied.end_offset - 1, epoch=applied.epoch)
    if not may_be_empty and not image.metadata_version:
        raise _lost(root, "holds no records")
    if end.torn_at is not None:
        path, position = end.torn_at
        why = "it was never acknowledged" if unapplied is None else "the broker fetches it again"
        report(f"{path} ends in an unfinished batch at byte {position}; {why}, and it is removed")
    open_log = partial(
        Log,
        directory,
        disk=disk,
        config=LogConfig(
            segment_bytes=config.metadata_log_segment_bytes,
            segment_ms=config.metadata_log_segment_ms,
            retention_ms=-1,
            retention_bytes=-1,
            max_message_bytes=max_batch_bytes,
            file_delete_delay_ms=0,
        ),
        topic=CLUSTER_METADATA_TOPIC,
        partition=0,
        topic_id=CLUSTER_METADATA_TOPIC_ID,
        clean_shutdown=clean_shutdown and end.torn_at is None,
        recovery_point=end.end_offset,
        log_start_offset=0,
        timestamp_ms=timestamp_ms,
        pool=FilePool(disk, limit=64),
        state=state,
        report=report,
    )
    try:
        log = reserve.spend_on(open_log)
    except KafkaError as error:
        raise UnusableMetadata(f"the metadata log cannot be opened: {error.message}") from error
    if log.log_end_offset < snapshot.end_offset:
        log.truncate_fully_and_start_at(snapshot.end_offset)
    metadata_log = MetadataLog(
        log,
        config=config,
        max_batch_bytes=max_batch_bytes,
        epoch=max(quorum_epoch, epoch),
        snapshot_ids=snapshot_ids,
        bytes_since_snapshot=replay.size,
        last_timestamp_ms=end.timestamp_ms,
        reserve=reserve,
    )
    assert unapplied is not None or image.end_offset == log.log_end_offset, (
        f"{image.end_offset=}, {log.log_end_offset=}"
    )
    return metadata_log, image


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


def _read_quorum_epoch(disk: Disk, directory: str, node_id: int | None) -> int:
    path = f"{directory}/{QUORUM_STATE}"
    try:
        data = read_file(disk, path)
    except FileNotFoundError:
        return 0
    state = parse_quorum_state(data, path)
    if node_id is not None and state.voters and state.voters != (node_id,):
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
        for record in contents:
            builder.replay(record)
        return builder, snapshot
    return _first_image(disk, f"{directory}/{_EMPTY_LOG.file_name}"), _EMPTY_LOG


def _first_image(disk: Disk, path: str) -> ImageBuilder:
    """The state before the first record of the log: in a dynamic quorum a snapshot names the voters (KIP-853)."""
    builder = ImageBuilder(Image())
    if disk.exists(path):
        try:
            contents = snapshots.read_snapshot(disk, path)
        except Malformed as error:
            raise UnusableMetadata(f"the first snapshot cannot be read: {error}") from error
        for record in contents:
            builder.replay(record)
    return builder


def _check_reach(directory: str, segments: list[LogSegment], snapshot: SnapshotId) -> None:
    if segments and segments[0].base_offset > snapshot.end_offset:
        raise UnusableMetadata(
            f"{directory} starts at offset {segments[0].base_offset}, but no complete snapshot reaches it "
            f"(the newest ends at {snapshot.end_offset})"
        )
