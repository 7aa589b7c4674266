"""FindCoordinator: there is no coordinator yet, and this says so.

Groups and transactions are not implemented, and none of their other APIs is advertised. This one is, for the same
reason as Produce 0: librdkafka before 2.12 takes lz4 for supported only where FindCoordinator 0 is advertised, and
otherwise sends such batches uncompressed without a word. The code is one that clients give up on, so a consumer that
subscribes fails at once instead of asking for ever.
"""

from __future__ import annotations

from kbroker.broker import Broker
from kbroker.handlers import Context, handles
from wire.errors import ErrorCode
from wire.messages.find_coordinator import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse

FIRST_VERSION_WITH_SEVERAL_KEYS = 4
NOT_IMPLEMENTED = "consumer groups and transactions are not implemented yet"


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
    if context.api_version >= FIRST_VERSION_WITH_SEVERAL_KEYS and not request.coordinator_keys:
        return FindCoordinatorResponse(coordinators=[])
    return _refused(request, ErrorCode.UNSUPPORTED_VERSION)
