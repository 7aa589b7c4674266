"""ConsumerGroupHeartbeat: joining, reconciliation, fencing, static members, leaving, timers, changed topics."""

from __future__ import annotations

import pytest

from kbroker.coordinator.consumer.member import MemberState
from kbroker.metadata.image import GROUP_RESOURCE
from tests.coordinator.consumer.world import REBALANCE_MS, ConsumerWorld, settle
from tests.coordinator.world import GROUP
from wire.errors import ErrorCode

STABLE, UNREVOKED = MemberState.STABLE, MemberState.UNREVOKED_PARTITIONS
UNRELEASED = MemberState.UNRELEASED_PARTITIONS
ALL = [("orders", index) for index in range(4)]


def states(world: ConsumerWorld) -> dict[str, MemberState]:
    return {member_id: member.state for member_id, member in world.consumer_group().members.items()}


def test_first_member_gets_all_partitions() -> None:
    world = ConsumerWorld()
    one = world.member("one")
    answer = one.beat()
    assert (answer.error_code, answer.member_epoch, answer.member_id) == (0, 2, "one")
    assert one.partitions == ALL
    assert world.consumer_group().state_name == "Stable"


def test_second_member_waits_for_revoked_partitions() -> None:
    world = ConsumerWorld()
    one, two = world.member("one", keeps=True), world.member("two")
    one.beat()
    two.beat()
    assert states(world) == {"one": STABLE, "two": UNRELEASED}
    one.beat()
    assert states(world) == {"one": UNREVOKED, "two": UNRELEASED}
    assert (one.epoch, two.epoch) == (2, 3), "it keeps its epoch until it has given the partitions up"
    two.beat()
    assert two.owned == {}
    one.keeps = False
    one.owned = {"orders": set(sorted(one.owned["orders"])[:2])}
    one.beat()
    two.beat()
    assert states(world) == {"one": STABLE, "two": STABLE}
    assert sorted(one.partitions + two.partitions) == ALL


def test_a_group_survives_a_new_coordinator() -> None:
    world = ConsumerWorld()
    one, two = world.member("one"), world.member("two", instance_id="static")
    settle(one, two)
    before = world.consumer_group()
    world.reload()
    after = world.consumer_group()
    assert after is not before
    assert (after.members, after.target, after.owned) == (before.members, before.target, before.owned)
    assert (after.group_epoch, after.assignment_epoch, after.metadata_hash) == (3, 3, before.metadata_hash)
    one.beat()
    assert after.group_epoch == 3, "the topics have not changed"


def test_lost_answers_can_be_asked_for_again() -> None:
    world = ConsumerWorld()
    one, two = world.member("one"), world.member("two")
    settle(one, two)
    before, owned = one.epoch, one.owned
    world.member("three").beat()
    world.beat("one", before, owned=owned)  # the answer with fewer partitions is lost
    one.beat()
    assert one.error is ErrorCode.NONE
    assert world.beat("one", one.epoch - 1, owned={}).error_code == ErrorCode.NONE
    assert world.beat("one", one.epoch - 1, owned={"orders": range(4)}).error_code == ErrorCode.FENCED_MEMBER_EPOCH
    assert world.beat("one", one.epoch + 1, owned={}).error_code == ErrorCode.FENCED_MEMBER_EPOCH


def test_a_silent_member_is_removed_after_its_session() -> None:
    world = ConsumerWorld()
    one, two = world.member("one"), world.member("two")
    settle(one, two)
    world.advance(40_000)
    one.beat()
    world.advance(5_000)
    assert list(world.consumer_group().members) == ["one"]
    one.beat()
    assert one.partitions == ALL
    assert two.beat().error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_many_silent_members_are_removed_together() -> None:
    world = ConsumerWorld()
    settle(*(world.member(f"m{index}") for index in range(6)))
    epoch = world.consumer_group().group_epoch
    world.advance(60_000)
    assert world.consumer_group().state_name == "Empty"
    assert world.consumer_group().group_epoch == epoch + 1


def test_a_failed_removal_is_tried_again() -> None:
    world = ConsumerWorld()
    world.member("one").beat()
    world.advance(44_000)
    world.fail_with = ErrorCode.NOT_ENOUGH_REPLICAS
    world.advance(1_100)
    assert world.fail_with is None
    assert list(world.consumer_group().members) == ["one"]
    world.advance(1_000)
    assert world.consumer_group().is_empty


def test_a_member_that_keeps_partitions_is_fenced() -> None:
    world = ConsumerWorld()
    one, two = world.member("one", keeps=True), world.member("two")
    one.beat()
    two.beat()
    one.beat()
    for _ in range(4):
        world.advance(REBALANCE_MS // 4)
        one.beat()
        two.beat()
    assert one.error is ErrorCode.UNKNOWN_MEMBER_ID
    two.beat()
    assert two.partitions == ALL


def test_a_rebalance_timeout_of_an_earlier_epoch_fences_nobody() -> None:
    world = ConsumerWorld()
    one, two = world.member("one"), world.member("two")
    one.beat()
    two.beat()
    one.beat()
    settle(one, two)
    for _ in range(5):
        world.advance(REBALANCE_MS // 4)
        settle(one, two)
    assert set(world.consumer_group().members) == {"one", "two"}


def test_static_members_get_their_partitions_back() -> None:
    world = ConsumerWorld()
    one, two = world.member("one", instance_id="a"), world.member("two", instance_id="b")
    settle(one, two)
    mine, epoch = one.partitions, world.consumer_group().group_epoch
    assert world.beat("new", 0, topics=["orders"], owned={}, rebalance_ms=1, instance_id="a").error_code == (
        ErrorCode.UNRELEASED_INSTANCE_ID
    )
    assert world.beat("one", -2, instance_id="a").member_epoch == -2
    two.beat()
    assert two.partitions != ALL, "the partitions wait for the member"
    new = world.member("new", instance_id="a")
    new.beat()
    assert new.partitions == mine
    assert world.consumer_group().group_epoch == epoch, "nothing is assigned anew"
    assert one.beat().error_code == ErrorCode.FENCED_INSTANCE_ID
    world.advance(44_000)
    settle(new, two)
    world.advance(2_000)
    assert set(world.consumer_group().members) == {"two", "new"}, "timers of the old member find nothing"


def test_a_static_member_that_stays_away_is_removed() -> None:
    world = ConsumerWorld()
    one, two = world.member("one", instance_id="a"), world.member("two")
    settle(one, two)
    world.beat("one", -2, instance_id="a")
    for _ in range(10):
        world.advance(5_000)
        two.beat()
    assert two.partitions == ALL


def test_members_choose_the_assignor_by_majority() -> None:
    world = ConsumerWorld()
    members = [world.member(f"m{index}", assignor="range" if index else "uniform") for index in range(3)]
    settle(*members)
    assert world.shard.describe_consumer_group(GROUP)[0].assignor_name == "range"
    assert members[0].owned == {"orders": {0, 1}}


def test_a_full_group_takes_no_new_members() -> None:
    world = ConsumerWorld(group_consumer_max_size=1)
    one = world.member("one")
    one.beat()
    assert world.member("two").beat().error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert one.beat().error_code == ErrorCode.NONE


def test_topics_that_grow_or_go_are_assigned_anew() -> None:
    world = ConsumerWorld()
    world.create("events", 1)
    one = world.member("one", "orders", "events", "later")
    settle(one)
    world.create("orders", 6)
    settle(one)
    assert len(one.owned["orders"]) == 6
    world.create("later", 2)
    settle(one)
    assert len(one.owned["later"]) == 2
    world.delete("events")
    settle(one)
    assert "events" not in one.owned
    epoch = world.consumer_group().group_epoch
    world.create("unrelated", 2)
    settle(one)
    assert world.consumer_group().group_epoch == epoch


def test_a_recreated_topic_is_a_new_topic() -> None:
    world = ConsumerWorld()
    one = world.member("one")
    settle(one)
    old = world.id_of("orders")
    world.delete("orders")
    new = world.create("orders", 2)
    assert new != old
    settle(one)
    assert list(world.consumer_group().target["one"]) == [new]


def test_assignments_wait_for_the_interval() -> None:
    world = ConsumerWorld(group_consumer_assignment_interval_ms=1_000)
    one, two = world.member("one"), world.member("two")
    one.beat()
    two.beat()
    assert world.consumer_group().state_name == "Assigning"
    assert (two.epoch, two.owned) == (2, {}), "it has the epoch of the previous assignment"
    world.advance(999)
    two.beat()
    assert world.consumer_group().state_name == "Assigning"
    world.advance(1)
    settle(one, two)


def test_settings_of_a_group_override_those_of_the_broker() -> None:
    world = ConsumerWorld()
    configs = {
        "consumer.session.timeout.ms": "50000",
        "consumer.heartbeat.interval.ms": "99999",
        "consumer.assignment.interval.ms": "none",
    }
    world.follow(world.image._replace(configs={(GROUP_RESOURCE, GROUP): configs}), is_new=False)
    one = world.member("one")
    assert one.beat().heartbeat_interval_ms == 15_000, "the broker's maximum"
    world.advance(49_999)
    assert not world.consumer_group().is_empty
    world.advance(1)
    assert world.consumer_group().is_empty


def test_a_failed_append_changes_nothing() -> None:
    world = ConsumerWorld()
    one, two = world.member("one"), world.member("two")
    settle(one)
    before = world.consumer_group()
    members, owned = dict(before.members), {id: dict(of) for id, of in before.owned.items()}
    world.fail_with = ErrorCode.NOT_ENOUGH_REPLICAS
    assert two.beat().error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert (world.consumer_group().members, world.consumer_group().owned) == (members, owned)
    settle(one, two)


@pytest.mark.parametrize("member_id", ["", "mine"])
def test_version_0_gives_members_an_id(member_id: str) -> None:
    world = ConsumerWorld()
    answer = world.beat(member_id, 0, topics=["orders"], owned={}, rebalance_ms=1, version=0)
    assert answer.member_id == member_id if member_id else len(answer.member_id or "") == 22
    assert world.beat("", 0, topics=["orders"], owned={}, rebalance_ms=1).error_code == ErrorCode.INVALID_REQUEST
