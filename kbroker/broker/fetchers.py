"""Copies the partitions that this broker follows from their leaders.

Theory of operation: there are `num.replica.fetchers` tasks for each source broker. A task sends one Fetch at a time
(`kbroker.replication.follower`), and changes the logs as the answer requires (`kbroker.broker.follower_logs`).

A change of the metadata comes first: `release` ends the copying of the partitions whose leader changes, and waits for
appends in threads. So a new leader begins its epoch at the end of its log, and nothing of an older epoch follows.

A leader lets an idle follower wait for `replica.fetch.wait.max.ms`. A new partition does not wait that long: the task
closes the connection and sends a new request. Bursts of changes are collected, so this happens at most once in
INTERRUPT_MS, and less often with many partitions, because each new session names all of them.

Source: AbstractFetcherThread and AbstractFetcherManager of Apache Kafka 4.3.1.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Final

import trio

from kbroker.broker.follower_logs import FollowerLogs, SourceFailed
from kbroker.broker.peers import connect_to_peer
from kbroker.broker.tier_followers import TierBuilds
from kbroker.client.streaming import Connection, ConnectionClosed
from kbroker.config import Settings
from kbroker.metadata.delta import Delta
from kbroker.replication.follower import FetchLimits, Followed, PartitionId, ReplicaFetcher, delay_ms, fetch_version
from kbroker.replication.partition import Partition
from kbroker.runtime.event_log import get_logger
from wire.client import MAX_RESPONSE_BYTES
from wire.errors import ErrorCode, Malformed
from wire.messages.fetch import FetchRequest, FetchResponse

if TYPE_CHECKING:
    from kbroker.broker.broker import Broker

INTERRUPT_MS: Final = 50
INTERRUPT_MS_PER_PARTITION: Final = 0.2
COLLECTING_MS: Final = 10
"""After a change, a request in flight is given this time to end by itself."""

_SESSION_ERRORS: Final = (
    ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
    ErrorCode.INVALID_FETCH_SESSION_EPOCH,
)

logger = get_logger(__name__)


def longest_response(settings: Settings) -> int:
    """The size of the largest answer in bytes: the records that a follower asks for, or one larger batch, which may be
    as large as a request, and the offsets of many partitions.
    """
    return (
        settings.replication.replica_fetch_response_max_bytes
        + settings.server.socket_request_max_bytes
        + MAX_RESPONSE_BYTES
    )


class Fetchers:
    """The tasks that copy partitions from other brokers. `run` them; `follow` and `release` say what is copied."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.sources: dict[tuple[int, int], Source] = {}
        self._copied: dict[PartitionId, Source] = {}
        self._nursery: trio.Nursery | None = None
        self.bytes_in = 0
        self.bytes_out = 0

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Copy all partitions of which this broker is a follower, until the task is cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            task_status.started()
            self.follow(self.broker.replicas.partitions.values())
            try:
                await trio.sleep_forever()
            finally:
                self._nursery = None

    async def release(self, delta: Delta, locks: AsyncExitStack) -> None:
        """Stop copying the partitions whose leader epoch changes or that leave this broker. If a thread writes to one,
        wait for the thread, and hold the partition's lock until `locks` closes.
        """
        leaving = []
        own_id = self.broker.node_id
        for change in delta.changed_partitions:
            before, after = change.before, change.after
            stays = after is not None and own_id in after.replicas
            if not stays or before is None or after is None or before.leader_epoch != after.leader_epoch:
                self.drop((change.topic.id, change.index))
                leaving.append((change.topic.name, change.index))
        appender_locks, held = self.broker.appender.locks, set()
        # A task may take another one of these locks while this one waits.
        while busy := [key for key in leaving if key in appender_locks and key not in held]:
            held.add(busy[0])
            await locks.enter_async_context(appender_locks.holding(busy[0]))

    def follow(self, partitions: Iterable[Partition]) -> None:
        """Copy those partitions that follow a leader, in their current leader epoch."""
        if self._nursery is None:
            return
        for partition in partitions:
            partition_id = (partition.topic_id, partition.index)
            if not partition.is_follower or partition.leader < 0:
                self.drop(partition_id)
                continue
            source, key = self._copied.get(partition_id), self._key_for(partition)
            known = None if source is None or source.key != key else source.fetcher.partitions.get(partition_id)
            if known is None or not known.is_current or known.partition is not partition:
                self.drop(partition_id)
                source = self._copied[partition_id] = self._source(key)
                source.follow(Followed(partition, partition.leader_epoch))

    def follow_changes(self, delta: Delta) -> None:
        """`follow` the changed partitions that are on this broker."""
        held = self.broker.replicas.partitions
        keys = ((change.topic.name, change.index) for change in delta.changed_partitions)
        self.follow([held[key] for key in keys if key in held])

    def drop(self, partition_id: PartitionId) -> None:
        """Stop copying a partition."""
        source = self._copied.pop(partition_id, None)
        if source is not None and not source.drop(partition_id):
            source.scope.cancel()
            del self.sources[source.key]

    def _key_for(self, partition: Partition) -> tuple[int, int]:
        return partition.leader, partition.index % self.broker.settings.replication.num_replica_fetchers

    def _source(self, key: tuple[int, int]) -> Source:
        assert self._nursery is not None
        source = self.sources.get(key)
        if source is None:
            source = self.sources[key] = Source(self, key)
            self._nursery.start_soon(source.run)
        return source

    def lags(self) -> dict[tuple[str, int], int]:
        """How many committed records of each copied partition are still missing here, as of the last answer."""
        return {
            followed.partition.key: followed.lag
            for source in self.sources.values()
            for followed in source.fetcher.partitions.values()
            if followed.lag is not None
        }


class Source:
    """One task that copies from one other broker; `key` is the broker's id and the number of the task."""

    def __init__(self, fetchers: Fetchers, key: tuple[int, int]) -> None:
        self.key = key
        self.scope = trio.CancelScope()
        broker = self._broker = fetchers.broker
        self.fetcher = ReplicaFetcher(broker.node_id)
        self._news = trio.Event()
        self._builds = TierBuilds(broker, self.fetcher, on_end=self._wake)
        self._logs = FollowerLogs(broker, self.fetcher, self._builds, source_id=key[0])
        self._wait: trio.CancelScope | None = None  # around the wait for an answer
        self._is_interrupted = False
        self._interrupted_ms = -(1 << 62)
        self._failures = 0

    def follow(self, followed: Followed) -> None:
        """Copy a partition from now on."""
        self.fetcher.follow(followed)
        self._wake()
        wait = self._wait
        if wait is not None and not self._is_interrupted:
            self._is_interrupted = True
            pause_ms = max(INTERRUPT_MS, INTERRUPT_MS_PER_PARTITION * len(self.fetcher.partitions))
            since_ms = self._broker.env.now_ms() - self._interrupted_ms
            wait.deadline = min(wait.deadline, trio.current_time() + max(COLLECTING_MS, pause_ms - since_ms) / 1000)

    def drop(self, partition_id: PartitionId) -> bool:
        """Stop copying a partition; returns whether others are left."""
        self.fetcher.drop(partition_id)
        return bool(self.fetcher.partitions)

    async def run(self) -> None:
        """Copy until `scope` is cancelled."""
        with self.scope:
            async with trio.open_nursery() as self._builds.nursery:
                await self._run()

    async def _run(self) -> None:
        while True:
            try:
                connection = await self._connect()
                try:
                    await self._copy(connection)
                finally:
                    connection.close()
                    self.fetcher.start_again()
            except (SourceFailed, ConnectionClosed, Malformed, OSError) as error:
                if self._failures == 0:
                    why = str(error) or "the connection was closed"
                    logger.warning("cannot fetch from a broker", source=self.key[0], why=why)
                self._failures += 1
                backoff_ms = self._broker.settings.replication.replica_fetch_backoff_ms
                await self._pause(delay_ms(self._failures, backoff_ms))

    def _wake(self) -> None:
        self._news.set()

    async def _pause(self, longest_ms: float) -> None:
        """Wait, but not longer than until a partition is added or was built."""
        self._news = trio.Event()
        with trio.move_on_after(longest_ms / 1000):
            await self._news.wait()

    async def _connect(self) -> Connection:
        broker, (source_id, number) = self._broker, self.key
        return await connect_to_peer(
            broker,
            source_id,
            client_id=f"broker-{broker.node_id}-fetcher-{number}",
            timeout_ms=broker.settings.replication.replica_socket_timeout_ms,
            max_response_bytes=longest_response(broker.settings),
        )

    async def _copy(self, connection: Connection) -> None:
        """Fetch until the connection fails, or a new partition must not wait."""
        broker, fetcher = self._broker, self.fetcher
        while True:
            settings = broker.settings.replication
            limits = FetchLimits(
                settings.replica_fetch_wait_max_ms,
                settings.replica_fetch_min_bytes,
                settings.replica_fetch_response_max_bytes,
                settings.replica_fetch_max_bytes,
            )
            now_ms, version = broker.env.now_ms(), fetch_version(broker.image.metadata_version)
            request = fetcher.request(now_ms, limits, broker_epoch=broker.lifecycle.epoch, version=version)
            if request is None:
                ready_ms = fetcher.next_ready_ms()
                await self._pause(limits.max_wait_ms if ready_ms is None else ready_ms - now_ms)
                continue
            timeout_ms = limits.max_wait_ms + settings.replica_socket_timeout_ms
            response = await self._ask(connection, request, version=version, timeout_ms=timeout_ms)
            if response is None:
                return
            if response.error_code not in (ErrorCode.NONE, *_SESSION_ERRORS):
                raise SourceFailed(f"Fetch is answered with error {response.error_code}")
            if self._failures:
                logger.info("fetching from a broker again", source=self.key[0])
                self._failures = 0
            await self._logs.take(fetcher.take(response), connection)

    async def _ask(
        self, connection: Connection, request: FetchRequest, *, version: int, timeout_ms: int
    ) -> FetchResponse | None:
        """The answer, or None if a new partition ends the wait for it."""
        self._is_interrupted = False
        with trio.move_on_after(timeout_ms / 1000) as wait:
            self._wait = wait
            try:
                response: FetchResponse = await connection.ask(request, version=version)
            finally:
                self._wait = None
            return response
        if not self._is_interrupted:
            raise SourceFailed(f"no answer in {timeout_ms} ms")
        self._interrupted_ms = self._broker.env.now_ms()
        return None
