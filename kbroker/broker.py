"""The broker as its handlers see it: metadata, partitions, and what may wait on them. It knows no socket.

Theory of operation: between two awaits a trio task is alone, so a decision and its effect need no lock. A small append runs
inline from its plan to its commit. A big one leaves the event loop for its write, and holds its partition's lock meanwhile,
so that nobody else plans on top of it; whoever finds the lock taken waits in line.

Source: decisions 1, 3, 11 and 14 of ARCHITECTURE.md.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from uuid import UUID

import trio

from kbroker.config import Settings
from kbroker.config.describe import ConfigEntry, describe_broker, describe_cluster_defaults, describe_topic
from kbroker.controller.auto_creation import auto_creation_request, may_create
from kbroker.controller.tasks import ControllerClient
from kbroker.metadata.answers import Viewpoint
from kbroker.metadata.delta import Delta
from kbroker.metadata.image import BROKER_RESOURCE, TOPIC_RESOURCE, Endpoint, Image
from kbroker.metadata.names import topic_name_fault
from kbroker.replication.fetch_session import FetchedPartition, FetchSessions
from kbroker.replication.partition import Partition
from kbroker.replication.replicas import Replicas
from kbroker.runtime.log import logger
from kbroker.runtime.net_ports import Env
from kbroker.runtime.purgatory import Purgatory
from kbroker.storage.checkpoint import TopicPartition
from kbroker.storage.log import Log
from kbroker.storage.validation import ProducedBatch, is_cheap, validate_produced
from wire.errors import ErrorCode, KafkaError
from wire.types import ZERO_UUID

INLINE_WRITE_BYTES = 128 * 1024
"""A write up to this size takes less than the two thread hops that it would cost to leave the loop for it."""

HIGH_WATERMARK = -1
MAX_SESSION_ID = 2**31 - 1

log = logger(__name__)


@dataclass(frozen=True, slots=True)
class AdvertisedNode:
    """A broker as clients of one listener are told of it."""

    id: int
    host: str
    port: int
    rack: str | None = None


@dataclass(slots=True)
class Appended:
    """A batch that is in the leader's log.

    Units  offsets count records; log_append_time_ms is wall time, -1 where the topic keeps the producer's timestamps
    """

    partition: Partition
    base_offset: int
    next_offset: int
    log_append_time_ms: int
    log_start_offset: int
    leader_epoch: int

    @property
    def is_committed(self) -> bool:
        """Whether every in-sync replica has it."""
        progress = self.partition.progress
        return progress is not None and progress.high_watermark >= self.next_offset

    @property
    def is_decided(self) -> bool:
        """Whether waiting longer changes nothing: it is committed, or this broker no longer leads."""
        return self.is_committed or self.partition.leader_epoch != self.leader_epoch or not self.partition.is_leader

    def outcome(self) -> ErrorCode:
        """What acks=all is answered now."""
        if not self.is_decided:
            return ErrorCode.REQUEST_TIMED_OUT
        if not self.is_committed:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert self.partition.progress is not None
        enough = self.partition.progress.has_enough_replicas
        return ErrorCode.NONE if enough else ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND


class Broker:
    """One broker: what its handlers act on.

    Shape   purgatory is keyed by partition, (topic, index)
    Errors  KafkaError from everything that a client can cause
    """

    def __init__(
        self, *, env: Env, settings: Settings, cluster_id: str, replicas: Replicas, controller: ControllerClient
    ) -> None:
        self.env = env
        self.settings = settings
        self.cluster_id = cluster_id
        self.node_id = settings.server.node_id
        self.replicas = replicas
        self.controller = controller
        self.purgatory: Purgatory = Purgatory()
        self.fetch_sessions = FetchSessions(
            settings.fetch.max_incremental_fetch_session_cache_slots,
            lambda: env.random.randint(1, MAX_SESSION_ID),
        )
        self._changing: dict[TopicPartition, trio.Lock] = {}

    async def on_image(self, image: Image, delta: Delta) -> None:
        """Follow the metadata: make, serve and give up partitions, and take over changed settings."""
        replicas = self.replicas
        made = await self.env.run_blocking(replicas.prepare, image, delta) if replicas.adds_any(delta) else []
        changed = replicas.apply(image, delta, made)
        self.settings = replicas.settings
        self.purgatory.wake_many(partition.key for partition in changed)
        gone = [partition for partition in changed if replicas.partitions.get(partition.key) is not partition]
        for partition in gone:
            async with self._holding(partition.key):
                await self.env.run_blocking(replicas.remove_files, partition)

    # Metadata

    @property
    def image(self) -> Image:
        """The newest metadata that this broker acts on."""
        return self.controller.image

    def topic_name(self, topic_id: UUID) -> str | None:
        """The name of the topic with this id; None if there is none."""
        topic = self.image.topics_by_id.get(topic_id)
        return topic.name if topic is not None else None

    def nodes(self, listener: str) -> list[AdvertisedNode]:
        """The brokers that are not fenced, as clients of this listener reach them, by id."""
        found = []
        for broker_id, broker in sorted(self.image.brokers.items()):
            endpoint: Endpoint | None = broker.endpoints.get(listener)
            if endpoint is not None and not broker.fenced:
                found.append(AdvertisedNode(broker_id, endpoint.host, endpoint.port, broker.rack))
        return found

    def viewpoint(self, listener: str) -> Viewpoint:
        """Who answers, to clients of this listener."""
        return Viewpoint(self.cluster_id, self.node_id, listener)

    def may_create(self, name: str) -> bool:
        """Whether a client that names this unknown topic may bring it into being."""
        return may_create(name, self.controller.settings)

    async def create_automatically(self, names: list[str]) -> None:
        """Create topics that a client named, with the defaults; the client finds out when it asks again."""
        answer = await self.controller.create_topics(auto_creation_request(names, self.controller.settings))
        for topic in answer.topics:
            if topic.error_code not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
                log.warning("automatic creation failed", topic=topic.name, code=ErrorCode(topic.error_code).name)

    def describe_configs(
        self,
        resource_type: int,
        name: str,
        *,
        keys: Collection[str] | None,
        include_synonyms: bool,
        include_documentation: bool,
    ) -> list[ConfigEntry]:
        """The settings of a topic, of this broker (by its id), or of all brokers ("").

        Errors  UNKNOWN_TOPIC_OR_PARTITION, INVALID_TOPIC_EXCEPTION, INVALID_REQUEST
        """
        if resource_type == TOPIC_RESOURCE:
            if (fault := topic_name_fault(name)) is not None:
                raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, fault)
            if name not in self.image.topics_by_name:
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name}")
            return describe_topic(
                self.settings,
                self.image.topic_configs(name),
                keys=keys,
                include_synonyms=include_synonyms,
                include_documentation=include_documentation,
            )
        if resource_type != BROKER_RESOURCE:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unsupported resource type: {resource_type}")
        if name and not name.removeprefix("-").isdecimal():
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Broker id must be an integer, but it is: {name}")
        if name and int(name) != self.node_id:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, f"Unexpected broker id, expected {self.node_id} or empty string, but received {name}"
            )
        describe = describe_broker if name else describe_cluster_defaults
        return describe(
            self.settings, keys=keys, include_synonyms=include_synonyms, include_documentation=include_documentation
        )

    # Partitions

    def find(self, topic: str, index: int) -> Partition:
        """This broker's replica of a partition.

        Errors  UNKNOWN_TOPIC_OR_PARTITION, NOT_LEADER_OR_FOLLOWER (it is on other brokers)
        """
        partition = self.replicas.partitions.get((topic, index))
        if partition is not None:
            return partition
        if (topic, index) in self.replicas.failed:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"the log of {topic}-{index} could not be opened")
        if self.image.partition(topic, index) is not None:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{topic}-{index} is not on this broker")
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no {topic}-{index}")

    def find_fetched(self, asked: FetchedPartition) -> Partition:
        """The partition of a Fetch, by id where it gave one.

        Errors  UNKNOWN_TOPIC_ID, INCONSISTENT_TOPIC_ID, and those of `find`
        """
        if asked.topic_id == ZERO_UUID:
            assert asked.name is not None, "a fetch without topic ids names its topics"
            return self.find(asked.name, asked.index)
        asked.name = self.topic_name(asked.topic_id)
        if asked.name is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, f"there is no topic with id {asked.topic_id}")
        partition = self.find(asked.name, asked.index)
        if partition.topic_id != asked.topic_id:
            raise KafkaError(ErrorCode.INCONSISTENT_TOPIC_ID, f"{asked.name} is being replaced by another topic")
        return partition

    # Appending

    async def append(
        self, topic: str, index: int, records: memoryview | bytes | None, *, version: int, all_in_sync: bool
    ) -> Appended:
        """Append one produced batch to a partition that this broker leads.

        Errors  those of find, Partition.leading, validate_produced and Log.plan_append; NOT_ENOUGH_REPLICAS
        """
        partition = self.find(topic, index)
        progress = partition.leading()
        if all_in_sync and not progress.has_enough_replicas:
            raise KafkaError(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"{topic}-{index} has {len(progress.isr)} in-sync replicas of {progress.min_insync_replicas}",
            )
        config = partition.log.config
        timestamp_ms = self.env.timestamp_ms()

        def validate() -> ProducedBatch:
            return validate_produced(
                records,
                api_version=version,
                config=config,
                timestamp_ms=timestamp_ms,
                partition=f"{topic}-{index}",
                max_decompressed_bytes=self.settings.limits.kbroker_max_decompressed_batch_bytes,
            )

        batch = validate() if is_cheap(records, config) else await self.env.run_blocking(validate)
        if batch.batch.is_transactional:
            raise KafkaError(ErrorCode.INVALID_TXN_STATE, "no transaction is open: transactions are not implemented")
        if len(batch.data) <= INLINE_WRITE_BYTES and partition.key not in self._changing:
            return self._append_inline(partition, batch, timestamp_ms)
        return await self._append_in_line(partition, batch, timestamp_ms)

    def _append_inline(self, partition: Partition, batch: ProducedBatch, timestamp_ms: int) -> Appended:
        partition_log, progress = partition.log, partition.leading()
        plan = partition_log.append(batch.data, leader_epoch=partition.leader_epoch, timestamp_ms=timestamp_ms)
        if progress.on_append(partition_log.log_end_offset):
            partition_log.producers.on_high_watermark(progress.high_watermark)
        self.purgatory.wake(partition.key)
        return _appended(partition, plan.first_offset, plan.next_offset, batch, plan.timestamp_ms)

    async def _append_in_line(self, partition: Partition, batch: ProducedBatch, timestamp_ms: int) -> Appended:
        """Append with the write off the loop, after the appends that are under way."""
        async with self._holding(partition.key):
            partition.leading()  # while this one stood in line the leadership may have moved
            partition_log, epoch = partition.log, partition.leader_epoch
            plan = partition_log.plan_append(batch.data, leader_epoch=epoch, timestamp_ms=timestamp_ms)
            await self.env.run_blocking(partition_log.write, plan)
            partition_log.commit(plan)
            progress = partition.progress
            if progress is not None and progress.on_append(partition_log.log_end_offset):
                partition_log.producers.on_high_watermark(progress.high_watermark)
        self.purgatory.wake(partition.key)
        return _appended(partition, plan.first_offset, plan.next_offset, batch, plan.timestamp_ms)

    @asynccontextmanager
    async def _holding(self, key: TopicPartition) -> AsyncIterator[None]:
        """Hold off whatever changes this partition's log; whoever asks meanwhile stands in line."""
        lock = self._changing.setdefault(key, trio.Lock())
        try:
            async with lock:
                yield
        finally:
            if not lock.locked():
                self._changing.pop(key, None)

    # For those who look after the logs (kbroker.storage.tasks)

    def locked(self, held: Log) -> AbstractAsyncContextManager[None]:
        """Hold off appends to a log."""
        return self._holding((held.topic, held.partition))

    def high_watermark(self, held: Log) -> int:
        """Up to where a log is committed; its start for one that this broker does not lead any more."""
        partition = self.replicas.partitions.get((held.topic, held.partition))
        if partition is None or partition.progress is None:
            return held.log_start_offset
        return partition.progress.high_watermark

    def high_watermarks(self) -> dict[TopicPartition, int]:
        """The same for all that this broker leads."""
        return self.replicas.high_watermarks()

    async def delete_records(self, topic: str, index: int, offset: int) -> int:
        """Raise a partition's log_start_offset to `offset`, or to its high watermark for -1; the new low watermark.

        Errors  those of find and Partition.leading, OFFSET_OUT_OF_RANGE, POLICY_VIOLATION (the topic is not deletable)
        """
        partition = self.find(topic, index)
        progress = partition.leading()
        partition_log = partition.log
        if not partition_log.config.is_deleting:
            raise KafkaError(ErrorCode.POLICY_VIOLATION, f"{topic} has no cleanup.policy=delete")
        target = progress.high_watermark if offset == HIGH_WATERMARK else offset
        if not 0 <= target <= progress.high_watermark:
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, f"{offset=} is not within 0..{progress.high_watermark}")
        if target > partition_log.log_start_offset:
            partition_log.raise_log_start_offset(target)
            await self.env.run_blocking(self.replicas.directory.write_log_starts)
            self.purgatory.wake(partition.key)
        return partition_log.log_start_offset

    # Producer ids

    async def next_producer_id(self) -> int:
        """An id that no producer of this cluster ever had."""
        return await self.controller.next_producer_id()


def _appended(
    partition: Partition, base_offset: int, next_offset: int, batch: ProducedBatch, original_timestamp_ms: int
) -> Appended:
    return Appended(
        partition,
        base_offset,
        next_offset,
        # A batch that was stored before is answered with the time at which that happened.
        original_timestamp_ms if original_timestamp_ms >= 0 else batch.log_append_time,
        partition.log.log_start_offset,
        partition.leader_epoch,
    )
