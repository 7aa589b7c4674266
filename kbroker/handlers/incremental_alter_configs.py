"""IncrementalAlterConfigs: change single settings of topics, brokers, loggers, groups."""

from __future__ import annotations

from kbroker.broker import Broker
from kbroker.handlers import Context, handles
from wire.messages.incremental_alter_configs import IncrementalAlterConfigsRequest, IncrementalAlterConfigsResponse


@handles(IncrementalAlterConfigsRequest, versions="0-1")
async def incremental_alter_configs(
    request: IncrementalAlterConfigsRequest, broker: Broker, context: Context
) -> IncrementalAlterConfigsResponse:
    """Make the changes; reply once they are in effect on this broker."""
    return await broker.alter_configs(request)
