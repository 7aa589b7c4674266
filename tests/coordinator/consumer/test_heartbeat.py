"""ConsumerGroupHeartbeat: joining, reconciliation, fencing, static members, leaving."""

from __future__ import annotations

from tests.coordinator.consumer.world import ConsumerWorld, settle


def test_first_member_gets_all_partitions() -> None:
    world = ConsumerWorld()
    one = world.member("one")
    answer = one.beat()
    assert (answer.error_code, answer.member_epoch, answer.member_id) == (0, 2, "one")
    assert one.owned == {"orders": {0, 1, 2, 3}}
    assert world.consumer_group().state_name == "Stable"


def test_second_member_waits_for_revoked_partitions() -> None:
    world = ConsumerWorld()
    one, two = world.member("one"), world.member("two")
    one.beat()
    two.beat()
    assert two.owned == {}
    one.beat()
    assert len(one.owned["orders"]) == 2
    two.beat()
    assert two.owned == {}
    one.beat()
    two.beat()
    assert sorted(one.partitions + two.partitions) == [("orders", index) for index in range(4)]
    settle(one, two)
    world.reload()
    settle(one, two)
