"""The tier of one broker: created when a topic needs it, updated with each metadata image, closed at the end.

Theory of operation: until a topic is tiered there is only this object: no task, no plug-in, no import. If a plug-in is
configured, its settings are checked before the broker serves. The first image that has a tiered topic, or the tier's
metadata topic, starts the manager.

At a start the broker makes one cheap request to the store if topics are tiered or a plug-in is configured. If the store
does not answer, the broker logs it and starts: the store may be down. If the store reports a wrong setting (missing
bucket, refused keys), the start is refused as long as no topic was ever tiered. So a mistake in the first start is
found immediately. Otherwise the broker logs an error and starts: it must be able to restart and serve its local data
while the operator corrects the store. When topics are tiered, the broker probes the store with a small object, off the
event loop, and logs a warning if it cannot be written.

A task follows the images and takes only the newest one. An image listener must not wait for decisions of the
controller, and the tier needs some (to create its topic). The manager compares the current state with its previous
state, and with what it stored before a restart, to find out what was enabled, disabled or deleted.

Source  KIP-405; `BrokerMetadataPublisher`, `RemoteLogManager` of Apache Kafka 4.3.1
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import trio

from kbroker.broker.tier_metadata_topic import OwnMetadataTopic
from kbroker.config.tier_settings import TierSettings
from kbroker.config.values import as_boolean
from kbroker.controller.removed_topics import removed_topics
from kbroker.metadata.delta import Delta
from kbroker.metadata.image import TOPIC_RESOURCE, Image
from kbroker.metadata.names import REMOTE_LOG_METADATA_TOPIC, is_tierable
from kbroker.replication.partition import Partition
from kbroker.runtime.event_log import get_logger
from kbroker.runtime.worker import Workers

if TYPE_CHECKING:
    from kbroker.broker.broker import Broker
    from kbroker.tiered.api import RemoteLogMetadataManager, RemoteStorageError, RemoteStorageManager
    from kbroker.tiered.index_cache import RemoteIndexCache
    from kbroker.tiered.manager import RemoteLogManager
    from kbroker.tiered.remote_read import RemoteReader

LOWEST_METADATA_VERSION: Final = 9
"""3.5-IV0. Below it a broker cannot report its local log start offset to a follower."""
EXPIRY_INTERVAL_MS: Final = 60_000
IDLE_WORKERS_INTERVAL_MS: Final = 10_000
EVERY_CHECK: Final = ("check_store", "check_writes")
CHECK_PATIENCE_MS: Final = 5_000
STOP_GRACE_MS: Final = 3_000
CLOSE_GRACE_MS: Final = 1_000
PARTITIONS_KEY: Final = "remote.log.metadata.topic.num.partitions"

logger = get_logger(__name__)


class TierRefused(Exception):
    """The broker cannot start with this tier, or without one; the message is for the operator."""


def tiered_topics(image: Image) -> list[str]:
    """The topics that have tiering enabled, by name."""
    return sorted(
        name
        for (kind, name), configs in image.configs.items()
        if kind == TOPIC_RESOURCE and as_boolean(configs.get("remote.storage.enable", "")) and is_tierable(name)
    )


def refuse_tiered_topics_without_system(image: Image, tier: TierSettings) -> None:
    """Refuse to disable the tier while topics are tiered: the broker would lose track of their data (KAFKA-15267).

    Errors  TierRefused
    """
    if not tier.remote_log_storage_system_enable and (names := tiered_topics(image)):
        shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
        raise TierRefused(
            "You have to delete all topics with the property remote.storage.enable=true before disabling tiered "
            f"storage cluster-wide: {shown}"
        )


class Tier:
    """The tier of one broker; see the module's docstring.

    Shape   manager, reader and indexes are None until the first topic is tiered; failure says why they cannot be
            created
    Note    expired_fetches and expired_lookups count requests that the tier did not answer in time
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
        self._topic: OwnMetadataTopic | None = None
        self._workers = Workers(
            may_start=broker.env.disk.is_shared and broker.settings.tier.kbroker_remote_copy_process_enable,
            report=logger.warning,
        )
        self._nursery: trio.Nursery | None = None
        self._checkers = broker.env.threads(1)  # the environment remembers every pool, so there is one
        self._changed = trio.Event()
        self._removed: set[UUID] = set()
        self._check_ended = trio.Event()  # the latest check's
        self._is_store_usable = True
        self._is_running = False
        self._unprobed: set[str] = set()
        self._is_probing = False

    # --- queries ------------------------------------------------------------------------------------------------------

    @property
    def waits_for(self) -> str:
        """Why tiered partitions cannot be read or copied yet; "" if nothing blocks them, or none is tiered."""
        if self.failure or self.manager is None:
            return self.failure
        reason: str | None = getattr(self._metadata, "waits_for", None)
        if reason is not None:
            return reason
        late = sum(
            one.remote is not None and one.remote.highest_offset_in_remote_storage is None
            for one in self._broker.replicas.partitions.values()
        )
        return f"the tier's metadata of {late} partitions are not read yet" if late else ""

    def knows(self, partition: Partition) -> bool:
        """Whether the broker knows what the tier holds of a partition. True for a partition that is not tiered.
        Waiters of the partition are woken when this becomes true.
        """
        remote = partition.remote
        if remote is not None:
            return remote.highest_offset_in_remote_storage is not None
        should_have = partition.log.config.remote_storage_enable and self._is_running
        return not should_have or self._broker.image.metadata_version < LOWEST_METADATA_VERSION

    def note_expired_lookup(self, partition: Partition) -> None:
        """Count a ListOffsets that was not answered in time for a partition."""
        self.expired_lookups += 1
        if partition.remote is not None:
            partition.remote.counters.expired_lookups += 1

    # --- life ---------------------------------------------------------------------------------------------------------

    async def start(self, nursery: trio.Nursery) -> None:
        """Start the tier before clients are served, if a topic is or was tiered.

        Errors  TierRefused
        """
        self._nursery = nursery
        broker = self._broker
        tier = broker.settings.tier
        if not tier.remote_log_storage_system_enable:
            return
        is_wanted = self._is_wanted(broker.image)
        if is_wanted or tier.remote_log_storage_manager_class_name is not None or tier.rsm_configs:
            # The operator configured a store: report a mistake now, not when the first topic is tiered.
            self._storage = await broker.env.run_blocking(self._make_storage)
            await self._check_store(self._storage, nursery)
        if not tier.has_topic_based_metadata:
            await broker.env.run_blocking(self._import)
        if is_wanted:
            await nursery.start(self._run)

    async def _check_store(self, storage: RemoteStorageManager, nursery: trio.Nursery) -> None:
        """Check whether the store can be used; wait only briefly for the answer. Errors: TierRefused."""
        from kbroker.tiered.api import StoreMisconfigured  # noqa: PLC0415

        self._is_store_usable = False
        failure = await self._answer(storage, nursery, "check_store")
        if isinstance(failure, StoreMisconfigured):
            if REMOTE_LOG_METADATA_TOPIC not in self._broker.image.topics_by_name:
                raise TierRefused(f"the store of the tier cannot be used: {failure}")
            logger.error("the store of the tier cannot be used; the broker starts anyway", error=failure)
        elif failure is not None:
            logger.warning("the store of the tier cannot be reached; the broker starts anyway", error=failure)
        else:
            self._is_store_usable = True

    async def _answer(
        self, storage: RemoteStorageManager, nursery: trio.Nursery, *checks: str
    ) -> RemoteStorageError | None:
        """The first failure of these checks of a plug-in, which may lack them; waits only briefly for the answer."""
        from kbroker.tiered.api import RemoteStorageError, RetriableRemoteStorageError  # noqa: PLC0415
        from kbroker.tiered.calls import plugin_errors  # noqa: PLC0415

        answered = self._check_ended = trio.Event()
        failure: RemoteStorageError | None = None

        async def check() -> None:
            nonlocal failure
            try:
                for name in checks:
                    if (ask := getattr(storage, name, None)) is not None:
                        with plugin_errors(name):
                            await self._checkers.run_blocking(ask)
            except RemoteStorageError as error:
                failure = error
            answered.set()

        nursery.start_soon(check)
        with trio.move_on_after(CHECK_PATIENCE_MS / 1000):
            await answered.wait()
        if not answered.is_set():
            return RetriableRemoteStorageError(f"no answer within {CHECK_PATIENCE_MS} ms (rsm.config.*)")
        return failure

    async def _probe(self, checks: Sequence[str]) -> None:
        """Check whether topics that were made can be copied; the operator learns it now and not with the first copy.

        There is one such task. While a check of the store hangs, topics that are created wait for the next check.
        """
        assert self._storage is not None
        assert self._nursery is not None
        while self._unprobed:
            topics = sorted(self._unprobed)
            self._unprobed.clear()
            failure = await self._answer(self._storage, self._nursery, *checks)
            if failure is not None:
                shown = ", ".join(topics[:5]) + (f" and {len(topics) - 5} more" if len(topics) > 5 else "")
                logger.warning("new tiered topics cannot be copied to the store yet", topics=shown, error=failure)
            await self._check_ended.wait()
            checks = EVERY_CHECK
        self._is_probing = False

    def on_image(self, image: Image, delta: Delta) -> None:
        """Take a new image. The tier's task processes it later."""
        self._changed.set()
        if self._topic is not None:
            self._topic.on_image()
        if self.manager is not None:
            self._removed.update(topic.id for topic in delta.deleted_topics)
        if self._is_running or self._nursery is None:
            return
        if (delta.changed_configs or delta.created_topics or delta.features_changed) and self._is_wanted(image):
            self._is_running = True
            self._nursery.start_soon(self._run)

    def on_reopened(self) -> None:
        """Check for tiered partitions among logs that could not be opened before: no image reports them."""
        self._changed.set()

    def reconfigure(self, tier: TierSettings) -> None:
        """Apply changed settings."""
        if self.manager is not None and self.reader is not None and self.indexes is not None:
            self.manager.reconfigure(tier)
            self.reader.reconfigure(tier)
            assert self._nursery is not None
            size = tier.remote_log_index_file_cache_total_size_bytes
            self._nursery.start_soon(self._broker.env.run_blocking, self.indexes.resize, size)

    async def stop(self) -> None:
        """Wait a short time for running copies, and store what the next start would otherwise have to read again.

        A store that does not answer does not delay the stop. The next start cleans up interrupted copies.
        """
        if self._storage is not None:
            self._broker.env.abandon_threads()
        if self.manager is not None and self._metadata is not None:
            await self.manager.stop(grace_ms=STOP_GRACE_MS)
            await self._metadata.close()
        if self.indexes is not None:
            await self._broker.env.run_blocking(self.indexes.write_down)

    async def close(self) -> None:
        """Close the store and the worker processes, after all tasks have ended."""
        env = self._broker.env
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
            logger.warning(
                "nothing is tiered at this metadata.version", level=image.metadata_version, topics=len(names)
            )
            return False
        return bool(names) or REMOTE_LOG_METADATA_TOPIC in image.topics_by_name

    # --- running ------------------------------------------------------------------------------------------------------

    async def _run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        self._is_running = True
        broker = self._broker
        try:
            if self._storage is None:
                self._storage = await broker.env.run_blocking(self._make_storage)
            await broker.env.run_blocking(self._import)
        except TierRefused as refused:
            self.failure = str(refused)
            logger.error("the tier cannot be started", why=self.failure)
            task_status.started()
            return
        manager, reader, indexes = self._make(self._storage)
        async with trio.open_nursery() as nursery:
            if (run := getattr(self._metadata, "run", None)) is not None:
                await nursery.start(run)
            await nursery.start(reader.cache.run)
            await nursery.start(manager.run)
            nursery.start_soon(self._repeat, indexes.expire, EXPIRY_INTERVAL_MS)
            nursery.start_soon(self._repeat, self._workers.end_idle, IDLE_WORKERS_INTERVAL_MS)
            await self._follow(manager, task_status)

    async def _follow(self, manager: RemoteLogManager, task_status: trio.TaskStatus[None]) -> None:
        """Pass the tiered partitions to the manager, now and after each image."""
        probed: set[str] = set()
        while True:
            self._changed = trio.Event()
            image = self._broker.image
            held = [one for one in self._broker.replicas.partitions.values() if one.log.config.remote_storage_enable]
            tiered, new = [one.key for one in held], [one.key for one in held if one.remote is None]
            if image.metadata_version < LOWEST_METADATA_VERSION:
                tiered = []
            removed, self._removed = self._removed, set()
            topics = {one.topic for one in held if one.log.config.is_copied_to_tier}
            # At the start `_check_store` has just asked the store, and has reported one that cannot be used.
            is_first = task_status is not trio.TASK_STATUS_IGNORED
            if self._is_store_usable or not is_first:
                self._unprobed |= topics - probed
            if self._nursery is not None and self._unprobed and not self._is_probing:
                self._is_probing = True
                self._nursery.start_soon(self._probe, EVERY_CHECK[1:] if is_first else EVERY_CHECK)
            self._unprobed &= topics
            probed = topics
            await manager.on_change(tiered, topic_ids=image.topics_by_id, removed=removed)
            self._broker.purgatory.wake_many(new)
            task_status.started()
            task_status = trio.TASK_STATUS_IGNORED
            await self._changed.wait()

    async def _repeat(self, task: Callable[[], None], interval_ms: int) -> None:
        while True:
            await self._broker.env.sleep_ms(interval_ms)
            await self._broker.env.run_blocking(task)

    def _make_storage(self) -> RemoteStorageManager:
        """The configured plug-in. Blocking, because of the import. Errors: TierRefused."""
        from kbroker.tiered.api import RemoteStorageError  # noqa: PLC0415
        from kbroker.tiered.plugins import DEFAULT_STORAGE, PluginError, storage_manager  # noqa: PLC0415

        broker = self._broker
        tier = broker.settings.tier
        name = tier.remote_log_storage_manager_class_name or DEFAULT_STORAGE
        added = {
            "log.dir": broker.replicas.directory.path,
            "broker.id": str(broker.node_id),
            "cluster.id": broker.cluster_id,
        }
        try:
            if name == DEFAULT_STORAGE:
                from kbroker.tiered.local import LocalRemoteStorage  # noqa: PLC0415

                storage: RemoteStorageManager = LocalRemoteStorage(
                    broker.env.disk,
                    run=self._workers.run,
                    floor_bytes=broker.settings.limits.kbroker_min_free_bytes,
                )
            else:
                storage = storage_manager(name)
            storage.configure({**tier.rsm_configs, **added})
        except PluginError as error:
            raise TierRefused(str(error)) from error
        except RemoteStorageError as error:
            raise TierRefused(f"the storage of the tier ({name}): {error}") from error
        except Exception as error:
            # A plug-in may raise anything.
            raise TierRefused(f"the storage of the tier ({name}): {type(error).__name__}: {error}") from error
        return storage

    def _import(self) -> None:
        """Import the modules that a broker without tiered topics does not need. Blocking. Errors: TierRefused."""
        from kbroker.tiered import index_cache, manager, remote_read  # noqa: F401, PLC0415
        from kbroker.tiered.plugins import PluginError, metadata_manager_class  # noqa: PLC0415

        try:
            metadata_manager_class(self._broker.settings.tier.remote_log_metadata_manager_class_name)
        except PluginError as error:
            raise TierRefused(str(error)) from error

    def _make(self, storage: RemoteStorageManager) -> tuple[RemoteLogManager, RemoteReader, RemoteIndexCache]:
        from kbroker.tiered.index_cache import RemoteIndexCache  # noqa: PLC0415
        from kbroker.tiered.manager import RemoteLogManager  # noqa: PLC0415
        from kbroker.tiered.plugins import metadata_manager_class  # noqa: PLC0415
        from kbroker.tiered.remote_read import RemoteReader  # noqa: PLC0415

        broker, env = self._broker, self._broker.env
        settings = broker.settings
        tier, directory = settings.tier, broker.replicas.directory.path
        make_metadata: Any = metadata_manager_class(tier.remote_log_metadata_manager_class_name)
        self._topic = OwnMetadataTopic(broker)
        metadata: RemoteLogMetadataManager = make_metadata(env, self._topic, self._as_made(tier))
        indexes = RemoteIndexCache(
            directory,
            storage,
            disk=env.disk,
            now_ms=env.now_ms,
            max_bytes=tier.remote_log_index_file_cache_total_size_bytes,
            ttl_ms=tier.remote_log_index_file_cache_ttl_ms,
            interval_bytes=settings.log.log_index_interval_bytes,
            report=logger.warning,
        )
        self.manager = RemoteLogManager(
            env,
            tier,
            storage=storage,
            metadata=metadata,
            indexes=indexes,
            partitions=broker,
            broker_id=broker.node_id,
            directory=directory,
            run=self._workers.run,
            asks_store=self._is_store_usable,
            find_removed=partial(removed_topics, directory, disk=env.disk, report=logger.warning),
        )
        quota = self.manager.fetch_quota
        self.reader = RemoteReader(env, tier, storage=storage, metadata=metadata, indexes=indexes, quota=quota)
        self._metadata, self.indexes = metadata, indexes
        return self.manager, self.reader, indexes

    def _as_made(self, tier: TierSettings) -> TierSettings:
        """The settings with the topic's actual number of partitions, by which the manager assigns partitions."""
        topic = self._broker.image.topics_by_name.get(REMOTE_LOG_METADATA_TOPIC)
        if topic is None or len(topic.partitions) == tier.of_metadata_topic("topic.num.partitions"):
            return tier
        count = len(topic.partitions)
        logger.warning("the metadata topic of the tier keeps its number of partitions", partitions=count)
        return replace(tier, rlmm_configs={**tier.rlmm_configs, PARTITIONS_KEY: str(count)})
