"""DeleteTopics: delete topics by name or by id."""

from __future__ import annotations

from kbroker.broker import Broker
from kbroker.handlers import Context, handles
from wire.errors import ErrorCode
from wire.messages.delete_topics import DeletableTopicResult, DeleteTopicsRequest, DeleteTopicsResponse
from wire.types import ZERO_UUID


def _refused(request: DeleteTopicsRequest, code: ErrorCode) -> DeleteTopicsResponse:
    named = [
        DeletableTopicResult(name=name, topic_id=ZERO_UUID, error_code=code, error_message=None)
        for name in request.topic_names
    ]
    stated = [
        DeletableTopicResult(name=topic.name, topic_id=topic.topic_id, error_code=code, error_message=None)
        for topic in request.topics
    ]
    return DeleteTopicsResponse(responses=named + stated)


@handles(DeleteTopicsRequest, versions="1-6", on_error=_refused)
async def delete_topics(request: DeleteTopicsRequest, broker: Broker, context: Context) -> DeleteTopicsResponse:
    """Ask the controller; reply once this broker no longer serves the deleted topics."""
    answer = await broker.controller.ask(
        request, DeleteTopicsResponse, version=context.api_version, sender=context.sender
    )
    context.throttle_ms = answer.throttle_time_ms
    await context.log_changes(broker.change_log, request, answer)
    return answer
