"""CreateTopics: create topics, or only validate the request."""

from __future__ import annotations

from kbroker.broker import Broker
from kbroker.handlers import Context, handles
from wire.errors import ErrorCode
from wire.messages.create_topics import CreatableTopicResult, CreateTopicsRequest, CreateTopicsResponse
from wire.types import ZERO_UUID


def _refused(request: CreateTopicsRequest, code: ErrorCode) -> CreateTopicsResponse:
    return CreateTopicsResponse(
        topics=[
            CreatableTopicResult(name=topic.name, topic_id=ZERO_UUID, error_code=code, error_message=None)
            for topic in request.topics
        ]
    )


@handles(CreateTopicsRequest, versions="2-7", on_error=_refused)
async def create_topics(request: CreateTopicsRequest, broker: Broker, context: Context) -> CreateTopicsResponse:
    """Ask the controller; reply once this broker serves the new topics."""
    return await broker.controller.create_topics(request)
