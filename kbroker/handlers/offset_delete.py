"""OffsetDelete: delete a group's offsets for topics to which no member is subscribed."""

from __future__ import annotations

from kbroker.broker import Broker
from kbroker.broker.known_partitions import known_partitions, why_refused
from kbroker.handlers import Context, handles
from kbroker.security.authorizing import Operation, ResourceType
from wire.errors import ErrorCode
from wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)


@handles(OffsetDeleteRequest, versions="0")
async def offset_delete(request: OffsetDeleteRequest, broker: Broker, context: Context) -> OffsetDeleteResponse:
    """Delete the offsets; refuse unknown and denied partitions individually, unless the whole request fails."""
    context.demand(Operation.DELETE, ResourceType.GROUP, request.group_id)
    names = [topic.name for topic in request.topics]
    denied = await context.denied(Operation.READ, ResourceType.TOPIC, names, broker.turns)
    known, unknown = known_partitions(request.topics, broker.image, denied=denied)
    request.topics = known
    answer: OffsetDeleteResponse = await broker.groups.ask(request.group_id, request, context.caller, wait=context.wait)
    if answer.error_code:
        return answer
    await context.log_changes(broker.change_log, request, answer)
    by_name = {name: _refused(name, indexes, why_refused(name, denied)) for name, indexes in unknown.items()}
    for answered in answer.topics:
        entry = by_name.setdefault(answered.name, answered)
        if entry is not answered:
            entry.partitions += answered.partitions
    return OffsetDeleteResponse(topics=list(by_name.values()))


def _refused(name: str, indexes: list[int], code: ErrorCode) -> OffsetDeleteResponseTopic:
    return OffsetDeleteResponseTopic(
        name=name,
        partitions=[OffsetDeleteResponsePartition(partition_index=index, error_code=code) for index in indexes],
    )
