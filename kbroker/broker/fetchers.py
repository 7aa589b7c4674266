"""Copies the partitions that this broker follows from their leaders.

Theory of operation: there is one task for each source broker, `num.replica.fetchers` if that is more than one. A task
sends one Fetch at a time (see `kbroker.replication.follower`), and carries out what the answer means for each
partition, under the partition's lock: small appends inline, large ones and truncations in a thread. Records are written
as they came, with one write for each partition and answer.

A change of the metadata comes first: `release` ends the copying of the partitions whose leader changes, and waits for
appends in threads. So a new leader begins its epoch at the end of its log, and nothing of an older epoch follows.

A leader lets an idle follower wait for `replica.fetch.wait.max.ms`. A new partition does not wait that long: the task
closes the connection and sends a new request. Bursts of changes are collected, so this happens at most once in
INTERRUPT_MS, and less often with many partitions, because each new session names all of them.

A follower may learn of a new leader epoch before the leader does. Therefore the pause after an error begins at
FIRST_DELAY_MS and doubles up to `replica.fetch.backoff.ms`.

Source: AbstractFetcherThread and AbstractFetcherManager of Apache Kafka 4.3.1.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Final

import trio

from kbroker.client.streaming import Connection, ConnectionClosed
from kbroker.metadata.delta import Delta
from kbroker.replication.follower import (
    FetchLimits,
    Followed,
    PartitionId,
    ReplicaFetcher,
    Step,
    fetch_version,
    list_offsets_version,
    step_for,
    step_for_code,
    truncation_offset,
)
from kbroker.replication.offset_lookup import EARLIEST, LATEST
from kbroker.replication.partition import Partition
from kbroker.replication.throttle import UNLIMITED, is_throttled
from kbroker.runtime.event_log import get_logger
from wire.errors import ErrorCode, KafkaError, Malformed
from wire.messages.fetch import FetchResponse, PartitionData
from wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)

if TYPE_CHECKING:
    from kbroker.broker.broker import Broker

FIRST_DELAY_MS: Final = 10
INTERRUPT_MS: Final = 50
INTERRUPT_MS_PER_PARTITION: Final = 0.2
COLLECTING_MS: Final = 10
"""After a change, a request in flight is given this time to end by itself."""
BASE_OFFSET: Final = struct.Struct(">q")

_SESSION_ERRORS: Final = (
    ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
    ErrorCode.INVALID_FETCH_SESSION_EPOCH,
)

logger = get_logger(__name__)


class SourceFailed(Exception):
    """A source broker cannot be reached or answers nonsense; the task connects again later."""


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
        """Copy partitions no more whose leader epoch changes or that leave this broker, and hold the locks of those
        that a thread writes to, until `locks` closes.
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
        """Copy a partition no more."""
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
        self._fetchers = fetchers
        self._news = trio.Event()
        self._wait: trio.CancelScope | None = None  # around the wait for an answer
        self._is_interrupted = False
        self._interrupted_ms = -(1 << 62)
        self._failures = 0

    def follow(self, followed: Followed) -> None:
        """Copy a partition from now on."""
        self.fetcher.follow(followed)
        self._news.set()
        wait = self._wait
        if wait is not None and not self._is_interrupted:
            self._is_interrupted = True
            pause_ms = max(INTERRUPT_MS, INTERRUPT_MS_PER_PARTITION * len(self.fetcher.partitions))
            since_ms = self._broker.env.now_ms() - self._interrupted_ms
            wait.deadline = min(wait.deadline, trio.current_time() + max(COLLECTING_MS, pause_ms - since_ms) / 1000)

    def drop(self, partition_id: PartitionId) -> bool:
        """Copy a partition no more; returns whether others are left."""
        self.fetcher.drop(partition_id)
        return bool(self.fetcher.partitions)

    async def run(self) -> None:
        """Copy until `scope` is cancelled."""
        with self.scope:
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
                    await self._pause(self._delay_ms(self._failures))

    def _delay_ms(self, failures: int) -> int:
        return min(FIRST_DELAY_MS << min(failures - 1, 20), self._broker.settings.replication.replica_fetch_backoff_ms)

    async def _pause(self, delay_ms: float) -> None:
        """Wait, but not longer than until a partition is added."""
        self._news = trio.Event()
        with trio.move_on_after(delay_ms / 1000):
            await self._news.wait()

    async def _connect(self) -> Connection:
        broker, (source_id, number) = self._broker, self.key
        name = broker.settings.listeners.inter_broker_name
        registered = broker.image.brokers.get(source_id)
        endpoint = None if registered is None or name is None else registered.endpoints.get(name)
        if endpoint is None:
            raise SourceFailed(f"broker {source_id} is not registered with a listener {name}")
        with trio.move_on_after(broker.settings.replication.replica_socket_timeout_ms / 1000):
            stream = await broker.env.connect(endpoint.host, endpoint.port)
            return Connection(stream, client_id=f"broker-{broker.node_id}-fetcher-{number}")
        raise SourceFailed(f"no connection to {endpoint.host}:{endpoint.port} in time")

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
            await connection.send(request, version=version)
            response = await self._receive(connection, limits.max_wait_ms + settings.replica_socket_timeout_ms)
            if response is None:
                return
            if response.error_code not in (ErrorCode.NONE, *_SESSION_ERRORS):
                raise SourceFailed(f"Fetch is answered with error {response.error_code}")
            if self._failures:
                logger.info("fetching from a broker again", source=self.key[0])
                self._failures = 0
            await self._carry_out(fetcher.take(response), connection)

    async def _receive(self, connection: Connection, timeout_ms: int) -> FetchResponse | None:
        """The answer, or None if a new partition ends the wait for it."""
        self._is_interrupted = False
        with trio.move_on_after(timeout_ms / 1000) as self._wait:
            response: FetchResponse = await connection.receive()
            return response
        self._wait = None
        if not self._is_interrupted:
            raise SourceFailed(f"no answer in {timeout_ms} ms")
        self._interrupted_ms = self._broker.env.now_ms()
        return None

    # What an answer means

    async def _carry_out(self, answers: list[tuple[Followed, PartitionData]], connection: Connection) -> None:
        self._wait = None
        out_of_range: list[Followed] = []
        for followed, data in answers:
            if not followed.is_current:
                self.fetcher.stop(followed)  # newer metadata replace it
                continue
            step = step_for(data)
            try:
                if step is Step.APPEND:
                    await self._append(followed, data)
                elif step is Step.TRUNCATE:
                    await self._truncate(followed, data)
                elif step is Step.LOOK_UP:
                    out_of_range.append(followed)
                else:
                    self._wait_with(followed, step, data.error_code)
            except KafkaError as error:
                self._fail(followed, error)
            if self._broker.turns.due():
                await self._broker.turns.next()
        if out_of_range:
            await self._return_into_range(out_of_range, connection)

    async def _append(self, followed: Followed, data: PartitionData) -> None:
        """Append the records of an answer and take the leader's offsets.

        Errors  CORRUPT_MESSAGE, KAFKA_STORAGE_ERROR
        """
        partition, records, size = followed.partition, data.records, 0
        if records:
            assert isinstance(records, memoryview), "decoded records are a view"
            size = len(records)
            await self._start_inside_batch(followed, records)
            await self._broker.appender.append_as_follower(followed, records)
            self._fetchers.bytes_in += size
            if not followed.is_current:
                return
            if partition.log.log_end_offset == followed.fetch_offset:
                # Not one whole batch, or one of a leader epoch that is unknown here: do not ask again at once.
                self._delay(followed, ErrorCode.CORRUPT_MESSAGE)
                return
        followed.failures = 0
        if partition.on_leaders_offsets(data.high_watermark, data.log_start_offset):
            self._broker.wake(partition.key)
        followed.lag = max(0, data.high_watermark - partition.log.log_end_offset)
        self.fetcher.note_position(followed)
        self._hold_back(followed, size)

    def _hold_back(self, followed: Followed, size: int) -> None:
        """Count throttled traffic; if there is too much, a partition that lags waits."""
        broker, partition = self._broker, followed.partition
        throttle = broker.followers_throttle
        replicas = partition.log.config.follower_replication_throttled_replicas
        if throttle.rate == UNLIMITED or not is_throttled(replicas, partition.index, broker.node_id):
            return
        now_ms = broker.env.now_ms()
        if size:
            throttle.record(size, now_ms)
        if followed.lag and (wait_ms := throttle.wait_ms(now_ms)):
            self.fetcher.delay(followed, now_ms + wait_ms)

    async def _start_inside_batch(self, followed: Followed, records: memoryview) -> None:
        """If the leader's log starts inside a batch, and this one is still empty, start it at the batch's offset."""
        log = followed.partition.log
        if len(records) < BASE_OFFSET.size or log.log_start_offset != log.log_end_offset:
            return
        base_offset = BASE_OFFSET.unpack_from(records)[0]
        if 0 <= base_offset < followed.fetch_offset == log.log_end_offset:
            await self._start_at(followed, base_offset, "the leader's log starts inside a batch")

    async def _truncate(self, followed: Followed, data: PartitionData) -> None:
        """Truncate to where the history agrees with the leader's. Errors: KAFKA_STORAGE_ERROR."""
        diverging, log = data.diverging_epoch, followed.partition.log
        assert diverging is not None
        offset = truncation_offset(
            diverging.epoch, diverging.end_offset, log.leader_epochs, log_end_offset=log.log_end_offset
        )
        await self._truncate_to(followed, offset, f"the leader ended epoch {diverging.epoch} at {diverging.end_offset}")

    async def _truncate_to(self, followed: Followed, offset: int, why: str) -> None:
        broker, partition = self._broker, followed.partition
        log = partition.log
        async with broker.appender.locks.holding(partition.key):
            if not followed.is_current:
                return
            if offset < log.log_end_offset:  # otherwise only the leader epochs of the log change
                below = " below the high watermark" if offset < partition.known_high_watermark else ""
                logger.info(
                    f"truncating a partition{below}",
                    partition=partition.name,
                    from_offset=log.log_end_offset,
                    to_offset=offset,
                    high_watermark=partition.known_high_watermark,
                    why=why,
                )
            await broker.env.run_blocking(log.truncate_to, offset)
            partition.on_truncated()
        self.fetcher.note_position(followed)

    def _wait_with(self, followed: Followed, step: Step, code: int) -> None:
        name = followed.partition.name
        if step is Step.DELAY:
            self._delay(followed, code)
            return
        if step is Step.AWAIT_TIER:
            logger.warning(
                "a follower cannot be built from the tier yet; the partition is not copied",
                partition=name,
                fetch_offset=followed.fetch_offset,
            )
        else:
            logger.info(
                "the leader has a newer leader epoch; waiting for the metadata",
                partition=name,
                leader_epoch=followed.leader_epoch,
            )
        self.fetcher.stop(followed)

    def _delay(self, followed: Followed, code: int) -> None:
        followed.failures += 1
        delay_ms = self._delay_ms(followed.failures)
        if delay_ms >= self._broker.settings.replication.replica_fetch_backoff_ms:
            # Shorter delays are normal: the leader does not know the newest metadata yet.
            logger.warning(
                "the leader refuses to serve a partition",
                partition=followed.partition.name,
                source=self.key[0],
                code=code,
            )
        self.fetcher.delay(followed, self._broker.env.now_ms() + delay_ms)

    def _fail(self, followed: Followed, error: KafkaError) -> None:
        """A record is damaged: try again later. The log cannot be written: stop."""
        logger.error("cannot copy a partition", partition=followed.partition.name, why=error.message)
        if error.code is ErrorCode.KAFKA_STORAGE_ERROR and self._broker.replicas.directory.state.failure is not None:
            self.fetcher.stop(followed)
        else:
            followed.failures = 20
            self.fetcher.delay(followed, self._broker.env.now_ms() + self._delay_ms(followed.failures))

    # Offsets out of range

    async def _return_into_range(self, out_of_range: list[Followed], connection: Connection) -> None:
        """Continue at offsets that the leader has.

        If the leader's log ends earlier, an unclean election has lost records: truncate to its end. If it starts later,
        retention has deleted what is missing here: start again at its start.
        """
        after = []
        for followed, found in await self._look_up(out_of_range, LATEST, connection):
            end = followed.partition.log.log_end_offset
            if found.offset < end:
                await self._changing(followed, found.offset, f"the leader's log ends at {found.offset}")
            else:
                after.append(followed)
        if not after:
            return
        for followed, found in await self._look_up(after, EARLIEST, connection):
            if found.offset > followed.partition.log.log_end_offset:
                await self._changing(followed, found.offset, "retention has deleted the leader's records", anew=True)
            else:
                self._delay(followed, ErrorCode.OFFSET_OUT_OF_RANGE)

    async def _changing(self, followed: Followed, offset: int, why: str, *, anew: bool = False) -> None:
        try:
            if anew:
                await self._start_at(followed, offset, why)
            else:
                await self._truncate_to(followed, offset, why)
        except KafkaError as error:
            self._fail(followed, error)

    async def _start_at(self, followed: Followed, offset: int, why: str) -> None:
        broker, partition = self._broker, followed.partition
        async with broker.appender.locks.holding(partition.key):
            if not followed.is_current:
                return
            logger.warning(
                "starting a partition again at the leader's log start offset",
                partition=partition.name,
                log_end_offset=partition.log.log_end_offset,
                log_start_offset=offset,
                why=why,
            )
            await broker.env.run_blocking(partition.log.truncate_fully_and_start_at, offset)
            partition.on_truncated()
        self.fetcher.note_position(followed)

    async def _look_up(
        self, asked: list[Followed], name: int, connection: Connection
    ) -> list[tuple[Followed, ListOffsetsPartitionResponse]]:
        """The leader's offsets for partitions; those that it refuses to look up are delayed."""
        broker = self._broker
        topics: dict[str, list[ListOffsetsPartition]] = {}
        for followed in asked:
            topics.setdefault(followed.partition.topic, []).append(
                ListOffsetsPartition(
                    partition_index=followed.partition.index,
                    current_leader_epoch=followed.leader_epoch,
                    timestamp=name,
                )
            )
        request = ListOffsetsRequest(
            replica_id=broker.node_id,
            topics=[ListOffsetsTopic(name=topic, partitions=partitions) for topic, partitions in topics.items()],
        )
        version = list_offsets_version(broker.image.metadata_version)
        timeout_ms = broker.settings.replication.replica_socket_timeout_ms
        response: ListOffsetsResponse | None = None
        with trio.move_on_after(timeout_ms / 1000):
            response = await connection.ask(request, version=version)
        if response is None:
            raise SourceFailed(f"no answer to ListOffsets in {timeout_ms} ms")
        by_key = {(topic.name, one.partition_index): one for topic in response.topics for one in topic.partitions}
        found = []
        for followed in asked:
            answer = by_key.get(followed.partition.key)
            if answer is None or answer.error_code != ErrorCode.NONE:
                code = ErrorCode.UNKNOWN_SERVER_ERROR if answer is None else answer.error_code
                self._wait_with(followed, step_for_code(code), code)
            elif followed.is_current:
                found.append((followed, answer))
        return found
