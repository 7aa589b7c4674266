"""Groups that move between both protocols, and members of the classic protocol in consumer groups."""

from __future__ import annotations

from typing import Any

import pytest

from kbroker.coordinator.consumer.migrating import decoded
from kbroker.coordinator.group import Group, GroupState
from tests.coordinator.consumer.world import ConsumerWorld, settle
from tests.coordinator.world import GROUP, subscription
from wire.codec import encode
from wire.errors import ErrorCode
from wire.messages.join_group import JoinGroupResponse
from wire.stored.consumer_protocol import ConsumerProtocolAssignment, TopicPartition


def assignment(*partitions: int, user_data: bytes | None = None) -> bytes:
    topics = [TopicPartition(topic="orders", partitions=list(partitions))]
    return b"\0\0" + encode(ConsumerProtocolAssignment(assigned_partitions=topics, user_data=user_data), 0)


def partitions_of(synced: Any) -> list[int]:
    topics = decoded(ConsumerProtocolAssignment, synced.assignment).assigned_partitions
    return [partition for one in topics for partition in one.partitions]


def classic_group(world: ConsumerWorld, *, user_data: bytes | None = None, instance_id: str | None = None) -> Any:
    """A stable classic group of one member, which has all partitions."""
    joined = world.join(instance_id=instance_id)
    assert isinstance(joined, JoinGroupResponse)
    world.sync(joined, instance_id=instance_id, own=assignment(0, 1, 2, 3, user_data=user_data))
    return joined


def test_a_classic_group_becomes_a_consumer_group() -> None:
    world = ConsumerWorld()
    old = classic_group(world)
    new = world.member("new")
    new.beat()
    group = world.consumer_group()
    assert set(group.members) == {old.member_id, "new"}
    assert group.group_epoch == old.generation_id + 1
    assert new.owned == {}, "the classic member still has all partitions"
    assert world.heartbeat(old) == ErrorCode.REBALANCE_IN_PROGRESS
    metadata = {"range": subscription("orders")}
    rejoined = world.join(old.member_id, protocols=metadata)
    assert partitions_of(world.sync(rejoined)) != [0, 1, 2, 3]
    assert world.heartbeat(rejoined) == ErrorCode.NONE
    new.beat()
    assert len(new.partitions) == 2
    world.reload()
    assert world.heartbeat(rejoined) == ErrorCode.NONE
    assert world.consumer_group().classic_count == 1


def test_waiting_classic_members_are_asked_to_rejoin() -> None:
    world = ConsumerWorld()
    joined = world.join(version=3)
    follower = world.join(version=3)
    world.join(joined.member_id)
    waiting = world.shard.group(GROUP)
    assert isinstance(waiting, Group)
    world.member("new").beat()
    assert len(world.consumer_group().members) == 3
    assert world.answers[follower].error_code in (ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS)


def test_a_failed_migration_leaves_the_classic_group() -> None:
    world = ConsumerWorld()
    old = classic_group(world)
    world.fail_with = ErrorCode.NOT_ENOUGH_REPLICAS
    assert world.member("new").beat().error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    group = world.shard.group(GROUP)
    assert isinstance(group, Group)
    assert group.state is GroupState.STABLE
    assert world.heartbeat(old) == ErrorCode.NONE


@pytest.mark.parametrize(
    ("policy", "protocol_type", "user_data", "may_move"),
    [
        ("bidirectional", "consumer", None, True),
        ("UPGRADE", "consumer", None, True),
        ("downgrade", "consumer", None, False),
        ("disabled", "consumer", None, False),
        ("upgrade", "connect", None, False),
        ("upgrade", "consumer", b"sticky", False),
    ],
)
def test_only_some_classic_groups_become_consumer_groups(
    policy: str, protocol_type: str, user_data: bytes | None, may_move: bool
) -> None:
    world = ConsumerWorld(group_consumer_migration_policy=policy)
    joined = world.join(protocol_type=protocol_type)
    world.sync(joined, own=assignment(0, user_data=user_data))
    answer = world.member("new").beat()
    assert answer.error_code == (ErrorCode.NONE if may_move else ErrorCode.GROUP_ID_NOT_FOUND)


def test_malformed_metadata_of_a_classic_group_is_refused() -> None:
    world = ConsumerWorld()
    joined = world.join(protocols={"range": b"\0\0\xff"})
    world.sync(joined, own=assignment(0))
    assert world.member("new").beat().error_code == ErrorCode.GROUP_ID_NOT_FOUND


def test_the_last_new_member_turns_the_group_classic() -> None:
    world = ConsumerWorld()
    new = world.member("new")
    settle(new)
    old = world.join(protocols={"range": subscription("orders")})
    world.sync(old)
    world.beat("new", -1)
    group = world.shard.group(GROUP)
    assert isinstance(group, Group)
    assert group.state is GroupState.PREPARING_REBALANCE
    assert list(group.members) == [old.member_id]
    assert world.shard.list_groups(types={"classic"})
    rejoined = world.join(old.member_id)
    assert rejoined.generation_id > old.generation_id
    assert world.sync(rejoined, own=b"mine").assignment == b"mine"
    world.reload()
    assert world.heartbeat(rejoined) == ErrorCode.NONE


@pytest.mark.parametrize("policy", ["upgrade", "disabled"])
def test_without_downgrades_the_group_stays_a_consumer_group(policy: str) -> None:
    world = ConsumerWorld(group_consumer_migration_policy=policy)
    new = world.member("new")
    settle(new)
    old = world.join(protocols={"range": subscription("orders")})
    if policy == "disabled":
        assert old.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        return
    world.beat("new", -1)
    assert world.consumer_group().classic_count == 1


def test_a_classic_static_member_replaces_the_last_new_one() -> None:
    world = ConsumerWorld()
    settle(world.member("new", instance_id="a"))
    world.beat("new", -2, instance_id="a")
    joined = world.join(instance_id="a", protocols={"range": subscription("orders")})
    assert joined.error_code == ErrorCode.NONE
    group = world.shard.group(GROUP)
    assert isinstance(group, Group)
    assert group.state is GroupState.STABLE
    assert partitions_of(world.sync(joined, instance_id="a")) == [0, 1, 2, 3]
    world.reload()
    assert world.heartbeat(joined, instance_id="a") == ErrorCode.NONE


def test_a_classic_member_that_does_not_sync_is_fenced() -> None:
    world = ConsumerWorld()
    new = world.member("new")
    settle(new)
    joined = world.join(protocols={"range": subscription("orders")}, rebalance_ms=3_000, session_ms=20_000)
    assert joined.member_id in world.consumer_group().members
    world.advance(3_000)
    assert list(world.consumer_group().members) == ["new"]


def test_a_classic_member_that_does_not_rejoin_is_fenced() -> None:
    world = ConsumerWorld()
    new = world.member("new")
    settle(new)
    joined = world.join(protocols={"range": subscription("orders")}, rebalance_ms=3_000)
    world.sync(joined)
    new.beat()
    world.member("third").beat()
    assert world.heartbeat(joined) == ErrorCode.REBALANCE_IN_PROGRESS
    for _ in range(3):
        world.advance(1_000)
        world.heartbeat(joined)
    assert joined.member_id not in world.consumer_group().members


def test_members_of_both_protocols_leave_by_leave_group() -> None:
    world = ConsumerWorld()
    one, two = world.member("one", instance_id="a"), world.member("two")
    settle(one, two)
    answer = world.leave("two", "nobody", instance_ids=["a", "unknown"])
    codes = [member.error_code for member in answer.members]
    unknown = ErrorCode.UNKNOWN_MEMBER_ID
    assert codes == [ErrorCode.NONE, unknown, ErrorCode.NONE, unknown]
    assert world.consumer_group().is_empty


def test_an_empty_consumer_group_becomes_classic() -> None:
    world = ConsumerWorld()
    settle(world.member("new"))
    world.beat("new", -1)
    world.commit(5)
    joined = world.join()
    assert joined.error_code == ErrorCode.NONE
    world.sync(joined, own=b"mine")
    world.reload()
    assert isinstance(world.shard.group(GROUP), Group)
    assert world.heartbeat(joined) == ErrorCode.NONE
    assert world.committed() == 5


def test_an_empty_consumer_group_stays_if_the_append_fails() -> None:
    world = ConsumerWorld()
    settle(world.member("new"))
    world.beat("new", -1)
    world.fail_with = ErrorCode.NOT_ENOUGH_REPLICAS
    world.join(version=3)
    assert world.consumer_group().is_empty


def test_an_empty_classic_group_becomes_a_consumer_group() -> None:
    world = ConsumerWorld()
    world.commit(5)
    joined = classic_group(world)
    world.leave(joined.member_id)
    new = world.member("new")
    settle(new)
    assert len(new.partitions) == 4
    world.reload()
    assert world.consumer_group().state_name == "Stable"
    assert world.committed() == 5
