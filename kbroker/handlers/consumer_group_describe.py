"""ConsumerGroupDescribe: states and members of consumer groups of KIP-848."""

from __future__ import annotations

from collections.abc import Iterator

from kbroker.broker import Broker
from kbroker.handlers import Context, handles
from kbroker.handlers.consumer_group_heartbeat import require_group_version
from kbroker.security.authorizing import Operation, ResourceType
from wire.errors import ErrorCode, KafkaError
from wire.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DescribedGroup,
    Member,
)
from wire.refusals import refused


@handles(ConsumerGroupDescribeRequest, versions="0-1")
async def consumer_group_describe(
    request: ConsumerGroupDescribeRequest, broker: Broker, context: Context
) -> ConsumerGroupDescribeResponse:
    """Describe each group once, in the order of the request. A group with a topic that the client may not describe is
    refused with TOPIC_AUTHORIZATION_FAILED.
    """
    require_group_version(broker)
    groups: list[DescribedGroup] = []
    for group_id in dict.fromkeys(request.group_ids):
        if broker.turns.due():
            await broker.turns.next()
        group, members = _describe(broker, context, group_id)
        topics: set[str] = set()
        for member in members:
            group.members.append(member)
            for assignment in (member.assignment, member.target_assignment):
                topics.update(one.topic_name for one in assignment.topic_partitions)
            if broker.turns.due(1 + len(member.assignment.topic_partitions)):
                await broker.turns.next()
        if request.include_authorized_operations and not group.error_code:
            group.authorized_operations = context.operations_on(ResourceType.GROUP, group_id)
        if await context.denied(Operation.DESCRIBE, ResourceType.TOPIC, topics, broker.turns):
            text = "The group has described topic(s) that the client is not authorized to describe."
            group = _refused(group_id, ErrorCode.TOPIC_AUTHORIZATION_FAILED, text)
        groups.append(group)
    return ConsumerGroupDescribeResponse(groups=groups)


def _describe(broker: Broker, context: Context, group_id: str) -> tuple[DescribedGroup, Iterator[Member]]:
    try:
        context.demand(Operation.DESCRIBE, ResourceType.GROUP, group_id)
        if not group_id:
            raise KafkaError(ErrorCode.INVALID_GROUP_ID)
        return broker.groups.shard_of(group_id).describe_consumer_group(group_id)
    except KafkaError as error:
        return _refused(group_id, error.code), iter(())


def _refused(group_id: str, code: ErrorCode, message: str | None = None) -> DescribedGroup:
    asked = ConsumerGroupDescribeRequest(group_ids=[group_id], include_authorized_operations=False)
    answer: ConsumerGroupDescribeResponse = refused(asked, code, message)
    return answer.groups[0]
