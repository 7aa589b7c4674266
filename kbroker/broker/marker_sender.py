"""Sends the markers of prepared transactions to the leaders of their partitions, until all are written.

Theory of operation: `submit` takes prepared transactions. Each broker that has to write markers gets one request at a
time, with the markers of all transactions that came up in the meantime; this broker writes its own without a socket.
What fails is routed again after RETRY_MS, to the leaders that the metadata names then. There is no limit to this: a
transaction must not stay half finished. When all markers of a transaction are written, the coordinator stores that
it is complete. The decisions are in kbroker.coordinator.transactions.markers.

Source: TransactionMarkerChannelManager of Apache Kafka 4.3.1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import trio

from kbroker.broker.peers import connect_to_peer
from kbroker.broker.transaction_markers import write_markers
from kbroker.client.streaming import Connection, ConnectionClosed
from kbroker.coordinator.transactions.markers import NO_LEADER, Ending, Markers, markers_request
from kbroker.coordinator.transactions.state import TopicPartition
from kbroker.runtime.event_log import get_logger
from wire.errors import Malformed, code_of
from wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from wire.messages.write_txn_markers import WriteTxnMarkersRequest, WriteTxnMarkersResponse

if TYPE_CHECKING:
    from kbroker.broker.broker import Broker

RETRY_MS: Final = 100
COMPLETION_RETRY_MS: Final = 1_000
WAITING_IN_MS: Final = 50
ROUTED_AT_ONCE: Final = 200
COMPLETED_AT_ONCE: Final = 50
"""Partitions whose leader is found, and transactions that are completed, before other tasks may run."""

IDLE_MS: Final = 60_000
"""A connection without markers is closed after this time."""

MARKERS_VERSION: Final = 1
MARKERS_VERSION_WITH_TRANSACTION_VERSION: Final = 2
API_KEY: Final = 27

logger = get_logger(__name__)


class MarkerSender:
    """See the module docstring."""

    def __init__(self, broker: Broker) -> None:
        self.markers = Markers(self._leader_of)
        self._broker = broker
        self._destinations: dict[int, trio.Event] = {}
        self._to_route: dict[Ending, list[TopicPartition]] = {}
        self._incomplete: list[Ending] = []
        self._news = trio.Event()
        self._has_new_destination = trio.Event()
        self._has_failed = trio.Event()

    @property
    def waiting_count(self) -> int:
        """The number of partitions whose marker could not be written yet."""
        return sum(len(partitions) for partitions in self.markers.waiting.values())

    def submit(self, endings: Sequence[Ending]) -> None:
        """Have the markers of these prepared transactions written."""
        for ending in endings:
            if len(ending.remaining) <= ROUTED_AT_ONCE:
                self.markers.add(ending, list(ending.remaining))
            else:
                self._to_route[ending] = list(ending.remaining)
        self._wake()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Send markers until the task is cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._retry)
            nursery.start_soon(self._serve_new, nursery)
            task_status.started()
            self._wake()
            while True:
                await self._news.wait()
                self._news = trio.Event()
                await self._route()
                await self._complete()

    def _leader_of(self, topic: str, index: int) -> int | None:
        known = self._broker.image.partition(topic, index)
        if known is None:
            return None
        leader, _ = self._broker.current_leader(topic, index)
        is_reachable = leader == self._broker.node_id or leader in self._broker.image.brokers
        return leader if is_reachable else NO_LEADER

    def _wake(self) -> None:
        """Wake the tasks that have something to do."""
        if self.markers.waiting:
            self._has_failed.set()
        if self.markers.ready or self._to_route:
            self._news.set()
        for broker_id in self.markers.by_broker:
            if broker_id in self._destinations:
                self._destinations[broker_id].set()
            else:
                self._has_new_destination.set()

    async def _route(self) -> None:
        """Find the leaders of many partitions, in turns."""
        turns = self._broker.turns
        to_route, self._to_route = self._to_route, {}
        for ending, partitions in to_route.items():
            for start in range(0, len(partitions), ROUTED_AT_ONCE):
                portion = partitions[start : start + ROUTED_AT_ONCE]
                if turns.due(len(portion)):
                    await turns.next()
                self.markers.add(ending, portion)
        self._wake()

    async def _complete(self) -> None:
        """Store that transactions are complete. Those for which that fails are tried again after a pause."""
        ready = self.markers.take_ready()
        for start in range(0, len(ready), COMPLETED_AT_ONCE):
            portion = ready[start : start + COMPLETED_AT_ONCE]
            if self._broker.turns.due(len(portion)):
                await self._broker.turns.next()
            failed = await self._broker.transactions.complete(portion)
            self._incomplete += failed  # not in one statement, because _retry replaces the list in the meantime
        if self._incomplete:
            self._has_failed.set()

    async def _retry(self) -> None:
        """Route again what failed, after a pause."""
        while True:
            await self._has_failed.wait()
            # With very many partitions without a leader, looking for their leaders must not keep the broker busy.
            pause_ms = max(RETRY_MS, self.waiting_count // WAITING_IN_MS)
            await self._broker.env.sleep_ms(max(pause_ms, COMPLETION_RETRY_MS) if self._incomplete else pause_ms)
            self._has_failed = trio.Event()
            for ending, partitions in self.markers.take_waiting().items():
                self._to_route.setdefault(ending, []).extend(partitions)
            self.markers.ready += self._incomplete
            self._incomplete = []
            self._wake()

    async def _serve_new(self, nursery: trio.Nursery) -> None:
        """Start the tasks of new destinations. Only a task of this nursery knows that the nursery is open."""
        while True:
            await self._has_new_destination.wait()
            self._has_new_destination = trio.Event()
            for broker_id in self.markers.by_broker.keys() - self._destinations.keys():
                self._destinations[broker_id] = trio.Event()
                nursery.start_soon(self._serve, broker_id)

    async def _serve(self, broker_id: int) -> None:
        """Send the markers for one broker, until there are none for IDLE_MS."""
        connection: Connection | None = None
        version = MARKERS_VERSION
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
                        if connection is None:
                            connection, version = await self._connect(broker_id)
                        response = await self._ask(connection, markers_request(sent), version)
                except (OSError, ConnectionClosed, Malformed) as error:
                    if connection is not None:
                        connection.close()
                        connection = None
                    self.markers.on_failure(sent)
                    why = str(error) or "the connection was closed"
                    self._report(broker_id, why, sum(map(len, sent.values())))
                else:
                    for code, partitions in self.markers.on_response(sent, response).items():
                        self._report(broker_id, code_of(code).name, len(partitions))
                self._wake()
        finally:
            del self._destinations[broker_id]
            if connection is not None:
                connection.close()

    async def _connect(self, broker_id: int) -> tuple[Connection, int]:
        """A connection, and the newest version of WriteTxnMarkers that its broker serves.

        Only version 2 says whether an equal epoch is that of an earlier transaction (KIP-1228), so it is used as soon
        as a broker has it; Kafka waits for metadata.version 30.
        Errors  OSError, ConnectionClosed, Malformed
        """
        broker = self._broker
        timeout_ms = broker.settings.replication.replica_socket_timeout_ms
        connection = await connect_to_peer(
            broker, broker_id, client_id=f"broker-{broker.node_id}-markers", timeout_ms=timeout_ms
        )
        try:
            with trio.fail_after(timeout_ms / 1000):
                answer: ApiVersionsResponse = await connection.ask(ApiVersionsRequest(), version=0)
        except trio.TooSlowError:
            connection.close()
            raise TimeoutError(f"no versions in {timeout_ms} ms") from None
        except BaseException:
            connection.close()
            raise
        served = {each.api_key: each.max_version for each in answer.api_keys}
        return connection, min(served.get(API_KEY, MARKERS_VERSION), MARKERS_VERSION_WITH_TRANSACTION_VERSION)

    async def _ask(
        self, connection: Connection, request: WriteTxnMarkersRequest, version: int
    ) -> WriteTxnMarkersResponse:
        broker = self._broker
        # The leader itself waits for its replicas for request.timeout.ms.
        timeout_ms = 2 * broker.settings.server.request_timeout_ms
        with trio.move_on_after(timeout_ms / 1000):
            response: WriteTxnMarkersResponse = await connection.ask(request, version=version)
            return response
        raise TimeoutError(f"no answer in {timeout_ms} ms")

    def _report(self, broker_id: int, why: str, partitions: int) -> None:
        left_out = self._broker.log_limit.admit(("markers", broker_id, why), now_ms=self._broker.env.now_ms())
        if left_out is not None:
            logger.warning(
                "cannot write transaction markers", leader=broker_id, why=why, partitions=partitions, left_out=left_out
            )
