"""The RemoteLogMetadataManager on the topic `__remote_log_metadata`, as Apache Kafka's own.

Who holds a tiered partition follows the one partition of the topic that tells of it. The topic is made, and followed,
from the first such partition on; before that nothing runs but a task that waits. What is asked is answered from memory,
once what was there is read; whoever asks earlier waits by `wait_until_ready`, instead of asking again and again.

    metadata_topic.py      which partition, and what the records say
    metadata_follower.py   reading one of its partitions
    metadata_publisher.py  writing into it
    metadata_snapshot.py   what spares a restart the reading
    lifecycle.py           what is known of one user partition

Nothing gives up: a topic that cannot be made yet is tried again without limit (KAFKA-19426), a record that cannot be
read is skipped. Only a topic with another number of partitions than the settings say is an error for everybody who
asks, until that changes, because nobody knows then where the records of a partition are.

Source  KIP-405; TopicBasedRemoteLogMetadataManager of Apache Kafka 4.3.1
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import trio

from kbroker.config.tier import TierSettings
from kbroker.metadata.names import REMOTE_LOG_METADATA_TOPIC
from kbroker.runtime.log import logger
from kbroker.runtime.net_ports import Env
from kbroker.tiered.api import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
    RemotePartitionDeleteMetadata,
    RemoteStorageError,
    RetriableRemoteStorageError,
    TopicIdPartition,
)
from kbroker.tiered.lifecycle import MetadataEvent, RemoteLogMetadataCache
from kbroker.tiered.metadata_follower import Broadcast, FollowedPartition, MetadataCounters, UserPartition
from kbroker.tiered.metadata_publisher import MetadataPublisher
from kbroker.tiered.metadata_topic import metadata_partition, partition_of
from kbroker.tiered.ports import MetadataTopic
from wire.errors import KafkaError

MAX_RETRY_MS: Final = 5_000

log = logger(__name__)


class _Followed:
    """One partition of the topic: its reading half, its writing half, and how to end them."""

    __slots__ = ("partition", "publisher", "scope")

    def __init__(self, partition: FollowedPartition, publisher: MetadataPublisher) -> None:
        self.partition = partition
        self.publisher = publisher
        self.scope = trio.CancelScope()


class TopicRemoteLogMetadataManager:
    """See the module's text, and `kbroker.tiered.api.RemoteLogMetadataManager` for what it does.

    Shape   failure says why the topic cannot be used now, "" while it can or nobody needs it; counters are of all that
            was read
    """

    def __init__(self, env: Env, topic: MetadataTopic, settings: TierSettings) -> None:
        self.partition_count = settings.topic_num_partitions
        self.failure = ""
        self.counters = MetadataCounters()
        self._env = env
        self._topic = topic
        self._wait_ms = settings.consume_wait_ms
        self._retry_ms = settings.initialization_retry_interval_ms
        self._held: dict[UserPartition, TopicIdPartition] = {}
        self._followed: dict[int, _Followed] = {}
        self._has_topic = False
        self._is_unusable = False
        self._is_closed = False
        self._wanted = Broadcast()
        self._progress = Broadcast()

    # --- what is followed ---------------------------------------------------------------------------------------------

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Have the topic, follow what has to be followed, and write changes, until cancelled."""
        try:
            async with trio.open_nursery() as nursery:
                task_status.started()
                while True:
                    if not self._held or (self._has_topic and not self._missing()):
                        await self._wanted.wait()
                    elif await self._have_topic():
                        for index in sorted(self._missing()):
                            self._start(index, nursery)
        finally:
            self._is_closed = True
            for followed in self._followed.values():
                followed.publisher.end("the manager of the tier's metadata has ended")
            self._progress.notify()

    def _index(self, partition: TopicIdPartition) -> int:
        return metadata_partition(partition, self.partition_count)

    def _missing(self) -> set[int]:
        return {self._index(partition) for partition in self._held.values()} - self._followed.keys()

    async def _have_topic(self) -> bool:
        """Make sure of the topic, and try again without limit; False if meanwhile nobody needs it any more."""
        delay_ms = self._retry_ms
        while self._held and not self._has_topic:
            count: int | None = None
            try:
                count = await self._topic.ensure()
                failure = "" if count == self.partition_count else (
                    f"{REMOTE_LOG_METADATA_TOPIC} has {count} partitions, but "
                    f"remote.log.metadata.topic.num.partitions is {self.partition_count}"
                )  # fmt: skip
            except KafkaError as error:
                failure = f"{REMOTE_LOG_METADATA_TOPIC} cannot be had yet: {error.message or error.code.name}"
            if failure and failure != self.failure:
                log.warning("the tier has no metadata", why=failure)
            self.failure, self._is_unusable, self._has_topic = failure, bool(failure and count), not failure
            self._progress.notify()
            if failure:
                await self._env.sleep_ms(delay_ms)
                delay_ms = min(2 * delay_ms, MAX_RETRY_MS)
        return self._has_topic

    def _start(self, index: int, nursery: trio.Nursery) -> None:
        partition = FollowedPartition(
            self._env,
            self._topic,
            index,
            partition_count=self.partition_count,
            retry_ms=self._retry_ms,
            counters=self.counters,
            on_progress=self._progress.notify,
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
        for held in self._held.values():
            if self._index(held) == index:
                partition.hold(held)
        self._followed[index] = followed = _Followed(partition, publisher)
        nursery.start_soon(self._follow, followed)

    async def _follow(self, followed: _Followed) -> None:
        with followed.scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(followed.partition.follow)
                nursery.start_soon(followed.publisher.run)
        # Only a partition of which nothing is held any more ends so; a cancelled `run` does not come here.
        followed.publisher.end("the partition is not held any more")
        await followed.partition.write_snapshot()
        del self._followed[followed.partition.index]
        self._wanted.notify()

    def _on_lost(self) -> None:
        """A partition of the topic is not there: perhaps none is, and the topic has to be made again."""
        self._has_topic = False
        self._wanted.notify()

    async def on_partition_leadership_changes(
        self, leaders: Iterable[TopicIdPartition], followers: Iterable[TopicIdPartition]
    ) -> None:
        """Follow these partitions from now on; leaders and followers need the same."""
        for partition in (*leaders, *followers):
            self._held[partition.topic_id, partition.partition] = partition
            followed = self._followed.get(self._index(partition))
            if followed is not None and not followed.scope.cancel_called:
                followed.partition.hold(partition)
        self._wanted.notify()
        self._progress.notify()

    async def on_stop_partitions(self, partitions: Iterable[TopicIdPartition]) -> None:
        """Forget these partitions."""
        for partition in partitions:
            self._held.pop((partition.topic_id, partition.partition), None)
            followed = self._followed.get(self._index(partition))
            if followed is not None:
                followed.partition.let_go(partition)
                if followed.partition.holds_nothing:
                    followed.scope.cancel()
        self._wanted.notify()
        self._progress.notify()

    async def close(self) -> None:
        """Write down what spares the next start its reading. After or before `run` has ended, but with no change under
        way.
        """
        self._is_closed = True
        self._progress.notify()
        for followed in list(self._followed.values()):
            await followed.partition.write_snapshot()

    # --- readiness ----------------------------------------------------------------------------------------------------

    def is_ready(self, partition: TopicIdPartition) -> bool:
        """Whether what was in the topic when the partition was taken on has been read."""
        followed = self._followed.get(self._index(partition))
        return followed is not None and followed.partition.is_ready(partition)

    async def wait_until_ready(self, partition: TopicIdPartition) -> None:
        """Return once is_ready, however long that takes.

        Errors  RemoteStorageError for a partition that is not held (any more), and for a topic that is of no use
        """
        await trio.lowlevel.checkpoint()
        while not self.is_ready(partition):
            if (partition.topic_id, partition.partition) not in self._held:
                raise RemoteStorageError(f"{_name(partition)} is not held here")
            if self._is_unusable:
                raise RemoteStorageError(self.failure)
            if self._is_closed:
                raise RetriableRemoteStorageError("the manager of the tier's metadata has ended")
            await self._progress.wait()

    @property
    def waits_for(self) -> str:
        """What keeps partitions from being ready: for the health of the broker. "" when all are."""
        if self.failure:
            return self.failure
        late = sum(not self.is_ready(partition) for partition in self._held.values())
        return f"{late} partitions wait until {REMOTE_LOG_METADATA_TOPIC} has been read" if late else ""

    @property
    def followed(self) -> list[FollowedPartition]:
        """The partitions of the topic that are followed, to see how far they are and what they skipped."""
        return [each.partition for each in self._followed.values()]

    # --- changes ------------------------------------------------------------------------------------------------------

    async def add_remote_log_segment_metadata(self, metadata: RemoteLogSegmentMetadata) -> None:
        """Note that a copy begins; returns once that is durable and the questions know it.

        Errors  ValueError where the state is not COPY_SEGMENT_STARTED; RetriableRemoteStorageError
        """
        if metadata.state is not RemoteLogSegmentState.COPY_SEGMENT_STARTED:
            raise ValueError(f"a copy begins as COPY_SEGMENT_STARTED, not as {metadata.state.name}")
        await self._publish(metadata)

    async def update_remote_log_segment_metadata(self, update: RemoteLogSegmentMetadataUpdate) -> None:
        """Note a later state, likewise. Errors: RemoteResourceNotFound (no such segment), ValueError (no such
        transition), RetriableRemoteStorageError.
        """
        await self._publish(update)

    async def put_remote_partition_delete_metadata(self, metadata: RemotePartitionDeleteMetadata) -> None:
        """Note a step in the deletion of a partition, likewise. Errors: ValueError, RetriableRemoteStorageError."""
        await self._publish(metadata)

    async def _publish(self, event: MetadataEvent) -> None:
        partition = partition_of(event)
        await self.wait_until_ready(partition)
        await self._followed[self._index(partition)].publisher.publish(event)

    # --- questions ----------------------------------------------------------------------------------------------------

    def _cache(self, partition: TopicIdPartition) -> RemoteLogMetadataCache:
        if not self.is_ready(partition):
            raise RetriableRemoteStorageError(self.failure or f"the tier's metadata of {_name(partition)} is not read")
        return self._followed[self._index(partition)].partition.cache(partition)

    def remote_log_segment_metadata(
        self, partition: TopicIdPartition, leader_epoch: int, offset: int
    ) -> RemoteLogSegmentMetadata | None:
        """The finished segment that holds `offset` as it was written in `leader_epoch`."""
        return self._cache(partition).remote_log_segment_metadata(leader_epoch, offset)

    def next_segment_with_txn_index(
        self, partition: TopicIdPartition, leader_epoch: int, offset: int
    ) -> RemoteLogSegmentMetadata | None:
        """The first finished segment from `offset` on in this epoch that may have a transaction index."""
        return self._cache(partition).next_segment_with_txn_index(leader_epoch, offset)

    def highest_offset_for_epoch(self, partition: TopicIdPartition, leader_epoch: int) -> int | None:
        """The last offset of this epoch that was ever in a finished segment."""
        return self._cache(partition).highest_offset_for_epoch(leader_epoch)

    def list_remote_log_segments(
        self, partition: TopicIdPartition, leader_epoch: int | None = None
    ) -> list[RemoteLogSegmentMetadata]:
        """Those that are not deleted; of one epoch by start_offset, of all in no order."""
        return self._cache(partition).list_remote_log_segments(leader_epoch)

    def remote_log_size(self, partition: TopicIdPartition, leader_epoch: int) -> int:
        """Bytes of the segments that list_remote_log_segments gives for the epoch."""
        return self._cache(partition).remote_log_size(leader_epoch)


def _name(partition: TopicIdPartition) -> str:
    return f"{partition.topic}-{partition.partition}"
