"""The shard's interface: loading, unloading, refusals, and its timers."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.coordinator.records import GroupRecord
from kbroker.coordinator.refusals import refuse
from kbroker.coordinator.shard import GroupShard
from kbroker.coordinator.timers import Timer, Timers
from tests.coordinator.world import GROUP, SESSION_MS, World
from wire.errors import ErrorCode, Malformed
from wire.messages.delete_groups import DeleteGroupsRequest
from wire.messages.describe_groups import DescribeGroupsRequest
from wire.messages.heartbeat import HeartbeatRequest
from wire.messages.join_group import JoinGroupRequest
from wire.messages.leave_group import LeaveGroupRequest
from wire.messages.offset_commit import OffsetCommitRequest, OffsetCommitRequestPartition, OffsetCommitRequestTopic
from wire.messages.offset_delete import OffsetDeleteRequest
from wire.messages.sync_group import SyncGroupRequest
from wire.refusals import refused
from wire.stored.groups import GroupMetadataKey, GroupMetadataValue, MemberMetadata


def state(world: World) -> str:
    group = world.shard.group(GROUP)
    return "none" if group is None else group.state.value


def test_a_stable_group_continues_with_another_coordinator() -> None:
    world = World()
    leader, other = world.stable(2)
    world.reload()
    assert state(world) == "Stable"
    assert world.heartbeat(leader) == world.heartbeat(other) == ErrorCode.NONE
    assert world.sync(other).assignment == b"\1"
    assert isinstance(world.join(other.member_id).generation_id, int), "a follower gets its current generation"
    parked = world.join(leader.member_id)
    world.join(other.member_id)
    assert world.answers[parked].generation_id == leader.generation_id + 1


def test_loaded_members_time_out() -> None:
    world = World()
    world.stable(2)
    world.reload()
    world.advance(SESSION_MS - 1)
    assert state(world) == "Stable"
    world.advance(1)
    assert state(world) == "Empty"
    world.reload()
    assert state(world) == "Empty"


def test_a_generation_that_was_not_stored_is_lost() -> None:
    world = World()
    leader, other = world.stable(2)
    parked = world.join(leader.member_id)
    world.join(other.member_id)
    newer = world.answers[parked]
    world.reload()
    assert world.heartbeat(newer) == ErrorCode.ILLEGAL_GENERATION
    assert world.heartbeat(other) == ErrorCode.NONE


def test_unloading_answers_all_parked_requests() -> None:
    world = World(group_initial_rebalance_delay_ms=1_000)
    joining = world.join()
    world.shard.unload(now_ms=world.now_ms, timestamp_ms=world.timestamp_ms)
    ((parked, answer),) = world.shard.take_answers()
    assert parked is joining
    assert answer.error_code == ErrorCode.NOT_COORDINATOR
    assert world.shard.next_deadline_ms() is None

    world = World()
    leader, other = world.stable(2)
    world.join(leader.member_id)
    syncing = world.sync(world.join(other.member_id))
    world.shard.unload(now_ms=world.now_ms, timestamp_ms=world.timestamp_ms)
    ((parked, answer),) = world.shard.take_answers()
    assert parked is syncing
    assert answer.error_code == ErrorCode.NOT_COORDINATOR


def test_a_loaded_group_above_group_max_size_rebalances() -> None:
    world = World()
    leader, _, _ = world.stable(3)
    world.settings = World(group_max_size=2).settings
    world.reload()
    assert world.heartbeat(leader) == ErrorCode.REBALANCE_IN_PROGRESS


def test_a_group_of_an_old_kafka_is_loaded() -> None:
    world = World()
    value = GroupMetadataValue(
        protocol_type="consumer",
        generation=4,
        protocol="range",
        leader="m",
        members=[
            MemberMetadata(
                member_id="m",
                client_id="c",
                client_host="/10.0.0.1",
                session_timeout=SESSION_MS,
                subscription=b"",
                assignment=b"x",
            )
        ],
    )
    record = GroupRecord(GroupMetadataKey(group=GROUP), value)
    world.log.append((record.key, record.value))
    world.load()
    group = world.shard.group(GROUP)
    assert group is not None
    assert group.members["m"].rebalance_timeout_ms == SESSION_MS
    assert (group.state_timestamp_ms, group.generation_id) == (None, 4)


def test_records_of_other_group_types_are_ignored() -> None:
    world = World()
    world.commit(5)
    world.log += [(b"\0\x0b\0\1g", b"\0\0\0\0\0\1\0"), (b"\0\x0a\0\1g\0\1m", None), (b"\x7f\xff", b"")]
    world.load()
    world.shard.replay(None, b"no key at all")
    assert world.shard.group_ids() == [GROUP]


def test_replaying_an_invalid_record_raises_malformed() -> None:
    with pytest.raises(Malformed):
        World().shard.replay(b"\0\1\0\5short", None)


def test_a_compacted_log_loads_to_the_same_state() -> None:
    world = World()
    leader, other = world.stable(2)
    for offset in range(5):
        world.commit(offset, joined=leader)
        world.commit(offset, joined=other, partition=1)
    compacted = dict(world.log)
    whole = world.shard.offsets_of(GROUP)
    again = GroupShard(world.settings, new_uuid=world.new_uuid)
    for key, value in compacted.items():
        again.replay(key, value)
    found = again.offsets_of(GROUP)
    assert {(t, p): c.offset for t, of in found.items() for p, c in of.items()} == {
        (t, p): c.offset for t, of in whole.items() for p, c in of.items()
    }
    group = again.group(GROUP)
    assert group is not None
    assert set(group.members) == {leader.member_id, other.member_id}


REQUESTS: list[Any] = [
    JoinGroupRequest(group_id=GROUP, session_timeout_ms=1, member_id="m", protocol_type="consumer", protocols=[]),
    SyncGroupRequest(group_id=GROUP, generation_id=1, member_id="m", assignments=[]),
    HeartbeatRequest(group_id=GROUP, generation_id=1, member_id="m"),
    LeaveGroupRequest(group_id=GROUP),
    OffsetDeleteRequest(group_id=GROUP, topics=[]),
]


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda request: type(request).__name__)
def test_a_refusal_of_a_group_has_its_code(request_: Any) -> None:
    assert refuse(request_, ErrorCode.NOT_COORDINATOR, 0).error_code == ErrorCode.NOT_COORDINATOR


def test_a_refusal_of_several_items_has_a_code_for_each() -> None:
    partitions = [
        OffsetCommitRequestPartition(partition_index=index, committed_offset=1, committed_metadata="")
        for index in (4, 7)
    ]
    commit = OffsetCommitRequest(
        group_id=GROUP, member_id="", topics=[OffsetCommitRequestTopic(name="orders", partitions=partitions)]
    )
    (topic,) = refuse(commit, ErrorCode.NOT_COORDINATOR, 9).topics
    assert [(one.partition_index, one.error_code) for one in topic.partitions] == [(4, 16), (7, 16)]
    deleted = refuse(DeleteGroupsRequest(groups_names=["a", "b"]), ErrorCode.NOT_COORDINATOR, 2).results
    assert [(one.group_id, one.error_code) for one in deleted] == [("a", 16), ("b", 16)]
    described = refused(DescribeGroupsRequest(groups=["a", "b"]), ErrorCode.NOT_COORDINATOR).groups
    assert [(one.group_id, one.error_code, one.group_state) for one in described] == [("a", 16, ""), ("b", 16, "")]


def test_heartbeats_are_accepted_while_the_group_is_loading() -> None:
    assert refuse(REQUESTS[2], ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, 4).error_code == ErrorCode.NONE


def test_a_refused_join_has_no_null_before_version_7() -> None:
    assert refuse(REQUESTS[0], ErrorCode.NOT_COORDINATOR, 6).protocol_name == ""
    assert refuse(REQUESTS[0], ErrorCode.NOT_COORDINATOR, 7).protocol_name is None


# Timers


@given(st.lists(st.tuples(st.integers(0, 5), st.sampled_from(["schedule", "cancel", "advance"]), st.integers(0, 20))))
def test_timers_are_due_at_their_deadlines(steps: list[tuple[int, str, int]]) -> None:
    """For any sequence of schedule, cancel and advance; next_deadline_ms is never too late."""
    timers, now_ms = Timers(), 100
    all_timers = [Timer(lambda: None) for _ in range(6)]
    expected: dict[int, int] = {}
    for index, step, amount in [*steps, (0, "advance", 10_000)]:
        if step == "schedule":
            timers.schedule(all_timers[index], now_ms + amount)
            expected[index] = now_ms + amount
        elif step == "cancel":
            timers.cancel(all_timers[index])
            expected.pop(index, None)
        else:
            now_ms += amount
            fired = []
            while (timer := timers.due(now_ms)) is not None:
                fired.append(all_timers.index(timer))
            due = [index for index, at_ms in expected.items() if at_ms <= now_ms]
            assert sorted(fired) == sorted(due)
            for one in due:
                del expected[one]
        bound_ms = timers.next_deadline_ms()
        assert (bound_ms is None) == (not expected)
        if bound_ms is not None:
            assert bound_ms <= min(expected.values())


def test_cancelled_timers_do_not_pile_up() -> None:
    timers = Timers()
    for _ in range(10_000):
        timer = Timer(lambda: None)
        timers.schedule(timer, 1_000_000)
        timers.cancel(timer)
    assert len(timers) < 200


def test_extending_a_session_adds_no_heap_entry() -> None:
    world = World()
    (joined,) = world.stable()
    for _ in range(1_000):
        world.advance(1)
        world.heartbeat(joined)
    assert len(world.shard._context.timers) < 10
