"""The APIs of classic groups and of all groups, except those of offsets: a handler asks the group coordinator.

The decisions are in `kbroker.coordinator`. Listing and describing read the coordinator's shards directly.
"""

from __future__ import annotations

from kbroker.broker import Broker
from kbroker.broker.portions import PORTION
from kbroker.coordinator.caller import Caller
from kbroker.coordinator.refusals import in_version, join_error
from kbroker.handlers import Context, handles
from kbroker.security.authorizing import Operation, ResourceType
from wire.errors import ErrorCode, KafkaError
from wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from wire.messages.delete_groups import DeletableGroupResult, DeleteGroupsRequest, DeleteGroupsResponse
from wire.messages.describe_groups import DescribedGroup, DescribeGroupsRequest, DescribeGroupsResponse
from wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from wire.messages.join_group import JoinGroupRequest, JoinGroupResponse
from wire.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse
from wire.messages.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse
from wire.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from wire.refusals import refused

FIRST_VERSION_THAT_NAMES_THE_PROTOCOL = 5  # of SyncGroup
FIRST_VERSION_WITH_AUTHORIZED_OPERATIONS = 3  # of DescribeGroups


@handles(JoinGroupRequest, versions="0-9")
async def join_group(request: JoinGroupRequest, broker: Broker, context: Context) -> JoinGroupResponse:
    """Join or rejoin a group. Waits until the group's next generation begins."""
    if not context.may(Operation.READ, ResourceType.GROUP, request.group_id):
        return in_version(join_error(ErrorCode.GROUP_AUTHORIZATION_FAILED), context.api_version)
    existed = broker.groups.knows(request.group_id)
    caller = await knowing_caller(request, broker, context)
    answer: JoinGroupResponse = await broker.groups.ask(request.group_id, request, caller, wait=context.wait)
    log_new_group(request.group_id, broker, context, existed=existed)
    return answer


async def knowing_caller(
    request: JoinGroupRequest | ConsumerGroupHeartbeatRequest, broker: Broker, context: Context
) -> Caller:
    """The sender of a request, with the answers to what the decision asks about its rights. A subscription may have
    thousands of topics; they are asked here, because a decision has no turns.
    """
    caller = context.caller
    may_describe = caller.may_describe
    if may_describe is None or not (topics := frozenset(broker.groups.named_topics(request))):
        return caller
    hidden = await context.denied(Operation.DESCRIBE, ResourceType.TOPIC, topics, broker.turns, is_logged=False)
    visible = topics - hidden
    return caller._replace(may_describe=lambda topic: topic in visible or (topic not in hidden and may_describe(topic)))


def log_new_group(group: str, broker: Broker, context: Context, *, existed: bool) -> None:
    """Log a group that a member, or a commit without a member, has created."""
    if not existed and broker.groups.knows(group):
        broker.change_log.note(
            "group created", group=group, principal=context.principal, client_id=context.client_id, peer=context.host
        )


@handles(SyncGroupRequest, versions="0-5")
async def sync_group(request: SyncGroupRequest, broker: Broker, context: Context) -> SyncGroupResponse:
    """Take the leader's assignment, and give each member its own part. Waits until the assignment is stored."""
    names = (request.protocol_type, request.protocol_name)
    if context.api_version >= FIRST_VERSION_THAT_NAMES_THE_PROTOCOL and None in names:
        return SyncGroupResponse(error_code=ErrorCode.INCONSISTENT_GROUP_PROTOCOL, assignment=b"")
    context.demand(Operation.READ, ResourceType.GROUP, request.group_id)
    answer: SyncGroupResponse = await broker.groups.ask(request.group_id, request, context.caller, wait=context.wait)
    return answer


@handles(HeartbeatRequest, versions="0-4")
async def heartbeat(request: HeartbeatRequest, broker: Broker, context: Context) -> HeartbeatResponse:
    """Keep a member's session alive. The reply says whether a rebalance is in progress."""
    context.demand(Operation.READ, ResourceType.GROUP, request.group_id)
    answer: HeartbeatResponse = await broker.groups.ask(request.group_id, request, context.caller, wait=context.wait)
    return answer


@handles(LeaveGroupRequest, versions="0-5")
async def leave_group(request: LeaveGroupRequest, broker: Broker, context: Context) -> LeaveGroupResponse:
    """Remove members, each independently of the others, so that their partitions are reassigned before their sessions
    time out.
    """
    context.demand(Operation.READ, ResourceType.GROUP, request.group_id)
    whole, members, caller = LeaveGroupResponse(members=[]), request.members, context.caller
    for start in range(0, max(1, len(members)), PORTION):  # runs once even without members, for the error
        request.members = members[start : start + PORTION]
        if broker.turns.due(len(request.members)):
            await broker.turns.next()
        answer: LeaveGroupResponse = await broker.groups.ask(request.group_id, request, caller, wait=context.wait)
        if answer.error_code:
            return answer
        whole.members += answer.members
    return whole


@handles(DeleteGroupsRequest, versions="0-2")
async def delete_groups(request: DeleteGroupsRequest, broker: Broker, context: Context) -> DeleteGroupsResponse:
    """Delete empty groups and their offsets, each group independently of the others; duplicate names count once."""
    caller = context.caller
    results: list[DeletableGroupResult] = []
    for group_id in dict.fromkeys(request.groups_names):
        if broker.turns.due():
            await broker.turns.next()
        if not context.may(Operation.DELETE, ResourceType.GROUP, group_id):
            results.append(DeletableGroupResult(group_id=group_id, error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED))
            continue
        one = DeleteGroupsRequest(groups_names=[group_id])
        results += (await broker.groups.ask(group_id, one, caller, wait=context.wait)).results
    whole = DeleteGroupsResponse(results=results)
    await context.log_changes(broker.change_log, request, whole)
    return whole


@handles(DescribeGroupsRequest, versions="0-6")
async def describe_groups(request: DescribeGroupsRequest, broker: Broker, context: Context) -> DescribeGroupsResponse:
    """Describe each group once, in the order of the request. Kafka repeats a group that is named more than once."""
    version = context.api_version
    with_operations = request.include_authorized_operations and version >= FIRST_VERSION_WITH_AUTHORIZED_OPERATIONS
    groups: list[DescribedGroup] = []
    for group_id in dict.fromkeys(request.groups):
        if broker.turns.due():
            await broker.turns.next()
        group = _describe(broker, context, group_id)
        if with_operations and not group.error_code:
            group.authorized_operations = context.operations_on(ResourceType.GROUP, group_id)
        groups.append(group)
    return DescribeGroupsResponse(groups=groups)


def _describe(broker: Broker, context: Context, group_id: str) -> DescribedGroup:
    try:
        context.demand(Operation.DESCRIBE, ResourceType.GROUP, group_id)
        return broker.groups.shard_of(group_id).describe_group(group_id, context.api_version)
    except KafkaError as error:
        answer: DescribeGroupsResponse = refused(DescribeGroupsRequest(groups=[group_id]), error.code)
        return answer.groups[0]


@handles(ListGroupsRequest, versions="0-5")
async def list_groups(request: ListGroupsRequest, broker: Broker, context: Context) -> ListGroupsResponse:
    """List the groups of all shards that pass the filters and that the client may describe; fail while a shard is
    loading.
    """
    states: set[str] = set()
    types: set[str] = set()
    if request.states_filter or request.types_filter:
        from kbroker.coordinator.describing import GROUP_TYPES, STATES  # noqa: PLC0415  (slow import)

        # Reduce the filters once: a request may have many thousands of names that match no state or type.
        states = {state.lower().strip() for state in request.states_filter} & {state.lower() for state in STATES}
        types = {name.lower().strip() for name in request.types_filter} & GROUP_TYPES
        if (request.states_filter and not states) or (request.types_filter and not types):
            return ListGroupsResponse(groups=[])
    groups: list[ListedGroup] = []
    for shard in list(broker.groups.shards()):
        if broker.turns.due():
            await broker.turns.next()
        groups += shard.list_groups(states, types)
    if not context.may(Operation.DESCRIBE, ResourceType.CLUSTER, is_logged=False):
        names = [group.group_id for group in groups]
        denied = await context.denied(Operation.DESCRIBE, ResourceType.GROUP, names, broker.turns, is_logged=False)
        groups = [group for group in groups if group.group_id not in denied]
    return ListGroupsResponse(groups=groups)
