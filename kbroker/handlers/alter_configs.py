"""AlterConfigs: replace all settings of topics and brokers. Deprecated in Kafka, but librdkafka still sends it."""

from __future__ import annotations

from kbroker.broker import Broker
from kbroker.handlers import Context, handles
from wire.messages.alter_configs import AlterConfigsRequest, AlterConfigsResponse


@handles(AlterConfigsRequest, versions="0-2")
async def alter_configs(request: AlterConfigsRequest, broker: Broker, context: Context) -> AlterConfigsResponse:
    """Ask the controller. Settings of a resource that the request does not name are deleted."""
    return await broker.controller.ask(request, AlterConfigsResponse)
