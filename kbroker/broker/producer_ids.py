"""This broker's block of producer ids. The controller allocates blocks; ids that are left at a stop are lost.

Source: KIP-730.
"""

from __future__ import annotations

import trio

from kbroker.broker.lifecycle import BrokerLifecycle
from kbroker.controller.port import ControllerPort
from wire.messages.allocate_producer_ids import AllocateProducerIdsRequest, AllocateProducerIdsResponse


class ProducerIds:
    """Producer ids that this cluster has never used."""

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
