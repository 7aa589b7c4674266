"""Producer ids: the controller allocates blocks of 1,000, and a broker assigns ids from its block one by one.

The record is in the log before the block is used, so that no id is assigned twice, even after a crash. Ids that a
broker has not used when it stops are lost. Source: KIP-730.
"""

from __future__ import annotations

from kbroker.controller.brokers import check_broker_epoch
from kbroker.controller.context import Context
from kbroker.controller.decisions import decides
from kbroker.runtime.outcome import Outcome
from wire.errors import ErrorCode, KafkaError
from wire.messages.allocate_producer_ids import AllocateProducerIdsRequest, AllocateProducerIdsResponse
from wire.stored.metadata import ProducerIdsRecord

BLOCK_SIZE = 1_000
_LARGEST = 2**63 - 1


@decides(AllocateProducerIdsRequest, adds=True)
def allocate_producer_ids(
    context: Context, request: AllocateProducerIdsRequest
) -> Outcome[AllocateProducerIdsResponse]:
    """Allocate the next block to the broker. Raises STALE_BROKER_EPOCH, and UNKNOWN_SERVER_ERROR if no ids are left."""
    check_broker_epoch(context.image, request.broker_id, request.broker_epoch)
    first = context.image.next_producer_id
    if first > _LARGEST - BLOCK_SIZE:
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "no producer ids are left")
    record = ProducerIdsRecord(
        broker_id=request.broker_id, broker_epoch=request.broker_epoch, next_producer_id=first + BLOCK_SIZE
    )
    return Outcome([record], AllocateProducerIdsResponse(producer_id_start=first, producer_id_len=BLOCK_SIZE))


class ProducerIdBlock:
    """The unused rest of a broker's block."""

    __slots__ = ("_end", "_next")

    def __init__(self) -> None:
        self._next = self._end = 0

    def take(self) -> int | None:
        """The next id, or None if a new block is needed."""
        if self._next == self._end:
            return None
        taken, self._next = self._next, self._next + 1
        return taken

    def refill(self, response: AllocateProducerIdsResponse) -> None:
        """Continue with this block."""
        self._next = response.producer_id_start
        self._end = response.producer_id_start + response.producer_id_len
