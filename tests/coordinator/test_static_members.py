"""Static members: a restarted process replaces its predecessor, which is fenced (KIP-345, KIP-814)."""

from __future__ import annotations

import pytest

from kbroker.coordinator.common.ports import Parked
from tests.coordinator.world import CALLER, GROUP, REBALANCE_MS, SESSION_MS, World
from wire.errors import ErrorCode
from wire.messages.join_group import JoinGroupResponse
from wire.messages.leave_group import LeaveGroupRequest, MemberIdentity


def static_pair(world: World) -> tuple[JoinGroupResponse, JoinGroupResponse]:
    """A stable group of the static members `one` (the leader, assigned 1) and `two` (assigned 2)."""
    first = world.join(instance_id="one")
    parked = world.join(instance_id="two")
    assert first.error_code == ErrorCode.NONE
    leader = world.join(first.member_id, instance_id="one")
    other = world.answers[parked]
    waiting = world.sync(other, instance_id="two")
    world.give(leader, {leader.member_id: b"1", other.member_id: b"2"})
    assert world.answers[waiting].assignment == b"2"
    return leader, other


def test_a_static_id_is_part_of_the_member_id() -> None:
    joined = World().join(instance_id="one")
    assert joined.member_id == "one-00000000-0000-0000-0000-000000000001", "no second JoinGroup is needed"
    assert joined.members[0].group_instance_id == "one"


def test_a_restarted_static_member_keeps_its_assignment_without_a_rebalance() -> None:
    world = World()
    leader, other = static_pair(world)
    again = world.join(instance_id="two")
    assert (again.error_code, again.generation_id, again.members) == (0, other.generation_id, [])
    assert again.member_id != other.member_id
    assert again.leader == leader.member_id
    assert world.sync(again, instance_id="two").assignment == b"2"
    assert world.heartbeat(leader, instance_id="one") == ErrorCode.NONE


def test_the_replaced_static_member_is_fenced() -> None:
    world = World()
    _, other = static_pair(world)
    world.join(instance_id="two")
    assert world.heartbeat(other, instance_id="two") == ErrorCode.FENCED_INSTANCE_ID
    assert world.sync(other, instance_id="two").error_code == ErrorCode.FENCED_INSTANCE_ID
    assert world.commit(7, joined=other, instance_id="two") == ErrorCode.FENCED_INSTANCE_ID
    assert world.join(other.member_id, instance_id="two").error_code == ErrorCode.FENCED_INSTANCE_ID
    assert world.heartbeat(other) == ErrorCode.UNKNOWN_MEMBER_ID, "without its instance id it is unknown"


def test_a_restarted_static_leader_skips_the_assignment() -> None:
    world = World()
    leader, other = static_pair(world)
    again = world.join(instance_id="one")
    assert again.skip_assignment
    assert again.leader == again.member_id
    assert {member.member_id for member in again.members} == {again.member_id, other.member_id}
    assert world.sync(again, instance_id="one").assignment == b"1"
    assert leader.member_id != again.member_id


def test_before_version_9_a_restarted_leader_sees_its_old_id() -> None:
    world = World()
    leader, _ = static_pair(world)
    again = world.join(instance_id="one", version=8)
    assert (again.leader, again.members, again.skip_assignment) == (leader.member_id, [], False)
    group = world.shard.group(GROUP)
    assert group is not None
    assert group.leader_id == again.member_id


def test_the_new_member_id_is_stored() -> None:
    world = World()
    static_pair(world)
    again = world.join(instance_id="two")
    world.reload()
    assert world.heartbeat(again, instance_id="two") == ErrorCode.NONE


def test_a_restarted_member_with_other_protocols_starts_a_rebalance() -> None:
    world = World()
    joined = world.join(instance_id="one", protocols={"a": b"", "b": b""})
    world.sync(joined, instance_id="one", own=b"1")
    again = world.join(instance_id="one", protocols={"b": b"", "a": b""})
    assert (again.generation_id, again.protocol_name) == (2, "b")


def test_a_replaced_members_parked_join_is_answered() -> None:
    world = World()
    leader, other = static_pair(world)
    waiting = world.join(leader.member_id, instance_id="one")
    again = world.join(instance_id="one")
    assert world.answers[waiting].error_code == ErrorCode.FENCED_INSTANCE_ID
    assert world.answers[waiting].member_id == leader.member_id
    assert isinstance(again, Parked)
    assert world.join(other.member_id, instance_id="two").error_code == ErrorCode.NONE
    assert world.answers[again].error_code == ErrorCode.NONE


def test_replacing_a_static_member_during_the_assignment_starts_a_rebalance() -> None:
    world = World()
    leader, other = static_pair(world)
    world.join(leader.member_id, instance_id="one")
    other = world.join(other.member_id, instance_id="two")
    waiting = world.sync(other, instance_id="two")
    again = world.join(instance_id="two")
    assert world.answers[waiting].error_code == ErrorCode.FENCED_INSTANCE_ID
    assert isinstance(again, Parked)
    assert world.heartbeat(other, instance_id="two") == ErrorCode.FENCED_INSTANCE_ID


def test_a_silent_static_member_stays_until_its_session_timeout() -> None:
    world = World()
    leader, other = static_pair(world)
    waiting = world.join(leader.member_id, instance_id="one")
    for _ in range(REBALANCE_MS // 5_000):
        assert world.heartbeat(other, instance_id="two") == ErrorCode.REBALANCE_IN_PROGRESS
        world.advance(5_000)
    joined = world.answers[waiting]
    assert {one.group_instance_id for one in joined.members} == {"one", "two"}
    world.advance(SESSION_MS)
    group = world.shard.group(GROUP)
    assert group is not None
    assert "two" not in group.static_members


@pytest.mark.parametrize("by_instance_id", [True, False])
def test_a_static_member_can_be_removed(by_instance_id: bool) -> None:
    world = World()
    leader, other = static_pair(world)
    response = world.leave(instance_ids=["two"]) if by_instance_id else world.leave(other.member_id)
    assert [one.error_code for one in response.members] == [ErrorCode.NONE]
    assert world.heartbeat(leader, instance_id="one") == ErrorCode.REBALANCE_IN_PROGRESS
    assert world.heartbeat(other, instance_id="two") == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_replaced_static_member_gets_a_new_session() -> None:
    world = World()
    leader, other = static_pair(world)
    for fails in (False, True):
        world.advance(SESSION_MS - 1)
        assert world.heartbeat(leader, instance_id="one") == ErrorCode.NONE
        if fails:
            world.fail_with = ErrorCode.KAFKA_STORAGE_ERROR
            assert world.join(instance_id="two").error_code == ErrorCode.NOT_COORDINATOR
        else:
            other = world.join(instance_id="two")
    world.advance(SESSION_MS - 1)
    assert world.heartbeat(other, instance_id="two") == ErrorCode.NONE


def test_a_replacement_may_wait_longer_than_its_session() -> None:
    world = World()
    (leader,) = world.stable(rebalance_ms=100_000)
    first = world.join(instance_id="two", rebalance_ms=100_000)
    second = world.join(instance_id="two", rebalance_ms=100_000)
    assert world.answers[first].error_code == ErrorCode.FENCED_INSTANCE_ID
    for _ in range(10):
        world.advance(5_000)
        assert world.heartbeat(leader) == ErrorCode.REBALANCE_IN_PROGRESS
    world.join(leader.member_id, rebalance_ms=100_000)
    assert world.answers[second].error_code == ErrorCode.NONE


def test_a_replacement_must_sync_if_its_predecessor_did_not() -> None:
    world = World()
    leader, other = static_pair(world)
    waiting = world.join(leader.member_id, instance_id="one")
    world.join(other.member_id, instance_id="two")
    leader = world.answers[waiting]
    world.give(leader, {})
    again = world.join(instance_id="two")
    for _ in range(REBALANCE_MS // 5_000):
        assert world.heartbeat(leader, instance_id="one") == ErrorCode.NONE
        assert world.heartbeat(again, instance_id="two") == ErrorCode.NONE
        world.advance(5_000)
    assert world.heartbeat(leader, instance_id="one") == ErrorCode.REBALANCE_IN_PROGRESS
    assert world.heartbeat(again, instance_id="two") == ErrorCode.UNKNOWN_MEMBER_ID


def test_an_unknown_instance_cannot_leave() -> None:
    world = World()
    static_pair(world)
    assert [one.error_code for one in world.leave(instance_ids=["three"]).members] == [ErrorCode.UNKNOWN_MEMBER_ID]


def test_a_failed_append_restores_the_old_static_member() -> None:
    world = World()
    leader, other = static_pair(world)
    world.fail_with = ErrorCode.KAFKA_STORAGE_ERROR
    answer = world.join(instance_id="two")
    assert (answer.error_code, answer.member_id) == (ErrorCode.NOT_COORDINATOR, "")
    assert answer.leader == leader.member_id
    assert world.heartbeat(other, instance_id="two") == ErrorCode.NONE
    assert world.sync(other, instance_id="two").assignment == b"2"


def test_r14_the_first_of_two_static_twins_is_fenced() -> None:
    """R14: the second gets the partitions of the first in the same generation; commits of the first are refused."""
    world = World()
    _, first = static_pair(world)
    assert world.commit(10, joined=first, instance_id="two") == ErrorCode.NONE
    second = world.join(instance_id="two")
    assert world.sync(second, instance_id="two").assignment == b"2"
    assert world.commit(5, joined=first, instance_id="two") == ErrorCode.FENCED_INSTANCE_ID
    assert world.commit(5, joined=first) == ErrorCode.UNKNOWN_MEMBER_ID
    assert world.committed() == 10
    assert world.commit(11, joined=second, instance_id="two") == ErrorCode.NONE
    assert world.committed() == 11


def test_a_zero_rebalance_timeout_does_not_loop_the_join_timer() -> None:
    world = World()
    static_pair(world)
    for instance_id in ("one", "two"):
        assert world.join(instance_id=instance_id, rebalance_ms=0).error_code == ErrorCode.NONE
    leave = LeaveGroupRequest(group_id=GROUP, members=[MemberIdentity(member_id="", group_instance_id="two")])
    world.append(world.shard.decide(leave, CALLER, now_ms=world.now_ms, timestamp_ms=world.timestamp_ms))
    group = world.shard.group(GROUP)
    assert group is not None
    assert group.join.deadline_ms == world.now_ms
    group.join.action()
    next_ms = group.join.deadline_ms
    assert next_ms is not None
    assert next_ms > world.now_ms
    world.advance(SESSION_MS + REBALANCE_MS)
    assert group.state.value == "Empty", "the session has timed out"
