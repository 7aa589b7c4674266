"""OffsetCommit: store the offsets of a group. The broker replies once they are in the log.

Partitions that do not exist or that the client may not read are refused individually, before the group is checked. The
others are committed together, up to PARTITIONS_TOGETHER; a larger request is split into several commits, and the event
loop runs other tasks between them. If a rebalance happens between two of them, the remaining ones are refused, so that
only the owner of a partition commits its offset.
"""

from __future__ import annotations

from collections.abc import Set
from functools import partial
from uuid import UUID

from kbroker.broker import Broker
from kbroker.broker.portions import in_portions
from kbroker.handlers import Context, handles
from kbroker.metadata.image import Image
from kbroker.security.authorizing import Operation, ResourceType
from wire.errors import ErrorCode
from wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)

FIRST_VERSION_WITH_TOPIC_IDS = 10
PARTITIONS_TOGETHER = 500


@handles(OffsetCommitRequest, versions="2-10")
async def offset_commit(request: OffsetCommitRequest, broker: Broker, context: Context) -> OffsetCommitResponse:
    """Commit the offsets of partitions that exist and that the client may read; refuse the others."""
    context.demand(Operation.READ, ResourceType.GROUP, request.group_id)
    by_id, image = context.api_version >= FIRST_VERSION_WITH_TOPIC_IDS, broker.image
    if by_id:
        for topic in request.topics:
            if (found := image.topics_by_id.get(topic.topic_id)) is not None:
                topic.name = found.name
    names = [topic.name for topic in request.topics if topic.name]
    denied = await context.denied(Operation.READ, ResourceType.TOPIC, names, broker.turns)
    sort_out = partial(_sort_out, request, image, denied, by_id=by_id)
    known, answered = await broker.env.run_blocking(sort_out) if context.is_large else sort_out()
    caller = context.caller
    for topics in in_portions(known, "partitions", size=PARTITIONS_TOGETHER):
        if broker.turns.due(sum(len(topic.partitions) for topic in topics)):
            await broker.turns.next()
        request.topics = topics
        answer: OffsetCommitResponse = await broker.groups.ask(request.group_id, request, caller, wait=context.wait)
        answered += answer.topics
    return OffsetCommitResponse(topics=_merged(answered))


def _sort_out(
    request: OffsetCommitRequest, image: Image, denied: Set[str], *, by_id: bool
) -> tuple[list[OffsetCommitRequestTopic], list[OffsetCommitResponseTopic]]:
    """The partitions that exist, each once, and the error entries for the others. Errors come first, as in Kafka."""
    known: list[OffsetCommitRequestTopic] = []
    refused: list[OffsetCommitResponseTopic] = []
    for topic in request.topics:
        found = image.topics_by_id.get(topic.topic_id) if by_id else image.topics_by_name.get(topic.name)
        if found is None or topic.name in denied:
            code = ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            if topic.name in denied:
                code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            refused.append(_refused(topic, [one.partition_index for one in topic.partitions], code))
            continue
        topic.name, topic.topic_id = found.name, found.id
        asked = {one.partition_index: one for one in topic.partitions}  # of duplicates, the last one counts
        unknown = [index for index in asked if index not in found.partitions]
        if unknown:
            refused.append(_refused(topic, unknown, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
        topic.partitions = [one for index, one in asked.items() if index in found.partitions]
        if topic.partitions:
            known.append(topic)
    return known, refused


def _refused(topic: OffsetCommitRequestTopic, indexes: list[int], code: ErrorCode) -> OffsetCommitResponseTopic:
    return OffsetCommitResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        partitions=[OffsetCommitResponsePartition(partition_index=index, error_code=code) for index in indexes],
    )


def _merged(topics: list[OffsetCommitResponseTopic]) -> list[OffsetCommitResponseTopic]:
    """Merge the entries of each topic."""
    by_topic: dict[tuple[str, UUID], OffsetCommitResponseTopic] = {}
    for topic in topics:
        entry = by_topic.setdefault((topic.name, topic.topic_id), topic)
        if entry is not topic:
            entry.partitions += topic.partitions
    return list(by_topic.values())
