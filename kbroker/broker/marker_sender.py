"""Sends the markers of prepared transactions to the leaders of their partitions, until all are written.

Theory of operation: `submit` takes prepared transactions. Each broker that has to write markers gets one request at a
time, with the markers of all transactions that came up in the meantime; this broker writes its own without a socket.
What fails is routed again after RETRY_MS, to the leaders that the metadata names then. There is no limit to this: a
transaction must not stay half finished. When all markers of a transaction are written, the coordinator stores that
it is complete. The decisions are in kbroker.coordinator.transactions.markers.

Source: TransactionMarkerChannelManager of Apache Kafka 4.3.1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

import trio

from kbroker.broker.peers import connect_to_peer
from kbroker.broker.transaction_markers import write_markers
from kbroker.client.streaming import Connection, ConnectionClosed
from kbroker.coordinator.transactions.markers import NO_LEADER, Ending, Markers, markers_request
from kbroker.coordinator.transactions.state import TopicPartition
from kbroker.runtime.event_log import get_logger
from wire.errors import Malformed, code_of
from wire.messages.write_txn_markers import WriteTxnMarkersRequest, WriteTxnMarkersResponse

if TYPE_CHECKING:
    from kbroker.broker.broker import Broker

RETRY_MS: Final = 100
IDLE_MS: Final = 60_000
"""A connection without markers is closed after this time."""

MARKERS_VERSION: Final = 1
MARKERS_VERSION_WITH_TRANSACTION_VERSION: Final = 2
METADATA_VERSION_OF_IT: Final = 30
"""4.3-IV0: from here on every broker knows WriteTxnMarkers 2."""

logger = get_logger(__name__)


class MarkerSender:
    """See the module docstring."""

    def __init__(self, broker: Broker) -> None:
        self.markers = Markers(self._leader_of)
        self._broker = broker
        self._nursery: trio.Nursery | None = None
        self._destinations: dict[int, trio.Event] = {}
        self._completing: list[Ending] = []
        self._news = trio.Event()
        self._has_failed = trio.Event()

    @property
    def pending_count(self) -> int:
        """The number of partitions that wait for a marker, except those in a request."""
        return len(self.markers)

    def submit(self, endings: Sequence[Ending]) -> None:
        """Have the markers of these prepared transactions written."""
        for ending in endings:
            self.markers.add(ending)
        self._wake()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Send markers until the task is cancelled."""
        async with trio.open_nursery() as self._nursery:
            self._nursery.start_soon(self._retry)
            task_status.started()
            self._wake()
            while True:
                await self._news.wait()
                self._news = trio.Event()
                await self._complete()

    def _leader_of(self, topic: str, index: int) -> int | None:
        known = self._broker.image.partition(topic, index)
        if known is None:
            return None
        leader, _ = self._broker.current_leader(topic, index)
        is_reachable = leader == self._broker.node_id or leader in self._broker.image.brokers
        return leader if is_reachable else NO_LEADER

    def _wake(self) -> None:
        """Start or wake the tasks that have something to do."""
        if self.markers.waiting:
            self._has_failed.set()
        if self.markers.ready:
            self._news.set()
        if self._nursery is None:
            return
        for broker_id in self.markers.by_broker:
            if broker_id in self._destinations:
                self._destinations[broker_id].set()
            else:
                self._destinations[broker_id] = trio.Event()
                self._nursery.start_soon(self._serve, broker_id)

    async def _complete(self) -> None:
        """Store that transactions are complete."""
        ready = [*self._completing, *self.markers.take_ready()]
        if ready:
            self._completing = await self._broker.transactions.complete(ready)
            if self._completing:
                self._has_failed.set()

    async def _retry(self) -> None:
        """Route again what failed, after a pause."""
        while True:
            await self._has_failed.wait()
            self._has_failed = trio.Event()
            await self._broker.env.sleep_ms(RETRY_MS)
            self.markers.route_waiting()
            if self._completing:
                self._news.set()
            self._wake()

    async def _serve(self, broker_id: int) -> None:
        """Send the markers for one broker, until there are none for IDLE_MS."""
        connection: Connection | None = None
        try:
            while True:
                sent = self.markers.take(broker_id)
                if not sent:
                    self._destinations[broker_id] = trio.Event()
                    with trio.move_on_after(IDLE_MS / 1000):
                        await self._destinations[broker_id].wait()
                    if broker_id in self.markers.by_broker:
                        continue
                    return
                try:
                    if broker_id == self._broker.node_id:
                        response = await write_markers(self._broker, markers_request(sent))
                    else:
                        connection = connection or await self._connect(broker_id)
                        response = await self._ask(connection, markers_request(sent))
                except (OSError, ConnectionClosed, Malformed) as error:
                    if connection is not None:
                        connection.close()
                        connection = None
                    self.markers.on_failure(sent)
                    self._report(broker_id, str(error) or "the connection was closed", sent)
                else:
                    self._take(broker_id, sent, response)
                self._wake()
        finally:
            del self._destinations[broker_id]
            if connection is not None:
                connection.close()

    def _take(
        self, broker_id: int, sent: Mapping[Ending, list[TopicPartition]], response: WriteTxnMarkersResponse
    ) -> None:
        failed = self.markers.on_response(sent, response)
        for code, partitions in failed.items():
            self._report(broker_id, code_of(code).name, partitions)

    async def _connect(self, broker_id: int) -> Connection:
        broker = self._broker
        return await connect_to_peer(
            broker,
            broker_id,
            client_id=f"broker-{broker.node_id}-markers",
            timeout_ms=broker.settings.replication.replica_socket_timeout_ms,
        )

    async def _ask(self, connection: Connection, request: WriteTxnMarkersRequest) -> WriteTxnMarkersResponse:
        broker = self._broker
        is_new = broker.image.metadata_version >= METADATA_VERSION_OF_IT
        version = MARKERS_VERSION_WITH_TRANSACTION_VERSION if is_new else MARKERS_VERSION
        # The leader itself waits for its replicas for request.timeout.ms.
        timeout_ms = 2 * broker.settings.server.request_timeout_ms
        with trio.move_on_after(timeout_ms / 1000):
            response: WriteTxnMarkersResponse = await connection.ask(request, version=version)
            return response
        raise TimeoutError(f"no answer in {timeout_ms} ms")

    def _report(self, broker_id: int, why: str, partitions: object) -> None:
        left_out = self._broker.log_limit.admit(("markers", broker_id, why), now_ms=self._broker.env.now_ms())
        if left_out is None:
            return
        count = len(partitions) if isinstance(partitions, list) else None
        logger.warning(
            "cannot write transaction markers; will retry",
            leader=broker_id,
            why=why,
            partitions=count,
            left_out=left_out,
        )
