"""The domain container: it connects metadata, partitions and waiting requests, and is the handlers' interface to them.

Source: decisions 1, 3, 11 and 14 of ARCHITECTURE.md.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Final
from uuid import UUID

import trio

from kbroker.broker.appending import Appended, Appender
from kbroker.broker.auto_creation import AutoCreator, may_create
from kbroker.broker.change_log import ChangeLog
from kbroker.broker.client_quotas import ClientQuotas
from kbroker.broker.config_changes import ConfigChanges
from kbroker.broker.coordinators import group_coordinator, transaction_coordinator
from kbroker.broker.fetchers import Fetchers
from kbroker.broker.internal_records import Check
from kbroker.broker.isr_changes import IsrChanges
from kbroker.broker.lifecycle import BrokerLifecycle
from kbroker.broker.locks import PartitionLocks
from kbroker.broker.log_cleaner import LogCleaner
from kbroker.broker.marker_sender import MarkerSender
from kbroker.broker.producer_ids import ProducerIds
from kbroker.broker.tier_lifecycle import Tier
from kbroker.broker.transaction_verification import TransactionVerifier
from kbroker.config import Settings
from kbroker.config.replication import FOLLOWER_RATE, LEADER_RATE, RACK_AWARE_SELECTOR
from kbroker.controller.port import ControllerPort
from kbroker.metadata.answers import Viewpoint, visible_brokers
from kbroker.metadata.delta import Delta
from kbroker.metadata.image import Image
from kbroker.metadata.names import REMOTE_LOG_METADATA_TOPIC, TRANSACTION_STATE_TOPIC, is_internal
from kbroker.metadata.publisher import MetadataPublisher
from kbroker.metadata.topic_cache import TopicCache
from kbroker.replication.fetch_session import FetchedPartition, FetchSessions
from kbroker.replication.fetching import FetchRound
from kbroker.replication.leader import LeaderProgress
from kbroker.replication.partition import Partition
from kbroker.replication.partition_reads import FUTURE_REPLICA, Fetcher
from kbroker.replication.replica_selector import preferred_replica
from kbroker.replication.replicas import Replicas
from kbroker.replication.throttle import UNLIMITED, ReplicationThrottle, is_throttled
from kbroker.runtime.event_log import get_logger
from kbroker.runtime.limits import RateLimitedLog
from kbroker.runtime.net_ports import Env
from kbroker.runtime.purgatory import Purgatory
from kbroker.runtime.turns import Turns
from kbroker.security.audit import authorizer_of
from kbroker.security.securing import NodeSecurity
from kbroker.storage.checkpoint import TopicPartition
from kbroker.storage.log import Log
from kbroker.storage.verification import Verification
from wire.errors import ErrorCode, KafkaError
from wire.messages.produce import NodeEndpoint

HIGH_WATERMARK: Final = -1
MAX_SESSION_ID: Final = 2**31 - 1
LOG_INTERVAL_MS: Final = 60_000

_CONSUMERS: Final = tuple(
    (Fetcher(may_read_follower=may), Fetcher(read_committed=True, may_read_follower=may)) for may in (False, True)
)

logger = get_logger(__name__)


class Broker:
    """One broker: the object that handlers act on.

    Shape   purgatory is keyed by partition, (topic, index)
    Note    authorizer decides what clients may do; None allows everything
    Errors  KafkaError from everything that a client can cause
    """

    def __init__(
        self,
        *,
        env: Env,
        settings: Settings,
        cluster_id: str,
        replicas: Replicas,
        metadata: MetadataPublisher,
        controller: ControllerPort,
        lifecycle: BrokerLifecycle,
        turns: Turns,
        security: NodeSecurity | None = None,
    ) -> None:
        self.env = env
        self.settings = settings
        self.security = security
        self.cluster_id = cluster_id
        self.node_id = settings.server.node_id
        self.replicas = replicas
        self.metadata = metadata
        self.controller = controller
        self.lifecycle = lifecycle
        self.config_changes = ConfigChanges(env, controller, metadata, settings, turns, security=security)
        self.producer_ids = ProducerIds(controller, lifecycle, env)
        self.log_limit = RateLimitedLog(interval_ms=LOG_INTERVAL_MS)
        self.change_log = ChangeLog(env.now_ms, turns)
        self.auto_creator = AutoCreator(self)
        self.turns = turns
        self.quotas = ClientQuotas(settings.quotas)
        self.authorizer = authorizer_of(settings.authorizer, metadata, now_ms=env.now_ms, turns=turns)
        self.topic_cache = TopicCache(settings.limits.kbroker_metadata_cache_bytes)
        self.purgatory: Purgatory = Purgatory()
        self.fetch_sessions = FetchSessions(
            settings.fetch.max_incremental_fetch_session_cache_slots,
            lambda: env.random.randint(1, MAX_SESSION_ID),
            max_partitions=settings.limits.kbroker_max_fetch_session_partitions,
        )
        self.appender = Appender(
            env,
            self.purgatory,
            max_decompressed_bytes=settings.limits.kbroker_max_decompressed_batch_bytes,
            max_unpacking_bytes=settings.limits.kbroker_max_unpacking_bytes,
        )
        self.groups = group_coordinator(self)
        self.marker_sender = MarkerSender(self)
        self.transactions = transaction_coordinator(self)
        replication = settings.replication
        self.leaders_throttle, self.followers_throttle = (
            ReplicationThrottle(
                windows=replication.replication_quota_window_num,
                window_ms=1_000 * replication.replication_quota_window_size_seconds,
            )
            for _ in range(2)
        )
        self._take_rates(settings)
        self.fetchers = Fetchers(self)
        self.isr_changes = IsrChanges(self)
        self.tier = Tier(self)
        self.cleaner = LogCleaner(self)
        self.transaction_verifier = TransactionVerifier(self)
        self.transaction_verifier.coordinator = self.transactions
        self._kept = PartitionLocks()
        self._checkpoint_lock = trio.Lock()
        self._following = trio.Lock()  # held while the replicas are brought up to date with an image

    async def on_image(self, image: Image, delta: Delta) -> None:
        """Apply new metadata: remove, create and serve partitions, and apply changed settings.

        Removed partitions go first, with their files: a topic that is created again with the same name finds no files
        of the old topic, and no task that still holds the old partition can write into the new partition's files.
        """
        replicas = self.replicas
        async with self._following:
            gone = replicas.retire(delta)
            self.purgatory.wake_many(gone)
            if gone:
                await self._remove(gone)
            made: list[Partition] = []
            if replicas.adds_any(delta):
                async with self._checkpoint_lock:
                    made = await self.env.run_blocking(replicas.prepare, image, delta)
            async with AsyncExitStack() as held:
                await self.fetchers.release(delta, held)
                changed = replicas.apply(image, delta, made)
            self.fetchers.follow_changes(delta)
            if delta.before.brokers is not delta.after.brokers:
                self.isr_changes.check(replicas.partitions.values())
            if self.settings is not replicas.settings:
                self._take_settings(replicas.settings)
            self.purgatory.wake_many(changed)
            await self.groups.on_image(image, delta)
            await self.transactions.on_image(image, delta)
        await self.quotas.follow(image, self.turns)
        self.tier.on_image(image, delta)

    async def _remove(self, gone: list[TopicPartition]) -> None:
        """Remove the files of partitions while holding all their locks. Others take those of one partition, in the same
        order.
        """
        async with AsyncExitStack() as held:
            for key in gone:
                await held.enter_async_context(self.appender.locks.holding(key))
                await held.enter_async_context(self._kept.holding(key))
            await self.env.run_blocking(self.replicas.remove_files, gone)

    async def reopen_failed(self, *, interval_ms: int) -> None:
        """Retry forever to create or open logs that failed for lack of disk space or file descriptors."""
        while True:
            await self.env.sleep_ms(interval_ms)
            if not self.replicas.may_reopen:
                continue
            async with self._following:
                async with self._checkpoint_lock:
                    opened = await self.env.run_blocking(self.replicas.reopen)
                if opened:
                    self.purgatory.wake_many(self.replicas.serve_reopened(opened))
                    self.fetchers.follow(opened)
                    await self.groups.runtime.follow(self.image)
                    await self.transactions.runtime.follow(self.image)
                    self.tier.on_reopened()

    def _take_settings(self, settings: Settings) -> None:
        self.settings = settings
        self.fetchers.follow(self.replicas.partitions.values())  # num.replica.fetchers may have changed
        self._take_rates(settings)
        self.appender.max_decompressed_bytes = settings.limits.kbroker_max_decompressed_batch_bytes
        self.tier.reconfigure(settings.tier)
        self.groups.reconfigure(settings.groups)

    def _take_rates(self, settings: Settings) -> None:
        for name, throttle in ((LEADER_RATE, self.leaders_throttle), (FOLLOWER_RATE, self.followers_throttle)):
            text = settings.layers.text(name)
            throttle.rate = UNLIMITED if text is None else int(text)

    def wake(self, key: TopicPartition) -> None:
        """Wake every request that waits on a partition."""
        self.purgatory.wake(key)

    def wake_all(self) -> None:
        """Wake every request that waits on a partition: the log directory has failed."""
        self.purgatory.wake_many(self.replicas.partitions)

    # Metadata

    @property
    def supported_features(self) -> Mapping[str, tuple[int, int]]:
        """The lowest and highest level of each feature of a cluster with which this broker works."""
        return self.lifecycle.features

    @property
    def image(self) -> Image:
        """The newest metadata that this broker acts on."""
        return self.metadata.image

    def topic_name(self, topic_id: UUID) -> str | None:
        """The name of the topic with this id, or None."""
        topic = self.image.topics_by_id.get(topic_id)
        return topic.name if topic is not None else None

    def nodes(self, listener: str) -> list[NodeEndpoint]:
        """The brokers that are not fenced, with their addresses for this listener, ordered by id."""
        return [
            NodeEndpoint(node_id=broker.id, host=endpoint.host, port=endpoint.port, rack=broker.rack)
            for broker, endpoint in visible_brokers(self.image, listener)
        ]

    def viewpoint(self, listener: str) -> Viewpoint:
        """This cluster and broker as clients of this listener see them."""
        return Viewpoint(self.cluster_id, self.node_id, listener)

    def may_create(self, name: str) -> bool:
        """Whether a client that names this unknown topic causes its automatic creation."""
        return may_create(name, self.settings)

    # Coordinators

    def find_transaction_coordinator(self, transactional_id: str) -> int:
        """The id of the broker that coordinates a transactional id; -1 for none."""
        index = self.transactions.runtime.partition_of(transactional_id)
        return self.current_leader(TRANSACTION_STATE_TOPIC, index)[0]

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

    def find_partition(self, key: TopicPartition) -> Partition | None:
        """This broker's replica of a partition, if it has one."""
        return self.replicas.partitions.get(key)

    def find_fetched(self, asked: FetchedPartition) -> Partition:
        """The partition of a Fetch, found by topic id if the request has one.

        Errors  UNKNOWN_TOPIC_ID, INCONSISTENT_TOPIC_ID, and those of `find`
        """
        topic_id = asked.topic_id
        if topic_id is None:
            assert asked.name is not None, "a fetch without topic ids names its topics"
            return self.find(asked.name, asked.index)
        if asked.name is None:
            # Keep the resolved name: if the topic is deleted or recreated later, the session gets an error for it.
            asked.name = self.topic_name(topic_id)
            if asked.name is None:
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, f"there is no topic with id {topic_id}")
        partition = self.find(asked.name, asked.index)
        if partition.topic_id != topic_id:
            raise KafkaError(ErrorCode.INCONSISTENT_TOPIC_ID, f"{asked.name} now has another topic id")
        return partition

    def current_leader(self, topic: str, index: int) -> tuple[int, int]:
        """(leader, leader epoch) that this broker knows; -1 for unknown."""
        partition = self.replicas.partitions.get((topic, index))
        if partition is not None:
            return partition.leader, partition.leader_epoch
        known = self.image.partition(topic, index)
        return (known.leader, known.leader_epoch) if known is not None else (-1, -1)

    def fetcher(
        self, replica_id: int, *, replica_epoch: int, read_committed: bool, may_read_follower: bool = False
    ) -> Fetcher:
        """The sender of a Fetch. A replica is stale if its broker id has been registered again with a newer epoch.

        As in Kafka, tools that give a negative replica id (-2 is kafka-replica-verification) are consumers.
        """
        if replica_id == FUTURE_REPLICA:
            return Fetcher(replica_id)
        if replica_id < 0:
            return _CONSUMERS[may_read_follower][read_committed]
        broker = self.image.brokers.get(replica_id)
        is_stale = broker is not None and not broker.fenced and -1 < replica_epoch < broker.epoch
        return Fetcher(replica_id, replica_epoch=replica_epoch, is_stale=is_stale)

    def replica_chooser(self, rack: str, listener: str) -> Callable[[LeaderProgress, int], int] | None:
        """Names the replica from which a consumer in a rack should read; None if that is always the leader."""
        if self.settings.replication.replica_selector_class != RACK_AWARE_SELECTOR:
            return None
        racks = {broker.id: broker.rack for broker, _ in visible_brokers(self.image, listener)}
        return lambda progress, fetch_offset: preferred_replica(progress, fetch_offset, rack=rack, racks=racks)

    def leader_throttle(self, follower_id: int) -> Callable[[Partition], bool] | None:
        """Tells whether a follower gets nothing of a partition for now; None if followers have not got too much."""
        if not self.leaders_throttle.is_exceeded(self.env.now_ms()):
            return None
        return lambda partition: follower_id not in partition.isr and self._is_throttled(partition)

    def count_sent(self, partition: Partition, size: int) -> None:
        """Count the bytes of a partition that a follower gets."""
        self.fetchers.bytes_out += size
        throttle = self.leaders_throttle
        if size and throttle.rate != UNLIMITED and self._is_throttled(partition):
            throttle.record(size, self.env.now_ms())

    def _is_throttled(self, partition: Partition) -> bool:
        replicas = partition.log.config.leader_replication_throttled_replicas
        return is_throttled(replicas, partition.index, self.node_id)

    def note_follower(self, fetched: FetchRound, now_ms: int) -> None:
        """Record what a follower has acknowledged with a Fetch."""
        risen, proposing = fetched.note_follower(now_ms)
        for key in risen:
            self.purgatory.wake_for_high_watermark(key)
        if proposing:
            self.isr_changes.submit(proposing)

    # Appending

    def append(
        self,
        topic: str,
        index: int,
        records: memoryview | bytes | None,
        *,
        version: int,
        all_in_sync: bool,
        check: Check | None = None,
        verification: Verification | None = None,
    ) -> Awaitable[Appended]:
        """As Appender.append, to a partition by its name.

        Errors  those of find, Partition.leading and Appender.append; NOT_ENOUGH_REPLICAS
        """
        partition = self.find(topic, index)
        progress = partition.leading()
        if all_in_sync and not progress.has_enough_replicas:
            raise KafkaError(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"{partition.name} has {len(progress.isr)} in-sync replicas of {progress.min_insync_replicas}",
            )
        return self.appender.append(partition, records, version=version, check=check, verification=verification)

    # For the tasks that maintain logs (kbroker.storage.housekeeping, kbroker.coordinator)

    def is_locked(self, held: Log) -> bool:
        """Whether a task is appending to a log, or changing it otherwise, in more than one step."""
        return (held.topic, held.partition) in self.appender.locks

    def locked(self, held: Log) -> AbstractAsyncContextManager[None]:
        """Block all other changes of a log in several steps, such as appends, and its removal."""
        return self.appender.locks.holding((held.topic, held.partition))

    def kept(self, held: Log) -> AbstractAsyncContextManager[None]:
        """Block the truncation and the removal of a log, which take `locked` and then this; appends continue."""
        return self._kept.holding((held.topic, held.partition))

    def high_watermark(self, held: Log) -> int:
        """The known high watermark of a log; its log start offset if the partition is no longer on this broker."""
        partition = self.replicas.partitions.get((held.topic, held.partition))
        if partition is None or partition.log is not held:
            return held.log_start_offset
        return partition.known_high_watermark

    def highest_offset_in_remote_storage(self, held: Log) -> int | None:
        """The last offset of a log in the tier, -1 if it has none; None while unknown."""
        partition = self.replicas.partitions.get((held.topic, held.partition))
        if partition is None or partition.log is not held or partition.remote is None:
            return None
        return partition.remote.highest_offset_in_remote_storage

    async def delete_records(self, topic: str, index: int, offset: int) -> int:
        """Raise a partition's log_start_offset to `offset` (-1: its high watermark); return the new low watermark.

        The change survives a crash once `write_log_starts` has returned.
        Errors  those of find and Partition.leading, OFFSET_OUT_OF_RANGE, POLICY_VIOLATION (the topic is not deletable),
                INVALID_TOPIC_EXCEPTION (it is internal)
        """
        is_own = is_internal(topic) or topic == REMOTE_LOG_METADATA_TOPIC
        if is_own and self.image.partition(topic, index) is not None:
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{topic} is internal")
        partition = self.find(topic, index)
        async with self.appender.locks.holding(partition.key):
            progress = partition.leading()
            partition_log = partition.log
            if not partition_log.config.is_deleting:
                raise KafkaError(ErrorCode.POLICY_VIOLATION, f"{topic} has no cleanup.policy=delete")
            target = progress.high_watermark if offset == HIGH_WATERMARK else offset
            if not 0 <= target <= progress.high_watermark:
                raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, f"{offset=} is not within 0..{progress.high_watermark}")
            if partition_log.raise_log_start_offset(target):
                self.purgatory.wake(partition.key)
            return partition_log.log_start_offset

    async def await_low_watermarks(self, targets: Mapping[TopicPartition, int], *, max_wait_ms: int) -> None:
        """Wait until the live followers of partitions have raised their log start offsets to `targets`."""

        def reached() -> bool:
            return all((low := self.low_watermark(key)) is None or low >= target for key, target in targets.items())

        await self.purgatory.wait(*targets, until=reached, max_wait_ms=max_wait_ms)

    def low_watermark(self, key: TopicPartition) -> int | None:
        """The smallest log start offset of a partition's live replicas; None if this broker does not lead it."""
        partition = self.replicas.partitions.get(key)
        if partition is None or partition.progress is None:
            return None
        return min(partition.log.log_start_offset, partition.progress.low_watermark)

    async def write_log_starts(self) -> None:
        """Write the checkpoint of log start offsets. Errors: KAFKA_STORAGE_ERROR."""
        await self._write_checkpoint(self.replicas.directory.checkpoints.write_log_starts)

    async def write_cleaned_offsets(self) -> None:
        """Write the checkpoint of cleaned offsets. Errors: KAFKA_STORAGE_ERROR."""
        await self._write_checkpoint(self.replicas.directory.checkpoints.write_cleaned_offsets)

    async def keep_checkpoint(self, write: Callable[[], None], *, interval_ms: int) -> None:
        """Call a blocking function that writes one of the checkpoints, forever."""
        while True:
            await self.env.sleep_ms(interval_ms)
            try:
                await self._write_checkpoint(write)
            except KafkaError as error:
                logger.warning(error.message)

    async def _write_checkpoint(self, write: Callable[[], None]) -> None:
        async with self._checkpoint_lock:  # all writers of a checkpoint use the same temporary file
            await self.env.run_blocking(write)
