"""OffsetCommit: keep how far a group has read. The reply leaves when that is in the log.

Partitions that do not exist are refused one by one, before the group is looked at; the others are committed together.
"""

from __future__ import annotations

from uuid import UUID

from kbroker.broker import Broker
from kbroker.broker.callers import caller_of
from kbroker.coordinator.shard import refuse
from kbroker.handlers import Context, handles
from wire.errors import ErrorCode
from wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)

FIRST_VERSION_WITH_TOPIC_IDS = 10


@handles(
    OffsetCommitRequest,
    versions="2-10",
    authorize="READ group:{group_id}",
    on_error=lambda request, code: refuse(request, code, 0),
)
async def offset_commit(request: OffsetCommitRequest, broker: Broker, context: Context) -> OffsetCommitResponse:
    """Commit what can be committed."""
    image = broker.image
    by_id = context.api_version >= FIRST_VERSION_WITH_TOPIC_IDS
    known: list[OffsetCommitRequestTopic] = []
    refused: list[OffsetCommitResponseTopic] = []
    for topic in request.topics:
        found = image.topics_by_id.get(topic.topic_id) if by_id else image.topics_by_name.get(topic.name)
        if found is None:
            code = ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            refused.append(_refused(topic, [one.partition_index for one in topic.partitions], code))
            continue
        topic.name, topic.topic_id = found.name, found.id
        unknown = [one.partition_index for one in topic.partitions if one.partition_index not in found.partitions]
        if unknown:
            refused.append(_refused(topic, unknown, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
            topic.partitions = [one for one in topic.partitions if one.partition_index in found.partitions]
        if topic.partitions:
            known.append(topic)
    if not known:
        return OffsetCommitResponse(topics=_merged(refused))
    request.topics = known
    answer = await broker.groups.ask(request.group_id, request, caller_of(context), wait=context.wait)
    assert isinstance(answer, OffsetCommitResponse)
    if refused:
        # What was refused stands first, as in Kafka.
        answer.topics = _merged(refused + answer.topics)
    return answer


def _refused(topic: OffsetCommitRequestTopic, indexes: list[int], code: ErrorCode) -> OffsetCommitResponseTopic:
    return OffsetCommitResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        partitions=[OffsetCommitResponsePartition(partition_index=index, error_code=code) for index in indexes],
    )


def _merged(topics: list[OffsetCommitResponseTopic]) -> list[OffsetCommitResponseTopic]:
    """One entry a topic."""
    by_topic: dict[tuple[str, UUID], OffsetCommitResponseTopic] = {}
    for topic in topics:
        entry = by_topic.setdefault((topic.name, topic.topic_id), topic)
        if entry is not topic:
            entry.partitions += topic.partitions
    return list(by_topic.values())
