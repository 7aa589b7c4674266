"""JoinGroup, SyncGroup, Heartbeat and LeaveGroup on a running node, especially their waits."""

from __future__ import annotations

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from kbroker.client.streaming import ConnectionClosed
from kbroker.testing.memory_node import Client, MemoryBroker, memory_broker
from tests.handlers.asking import create_topic, delete_topic
from tests.handlers.groups import SESSION_MS, beat, commit, find, form, join, joining, syncing
from wire.errors import ErrorCode
from wire.messages.heartbeat import HeartbeatRequest
from wire.messages.join_group import JoinGroupResponse
from wire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from wire.messages.sync_group import SyncGroupResponse


async def group_of_two(
    broker: MemoryBroker,
) -> tuple[tuple[Client, JoinGroupResponse], tuple[Client, JoinGroupResponse]]:
    """A stable group with a leader and a follower."""
    leader, follower = await broker.connect(), await broker.connect()
    await find(leader)
    first = await join(leader)
    await follower.send(joining(), version=3)
    await wait_all_tasks_blocked()
    await leader.send(joining(member_id=first.member_id), version=3)
    led, followed = await leader.receive(), await follower.receive()
    assert led.generation_id == followed.generation_id == 2
    await follower.send(syncing(followed))
    await wait_all_tasks_blocked()
    answer = await leader.ask(syncing(led, {led.member_id: b"one", followed.member_id: b"other"}))
    assert bytes(answer.assignment) == b"one"
    assert bytes((await follower.receive()).assignment) == b"other"
    return (leader, led), (follower, followed)


@pytest.mark.parametrize("version", range(10))
async def test_every_version_joins_and_syncs(client: Client, version: int) -> None:
    await find(client)
    joined = await join(client, version=version)
    if joined.error_code == ErrorCode.MEMBER_ID_REQUIRED:
        assert version >= 4
        joined = await join(client, member_id=joined.member_id, version=version)
    assert (joined.error_code, joined.generation_id, joined.protocol_name) == (0, 1, "range")
    assert joined.leader == joined.member_id
    assert joined.protocol_type == ("consumer" if version >= 7 else None)
    assert [(one.member_id, bytes(one.metadata)) for one in joined.members] == [(joined.member_id, b"subscription")]
    answer = await client.ask(syncing(joined, {joined.member_id: b"mine"}), version=min(version, 5))
    assert (answer.error_code, bytes(answer.assignment)) == (0, b"mine")
    assert await beat(client, joined) == 0


async def test_a_follower_waits_for_the_leaders_assignment(broker: MemoryBroker) -> None:
    (leader, led), (follower, followed) = await group_of_two(broker)
    assert led.leader == followed.leader == led.member_id
    assert [one.member_id for one in led.members] == [led.member_id, followed.member_id]
    assert followed.members == []
    assert await beat(leader, led) == await beat(follower, followed) == 0


async def test_requests_after_a_waiting_one_are_answered_after_it(broker: MemoryBroker) -> None:
    (leader, led), (follower, followed) = await group_of_two(broker)
    await leader.send(joining(member_id=led.member_id), version=3)
    await leader.send(HeartbeatRequest(group_id="g", generation_id=2, member_id=led.member_id))
    await wait_all_tasks_blocked()
    again = await join(follower, member_id=followed.member_id)
    assert again.generation_id == 3
    assert (await leader.receive()).generation_id == 3
    assert (await leader.receive()).error_code == ErrorCode.ILLEGAL_GENERATION, "the heartbeat was handled afterwards"


async def beat_after(seconds: float, client: Client, joined: JoinGroupResponse) -> int:
    await trio.sleep(seconds)
    return await beat(client, joined)


async def test_an_expired_session_gives_its_partitions_to_other_members(broker: MemoryBroker) -> None:
    (leader, led), _ = await group_of_two(broker)
    began = trio.current_time()
    codes = [await beat_after(1, leader, led) for _ in range(12)]
    assert codes == [0] * 9 + [ErrorCode.REBALANCE_IN_PROGRESS] * 3
    assert trio.current_time() - began == 12
    assert await beat(leader, led) == ErrorCode.REBALANCE_IN_PROGRESS
    alone = await join(leader, member_id=led.member_id)
    assert [one.member_id for one in alone.members] == [led.member_id]


async def test_r14_commits_of_an_expired_member_are_refused(
    broker: MemoryBroker,
) -> None:
    (leader, led), (follower, followed) = await group_of_two(broker)
    await create_topic(leader, "t")
    assert await commit(follower, {("t", 0): 5}, joined=followed) == {("t", 0): 0}
    codes = [await beat_after(1, leader, led) for _ in range(SESSION_MS // 1000 + 1)]
    assert codes[-1] == ErrorCode.REBALANCE_IN_PROGRESS
    alone = await join(leader, member_id=led.member_id)
    await leader.ask(syncing(alone, {alone.member_id: b"all"}))
    assert await beat(follower, followed) == ErrorCode.UNKNOWN_MEMBER_ID
    assert await commit(follower, {("t", 0): 9}, joined=followed) == {("t", 0): ErrorCode.UNKNOWN_MEMBER_ID}
    assert await commit(leader, {("t", 0): 6}, joined=alone) == {("t", 0): 0}


async def test_r14_the_older_member_with_a_static_id_is_fenced(broker: MemoryBroker) -> None:
    older, newer = await broker.connect(), await broker.connect()
    await find(older)
    was = await older.ask(joining(instance="i"), version=7)
    await older.ask(syncing(was, {was.member_id: b"mine"}, group_instance_id="i"))
    now = await newer.ask(joining(instance="i"), version=7)
    assert (now.error_code, now.generation_id) == (0, was.generation_id)
    assert now.member_id != was.member_id
    code = (
        await older.ask(
            HeartbeatRequest(
                group_id="g", generation_id=was.generation_id, member_id=was.member_id, group_instance_id="i"
            )
        )
    ).error_code
    assert code == ErrorCode.FENCED_INSTANCE_ID
    kept = await newer.ask(syncing(now, group_instance_id="i"))
    assert (kept.error_code, bytes(kept.assignment)) == (0, b"mine")


async def test_a_client_that_disconnects_while_waiting_does_not_delay_others(broker: MemoryBroker) -> None:
    (leader, led), (follower, followed) = await group_of_two(broker)
    await leader.send(joining(member_id=led.member_id), version=3)
    await wait_all_tasks_blocked()
    assert broker.node.broker is not None
    runtime = broker.node.broker.groups.runtime
    assert runtime.parked_count == 1
    leader.close()
    await wait_all_tasks_blocked()
    assert runtime.parked_count == 0, "its connection's task has ended"
    joined = await join(follower, member_id=followed.member_id)
    assert (joined.error_code, joined.generation_id) == (0, 3)


async def test_leaving_begins_a_rebalance_at_once(broker: MemoryBroker) -> None:
    (leader, led), (follower, followed) = await group_of_two(broker)
    left = await follower.ask(
        LeaveGroupRequest(
            group_id="g", members=[MemberIdentity(member_id=followed.member_id), MemberIdentity(member_id="x")]
        )
    )
    assert left.error_code == 0
    assert [one.error_code for one in left.members] == [0, ErrorCode.UNKNOWN_MEMBER_ID]
    assert await beat(leader, led) == ErrorCode.REBALANCE_IN_PROGRESS


async def test_a_stop_ends_every_wait_with_not_coordinator() -> None:
    async with memory_broker() as broker:
        (leader, led), _ = await group_of_two(broker)
        await leader.send(joining(member_id=led.member_id), version=3)
        await wait_all_tasks_blocked()
        began = trio.current_time()
        broker.node.stop()
        assert (await leader.receive()).error_code == ErrorCode.NOT_COORDINATOR
        with pytest.raises(ConnectionClosed):
            await beat(leader, led)
    assert trio.current_time() - began < 5, "the process ends within five seconds after SIGTERM"


async def test_deleting_the_offsets_topic_ends_all_waits(broker: MemoryBroker) -> None:
    (leader, led), _ = await group_of_two(broker)
    await leader.send(joining(member_id=led.member_id), version=3)
    await wait_all_tasks_blocked()
    other = await broker.connect()
    await delete_topic(other, "__consumer_offsets")
    assert (await leader.receive()).error_code == ErrorCode.NOT_COORDINATOR
    assert await beat(leader, led) == ErrorCode.NOT_COORDINATOR
    await find(leader)
    assert await beat(leader, led) == ErrorCode.UNKNOWN_MEMBER_ID, "the new topic knows no groups"


async def test_without_the_offsets_topic_there_is_no_coordinator(client: Client) -> None:
    joined = await join(client)
    assert (joined.error_code, joined.protocol_name, joined.members) == (ErrorCode.NOT_COORDINATOR, "", [])
    answer = await client.ask(syncing(joined))
    assert isinstance(answer, SyncGroupResponse)
    assert answer.error_code == ErrorCode.NOT_COORDINATOR
    assert await beat(client, joined) == ErrorCode.NOT_COORDINATOR
    left = await client.ask(LeaveGroupRequest(group_id="g", members=[MemberIdentity(member_id="x")]))
    assert (left.error_code, left.members) == (ErrorCode.NOT_COORDINATOR, [])


@pytest.mark.parametrize("makes_the_topic", [True, False])
async def test_an_empty_group_id_is_refused(client: Client, makes_the_topic: bool) -> None:
    if makes_the_topic:
        await find(client)
    joined = await join(client, "", "me")
    assert (joined.error_code, joined.member_id) == (ErrorCode.INVALID_GROUP_ID, "me")
    assert (await client.ask(syncing(joined, group_id=""))).error_code == ErrorCode.INVALID_GROUP_ID
    assert await beat(client, joined, group_id="") == ErrorCode.INVALID_GROUP_ID
    left = await client.ask(LeaveGroupRequest(group_id="", members=[MemberIdentity(member_id="x")]))
    assert left.error_code == ErrorCode.INVALID_GROUP_ID


async def test_sync_group_5_names_the_protocol(client: Client) -> None:
    await find(client)
    joined = await join(client)
    request = syncing(joined)
    request.protocol_name = None
    assert (await client.ask(request, version=5)).error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert (await client.ask(syncing(joined, {joined.member_id: b"x"}), version=4)).error_code == 0


async def test_the_first_rebalance_waits_as_configured() -> None:
    async with memory_broker(settings={"group.initial.rebalance.delay.ms": 3000}) as broker:
        first, second = await broker.connect(), await broker.connect()
        await find(first)
        await first.send(joining(), version=3)
        await trio.sleep(2)
        await second.send(joining(), version=3)
        answers = [await first.receive(), await second.receive()]
        assert [answer.generation_id for answer in answers] == [1, 1]
        assert trio.current_time() == pytest.approx(6, abs=0.1), "the delay is extended because a member joined"


async def test_w12_the_size_of_a_group_is_bounded() -> None:
    async with memory_broker(settings={"group.max.size": 2}) as broker:
        (_, _), (_, _) = await group_of_two(broker)
        third = await broker.connect()
        joined = await join(third)
        assert joined.error_code == ErrorCode.GROUP_MAX_SIZE_REACHED


async def test_a_new_member_is_shown_with_client_id_and_address(client: Client) -> None:
    from wire.messages.describe_groups import DescribeGroupsRequest

    await find(client)
    await form(client)
    answer = await client.ask(DescribeGroupsRequest(groups=["g"]))
    member = answer.groups[0].members[0]
    assert member.client_id == "test"
    assert member.client_host.startswith("/")
    assert (bytes(member.member_metadata), bytes(member.member_assignment)) == (b"subscription", b"all")
