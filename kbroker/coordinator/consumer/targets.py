"""The target assignment of a group: computed when the group epoch has risen, at most once in the assignment interval.

Small groups are computed within the heartbeat that needs it. Large ones would block the event loop: a thread computes
them from a copy, and their members keep the previous target until the result is in the log.

Source: TargetAssignmentBuilder and maybeUpdateTargetAssignment of Apache Kafka 4.3.1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final
from uuid import UUID

from kbroker.coordinator.consumer.assignors import Assignment, Subscribed, Subscriber, assign_range, assign_same_topics
from kbroker.coordinator.consumer.balancing import balance
from kbroker.coordinator.consumer.group import ConsumerGroup
from kbroker.coordinator.consumer.member import NO_PARTITIONS, ConsumerMember, Partitions
from kbroker.coordinator.consumer.records import ConsumerRecord, target_epoch_record, target_record
from kbroker.coordinator.consumer.subscribing import Change, topic_ids
from kbroker.coordinator.consumer.timing import assignment_interval_ms
from kbroker.coordinator.context import Context, Write
from kbroker.coordinator.timers import nothing
from kbroker.metadata.image import Image

INLINE_ELEMENTS: Final = 300
"""Members and partitions of a group whose target assignment is computed on the event loop, in about 1 ms."""

RECORDS_TOGETHER: Final = 100
"""The most records of a computed assignment in one batch, which takes about 2 ms to encode and replay."""

UNIFORM: Final = "uniform"


def _uniform(subscribed: Subscribed) -> dict[str, Assignment]:
    return assign_same_topics(subscribed) if subscribed.is_homogeneous else balance(subscribed)


ASSIGNORS: Final[dict[str, Callable[[Subscribed], dict[str, Assignment]]]] = {UNIFORM: _uniform, "range": assign_range}
"""The assignors, by the names that clients and settings use."""


@dataclass(slots=True)
class _Input:
    """What a target assignment is computed from; nothing else changes it.

    Shape   members and target are copies with the change that is not stored yet
    """

    group_id: str
    epoch: int
    assignor: str
    members: dict[str, ConsumerMember]
    topics: dict[str, frozenset[str]]
    target: dict[str, Partitions]
    is_homogeneous: bool
    image: Image


def update_target(context: Context, change: Change) -> tuple[int, Partitions]:
    """Bring the target assignment to the group epoch if it is time. Returns the epoch and the member's target that
    apply now.
    """
    group, member = change.group, change.new
    last = group.assignment_epoch, group.target_of(member)
    if group.assignment_epoch >= change.group_epoch or not _is_time(context, group):
        return last
    given = _input(context, change)
    elements = len(given.members) + sum(
        len(topic.partitions)
        for name in change.subscriptions.topics()
        if (topic := context.image.topics_by_name.get(name)) is not None
    )
    if elements <= INLINE_ELEMENTS:
        targets = _compute(given)
        context.records += _records(given, targets)
        context.records.append(target_epoch_record(group.group_id, given.epoch, context.timestamp_ms))
        return given.epoch, targets[member.member_id]
    if group.group_id not in context.computing:
        _start(context, given, partial(_compute_records, given))
    return last


def _start(context: Context, given: _Input, run: Callable[[], list[ConsumerRecord]]) -> None:
    """Have a thread return records of the target. If the decision cannot be stored, a later heartbeat asks again."""
    context.computing[given.group_id] = given.epoch
    context.jobs.append((run, partial(_finish, context, given)))
    context.writes.append(Write(nothing, partial(_forget, context, given.group_id)))


def _is_time(context: Context, group: ConsumerGroup) -> bool:
    """Whether the assignment interval is over. 0 also helps if the wall clock was set back by hours."""
    interval_ms = assignment_interval_ms(context, group.group_id)
    computed_ms = group.assignment_timestamp_ms
    return not computed_ms or not interval_ms or context.timestamp_ms >= computed_ms + interval_ms


def _input(context: Context, change: Change) -> _Input:
    group, member = change.group, change.new
    members = {**group.members, member.member_id: member}
    replaced = group.static_members.get(member.instance_id or "")
    target = group.target
    if replaced is not None and replaced != member.member_id:
        del members[replaced]
        target = {**target, member.member_id: target.get(replaced, NO_PARTITIONS)}
    assignor = group.preferred_assignor(change.old, member) or context.settings.group_consumer_assignors[0]
    return _Input(
        group_id=group.group_id,
        epoch=change.group_epoch,
        assignor=assignor if assignor in ASSIGNORS else UNIFORM,
        members=members,
        topics={regex: resolved.topics for regex, resolved in group.resolved.items()},
        target=dict(target),
        is_homogeneous=change.subscriptions.are_homogeneous(len(members)),
        image=context.image,
    )


def _compute(given: _Input) -> dict[str, Partitions]:
    """The new target of each member."""
    subscribers: dict[str, Subscriber] = {}
    ids_of: dict[tuple[frozenset[str], str], tuple[Any, ...]] = {}
    for member_id, member in given.members.items():
        key = member.subscribed_topic_names, member.subscribed_topic_regex or ""
        if key not in ids_of:
            ids_of[key] = tuple(topic_ids(key[0] | given.topics.get(key[1], frozenset()), given.image))
        subscribers[member_id] = Subscriber(member.instance_id, ids_of[key], given.target.get(member_id, NO_PARTITIONS))
    counts = {id: len(given.image.topics_by_id[id].partitions) for ids in ids_of.values() for id in ids}
    taken: dict[UUID, set[int]] = {}
    subscribers = {
        member_id: one._replace(target=_valid(one.target, counts, taken)) for member_id, one in subscribers.items()
    }
    assigned = ASSIGNORS[given.assignor](Subscribed(subscribers, counts, given.is_homogeneous))
    return {
        member_id: {topic_id: frozenset(partitions) for topic_id, partitions in assigned.get(member_id, {}).items()}
        for member_id in given.members
    }


def _valid(target: Partitions, counts: Mapping[UUID, int], taken: dict[UUID, set[int]]) -> Partitions:
    """A target without partitions that do not exist or that an earlier member has: the leader of a classic group may
    have assigned them, and after a failover only some records of a large target may be in the log.
    """
    valid: dict[UUID, frozenset[int]] = {}
    for topic_id, partitions in target.items():
        others = taken.setdefault(topic_id, set())
        count = counts.get(topic_id, 0)
        mine = frozenset(partition for partition in partitions if 0 <= partition < count and partition not in others)
        if mine:
            valid[topic_id] = mine
            others |= mine
    return valid


def _records(given: _Input, targets: dict[str, Partitions]) -> list[ConsumerRecord]:
    return [
        target_record(given.group_id, member_id, target)
        for member_id, target in targets.items()
        if given.target.get(member_id) != target
    ]


def _compute_records(given: _Input) -> list[ConsumerRecord]:
    """The records of the new targets, encoded. Runs in a thread."""
    records = _records(given, _compute(given))
    for record in records:
        assert record.key
        assert record.value
    return records


def _forget(context: Context, group_id: str, _: object = None) -> None:
    context.computing.pop(group_id, None)


def _finish(context: Context, given: _Input, records: list[ConsumerRecord]) -> None:
    """Store targets that a thread has computed, and their epoch with the last ones. Until then the members keep their
    epochs, and a new coordinator computes again. Members that left since the computation get no target; a static member
    that was replaced passes its target on.
    """
    _forget(context, given.group_id)
    group = context.groups.get(given.group_id)
    if not isinstance(group, ConsumerGroup) or not group.assignment_epoch < given.epoch <= group.group_epoch:
        return
    for record in records[:RECORDS_TOGETHER]:
        member_id = record.key_message.member_id
        if member_id in group.members:
            context.records.append(record)
        elif (instance_id := given.members[member_id].instance_id) in group.static_members:
            successor = group.static_members[instance_id or ""]
            context.records.append(
                ConsumerRecord(
                    record.key_message.__class__(group_id=group.group_id, member_id=successor), record.value_message
                )
            )
    if rest := records[RECORDS_TOGETHER:]:
        _start(context, given, lambda: rest)
    else:
        context.records.append(target_epoch_record(group.group_id, given.epoch, context.timestamp_ms))
