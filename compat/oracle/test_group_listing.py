"""ListGroups, DescribeGroups and DeleteGroups in every version, for every state of a group."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from compat.oracle.conftest import Pair, Topic
from compat.oracle.groups import (
    NON_EMPTY,
    NONE,
    NOT_FOUND,
    RANGE,
    ROUND_ROBIN,
    NewGroup,
    NewSeat,
    Seat,
    alike,
    committing,
    fetching,
)
from compat.oracle.schema import Message

LISTS, DESCRIBES, DELETES = range(6), range(7), range(3)


@pytest.fixture(scope="module")
def topic(pair: Pair, new_topic_name: Callable[[str], str]) -> Topic:
    return pair.create(new_topic_name("listed"))


def described(pair: Pair, version: int, *groups: str, operations: bool = False) -> list[Message]:
    """The descriptions of the groups; returns Kafka's answer, which the broker's equals."""
    message = {"Groups": list(groups), "IncludeAuthorizedOperations": operations}
    found: list[Message] = alike(pair.call("DescribeGroups", version, message))["Groups"]
    return found


def listed(pair: Pair, version: int, *groups: str, states: list[str] = [], types: list[str] = []) -> dict[str, Message]:  # noqa: B006
    """The given groups that are listed."""
    answers = pair.call("ListGroups", version, {"StatesFilter": states, "TypesFilter": types})
    for answer in answers:
        answer["Groups"] = [each for each in answer["Groups"] if each["GroupId"] in groups]
    return {each["GroupId"]: each for each in alike(answers)["Groups"]}


def commit(pair: Pair, group: str, topic: Topic) -> None:
    alike(pair.call("OffsetCommit", 8, committing(group, {topic: [(0, 1, "")]})))


def states(pair: Pair, seat: NewSeat, new_group: NewGroup, topic: Topic) -> dict[str, str]:
    """One group in each state."""
    names = {state: new_group(state.lower()) for state in ("Empty", "Left", "Stable", "Completing", "Preparing")}
    commit(pair, names["Empty"], topic)
    left: Seat = seat(names["Left"])
    alike(left.join())
    alike(left.sync(assignments={left: b"x"}))
    alike(left.leave())
    for state in ("Stable", "Preparing"):
        member = seat(names[state], "the-client", instance="the-instance")
        alike(member.join(protocols=(RANGE, ROUND_ROBIN)))
        alike(member.sync(assignments={member: b"its assignment"}))
    alike(seat(names["Completing"]).join())
    newcomer = seat(names["Preparing"], "newcomer")
    newcomer.send_join(protocols=(RANGE, ROUND_ROBIN))
    newcomer.await_members(2)
    return names


def test_every_version_describes_and_lists_groups_in_every_state(
    pair: Pair, new_group: NewGroup, seat: NewSeat, topic: Topic
) -> None:
    names = states(pair, seat, new_group, topic)
    reported = {
        "Empty": "Empty",
        "Left": "Empty",
        "Stable": "Stable",
        "Completing": "CompletingRebalance",
        "Preparing": "PreparingRebalance",
    }
    for version in DESCRIBES:
        for operations in (False, True) if version >= 3 else (False,):
            found = {each["GroupId"]: each for each in described(pair, version, *names.values(), operations=operations)}
            assert {state: found[name]["GroupState"] for state, name in names.items()} == reported
            stable = found[names["Stable"]]
            assert (stable["ProtocolType"], stable["ProtocolData"]) == ("consumer", "range")
            member = stable["Members"][0]
            assert (member["ClientId"], member["ClientHost"]) == ("the-client", "/127.0.0.1")
            assert (member["MemberMetadata"], member["MemberAssignment"]) == (RANGE[1], b"its assignment")
    for version in LISTS:
        everything = listed(pair, version, *names.values())
        assert everything.keys() == set(names.values())
        if version >= 4:
            assert {state: everything[name]["GroupState"] for state, name in names.items()} == reported
    for wanted in (
        ["Stable"],
        ["Empty", "PreparingRebalance"],
        ["stable"],
        ["completingrebalance", "DEAD"],
        ["nonsense"],
        [""],
        ["Assigning"],
    ):
        for version in (4, 5):
            listed(pair, version, *names.values(), states=wanted)
    assert listed(pair, 4, *names.values(), states=["Stable"]).keys() == {names["Stable"]}
    for kinds in (["classic"], ["consumer"], ["Classic", "share"], ["nonsense"], [""]):
        listed(pair, 5, *names.values(), types=kinds)
        listed(pair, 5, *names.values(), types=kinds, states=["Empty"])
    assert listed(pair, 5, *names.values(), types=["classic"]).keys() == set(names.values())


@pytest.mark.parametrize("version", DESCRIBES)
def test_unknown_groups_are_dead(pair: Pair, new_group: NewGroup, version: int) -> None:
    group = new_group("absent")
    found = described(pair, version, group)
    assert (found[0]["GroupState"], found[0]["ErrorCode"]) == ("Dead", NOT_FOUND if version >= 6 else NONE)
    described(pair, version)
    described(pair, version, "", group)


def test_a_group_of_any_kind_is_described(pair: Pair, new_group: NewGroup, seat: NewSeat) -> None:
    member = seat(new_group("kinds"), "\u00fcml\u00e4ut/..")
    protocols = [("default", b"\x00\xff anything"), ("other", b"")]
    alike(member.join(kind="connect", protocols=protocols))
    alike(member.sync(kind="connect", protocol="default", assignments={member: b"\xff"}))
    found = described(pair, 5, member.group)[0]
    assert (found["ProtocolType"], found["ProtocolData"]) == ("connect", "default")
    assert [each["MemberMetadata"] for each in found["Members"]] == [protocols[0][1]]
    assert listed(pair, 5, member.group)[member.group]["ProtocolType"] == "connect"
    alike(member.leave())
    described(pair, 5, member.group)
    listed(pair, 5, member.group)


def delete(pair: Pair, version: int, *groups: str) -> dict[str, int]:
    """Delete groups; returns the code of each from Kafka, which the broker's equals."""
    answer = alike(pair.call("DeleteGroups", version, {"GroupsNames": list(groups)}))
    return {each["GroupId"]: each["ErrorCode"] for each in answer["Results"]}


@pytest.mark.parametrize("version", DELETES)
def test_only_empty_groups_are_deleted_with_their_offsets(
    pair: Pair, new_group: NewGroup, seat: NewSeat, topic: Topic, version: int
) -> None:
    names = states(pair, seat, new_group, topic)
    alike(
        pair.call("DeleteGroups", version, {"GroupsNames": [""]})
    )  # other tests may have committed with an empty group id
    codes = delete(pair, version, *names.values(), "never-seen", "")
    assert codes == {
        names["Empty"]: NONE,
        names["Left"]: NONE,
        names["Stable"]: NON_EMPTY,
        names["Completing"]: NON_EMPTY,
        names["Preparing"]: NON_EMPTY,
        "never-seen": NOT_FOUND,
        "": NOT_FOUND,
    }
    assert delete(pair, version, names["Empty"]) == {names["Empty"]: NOT_FOUND}
    fetched = alike(pair.call("OffsetFetch", 7, fetching(names["Empty"], None)))
    assert fetched["Topics"] == []
    assert listed(pair, 4, *names.values()).keys() == {names[state] for state in ("Stable", "Completing", "Preparing")}
    assert delete(pair, version) == {}
    # An empty group id is valid for commits without a member.
    commit(pair, "", topic)
    assert delete(pair, version, "") == {"": NONE}
    # A deleted group id can be reused for a new group.
    again: Seat = seat(names["Left"])
    assert alike(again.join())["GenerationId"] == 1


def test_a_group_twice_in_a_request_is_deleted_once(pair: Pair, new_group: NewGroup, topic: Topic) -> None:
    group = new_group("twice")
    commit(pair, group, topic)
    alike(pair.call("DeleteGroups", 2, {"GroupsNames": [group, group]}))
    assert delete(pair, 2, group) == {group: NOT_FOUND}
