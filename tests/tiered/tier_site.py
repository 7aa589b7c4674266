"""Shared by tests of the manager: partitions with real logs, a tier and its metadata, all on one disk.

A site is the part of a broker that matters here: the log directory, the partitions and their locks. It can be stopped,
killed, and opened again on the resulting disk.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from typing import Any
from uuid import NAMESPACE_OID, UUID, uuid5

import trio
import trio.testing

from kbroker.broker.locks import PartitionLocks
from kbroker.config.tier_settings import TierSettings
from kbroker.metadata.image import PartitionImage
from kbroker.replication.partition import Partition
from kbroker.runtime.cautious_clock import CautiousClock
from kbroker.runtime.ports import Disk
from kbroker.storage.checkpoint import TopicPartition
from kbroker.storage.housekeeping import apply_retention_once
from kbroker.storage.log import Log
from kbroker.storage.log_config import LogConfig
from kbroker.storage.log_directory import LogDirectory
from kbroker.testing.disk import SimulatedDisk
from kbroker.testing.env import MemoryEnv
from kbroker.testing.tier_checker import (
    TierState,
    complaints_about,
    complaints_about_bytes,
    complaints_about_objects,
)
from kbroker.tiered.api import (
    IndexType,
    LogSegmentData,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
    RemoteResourceNotFound,
    RemoteStorageError,
)
from kbroker.tiered.index_cache import RemoteIndexCache
from kbroker.tiered.local import LocalRemoteStorage
from kbroker.tiered.manager import RemoteLogManager
from kbroker.tiered.metadata_manager import TopicRemoteLogMetadataManager
from kbroker.tiered.partition import RemotePartition
from kbroker.tiered.tools import id_of
from tests.storage.logs import batch
from tests.tiered.log_metadata_topic import LogMetadataTopic

DATA, TIER, METADATA = "/data", "/tier", "/metadata"
INTERVAL_MS = 30_000


def settings(**given: Any) -> TierSettings:
    configs = {
        "remote.log.metadata.topic.num.partitions": "2",
        "remote.log.metadata.consume.wait.ms": "1000",
    }
    return replace(TierSettings(remote_log_storage_manager_class_name=None, rlmm_configs=configs), **given)


def tiered_config(**given: Any) -> LogConfig:
    """Segments of about four batches, which are deleted locally once they are copied."""
    defaults = {"remote_storage_enable": True, "segment_bytes": 800, "file_delete_delay_ms": 0}
    return LogConfig(**{**defaults, "local_retention_bytes": 0, "retention_ms": -1, **given})


class FaultyStorage(LocalRemoteStorage):
    """The directory as the tier, with failures on demand.

    Shape  each list has errors for the next calls, None for a success; with `after` a copy fails after its bytes were
           stored; while `down` is not None, every call fails
    Note   it cannot report free space
    """

    expect_room = None  # type: ignore[assignment]

    def __init__(self, disk: Disk) -> None:
        super().__init__(disk)
        self.copies: list[RemoteStorageError | Exception | None] = []
        self.deletions: list[RemoteStorageError | None] = []
        self.down: RemoteStorageError | None = None
        self.after = False
        self.custom_metadata: bytes | None = None
        self.copied: list[int] = []
        self.deleted: list[int] = []
        self.undeletable: set[int] = set()

    def copy_log_segment_data(self, metadata: RemoteLogSegmentMetadata, data: LogSegmentData) -> bytes | None:
        error = self.copies.pop(0) if self.copies else None
        error = self.down or error
        if error is not None and not self.after:
            raise error
        super().copy_log_segment_data(metadata, data)
        if error is not None:
            raise error
        self.copied.append(metadata.start_offset)
        return self.custom_metadata

    def fetch_index(self, metadata: RemoteLogSegmentMetadata, index_type: IndexType) -> bytes:
        if self.down is not None:
            raise self.down
        if not self._was_there:
            raise RemoteResourceNotFound("nothing was ever copied")
        return super().fetch_index(metadata, index_type)

    def delete_log_segment_data(self, metadata: RemoteLogSegmentMetadata) -> None:
        error = self.deletions.pop(0) if self.deletions else None
        error = self.down or error
        if metadata.start_offset in self.undeletable:
            error = RemoteStorageError("it is held by law")
        if error is not None:
            raise error
        super().delete_log_segment_data(metadata)
        self.deleted.append(metadata.start_offset)


class Site:
    """See the module's docstring. `written` has every appended batch, by base_offset, for each partition."""

    def __init__(
        self,
        disk: Disk | None = None,
        *,
        config: LogConfig | None = None,
        tier: TierSettings | None = None,
        storage: FaultyStorage | None = None,
        written: dict[TopicPartition, dict[int, bytes]] | None = None,
        seed: int = 0,
        leader_epoch: int = 0,
        removed: frozenset[UUID] = frozenset(),
    ) -> None:
        """`removed` are the topics that the metadata log reports as removed."""
        self.disk: Disk = disk or SimulatedDisk()
        self.env = MemoryEnv(self.disk, seed=seed)
        self.config = config or tiered_config()
        self.tier = tier or settings()
        self.reports: list[str] = []
        self.directory = LogDirectory(
            DATA, disk=self.disk, node_id=1, new_uuid=self.env.new_uuid, report=self.reports.append
        )
        self.topic = LogMetadataTopic(self.env, METADATA, partition_count=2)
        self.storage = storage or FaultyStorage(self.disk)
        self.storage.configure({"dir": TIER, "log.dir": DATA})
        self.metadata = TopicRemoteLogMetadataManager(self.env, self.topic, self.tier)
        self.indexes = RemoteIndexCache(DATA, self.storage, disk=self.disk, now_ms=self.env.now_ms, max_bytes=1 << 20)
        self.partitions: dict[TopicPartition, Partition] = {}
        self.topic_ids: set[UUID] = set()
        self.removed: set[UUID] = set()
        self.recorded_removals = removed
        self.written = written if written is not None else {}
        self.woken: list[TopicPartition] = []
        self.starts_written = 0
        self.leader_epoch = leader_epoch
        self._locks, self._kept = PartitionLocks(), PartitionLocks()
        self.manager = RemoteLogManager(
            self.env,
            self.tier,
            storage=self.storage,
            metadata=self.metadata,
            indexes=self.indexes,
            partitions=self,
            broker_id=1,
            directory=DATA,
            find_removed=lambda: self.recorded_removals,
        )

    # What the manager asks of a broker

    def find_partition(self, key: TopicPartition) -> Partition | None:
        return self.partitions.get(key)

    def locked(self, log: Log) -> AbstractAsyncContextManager[object]:
        return self._locks.holding((log.topic, log.partition))

    def kept(self, log: Log) -> AbstractAsyncContextManager[object]:
        return self._kept.holding((log.topic, log.partition))

    def wake(self, key: TopicPartition) -> None:
        self.woken.append(key)

    async def write_log_starts(self) -> None:
        self.starts_written += 1
        await self.env.run_blocking(self.directory.checkpoints.write_log_starts)

    # What the loops of the storage ask

    def high_watermark(self, log: Log) -> int:
        return self.partitions[log.topic, log.partition].known_high_watermark

    def highest_offset_in_remote_storage(self, log: Log) -> int | None:
        remote = self.partitions[log.topic, log.partition].remote
        return None if remote is None else remote.highest_offset_in_remote_storage

    # What a test does

    def add(self, topic: str = "orders", index: int = 0, *, topic_id: UUID | None = None, **config: Any) -> Partition:
        """Open a partition as its leader."""
        topic_id = topic_id or uuid5(NAMESPACE_OID, topic)
        chosen = replace(self.config, **config)
        log = self.directory.open_log(
            topic, index, topic_id=topic_id, config=chosen, timestamp_ms=self.env.timestamp_ms()
        )
        partition = Partition(broker_id=1, topic=topic, topic_id=topic_id, index=index, log=log)
        self.partitions[partition.key] = partition
        self.topic_ids.add(topic_id)
        self.lead(partition)
        return partition

    def lead(self, partition: Partition, *, leader: int = 1) -> None:
        """Start another leader epoch."""
        self.leader_epoch += 1
        partition.apply(
            PartitionImage((1,), (1,), leader=leader, leader_epoch=self.leader_epoch, partition_epoch=self.leader_epoch)
        )

    def append(self, partition: Partition, count: int, *, size: int = 100, age_ms: int = 0) -> None:
        """Append single records, committed at once."""
        written = self.written.setdefault(partition.key, {})
        for _ in range(count):
            now_ms = self.env.timestamp_ms()
            # One millisecond after the previous one: the clock does not advance while nothing sleeps.
            data = batch(timestamp=now_ms - age_ms + partition.log.log_end_offset, size=size)
            plan = partition.log.append(data, leader_epoch=partition.leader_epoch, timestamp_ms=now_ms)
            written[plan.first_offset] = bytes(plan.data)
            partition.on_append()

    async def retain(self, partition: Partition) -> None:
        """Run retention once for one log."""
        clock = CautiousClock(self.env, report=self.reports.append)
        await apply_retention_once(self.env, self, partition.log, clock)
        partition.log.unlink_doomed(self.env.now_ms())

    def close_segment(self, partition: Partition) -> None:
        partition.log.roll(timestamp_ms=self.env.timestamp_ms())

    async def changed(self) -> None:
        """Pass the current tiered partitions to the manager."""
        tiered = [key for key, one in self.partitions.items() if one.log.config.remote_storage_enable]
        await self.manager.on_change(tiered, topic_ids=frozenset(self.topic_ids), removed=self.removed)
        self.removed.clear()

    def reconfigure(self, partition: Partition, **config: Any) -> None:
        partition.reconfigure(replace(partition.log.config, **config))

    def delete_topic(self, partition: Partition, *, forgets_id: bool = True) -> None:
        """Delete a partition's topic, and its files immediately."""
        del self.partitions[partition.key]
        if forgets_id:
            self.topic_ids.discard(partition.topic_id)
            self.removed.add(partition.topic_id)
            self.recorded_removals |= {partition.topic_id}
        self.directory.delete_log(*partition.key, unique_id=self.env.new_uuid(), now_ms=self.env.now_ms(), delay_ms=0)

    @asynccontextmanager
    async def at_work(self, *, stops: bool = True) -> AsyncIterator[None]:
        """Run the manager and its metadata; without `stops` they are killed at the end."""
        async with trio.open_nursery() as nursery:
            await nursery.start(self.metadata.run)
            await nursery.start(self.manager.run)
            await self.changed()
            await self.settle()
            yield
            if stops:
                await self.manager.stop()
                await self.metadata.close()
            nursery.cancel_scope.cancel()

    def close(self) -> None:
        """Stop cleanly."""
        self.topic.close()
        marks = {key: one.known_high_watermark for key, one in self.partitions.items()}
        self.directory.close(high_watermarks=marks)

    def again(self, disk: Disk | None = None, **given: Any) -> Site:
        """Another site on the disk's content, or on what a crash left of it."""
        chosen: dict[str, Any] = {
            "config": self.config,
            "tier": self.tier,
            "written": self.written,
            "leader_epoch": self.leader_epoch,
            "removed": self.recorded_removals,
        }
        chosen["seed"] = self.leader_epoch  # its ids are others
        return Site(disk or self.disk, **{**chosen, **given})

    async def have_metadata_topic(self) -> None:
        """Create the metadata topic, durably, as the controller does."""
        await self.topic.ensure()
        for path in ("/", METADATA, *(log.directory for log in self.topic.logs)):
            self.disk.sync_directory(path)

    async def settle(self) -> None:
        """Run everything that can run now."""
        await trio.testing.wait_all_tasks_blocked()

    async def rounds(self, count: int = 1) -> None:
        """Run this number of rounds of every task."""
        for _ in range(count):
            await trio.sleep(INTERVAL_MS / 1000 + 1)
            await self.settle()

    # What it finds

    def segments(self, partition: Partition) -> list[RemoteLogSegmentMetadata]:
        return sorted(
            self.metadata.list_remote_log_segments(id_of(partition)), key=lambda one: (one.start_offset, one.state)
        )

    def finished(self, partition: Partition) -> list[int]:
        """The start offsets of the readable segments in the tier."""
        state = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
        return [one.start_offset for one in self.segments(partition) if one.state is state]

    def remote(self, partition: Partition) -> RemotePartition:
        assert partition.remote is not None
        return partition.remote

    def objects(self) -> set[UUID]:
        """The ids of segments that have objects in the tier."""
        return {one.segment_id for one in self.storage.list_objects() if one.segment_id is not None}

    def complaints(self, partition: Partition, *, orphans: bool = True) -> list[str]:
        """Violations of K9."""
        found: list[str] = []
        segments = self.segments(partition)
        remote = partition.remote
        stable = partition.last_stable_offset
        assert stable is not None
        found += complaints_about(
            TierState.of(
                partition.log,
                last_stable_offset=stable,
                highest_remote=None if remote is None else remote.highest_offset_in_remote_storage,
                segments=segments,
            )
        )
        stored = {}
        for one in segments:
            if one.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED:
                with self.storage.fetch_log_segment(one, 0) as stream:
                    stored[one.remote_log_segment_id.id] = stream.read()
        written = self.written.get(partition.key, {})
        found += complaints_about_bytes(segments, stored, written, partition.log.leader_epochs.entries)
        if orphans:
            everything = [each for one in self.partitions.values() for each in self.segments(one)]
            found += complaints_about_objects(self.objects(), everything)
        return found


def bases(site: Site, key: tuple[str, int] = ("orders", 0)) -> list[int]:
    """The base offsets of the local segments of a partition."""
    return [segment.base_offset for segment in site.partitions[key].log.segments]
