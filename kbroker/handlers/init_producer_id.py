"""InitProducerId: a producer id that no producer ever had, so that its batches can be told from all others."""

from __future__ import annotations

from kbroker.broker import Broker
from kbroker.handlers import Context, handles
from wire.errors import ErrorCode
from wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse


def _refused(request: InitProducerIdRequest, code: ErrorCode) -> InitProducerIdResponse:
    return InitProducerIdResponse(error_code=code, producer_id=-1, producer_epoch=-1)


@handles(InitProducerIdRequest, versions="0-5", on_error=_refused)
async def init_producer_id(request: InitProducerIdRequest, broker: Broker, context: Context) -> InitProducerIdResponse:
    """A new id at epoch 0; an idempotent producer that asks to raise its epoch gets a new id as well, as from Kafka."""
    if (request.producer_id == -1) != (request.producer_epoch == -1):
        return _refused(request, ErrorCode.INVALID_REQUEST)
    if request.transactional_id == "":
        return _refused(request, ErrorCode.INVALID_REQUEST)
    if request.transactional_id is not None:
        # Transactions are not served yet. Clients hear so from FindCoordinator; one that asks here all the same gets
        # what Produce says too, which is final for each of them.
        return _refused(request, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    return InitProducerIdResponse(producer_id=await broker.next_producer_id(), producer_epoch=0)
