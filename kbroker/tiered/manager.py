"""The remote log manager: which partitions are tiered on this broker, and which tasks run for them.

Theory of operation: `on_change` sets the desired state, and `run` establishes it. Each tiered partition has one task
that copies and one that expires (see partition_tasks.py). If a partition's data in the tier must be deleted, a third
kind of task does so; after a restart it continues until it is done (see registry.py). Without tiered topics no task
runs.

The manager deletes the objects of a topic that is missing in the cluster's metadata only if the topic is known to have
been removed: by a change that this process saw, by a mark in the registry, or by the metadata log, which is searched
once. Without that proof the metadata may be an old backup, and the objects the only copy of newer data. Such objects
are kept and counted.

At most one copy of a partition runs at a time; all partitions together have as many copies as there are copier threads.
Deletions and reads (see remote_read.py) have threads of their own, so the three never wait for each other.

Stopping. No new copy starts. Running copies are finished if that takes no longer than the given grace period. The next
start finds interrupted copies and deletes them.

Source  KIP-405, KIP-950; RemoteLogManager of Apache Kafka 4.3.1
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Container, Iterable, Iterator
from contextlib import contextmanager
from typing import Final
from uuid import UUID

import trio

from kbroker.config.tier_settings import TierSettings
from kbroker.runtime.cautious_clock import CautiousClock
from kbroker.runtime.event_log import get_logger
from kbroker.runtime.net_ports import Env
from kbroker.runtime.ports import Runner, run_here
from kbroker.storage.checkpoint import TopicPartition
from kbroker.storage.durable import is_fatal
from kbroker.tiered import partition_tasks
from kbroker.tiered.api import (
    RemoteLogMetadataManager,
    RemoteStorageError,
    RemoteStorageManager,
    RetriableRemoteStorageError,
    TopicIdPartition,
)
from kbroker.tiered.calls import plugin_errors
from kbroker.tiered.index_cache import RemoteIndexCache
from kbroker.tiered.outage import Outage
from kbroker.tiered.partition import TierCounters
from kbroker.tiered.ports import PartitionReader, PartitionWriter
from kbroker.tiered.quota import ByteQuota
from kbroker.tiered.registry import RemotePartitions
from kbroker.tiered.right_store import has_none_of_its_segments
from kbroker.tiered.tools import TierTools, id_of, new_remote

logger = get_logger(__name__)

STOP_GRACE_MS: Final = 10_000
RETRY_MS: Final = 1_000
NAMED: Final = 5
ROUNDS_AT_ONCE: Final = 32
"""This many rounds start before the event loop serves clients again: thousands of partitions may be due at once."""


class RemoteLogManager:
    """See the module's docstring.

    Shape  copy_quota and fetch_quota are budgets in bytes per second of all partitions together; retired has the counts
           of partitions that are no longer tiered here; has_wrong_store: after the start the store had none of the
           requested segments
    """

    def __init__(
        self,
        env: Env,
        settings: TierSettings,
        *,
        storage: RemoteStorageManager,
        metadata: RemoteLogMetadataManager,
        indexes: RemoteIndexCache,
        partitions: PartitionWriter,
        broker_id: int,
        directory: str,
        run: Runner = run_here,
        find_removed: Callable[[], Container[UUID]] = frozenset,
        asks_store: bool = True,
    ) -> None:
        """`directory` is the data directory, where the registry file is. `find_removed` returns the topics that were
        removed according to the cluster's metadata log; it blocks. With `asks_store` the manager checks after the start
        whether the store has the segments that the metadata lists.
        """
        self.env = env
        self.copy_quota, self.fetch_quota = (
            ByteQuota(rate, window_ms=window_ms, now_ms=env.now_ms()) for rate, window_ms in _limits(settings)
        )
        self.tools = TierTools(
            env=env,
            settings=settings,
            storage=storage,
            metadata=metadata,
            indexes=indexes,
            partitions=partitions,
            broker_id=broker_id,
            copy_threads=env.threads(settings.remote_log_manager_copier_thread_pool_size),
            run=run,
            delete_threads=env.threads(settings.remote_log_manager_expiration_thread_pool_size),
            follower_threads=env.threads(settings.remote_log_manager_follower_thread_pool_size),
            clock=CautiousClock(env, report=logger.warning),
            finishing=self._finishing,
        )
        self.copiers = trio.CapacityLimiter(settings.remote_log_manager_copier_thread_pool_size)
        self.expirers = trio.CapacityLimiter(settings.remote_log_manager_expiration_thread_pool_size)
        self.outage = Outage(env.now_ms)
        self.copy_turn = trio.Lock()
        self.turns = trio.CapacityLimiter(ROUNDS_AT_ONCE)
        self._registry = RemotePartitions(env.disk, directory)
        self._registry_turn = trio.Lock()
        self._registering: set[TopicIdPartition] = set()
        self._is_registry_lost = False
        self._held: dict[TopicPartition, partition_tasks.PartitionTasks] = {}
        self._deleting: set[TopicIdPartition] = set()
        self._followed: set[TopicIdPartition] = set()
        self._wanted: frozenset[TopicPartition] = frozenset()
        self._topic_ids: Collection[UUID] | None = None
        self._find_removed: Callable[[], Container[UUID]] | None = find_removed
        self._removed: set[UUID] = set()
        self._has_unmarked = False
        self._kept: set[TopicIdPartition] = set()
        self._changed = trio.Event()
        self._settled = trio.Event()
        self._asks_store = asks_store
        self._followers: set[TopicIdPartition] = set()  # of which this broker was a follower when their tasks ended
        self._unfinished: set[trio.CancelScope] = set()
        self._is_stopping = False
        self.retired = TierCounters()
        self.has_wrong_store = False

    # Input

    async def on_change(
        self, tiered: Collection[TopicPartition], *, topic_ids: Collection[UUID], removed: Iterable[UUID] = ()
    ) -> None:
        """Set which partitions of this broker are tiered (all of them, led or not), which topics exist, and which were
        removed since the last call.

        The settings of a partition's log decide what happens. When a partition is no longer tiered, the manager deletes
        its data in the tier if its topic was removed, or has remote.log.delete.on.disable. Returns immediately; from
        then on each of these partitions has its `remote`.
        """
        self._wanted, self._topic_ids = frozenset(tiered), topic_ids
        self._note_removed(removed)
        for key in self._wanted:
            running, partition = self._held.get(key), self.tools.partitions.find_partition(key)
            if partition is not None and partition.remote is None:
                partition.remote = new_remote(partition)  # now, or readers would report missing local data as lost
            if running is not None:
                running.led = running.held.partition.is_leader
                if running.held.partition.log.config is not running.config:
                    running.wake()
        self._changed.set()
        await trio.lowlevel.checkpoint()

    def reconfigure(self, settings: TierSettings) -> None:
        """Apply changed settings: quotas, threads, intervals."""
        now_ms, tools = self.env.now_ms(), self.tools
        tools.settings = settings
        quotas = (self.copy_quota, self.fetch_quota)
        for quota, (rate, window_ms) in zip(quotas, _limits(settings), strict=True):
            quota.change(rate, window_ms=window_ms, now_ms=now_ms)
        copiers = settings.remote_log_manager_copier_thread_pool_size
        expirers = settings.remote_log_manager_expiration_thread_pool_size
        self.copiers.total_tokens, self.expirers.total_tokens = copiers, expirers
        tools.copy_threads.resize(copiers)
        tools.delete_threads.resize(expirers)
        tools.follower_threads.resize(settings.remote_log_manager_follower_thread_pool_size)

    # Running

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Maintain the tiered partitions until cancelled. Call `stop` first to let copies finish."""
        await self._load_registry()
        async with trio.open_nursery() as nursery:
            task_status.started()
            if self._asks_store:
                nursery.start_soon(self._look_at_store)
            try:
                while True:
                    with trio.move_on_after(math.inf if self._is_settled else RETRY_MS / 1000):
                        await self._changed.wait()
                    self._changed = trio.Event()
                    await self._bring_about(nursery)
            finally:
                self._end_unfinished(STOP_GRACE_MS)

    async def stop(self, *, grace_ms: int = STOP_GRACE_MS) -> None:
        """Start nothing more and wait at most `grace_ms` for running operations.

        Call this before `run` is cancelled, while the metadata manager still works.
        """
        self._is_stopping = True
        self._end_unfinished(grace_ms)
        for running in tuple(self._held.values()):
            running.scope.cancel()
        for running in tuple(self._held.values()):
            await running.ended.wait()

    @contextmanager
    def _finishing(self) -> Iterator[None]:
        """Shield an operation from cancellation until the manager is stopped."""
        with trio.CancelScope(shield=True) as scope:
            self._unfinished.add(scope)
            if self._is_stopping:
                scope.deadline = trio.current_time() + STOP_GRACE_MS / 1000
            try:
                yield
            finally:
                self._unfinished.discard(scope)

    def _end_unfinished(self, grace_ms: int) -> None:
        self._is_stopping = True
        for scope in self._unfinished:
            scope.deadline = min(scope.deadline, trio.current_time() + grace_ms / 1000)

    async def _look_at_store(self) -> None:
        await self._settled.wait()
        self.has_wrong_store = await has_none_of_its_segments(self.tools, sorted(self._followed))

    # Establishing the desired state

    async def _load_registry(self) -> None:
        while True:
            try:
                return await self.env.run_blocking(self._registry.load)
            except ValueError as error:
                self._is_registry_lost = True
                logger.error("the registry of the tier cannot be parsed", file=self._registry.path, error=error)
                return None
            except OSError as error:
                if is_fatal(error):
                    raise
                # Too many open files, for example. An unread file must not be replaced.
                logger.warning("the registry of the tier cannot be read yet", file=self._registry.path, error=error)
                await self.env.sleep_ms(RETRY_MS)

    @property
    def _is_settled(self) -> bool:
        """Whether all wanted tasks run; otherwise `run` retries."""
        return self._is_stopping or (
            not (self._kept and self._find_removed)
            and self._wanted <= self._held.keys()
            and all(self._is_current(key, running) for key, running in self._held.items())
        )

    def _is_current(self, key: TopicPartition, running: partition_tasks.PartitionTasks) -> bool:
        return key in self._wanted and self.tools.partitions.find_partition(key) is running.held.partition

    async def _bring_about(self, nursery: trio.Nursery) -> None:
        if self._topic_ids is None or self._is_stopping:
            return
        for key, running in tuple(self._held.items()):
            if not self._is_current(key, running):
                running.scope.cancel()
        new = [partition for key in sorted(self._wanted) if (partition := self._startable(key)) is not None]
        if not await self._follow(new):
            return
        for partition in new:
            running = partition_tasks.PartitionTasks(self, partition)
            self._followers.discard(id_of(partition))
            self._held[partition.key] = running
            nursery.start_soon(self._look_after, running)
        await self._learn_removed()
        for gone in sorted(self._registry.entries - self._deleting):
            if self.has_to_go(gone):
                self._deleting.add(gone)
                nursery.start_soon(self._delete, gone)
        self._followers &= self._registry.entries
        await self._let_go()
        self._settled.set()

    def _startable(self, key: TopicPartition) -> PartitionReader | None:
        """The partition, if its tasks can start: the tasks of an earlier one and its deletion must have ended."""
        partition = self.tools.partitions.find_partition(key)
        if partition is None or key in self._held or id_of(partition) in self._deleting:
            return None
        return partition

    def has_to_go(self, gone: TopicIdPartition) -> bool:
        """Whether this broker must delete the partition's data in the tier now.

        While the topic exists, only the partition's leader deletes them. Another broker may not know yet that the topic
        is tiered again, and would delete new copies.
        """
        assert self._topic_ids is not None
        key = gone.topic, gone.partition
        running = self._held.get(key)
        if running is not None and id_of(running.held.partition) == gone:
            return False  # its tasks end first
        if gone.topic_id not in self._topic_ids:
            return self._is_removed(gone.topic_id)
        partition = self.tools.partitions.find_partition(key)
        if key in self._wanted or partition is None or partition.topic_id != gone.topic_id or not partition.is_leader:
            return False
        config = partition.log.config
        return not config.remote_storage_enable and config.remote_log_delete_on_disable

    def _is_removed(self, topic_id: UUID) -> bool:
        return topic_id in self._removed or topic_id in self._registry.removed

    @property
    def unknown_partitions(self) -> int:
        """The number of partitions whose objects are kept because the metadata does not list their topics."""
        return len(self._kept)

    async def _learn_removed(self) -> None:
        """Find out which of the unknown topics were removed; keep the partitions of the others."""
        kept = self._unknown()
        if kept and self._find_removed is not None:
            try:
                found = await self.env.run_blocking(self._find_removed)
            except OSError as error:
                logger.warning("the metadata log cannot be searched for removed topics yet", error=error)
            else:
                self._find_removed = None
                self._note_removed(one.topic_id for one in kept if one.topic_id in found)
                kept = self._unknown()
        if kept - self._kept and self._find_removed is None:
            names = sorted({one.topic for one in kept})
            logger.warning(
                "the tier has partitions of topics that the metadata do not list; their objects are kept",
                partitions=len(kept),
                topics=", ".join(names[:NAMED]) + (f" and {len(names) - NAMED} more" * (len(names) > NAMED)),
            )
        self._kept = kept
        if self._has_unmarked:
            self._has_unmarked = False
            try:
                await self._store_registry(gone=frozenset())
            except OSError as error:
                # The next write of the file has the marks too, and the next start searches the metadata log again.
                logger.warning("the registry of the tier cannot be written", file=self._registry.path, error=error)
        held = {id_of(one.held.partition) for one in self._held.values()}
        self._removed &= {one.topic_id for one in self._registry.entries | self._registering | held}

    def _note_removed(self, topic_ids: Iterable[UUID]) -> None:
        before = len(self._removed)
        self._removed.update(topic_ids)
        self._has_unmarked = self._has_unmarked or len(self._removed) > before

    def _unknown(self) -> set[TopicIdPartition]:
        assert self._topic_ids is not None
        entries, known = self._registry.entries, self._topic_ids
        return {one for one in entries if one.topic_id not in known and not self._is_removed(one.topic_id)}

    async def _follow(self, new: list[PartitionReader]) -> bool:
        """Follow the metadata of these partitions; False if it failed and has to be retried."""
        if not new:
            return True
        leaders = [id_of(partition) for partition in new if partition.is_leader]
        followers = [id_of(partition) for partition in new if not partition.is_leader]
        try:
            with plugin_errors("on_partition_leadership_changes"):
                await self.tools.metadata.on_partition_leadership_changes(leaders, followers)
        except RemoteStorageError as error:
            logger.warning("cannot start to tier partitions; will retry", partitions=len(new), error=error)
            return False
        self._followed.update(leaders, followers)
        return True

    async def _let_go(self) -> None:
        """Stop following the metadata of partitions that are no longer tiered here."""
        running = {id_of(one.held.partition) for one in self._held.values()}
        stale = self._followed - running - self._deleting
        if stale:
            try:
                with plugin_errors("on_stop_partitions"):
                    await self.tools.metadata.on_stop_partitions(sorted(stale))
            except RemoteStorageError as error:
                logger.warning("cannot stop following the metadata of partitions", partitions=len(stale), error=error)
            self._followed -= stale

    # Registry

    def may_have_remote_part(self, partition: TopicIdPartition) -> bool:
        """Whether the partition may have data in the tier: it is registered, or the registry is unreadable."""
        return partition in self._registry.entries or self._is_registry_lost

    async def register(self, partition: TopicIdPartition) -> None:
        """Record durably that the tier may have data of a partition. Errors: RetriableRemoteStorageError."""
        if partition in self._registry.entries:
            return
        self._registering.add(partition)
        try:
            await self._store_registry(gone=frozenset())
        except OSError as error:
            raise RetriableRemoteStorageError(f"{self._registry.path} cannot be written: {error}") from error

    async def _store_registry(self, *, gone: frozenset[TopicIdPartition]) -> None:
        async with self._registry_turn:
            # Another task that had the lock may have written this entry too.
            entries = (self._registry.entries | self._registering) - gone
            removed = (self._registry.removed | self._removed) & {one.topic_id for one in entries}
            if (entries, removed) != (self._registry.entries, self._registry.removed):
                await self.env.run_blocking(self._registry.store, entries, removed)
            self._registering -= entries

    async def _look_after(self, running: partition_tasks.PartitionTasks) -> None:
        partition = running.held.partition
        partition.remote = running.held.remote
        try:
            await running.run()
        finally:
            partition.remote = None
            if not running.led:
                self._followers.add(id_of(partition))
            for number in (0, 1):
                self.outage.forget((partition.key, number))
            self.retired.add(running.held.remote.counters)
            del self._held[partition.key]
            running.ended.set()
            self._changed.set()

    async def _delete(self, gone: TopicIdPartition) -> None:
        try:
            assert self._topic_ids is not None
            led = gone.topic_id in self._topic_ids or gone not in self._followers
            if await partition_tasks.delete_partition(self, gone, led=led):
                await self._store_registry(gone=frozenset({gone}))
            else:
                self._followed.add(gone)
        except OSError as error:
            logger.warning("the registry of the tier cannot be written", file=self._registry.path, error=error)
            await self.env.sleep_ms(self.tools.settings.remote_log_manager_task_interval_ms)
        finally:
            self._deleting.discard(gone)
            self._changed.set()


def _limits(settings: TierSettings) -> tuple[tuple[int, int], tuple[int, int]]:
    """The limits of all copies together, and of all reads: (bytes per second, window in ms)."""
    copy_windows = settings.remote_log_manager_copy_quota_window_num
    fetch_windows = settings.remote_log_manager_fetch_quota_window_num
    copy_s = copy_windows * settings.remote_log_manager_copy_quota_window_size_seconds
    fetch_s = fetch_windows * settings.remote_log_manager_fetch_quota_window_size_seconds
    return (
        (settings.remote_log_manager_copy_max_bytes_per_second, copy_s * 1000),
        (settings.remote_log_manager_fetch_max_bytes_per_second, fetch_s * 1000),
    )
