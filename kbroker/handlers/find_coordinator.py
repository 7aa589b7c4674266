"""FindCoordinator: the broker that coordinates a group; from v4 on for several groups at once.

The first request for a group creates `__consumer_offsets`. Kafka answers that request with COORDINATOR_NOT_AVAILABLE,
and the client retries; this broker serves the topic before it replies.

Transactions are not supported yet. The reply is CLUSTER_AUTHORIZATION_FAILED, the only code that librdkafka treats as
final here and with which Java's producer shows the error message. docs/clients.md lists how each client reacts. Share
groups are not supported either; the reply is that of Kafka with share groups disabled.

Version 0 must be served: without it, librdkafka before 2.12 assumes that lz4 is unsupported and silently sends its
batches uncompressed.
"""

from __future__ import annotations

from kbroker.broker import Broker
from kbroker.handlers import Context, handles, warn_unserved
from wire.errors import ErrorCode, KafkaError
from wire.messages.find_coordinator import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse

FIRST_VERSION_WITH_SEVERAL_KEYS = 4
GROUP, TRANSACTION = 0, 1
NO_TRANSACTIONS = "transactions are not implemented yet"
SUCCESS_MESSAGE = "NONE"  # Kafka's text; tests of clients compare it


def _refused(request: FindCoordinatorRequest, code: ErrorCode) -> FindCoordinatorResponse:
    if request.coordinator_keys:
        return FindCoordinatorResponse(coordinators=[_failed(key, code) for key in request.coordinator_keys])
    return _single(_failed(request.key, code))


def _failed(key: str, code: ErrorCode, message: str | None = None) -> Coordinator:
    return Coordinator(key=key, node_id=-1, host="", port=-1, error_code=code, error_message=message or code.name)


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


async def _find(key: str, key_type: int, broker: Broker, context: Context) -> Coordinator:
    if key_type == TRANSACTION:
        warn_unserved(NO_TRANSACTIONS, context, broker.log_limit, now_ms=broker.env.now_ms())
        return _failed(key, ErrorCode.CLUSTER_AUTHORIZATION_FAILED, NO_TRANSACTIONS)
    if key_type != GROUP:
        return _failed(key, ErrorCode.INVALID_REQUEST)
    try:
        node = await broker.find_group_coordinator(key, listener=context.listener)
    except KafkaError as error:
        return _failed(key, error.code)
    return Coordinator(key=key, node_id=node.node_id, host=node.host, port=node.port, error_message="")
