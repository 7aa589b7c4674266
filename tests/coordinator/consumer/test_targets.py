"""Target assignments of large groups, which a thread computes."""

from __future__ import annotations

from kbroker.coordinator.consumer.targets import INLINE_ELEMENTS
from tests.coordinator.consumer.world import ConsumerWorld, Member, settle
from wire.errors import ErrorCode


def large() -> tuple[ConsumerWorld, Member, Member]:
    """A stable group of two members with many partitions; jobs wait from then on."""
    world = ConsumerWorld()
    world.create("orders", INLINE_ELEMENTS)
    one, two = world.member("one", instance_id="a"), world.member("two")
    settle(one, two)
    world.holds_jobs = True
    return world, one, two


def test_members_keep_their_partitions_while_a_thread_computes() -> None:
    world, one, two = large()
    held = one.partitions
    three = world.member("three")
    three.beat()
    one.beat()
    assert len(world.jobs) == 1, "one job for a group"
    assert world.consumer_group().state_name == "Assigning"
    assert (one.partitions, three.partitions) == (held, [])
    world.holds_jobs = False
    world.do_job()
    settle(one, two, three)
    assert len(one.partitions + two.partitions + three.partitions) == INLINE_ELEMENTS


def test_members_that_left_in_the_meantime_get_nothing() -> None:
    world, one, two = large()
    world.member("three").beat()
    world.beat("three", -1)
    world.do_job()
    group = world.consumer_group()
    assert set(group.target) == {"one", "two"}
    assert group.assignment_epoch < group.group_epoch, "the next heartbeat computes again"
    world.holds_jobs = False
    settle(one, two)


def test_a_replaced_static_member_passes_its_target_on() -> None:
    world, _, two = large()
    three = world.member("three")
    three.beat()
    world.beat("one", -2, instance_id="a")
    new = world.member("new", instance_id="a")
    new.beat()
    world.holds_jobs = False
    world.do_job()
    settle(new, two, three)
    assert len(new.partitions + two.partitions + three.partitions) == INLINE_ELEMENTS


def test_a_new_coordinator_computes_again() -> None:
    world, one, two = large()
    three = world.member("three")
    three.beat()
    world.holds_jobs = False
    world.reload()
    settle(one, two, three)


def test_a_result_that_cannot_be_stored_is_computed_again() -> None:
    world, one, two = large()
    three = world.member("three")
    three.beat()
    world.fail_with = ErrorCode.NOT_ENOUGH_REPLICAS
    world.do_job()
    assert world.consumer_group().state_name == "Assigning"
    world.holds_jobs = False
    settle(one, two, three)
