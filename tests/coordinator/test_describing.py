"""ListGroups, DescribeGroups and DeleteGroups."""

from __future__ import annotations

import pytest

from tests.coordinator.world import GROUP, World, subscription
from wire.errors import ErrorCode
from wire.messages.delete_groups import DeleteGroupsRequest
from wire.messages.describe_groups import DescribedGroup


def described(world: World, group_id: str = GROUP, version: int = 6) -> DescribedGroup:
    return world.shard.describe_group(group_id, version)


def delete(world: World, *group_ids: str) -> list[ErrorCode]:
    response = world.decide(DeleteGroupsRequest(groups_names=list(group_ids)))
    assert [one.group_id for one in response.results] == list(group_ids)
    return [ErrorCode(one.error_code) for one in response.results]


def test_a_stable_group_is_shown_with_metadata_and_assignments() -> None:
    world = World()
    (joined,) = world.stable()
    found = described(world)
    assert (found.error_code, found.group_state, found.protocol_type, found.protocol_data) == (
        ErrorCode.NONE,
        "Stable",
        "consumer",
        "range",
    )
    (member,) = found.members
    assert (member.member_id, member.client_id, member.client_host) == (joined.member_id, "c0", "/127.0.0.1")
    assert (member.member_metadata, member.member_assignment) == (subscription("orders"), b"\0")


def test_a_group_that_rebalances_is_shown_without_metadata() -> None:
    world = World()
    leader, _ = world.stable(2)
    world.join(leader.member_id)
    found = described(world)
    assert (found.group_state, found.protocol_data, len(found.members)) == ("PreparingRebalance", "", 2)
    assert {member.member_metadata for member in found.members} == {b""}


@pytest.mark.parametrize(
    ("version", "code", "message"),
    [(5, ErrorCode.NONE, None), (6, ErrorCode.GROUP_ID_NOT_FOUND, "Group nobody not found.")],
)
def test_a_missing_group_is_described_as_dead(version: int, code: ErrorCode, message: str | None) -> None:
    found = described(World(), "nobody", version)
    assert (found.group_state, found.error_code, found.error_message, found.members) == ("Dead", code, message, [])


@pytest.mark.parametrize(
    ("states", "listed"),
    [([], {"a", "b", GROUP}), (["stable"], {GROUP}), (["empty", "stable"], {"a", "b", GROUP}), (["dead"], set())],
)
def test_groups_are_listed_by_states(states: list[str], listed: set[str]) -> None:
    world = World()
    world.stable()
    world.commit(1, group_id="a")
    world.commit(1, group_id="b")
    found = world.shard.list_groups(states)
    assert {one.group_id for one in found} == listed
    assert {one.group_type for one in found} <= {"classic"}
    assert {(one.protocol_type, one.group_state) for one in found if one.group_id == GROUP} <= {("consumer", "Stable")}


def test_a_group_without_members_is_deleted_with_its_offsets() -> None:
    world = World()
    (joined,) = world.stable()
    world.commit(5, joined=joined)
    world.commit(5, joined=joined, topic="other", partition=9)
    assert delete(world, GROUP) == [ErrorCode.NON_EMPTY_GROUP]
    world.leave(joined.member_id)
    assert delete(world, GROUP, "nobody", GROUP, "") == [
        ErrorCode.NONE,
        ErrorCode.GROUP_ID_NOT_FOUND,
        ErrorCode.GROUP_ID_NOT_FOUND,
        ErrorCode.GROUP_ID_NOT_FOUND,
    ]
    for _ in range(2):
        assert world.shard.group_ids() == []
        assert (world.shard.offset_count, world.committed()) == (0, -1)
        world.reload()


def test_a_group_survives_a_failed_append_of_its_tombstones() -> None:
    world = World()
    world.commit(5)
    world.fail_with = ErrorCode.KAFKA_STORAGE_ERROR
    assert delete(world, GROUP) == [ErrorCode.NOT_COORDINATOR]
    assert world.committed() == 5


def test_a_deleted_group_can_be_created_again() -> None:
    world = World()
    world.commit(5)
    delete(world, GROUP)
    (joined,) = world.stable()
    assert joined.generation_id == 1
    assert world.committed() == -1
