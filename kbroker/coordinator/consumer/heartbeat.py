"""ConsumerGroupHeartbeat: a member joins, reports what it owns, gets its assignment, and leaves.

Source: consumerGroupHeartbeat of GroupCoordinatorService and GroupMetadataManager of Apache Kafka 4.3.1; KIP-848,
KIP-1082 (from version 1 on the client makes the member id).
"""

from __future__ import annotations

from base64 import urlsafe_b64encode
from typing import Final, TypeVar

from kbroker.coordinator.caller import Caller
from kbroker.coordinator.consumer import fencing, migrating, regexes, timing
from kbroker.coordinator.consumer.group import ConsumerGroup
from kbroker.coordinator.consumer.member import (
    LEAVE_EPOCH,
    STATIC_LEAVE_EPOCH,
    UNREVOKED,
    ConsumerMember,
    Epochs,
)
from kbroker.coordinator.consumer.reconciling import Goal, reconciled
from kbroker.coordinator.consumer.records import assignment_record, member_record, member_tombstones, target_record
from kbroker.coordinator.consumer.subscribing import Change, compare_topics, topic_ids
from kbroker.coordinator.consumer.targets import update_target
from kbroker.coordinator.context import Context
from wire.errors import ErrorCode, KafkaError
from wire.messages.consumer_group_heartbeat import (
    Assignment,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)

CLIENT_MAKES_MEMBER_ID: Final = 1
UNKNOWN_TIMEOUT: Final = -1

Owned = list[TopicPartitions] | None
T = TypeVar("T")


def consumer_group_heartbeat(
    context: Context, request: ConsumerGroupHeartbeatRequest, caller: Caller
) -> ConsumerGroupHeartbeatResponse:
    """Decide a heartbeat. Raises the errors of the protocol, with Kafka's messages."""
    _validate(context, request, caller.api_version)
    if request.member_epoch < 0:
        return _leave(context, request)
    is_joining = request.member_epoch == 0
    group = migrating.consumer_group(context, request.group_id, caller, creates=is_joining)
    require_room(context, group, request.member_id)
    member_id = request.member_id or new_member_id(context)
    if request.instance_id is None:
        old = ConsumerMember(member_id) if is_joining and member_id not in group.members else group.member(member_id)
        require_epoch(old, request.member_epoch, request.topic_partitions)
    else:
        old = static_member(
            context,
            group,
            member_id,
            request.instance_id,
            is_joining=is_joining,
            epoch=request.member_epoch,
            owned=request.topic_partitions,
        )
    new = _told(old, request, caller)
    names_changed = store_member(context, group, old, new)
    regex = regexes.update(context, group, old, new, caller)
    change = raise_epoch(context, group, old, new, raises=names_changed or regex is regexes.Status.RESOLVED)
    epoch, target = update_target(context, change)
    has_changed = names_changed or regex is not regexes.Status.UNCHANGED
    new = reconcile(context, group, new, Goal(epoch, target, has_changed, request.topic_partitions))
    timing.extend_session(context, group.group_id, new)
    response = ConsumerGroupHeartbeatResponse(
        member_id=new.member_id,
        member_epoch=new.member_epoch,
        heartbeat_interval_ms=timing.heartbeat_interval_ms(context, group.group_id),
    )
    if is_joining or _is_full(request) or old.assigned != new.assigned:
        response.assignment = Assignment(topic_partitions=_answered(new.assigned))
    return response


def _is_full(request: ConsumerGroupHeartbeatRequest) -> bool:
    """Whether the request has all fields; the member may then have lost the last response."""
    is_subscribed = request.subscribed_topic_names is not None or request.subscribed_topic_regex is not None
    return request.rebalance_timeout_ms != UNKNOWN_TIMEOUT and is_subscribed and request.topic_partitions is not None


def _answered(epochs: Epochs) -> list[TopicPartitions]:
    return [TopicPartitions(topic_id=topic_id, partitions=sorted(of_topic)) for topic_id, of_topic in epochs.items()]


def new_member_id(context: Context) -> str:
    """A member id as Kafka makes them."""
    return urlsafe_b64encode(context.new_uuid().bytes).decode().rstrip("=")


def _validate(context: Context, request: ConsumerGroupHeartbeatRequest, api_version: int) -> None:
    epoch = request.member_epoch
    needs_id = api_version >= CLIENT_MAKES_MEMBER_ID or epoch > 0 or epoch == LEAVE_EPOCH
    named = (
        (request.member_id if needs_id else None, "MemberId"),
        (request.group_id, "GroupId"),
        (request.instance_id, "InstanceId"),
        (request.rack_id, "RackId"),
    )
    for value, name in named:
        if value is not None and not value.strip(_JAVA_BLANKS):
            raise _invalid(f"{name} can't be empty.")
    if epoch == 0:
        if request.rebalance_timeout_ms == UNKNOWN_TIMEOUT:
            raise _invalid("RebalanceTimeoutMs must be provided in first request.")
        if request.topic_partitions is None or request.topic_partitions:
            raise _invalid("TopicPartitions must be empty when (re-)joining.")
        if request.subscribed_topic_names is None and request.subscribed_topic_regex is None:
            raise _invalid("Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining.")
    elif epoch == STATIC_LEAVE_EPOCH:
        if request.instance_id is None:
            raise _invalid("InstanceId can't be null.")
    elif epoch < STATIC_LEAVE_EPOCH:
        raise _invalid("MemberEpoch is invalid.")
    known = context.settings.group_consumer_assignors
    if request.server_assignor is not None and request.server_assignor not in known:
        text = f"ServerAssignor {request.server_assignor} is not supported. Supported assignors: {', '.join(known)}."
        raise KafkaError(ErrorCode.UNSUPPORTED_ASSIGNOR, text)


_JAVA_BLANKS: Final = "".join(map(chr, range(0x21)))
"""What Java's String.trim removes."""


def _invalid(text: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, text)


def require_room(context: Context, group: ConsumerGroup, member_id: str) -> None:
    """Raise GROUP_MAX_SIZE_REACHED if the group is full and the member is new."""
    size = context.settings.group_consumer_max_size
    if len(group.members) >= size and member_id not in group.members:
        text = f"The consumer group has reached its maximum capacity of {size} members."
        raise KafkaError(ErrorCode.GROUP_MAX_SIZE_REACHED, text)


def require_epoch(member: ConsumerMember, epoch: int, owned: Owned) -> None:
    """Raise FENCED_MEMBER_EPOCH unless the member knows its epoch, or lost only the last response: it then has the
    previous epoch and owns nothing that it was not given.
    """
    if epoch in (0, member.member_epoch):
        return
    is_smaller = epoch < member.member_epoch
    if is_smaller and epoch == member.previous_member_epoch and _is_given(owned, member.assigned):
        return
    text = (
        f"The consumer group member has a {'smaller' if is_smaller else 'greater'} member epoch ({epoch}) than the one "
        f"known by the group coordinator ({member.member_epoch}). "
        "The member must abandon all its partitions and rejoin."
    )
    raise KafkaError(ErrorCode.FENCED_MEMBER_EPOCH, text)


def _is_given(owned: Owned, assigned: Epochs) -> bool:
    return owned is not None and all(assigned.get(one.topic_id, {}).keys() >= set(one.partitions) for one in owned)


def static_member(
    context: Context,
    group: ConsumerGroup,
    member_id: str,
    instance_id: str,
    *,
    is_joining: bool,
    epoch: int,
    owned: Owned,
    is_classic: bool = False,
) -> ConsumerMember:
    """The static member that sends the request. A joining one takes the place of a predecessor that has left.

    Errors  UNRELEASED_INSTANCE_ID while the predecessor is alive, UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, and those of
            require_epoch
    """
    known = group.static_member(instance_id)
    if is_joining:
        if known is None:
            return group.members.get(member_id) or ConsumerMember(member_id)
        if not is_classic and known.classic is None and known.member_epoch != STATIC_LEAVE_EPOCH:
            text = (
                f"Static member {member_id} with instance id {instance_id} cannot join the group because the instance "
                f"id is owned by {known.member_id} member."
            )
            raise KafkaError(ErrorCode.UNRELEASED_INSTANCE_ID, text)
        new = known._replace(member_id=member_id, member_epoch=0, previous_member_epoch=0)
        _replace(context, group, known, new)
        return new
    known = known_static_member(group, instance_id, member_id)
    if not is_classic:
        require_epoch(known, epoch, owned)
    return known


def known_static_member(group: ConsumerGroup, instance_id: str, member_id: str) -> ConsumerMember:
    """The static member with both ids. Raises UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID."""
    known = group.static_member(instance_id)
    if known is None:
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"Instance id {instance_id} is unknown.")
    if known.member_id != member_id:
        text = f"Static member {member_id} with instance id {instance_id} was fenced by member {known.member_id}."
        raise KafkaError(ErrorCode.FENCED_INSTANCE_ID, text)
    return known


def _replace(context: Context, group: ConsumerGroup, old: ConsumerMember, new: ConsumerMember) -> None:
    """Give the place of a static member to its successor. Timers of the old member find nothing when they expire."""
    context.records += member_tombstones(group.group_id, old.member_id)
    context.records += (
        member_record(group.group_id, new),
        target_record(group.group_id, new.member_id, group.target_of(old)),
        assignment_record(group.group_id, new),
    )


def _told(old: ConsumerMember, request: ConsumerGroupHeartbeatRequest, caller: Caller) -> ConsumerMember:
    """The member after what the request says; null means unchanged."""
    names = request.subscribed_topic_names
    return old._replace(
        instance_id=_or(request.instance_id, old.instance_id),
        rack_id=_or(request.rack_id, old.rack_id),
        rebalance_timeout_ms=_or(
            None if request.rebalance_timeout_ms == UNKNOWN_TIMEOUT else request.rebalance_timeout_ms,
            old.rebalance_timeout_ms,
        ),
        server_assignor=_or(request.server_assignor, old.server_assignor),
        subscribed_topic_names=old.subscribed_topic_names if names is None else frozenset(names),
        subscribed_topic_regex=_or(request.subscribed_topic_regex, old.subscribed_topic_regex),
        client_id=caller.client_id,
        client_host=caller.client_host,
        classic=None,
    )


def _or(told: T | None, known: T) -> T:
    return known if told is None else told


def store_member(context: Context, group: ConsumerGroup, old: ConsumerMember, new: ConsumerMember) -> bool:
    """Store what the member reported, if it is new. True if it subscribes to other names."""
    if new == old:
        return False
    context.records.append(member_record(group.group_id, new))
    return new.subscribed_topic_names != old.subscribed_topic_names


def raise_epoch(
    context: Context, group: ConsumerGroup, old: ConsumerMember, new: ConsumerMember, *, raises: bool
) -> Change:
    """Raise the group epoch if the subscriptions or the subscribed topics have changed."""
    if raises or group.is_metadata_expired:
        epoch, subscriptions = compare_topics(context, group, old, new, raises_epoch=raises)
        return Change(group, old, new, epoch, subscriptions)
    return Change(group, old, new, group.group_epoch, group.subscriptions)


def reconcile(context: Context, group: ConsumerGroup, member: ConsumerMember, goal: Goal) -> ConsumerMember:
    """Move the member towards its target, and store the step."""
    if not goal.has_subscription_changed and member.is_reconciled_to(goal.epoch):
        return member
    new = reconciled(group, member, goal, topic_ids(group.topics_of(member), context.image))
    if new == member:
        return member
    context.records.append(assignment_record(group.group_id, new))
    if new.classic is None:  # members of the classic protocol have timers for their phases instead
        if new.state is UNREVOKED:
            timing.start_rebalance(context, group.group_id, new)
        else:
            timing.cancel(context, group.group_id, new.member_id, timing.REBALANCE)
    return new


def _leave(context: Context, request: ConsumerGroupHeartbeatRequest) -> ConsumerGroupHeartbeatResponse:
    group = migrating.known_consumer_group(context, request.group_id)
    if request.instance_id is None:
        member = group.member(request.member_id)
    else:
        member = known_static_member(group, request.instance_id, request.member_id)
    if request.member_epoch == STATIC_LEAVE_EPOCH:
        left = member._replace(
            member_epoch=STATIC_LEAVE_EPOCH, pending_revocation={}, assigned=_from_the_start(member.assigned)
        )
        context.records.append(assignment_record(group.group_id, left))
    else:
        fencing.fence(context, group, [member])
    return ConsumerGroupHeartbeatResponse(
        member_id=request.member_id, member_epoch=request.member_epoch, heartbeat_interval_ms=0
    )


def _from_the_start(epochs: Epochs) -> Epochs:
    """The successor of a static member has these partitions from epoch 0 on."""
    return {topic_id: dict.fromkeys(of_topic, 0) for topic_id, of_topic in epochs.items()}
