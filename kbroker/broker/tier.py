"""The tier of one broker: made when a topic asks for it, told from then on what the metadata says, put away at the end.

Theory of operation: as long as no topic is tiered, and none ever was, there is this object and nothing else: no task,
no plug-in, no import, unless somebody has named a plug-in, whose settings are then looked at before the broker serves.
The first image with a tiered topic, or with the topic of the tier's metadata, brings the manager into being.

A start asks the store one cheap question if topics are tiered or somebody named a plug-in. A store that does not answer
is reported, and the broker starts: it may be down. A store that says that a setting is wrong (no such bucket, refused
keys) refuses the start as long as nothing was ever tiered, so that the mistake of a first start is found at once. Once
something was, the same is an error in the log: a broker must be able to restart and serve what it has while somebody
mends the store.

Images are followed by a task, one after the other and only the newest one: a listener of images must not wait for
decisions of the controller, and the tier makes some (its topic). What was switched on, off or deleted the manager finds
by comparing what it is given with what it had, and with what it wrote down before a restart.

Source  KIP-405; `BrokerMetadataPublisher`, `RemoteLogManager` of Apache Kafka 4.3.1
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import trio

from kbroker.broker.metadata_topic import OwnMetadataTopic
from kbroker.config.tier import TierSettings
from kbroker.controller.removed_topics import removed_topics
from kbroker.metadata.delta import Delta
from kbroker.metadata.image import TOPIC_RESOURCE, Image
from kbroker.metadata.names import REMOTE_LOG_METADATA_TOPIC, is_tierable
from kbroker.replication.partition import Partition
from kbroker.runtime.log import logger
from kbroker.runtime.worker import Runner, Workers, run_here, workers_for
from kbroker.storage.checkpoint import TopicPartition
from kbroker.storage.log import Log

if TYPE_CHECKING:
    from kbroker.broker.broker import Broker
    from kbroker.tiered.api import RemoteLogMetadataManager, RemoteStorageManager
    from kbroker.tiered.index_cache import RemoteIndexCache
    from kbroker.tiered.manager import RemoteLogManager
    from kbroker.tiered.remote_read import RemoteReader

LOWEST_METADATA_VERSION: Final = 9
"""3.5-IV0, below which a broker has no way to tell a follower of its local log's start."""
EXPIRY_INTERVAL_MS: Final = 60_000
IDLE_WORKERS_INTERVAL_MS: Final = 10_000
CHECK_PATIENCE_MS: Final = 5_000
STOP_GRACE_MS: Final = 3_000
CLOSE_GRACE_MS: Final = 1_000
PARTITIONS_KEY: Final = "remote.log.metadata.topic.num.partitions"

log = logger(__name__)


class TierRefused(Exception):
    """The broker cannot start with this tier, or without one; the message is for whoever starts it."""


def tiered_topics(image: Image) -> list[str]:
    """The topics that want to be tiered, by name."""
    return sorted(
        name
        for (kind, name), configs in image.configs.items()
        if kind == TOPIC_RESOURCE and _is_on(configs.get("remote.storage.enable")) and is_tierable(name)
    )


def _is_on(text: str | None) -> bool:
    return text is not None and text.strip().lower() == "true"


def refuse_tiered_topics_without_system(image: Image, tier: TierSettings) -> None:
    """Not to lose sight of what is in the tier just because it was switched off (KAFKA-15267).

    Errors  TierRefused
    """
    if not tier.remote_log_storage_system_enable and (names := tiered_topics(image)):
        shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
        raise TierRefused(
            "You have to delete all topics with the property remote.storage.enable=true before disabling tiered "
            f"storage cluster-wide: {shown}"
        )


class HeldPartitions:
    """The partitions of a broker as the tier sees them; satisfies `kbroker.tiered.ports.PartitionWriter`."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def find_partition(self, key: TopicPartition) -> Partition | None:
        """The partition that this broker holds under this name and number."""
        return self._broker.replicas.partitions.get(key)

    def held_partitions(self) -> Iterable[Partition]:
        """All of them."""
        return list(self._broker.replicas.partitions.values())

    def locked(self, held: Log) -> AbstractAsyncContextManager[object]:
        """Hold off appends to a log, and its removal."""
        return self._broker.locked(held)

    def kept(self, held: Log) -> AbstractAsyncContextManager[object]:
        """Hold off the removal of a log; appends go on."""
        return self._broker.kept(held)

    def wake(self, key: TopicPartition) -> None:
        """Let those who wait on a partition look again."""
        self._broker.purgatory.wake(key)

    async def write_log_starts(self) -> None:
        """Write down where the logs begin. Errors: KAFKA_STORAGE_ERROR."""
        await self._broker.write_log_starts()


class Tier:
    """The tier of one broker; see the module's text.

    Shape   manager, reader and indexes are None until something is, or was, tiered; failure says why they cannot be had
    Note    expired_fetches and expired_lookups count what the tier did not answer within the time that it may take
    """

    def __init__(self, broker: Broker) -> None:
        self.manager: RemoteLogManager | None = None
        self.reader: RemoteReader | None = None
        self.indexes: RemoteIndexCache | None = None
        self.failure = ""
        self.expired_fetches = self.expired_lookups = 0
        self._broker = broker
        self._storage: RemoteStorageManager | None = None
        self._metadata: RemoteLogMetadataManager | None = None
        self._workers: Workers | None = None
        self._nursery: trio.Nursery | None = None
        self._changed = trio.Event()
        self._removed: set[UUID] = set()
        self._is_store_usable = True
        self._is_running = False

    # --- what others ask ----------------------------------------------------------------------------------------------

    @property
    def waits_for(self) -> str:
        """What keeps tiered partitions from being read and copied; "" where nothing does, or none is tiered."""
        if self.failure or self.manager is None:
            return self.failure
        told: str | None = getattr(self._metadata, "waits_for", None)
        if told is not None:
            return told
        late = sum(
            one.remote is not None and one.remote.highest_offset_in_remote_storage is None
            for one in self._broker.replicas.partitions.values()
        )
        return f"{late} partitions wait until it is known what the tier has of them" if late else ""

    def knows(self, partition: Partition) -> bool:
        """Whether it is known what the tier holds of a partition; of one without a tier that is nothing. Who waits on
        the partition is woken when it is.
        """
        remote = partition.remote
        if remote is not None:
            return remote.highest_offset_in_remote_storage is not None
        should_have = partition.log.config.remote_storage_enable and self._is_running
        return not should_have or self._broker.image.metadata_version < LOWEST_METADATA_VERSION

    def note_expired_lookup(self, partition: Partition) -> None:
        """A ListOffsets was not answered in time for a partition."""
        self.expired_lookups += 1
        if partition.remote is not None:
            partition.remote.counters.expired_lookups += 1

    # --- life ---------------------------------------------------------------------------------------------------------

    async def start(self, nursery: trio.Nursery) -> None:
        """Begin, before anybody is served: what is, or was, tiered is followed from now on.

        Errors  TierRefused
        """
        self._nursery = nursery
        broker = self._broker
        tier = broker.settings.tier
        if not tier.remote_log_storage_system_enable:
            return
        is_wanted = self._is_wanted(broker.image)
        if is_wanted or tier.remote_log_storage_manager_class_name is not None or tier.rsm_configs:
            # Somebody wrote down how to reach a store: of a mistake in that they hear now, not at the first topic.
            self._storage = await broker.env.run_blocking(self._make_storage)
            await self._check_store(self._storage, nursery)
        if not tier.has_topic_based_metadata:
            await broker.env.run_blocking(self._import)
        if is_wanted:
            await nursery.start(self._run)

    async def _check_store(self, storage: RemoteStorageManager, nursery: trio.Nursery) -> None:
        """Ask whether the store can be used, and wait a moment for the answer. Errors: TierRefused."""
        from kbroker.tiered.api import RemoteStorageError, StoreMisconfigured  # noqa: PLC0415
        from kbroker.tiered.calls import plugin_errors  # noqa: PLC0415

        ask = getattr(storage, "check_store", None)
        if ask is None:
            return
        answered = trio.Event()
        failure: RemoteStorageError | None = None

        async def check() -> None:
            nonlocal failure
            try:
                with plugin_errors("check_store"):
                    await self._broker.env.threads(1).run_blocking(ask)
            except RemoteStorageError as error:
                failure = error
            answered.set()

        nursery.start_soon(check)
        self._is_store_usable = False
        with trio.move_on_after(CHECK_PATIENCE_MS / 1000):
            await answered.wait()
        if isinstance(failure, StoreMisconfigured):
            if REMOTE_LOG_METADATA_TOPIC not in self._broker.image.topics_by_name:
                raise TierRefused(f"the store of the tier cannot be used: {failure}")
            log.error("the store of the tier cannot be used; the broker starts all the same", error=failure)
        elif failure is not None or not answered.is_set():
            why = failure or f"no answer within {CHECK_PATIENCE_MS} ms (rsm.config.*)"
            log.warning("the store of the tier cannot be reached; the broker starts all the same", error=why)
        else:
            self._is_store_usable = True

    def on_image(self, image: Image, delta: Delta) -> None:
        """Follow the metadata, in the tier's own time."""
        self._changed.set()
        if self.manager is not None:
            self._removed.update(topic.id for topic in delta.deleted_topics)
        if self._is_running or self._nursery is None:
            return
        if (delta.changed_configs or delta.created_topics or delta.features_changed) and self._is_wanted(image):
            self._is_running = True
            self._nursery.start_soon(self._run)

    def on_reopened(self) -> None:
        """Logs are served that could not be made or opened before: no image will tell of those that are tiered."""
        self._changed.set()

    def reconfigure(self, tier: TierSettings) -> None:
        """Take over changed settings."""
        if self.manager is not None and self.reader is not None and self.indexes is not None:
            self.manager.reconfigure(tier)
            self.reader.reconfigure(tier)
            assert self._nursery is not None
            size = tier.remote_log_index_file_cache_total_size_bytes
            self._nursery.start_soon(self._broker.env.run_blocking, self.indexes.resize, size)

    async def stop(self) -> None:
        """Let copies that are under way end, for a while, and write down what spares the next start its reading.

        A store that says nothing does not hold up the stop: what is cut off the next start finds and tidies up.
        """
        if self._storage is not None:
            self._broker.env.abandon_threads()
        if self.manager is not None and self._metadata is not None:
            await self.manager.stop(grace_ms=STOP_GRACE_MS)
            await self._metadata.close()
        if self.indexes is not None:
            await self._broker.env.run_blocking(self.indexes.close)

    async def close(self) -> None:
        """Let go of the store and of the workers, after everything has ended."""
        env = self._broker.env
        if self._workers is not None:
            await env.run_blocking(self._workers.close)
        if self._storage is not None:
            threads = env.threads(1)
            env.abandon_threads()
            with trio.move_on_after(CLOSE_GRACE_MS / 1000):
                await threads.run_blocking(self._storage.close)

    def _is_wanted(self, image: Image) -> bool:
        if not self._broker.settings.tier.remote_log_storage_system_enable:
            return False
        names = tiered_topics(image)
        if names and image.metadata_version < LOWEST_METADATA_VERSION:
            log.warning("nothing is tiered at this metadata.version", level=image.metadata_version, topics=len(names))
            return False
        return bool(names) or REMOTE_LOG_METADATA_TOPIC in image.topics_by_name

    # --- what it does while something is tiered -----------------------------------------------------------------------

    async def _run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        self._is_running = True
        broker = self._broker
        try:
            if self._storage is None:
                self._storage = await broker.env.run_blocking(self._make_storage)
            await broker.env.run_blocking(self._import)
        except TierRefused as refused:
            self.failure = str(refused)
            log.error("there is no tier", why=self.failure)
            task_status.started()
            return
        self._make(self._storage)
        async with trio.open_nursery() as nursery:
            assert self.manager is not None
            assert self.reader is not None
            if (run := getattr(self._metadata, "run", None)) is not None:
                await nursery.start(run)
            await nursery.start(self.reader.cache.run)
            await nursery.start(self.manager.run)
            nursery.start_soon(self._expire_indexes)
            if self._workers is not None:
                nursery.start_soon(self._end_idle_workers, self._workers)
            await self._follow(self.manager, task_status)

    async def _follow(self, manager: RemoteLogManager, task_status: trio.TaskStatus[None]) -> None:
        """Tell the manager what is tiered, now and after each image."""
        while True:
            self._changed = trio.Event()
            image = self._broker.image
            held = [one for one in self._broker.replicas.partitions.values() if one.log.config.remote_storage_enable]
            tiered, new = [one.key for one in held], [one.key for one in held if one.remote is None]
            if image.metadata_version < LOWEST_METADATA_VERSION:
                tiered = []
            removed, self._removed = self._removed, set()
            await manager.on_change(tiered, topic_ids=image.topics_by_id, removed=removed)
            self._broker.purgatory.wake_many(new)
            task_status.started()
            task_status = trio.TASK_STATUS_IGNORED
            await self._changed.wait()

    async def _expire_indexes(self) -> None:
        assert self.indexes is not None
        while True:
            await self._broker.env.sleep_ms(EXPIRY_INTERVAL_MS)
            await self._broker.env.run_blocking(self.indexes.expire)

    async def _end_idle_workers(self, workers: Workers) -> None:
        while True:
            await self._broker.env.sleep_ms(IDLE_WORKERS_INTERVAL_MS)
            if workers.pids:
                await self._broker.env.run_blocking(workers.end_idle)

    @property
    def _run_copying(self) -> Runner:
        return run_here if self._workers is None else self._workers.run

    def _make_storage(self) -> RemoteStorageManager:
        """The plug-in, with its settings. Blocking, since it is imported. Errors: TierRefused."""
        from kbroker.tiered.api import RemoteStorageError  # noqa: PLC0415
        from kbroker.tiered.plugins import DEFAULT_STORAGE, PluginError, storage_manager  # noqa: PLC0415

        broker = self._broker
        tier = broker.settings.tier
        name = tier.remote_log_storage_manager_class_name or DEFAULT_STORAGE
        if tier.kbroker_remote_copy_process_enable:
            self._workers = workers_for(broker.env.disk, report=log.warning)
        told = {
            "log.dir": broker.replicas.directory.path,
            "broker.id": str(broker.node_id),
            "cluster.id": broker.cluster_id,
        }
        try:
            if name == DEFAULT_STORAGE:
                from kbroker.tiered.local import LocalRemoteStorage  # noqa: PLC0415

                storage: RemoteStorageManager = LocalRemoteStorage(
                    broker.env.disk,
                    run=run_here if self._workers is None else self._workers.run,
                    floor_bytes=broker.settings.limits.kbroker_min_free_bytes,
                )
            else:
                storage = storage_manager(name)
            storage.configure({**tier.rsm_configs, **told})
        except PluginError as error:
            raise TierRefused(str(error)) from error
        except RemoteStorageError as error:
            raise TierRefused(f"the storage of the tier ({name}): {error}") from error
        except Exception as error:
            # A plug-in is not ours, and may raise anything.
            raise TierRefused(f"the storage of the tier ({name}): {type(error).__name__}: {error}") from error
        return storage

    def _import(self) -> None:
        """What a broker without tiered topics does without. Blocking. Errors: TierRefused."""
        from kbroker.tiered import index_cache, manager, remote_read  # noqa: F401, PLC0415
        from kbroker.tiered.plugins import PluginError, metadata_manager_class  # noqa: PLC0415

        try:
            metadata_manager_class(self._broker.settings.tier.remote_log_metadata_manager_class_name)
        except PluginError as error:
            raise TierRefused(str(error)) from error

    def _make(self, storage: RemoteStorageManager) -> None:
        from kbroker.tiered.index_cache import RemoteIndexCache  # noqa: PLC0415
        from kbroker.tiered.manager import RemoteLogManager  # noqa: PLC0415
        from kbroker.tiered.plugins import metadata_manager_class  # noqa: PLC0415
        from kbroker.tiered.remote_read import RemoteReader  # noqa: PLC0415

        broker, env = self._broker, self._broker.env
        settings = broker.settings
        tier, directory = settings.tier, broker.replicas.directory.path
        make_metadata: Any = metadata_manager_class(tier.remote_log_metadata_manager_class_name)
        metadata: RemoteLogMetadataManager = make_metadata(env, OwnMetadataTopic(broker), self._as_made(tier))
        indexes = RemoteIndexCache(
            directory,
            storage,
            disk=env.disk,
            now_ms=env.now_ms,
            max_bytes=tier.remote_log_index_file_cache_total_size_bytes,
            ttl_ms=tier.remote_log_index_file_cache_ttl_ms,
            interval_bytes=settings.log.log_index_interval_bytes,
            report=log.warning,
        )
        self.manager = RemoteLogManager(
            env,
            tier,
            storage=storage,
            metadata=metadata,
            indexes=indexes,
            partitions=HeldPartitions(broker),
            broker_id=broker.node_id,
            directory=directory,
            run=self._run_copying,
            asks_store=self._is_store_usable,
            find_removed=partial(removed_topics, directory, disk=env.disk, report=log.warning),
        )
        quota = self.manager.fetch_quota
        self.reader = RemoteReader(env, tier, storage=storage, metadata=metadata, indexes=indexes, quota=quota)
        self._metadata, self.indexes = metadata, indexes

    def _as_made(self, tier: TierSettings) -> TierSettings:
        """The settings with the number of partitions that the topic has: which one tells of what follows from it."""
        topic = self._broker.image.topics_by_name.get(REMOTE_LOG_METADATA_TOPIC)
        if topic is None or len(topic.partitions) == tier.topic_num_partitions:
            return tier
        count = len(topic.partitions)
        log.warning("the topic of the tier's metadata stays as it was made", partitions=count)
        return replace(tier, rlmm_configs={**tier.rlmm_configs, PARTITIONS_KEY: str(count)})
