"""CreatePartitions: add partitions to topics."""

from __future__ import annotations

from kbroker.broker import Broker
from kbroker.handlers import Context, handles
from wire.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsResponse


@handles(CreatePartitionsRequest, versions="0-3")
async def create_partitions(
    request: CreatePartitionsRequest, broker: Broker, context: Context
) -> CreatePartitionsResponse:
    """Ask the controller; reply once this broker serves the new partitions."""
    return await broker.controller.ask(request, CreatePartitionsResponse)
