"""SyncGroup, Heartbeat and LeaveGroup."""

from __future__ import annotations

from typing import Any

import pytest

from kbroker.coordinator.caller import Caller
from kbroker.coordinator.common.ports import Parked
from tests.coordinator.world import GROUP, REBALANCE_MS, SESSION_MS, World
from wire.errors import ErrorCode
from wire.messages.heartbeat import HeartbeatRequest
from wire.messages.join_group import JoinGroupResponse
from wire.messages.leave_group import LeaveGroupRequest
from wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment


def joined_pair(world: World) -> tuple[JoinGroupResponse, JoinGroupResponse]:
    """Two members of a generation without an assignment; the first is the leader."""
    leader, other = world.stable(2)
    parked = world.join(leader.member_id)
    other = world.join(other.member_id)
    return world.answers[parked], other


def state(world: World) -> str:
    group = world.shard.group(GROUP)
    return "none" if group is None else group.state.value


def sync(world: World, joined: JoinGroupResponse, **fields: Any) -> Any:
    request = SyncGroupRequest(
        group_id=GROUP, generation_id=joined.generation_id, member_id=joined.member_id, assignments=[]
    )
    for name, value in fields.items():
        setattr(request, name, value)
    return world.decide(request)


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"group_id": "other", "generation_id": 99}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"member_id": "nobody", "generation_id": 99}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"group_instance_id": "nobody"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"generation_id": 1, "protocol_type": "connect"}, ErrorCode.ILLEGAL_GENERATION),
        ({"protocol_type": "connect"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_name": "roundrobin"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
    ],
)
def test_the_first_failed_check_decides_the_sync_error(fields: dict[str, Any], code: ErrorCode) -> None:
    world = World()
    _, other = joined_pair(world)
    answer = sync(world, other, **fields)
    assert (answer.error_code, answer.assignment) == (code, b"")


def test_a_sync_before_the_leader_waits() -> None:
    world = World()
    leader, other = joined_pair(world)
    waiting = world.sync(other)
    assert isinstance(waiting, Parked)
    stored = len(world.log)
    answer = world.give(leader, {leader.member_id: b"L", other.member_id: b"O"})
    assert (answer.assignment, world.answers[waiting].assignment) == (b"L", b"O")
    assert (answer.protocol_type, answer.protocol_name) == ("consumer", "range")
    assert len(world.log) == stored + 1
    assert state(world) == "Stable"


def test_a_sync_after_the_leader_is_answered_immediately() -> None:
    world = World()
    leader, other = joined_pair(world)
    world.give(leader, {other.member_id: b"O", "nobody": b"N"})
    assert world.sync(other).assignment == b"O"
    assert world.sync(other).assignment == b"O", "a repeated sync gets the same part"
    assert world.sync(leader).assignment == b"", "the leader assigned nothing to itself"


def test_a_sync_is_refused_in_preparing_rebalance() -> None:
    world = World()
    leader, other = world.stable(2)
    world.join(leader.member_id)
    assert world.sync(other).error_code == ErrorCode.REBALANCE_IN_PROGRESS


def test_a_new_rebalance_answers_parked_syncs() -> None:
    world = World()
    _leader, other = joined_pair(world)
    waiting = world.sync(other)
    world.join()
    assert world.answers[waiting].error_code == ErrorCode.REBALANCE_IN_PROGRESS


def test_a_repeated_sync_replaces_the_parked_one() -> None:
    world = World()
    leader, other = joined_pair(world)
    first, second = world.sync(other), world.sync(other)
    assert world.answers[first].error_code == ErrorCode.REBALANCE_IN_PROGRESS
    world.give(leader, {other.member_id: b"O"})
    assert world.answers[second].assignment == b"O"


def test_a_member_that_never_syncs_is_removed() -> None:
    world = World()
    leader, other = joined_pair(world)
    world.give(leader, {other.member_id: b"O"})
    for _ in range(REBALANCE_MS // 5_000):
        assert world.heartbeat(leader) == world.heartbeat(other) == ErrorCode.NONE
        world.advance(5_000)
    assert world.heartbeat(leader) == ErrorCode.REBALANCE_IN_PROGRESS
    assert world.heartbeat(other) == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_leader_that_never_syncs_is_replaced() -> None:
    world = World()
    leader, other = joined_pair(world)
    waiting = world.sync(other)
    for _ in range(REBALANCE_MS // 5_000):
        assert world.heartbeat(leader) == ErrorCode.NONE
        world.advance(5_000)
    assert world.answers[waiting].error_code == ErrorCode.REBALANCE_IN_PROGRESS
    assert world.join(other.member_id).leader == other.member_id
    assert world.heartbeat(leader) == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_failed_append_of_the_assignment_starts_a_rebalance() -> None:
    world = World()
    leader, other = joined_pair(world)
    waiting = world.sync(other)
    world.fail_with = ErrorCode.NOT_ENOUGH_REPLICAS
    answer = world.give(leader, {leader.member_id: b"L", other.member_id: b"O"})
    assert answer.error_code == world.answers[waiting].error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert state(world) == "PreparingRebalance"
    assert world.heartbeat(other) == ErrorCode.REBALANCE_IN_PROGRESS
    parked = world.join(leader.member_id)
    assert world.join(other.member_id).generation_id == leader.generation_id + 1
    assert world.answers[parked].error_code == ErrorCode.NONE


@pytest.mark.parametrize(
    ("code", "answered"),
    [
        (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.UNKNOWN_SERVER_ERROR),
        (ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_NOT_AVAILABLE),
    ],
)
def test_if_storing_a_group_fails_it_is_not_created(code: ErrorCode, answered: ErrorCode) -> None:
    world = World(group_initial_rebalance_delay_ms=3_000)
    world.fail_with = code
    answer = world.join(version=3)
    assert answer.error_code == answered
    assert world.shard.group_ids() == []
    world.advance(60_000)
    assert world.log == []
    world.fail_with = code
    assert world.join(version=4).error_code == answered, "also before a member id is assigned"


def test_a_group_becomes_empty_even_if_storing_that_fails() -> None:
    world = World()
    (leader,) = world.stable()
    world.fail_with = ErrorCode.KAFKA_STORAGE_ERROR
    world.leave(leader.member_id)
    assert state(world) == "Empty"


def test_a_late_append_does_not_assign_an_older_generation() -> None:
    world = World()
    leader, other = joined_pair(world)
    now = {"now_ms": world.now_ms, "timestamp_ms": world.timestamp_ms}
    request = SyncGroupRequest(
        group_id=GROUP,
        generation_id=leader.generation_id,
        member_id=leader.member_id,
        assignments=[SyncGroupRequestAssignment(member_id=leader.member_id, assignment=b"old")],
    )
    written_late = world.shard.decide(request, Caller(api_version=5), **now)
    changed = {"range": b"changed"}
    parked = world.join(leader.member_id, protocols=changed)
    newer = world.join(other.member_id, protocols=changed)
    assert newer.generation_id == leader.generation_id + 1
    waiting = world.sync(newer)
    world.shard.on_appended(written_late, **now)
    assert world.shard.take_answers() == []
    assert waiting not in world.answers
    world.give(world.answers[parked], {newer.member_id: b"new"})
    assert world.answers[waiting].assignment == b"new"


def test_the_sync_answer_restarts_the_session() -> None:
    world = World()
    leader, other = joined_pair(world)
    waiting = world.sync(other)
    for _ in range(5):
        world.advance(4_000)
        assert world.heartbeat(leader) == ErrorCode.NONE
    world.give(leader, {other.member_id: b"O"})
    assert world.answers[waiting].assignment == b"O"
    world.advance(SESSION_MS - 1)
    assert world.heartbeat(leader) == ErrorCode.NONE
    world.advance(1)
    assert world.heartbeat(leader) == ErrorCode.REBALANCE_IN_PROGRESS
    assert world.heartbeat(other) == ErrorCode.UNKNOWN_MEMBER_ID


def test_an_abandoned_assignment_is_not_described() -> None:
    world = World()
    leader, _ = joined_pair(world)
    world.join()
    found = world.shard.describe_group(GROUP, 6)
    assert {member.member_assignment for member in found.members} == {b""}
    assert world.heartbeat(leader) == ErrorCode.REBALANCE_IN_PROGRESS


# Heartbeat


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"group_id": "other"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"member_id": "nobody", "generation_id": 9}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"group_instance_id": "nobody"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"generation_id": 9}, ErrorCode.ILLEGAL_GENERATION),
        ({}, ErrorCode.NONE),
    ],
)
def test_the_first_failed_check_decides_the_heartbeat_error(fields: dict[str, Any], code: ErrorCode) -> None:
    world = World()
    (joined,) = world.stable()
    request = HeartbeatRequest(group_id=GROUP, generation_id=joined.generation_id, member_id=joined.member_id)
    for name, value in fields.items():
        setattr(request, name, value)
    assert world.decide(request).error_code == code


def test_heartbeats_extend_sessions_in_completing_rebalance() -> None:
    world = World()
    leader, other = joined_pair(world)
    for _ in range(3):
        world.advance(SESSION_MS - 1)
        assert world.heartbeat(leader) == world.heartbeat(other) == ErrorCode.NONE
    assert state(world) == "CompletingRebalance"


def test_a_member_is_removed_exactly_at_its_session_timeout() -> None:
    world = World()
    leader, other = world.stable(2)
    world.advance(SESSION_MS - 1)
    assert world.heartbeat(leader) == ErrorCode.NONE
    assert world.heartbeat(other) == ErrorCode.NONE
    world.advance(SESSION_MS - 1)
    assert world.heartbeat(leader) == ErrorCode.NONE
    world.advance(1)
    assert world.heartbeat(leader) == ErrorCode.REBALANCE_IN_PROGRESS
    assert world.heartbeat(other) == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_member_with_a_parked_request_needs_no_heartbeat() -> None:
    world = World()
    leader, other = world.stable(2, rebalance_ms=100_000)
    parked = world.join(leader.member_id, rebalance_ms=100_000)
    for _ in range(9):
        world.advance(9_000)
        assert world.heartbeat(other) == ErrorCode.REBALANCE_IN_PROGRESS
    assert parked not in world.answers
    world.join(other.member_id, rebalance_ms=100_000)
    assert world.answers[parked].error_code == ErrorCode.NONE


def test_wall_clock_jumps_do_not_end_sessions() -> None:
    world = World()
    (joined,) = world.stable()
    for jump_ms in (3_600_000, -7_200_000, 365 * 86_400_000):
        world.timestamp_ms += jump_ms
        world.advance(SESSION_MS - 1)
        assert world.heartbeat(joined) == ErrorCode.NONE


# LeaveGroup


def test_when_the_last_member_leaves_the_empty_group_is_stored() -> None:
    world = World()
    (joined,) = world.stable()
    assert [one.error_code for one in world.leave(joined.member_id).members] == [ErrorCode.NONE]
    assert state(world) == "Empty"
    world.reload()
    assert state(world) == "Empty"
    group = world.shard.group(GROUP)
    assert group is not None
    assert (group.generation_id, group.protocol_type) == (joined.generation_id + 1, "consumer")


def test_leave_group_has_a_code_for_each_member() -> None:
    world = World()
    leader, other = world.stable(2)
    codes = [one.error_code for one in world.leave(other.member_id, "nobody", other.member_id).members]
    assert codes == [ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.UNKNOWN_MEMBER_ID]
    assert world.heartbeat(leader) == ErrorCode.REBALANCE_IN_PROGRESS


def test_old_leave_group_versions_get_one_error_code() -> None:
    world = World()
    response = world.decide(LeaveGroupRequest(group_id="other", member_id="nobody"), Caller(api_version=2))
    assert (response.error_code, response.members) == (ErrorCode.UNKNOWN_MEMBER_ID, [])


def test_old_leave_group_versions_remove_the_member() -> None:
    world = World()
    (joined,) = world.stable()
    response = world.decide(LeaveGroupRequest(group_id=GROUP, member_id=joined.member_id), Caller(api_version=0))
    assert (response.error_code, response.members) == (ErrorCode.NONE, [])
    assert state(world) == "Empty"


def test_leaving_answers_the_members_parked_join() -> None:
    world = World()
    leader, other = world.stable(2)
    parked = world.join(leader.member_id)
    world.leave(leader.member_id)
    assert world.answers[parked].error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert world.join(other.member_id).error_code == ErrorCode.NONE


def test_leaving_answers_the_members_parked_sync() -> None:
    world = World()
    _, other = joined_pair(world)
    waiting = world.sync(other)
    world.leave(other.member_id)
    assert world.answers[waiting].error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_rebalance_completes_when_the_missing_member_leaves() -> None:
    world = World()
    leader, other = world.stable(2)
    parked = world.join(leader.member_id)
    world.leave(other.member_id)
    assert world.answers[parked].generation_id == leader.generation_id + 1


def test_a_leader_that_leaves_is_replaced() -> None:
    world = World()
    leader, other = world.stable(2)
    world.leave(leader.member_id)
    assert world.join(other.member_id).leader == other.member_id


def test_requests_of_an_older_generation_are_refused() -> None:
    world = World()
    (joined,) = world.stable()
    newer = world.join(joined.member_id)
    assert newer.generation_id == joined.generation_id + 1
    assert world.heartbeat(joined) == ErrorCode.ILLEGAL_GENERATION
    assert world.sync(joined).error_code == ErrorCode.ILLEGAL_GENERATION
    assert world.commit(1, joined=joined) == ErrorCode.ILLEGAL_GENERATION


# R14


def test_r14_a_member_paused_beyond_its_session_cannot_commit() -> None:
    """R14: its partitions move once. Its heartbeat, sync and commit get UNKNOWN_MEMBER_ID."""
    world = World()
    alive, paused = world.stable(2)
    assert world.commit(10, joined=paused) == ErrorCode.NONE
    generations = set()
    for _ in range(4):
        world.advance(4_000)
        if world.heartbeat(alive) == ErrorCode.REBALANCE_IN_PROGRESS:
            alive = world.join(alive.member_id)
            generations.add(alive.generation_id)
            assert world.give(alive, {alive.member_id: b"all"}).assignment == b"all"
    assert len(generations) == 1, "reassigned once"
    assert world.commit(20, joined=alive) == ErrorCode.NONE
    assert world.heartbeat(paused) == ErrorCode.UNKNOWN_MEMBER_ID
    assert world.sync(paused).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert world.commit(5, joined=paused) == ErrorCode.UNKNOWN_MEMBER_ID
    assert world.committed() == 20


def test_r14_a_member_that_misses_the_rebalance_cannot_commit() -> None:
    """R14: the client's heartbeats continue and get REBALANCE_IN_PROGRESS, but it does not rejoin in time and is
    removed.
    """
    world = World()
    alive, slow = world.stable(2)
    parked = world.join(alive.member_id)
    for _ in range(REBALANCE_MS // 5_000):
        assert world.heartbeat(slow) == ErrorCode.REBALANCE_IN_PROGRESS
        assert world.commit(7, joined=slow) == ErrorCode.NONE, "it may commit what it has read so far"
        world.advance(5_000)
    joined = world.answers[parked]
    assert joined.generation_id == slow.generation_id + 1
    assert world.commit(3, joined=slow) == ErrorCode.UNKNOWN_MEMBER_ID
    assert world.commit(8, joined=joined) == ErrorCode.REBALANCE_IN_PROGRESS, "it has no assignment yet"
    world.give(joined, {joined.member_id: b"all"})
    assert world.commit(8, joined=joined) == ErrorCode.NONE
    assert world.committed() == 8


def test_r14_a_member_of_an_older_generation_gets_illegal_generation() -> None:
    """R14: ILLEGAL_GENERATION for a member that has missed a new generation."""
    world = World()
    leader, other = world.stable(2)
    parked = world.join(leader.member_id)
    world.join(other.member_id)
    world.give(world.answers[parked], {})
    assert world.commit(4, joined=other) == ErrorCode.ILLEGAL_GENERATION
    assert world.heartbeat(other) == ErrorCode.ILLEGAL_GENERATION
