"""ConsumerGroupHeartbeat: the group protocol of KIP-848 is not served yet, and each member hears so.

The API is advertised all the same, as Kafka does where the protocol is switched off. librdkafka looks for another
coordinator for ever when the API is missing, and takes UNSUPPORTED_VERSION as final; so does Java's consumer.
"""

from __future__ import annotations

from kbroker.broker import Broker
from kbroker.broker.callers import warn_unserved
from kbroker.handlers import Context, handles
from wire.errors import ErrorCode
from wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse

NOT_YET = "group.protocol=consumer is not implemented yet; use group.protocol=classic"


def _refused(
    request: ConsumerGroupHeartbeatRequest, code: ErrorCode, message: str | None = None
) -> ConsumerGroupHeartbeatResponse:
    return ConsumerGroupHeartbeatResponse(
        error_code=code, error_message=message, member_epoch=0, heartbeat_interval_ms=0
    )


@handles(ConsumerGroupHeartbeatRequest, versions="0-1", authorize="READ group:{group_id}", on_error=_refused)
async def consumer_group_heartbeat(
    request: ConsumerGroupHeartbeatRequest, broker: Broker, context: Context
) -> ConsumerGroupHeartbeatResponse:
    """Refuse the member for good, and say why in the log."""
    warn_unserved(NOT_YET, context, broker.log_limit, now_ms=broker.env.now_ms())
    return _refused(request, ErrorCode.UNSUPPORTED_VERSION, NOT_YET)
