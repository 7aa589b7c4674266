"""The RemoteLogMetadataManager that stores its data in the topic `__remote_log_metadata`, as Apache Kafka's does.

A broker that holds a tiered partition follows the one partition of the topic that has its metadata. The topic is
created and followed from the first such partition on; before that there is only one waiting task. Queries are answered
from memory once the existing records are read. Before that, callers wait with `wait_until_ready` instead of polling.

    metadata_topic.py      assignment to partitions, and the record format
    metadata_follower.py   reads one partition of the topic
    metadata_publisher.py  writes to it
    metadata_snapshot.py   saves reading at a restart
    lifecycle.py           the state of one user partition

Errors are retried without limit: a topic that cannot be created yet is retried (KAFKA-19426), an unreadable record is
skipped. There is one exception. If the topic's number of partitions differs from the settings, all queries fail until
that changes, because the assignment of user partitions to its partitions is then unknown.

Source  KIP-405; TopicBasedRemoteLogMetadataManager of Apache Kafka 4.3.1
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

import trio

from kbroker.config.tier_settings import TierSettings
from kbroker.metadata.names import REMOTE_LOG_METADATA_TOPIC
from kbroker.runtime.event_log import get_logger
from kbroker.runtime.net_ports import Env
from kbroker.runtime.retrying import BackOff
from kbroker.tiered.api import (
    STARTED,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteStorageError,
    RetriableRemoteStorageError,
    TopicIdPartition,
)
from kbroker.tiered.lifecycle import MetadataEvent, RemoteLogMetadataCache
from kbroker.tiered.metadata_follower import FollowedPartition, MetadataCounters
from kbroker.tiered.metadata_publisher import MetadataPublisher
from kbroker.tiered.metadata_topic import metadata_partition
from kbroker.tiered.ports import MetadataTopic
from wire.errors import KafkaError

MAX_RETRY_MS: Final = 5_000

logger = get_logger(__name__)


class _Followed(NamedTuple):
    """One partition of the topic: its reader, its writer, and the scope that ends them."""

    partition: FollowedPartition
    publisher: MetadataPublisher
    scope: trio.CancelScope


class TopicRemoteLogMetadataManager:
    """See the module's docstring, and `kbroker.tiered.api.RemoteLogMetadataManager` for the methods.

    Shape   failure says why the topic cannot be used now, "" if it can or is not needed; counters are over all
            partitions
    """

    def __init__(self, env: Env, topic: MetadataTopic, settings: TierSettings) -> None:
        self.partition_count = settings.of_metadata_topic("topic.num.partitions")
        self.failure = ""
        self.counters = MetadataCounters()
        self._env = env
        self._topic = topic
        self._wait_ms = settings.of_metadata_topic("consume.wait.ms")
        self._retry_ms = settings.of_metadata_topic("initialization.retry.interval.ms")
        self._held: set[TopicIdPartition] = set()
        self._followed: dict[int, _Followed] = {}
        self._has_topic = False
        self._is_unusable = False
        self._is_closed = False
        self._wanted = trio.lowlevel.ParkingLot()
        self._progress = trio.lowlevel.ParkingLot()

    # --- following ----------------------------------------------------------------------------------------------------

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Create the topic if needed, follow its partitions, and write changes, until cancelled."""
        try:
            async with trio.open_nursery() as nursery:
                task_status.started()
                while True:
                    if not self._held or (self._has_topic and not self._missing()):
                        await self._wanted.park()
                    elif await self._have_topic():
                        for index in sorted(self._missing()):
                            self._start(index, nursery)
        finally:
            self._is_closed = True
            for followed in self._followed.values():
                followed.publisher.end("the metadata manager of the tier has ended")
            self._progress.unpark_all()

    def _index(self, partition: TopicIdPartition) -> int:
        return metadata_partition(partition, self.partition_count)

    def _missing(self) -> set[int]:
        return {self._index(partition) for partition in self._held} - self._followed.keys()

    async def _have_topic(self) -> bool:
        """Ensure the topic exists; retry without limit. False if no partition needs it any more."""
        back_off = BackOff(self._retry_ms)
        while self._held and not self._has_topic:
            count: int | None = None
            try:
                count = await self._topic.ensure()
                failure = "" if count == self.partition_count else (
                    f"{REMOTE_LOG_METADATA_TOPIC} has {count} partitions, but "
                    f"remote.log.metadata.topic.num.partitions is {self.partition_count}"
                )  # fmt: skip
            except KafkaError as error:
                failure = f"{REMOTE_LOG_METADATA_TOPIC} cannot be created yet: {error.message or error.code.name}"
            if failure and failure != self.failure:
                logger.warning("the tier's metadata are unavailable", why=failure)
            self.failure, self._is_unusable, self._has_topic = failure, bool(failure and count), not failure
            self._progress.unpark_all()
            if failure:
                await self._env.sleep_ms(back_off.next_ms(MAX_RETRY_MS))
        return self._has_topic

    def _start(self, index: int, nursery: trio.Nursery) -> None:
        partition = FollowedPartition(
            self._env,
            self._topic,
            index,
            partition_count=self.partition_count,
            retry_ms=self._retry_ms,
            counters=self.counters,
            progress=self._progress,
            on_lost=self._on_lost,
        )
        publisher = MetadataPublisher(
            self._env,
            self._topic,
            partition,
            wait_ms=self._wait_ms,
            retry_ms=self._retry_ms,
            progress=self._progress,
        )
        for held in self._held:
            if self._index(held) == index:
                partition.hold(held)
        self._followed[index] = followed = _Followed(partition, publisher, trio.CancelScope())
        nursery.start_soon(self._follow, followed)

    async def _follow(self, followed: _Followed) -> None:
        with followed.scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(followed.partition.follow)
                nursery.start_soon(followed.publisher.run)
        # Reached only if no partition is held any more; a cancelled `run` does not get here.
        followed.publisher.end("the partition is not held any more")
        await followed.partition.write_snapshot()
        del self._followed[followed.partition.index]
        self._wanted.unpark_all()

    def _on_lost(self) -> None:
        """Check the topic again: one of its partitions is missing, and the topic may have to be created again."""
        self._has_topic = False
        self._wanted.unpark_all()

    async def on_partition_leadership_changes(
        self, leaders: Iterable[TopicIdPartition], followers: Iterable[TopicIdPartition]
    ) -> None:
        """Follow these partitions; leaders and followers are treated the same."""
        for partition in (*leaders, *followers):
            self._held.add(partition)
            followed = self._followed.get(self._index(partition))
            if followed is not None and not followed.scope.cancel_called:
                followed.partition.hold(partition)
        self._wanted.unpark_all()
        self._progress.unpark_all()

    async def on_stop_partitions(self, partitions: Iterable[TopicIdPartition]) -> None:
        """Forget these partitions."""
        for partition in partitions:
            self._held.discard(partition)
            followed = self._followed.get(self._index(partition))
            if followed is not None:
                followed.partition.let_go(partition)
                if followed.partition.holds_nothing:
                    followed.scope.cancel()
        self._wanted.unpark_all()
        self._progress.unpark_all()

    async def close(self) -> None:
        """Write snapshots, so that the next start has less to read. Call it before or after the end of `run`, while no
        change is in progress.
        """
        self._is_closed = True
        self._progress.unpark_all()
        for followed in list(self._followed.values()):
            await followed.partition.write_snapshot()

    # --- readiness ----------------------------------------------------------------------------------------------------

    def is_ready(self, partition: TopicIdPartition) -> bool:
        """Whether everything is read that was in the topic when the broker started to hold the partition."""
        followed = self._followed.get(self._index(partition))
        return followed is not None and followed.partition.is_ready(partition)

    async def wait_until_ready(self, partition: TopicIdPartition) -> None:
        """Return once is_ready, without a time limit.

        Errors  RemoteStorageError for a partition that is not held (any more), and if the topic cannot be used
        """
        await trio.lowlevel.checkpoint()
        while not self.is_ready(partition):
            if partition not in self._held:
                raise RemoteStorageError(f"{partition.name} is not held here")
            if self._is_unusable:
                raise RemoteStorageError(self.failure)
            if self._is_closed:
                raise RetriableRemoteStorageError("the metadata manager of the tier has ended")
            await self._progress.park()

    @property
    def waits_for(self) -> str:
        """Why partitions are not ready yet, for the broker's health; "" if all are ready."""
        if self.failure:
            return self.failure
        late = sum(not self.is_ready(partition) for partition in self._held)
        return f"{late} partitions wait until {REMOTE_LOG_METADATA_TOPIC} has been read" if late else ""

    @property
    def followed(self) -> list[FollowedPartition]:
        """The followed partitions of the topic, for positions and skipped records."""
        return [each.partition for each in self._followed.values()]

    # --- changes ------------------------------------------------------------------------------------------------------

    async def add_remote_log_segment_metadata(self, metadata: RemoteLogSegmentMetadata) -> None:
        """Record that a copy starts; returns once that is durable and visible to queries.

        Errors  ValueError if the state is not COPY_SEGMENT_STARTED; RetriableRemoteStorageError
        """
        if metadata.state is not STARTED:
            raise ValueError(f"a copy begins as COPY_SEGMENT_STARTED, not as {metadata.state.name}")
        await self._publish(metadata)

    async def update_remote_log_segment_metadata(self, update: RemoteLogSegmentMetadataUpdate) -> None:
        """Record a later state in the same way. Errors: RemoteResourceNotFound (no such segment), ValueError (no such
        transition), RetriableRemoteStorageError.
        """
        await self._publish(update)

    async def _publish(self, event: MetadataEvent) -> None:
        partition = event.remote_log_segment_id.topic_id_partition
        await self.wait_until_ready(partition)
        await self._followed[self._index(partition)].publisher.publish(event)

    # --- queries ------------------------------------------------------------------------------------------------------

    def _cache(self, partition: TopicIdPartition) -> RemoteLogMetadataCache:
        if not self.is_ready(partition):
            raise RetriableRemoteStorageError(self.failure or f"the tier's metadata of {partition.name} are not read")
        return self._followed[self._index(partition)].partition.cache(partition)

    def remote_log_segment_metadata(
        self, partition: TopicIdPartition, leader_epoch: int, offset: int
    ) -> RemoteLogSegmentMetadata | None:
        """The finished segment that contains `offset` as written in `leader_epoch`."""
        return self._cache(partition).remote_log_segment_metadata(leader_epoch, offset)

    def next_segment_with_txn_index(
        self, partition: TopicIdPartition, leader_epoch: int, offset: int
    ) -> RemoteLogSegmentMetadata | None:
        """The first finished segment at or after `offset` in this epoch that may have a transaction index."""
        return self._cache(partition).next_segment_with_txn_index(leader_epoch, offset)

    def highest_offset_for_epoch(self, partition: TopicIdPartition, leader_epoch: int) -> int | None:
        """The last offset of this epoch that was ever in a finished segment."""
        return self._cache(partition).highest_offset_for_epoch(leader_epoch)

    def list_remote_log_segments(self, partition: TopicIdPartition) -> list[RemoteLogSegmentMetadata]:
        """The segments that are not deleted."""
        return self._cache(partition).list_remote_log_segments()
