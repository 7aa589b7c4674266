"""DeleteTopics: delete topics by name, from v6 on by name or id."""

from wire.schema import field, message, struct
from wire.types import ZERO_UUID, int16, int32, string, uuid


@struct
class DeleteTopicState:
    name: string | None = None
    topic_id: uuid


@message(api_key=20, versions="1-6", flexible="4+")
class DeleteTopicsRequest:
    topics: list[DeleteTopicState] = field(versions="6+", default=[])
    topic_names: list[string] = field(versions="0-5", default=[], ignorable=True)
    timeout_ms: int32


@struct
class DeletableTopicResult:
    name: string | None = field(nullable="6+")
    topic_id: uuid = field(versions="6+", default=ZERO_UUID, ignorable=True)
    error_code: int16 = 0
    error_message: string | None = field(versions="5+", default=None, ignorable=True)


@message(api_key=20, versions="1-6", flexible="4+")
class DeleteTopicsResponse:
    throttle_time_ms: int32 = 0
    responses: list[DeletableTopicResult]
