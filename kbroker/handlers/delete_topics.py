"""DeleteTopics: delete topics by name or by id."""

from __future__ import annotations

from kbroker.handlers.controller import forwards
from kbroker.handlers.permits import permit_deletions
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


delete_topics = forwards(DeleteTopicsRequest, versions="1-6", permits=permit_deletions, on_error=_refused)
