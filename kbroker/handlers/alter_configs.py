"""AlterConfigs: replace all settings of topics and brokers. Deprecated in Kafka, but librdkafka still sends it."""

from __future__ import annotations

from kbroker.broker import Broker
from kbroker.handlers import Context, handles
from wire.errors import ErrorCode
from wire.messages.alter_configs import AlterConfigsRequest, AlterConfigsResourceResponse, AlterConfigsResponse


def _refused(request: AlterConfigsRequest, code: ErrorCode) -> AlterConfigsResponse:
    return AlterConfigsResponse(
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


@handles(AlterConfigsRequest, versions="0-2", on_error=_refused)
async def alter_configs(request: AlterConfigsRequest, broker: Broker, context: Context) -> AlterConfigsResponse:
    """Ask the controller. Settings of a resource that the request does not name are deleted."""
    return await broker.controller.alter_configs(request)
