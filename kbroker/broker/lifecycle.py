"""This broker's registration, heartbeats and block of producer ids: what it asks the controller for itself.

A broker starts fenced and leads nothing. It asks to be unfenced once it has replayed its registration, and asks to shut
down before it stops. See kbroker/controller/brokers.py for what the controller does.

Source: KIP-631, KIP-730; Kafka's BrokerLifecycleManager.
"""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

import trio

from kbroker.controller.features import SUPPORTED_FEATURES
from kbroker.controller.port import ControllerPort
from kbroker.metadata.parts import feature_ranges
from kbroker.metadata.publisher import MetadataPublisher
from wire.messages.allocate_producer_ids import AllocateProducerIdsRequest, AllocateProducerIdsResponse
from wire.messages.broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse
from wire.messages.broker_registration import BrokerRegistrationRequest, BrokerRegistrationResponse, Endpoint


class BrokerLifecycle:
    """The state of this broker in the controller.

    epoch  the broker epoch of this incarnation, -1 until it is registered
    """

    def __init__(
        self, controller: ControllerPort, metadata: MetadataPublisher, *, broker_id: int, cluster_id: str
    ) -> None:
        self._controller = controller
        self._metadata = metadata
        self.broker_id = broker_id
        self._cluster_id = cluster_id
        self.epoch = -1

    async def register(
        self, *, incarnation_id: UUID, endpoints: Iterable[Endpoint], log_dirs: Iterable[UUID], rack: str | None = None
    ) -> None:
        """Register this incarnation of the broker, fenced."""
        request = BrokerRegistrationRequest(
            broker_id=self.broker_id,
            cluster_id=self._cluster_id,
            incarnation_id=incarnation_id,
            listeners=list(endpoints),
            features=feature_ranges(SUPPORTED_FEATURES),
            rack=rack,
            log_dirs=list(log_dirs),
        )
        self.epoch = (await self._controller.ask(request, BrokerRegistrationResponse)).broker_epoch

    async def unfence(self) -> None:
        """Become the leader of the partitions of this broker that have no leader."""
        answer = await self._heartbeat(want_shut_down=False)
        assert not answer.is_fenced, "the broker uses the controller's image, so it has caught up"

    async def shut_down(self) -> None:
        """Hand over the partitions of this broker to others, or leave them without a leader; then be fenced."""
        while not (await self._heartbeat(want_shut_down=True)).should_shut_down:
            pass

    async def _heartbeat(self, *, want_shut_down: bool) -> BrokerHeartbeatResponse:
        request = BrokerHeartbeatRequest(
            broker_id=self.broker_id,
            broker_epoch=self.epoch,
            current_metadata_offset=self._metadata.image.offset,
            want_fence=False,
            want_shut_down=want_shut_down,
        )
        return await self._controller.ask(request, BrokerHeartbeatResponse)


class ProducerIds:
    """Producer ids that this cluster has never used. The controller allocates blocks; ids left at a stop are lost."""

    def __init__(self, controller: ControllerPort, lifecycle: BrokerLifecycle) -> None:
        self._controller = controller
        self._lifecycle = lifecycle
        self._lock = trio.Lock()
        self._next = self._end = 0

    async def next(self) -> int:
        """The next id, from this broker's block or a new one."""
        async with self._lock:
            if self._next == self._end:
                broker = self._lifecycle
                request = AllocateProducerIdsRequest(broker_id=broker.broker_id, broker_epoch=broker.epoch)
                block = await self._controller.ask(request, AllocateProducerIdsResponse)
                self._next = block.producer_id_start
                self._end = block.producer_id_start + block.producer_id_len
            taken, self._next = self._next, self._next + 1
            return taken
