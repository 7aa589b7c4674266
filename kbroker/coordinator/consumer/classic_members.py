"""Members of the classic protocol in a consumer group: JoinGroup, SyncGroup, Heartbeat and LeaveGroup.

The broker assigns their partitions too. A member learns from a Heartbeat that it has to rejoin: when there is a newer
target assignment, when it has to give partitions up, or when the partitions that it waits for are free. JoinGroup then
moves it a step towards its target, and SyncGroup returns the partitions. A generation is the member's epoch.

Topics that the member may not describe do not count: partitions of them would tell that they exist. Kafka assigns them.

Source: classicGroupJoinToConsumerGroup and its companions in GroupMetadataManager of Apache Kafka 4.3.1.
"""

from __future__ import annotations

from collections.abc import Iterable

from kbroker.coordinator.caller import Caller
from kbroker.coordinator.consumer import fencing, migrating, regexes, timing
from kbroker.coordinator.consumer.group import CONSUMER, ConsumerGroup, partitions_of
from kbroker.coordinator.consumer.heartbeat import (
    known_static_member,
    new_member_id,
    raise_epoch,
    reconcile,
    require_room,
    static_member,
    store_member,
)
from kbroker.coordinator.consumer.member import UNRELEASED, UNREVOKED, ConsumerMember
from kbroker.coordinator.consumer.reconciling import Goal
from kbroker.coordinator.consumer.targets import update_target
from kbroker.coordinator.context import Context, Write
from kbroker.coordinator.member import protocols_of
from kbroker.coordinator.refusals import join_error
from kbroker.metadata.image import Image
from wire.errors import ErrorCode, KafkaError, Malformed
from wire.messages.consumer_group_heartbeat import TopicPartitions
from wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from wire.messages.join_group import JoinGroupRequest, JoinGroupResponse
from wire.messages.leave_group import LeaveGroupResponse, MemberIdentity, MemberResponse
from wire.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from wire.stored.consumer_protocol import ConsumerProtocolSubscription

MEMBER_ID_REQUIRED_VERSION = 4


def join(context: Context, group: ConsumerGroup, request: JoinGroupRequest, caller: Caller) -> JoinGroupResponse:
    """Add or move a classic member. The answer does not wait for other members: each has its own pace."""
    if not migrating.allows_classic_members(context):
        raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "the migration of groups is disabled")
    group_id, instance_id = group.group_id, request.group_instance_id
    member_id = request.member_id or new_member_id(context)
    require_room(context, group, member_id)
    protocols = protocols_of(request.protocols)
    if not _supports(group, request.protocol_type, protocols):
        raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, f"the protocols of {member_id} are not supported")
    if not request.member_id and instance_id is None and caller.api_version >= MEMBER_ID_REQUIRED_VERSION:
        return join_error(ErrorCode.MEMBER_ID_REQUIRED, member_id)
    subscription = _subscription(next(iter(protocols.values())))
    replaced = group.static_member(instance_id)
    if instance_id is None:
        old = group.members.get(member_id) or ConsumerMember(member_id)
    else:
        old = static_member(
            context,
            group,
            member_id,
            instance_id,
            is_joining=not request.member_id,
            epoch=0,
            owned=None,
            is_classic=True,
        )
    new = old._replace(
        instance_id=instance_id if instance_id is not None else old.instance_id,
        rack_id=subscription.rack_id or old.rack_id,
        rebalance_timeout_ms=request.rebalance_timeout_ms
        if request.rebalance_timeout_ms != -1
        else old.rebalance_timeout_ms,
        subscribed_topic_names=caller.describable(subscription.topics),
        subscribed_topic_regex="",
        client_id=caller.client_id,
        client_host=caller.client_host,
        classic=migrating.classic_metadata(request.session_timeout_ms, protocols),
    )
    names_changed = store_member(context, group, old, new)
    has_changed = regexes.update(context, group, old, new, caller) is not regexes.Status.UNCHANGED or names_changed
    change = raise_epoch(context, group, old, new, raises=has_changed)
    owned = _owned(subscription, context.image)
    if replaced is not None and migrating.becomes_classic_with(context, group, replaced):
        rebalances = group.assignment_epoch < change.group_epoch
        if not rebalances:
            goal = Goal(group.assignment_epoch, group.target_of(new), has_changed, owned)
            new = reconcile(context, group, new, goal)
        migrating.to_classic(context, group, joining=new, rebalances=rebalances)
    else:
        epoch, target = update_target(context, change)
        new = reconcile(context, group, new, Goal(epoch, target, has_changed, owned))
        _start_phase(context, group_id, new, request.rebalance_timeout_ms)
    return JoinGroupResponse(
        generation_id=new.member_epoch,
        protocol_type=CONSUMER,
        protocol_name=next(iter(protocols)),
        leader="",
        member_id=new.member_id,
        members=[],
    )


def _start_phase(context: Context, group_id: str, member: ConsumerMember, sync_timeout_ms: int) -> None:
    """The member has joined, and must now send SyncGroup."""

    def on_appended() -> None:
        timing.cancel(context, group_id, member.member_id, timing.JOIN)
        timing.extend_session(context, group_id, member)
        timing.schedule(context, group_id, member.member_id, timing.SYNC, sync_timeout_ms)

    context.writes.append(Write(on_appended, lambda _: None))


def _supports(group: ConsumerGroup, protocol_type: str, protocols: Iterable[str]) -> bool:
    """Whether all classic members support one of the protocols."""
    return protocol_type == CONSUMER and any(group.classic_protocols[name] == group.classic_count for name in protocols)


def subscribed_topics(request: JoinGroupRequest) -> list[str]:
    """The topics that a joining member names; none if its metadata cannot be read."""
    try:
        return migrating.subscription_of(next(iter(protocols_of(request.protocols).values()), b"")).topics
    except Malformed:
        return []


def _subscription(metadata: bytes) -> ConsumerProtocolSubscription:
    try:
        return migrating.subscription_of(metadata)
    except Malformed as error:
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"malformed subscription: {error}") from None


def _owned(subscription: ConsumerProtocolSubscription, image: Image) -> list[TopicPartitions]:
    return [
        TopicPartitions(topic_id=image.topics_by_name[one.topic].id, partitions=one.partitions)
        for one in subscription.owned_partitions
        if one.topic in image.topics_by_name
    ]


def sync(context: Context, group: ConsumerGroup, request: SyncGroupRequest) -> SyncGroupResponse:
    """Return the member's partitions."""
    member = _classic_member(group, request.member_id, request.group_instance_id, request.generation_id)
    assert member.classic is not None
    first = member.classic.supported_protocols[0]
    if request.protocol_type not in (None, CONSUMER) or request.protocol_name not in (None, first.name):
        raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    if group.assignment_epoch > member.member_epoch and member.state is not UNREVOKED:
        _expect_join(context, group, member)
        raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS)
    timing.cancel(context, group.group_id, member.member_id, timing.SYNC)
    timing.extend_session(context, group.group_id, member)
    return SyncGroupResponse(
        protocol_type=request.protocol_type,
        protocol_name=request.protocol_name,
        assignment=migrating.encoded_assignment(partitions_of(member.assigned), first.metadata, context.image),
    )


def heartbeat(context: Context, group: ConsumerGroup, request: HeartbeatRequest) -> HeartbeatResponse:
    """Extend the member's session. REBALANCE_IN_PROGRESS if it should rejoin."""
    member = _classic_member(group, request.member_id, request.group_instance_id, request.generation_id)
    timing.extend_session(context, group.group_id, member)
    if (
        member.member_epoch < group.assignment_epoch
        or member.state is UNREVOKED
        or (member.state is UNRELEASED and not _waits(group, member))
    ):
        _expect_join(context, group, member)
        return HeartbeatResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS)
    return HeartbeatResponse()


def _waits(group: ConsumerGroup, member: ConsumerMember) -> bool:
    """Whether another member still owns a partition of the member's target."""
    return any(
        partition not in member.assigned.get(topic_id, ()) and group.is_owned(topic_id, partition)
        for topic_id, of_topic in group.target.get(member.member_id, {}).items()
        for partition in of_topic
    )


def _expect_join(context: Context, group: ConsumerGroup, member: ConsumerMember) -> None:
    delay_ms = member.rebalance_timeout_ms
    timing.schedule_if_absent(context, group.group_id, member.member_id, timing.JOIN, delay_ms)


def _classic_member(
    group: ConsumerGroup, member_id: str, instance_id: str | None, generation_id: int
) -> ConsumerMember:
    """The classic member that sends the request. Raises UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, ILLEGAL_GENERATION."""
    member = group.member(member_id) if instance_id is None else known_static_member(group, instance_id, member_id)
    if member.classic is None:
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} does not use the classic protocol.")
    if member.member_epoch != generation_id:
        raise KafkaError(ErrorCode.ILLEGAL_GENERATION)
    return member


def leave(context: Context, group: ConsumerGroup, identities: Iterable[MemberIdentity]) -> LeaveGroupResponse:
    """Remove members of either protocol, given by member id or, for static members, by instance id alone."""
    answers: list[MemberResponse] = []
    leaving: dict[str, ConsumerMember] = {}
    for identity in identities:
        code = ErrorCode.NONE
        try:
            member = _leaving(group, identity)
            leaving[member.member_id] = member
        except KafkaError as error:
            code = error.code
        answers.append(
            MemberResponse(member_id=identity.member_id, group_instance_id=identity.group_instance_id, error_code=code)
        )
    fencing.fence(context, group, list(leaving.values()))
    return LeaveGroupResponse(members=answers)


def _leaving(group: ConsumerGroup, identity: MemberIdentity) -> ConsumerMember:
    if identity.group_instance_id is None:
        return group.member(identity.member_id)
    if not identity.member_id:
        known = group.static_member(identity.group_instance_id)
        if known is None:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
        return known
    return known_static_member(group, identity.group_instance_id, identity.member_id)
