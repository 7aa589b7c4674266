"""The assignors `uniform` and `range`: which member gets which partitions. Pure functions; a thread may call them.

    uniform  balances the number of partitions of the members and moves as few as possible
    range    gives each member consecutive partitions of each topic; topics with equal partition counts are aligned

Kafka iterates over hash tables, so its results depend on hash codes. Here members and topics are in the order in which
the caller gives them; for the same order the results are Kafka's.

Source: RangeAssignor, UniformAssignor, UniformHomogeneousAssignmentBuilder of Apache Kafka 4.3.1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple
from uuid import UUID

from kbroker.coordinator.consumer.member import Partitions

Assignment = dict[UUID, set[int]]


class Subscriber(NamedTuple):
    """A member for an assignor: the ids of its topics, and its current target assignment."""

    instance_id: str | None
    topics: tuple[UUID, ...]
    target: Partitions


class Subscribed(NamedTuple):
    """What an assignor works on.

    Shape   partition_counts has every topic that a member subscribes to; is_homogeneous if all members subscribe to
            the same topics
    """

    members: Mapping[str, Subscriber]
    partition_counts: Mapping[UUID, int]
    is_homogeneous: bool


def assign_range(subscribed: Subscribed) -> dict[str, Assignment]:
    """Consecutive partitions of each topic."""
    members = subscribed.members
    # Static members come first, in the order of their instance ids, so that they keep their ranges after a restart.
    member_ids = sorted(members, key=lambda id: _static_first(id, members[id].instance_id))
    subscribers: dict[UUID, int] = {}
    for member in members.values():
        for topic_id in member.topics:
            subscribers[topic_id] = subscribers.get(topic_id, 0) + 1
    given = dict.fromkeys(subscribers, 0)
    taken = dict.fromkeys(subscribers, 0)
    assigned: dict[str, Assignment] = {}
    for member_id in member_ids:
        mine = assigned[member_id] = {}
        for topic_id in members[member_id].topics:
            quota, extra = divmod(subscribed.partition_counts[topic_id], subscribers[topic_id])
            start, end = given[topic_id], given[topic_id] + quota + (taken[topic_id] < extra)
            taken[topic_id] += 1
            given[topic_id] = end
            if start < end:
                mine[topic_id] = set(range(start, end))
    return assigned


def _static_first(member_id: str, instance_id: str | None) -> tuple[bool, bytes]:
    name = member_id if instance_id is None else instance_id
    return instance_id is None, name.encode("utf-16-be", "surrogatepass")  # Java compares UTF-16 code units


def assign_same_topics(subscribed: Subscribed) -> dict[str, Assignment]:
    """Uniform, for members with the same topics: each keeps what it has up to its quota, then the rest is given out."""
    members = subscribed.members
    topics = dict.fromkeys(next(iter(members.values())).topics)
    if not topics:
        return {}
    held: dict[UUID, set[int]] = {}
    for member in members.values():
        for topic_id, partitions in member.target.items():
            held.setdefault(topic_id, set()).update(partitions)
    counts, nothing = subscribed.partition_counts, set[int]()
    free = [
        (topic, index) for topic in topics for index in range(counts[topic]) if index not in held.get(topic, nothing)
    ]
    minimum, extra_count = divmod(sum(counts[topic] for topic in topics), len(members))
    assigned: dict[str, Assignment] = {}
    unfilled: list[tuple[Assignment, int]] = []
    for position, (member_id, member) in enumerate(members.items()):
        has_extra = extra_count > 0
        quota = minimum + has_extra
        mine = assigned[member_id] = {}
        for topic_id, partitions in member.target.items():
            if topic_id not in topics:
                continue
            if len(partitions) <= quota:
                mine[topic_id] = set(partitions)
                quota -= len(partitions)
                continue
            ordered = sorted(partitions)
            if quota:
                mine[topic_id] = set(ordered[:quota])
            free += [(topic_id, partition) for partition in ordered[quota:]]
            quota = 0
        if quota and has_extra and len(members) - position > extra_count:
            # Leave the extra partition to a later member, which may have it already.
            quota, has_extra = quota - 1, False
        extra_count -= has_extra
        if quota:
            unfilled.append((mine, quota))
    remaining = iter(free)
    for mine, quota in unfilled:
        for topic_id, partition in (given for _, given in zip(range(quota), remaining, strict=False)):
            mine.setdefault(topic_id, set()).add(partition)
    assert next(remaining, None) is None, "the quotas cover all partitions"
    return assigned
