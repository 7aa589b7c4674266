"""IncrementalAlterConfigs: change single settings of topics, brokers, loggers, groups."""

from __future__ import annotations

from kbroker.broker import Broker
from kbroker.handlers import Context, handles
from wire.errors import ErrorCode
from wire.messages.incremental_alter_configs import (
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)


def _refused(request: IncrementalAlterConfigsRequest, code: ErrorCode) -> IncrementalAlterConfigsResponse:
    return IncrementalAlterConfigsResponse(
        responses=[
            AlterConfigsResourceResponse(
                error_code=code,
                error_message=None,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
            )
            for resource in request.resources
        ]
    )


@handles(IncrementalAlterConfigsRequest, versions="0-1", on_error=_refused)
async def incremental_alter_configs(
    request: IncrementalAlterConfigsRequest, broker: Broker, context: Context
) -> IncrementalAlterConfigsResponse:
    """Make the changes; reply once they are in effect on this broker."""
    return await broker.alter_configs(request)
