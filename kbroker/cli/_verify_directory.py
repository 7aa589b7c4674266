"""Checks a log directory: its identity, its metadata log, each partition against the metadata, and its checkpoints.

It reads the metadata as a starting broker does: the newest snapshot and the log after it. If the metadata cannot be
read, each partition is checked on its own.
"""

from __future__ import annotations

import re
from contextlib import closing
from typing import Final
from uuid import UUID

from kbroker.cli._verify_partition import Extent, PartitionCheck
from kbroker.cli._verify_report import Report
from kbroker.controller import records, snapshots
from kbroker.controller.metadata_log import DIRECTORY as METADATA_DIRECTORY
from kbroker.controller.metadata_log import log_segments
from kbroker.controller.quorum_state import FILE_NAME as QUORUM_STATE
from kbroker.controller.quorum_state import parse_quorum_state
from kbroker.controller.removed_topics import removed_topics
from kbroker.controller.replay import Replay
from kbroker.metadata.errors import UnusableMetadata
from kbroker.metadata.image import Image, ImageBuilder, Record
from kbroker.metadata.names import CLUSTER_METADATA_TOPIC
from kbroker.metadata.parts import (
    CLUSTER_METADATA_TOPIC_ID,
    LOST_DIRECTORY,
    MIGRATING_DIRECTORY,
    UNASSIGNED_DIRECTORY,
    PartitionImage,
    TopicImage,
)
from kbroker.runtime.ports import Disk
from kbroker.storage.batch_reader import BatchReader
from kbroker.storage.checkpoint import (
    CLEANER_CHECKPOINT,
    LOG_START_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    REPLICATION_OFFSET_CHECKPOINT,
    TopicPartition,
    parse_offsets,
    read_file,
)
from kbroker.storage.directory_names import CLEAN_SHUTDOWN, FAILED, LOCK, PARTITION, STRAY
from kbroker.storage.formatting import META_PROPERTIES, PARTITION_METADATA, DirectoryIdentity, parse_identity
from kbroker.storage.reserve import FILE_NAME as RESERVE
from kbroker.storage.segment import LOG_SUFFIX
from kbroker.storage.verifying import Progress
from kbroker.tiered import local, registry
from wire.errors import Malformed
from wire.types import uuid_to_text

CHECKPOINTS: Final = (RECOVERY_POINT_CHECKPOINT, LOG_START_CHECKPOINT, REPLICATION_OFFSET_CHECKPOINT)
_OTHERS: Final = (
    META_PROPERTIES,
    LOCK,
    CLEAN_SHUTDOWN,
    FAILED,
    RESERVE,
    snapshots.BOOTSTRAP_FILE,
    CLEANER_CHECKPOINT,
)
_OF_THE_TIER: Final = (registry.FILE_NAME, "remote-log-index-cache", local.INSIDE)
"""The second caches remote indexes, and the broker checks each when it uses it; the third is the tier itself."""
_KNOWN: Final = frozenset({*CHECKPOINTS, *_OTHERS, *_OF_THE_TIER})
_PASSING: Final = re.compile(r"\S+\.[0-9a-f]{32}-(delete|future)|.*\.tmp")
_METADATA: Final = (CLUSTER_METADATA_TOPIC, 0)
_NO_DIRECTORY: Final = frozenset({MIGRATING_DIRECTORY, UNASSIGNED_DIRECTORY, LOST_DIRECTORY})


class DirectoryCheck:
    """Checks one log directory. Errors: OSError if it cannot be read."""

    def __init__(self, disk: Disk, path: str, *, report: Report) -> None:
        self._disk = disk
        self._path = path
        self._report = report
        self._names = disk.list(path)
        self._is_clean = CLEAN_SHUTDOWN in self._names
        self._offsets = {name: dict[TopicPartition, int]() for name in CHECKPOINTS}
        self._progress: Progress = lambda _size: None

    def extent(self) -> tuple[int, int]:
        """The number of partitions to check, and of bytes to read."""
        paths = self._partition_paths().values()
        logs = [f"{path}/{name}" for path in paths for name in self._disk.list(path) if name.endswith(LOG_SUFFIX)]
        return len(paths), sum(map(self._disk.size, logs))

    def _partition_paths(self) -> dict[TopicPartition, str]:
        found = {}
        for name in self._names:
            match = PARTITION.fullmatch(name)
            if match is not None and _PASSING.fullmatch(name) is None and self._is_directory(name):
                found[match[1], int(match[2])] = f"{self._path}/{name}"
        return found

    def _is_directory(self, name: str) -> bool:
        try:
            self._disk.list(f"{self._path}/{name}")
        except NotADirectoryError:
            return False
        return True

    def check(self, progress: Progress) -> None:
        """Check everything."""
        self._progress = progress
        if not self._is_clean:
            self._report.hint(
                f"{self._path}/{CLEAN_SHUTDOWN}",
                "is missing: the shutdown was unclean, and the next start recovers the logs",
            )
        identity = self._identity()
        self._offsets = {name: self._read_offsets(name) for name in (*CHECKPOINTS, CLEANER_CHECKPOINT)}
        paths = self._partition_paths()
        self._check_names(paths)
        self._check_registry()
        image = self._metadata(paths.pop(_METADATA, None))
        extents = {}
        for key, path in sorted(paths.items()):
            # A log that is no longer compacted keeps the gaps of earlier passes.
            is_compacted = image is None or _is_compacted(image, key[0]) or key in self._offsets[CLEANER_CHECKPOINT]
            extents[key] = self._check_partition(key, path, is_compacted=is_compacted)
        if image is not None and identity is not None:
            self._compare(image, identity, paths, extents)
        for name in CHECKPOINTS:
            self._check_offsets(name, extents)

    def _check_names(self, paths: dict[TopicPartition, str]) -> None:
        for name in self._names:
            path = f"{self._path}/{name}"
            if _PASSING.fullmatch(name):
                self._report.hint(path, "is a leftover of an interrupted change; the next start removes or finishes it")
            elif STRAY.fullmatch(name):
                self._report.hint(
                    path,
                    "is a stray: a start did not find it in the metadata; the broker keeps it and does not read it",
                )
            elif name not in _KNOWN and path not in paths.values():
                self._report.add(path, "is not a file of a broker")

    def _check_registry(self) -> None:
        path = f"{self._path}/{registry.FILE_NAME}"
        if registry.FILE_NAME in self._names:
            self._report.parsed(self._disk, path, registry.parse_partitions)

    def _identity(self) -> DirectoryIdentity | None:
        path = f"{self._path}/{META_PROPERTIES}"
        if META_PROPERTIES in self._names:
            return self._report.parsed(self._disk, path, parse_identity)
        self._report.add(path, "is missing: the next start would treat the directory as new")
        return None

    def _read_offsets(self, name: str) -> dict[TopicPartition, int]:
        if name not in self._names:
            return {}
        return self._report.parsed(self._disk, f"{self._path}/{name}", parse_offsets) or {}

    # --- the metadata log ---

    def _metadata(self, path: str | None) -> Image | None:
        """The image of the committed metadata; None, after a report, if it cannot be read."""
        bootstrap = f"{self._path}/{snapshots.BOOTSTRAP_FILE}"
        if snapshots.BOOTSTRAP_FILE in self._names:
            self._read_snapshot(bootstrap, 0)
        if path is None:
            self._report.hint(
                f"{self._path}/{METADATA_DIRECTORY}", "is missing, so partitions cannot be compared with the metadata"
            )
            return None
        names = self._disk.list(path)
        own_files = frozenset(name for name in names if name.endswith(snapshots.SUFFIX)) | {QUORUM_STATE}
        before = self._report.count
        # Each batch is synced before the next one, so only the last can be incomplete; the replay below handles that.
        extent = self._check_partition(_METADATA, path, is_compacted=False, own_files=own_files)
        if extent.topic_id not in (None, CLUSTER_METADATA_TOPIC_ID):
            self._report.add(f"{path}/{PARTITION_METADATA}", "does not have the topic id of the metadata log")
        epoch = self._quorum_epoch(f"{path}/{QUORUM_STATE}", names)
        newest = self._newest_snapshot(path, names)
        if newest is None:
            return None
        builder, snapshot = newest
        segments = log_segments(path, names)
        if segments and segments[0].base_offset > snapshot.end_offset:
            text = f"begins at offset {segments[0].base_offset}, and no complete snapshot ends there or later"
            self._report.add(segments[0].path, text)
            return None
        try:
            replay = Replay(
                self._disk,
                segments,
                start_offset=snapshot.end_offset,
                highest_epoch=epoch,
                clean_shutdown=self._is_clean,
            )
            for batch in replay:
                for record in records.batch_records(batch):
                    builder.replay(record)
        except (UnusableMetadata, Malformed) as error:
            if self._report.count == before:
                self._report.add(path, str(error))
            self._report.hint(path, "cannot be replayed, so partitions are not compared with it")
            return None
        return builder.build(offset=max(extent.end_offset, snapshot.end_offset) - 1, epoch=epoch)

    def _quorum_epoch(self, path: str, names: list[str]) -> int:
        if QUORUM_STATE not in names:
            self._report.add(path, "is missing: a start would reuse an old epoch")
            return 0
        try:
            return parse_quorum_state(read_file(self._disk, path), path).leader_epoch
        except UnusableMetadata as error:
            self._report.add(path, str(error).removeprefix(f"{path} "))
            return 0

    def _newest_snapshot(self, path: str, names: list[str]) -> tuple[ImageBuilder, snapshots.SnapshotId] | None:
        """The image of the newest readable snapshot, or an empty image if there is none. This reads all snapshots."""
        newest, found = snapshots.SnapshotId(0, 0), list[Record]()
        for snapshot in snapshots.snapshot_ids(names):
            contents = self._read_snapshot(f"{path}/{snapshot.file_name}", snapshot.epoch)
            if contents is not None:
                newest, found = snapshot, contents
        builder = ImageBuilder(Image())
        try:
            for record in found:
                builder.replay(record)
        except (UnusableMetadata, Malformed) as error:
            self._report.add(f"{path}/{newest.file_name}", f"cannot be applied: {error}")
            return None
        return builder, newest

    def _read_snapshot(self, path: str, epoch: int | None = None) -> list[Record] | None:
        """The records of a snapshot; None, after a report, if it is damaged. `epoch` is the epoch in its file name."""
        before = self._report.count
        with closing(self._disk.open(path, writable=False)) as file:
            next_offset = 0
            for batch in (reader := BatchReader(file)):
                # The CRC covers neither the base offset nor the epoch.
                if batch.base_offset != next_offset:
                    text = f"the batch at offset {batch.base_offset} is where offset {next_offset} is expected"
                    self._report.add(path, text, position=reader.position)
                if epoch is not None and batch.partition_leader_epoch != epoch:
                    text = f"the batch at offset {batch.base_offset} has epoch {batch.partition_leader_epoch}"
                    self._report.add(path, f"{text}, but the file name has {epoch}", position=reader.position)
                next_offset = batch.last_offset + 1
        try:
            found = snapshots.read_snapshot(self._disk, path)
        except (Malformed, UnusableMetadata) as error:
            self._report.add(path, str(error).removeprefix(f"{path} "))
            return None
        return found if self._report.count == before else None

    # --- partitions ---

    def _check_partition(
        self, key: TopicPartition, path: str, *, is_compacted: bool, own_files: frozenset[str] = frozenset()
    ) -> Extent:
        check = PartitionCheck(self._disk, path, report=self._report, progress=self._progress, own_files=own_files)
        return check.check(
            is_compacted=is_compacted,
            log_start=self._offsets[LOG_START_CHECKPOINT].get(key, 0),
            recovery_point=None if self._is_clean else self._offsets[RECOVERY_POINT_CHECKPOINT].get(key, 0),
        )

    def _compare(
        self,
        image: Image,
        identity: DirectoryIdentity,
        paths: dict[TopicPartition, str],
        extents: dict[TopicPartition, Extent],
    ) -> None:
        """Compare the existing partitions with those in the metadata."""
        wanted = {
            (topic.name, index): topic
            for topic in image.topics_by_name.values()
            for index, partition in topic.partitions.items()
            if _belongs_here(partition, identity)
        }
        for key in sorted(wanted.keys() - paths.keys()):
            path = f"{self._path}/{key[0]}-{key[1]}"
            if not self._is_clean and key not in self._offsets[RECOVERY_POINT_CHECKPOINT]:
                self._report.hint(path, "does not exist yet: the broker was killed, and its next start creates it")
                continue
            self._report.add(path, "is missing: this node has a replica in the metadata, which would start empty")
        removed = frozenset[UUID]()
        if not self._is_clean and not paths.keys() <= wanted.keys():
            removed = removed_topics(self._path, disk=self._disk, report=lambda _text: None)
        for key, path in sorted(paths.items()):
            topic: TopicImage | None = wanted.get(key)
            if topic is None and extents[key].topic_id in removed:
                self._report.hint(path, "belongs to a deleted topic; the next start deletes it")
            elif topic is None:
                self._report.add(path, "is not a partition of this node in the metadata")
            elif extents[key].topic_id not in (None, topic.id):
                found = uuid_to_text(extents[key].topic_id or topic.id)
                self._report.add(
                    path, f"has the topic id {found}, but that of {topic.name} is {uuid_to_text(topic.id)}"
                )

    def _check_offsets(self, name: str, extents: dict[TopicPartition, Extent]) -> None:
        """Compare a checkpoint with the logs."""
        path, offsets = f"{self._path}/{name}", self._offsets[name]
        if self._is_clean and name not in self._names and extents:
            self._report.add(path, "is missing, although the shutdown was clean")
        elif self._is_clean and name == RECOVERY_POINT_CHECKPOINT:
            # The other checkpoints need not have every partition.
            for topic, index in sorted(extents.keys() - offsets.keys()):
                self._report.add(path, f"has no entry for {topic}-{index}")
        for (topic, index), offset in offsets.items():
            extent = extents.get((topic, index))
            if extent is None:
                if (topic, index) != _METADATA:
                    self._report.hint(path, f"has an entry for {topic}-{index}, which does not exist")
            elif not 0 <= offset <= extent.end_offset:
                text = f"has {offset} for {topic}-{index}, whose log is {extent.start_offset} to {extent.end_offset}"
                self._report.add(path, text)


def _belongs_here(partition: PartitionImage, identity: DirectoryIdentity) -> bool:
    if identity.node_id not in partition.replicas:
        return False
    directory = partition.directory(identity.node_id)
    return directory is None or directory in _NO_DIRECTORY or directory == identity.directory_id


def _is_compacted(image: Image, topic: str) -> bool:
    """Whether offsets may be missing between batches: by the policy of the topic, or else of any broker."""
    policy = image.topic_configs(topic).get("cleanup.policy")
    if policy is not None:
        return "compact" in policy
    return any("compact" in configs.get("log.cleanup.policy", "") for configs in image.configs.values())
