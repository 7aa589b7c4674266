"""FindCoordinator: there is no coordinator yet, and this says so.

Groups and transactions are not implemented, and none of their other APIs is advertised. This one is, for the same
reason as Produce 0: librdkafka before 2.12 takes lz4 for supported only where FindCoordinator 0 is advertised, and
otherwise sends such batches uncompressed without a word. The code is the one of a coordinator that cannot be had now: a
consumer of assigned partitions, which some libraries make name a group, works on beside it, where a final code would
end it. Who waits for a group learns the reason from the error message and from the broker's log.
"""

from __future__ import annotations

from kbroker.broker import Broker
from kbroker.handlers import Context, handles
from kbroker.runtime.log import logger
from wire.errors import ErrorCode
from wire.messages.find_coordinator import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse

FIRST_VERSION_WITH_SEVERAL_KEYS = 4
NOT_IMPLEMENTED = "consumer groups and transactions are not implemented yet"

log = logger(__name__)


def _refused(request: FindCoordinatorRequest, code: ErrorCode) -> FindCoordinatorResponse:
    if request.coordinator_keys:
        return FindCoordinatorResponse(
            coordinators=[
                Coordinator(key=key, node_id=-1, host="", port=-1, error_code=code, error_message=NOT_IMPLEMENTED)
                for key in request.coordinator_keys
            ]
        )
    return FindCoordinatorResponse(
        error_code=code,
        error_message=NOT_IMPLEMENTED,
        node_id=-1,
        port=-1,
    )


@handles(FindCoordinatorRequest, versions="0-6", on_error=_refused)
async def find_coordinator(
    request: FindCoordinatorRequest, broker: Broker, context: Context
) -> FindCoordinatorResponse:
    """Refuse every key."""
    peer = context.stream.peer_host
    left_out = broker.log_limit.admit(("groups", peer), now_ms=broker.env.now_ms())
    if left_out is not None:
        log.warning(NOT_IMPLEMENTED, peer=peer, client_id=context.client_id, left_out=left_out)
    if context.api_version >= FIRST_VERSION_WITH_SEVERAL_KEYS and not request.coordinator_keys:
        return FindCoordinatorResponse(coordinators=[])
    return _refused(request, ErrorCode.COORDINATOR_NOT_AVAILABLE)
