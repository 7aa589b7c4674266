"""Regular expressions: which topics they subscribe to, when they are matched, and which are refused."""

from __future__ import annotations

from contextlib import suppress
from time import thread_time

import pytest

from kbroker.coordinator.consumer.regexes import ASKED_AT_ONCE, require_valid
from tests.coordinator.consumer.world import ConsumerWorld, Member, settle
from wire.errors import ErrorCode, KafkaError

HOSTILE = [
    "a?" * 500 + "a" * 24,
    "(.*)" * 200,
    "\\p{Greek}" * 100,
    "((((a{1,30}){1,30}){1,30}){1,30})",
    "(a{1,30}){1,30}" * 60,
    "(" * 500 + ")" * 500,
    "(a?" * 200 + ")*" * 200,
    "(?i)" + "[^x]" * 255,
    "x" * 1025,
    "(a|b|.){1,9}" * 80,
]


def by_regex(world: ConsumerWorld, member_id: str, regex: str) -> Member:
    return Member(world, member_id, None, regex=regex)


def test_a_regular_expression_subscribes_to_all_its_topics() -> None:
    world = ConsumerWorld()
    world.create("orders-eu", 2)
    world.create("x-orders", 1)
    one = by_regex(world, "one", "orders.*")
    settle(one)
    assert {name for name, _ in one.partitions} == {"orders", "orders-eu"}
    world.reload()
    settle(one)
    assert {name for name, _ in one.partitions} == {"orders", "orders-eu"}


def test_a_topic_that_the_member_may_not_describe_does_not_match() -> None:
    world = ConsumerWorld()
    world.create("orders-eu", 2)
    world.may_describe = lambda topic: topic != "orders-eu"
    one = by_regex(world, "one", "orders.*")
    settle(one)
    assert {name for name, _ in one.partitions} == {"orders"}
    world.reload()
    settle(one)
    assert {name for name, _ in one.partitions} == {"orders"}


def test_no_decision_asks_about_the_rights_on_many_topics() -> None:
    world = ConsumerWorld()
    for number in range(ASKED_AT_ONCE):
        world.create(f"orders-{number}", 1)
    asked: list[str] = []
    world.may_describe = lambda topic: asked.append(topic) or topic != "orders-7"  # type: ignore[func-returns-value]
    world.holds_jobs = True
    one = by_regex(world, "one", "orders.*")
    one.beat()
    most = 0
    while world.jobs:
        before = len(asked)
        world.do_job()
        most = max(most, len(asked) - before)
    assert len(asked) == len(set(asked)) == ASKED_AT_ONCE + 1
    assert most == ASKED_AT_ONCE
    settle(one)
    names = {name for name, _ in one.partitions}
    assert (len(names), "orders-7" in names) == (ASKED_AT_ONCE, False)


def test_new_topics_are_found_after_ten_seconds() -> None:
    world = ConsumerWorld()
    one = by_regex(world, "one", "orders.*")
    settle(one)
    world.create("orders-eu", 2)
    one.beat()
    assert {name for name, _ in one.partitions} == {"orders"}
    world.advance(10_001)
    settle(one)
    assert {name for name, _ in one.partitions} == {"orders", "orders-eu"}


def test_expressions_of_a_group_are_matched_once_at_a_time() -> None:
    world = ConsumerWorld()
    world.holds_jobs = True
    one, two = by_regex(world, "one", "o.*"), by_regex(world, "two", "x.*")
    one.beat()
    two.beat()
    assert len(world.jobs) == 1
    world.do_job()
    world.advance(10_001)
    one.beat()
    assert len(world.jobs) == 1, "the second expression is not resolved"


def test_an_expression_disappears_with_its_last_member() -> None:
    world = ConsumerWorld()
    one, two = by_regex(world, "one", "o.*"), world.member("two")
    settle(one, two)
    assert world.consumer_group().resolved
    one.beat(regex="", topics=["orders"])
    assert not world.consumer_group().resolved
    settle(one, two)
    world.reload()
    assert not world.consumer_group().resolved


def test_names_and_an_expression_together_subscribe_to_both() -> None:
    world = ConsumerWorld()
    world.create("events", 2)
    one = Member(world, "one", ["events"], regex="orders")
    settle(one)
    assert {name for name, _ in one.partitions} == {"events", "orders"}


def test_a_failed_append_allows_the_next_match() -> None:
    world = ConsumerWorld()
    world.fail_with = ErrorCode.KAFKA_STORAGE_ERROR
    one = by_regex(world, "one", "o.*")
    assert one.beat().error_code == ErrorCode.NOT_COORDINATOR
    settle(one)
    assert one.partitions


@pytest.mark.parametrize("regex", ["(", "[a", "*", "\\", "(?=a)", "a{2,1}"])
def test_an_invalid_expression_is_refused_and_leaves_nothing(regex: str) -> None:
    world = ConsumerWorld()
    answer = by_regex(world, "one", regex).beat()
    assert answer.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION
    assert answer.error_message.startswith(f"SubscribedTopicRegex `{regex}` is not a valid regular expression: ")
    assert world.log == []
    assert world.shard.group_ids() == []


@pytest.mark.parametrize("regex", HOSTILE, ids=lambda regex: f"{regex[:12]} {len(regex)}")
def test_hostile_expressions_are_refused_or_compile_quickly(regex: str) -> None:
    require_valid("a")  # loads the module
    began = thread_time()
    with suppress(KafkaError):
        require_valid(regex)
    assert thread_time() - began < 0.1, "20 times the time measured"


def test_a_long_list_of_topics_is_accepted() -> None:
    names = "|".join(f"topic-{index:03}" for index in range(100))
    assert require_valid(names).fullmatch("topic-042")
    assert not require_valid(names).fullmatch("topic-0420")
