"""OffsetCommit: store the offsets of a group. The broker replies once they are in the log.

Partitions that do not exist or that the client may not read are refused individually, before the group is checked. The
others are committed together, up to PARTITIONS_TOGETHER; a larger request is split into several commits, and the event
loop runs other tasks between them. If a rebalance happens between two of them, the remaining ones are refused, so that
only the owner of a partition commits its offset.

A commit without a member resets a group, or comes from a consumer that assigns partitions to itself. Both look the
same. Tools connect for each reset, and such a consumer commits all the time, so the change log gets the first commit of
a connection for a group, and the first one after PAUSE_MS.
"""

from __future__ import annotations

from collections.abc import Set
from functools import partial
from typing import Final
from uuid import UUID

from kbroker.broker import Broker
from kbroker.broker.portions import in_portions
from kbroker.handlers import Context, handles
from kbroker.handlers.groups import log_new_group
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
PAUSE_MS: Final = 60_000
REMEMBERED_GROUPS: Final = 64
"""The number of groups for which a connection remembers its last commit without a member."""


@handles(OffsetCommitRequest, versions="2-10")
async def offset_commit(request: OffsetCommitRequest, broker: Broker, context: Context) -> OffsetCommitResponse:
    """Commit the offsets of partitions that exist and that the client may read; refuse the others."""
    context.demand(Operation.READ, ResourceType.GROUP, request.group_id)
    by_id, image = context.api_version >= FIRST_VERSION_WITH_TOPIC_IDS, broker.image
    if by_id:
        for topic in request.topics:
            if (found := image.topics_by_id.get(topic.topic_id)) is not None:
                topic.name = found.name
    names = [topic.name for topic in request.topics if topic.name or not by_id]
    denied = await context.denied(Operation.READ, ResourceType.TOPIC, names, broker.turns)
    sort_out = partial(_sort_out, request, image, denied, by_id=by_id)
    known, answered = await broker.env.run_blocking(sort_out) if context.is_large else sort_out()
    caller = context.caller
    has_member = request.generation_id_or_member_epoch >= 0
    existed = has_member or broker.groups.knows(request.group_id)
    is_news: bool | None = None
    for topics in in_portions(known, "partitions", size=PARTITIONS_TOGETHER):
        if broker.turns.due(sum(len(topic.partitions) for topic in topics)):
            await broker.turns.next()
        request.topics = topics
        answer: OffsetCommitResponse = await broker.groups.ask(request.group_id, request, caller, wait=context.wait)
        answered += answer.topics
        if has_member:
            continue
        log_new_group(request.group_id, broker, context, existed=existed)
        existed = broker.groups.knows(request.group_id)
        if all(one.error_code for topic in answer.topics for one in topic.partitions):
            continue
        if is_news is None:
            is_news = _is_news(context, request.group_id, broker.env.now_ms())
        if is_news:
            await context.log_changes(broker.change_log, request, answer)
    return OffsetCommitResponse(topics=_merged(answered))


def _is_news(context: Context, group_id: str, now_ms: int) -> bool:
    """Whether the connection has not committed for the group recently."""
    commits, key = context.commits, hash(group_id)
    last_ms = commits.pop(key, None)
    commits[key] = now_ms
    if len(commits) > REMEMBERED_GROUPS:
        del commits[next(iter(commits))]
    return last_ms is None or now_ms - last_ms > PAUSE_MS


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
