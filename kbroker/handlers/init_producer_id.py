"""InitProducerId: the producer id and epoch that identify a producer's batches.

A producer without a transactional id gets an id that was never used before. For a transactional id the coordinator
gives the id, with a higher epoch for each new producer, so that earlier ones are fenced.

A client that may write to any topic may be an idempotent producer (KIP-679); IDEMPOTENT_WRITE on the cluster is the
older right.
"""

from __future__ import annotations

from kbroker.broker import Broker
from kbroker.coordinator.transactions.transitions import Init
from kbroker.handlers import Context, handles
from kbroker.security.authorizing import Operation, ResourceType
from wire.errors import ErrorCode
from wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse

FIRST_VERSION_WITH_FENCED = 4  # older clients do not know PRODUCER_FENCED


def _refused(request: InitProducerIdRequest, code: ErrorCode) -> InitProducerIdResponse:
    return InitProducerIdResponse(error_code=code, producer_id=-1, producer_epoch=-1)


@handles(InitProducerIdRequest, versions="0-5", on_error=_refused)
async def init_producer_id(request: InitProducerIdRequest, broker: Broker, context: Context) -> InitProducerIdResponse:
    """Without a transactional id: a new id with epoch 0, as in Kafka even if the producer asks for a higher epoch."""
    if request.transactional_id is not None:
        context.demand(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, request.transactional_id)
    elif not (
        context.may(Operation.IDEMPOTENT_WRITE, ResourceType.CLUSTER, is_logged=False)
        or context.may_on_any(Operation.WRITE, ResourceType.TOPIC)
    ):
        context.demand(Operation.IDEMPOTENT_WRITE, ResourceType.CLUSTER)
    if (request.producer_id == -1) != (request.producer_epoch == -1):
        return _refused(request, ErrorCode.INVALID_REQUEST)
    if request.transactional_id is None:
        return InitProducerIdResponse(producer_id=await broker.producer_ids.next(), producer_epoch=0)
    step = await broker.transactions.ask(
        Init(request.transactional_id, request.transaction_timeout_ms, request.producer_id, request.producer_epoch)
    )
    code = step.code
    if code is ErrorCode.PRODUCER_FENCED and context.api_version < FIRST_VERSION_WITH_FENCED:
        code = ErrorCode.INVALID_PRODUCER_EPOCH
    return InitProducerIdResponse(error_code=code, producer_id=step.producer_id, producer_epoch=step.producer_epoch)
