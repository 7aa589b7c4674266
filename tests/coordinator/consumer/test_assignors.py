"""The assignors: balance, stickiness, and the order of members and topics."""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.coordinator.consumer.assignors import Assignment, Subscribed, Subscriber
from kbroker.coordinator.consumer.targets import ASSIGNORS

TOPICS = [UUID(int=index << 64 | index) for index in range(1, 6)]


def subscribed(
    counts: list[int], topics_of: Mapping[str, list[int]], before: Mapping[str, Assignment] | None = None
) -> Subscribed:
    """Members with the topics of these numbers; counts are the partitions of each topic."""
    members = {
        member_id: Subscriber(
            None,
            tuple(TOPICS[number] for number in numbers),
            {topic: frozenset(of) for topic, of in (before or {}).get(member_id, {}).items()},
        )
        for member_id, numbers in topics_of.items()
    }
    used = {number for numbers in topics_of.values() for number in numbers}
    same = len({tuple(numbers) for numbers in topics_of.values()}) == 1
    return Subscribed(members, {TOPICS[number]: counts[number] for number in sorted(used)}, same)


def sizes(assigned: Mapping[str, Assignment]) -> list[int]:
    return [sum(map(len, of.values())) for of in assigned.values()]


def owners(assigned: Mapping[str, Assignment]) -> dict[tuple[UUID, int], str]:
    found: dict[tuple[UUID, int], str] = {}
    for member_id, of in assigned.items():
        for topic, partitions in of.items():
            for partition in partitions:
                assert found.setdefault((topic, partition), member_id) is member_id, "two owners"
    return found


def test_range_gives_consecutive_partitions() -> None:
    assigned = ASSIGNORS["range"](subscribed([5, 2], {"b": [0, 1], "a": [0, 1]}))
    assert assigned == {"a": {TOPICS[0]: {0, 1, 2}, TOPICS[1]: {0}}, "b": {TOPICS[0]: {3, 4}, TOPICS[1]: {1}}}


def test_range_gives_static_members_first_place() -> None:
    given = subscribed([2], {"a": [0], "z": [0]})
    static = given.members["z"]._replace(instance_id="zz")
    assigned = ASSIGNORS["range"](given._replace(members={**given.members, "z": static}))
    assert assigned == {"z": {TOPICS[0]: {0}}, "a": {TOPICS[0]: {1}}}


def test_uniform_moves_as_few_partitions_as_possible() -> None:
    first = ASSIGNORS["uniform"](subscribed([10], {"a": [0], "b": [0]}))
    second = ASSIGNORS["uniform"](subscribed([10], {"a": [0], "b": [0], "c": [0]}, first))
    assert sorted(sizes(second)) == [3, 3, 4]
    before, after = owners(first), owners(second)
    moved = [place for place in before if before[place] != after[place]]
    assert len(moved) == len([owner for owner in after.values() if owner == "c"])
    left = ASSIGNORS["uniform"](subscribed([10], {"a": [0], "c": [0]}, second))
    assert sizes(left) == [5, 5]
    assert all(owners(left)[place] == owner for place, owner in after.items() if owner != "b")


def test_uniform_balances_members_with_different_topics() -> None:
    assigned = ASSIGNORS["uniform"](subscribed([6, 3], {"a": [0], "b": [0], "c": [0, 1]}))
    assert sizes(assigned) == [3, 3, 3]


@pytest.mark.parametrize("name", ASSIGNORS)
@given(st.data())
def test_each_partition_has_one_subscribed_owner(name: str, data: st.DataObject) -> None:
    counts = data.draw(st.lists(st.integers(0, 7), min_size=5, max_size=5))
    numbers = st.lists(st.integers(0, 4), unique=True, max_size=4).map(sorted)
    topics_of = data.draw(st.dictionaries(st.sampled_from("abcdefg"), numbers, min_size=1))
    before: Mapping[str, Assignment] = {}
    for _ in range(2):
        assigned = ASSIGNORS[name](subscribed(counts, topics_of, before))
        found = owners(assigned)
        used = {number for chosen in topics_of.values() for number in chosen}
        assert set(found) == {(TOPICS[number], index) for number in used for index in range(counts[number])}
        assert all(TOPICS.index(topic) in topics_of[owner] for (topic, _), owner in found.items())
        if name == "uniform" and len({tuple(chosen) for chosen in topics_of.values()}) == 1:
            assert max(sizes(assigned), default=0) - min(sizes(assigned), default=0) <= 1
        before = assigned
        # One member changes its topics, another leaves.
        topics_of = {member_id: topics_of[member_id] for member_id in list(topics_of)[:-1] or topics_of}
        first = next(iter(topics_of))
        topics_of = {**topics_of, first: data.draw(numbers)}
