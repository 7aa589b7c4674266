"""FindCoordinator: the broker that coordinates a group or a transactional id; from v4 on several at once.

The first request creates `__consumer_offsets` or `__transaction_state`. Kafka answers that request with
COORDINATOR_NOT_AVAILABLE, and the client retries; this broker serves the topic before it replies.

kbroker serves no share groups, but brokers of Apache Kafka in the same cluster may. Such a broker asks for the
coordinator of a shared partition's state, which is the leader of the key's partition of `__share_group_state`. Kafka's
answer does not depend on share.version; without the topic, Kafka answers COORDINATOR_NOT_AVAILABLE and creates it.

Version 0 must be served: without it, librdkafka before 2.12 assumes that lz4 is unsupported and silently sends its
batches uncompressed.
"""

from __future__ import annotations

import re

from kbroker.broker import Broker
from kbroker.broker.coordinators import find_coordinator as find_coordinator_of
from kbroker.handlers import Context, handles
from kbroker.metadata.names import GROUP_METADATA_TOPIC, SHARE_GROUP_STATE_TOPIC, TRANSACTION_STATE_TOPIC
from kbroker.security.authorizing import Operation, ResourceType
from wire.errors import ErrorCode, KafkaError
from wire.messages.find_coordinator import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse
from wire.types import uuid_from_text

FIRST_VERSION_WITH_SEVERAL_KEYS = 4
FIRST_VERSION_WITH_SHARE_GROUPS = 6
SHARE = 2
TOPICS = {  # and the resources that their keys name, by key type
    0: (GROUP_METADATA_TOPIC, ResourceType.GROUP),
    1: (TRANSACTION_STATE_TOPIC, ResourceType.TRANSACTIONAL_ID),
}
SUCCESS_MESSAGE = "NONE"  # Kafka's text; tests of clients compare it


def _refused(request: FindCoordinatorRequest, code: ErrorCode) -> FindCoordinatorResponse:
    if request.coordinator_keys:
        return FindCoordinatorResponse(coordinators=[_failed(key, code) for key in request.coordinator_keys])
    return _single(_failed(request.key, code))


def _failed(key: str, code: ErrorCode) -> Coordinator:
    return Coordinator(key=key, node_id=-1, host="", port=-1, error_code=code, error_message=code.name)


def _single(found: Coordinator) -> FindCoordinatorResponse:
    return FindCoordinatorResponse(
        error_code=found.error_code,
        error_message=found.error_message if found.error_code else SUCCESS_MESSAGE,
        node_id=found.node_id,
        host=found.host,
        port=found.port,
    )


@handles(FindCoordinatorRequest, versions="0-6", on_error=_refused)
async def find_coordinator(
    request: FindCoordinatorRequest, broker: Broker, context: Context
) -> FindCoordinatorResponse:
    """Answer each key once, even if the request repeats it."""
    if context.api_version < FIRST_VERSION_WITH_SEVERAL_KEYS:
        return _single(await _find(request.key, request.key_type, broker, context))
    coordinators = []
    for key in dict.fromkeys(request.coordinator_keys):
        if broker.turns.due():
            await broker.turns.next()
        coordinators.append(await _find(key, request.key_type, broker, context))
    return FindCoordinatorResponse(coordinators=coordinators)


def _names_share_state(key: str) -> bool:
    """Whether a key is `group:topic id:partition`."""
    others, _, partition = key.rpartition(":")
    group, _, topic_id = others.rpartition(":")
    if not group.strip() or re.fullmatch(r"[+-]?[0-9]{1,10}", partition) is None:
        return False
    try:
        uuid_from_text(topic_id)
    except ValueError:
        return False
    return -(1 << 31) <= int(partition) < 1 << 31


async def _find(key: str, key_type: int, broker: Broker, context: Context) -> Coordinator:
    is_share = key_type == SHARE and context.api_version >= FIRST_VERSION_WITH_SHARE_GROUPS
    if is_share:
        context.demand(Operation.CLUSTER_ACTION, ResourceType.CLUSTER)
    if not (_names_share_state(key) if is_share else key_type in TOPICS):
        return _failed(key, ErrorCode.INVALID_REQUEST)
    try:
        if is_share:
            topic = SHARE_GROUP_STATE_TOPIC
        else:
            topic, resource_type = TOPICS[key_type]
            context.demand(Operation.DESCRIBE, resource_type, key)
        node = await find_coordinator_of(broker, topic, key, listener=context.listener)
    except KafkaError as error:
        return _failed(key, error.code)
    return Coordinator(key=key, node_id=node.node_id, host=node.host, port=node.port, error_message="")
