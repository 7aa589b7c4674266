"""ConsumerGroupHeartbeat: always refused, because the group protocol of KIP-848 is not implemented yet.

The API is advertised anyway, as Kafka does when the protocol is disabled. Without the API, librdkafka looks for another
coordinator forever. Both librdkafka and Java's consumer treat UNSUPPORTED_VERSION as final.
"""

from __future__ import annotations

from kbroker.broker import Broker
from kbroker.handlers import Context, handles, warn_unserved
from wire.errors import ErrorCode
from wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse

NOT_YET = "group.protocol=consumer is not implemented yet; use group.protocol=classic"


@handles(ConsumerGroupHeartbeatRequest, versions="0-1", authorize="READ group:{group_id}")
async def consumer_group_heartbeat(
    request: ConsumerGroupHeartbeatRequest, broker: Broker, context: Context
) -> ConsumerGroupHeartbeatResponse:
    """Refuse the member with a final error, and log the reason."""
    warn_unserved(NOT_YET, context, broker.log_limit, now_ms=broker.env.now_ms())
    return ConsumerGroupHeartbeatResponse(
        error_code=ErrorCode.UNSUPPORTED_VERSION, error_message=NOT_YET, member_epoch=0, heartbeat_interval_ms=0
    )
