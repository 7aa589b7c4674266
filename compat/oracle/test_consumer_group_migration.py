"""Groups that change between the classic protocol and KIP-848, with members of both: answers of both brokers."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping

from compat.oracle.conftest import Topic
from compat.oracle.consumer_members import LEAVE, Members, group, topics, with_group_version
from compat.oracle.groups import (
    ILLEGAL_GENERATION,
    INCONSISTENT_PROTOCOL,
    MEMBER_ID_REQUIRED,
    NONE,
    NOT_FOUND,
    REBALANCING,
    UNKNOWN_MEMBER,
    beating,
    joining,
    leaving,
    subscription,
    syncing,
)
from compat.oracle.schema import Message

__all__ = ["group", "topics", "with_group_version"]


def owned_by(metadata_topics: list[str], owned: Mapping[str, Iterable[int]] | None = None) -> bytes:
    """A consumer's metadata of version 3."""
    listed = b"".join(
        struct.pack(">h", len(name))
        + name.encode()
        + struct.pack(">i", len(list(of)))
        + struct.pack(f">{len(list(of))}i", *of)
        for name, of in (owned or {}).items()
    )
    head = struct.pack(">h", 3) + subscription(*metadata_topics)[2:]
    return head + struct.pack(">i", len(owned or {})) + listed + struct.pack(">ih", -1, -1)


def test_classic_members_join_a_consumer_group(group: Members, topics: list[Topic]) -> None:
    name = topics[0].name
    group.beat("a", topics=[name])
    protocols = [("range", owned_by([name]))]
    asked = group.pair.call("JoinGroup", 9, joining(group.group, protocols=protocols))
    assert [answer["ErrorCode"] for answer in asked] == [MEMBER_ID_REQUIRED] * 2
    member_id = "classic"
    joined = group.classic("JoinGroup", 9, joining(group.group, member_id, protocols=protocols))
    assert (joined["ErrorCode"], joined["Leader"], joined["Members"]) == (NONE, "", [])
    synced = group.classic("SyncGroup", 5, syncing(group.group, joined["GenerationId"], member_id))
    assert synced["ErrorCode"] == NONE
    assert group.classic("Heartbeat", 4, beating(group.group, joined["GenerationId"], member_id))["ErrorCode"] == NONE
    group.beat("a")
    group.beat("a")
    beat = group.classic("Heartbeat", 4, beating(group.group, joined["GenerationId"], member_id))
    assert beat["ErrorCode"] == REBALANCING
    joined = group.classic("JoinGroup", 9, joining(group.group, member_id, protocols=protocols))
    synced = group.classic("SyncGroup", 5, syncing(group.group, joined["GenerationId"], member_id))
    assert synced["Assignment"].count(name.encode()) == 1
    group.describe()
    for wrong in (0, 99):
        answer = group.classic("Heartbeat", 4, beating(group.group, wrong, member_id))
        assert answer["ErrorCode"] == ILLEGAL_GENERATION
        group.classic("SyncGroup", 5, syncing(group.group, wrong, member_id))
    for other in (("other", protocols[0][1]),):
        answer = group.classic("JoinGroup", 9, joining(group.group, "second", protocols=[other]))
        assert answer["ErrorCode"] == INCONSISTENT_PROTOCOL
    group.classic("JoinGroup", 9, joining(group.group, "second", protocols=protocols, kind="connect"))
    group.classic("SyncGroup", 5, syncing(group.group, joined["GenerationId"], member_id, protocol="other"))
    assert group.classic("Heartbeat", 4, beating(group.group, 1, "a"))["ErrorCode"] == UNKNOWN_MEMBER
    left = group.classic("LeaveGroup", 5, leaving(group.group, (member_id, None), ("nobody", None)))
    assert [one["ErrorCode"] for one in left["Members"]] == [UNKNOWN_MEMBER, NONE] or left["ErrorCode"] == NONE
    group.describe()


def test_a_group_becomes_classic_when_the_last_new_member_leaves(group: Members, topics: list[Topic]) -> None:
    name = topics[0].name
    group.beat("a", topics=[name])
    protocols = [("range", owned_by([name]))]
    group.classic("JoinGroup", 9, joining(group.group, "classic", protocols=protocols))
    assert group.beat("a", LEAVE)["ErrorCode"] == NONE
    assert group.describe()["ErrorCode"] == NOT_FOUND
    described = group.classic("DescribeGroups", 6, {"Groups": [group.group]})["Groups"][0]
    assert described["GroupState"] == "PreparingRebalance"
    answer = group.pair.call("ListGroups", 5, {"TypesFilter": ["classic"]})
    assert all(group.group in {one["GroupId"] for one in each["Groups"]} for each in answer)


def test_a_classic_group_becomes_a_consumer_group(group: Members, topics: list[Topic]) -> None:
    name = topics[0].name
    protocols = [("range", owned_by([name]))]
    required = group.pair.call("JoinGroup", 9, joining(group.group, protocols=protocols))
    ids = [answer["MemberId"] for answer in required]

    def of(side: int, message: Callable[[str], Message]) -> Message:
        return message(ids[side])

    joined = group.pair.call(
        "JoinGroup", 9, lambda side: of(side, lambda id: joining(group.group, id, protocols=protocols))
    )
    assert [answer["GenerationId"] for answer in joined] == [1, 1]
    part = struct.pack(">hih", 0, 1, len(name)) + name.encode() + struct.pack(">iiiiiii", 4, 0, 1, 2, 3, -1, 0)[:-4]
    group.pair.call("SyncGroup", 5, lambda side: of(side, lambda id: syncing(group.group, 1, id, {id: part})))
    answer = group.beat("a", topics=[name])
    assert (answer["ErrorCode"], answer["MemberEpoch"]) == (NONE, 2)
    beats = group.pair.call("Heartbeat", 4, lambda side: of(side, lambda id: beating(group.group, 1, id)))
    assert [one["ErrorCode"] for one in beats] == [REBALANCING] * 2
    rejoined = group.pair.call(
        "JoinGroup", 9, lambda side: of(side, lambda id: joining(group.group, id, protocols=protocols))
    )
    assert len({one["GenerationId"] for one in rejoined}) == 1
    group.beat("a")
    for answer in group.pair.call("ConsumerGroupDescribe", 1, {"GroupIds": [group.group]}):
        kinds = sorted(member["MemberType"] for member in answer["Groups"][0]["Members"])
        assert kinds == [0, 1]


def test_an_empty_group_changes_its_protocol(group: Members, topics: list[Topic]) -> None:
    name = topics[0].name
    group.beat("a", topics=[name])
    group.beat("a", LEAVE)
    asked = group.pair.call("JoinGroup", 9, joining(group.group, protocols=[("range", owned_by([name]))]))
    assert [answer["ErrorCode"] for answer in asked] == [MEMBER_ID_REQUIRED] * 2
    assert group.describe()["ErrorCode"] == NOT_FOUND
    for side, answer in enumerate(asked):
        assert answer["MemberId"], side
    group.pair.call("LeaveGroup", 5, lambda side: leaving(group.group, (asked[side]["MemberId"], None)))
    answers = group.pair.call("JoinGroup", 9, joining(group.group, "nobody"))
    assert [answer["ErrorCode"] for answer in answers] == [UNKNOWN_MEMBER] * 2
