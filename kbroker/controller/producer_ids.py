"""Decisions for AllocateProducerIds: a broker gets a block of 1,000 ids, and assigns them one by one.

The record is in the log before the block is used, so that no id is assigned twice, even after a crash.

Source: KIP-730.
"""

from __future__ import annotations

from kbroker.controller.context import Context, check_broker_epoch
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
