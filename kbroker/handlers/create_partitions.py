"""CreatePartitions: add partitions to topics."""

from __future__ import annotations

from kbroker.broker import Broker
from kbroker.handlers import Context, handles
from wire.errors import ErrorCode
from wire.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopicResult,
)


def _refused(request: CreatePartitionsRequest, code: ErrorCode) -> CreatePartitionsResponse:
    return CreatePartitionsResponse(
        results=[
            CreatePartitionsTopicResult(name=topic.name, error_code=code, error_message=None)
            for topic in request.topics
        ]
    )


@handles(CreatePartitionsRequest, versions="0-3", on_error=_refused)
async def create_partitions(
    request: CreatePartitionsRequest, broker: Broker, context: Context
) -> CreatePartitionsResponse:
    """Ask the controller; reply once this broker serves the new partitions."""
    return await broker.controller.create_partitions(request)
