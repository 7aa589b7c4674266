"""OffsetFetch: the committed offsets of groups; from v8 on for several groups at once, from v10 on by topic ids.

Before v8 a request names one group, and its error code is at the top of the response; before v2 that field does not
exist, and each partition has the error code. A request for all partitions of a group (topics is null) omits, from v10
on, topics that no longer have an id.

An answer waits until the offsets in it are on all in-sync replicas: the next coordinator must not contradict it. All
groups of a request wait together. Decision 4 of ARCHITECTURE.md says what Kafka does.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import UUID

from kbroker.broker import Broker
from kbroker.broker.portions import in_portions
from kbroker.coordinator.common.led import LedPartition
from kbroker.handlers import Context, handles
from kbroker.metadata.image import Image
from kbroker.security.authorizing import Operation, ResourceType
from wire.errors import ErrorCode, KafkaError
from wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponseTopic,
)
from wire.types import ZERO_UUID

if TYPE_CHECKING:
    from kbroker.coordinator.shard import GroupShard

PORTION = 100
FIRST_VERSION_WITH_TOP_LEVEL_ERROR = 2
FIRST_VERSION_WITH_GROUPS = 8
FIRST_VERSION_WITH_TOPIC_IDS = 10


def _failed(request: OffsetFetchRequest, code: ErrorCode) -> OffsetFetchResponse:
    return OffsetFetchResponse(
        error_code=code,
        topics=[],
        groups=[OffsetFetchResponseGroup(group_id=one.group_id, topics=[], error_code=code) for one in request.groups],
    )


@handles(OffsetFetchRequest, versions="1-10", on_error=_failed)
async def offset_fetch(request: OffsetFetchRequest, broker: Broker, context: Context) -> OffsetFetchResponse:
    """Answer each group and each of its partitions once. Kafka repeats entries that are named more than once."""
    version = context.api_version
    if version >= FIRST_VERSION_WITH_GROUPS:
        by_id = version >= FIRST_VERSION_WITH_TOPIC_IDS
        sort_out = partial(_each_once, request.groups)
        groups = await broker.env.run_blocking(sort_out) if context.is_large else sort_out()
        found = await _fetch_all(broker, groups, context, by_id=by_id, require_stable=request.require_stable)
        return OffsetFetchResponse(groups=found)
    asked = OffsetFetchRequestGroup(group_id=request.group_id, topics=request.topics)
    (asked,) = await broker.env.run_blocking(_each_once, [asked]) if context.is_large else _each_once([asked])
    (whole,) = await _fetch_all(broker, [asked], context, by_id=False, require_stable=request.require_stable)
    if whole.error_code and version < FIRST_VERSION_WITH_TOP_LEVEL_ERROR:
        whole.topics = [_refused(topic, whole.error_code) for topic in asked.topics or ()]
    return OffsetFetchResponse(error_code=whole.error_code, topics=whole.topics)


def _each_once(groups: Iterable[OffsetFetchRequestGroup]) -> list[OffsetFetchRequestGroup]:
    """One entry for each group, with all topics that the request names for it, each topic once."""
    asked: dict[str, OffsetFetchRequestGroup] = {}
    for group in groups:
        known = asked.setdefault(group.group_id, group)
        if known is not group:
            known.topics = None if known.topics is None or group.topics is None else known.topics + group.topics
    for group in asked.values():
        if group.topics is not None:
            group.topics = _topics_once(group.topics)
    return list(asked.values())


async def _fetch_all(
    broker: Broker, groups: Iterable[OffsetFetchRequestGroup], context: Context, *, by_id: bool, require_stable: bool
) -> list[OffsetFetchResponseGroup]:
    """Read all groups, then wait once until what was read is committed."""
    answers: list[OffsetFetchResponseGroup] = []
    read: dict[LedPartition[GroupShard], list[OffsetFetchResponseGroup]] = {}
    for group in groups:
        if broker.turns.due():
            await broker.turns.next()
        try:
            context.demand(Operation.DESCRIBE, ResourceType.GROUP, group.group_id)
            led = broker.groups.runtime.find(group.group_id)
            answer = await _fetch(broker, led, group, context, by_id=by_id, require_stable=require_stable)
            read.setdefault(led, []).append(answer)
        except KafkaError as error:
            answer = OffsetFetchResponseGroup(group_id=group.group_id, topics=[], error_code=error.code)
        answers.append(answer)
    for led in await broker.groups.runtime.await_committed(read, wait=context.wait):
        for answer in read[led]:
            answer.error_code, answer.topics = ErrorCode.NOT_COORDINATOR, []
    return answers


async def _fetch(
    broker: Broker,
    led: LedPartition[GroupShard],
    asked: OffsetFetchRequestGroup,
    context: Context,
    *,
    by_id: bool,
    require_stable: bool,
) -> OffsetFetchResponseGroup:
    """The offsets of one group. Errors: NOT_COORDINATOR, if the partition is unloaded between two portions."""
    image, whole = broker.image, OffsetFetchResponseGroup(group_id=asked.group_id, topics=[])
    unknown: list[OffsetFetchResponseTopic] = []
    for topics in [asked.topics] if not asked.topics else in_portions(asked.topics, "partition_indexes", size=PORTION):
        if broker.turns.due(1 if topics is None else PORTION):
            await broker.turns.next()
            led.require_active()
        portion = OffsetFetchRequestGroup(
            group_id=asked.group_id, member_id=asked.member_id, member_epoch=asked.member_epoch, topics=topics
        )
        if topics is not None:
            unknown += _identify(portion, image) if by_id else _add_ids(portion, image)
            unknown += await _refuse_denied(portion, broker, context)
            led.require_active()
        found = led.shard.fetch_offsets(portion, require_stable=require_stable)
        if found.error_code:
            return found
        if topics is None and by_id:
            found.topics = [topic for topic in found.topics if _has_id(topic, image)]
        if topics is None:  # topics that the client may not describe are left out
            denied = await _denied(found.topics, broker, context, is_logged=False)
            found.topics = [topic for topic in found.topics if topic.name not in denied]
        whole.topics += found.topics
    whole.topics += unknown
    return whole


async def _denied(topics: Iterable[Any], broker: Broker, context: Context, *, is_logged: bool) -> Set[str]:
    names = [topic.name for topic in topics]
    return await context.denied(Operation.DESCRIBE, ResourceType.TOPIC, names, broker.turns, is_logged=is_logged)


async def _refuse_denied(
    asked: OffsetFetchRequestGroup, broker: Broker, context: Context
) -> list[OffsetFetchResponseTopic]:
    """Remove topics that the client may not describe; return the error entries for them."""
    topics = asked.topics or []
    denied = await _denied(topics, broker, context, is_logged=True)
    asked.topics = [topic for topic in topics if topic.name not in denied]
    return [_refused(topic, ErrorCode.TOPIC_AUTHORIZATION_FAILED) for topic in topics if topic.name in denied]


def _topics_once(topics: Iterable[OffsetFetchRequestTopic]) -> list[OffsetFetchRequestTopic]:
    """One entry for each topic, with each partition once."""
    asked: dict[tuple[str, UUID], OffsetFetchRequestTopic] = {}
    for topic in topics:
        known = asked.setdefault((topic.name, topic.topic_id), topic)
        if known is not topic:
            known.partition_indexes += topic.partition_indexes
    for topic in asked.values():
        topic.partition_indexes = list(dict.fromkeys(topic.partition_indexes))
    return list(asked.values())


def _identify(asked: OffsetFetchRequestGroup, image: Image) -> list[OffsetFetchResponseTopic]:
    """Fill in the topic names; remove topics that do not exist, and return the error entries for them."""
    known, unknown = [], []
    for topic in asked.topics or ():
        found = image.topics_by_id.get(topic.topic_id)
        if found is None:
            unknown.append(_refused(topic, ErrorCode.UNKNOWN_TOPIC_ID))
        else:
            topic.name = found.name
            known.append(topic)
    asked.topics = known
    return unknown


def _add_ids(asked: OffsetFetchRequestGroup, image: Image) -> list[OffsetFetchResponseTopic]:
    """Fill in the ids of existing topics, so that none gets the offset of an earlier topic with the same name."""
    for topic in asked.topics or ():
        found = image.topics_by_name.get(topic.name)
        topic.topic_id = ZERO_UUID if found is None else found.id
    return []


def _has_id(topic: OffsetFetchResponseTopic, image: Image) -> bool:
    found = image.topics_by_name.get(topic.name)
    if found is None:
        return False
    topic.topic_id = found.id
    return True


def _refused(topic: OffsetFetchRequestTopic, code: int) -> OffsetFetchResponseTopic:
    return OffsetFetchResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        partitions=[
            OffsetFetchResponsePartition(partition_index=index, committed_offset=-1, metadata="", error_code=code)
            for index in topic.partition_indexes
        ],
    )
