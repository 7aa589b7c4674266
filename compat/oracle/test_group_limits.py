"""Time-outs and limits of groups, on brokers with small limits: sessions of a quarter of a second, two members.

The tests do not sleep: a member that must survive another one sends requests until the condition holds, to both
brokers.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from compat.brokers import WITHOUT_RETENTION, KbrokerProcess
from compat.kafka import KafkaNode
from compat.oracle.conftest import Pair, Topic
from compat.oracle.groups import (
    METADATA_TOO_LARGE,
    NONE,
    REBALANCING,
    UNKNOWN_MEMBER,
    NewSeat,
    Seat,
    alike,
    await_coordinator,
    committing,
    joining,
)
from compat.oracle.raw import Reply
from compat.oracle.schema import Message, decode_response, encode_request

GROUP_FULL = 81
SHORT, LONG = 250, 10_000
SETTINGS = {
    "group.max.size": "2",
    "group.min.session.timeout.ms": "100",
    "group.max.session.timeout.ms": "20000",
    "group.initial.rebalance.delay.ms": "400",
    "offset.metadata.max.bytes": "10",
}


@pytest.fixture(scope="module")
def tight(
    kafka_libraries: Path,
    start_broker: Callable[..., KbrokerProcess | KafkaNode],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Pair]:
    """Both brokers with small limits."""
    assert kafka_libraries.is_dir()
    node = KafkaNode(tmp_path_factory.mktemp("tight"), overrides=WITHOUT_RETENTION | SETTINGS)
    node.start()
    broker = start_broker(*(f"{key}={value}" for key, value in SETTINGS.items()))
    yield Pair(node.bootstrap_servers, broker.bootstrap_servers)
    broker.stop()
    node.discard()


@pytest.fixture
def group(tight: Pair, new_topic_name: Callable[[str], str]) -> str:
    name = new_topic_name("tight")
    for address in tight.addresses:
        await_coordinator(address, name)
    return name


@pytest.fixture
def seat(tight: Pair) -> Iterator[NewSeat]:
    seats: list[Seat] = []

    def take(group: str, client_id: str = "alice", *, instance: str | None = None) -> Seat:
        seats.append(Seat(tight, group, client_id, instance=instance))
        return seats[-1]

    yield take
    for each in seats:
        each.close()


def until(member: Seat, code: int) -> None:
    """Send heartbeats until both brokers answer with this code; each heartbeat keeps the member alive."""
    reported = []
    for _ in range(20_000):
        reported = [answer["ErrorCode"] for answer in member.beat()]
        if reported == [code, code]:
            return
    raise AssertionError(f"{reported} and not {code}")


def alone(seat: NewSeat, group: str, name: str = "alice", *, session_ms: int = LONG, **more: str) -> Seat:
    """A stable group of one member."""
    member: Seat = seat(group, name, **more)
    alike(member.join(session_ms=session_ms))
    alike(member.sync(assignments={member: name.encode()}))
    return member


def two(seat: NewSeat, group: str, *, sessions: tuple[int, int], static: bool = False) -> list[Seat]:
    """A stable group of two members, in its first generation, for which it waited; the first leads."""
    instances = ("one", "two") if static else (None, None)
    members = [seat(group, name, instance=it) for name, it in zip(("alice", "bob"), instances, strict=True)]
    for count, (member, session_ms) in enumerate(zip(members, sessions, strict=True)):
        member.send_join(session_ms=session_ms)
        member.await_members(count + 1)
    joined = [alike(member.joined()) for member in members]
    assert [answer["GenerationId"] for answer in joined] == [1, 1]
    assert joined[0]["Leader"] == joined[0]["MemberId"]
    for member in reversed(members):
        member.send_sync(assignments={each: each.client_id.encode() for each in members})
    for member in members:
        assert alike(member.answers())["Assignment"] == member.client_id.encode()
    return members


def test_an_expired_member_is_removed_and_the_others_rejoin(seat: NewSeat, group: str) -> None:
    alice, bob = two(seat, group, sessions=(LONG, SHORT))
    until(alice, REBALANCING)
    assert alike(bob.beat())["ErrorCode"] == UNKNOWN_MEMBER
    again = alike(alice.join(session_ms=LONG))
    assert (again["GenerationId"], len(again["Members"])) == (2, 1)


def test_w12_an_expired_leader_is_replaced(seat: NewSeat, group: str) -> None:
    alice, bob = two(seat, group, sessions=(SHORT, LONG))
    until(bob, REBALANCING)
    again = alike(bob.join(session_ms=LONG))
    assert (again["Leader"], len(again["Members"])) == (again["MemberId"], 1)
    assert alike(alice.beat())["ErrorCode"] == UNKNOWN_MEMBER


def test_an_expired_static_member_is_removed_too(seat: NewSeat, group: str) -> None:
    alice, bob = two(seat, group, sessions=(LONG, SHORT), static=True)
    until(alice, REBALANCING)
    assert alike(bob.beat())["ErrorCode"] == UNKNOWN_MEMBER
    again = alike(alice.join(session_ms=LONG))
    assert [each["GroupInstanceId"] for each in again["Members"]] == ["one"]


def test_commits_keep_a_member_alive_as_heartbeats_do(tight: Pair, seat: NewSeat, group: str) -> None:
    topic = tight.create(group)
    alice, bob = two(seat, group, sessions=(LONG, SHORT))
    began, number = time.monotonic(), 0
    while time.monotonic() < began + 4 * SHORT / 1000:
        assert answer_code(commit(bob, topic, number)) == NONE
        number += 1
    assert alike(alice.beat())["ErrorCode"] == NONE
    until(alice, REBALANCING)


def commit(member: Seat, topic: Topic, offset: int, metadata: str = "") -> list[Message]:
    return member.call(
        "OffsetCommit",
        8,
        lambda side: committing(
            member.group, {topic: [(0, offset, metadata)]}, generation=member.generation, member_id=member.ids[side]
        ),
    )


def test_the_last_expired_member_leaves_an_empty_group(tight: Pair, seat: NewSeat, group: str) -> None:
    member = alone(seat, group, session_ms=SHORT)
    for _ in range(5000):
        described = tight.call("DescribeGroups", 5, {"Groups": [group]})
        if [each["Groups"][0]["GroupState"] for each in described] == ["Empty", "Empty"]:
            break
    reported = alike(described)["Groups"][0]
    assert (reported["GroupState"], reported["ProtocolType"], reported["Members"]) == ("Empty", "consumer", [])
    assert alike(member.beat())["ErrorCode"] == UNKNOWN_MEMBER
    # Generation numbers continue: one for joining, one for becoming empty.
    successor: Seat = seat(group, "bob")
    assert alike(successor.join(session_ms=LONG))["GenerationId"] == 3


def test_an_unused_member_id_expires_after_a_session(seat: NewSeat, group: str) -> None:
    member = alone(seat, group)
    pending = seat(group, "bob")
    pending.joined(pending.call("JoinGroup", 9, joining(group, session_ms=SHORT)))
    # While the id is pending, a rebalance waits for it; afterwards it does not.
    alike(member.join(session_ms=LONG))
    answers = pending.call("JoinGroup", 9, lambda side: joining(group, pending.ids[side], session_ms=SHORT))
    assert alike(answers)["ErrorCode"] == UNKNOWN_MEMBER


def test_w12_a_full_group_refuses_members(seat: NewSeat, group: str) -> None:
    alice, bob = two(seat, group, sessions=(LONG, LONG))
    for version in (0, 3, 4, 5, 9):
        full = alike(seat(group, "carol").call("JoinGroup", version, joining(group)))
        assert (full["ErrorCode"], full["MemberId"], full["GenerationId"]) == (GROUP_FULL, "", -1)
        alike(seat(group, "dave").call("JoinGroup", version, joining(group, instance="three")))
    for member in (alice, bob):
        assert alike(member.beat())["ErrorCode"] == NONE
    # A member may join again; a free place may be taken.
    assert alike(bob.join(session_ms=LONG))["ErrorCode"] == NONE
    alike(bob.leave())
    until(alice, REBALANCING)
    carol = seat(group, "carol")
    carol.send_join(session_ms=LONG)
    carol.await_members(2)
    alice.send_join(session_ms=LONG)
    assert len(alike(alice.joined())["Members"]) == 2
    assert alike(carol.joined())["ErrorCode"] == NONE


def test_w12_pending_ids_count_as_in_kafka(seat: NewSeat, group: str) -> None:
    for name in ("alice", "bob", "carol"):
        alike(seat(group, name).call("JoinGroup", 9, joining(group, session_ms=LONG)))


def test_session_limits_are_the_brokers(tight: Pair, seat: NewSeat, group: str) -> None:
    for session_ms in (99, 20_001):
        alike(seat(group).call("JoinGroup", 5, joining(group, session_ms=session_ms)))
    topic = tight.create(group + "-topic")
    member = alone(seat, group)
    assert answer_code(commit(member, topic, 1, "x" * 10)) == NONE
    assert answer_code(commit(member, topic, 1, "x" * 11)) == METADATA_TOO_LARGE


def answer_code(answers: list[Message]) -> int:
    return int(alike(answers)["Topics"][0]["Partitions"][0]["ErrorCode"])


def test_a_member_with_unreadable_metadata_is_answered(seat: NewSeat, group: str) -> None:
    """A stated difference: Kafka decodes a consumer's metadata, fails, and never answers its JoinGroup."""
    reported = b"range metadata"
    garbage = joining(group, protocols=[("range", reported)], session_ms=SHORT)
    theirs, ours = both(seat(group), garbage)
    assert theirs is None
    if ours is None:
        assert os.environ.get("KBROKER_COMPAT_BROKER") == "kafka"
    else:
        assert (ours["ErrorCode"], [each["Metadata"] for each in ours["Members"]]) == (NONE, [reported])


def both(member: Seat, message: Message) -> list[Message | None]:
    """The answer of each broker within two seconds; None without one."""
    found: list[Message | None] = []
    for connection in member.connections:
        got = connection.exchange(encode_request("JoinGroup", 3, message), timeout_s=2)
        found.append(decode_response("JoinGroup", 3, got.payload) if isinstance(got, Reply) else None)
    return found
