"""Producer ids that this cluster has never used. The controller allocates them in blocks.

A broker whose controller is another process requests the next block before the last one is used up (`keep`), so that
new producers can start while no controller runs. Otherwise a request without an id waits for a moment, and then gets an
error that all clients retry, at this broker or at another one.

Source: KIP-730; RPCProducerIdManager of Apache Kafka 4.3.1.
"""

from __future__ import annotations

from collections import deque
from typing import Final

import trio

from kbroker.broker.lifecycle import BrokerLifecycle
from kbroker.controller.port import ControllerPort
from kbroker.runtime.net_ports import Env
from wire.errors import ErrorCode, KafkaError
from wire.messages.allocate_producer_ids import AllocateProducerIdsRequest, AllocateProducerIdsResponse

PATIENCE_MS: Final = 1_000
LOW: Final = 100
"""With fewer ids the broker requests another block. A block has 1,000."""

_RETRY_MS: Final = 1_000


class ProducerIds:
    """See the module docstring. Ids that are left at a stop are lost."""

    def __init__(self, controller: ControllerPort, lifecycle: BrokerLifecycle, env: Env) -> None:
        self._controller = controller
        self._lifecycle = lifecycle
        self._env = env
        self._lock = trio.Lock()
        self._blocks: deque[range] = deque()
        self._taken = trio.Event()

    async def next(self) -> int:
        """The next id, from this broker's blocks or a new one.

        Errors  COORDINATOR_LOAD_IN_PROGRESS if the controller does not answer in time; those of the controller
        """
        if not self._blocks:
            with trio.move_on_after(PATIENCE_MS / 1000):
                async with self._lock:
                    if not self._blocks:
                        await self._allocate()
        if not self._blocks:
            raise KafkaError(
                ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "the controller has not allocated producer ids yet"
            )
        block = self._blocks.popleft()
        if len(block) > 1:
            self._blocks.appendleft(block[1:])
        self._taken.set()
        return block[0]

    async def keep(self) -> None:
        """Request a block whenever few ids are left, forever."""
        while True:
            if sum(map(len, self._blocks)) >= LOW:
                self._taken = trio.Event()
                await self._taken.wait()
                continue
            try:
                await self._allocate()
            except KafkaError:
                await self._env.sleep_ms(_RETRY_MS)

    async def _allocate(self) -> None:
        broker = self._lifecycle
        request = AllocateProducerIdsRequest(broker_id=broker.broker_id, broker_epoch=broker.epoch)
        block = await self._controller.ask(request, AllocateProducerIdsResponse)
        self._blocks.append(range(block.producer_id_start, block.producer_id_start + block.producer_id_len))
