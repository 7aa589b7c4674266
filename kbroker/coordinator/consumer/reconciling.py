"""How a member moves from its current assignment to its target assignment.

    STABLE                 has its whole target assignment of its epoch
    UNREVOKED_PARTITIONS   keeps its epoch until it no longer reports the partitions that it must give up
    UNRELEASED_PARTITIONS  has the target's epoch, and waits for partitions that other members still own

A partition is given to a member only when no other member may own it, so two members never own it at once.

Source: CurrentAssignmentBuilder of Apache Kafka 4.3.1.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple
from uuid import UUID

from kbroker.coordinator.consumer.group import ConsumerGroup
from kbroker.coordinator.consumer.member import (
    NO_EPOCHS,
    STABLE,
    UNKNOWN,
    UNRELEASED,
    UNREVOKED,
    ConsumerMember,
    Epochs,
    Partitions,
)
from wire.errors import ErrorCode, KafkaError
from wire.messages.consumer_group_heartbeat import TopicPartitions


class Goal(NamedTuple):
    """What a member is reconciled with.

    Shape   owned are the partitions that it reports, None if it reports none
    """

    epoch: int
    target: Partitions
    has_subscription_changed: bool
    owned: Iterable[TopicPartitions] | None


def reconciled(
    group: ConsumerGroup, member: ConsumerMember, goal: Goal, subscribed: Collection[UUID]
) -> ConsumerMember:
    """The member after its next step; the same one if it has to wait. It subscribes to the topics with these ids.

    Errors  FENCED_MEMBER_EPOCH if a later version stored a state that this one does not know
    """
    if member.state is STABLE and member.member_epoch == goal.epoch:
        return _without_unsubscribed(member, goal, subscribed) if goal.has_subscription_changed else member
    if member.state is UNREVOKED and _owns(goal, member.pending_revocation):
        return _without_unsubscribed(member, goal, subscribed) if goal.has_subscription_changed else member
    epoch = member.member_epoch
    if member.state is UNKNOWN:
        if goal.owned is None or any(True for _ in goal.owned):
            text = (
                "The consumer group member is in a unknown state. "
                "The member must abandon all its partitions and rejoin."
            )
            raise KafkaError(ErrorCode.FENCED_MEMBER_EPOCH, text)
        epoch = goal.epoch
    return _next(group, member, epoch, goal, subscribed)


def _owns(goal: Goal, partitions: Epochs) -> bool:
    """Whether the member may still use some of these partitions. It may if its heartbeat does not say."""
    if goal.owned is None:
        return True
    return any(not partitions.get(one.topic_id, {}).keys().isdisjoint(one.partitions) for one in goal.owned)


def _without_unsubscribed(member: ConsumerMember, goal: Goal, subscribed: Collection[UUID]) -> ConsumerMember:
    """Take the partitions of topics away to which the member no longer subscribes."""
    gone = {topic_id: epochs for topic_id, epochs in member.assigned.items() if topic_id not in subscribed}
    if not gone:
        return member
    kept = {topic_id: epochs for topic_id, epochs in member.assigned.items() if topic_id in subscribed}
    pending = dict(member.pending_revocation)
    for topic_id, epochs in gone.items():
        pending[topic_id] = {**pending.get(topic_id, {}), **epochs}
    if _owns(goal, pending):
        return member.at_epoch(member.member_epoch, UNREVOKED, kept, pending)
    return member._replace(previous_member_epoch=member.member_epoch, assigned=kept)


def _next(
    group: ConsumerGroup, member: ConsumerMember, epoch: int, goal: Goal, subscribed: Collection[UUID]
) -> ConsumerMember:
    """The member after it gave up what it no longer reports, with the partitions that are free."""
    assigned: dict[UUID, dict[int, int]] = {}
    pending: dict[UUID, dict[int, int]] = {}
    new: dict[UUID, list[int]] = {}
    has_unreleased = False
    for topic_id in dict.fromkeys((*goal.target, *member.assigned)):
        target = goal.target.get(topic_id, frozenset()) if topic_id in subscribed else frozenset()
        current = member.assigned.get(topic_id, {})
        kept = {partition: of for partition, of in current.items() if partition in target}
        if kept:
            assigned[topic_id] = kept
        if len(kept) < len(current):
            pending[topic_id] = {partition: of for partition, of in current.items() if partition not in target}
        own = member.pending_revocation.get(topic_id, {})
        for partition in sorted(target.difference(kept)):
            if group.is_owned(topic_id, partition) and partition not in own:
                has_unreleased = True
            else:
                new.setdefault(topic_id, []).append(partition)
    if pending and _owns(goal, pending):
        return member.at_epoch(epoch, UNREVOKED, assigned, pending)
    for topic_id, partitions in new.items():
        assigned.setdefault(topic_id, {}).update(dict.fromkeys(partitions, goal.epoch))
    return member.at_epoch(goal.epoch, UNRELEASED if has_unreleased else STABLE, assigned, NO_EPOCHS)
