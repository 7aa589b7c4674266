"""Move a group between both protocols while its members stay.

A heartbeat of KIP-848 turns a classic group of consumers into a consumer group; its classic members stay members. When
the last member of KIP-848 has left, the group becomes a classic group again. Both happen in the decision that finds the
reason: its batch has the tombstones of the old group and the records of the new one.

Source: convertToConsumerGroup, convertToClassicGroup of GroupMetadataManager of Apache Kafka 4.3.1.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final, TypeVar
from uuid import UUID

from kbroker.coordinator import rebalance
from kbroker.coordinator.caller import Caller
from kbroker.coordinator.consumer import timing
from kbroker.coordinator.consumer.group import ConsumerGroup
from kbroker.coordinator.consumer.member import ConsumerMember, Partitions
from kbroker.coordinator.consumer.records import (
    assignment_record,
    epoch_record,
    group_tombstones,
    member_record,
    target_epoch_record,
    target_record,
)
from kbroker.coordinator.consumer.subscribing import metadata_hash
from kbroker.coordinator.context import Context, Write
from kbroker.coordinator.group import CONSUMER_PROTOCOL_TYPE, EMPTY, MAX_SUBSCRIBED_TOPICS, STABLE, Group
from kbroker.coordinator.member import EMPTY_ASSIGNMENT, Member
from kbroker.coordinator.records import group_tombstone
from kbroker.coordinator.refusals import join_error, sync_error
from kbroker.metadata.image import Image
from wire.codec import decode, encode
from wire.errors import ErrorCode, KafkaError, Malformed
from wire.schema import schema_of
from wire.stored.consumer_protocol import ConsumerProtocolAssignment, ConsumerProtocolSubscription, TopicPartition
from wire.stored.groups import ClassicMemberMetadata, ClassicProtocol

T = TypeVar("T")

_UPGRADES: Final = ("bidirectional", "upgrade")
_DOWNGRADES: Final = ("bidirectional", "downgrade")


def allows_classic_members(context: Context) -> bool:
    """Whether members of the classic protocol may join a consumer group."""
    return context.settings.group_consumer_migration_policy.lower() != "disabled"


def known_consumer_group(context: Context, group_id: str) -> ConsumerGroup:
    """A consumer group. Raises GROUP_ID_NOT_FOUND."""
    group = context.groups.get(group_id)
    if group is None:
        raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} not found.")
    if not isinstance(group, ConsumerGroup):
        raise _not_found(f"Group {group_id} is not a consumer group.")
    return group


def consumer_group(context: Context, group_id: str, caller: Caller, *, creates: bool) -> ConsumerGroup:
    """The consumer group of a heartbeat. With `creates` it may be new, or made from a classic group. It exists when its
    records are in the log.

    Errors  GROUP_ID_NOT_FOUND
    """
    group = context.groups.get(group_id)
    if isinstance(group, ConsumerGroup):
        return group
    if not creates:
        raise _not_found(
            f"Consumer group {group_id} not found." if group is None else f"Group {group_id} is not a consumer group."
        )
    if group is None:
        return ConsumerGroup(group_id)
    if group.state is EMPTY:
        context.records.append(group_tombstone(group_id))
        return ConsumerGroup(group_id)
    return _from_classic(context, group, caller)


def _not_found(text: str) -> KafkaError:
    return KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, text)


# From classic


def _from_classic(context: Context, classic: Group, caller: Caller) -> ConsumerGroup:
    """Make a consumer group of the same members, and ask them to rejoin if they wait.

    The caller must have the right to describe all topics of the members, whether they exist or not: what it learns of
    the new group would tell. Kafka does not demand it.
    """
    cannot = f"Cannot upgrade classic group {classic.group_id} to consumer group because"
    if context.settings.group_consumer_migration_policy.lower() not in _UPGRADES:
        raise _not_found(f"{cannot} online upgrade is disabled.")
    if not classic.uses_consumer_protocol():
        raise _not_found(f"{cannot} the group does not use the consumer embedded protocol.")
    if len(classic.members) > context.settings.group_consumer_max_size:
        raise _not_found(f"{cannot} the group size exceeds the consumer group maximum size.")
    epoch = classic.generation_id
    group = ConsumerGroup(classic.group_id, group_epoch=epoch, assignment_epoch=epoch)
    try:
        for one in classic.members.values():
            member, target = _from_classic_member(classic, one, epoch, context.image, caller)
            group.update_member(member)
            group.target[member.member_id] = target
    except Malformed:
        raise _not_found(f"{cannot} the embedded consumer protocol is malformed.") from None
    except _HasUserData:
        raise _not_found(
            f"{cannot} an unsupported custom assignor is in use. Please refer to the documentation or switch to a "
            "default assignor before re-attempting the upgrade."
        ) from None
    group.metadata_hash = metadata_hash(group.subscriptions.topics(), context.image)
    for one in classic.members.values():
        context.answer_join(classic, one, join_error(ErrorCode.REBALANCE_IN_PROGRESS, one.member_id))
        context.answer_sync(one, sync_error(ErrorCode.REBALANCE_IN_PROGRESS))
    _store(context, group)
    return group


class _HasUserData(Exception):
    """The assignment has data of an assignor that the broker does not know."""


def _from_classic_member(
    classic: Group, one: Member, epoch: int, image: Image, caller: Caller
) -> tuple[ConsumerMember, Partitions]:
    assigned: dict[UUID, frozenset[int]] = {}
    named: set[str] = set()
    if one.assignment != EMPTY_ASSIGNMENT:
        assignment = decoded(ConsumerProtocolAssignment, one.assignment)
        if assignment.user_data:
            raise _HasUserData
        named.update(topic.topic for topic in assignment.assigned_partitions)
        for topic in assignment.assigned_partitions:
            if topic.topic in image.topics_by_name and topic.partitions:
                assigned[image.topics_by_name[topic.topic].id] = frozenset(topic.partitions)
    name = classic.protocol_name
    subscription = subscription_of(one.protocols[name] if name in one.protocols else next(iter(one.protocols.values())))
    named.update(subscription.topics)
    if caller.describable(named) != named:
        raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    member = ConsumerMember(
        one.member_id,
        member_epoch=epoch,
        previous_member_epoch=epoch,
        instance_id=one.group_instance_id,
        rack_id=subscription.rack_id or None,
        rebalance_timeout_ms=one.rebalance_timeout_ms,
        client_id=one.client_id,
        client_host=one.client_host,
        subscribed_topic_names=frozenset(subscription.topics),
        assigned={topic_id: dict.fromkeys(sorted(of_topic), epoch) for topic_id, of_topic in assigned.items()},
        classic=classic_metadata(one.session_timeout_ms, one.protocols),
    )
    return member, assigned


def classic_metadata(session_timeout_ms: int, protocols: dict[str, bytes]) -> ClassicMemberMetadata:
    """What a consumer group stores about a member of the classic protocol."""
    supported = [ClassicProtocol(name=name, metadata=bytes(metadata)) for name, metadata in protocols.items()]
    return ClassicMemberMetadata(session_timeout_ms=session_timeout_ms, supported_protocols=supported)


def subscription_of(metadata: bytes) -> ConsumerProtocolSubscription:
    """The subscription in the metadata of a classic member. Raises Malformed."""
    return decoded(ConsumerProtocolSubscription, metadata)


def decoded(cls: type[T], data: bytes) -> T:
    """Bytes of the classic consumer protocol: a version, of which later ones are read as the last known one, and a
    body. Raises Malformed.
    """
    version = int.from_bytes(data[:2], "big", signed=True)
    if len(data) < 2 or version < 0:
        raise Malformed(f"{len(data)} bytes of the consumer protocol have no valid version")
    known = min(version, schema_of(cls).versions.highest)
    return decode(cls, known, memoryview(data)[2:], max_elements=MAX_SUBSCRIBED_TOPICS)


def _store(context: Context, group: ConsumerGroup) -> None:
    group_id, records = group.group_id, context.records
    records.append(group_tombstone(group_id))
    records += (member_record(group_id, member) for member in group.members.values())
    records.append(epoch_record(group_id, group.group_epoch, group.metadata_hash))
    records += (target_record(group_id, member_id, target) for member_id, target in group.target.items())
    records.append(target_epoch_record(group_id, group.assignment_epoch, 0))
    records += (assignment_record(group_id, member) for member in group.members.values())

    def on_appended() -> None:
        for member in group.members.values():
            timing.extend_session(context, group_id, member)

    context.writes.append(Write(on_appended, lambda _: None))


# To classic


def becomes_classic_without(context: Context, group: ConsumerGroup, leaving: Collection[ConsumerMember]) -> bool:
    """Whether only members of the classic protocol remain, so that the group becomes a classic group."""
    remaining = len(group.members) - len(leaving)
    classic = group.classic_count - sum(member.classic is not None for member in leaving)
    return 0 < remaining == classic and _may_become_classic(context, remaining)


def becomes_classic_with(context: Context, group: ConsumerGroup, replaced: ConsumerMember) -> bool:
    """Whether a classic member replaces the last (static) member of KIP-848."""
    is_last = group.classic_count == len(group.members) - 1 and replaced.classic is None
    return is_last and _may_become_classic(context, len(group.members))


def _may_become_classic(context: Context, size: int) -> bool:
    settings = context.settings
    return settings.group_consumer_migration_policy.lower() in _DOWNGRADES and size <= settings.group_max_size


def to_classic(
    context: Context,
    group: ConsumerGroup,
    *,
    leaving: Iterable[ConsumerMember] = (),
    joining: ConsumerMember | None = None,
    rebalances: bool = True,
) -> None:
    """Make a classic group of the members that do not leave. A joining member takes the place of the static member with
    its instance id.

    Errors  GROUP_ID_NOT_FOUND if the metadata of a member cannot be read
    """
    group_id = group.group_id
    replaced = None if joining is None else group.static_member(joining.instance_id)
    assert joining is None or replaced is not None, "only static members are replaced"
    gone = {member.member_id for member in leaving} | ({replaced.member_id} if replaced is not None else set())
    classic = rebalance.new_group(context, group_id)
    classic.generation_id, classic.protocol_type, classic.state = group.group_epoch, CONSUMER_PROTOCOL_TYPE, STABLE
    kept = [member for member in group.members.values() if member.member_id not in gone]
    for member in [*kept, *([] if joining is None else [joining])]:
        _add_classic(context, classic, member)
    classic.protocol_name = name = classic.select_protocol()
    classic.subscribed_topics = classic.compute_subscribed_topics()
    for one in classic.members.values():
        target = group.target_of(joining) if joining is not None and one.member_id == joining.member_id else None
        partitions = group.target.get(one.member_id, {}) if target is None else target
        one.assignment = encoded_assignment(partitions, one.protocols[name], context.image)
    renamed = {replaced.member_id: joining.member_id} if joining is not None and replaced is not None else {}
    context.records += group_tombstones(group, renamed)

    member_ids = tuple(group.members)  # the tombstones remove them before on_appended

    def on_appended() -> None:
        for member_id in member_ids:
            timing.cancel(context, group_id, member_id)
        context.groups[group_id] = classic
        for one in classic.members.values():
            context.extend_session(one)
        if rebalances:
            rebalance.prepare(context, classic)

    assignments = {one.member_id: one.assignment for one in classic.members.values()}
    context.store_group(classic, classic.as_value(assignments), on_appended=on_appended)


def _add_classic(context: Context, classic: Group, member: ConsumerMember) -> None:
    assert member.classic is not None, f"{member.member_id} is no classic member"
    one = Member(
        member_id=member.member_id,
        group_instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        session_timeout_ms=member.classic.session_timeout_ms,
        protocols={protocol.name: protocol.metadata for protocol in member.classic.supported_protocols},
    )
    rebalance.watch_session(context, classic, one)
    classic.add(one)


def encoded_assignment(partitions: Partitions, metadata: bytes, image: Image) -> bytes:
    """An assignment for a classic member, in the version of its metadata; without topics that do not exist."""
    version = int.from_bytes(metadata[:2], "big", signed=True)
    known = max(0, min(version, schema_of(ConsumerProtocolAssignment).versions.highest))
    topics = [
        TopicPartition(topic=topic.name, partitions=sorted(of_topic))
        for topic_id, of_topic in partitions.items()
        if (topic := image.topics_by_id.get(topic_id)) is not None
    ]
    return known.to_bytes(2, "big") + encode(ConsumerProtocolAssignment(assigned_partitions=topics), known)
