"""JoinGroup: the order of checks, the initial delay, sizes, protocols, and rejoining."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest

from kbroker.coordinator.caller import Caller
from kbroker.coordinator.common.ports import Parked
from tests.coordinator.world import GROUP, MAX_PENDING_BYTES, REBALANCE_MS, SESSION_MS, World, subscription
from wire.errors import ErrorCode
from wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse

A, B, BOTH = {"a": b"1"}, {"b": b"1"}, {"a": b"1", "b": b"2"}


def refused(answer: Any) -> ErrorCode:
    assert isinstance(answer, JoinGroupResponse)
    assert (answer.generation_id, answer.leader, answer.members) == (-1, "", [])
    return ErrorCode(answer.error_code)


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ({"session_ms": 5_999, "member_id": "nobody"}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"session_ms": 1_800_001, "member_id": "nobody"}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"member_id": "nobody", "protocol_type": ""}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"protocol_type": ""}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocols": {}}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
    ],
)
def test_the_first_failed_check_decides_the_error(arguments: dict[str, Any], code: ErrorCode) -> None:
    world = World()
    answer = world.join(**arguments)
    assert refused(answer) == code
    assert answer.member_id == arguments.get("member_id", "")


def test_session_timeouts_at_the_bounds_are_accepted() -> None:
    for session_ms in (6_000, 1_800_000):
        assert World().join(session_ms=session_ms).error_code == ErrorCode.NONE


def test_a_new_member_must_rejoin_with_its_assigned_id() -> None:
    world = World()
    request = JoinGroupRequest(
        group_id=GROUP,
        session_timeout_ms=SESSION_MS,
        rebalance_timeout_ms=REBALANCE_MS,
        member_id="",
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
    )
    answer = world.decide(request, Caller("mine", "/10.0.0.1", 4))
    assert refused(answer) == ErrorCode.MEMBER_ID_REQUIRED
    assert answer.member_id == "mine-00000000-0000-0000-0000-000000000001"
    assert answer.protocol_name == "", "version 4 cannot express null"
    request.member_id = answer.member_id
    joined = world.decide(request, Caller("mine", "/10.0.0.1", 4))
    assert (joined.error_code, joined.member_id, joined.generation_id) == (ErrorCode.NONE, request.member_id, 1)


@pytest.mark.parametrize("version", range(4))
def test_old_clients_join_without_an_assigned_id(version: int) -> None:
    joined = World().join(version=version)
    assert (joined.error_code, joined.generation_id) == (ErrorCode.NONE, 1)
    assert joined.leader == joined.member_id == "client-00000000-0000-0000-0000-000000000001"


def test_an_unused_member_id_expires_after_the_session_timeout() -> None:
    world = World()
    request = JoinGroupRequest(
        group_id=GROUP,
        session_timeout_ms=SESSION_MS,
        rebalance_timeout_ms=REBALANCE_MS,
        member_id="",
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
    )
    request.member_id = world.decide(request).member_id
    world.advance(SESSION_MS - 1)
    group = world.shard.group(GROUP)
    assert group is not None
    assert request.member_id in group.pending_join
    world.advance(1)
    assert not group.pending_join
    assert refused(world.decide(request)) == ErrorCode.UNKNOWN_MEMBER_ID


def test_unused_member_ids_take_bounded_memory() -> None:
    world = World()
    caller = Caller("x" * 30_000, "/127.0.0.1", 9)
    given: list[tuple[str, str]] = []
    tracemalloc.start()
    for number in range(300):
        request = JoinGroupRequest(
            group_id=f"g{number % 3}",
            session_timeout_ms=30 * 60_000,
            rebalance_timeout_ms=REBALANCE_MS,
            member_id="",
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
        )
        given.append((request.group_id, world.decide(request, caller).member_id))
    groups = [world.shard.group(f"g{number}") for number in range(3)]
    pending = [member_id for group in groups if group is not None for member_id in group.pending_join]
    assert sorted(pending) == sorted(member_id for _, member_id in given[-3:])
    del given[:-3]
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 10 * MAX_PENDING_BYTES, "300 ids of 30 kB were assigned"
    request.group_id, request.member_id = given[-1]
    assert world.decide(request, caller).member_id == request.member_id


def test_a_rebalance_waits_for_unused_member_ids() -> None:
    world = World()
    (leader,) = world.stable()
    first = world.decide(
        JoinGroupRequest(
            group_id=GROUP,
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=REBALANCE_MS,
            member_id="",
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
        )
    )
    parked = world.join(leader.member_id)
    assert isinstance(parked, Parked)
    world.advance(SESSION_MS)
    assert world.answers[parked].generation_id == 2, "the assigned id has expired"
    assert refused(world.join(first.member_id)) == ErrorCode.UNKNOWN_MEMBER_ID


def test_version_0_uses_the_session_timeout_for_rebalances() -> None:
    world = World()
    joined = world.join(version=0, session_ms=7_000, rebalance_ms=-1)
    group = world.shard.group(GROUP)
    assert group is not None
    assert group.members[joined.member_id].rebalance_timeout_ms == 7_000


def test_new_members_extend_the_initial_delay() -> None:
    world = World(group_initial_rebalance_delay_ms=3_000)
    first = world.join(rebalance_ms=10_000)
    world.advance(2_999)
    second = world.join(rebalance_ms=10_000)
    world.advance(3_000)
    assert first not in world.answers
    third = world.join(rebalance_ms=10_000)
    world.advance(3_000)
    assert third not in world.answers
    world.advance(1)
    assert {world.answers[one].generation_id for one in (first, second, third)} == {1}


def test_the_rebalance_timeout_bounds_the_initial_delay() -> None:
    world = World(group_initial_rebalance_delay_ms=3_000)
    first = world.join(rebalance_ms=10_000)
    for _ in range(9):
        world.advance(1_000)
        world.join(rebalance_ms=10_000)
        assert first not in world.answers
    world.advance(1_000)
    assert first in world.answers
    assert len(world.answers[first].members) == 10


def test_the_initial_delay_is_not_extended_without_new_members() -> None:
    world = World(group_initial_rebalance_delay_ms=3_000)
    first = world.join()
    world.advance(2_999)
    assert first not in world.answers
    world.advance(1)
    assert world.answers[first].generation_id == 1


def test_only_the_leader_gets_the_members_and_their_metadata() -> None:
    world = World(group_initial_rebalance_delay_ms=1)
    parked = [world.join(client_id=name, protocols={"a": name.encode(), "b": b""}) for name in ("x", "y", "z")]
    world.advance(1_000)
    leader, *others = (world.answers[one] for one in parked)
    assert leader.leader == leader.member_id
    assert {member.member_id: member.metadata for member in leader.members} == {
        leader.member_id: b"x",
        others[0].member_id: b"y",
        others[1].member_id: b"z",
    }
    assert all((one.leader, one.members) == (leader.member_id, []) for one in others)


@pytest.mark.parametrize(
    ("offers", "chosen"),
    [
        ([{"a": b"", "b": b""}, {"a": b"", "b": b""}, {"b": b"", "a": b""}], "a"),
        ([{"a": b"", "b": b""}, {"b": b"", "a": b""}, {"b": b"", "a": b""}], "b"),
        ([{"a": b"", "b": b""}, {"a": b"", "b": b""}, {"b": b""}], "b"),
        ([{"a": b""}, {"b": b"", "a": b""}, {"b": b"", "a": b""}], "a"),
    ],
)
def test_the_protocol_is_what_all_support_and_most_prefer(offers: list[dict[str, bytes]], chosen: str) -> None:
    world = World(group_initial_rebalance_delay_ms=1)
    parked = [world.join(protocols=one) for one in offers]
    world.advance(100)
    assert {world.answers[one].protocol_name for one in parked} == {chosen}


def test_a_member_without_a_common_protocol_is_refused() -> None:
    world = World()
    world.stable(protocols=A)
    assert refused(world.join(protocols=B)) == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert refused(world.join(protocols=A, protocol_type="connect")) == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert isinstance(world.join(protocols=BOTH), Parked)


def test_a_protocol_without_supporters_is_refused() -> None:
    world = World(group_initial_rebalance_delay_ms=1)
    first, second = world.join(protocols=BOTH), world.join(protocols=BOTH)
    world.advance(10)
    world.join(world.answers[first].member_id, protocols=A)
    world.join(world.answers[second].member_id, protocols=A)
    assert refused(world.join(protocols=B)) == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_a_leader_that_rejoins_starts_a_rebalance() -> None:
    world = World()
    leader, other = world.stable(2)
    parked = world.join(leader.member_id)
    assert isinstance(parked, Parked)
    assert world.heartbeat(other) == ErrorCode.REBALANCE_IN_PROGRESS
    again = world.join(other.member_id)
    assert again.generation_id == leader.generation_id + 1
    assert world.answers[parked].generation_id == leader.generation_id + 1


def test_an_unchanged_follower_that_rejoins_gets_the_current_generation() -> None:
    world = World()
    leader, other = world.stable(2)
    again = world.join(other.member_id)
    assert (again.error_code, again.generation_id, again.leader) == (0, other.generation_id, leader.member_id)
    assert again.members == []
    assert world.heartbeat(leader) == ErrorCode.NONE


def test_a_follower_with_new_metadata_starts_a_rebalance() -> None:
    world = World()
    leader, other = world.stable(2)
    assert isinstance(world.join(other.member_id, protocols={"range": subscription("payments")}), Parked)
    assert world.heartbeat(leader) == ErrorCode.REBALANCE_IN_PROGRESS


def test_an_unchanged_member_can_repeat_its_join_before_the_sync() -> None:
    world = World(group_initial_rebalance_delay_ms=1)
    parked = [world.join(), world.join()]
    world.advance(10)
    leader, other = (world.answers[one] for one in parked)
    assert world.join(other.member_id).members == []
    assert world.join(leader.member_id) == leader
    changed = world.join(other.member_id, protocols={"range": b"other"})
    assert isinstance(changed, Parked)
    assert world.heartbeat(leader) == ErrorCode.REBALANCE_IN_PROGRESS


def test_a_repeated_join_replaces_the_parked_one() -> None:
    world = World()
    leader, _ = world.stable(2)
    first = world.join(leader.member_id)
    second = world.join(leader.member_id)
    assert world.answers[first].error_code == ErrorCode.REBALANCE_IN_PROGRESS
    assert second not in world.answers


def test_members_that_do_not_rejoin_in_time_are_removed() -> None:
    world = World()
    leader, other = world.stable(2)
    parked = world.join(leader.member_id)
    for _ in range(REBALANCE_MS // 5_000):
        assert parked not in world.answers
        assert world.heartbeat(other) == ErrorCode.REBALANCE_IN_PROGRESS, "it is alive but does not rejoin"
        world.advance(5_000)
    assert world.answers[parked].generation_id == leader.generation_id + 1
    assert [one.member_id for one in world.answers[parked].members] == [leader.member_id]
    assert world.heartbeat(other) == ErrorCode.UNKNOWN_MEMBER_ID
    assert world.commit(5, joined=other) == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_leader_that_does_not_rejoin_is_replaced() -> None:
    world = World()
    leader, other = world.stable(2)
    parked = world.join(other.member_id, protocols={"range": b"new"})
    for _ in range(6):
        world.heartbeat(leader)
        world.advance(5_000)
    assert world.answers[parked].leader == other.member_id
    assert [one.member_id for one in world.answers[parked].members] == [other.member_id]


def test_a_silent_new_member_is_removed_after_five_minutes() -> None:
    world = World()
    (leader,) = world.stable(rebalance_ms=900_000)
    parked = world.join(rebalance_ms=900_000)
    for _ in range(59):
        assert world.heartbeat(leader) == ErrorCode.REBALANCE_IN_PROGRESS
        world.advance(5_000)
    assert parked not in world.answers
    world.heartbeat(leader)
    world.advance(5_000)
    assert world.answers[parked].error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert world.answers[parked].member_id == ""


def test_w12_joins_beyond_group_max_size_are_refused() -> None:
    """W12: a group stays at its maximum size; of 10,000 members the others get error 81, quickly."""
    world = World(group_max_size=100, group_initial_rebalance_delay_ms=1_000)
    answers = [world.join(version=3) for _ in range(10_000)]
    assert sum(isinstance(one, Parked) for one in answers) == 100
    assert {refused(one) for one in answers[100:]} == {ErrorCode.GROUP_MAX_SIZE_REACHED}
    world.advance(2_000)
    assert len(world.answers[answers[0]].members) == 100
    assert refused(world.join()) == ErrorCode.GROUP_MAX_SIZE_REACHED, "also in CompletingRebalance"


def test_w12_ten_thousand_members_join_in_one_rebalance() -> None:
    """W12: without a maximum size, the work is linear in the number of members, not quadratic."""
    world = World(group_initial_rebalance_delay_ms=1_000)
    parked = [world.join(version=3) for _ in range(10_000)]
    world.advance(2_000)
    leader = world.answers[parked[0]]
    assert len(leader.members) == 10_000
    world.give(leader, {one.member_id: b"x" for one in leader.members})
    assert world.heartbeat(world.answers[parked[-1]]) == ErrorCode.NONE


def test_only_existing_members_can_join_a_full_group() -> None:
    world = World(group_max_size=2)
    leader, other = world.stable(2)
    assert refused(world.join()) == ErrorCode.GROUP_MAX_SIZE_REACHED
    parked = world.join(leader.member_id)
    assert world.join(other.member_id).error_code == ErrorCode.NONE
    assert world.answers[parked].error_code == ErrorCode.NONE


def test_a_lowered_group_max_size_removes_the_last_to_join() -> None:
    world = World()
    members = world.stable(3)
    world.settings = World(group_max_size=2).settings
    world.reload()
    answers = [world.join(one.member_id) for one in members]
    assert [isinstance(one, Parked) for one in answers] == [True, True, False]
    assert refused(answers[2]) == ErrorCode.GROUP_MAX_SIZE_REACHED
    world.advance(REBALANCE_MS)
    assert len(world.answers[answers[0]].members) == 2


def test_a_new_group_is_stored_before_its_first_join_completes() -> None:
    world = World(group_initial_rebalance_delay_ms=3_000)
    world.join()
    assert len(world.log) == 1
    world.reload()
    assert [one.group_state for one in world.shard.list_groups()] == ["Empty"]


@pytest.mark.parametrize(("version", "instance_id"), [(3, None), (9, None), (9, "i" * 32_767)])
def test_a_too_long_client_or_instance_id_is_refused(version: int, instance_id: str | None) -> None:
    world = World()
    answer = world.join(client_id="c" * 32_767, version=version, instance_id=instance_id)
    assert refused(answer) == ErrorCode.INVALID_REQUEST
    world.stable()


def test_a_static_member_with_an_assigned_id_is_refused() -> None:
    world = World(group_initial_rebalance_delay_ms=3_000)
    request = JoinGroupRequest(
        group_id=GROUP,
        session_timeout_ms=SESSION_MS,
        rebalance_timeout_ms=REBALANCE_MS,
        member_id="",
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
    )
    request.member_id, request.group_instance_id = world.decide(request).member_id, "i"
    assert refused(world.decide(request)) == ErrorCode.UNKNOWN_SERVER_ERROR
