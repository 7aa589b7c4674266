"""ConsumerGroupHeartbeat: membership of a consumer group of KIP-848. The group coordinator decides.

The API exists only with the feature group.version 1. Without it, librdkafka and Java's consumer treat the answer
UNSUPPORTED_VERSION as final, so the API is always advertised, as in Kafka.
"""

from __future__ import annotations

from kbroker.broker import Broker
from kbroker.handlers import Context, handles
from kbroker.handlers.groups import knowing_caller, log_new_group
from kbroker.metadata.parts import GROUP_VERSION_FEATURE
from kbroker.security.authorizing import Operation, ResourceType
from wire.errors import ErrorCode, KafkaError
from wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse


@handles(ConsumerGroupHeartbeatRequest, versions="0-1")
async def consumer_group_heartbeat(
    request: ConsumerGroupHeartbeatRequest, broker: Broker, context: Context
) -> ConsumerGroupHeartbeatResponse:
    """Join a group, stay in it, or leave it. The reply has the member's assignment if that has changed."""
    require_group_version(broker)
    context.demand(Operation.READ, ResourceType.GROUP, request.group_id)
    names = request.subscribed_topic_names or ()
    if await context.denied(Operation.DESCRIBE, ResourceType.TOPIC, names, broker.turns):
        raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    existed = request.member_epoch != 0 or broker.groups.knows(request.group_id)
    caller = await knowing_caller(request, broker, context)
    answer = await broker.groups.heartbeat(request, caller, wait=context.wait)
    log_new_group(request.group_id, broker, context, existed=existed)
    return answer


def require_group_version(broker: Broker) -> None:
    """Raise UNSUPPORTED_VERSION unless the cluster has group.version 1."""
    if not broker.image.features.get(GROUP_VERSION_FEATURE, 0):
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, "groups of KIP-848 need the feature group.version=1")
