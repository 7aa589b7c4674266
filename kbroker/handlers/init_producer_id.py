"""InitProducerId: a new producer id, never used before, that identifies a producer's batches."""

from __future__ import annotations

from kbroker.broker import Broker
from kbroker.handlers import Context, handles
from wire.errors import ErrorCode
from wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse


def _refused(request: InitProducerIdRequest, code: ErrorCode) -> InitProducerIdResponse:
    return InitProducerIdResponse(error_code=code, producer_id=-1, producer_epoch=-1)


@handles(InitProducerIdRequest, versions="0-5", on_error=_refused)
async def init_producer_id(request: InitProducerIdRequest, broker: Broker, context: Context) -> InitProducerIdResponse:
    """Return a new id with epoch 0, like Kafka also to an idempotent producer that asks for a higher epoch."""
    if (request.producer_id == -1) != (request.producer_epoch == -1):
        return _refused(request, ErrorCode.INVALID_REQUEST)
    if request.transactional_id == "":
        return _refused(request, ErrorCode.INVALID_REQUEST)
    if request.transactional_id is not None:
        # Transactions are not supported yet. Clients usually fail at FindCoordinator already. A client that sends this
        # request anyway gets the same code as from Produce; every client treats it as final.
        return _refused(request, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    return InitProducerIdResponse(producer_id=await broker.producer_ids.next(), producer_epoch=0)
