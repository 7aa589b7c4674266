"""ConsumerGroupDescribe: states and members of consumer groups of KIP-848."""

from __future__ import annotations

from collections.abc import Iterator

from kbroker.broker import Broker
from kbroker.handlers import Context, handles
from kbroker.handlers.consumer_group_heartbeat import require_group_version
from kbroker.handlers.groups import ALL_GROUP_OPERATIONS
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
    request: ConsumerGroupDescribeRequest, broker: Broker, _context: Context
) -> ConsumerGroupDescribeResponse:
    """Describe each group once, in the order of the request."""
    require_group_version(broker)
    groups: list[DescribedGroup] = []
    for group_id in dict.fromkeys(request.group_ids):
        if broker.turns.due():
            await broker.turns.next()
        group, members = _describe(broker, group_id)
        for member in members:
            group.members.append(member)
            if broker.turns.due(1 + len(member.assignment.topic_partitions)):
                await broker.turns.next()
        if request.include_authorized_operations and not group.error_code:
            group.authorized_operations = ALL_GROUP_OPERATIONS
        groups.append(group)
    return ConsumerGroupDescribeResponse(groups=groups)


def _describe(broker: Broker, group_id: str) -> tuple[DescribedGroup, Iterator[Member]]:
    try:
        if not group_id:
            raise KafkaError(ErrorCode.INVALID_GROUP_ID)
        return broker.groups.shard_of(group_id).describe_consumer_group(group_id)
    except KafkaError as error:
        answer: ConsumerGroupDescribeResponse = refused(
            ConsumerGroupDescribeRequest(group_ids=[group_id], include_authorized_operations=False), error.code
        )
        return answer.groups[0], iter(())
