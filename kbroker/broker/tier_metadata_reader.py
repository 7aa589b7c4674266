"""Reads a partition of `__remote_log_metadata` from its leader, whether or not this broker has a replica.

Theory of operation: if this broker leads the partition, it reads its own log. Otherwise it sends Fetch requests to the
leader, as a consumer; each waits at the leader for new records. A reader has at most one connection. It keeps it while
the leader stays the same.

The leader is always read, because its high watermark rises first: a broker that copies a segment waits until it reads
its own record back. A follower learns of the same record only with its next Fetch.

Source: `ConsumerTask` of Apache Kafka 4.3.1; KIP-207, KIP-320
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import trio

from kbroker.broker.peers import connect_to_peer
from kbroker.client.streaming import Connection, ConnectionClosed
from kbroker.metadata.names import REMOTE_LOG_METADATA_TOPIC
from kbroker.replication.offset_lookup import EARLIEST, LATEST, OffsetAsked, look_up
from kbroker.replication.partition import Partition
from wire.errors import ErrorCode, KafkaError, Malformed, code_of
from wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, PartitionData
from wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from wire.record_batch import batches

if TYPE_CHECKING:
    from kbroker.broker.broker import Broker
    from kbroker.tiered.metadata_topic import Events

CONSUMER: Final = -1
FETCH_VERSION: Final = 13
LIST_OFFSETS_VERSION: Final = 7
"""All releases that can tier know these versions; kbroker asks other brokers for no versions."""
WAIT_MS: Final = 5_000
"""How long a Fetch waits for new records."""


class LeaderReader:
    """One partition; satisfies `kbroker.tiered.ports.MetadataReader`."""

    def __init__(self, broker: Broker, index: int, *, on_close: Callable[[LeaderReader], object]) -> None:
        self._broker = broker
        self._index = index
        self._on_close = on_close
        self._leader = -1  # of the connection
        self._connection: Connection | None = None
        self._wait: trio.CancelScope | None = None  # around the use of the connection

    @property
    def directory(self) -> str | None:
        """The directory of this broker's replica; None without one."""
        own = self._own
        return None if own is None else own.log.directory

    def close(self) -> None:
        """Close the connection."""
        self._disconnect()
        self._on_close(self)

    def check_leader(self) -> None:
        """End the wait for a broker that does not lead the partition any more: it may never answer."""
        if self._wait is not None and self._leader != self._current_leader():
            self._wait.cancel()

    # --- questions ----------------------------------------------------------------------------------------------------

    async def end_offset(self) -> int:
        """An offset below which all records are that were committed when the call began. Errors: KafkaError."""
        return await self._offset(LATEST)

    async def read(self, offset: int, leader_epoch: int, *, partition_count: int) -> Events | None:
        """The next events from `offset` on; none if there are none for a while. None if the log was truncated.

        Errors  KafkaError
        """
        if self._leads:
            return await self._read_own(offset, leader_epoch, partition_count)
        # Imported only by brokers with tiered topics.
        from kbroker.tiered.metadata_reading import SLICE_BYTES, read_fetched  # noqa: PLC0415
        from kbroker.tiered.metadata_topic import Events  # noqa: PLC0415

        found = await self._fetch(offset, leader_epoch, max_bytes=SLICE_BYTES, max_wait_ms=WAIT_MS)
        if found is None or found.diverging_epoch is not None:
            start = await self._offset(EARLIEST)
            if start <= offset:
                return None
            events = Events(offset)
            events.skip_to(start, "the log starts later")
            return events
        data, end_offset = _records_of(found), found.high_watermark
        if not data and offset < end_offset:
            readable = await self._next_readable(offset, end_offset)
            if readable < end_offset:
                events = Events(offset)
                events.skip_to(readable, "damaged at the leader")
                return events
        return read_fetched(data, offset, end_offset=end_offset, partition=self._index, partition_count=partition_count)

    async def has_batch(self, base_offset: int, crc: int) -> bool:
        """Whether the log has this batch, or starts after it. Errors: KafkaError."""
        if self._leads:
            from kbroker.tiered.metadata_reading import has_batch  # noqa: PLC0415

            return await self._broker.env.run_blocking(has_batch, self._led().log, base_offset, crc)
        if base_offset < await self._offset(EARLIEST):
            return True
        found = await self._fetch(base_offset, -1, max_bytes=1)
        return found is not None and any(
            (one.base_offset, one.crc) == (base_offset, crc) for one in batches(_records_of(found))
        )

    async def _next_readable(self, offset: int, end_offset: int) -> int:
        """The next offset that the leader can read; `end_offset` if there is none before it. A leader whose search
        meets a damaged header answers without records, as it does if its high watermark is inside a batch.
        """
        unreadable, readable, step = offset, end_offset, 1
        while readable - unreadable > 1:
            probe = min(unreadable + step, readable - 1)
            found = await self._fetch(probe, -1, max_bytes=1)
            if found is not None and found.records:
                readable, step = probe, 1
            else:
                unreadable, step = probe, 2 * step
        return readable

    async def _offset(self, name: int) -> int:
        if self._leads:
            return look_up(self._led(), OffsetAsked(name, LIST_OFFSETS_VERSION)).offset
        return await self._list_offset(name)

    # --- this broker leads --------------------------------------------------------------------------------------------

    @property
    def _own(self) -> Partition | None:
        return self._broker.find_partition((REMOTE_LOG_METADATA_TOPIC, self._index))

    @property
    def _leads(self) -> bool:
        own = self._own
        return own is not None and own.is_leader

    def _led(self) -> Partition:
        """Errors: those of `find` and `Partition.leading`."""
        partition = self._broker.find(REMOTE_LOG_METADATA_TOPIC, self._index)
        partition.leading()
        return partition

    async def _read_own(self, offset: int, leader_epoch: int, partition_count: int) -> Events | None:
        from kbroker.tiered.metadata_reading import is_truncated, read_log  # noqa: PLC0415

        partition = self._led()
        log, own_epoch = partition.log, partition.leader_epoch
        if is_truncated(log, offset, leader_epoch):
            return None

        def is_over() -> bool:
            return not partition.is_leader or self._own is not partition or partition.known_high_watermark > offset

        await self._broker.purgatory.wait(partition.key, until=is_over, max_wait_ms=WAIT_MS)
        end_offset = self._led().known_high_watermark
        events = await read_log(self._broker.env, log, offset, end_offset=end_offset, partition_count=partition_count)
        if self._led() is not partition or partition.leader_epoch != own_epoch:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{partition.name} has a newer leader epoch")
        return events

    # --- another broker leads -----------------------------------------------------------------------------------------

    def _current_leader(self) -> int:
        return self._broker.current_leader(REMOTE_LOG_METADATA_TOPIC, self._index)[0]

    def _topic_id(self) -> UUID:
        topic = self._broker.image.topics_by_name.get(REMOTE_LOG_METADATA_TOPIC)
        if topic is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no {REMOTE_LOG_METADATA_TOPIC}")
        return topic.id

    async def _fetch(
        self, offset: int, leader_epoch: int, *, max_bytes: int, max_wait_ms: int = 0
    ) -> PartitionData | None:
        """The leader's answer; None if the offset is out of range. Errors: KafkaError."""
        asked = FetchPartition(
            partition=self._index,
            fetch_offset=offset,
            last_fetched_epoch=leader_epoch,
            partition_max_bytes=max_bytes,
        )
        request = FetchRequest(
            replica_id=CONSUMER,
            max_wait_ms=max_wait_ms,
            min_bytes=1,
            max_bytes=max_bytes,
            topics=[FetchTopic(topic_id=self._topic_id(), partitions=[asked])],
        )
        response: FetchResponse = await self._ask(request, FETCH_VERSION, may_wait_ms=max_wait_ms)
        found = [one for each in response.responses for one in each.partitions]
        if response.error_code or not found:
            raise KafkaError(code_of(response.error_code or ErrorCode.UNKNOWN_SERVER_ERROR), "Fetch")
        if found[0].error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            return None
        if found[0].error_code:
            raise refused(self._leader, found[0].error_code)
        return found[0]

    async def _list_offset(self, name: int) -> int:
        """Errors: KafkaError."""
        asked = ListOffsetsPartition(partition_index=self._index, timestamp=name)
        topic = ListOffsetsTopic(name=REMOTE_LOG_METADATA_TOPIC, partitions=[asked])
        request = ListOffsetsRequest(replica_id=CONSUMER, topics=[topic])
        leader = self._known_leader()
        connection = await self._connect(leader)
        try:
            response: ListOffsetsResponse = await self._answer(
                connection, leader, request, version=LIST_OFFSETS_VERSION, may_wait_ms=0
            )
        finally:
            connection.close()
        found = [one for each in response.topics for one in each.partitions]
        if not found or found[0].error_code:
            raise refused(leader, found[0].error_code if found else ErrorCode.UNKNOWN_SERVER_ERROR)
        return found[0].offset

    async def _ask(self, request: object, version: int, *, may_wait_ms: int) -> Any:
        """Ask the leader over the reader's own connection. Errors: KafkaError."""
        leader = self._known_leader()
        if leader != self._leader:
            self._disconnect()
        self._leader = leader
        self._wait = trio.CancelScope()
        try:
            with self._wait:
                return await self._ask_over(leader, request, version=version, may_wait_ms=may_wait_ms)
        finally:
            self._wait = None
        raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"broker {leader} does not lead any more")

    async def _ask_over(self, leader: int, request: object, *, version: int, may_wait_ms: int) -> Any:
        connection, self._connection = self._connection or await self._connect(leader), None
        try:
            answer = await self._answer(connection, leader, request, version=version, may_wait_ms=may_wait_ms)
            self._connection = connection
        finally:
            if self._connection is None:
                connection.close()
        return answer

    def _known_leader(self) -> int:
        leader = self._current_leader()
        if leader < 0:
            raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, f"{REMOTE_LOG_METADATA_TOPIC}-{self._index} has no leader")
        return leader

    async def _connect(self, leader: int) -> Connection:
        broker = self._broker
        timeout_ms = broker.settings.replication.replica_socket_timeout_ms
        client_id = f"broker-{broker.node_id}-tier-reader"
        try:
            return await connect_to_peer(broker, leader, client_id=client_id, timeout_ms=timeout_ms)
        except OSError as error:
            raise KafkaError(ErrorCode.NETWORK_EXCEPTION, f"broker {leader}: {error}") from error

    async def _answer(
        self, connection: Connection, leader: int, request: object, *, version: int, may_wait_ms: int
    ) -> Any:
        timeout_ms = may_wait_ms + self._broker.settings.replication.replica_socket_timeout_ms
        try:
            with trio.move_on_after(timeout_ms / 1000):
                return await connection.ask(request, version=version)
        except (OSError, ConnectionClosed, Malformed) as error:
            why = str(error) or "the connection was closed"
            raise KafkaError(ErrorCode.NETWORK_EXCEPTION, f"broker {leader}: {why}") from error
        raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, f"broker {leader} does not answer")

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


def refused(leader: int, code: int) -> KafkaError:
    """The error for the answer of another broker."""
    remedy = ""
    if code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
        remedy = f"; allow the principal of the brokers to Read and Write {REMOTE_LOG_METADATA_TOPIC}"
    return KafkaError(code_of(code), f"broker {leader}: {code_of(code).name}{remedy}")


def _records_of(found: PartitionData) -> memoryview | bytes:
    records = found.records or b""
    assert isinstance(records, memoryview | bytes), "decoded records are a view"
    return records
