"""Membership of groups: JoinGroup, SyncGroup, Heartbeat and LeaveGroup in every version, with valid and invalid
requests.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from compat.oracle.conftest import Pair
from compat.oracle.groups import (
    CHANGED,
    FENCED,
    ILLEGAL_GENERATION,
    INCONSISTENT_PROTOCOL,
    INVALID_GROUP,
    INVALID_SESSION,
    MEMBER_ID_REQUIRED,
    NONE,
    RANGE,
    REBALANCING,
    ROUND_ROBIN,
    UNKNOWN_MEMBER,
    NewGroup,
    NewSeat,
    Protocols,
    Seat,
    alike,
    beating,
    joining,
    leaving,
    syncing,
)
from compat.oracle.schema import Message

OTHER = [("sticky", RANGE[1])]
# A version of JoinGroup with the versions of the other APIs in clients of the same age.
GENERATIONS = [(0, 0, 0, 0), (1, 1, 1, 1), (2, 1, 1, 1), (3, 2, 2, 2), (4, 2, 2, 2)]
GENERATIONS += [(5, 3, 3, 3), (6, 4, 4, 4), (7, 5, 4, 4), (8, 5, 4, 5), (9, 5, 4, 5)]


@pytest.mark.parametrize("versions", GENERATIONS, ids=str)
def test_a_member_joins_syncs_beats_and_leaves_in_every_version(
    new_group: NewGroup, seat: NewSeat, versions: tuple[int, int, int, int]
) -> None:
    join, sync, beat, leave = versions
    member = seat(new_group("alone"))
    if join >= 4:
        answers = member.joined(member.call("JoinGroup", join, joining(member.group)))
        asked = alike(answers)
        assert (asked["ErrorCode"], asked["GenerationId"]) == (MEMBER_ID_REQUIRED, -1)
        assert asked["MemberId"].startswith("alice-")
    joined = alike(member.join(join, protocols=(RANGE, ROUND_ROBIN)))
    assert (joined["ErrorCode"], joined["GenerationId"], joined["ProtocolName"]) == (NONE, 1, "range")
    assert [each["Metadata"] for each in joined["Members"]] == [RANGE[1]]
    assert alike(member.sync(sync, {member: b"assigned \x00\xff"}))["Assignment"] == b"assigned \x00\xff"
    assert alike(member.beat(beat))["ErrorCode"] == NONE
    # A member of a stable group that syncs once more gets the same assignment.
    assert alike(member.sync(sync))["Assignment"] == b"assigned \x00\xff"
    # A leader that rejoins with unchanged metadata starts a new generation.
    assert alike(member.join(join, protocols=(RANGE, ROUND_ROBIN)))["GenerationId"] == 2
    assert alike(member.beat(beat, generation=1))["ErrorCode"] == ILLEGAL_GENERATION
    left = alike(member.leave(leave))
    assert left["ErrorCode"] == NONE
    assert alike(member.beat(beat))["ErrorCode"] == UNKNOWN_MEMBER


@pytest.mark.parametrize("version", range(10))
@pytest.mark.parametrize(
    ("message", "code"),
    [
        pytest.param(joining(""), INVALID_GROUP, id="no group id"),
        pytest.param(joining("", session_ms=1), INVALID_GROUP, id="no group id and a short session"),
        pytest.param(joining("g", session_ms=5_999), INVALID_SESSION, id="a session too short"),
        pytest.param(joining("g", session_ms=1_800_001), INVALID_SESSION, id="a session too long"),
        pytest.param(joining("g", session_ms=-1, protocols=()), INVALID_SESSION, id="no protocols and no session"),
        pytest.param(joining("g", "nobody"), UNKNOWN_MEMBER, id="an unknown member id"),
        pytest.param(joining("g", protocols=()), INCONSISTENT_PROTOCOL, id="no protocols"),
        pytest.param(joining("g", kind=""), INCONSISTENT_PROTOCOL, id="no protocol type"),
        pytest.param(joining("g", "nobody", kind=""), None, id="no protocol type and an unknown id"),
        pytest.param(joining("g", "nobody", protocols=()), None, id="no protocols and an unknown id"),
        pytest.param(joining("g", rebalance_ms=-7, kind=""), INCONSISTENT_PROTOCOL, id="minus seven"),
    ],
)
def test_a_wrong_first_join_fails_as_in_kafka(
    new_group: NewGroup, seat: NewSeat, message: Message, code: int | None, version: int
) -> None:
    member = seat(new_group("wrong"))
    answer = alike(member.call("JoinGroup", version, {**message, "GroupId": message["GroupId"] and member.group}))
    if code is not None:
        assert answer["ErrorCode"] == code
    assert answer["ErrorCode"] != NONE


@pytest.mark.parametrize("version", [5, 7, 9])
@pytest.mark.parametrize("instance", ["", ".", "..", "a b", "x" * 249, "x" * 250, "ok.-_9", "\u00fc"])
def test_x5_names_of_instances_are_checked_as_in_kafka(
    new_group: NewGroup, seat: NewSeat, instance: str, version: int
) -> None:
    member = seat(new_group("named"))
    alike(member.call("JoinGroup", version, joining(member.group, instance=instance)))


@pytest.mark.parametrize("group", ["a b", "../x", "x" * 300, "\u00fcber", "nul\0", " "])
def test_x5_any_text_is_a_group_id(pair: Pair, new_group: NewGroup, seat: NewSeat, group: str) -> None:
    new_group("first")
    member = seat(group)
    alike(member.join())
    assert alike(member.sync(assignments={member: b"it"}))["Assignment"] == b"it"
    assert alike(member.leave())["ErrorCode"] == NONE
    deleted = alike(pair.call("DeleteGroups", 2, {"GroupsNames": [group]}))
    assert deleted["Results"][0]["ErrorCode"] == NONE


WRONG_TO_A_STABLE_GROUP: dict[str, Callable[[str, int, str], tuple[str, Message]]] = {
    "an unknown member": lambda group, generation, _: ("beat", beating(group, generation, "nobody")),
    "an empty member": lambda group, generation, _: ("beat", beating(group, generation, "")),
    "a former generation": lambda group, generation, me: ("beat", beating(group, generation - 1, me)),
    "a later generation": lambda group, generation, me: ("beat", beating(group, generation + 1, me)),
    "generation -1": lambda group, _, me: ("beat", beating(group, -1, me)),
    "an unknown member of a wrong generation": lambda group, _, __: ("beat", beating(group, 77, "nobody")),
    "an unknown instance": lambda group, generation, me: ("beat", beating(group, generation, me, instance="i")),
    "an unknown group": lambda group, generation, me: ("beat", beating(group + "x", generation, me)),
    "no group": lambda _, generation, me: ("beat", beating("", generation, me)),
    "sync of an unknown member": lambda group, generation, _: ("sync", syncing(group, generation, "nobody")),
    "sync of a former generation": lambda group, generation, me: ("sync", syncing(group, generation - 1, me)),
    "sync of an unknown member and generation": lambda group, _, __: ("sync", syncing(group, 77, "nobody")),
    "sync of another type": lambda group, generation, me: ("sync", syncing(group, generation, me, kind="connect")),
    "sync of another protocol": lambda group, generation, me: ("sync", syncing(group, generation, me, protocol="x")),
    "sync of no type": lambda group, generation, me: ("sync", syncing(group, generation, me, kind=None)),
    "sync of no protocol": lambda group, generation, me: ("sync", syncing(group, generation, me, protocol=None)),
    "sync of another type and generation": lambda group, _, me: ("sync", syncing(group, 77, me, kind="connect")),
    "sync of another type and member": lambda group, _, __: ("sync", syncing(group, 1, "nobody", kind="connect")),
    "sync of an unknown group": lambda group, generation, me: ("sync", syncing(group + "x", generation, me)),
    "sync of no group": lambda _, generation, me: ("sync", syncing("", generation, me)),
    "sync of no group and type": lambda _, generation, me: ("sync", syncing("", generation, me, kind=None)),
    "sync of an instance": lambda group, generation, me: ("sync", syncing(group, generation, me, instance="i")),
    "join of an unknown member": lambda group, _, __: ("join", joining(group, "nobody")),
    "join of another type": lambda group, _, me: ("join", joining(group, me, kind="connect")),
    "join of a newcomer of another type": lambda group, _, __: ("join", joining(group, kind="connect")),
    "join of a newcomer of another protocol": lambda group, _, __: ("join", joining(group, protocols=OTHER)),
    "join with an id and an instance": lambda group, _, me: ("join as instance", joining(group, me, instance="i")),
    "leave of an unknown member": lambda group, _, __: ("leave", leaving(group, ("nobody", None))),
    "leave of an empty member": lambda group, _, __: ("leave", leaving(group, ("", None))),
    "leave of an unknown group": lambda group, _, me: ("leave", leaving(group + "x", (me, None))),
    "leave of no group": lambda _, __, me: ("leave", leaving("", (me, None))),
    "leave of an unknown instance": lambda group, _, me: ("leave as instance", leaving(group, (me, "i"))),
    "leave without members": lambda group, _, __: ("leave", leaving(group)),
}
ACTIONS = {
    "beat": ("Heartbeat", (0, 3, 4)),
    "sync": ("SyncGroup", (0, 3, 5)),
    "join": ("JoinGroup", (0, 5, 9)),
    "join as instance": ("JoinGroup", (5, 9)),
    "leave": ("LeaveGroup", (0, 3, 5)),
    "leave as instance": ("LeaveGroup", (3, 5)),
}


@pytest.mark.parametrize("wrong", WRONG_TO_A_STABLE_GROUP.values(), ids=WRONG_TO_A_STABLE_GROUP.keys())
def test_invalid_requests_to_a_stable_group_fail_as_in_kafka(
    new_group: NewGroup, seat: NewSeat, wrong: Callable[[str, int, str], tuple[str, Message]]
) -> None:
    member = seat(new_group("stable"))
    alike(member.join(protocols=(RANGE, ROUND_ROBIN)))
    alike(member.sync(assignments={member: b"mine"}))
    alike(member.join(protocols=(RANGE, ROUND_ROBIN)))
    alike(member.sync(assignments={member: b"mine"}))
    api, versions = ACTIONS[wrong(member.group, member.generation, "")[0]]
    stranger = seat(member.group, "bob")
    for version in versions:
        alike(stranger.call(api, version, lambda side: wrong(member.group, member.generation, member.ids[side])[1]))
        assert alike(member.beat())["ErrorCode"] == NONE


def formed(seat: NewSeat, group: str, *names: str) -> list[Seat]:
    """A stable group; its first member leads it."""
    members = [seat(group, name) for name in names]
    members[0].join()
    members[0].sync(assignments={members[0]: b""})
    for member in members[1:]:
        member.send_join()
    members[0].await_members(len(members))
    members[0].send_join()
    for member in members:
        alike(member.joined())
    for member in members[1:]:
        member.send_sync()
    members[0].send_sync(assignments={member: member.client_id.encode() for member in members})
    for member in members:
        assert alike(member.answers())["Assignment"] == member.client_id.encode()
    return members


def await_rebalance(member: Seat) -> None:
    """Wait until both brokers ask the member to rejoin."""
    for _ in range(2000):
        if [answer["ErrorCode"] for answer in member.beat()] == [REBALANCING, REBALANCING]:
            return
    raise AssertionError("no rebalance began")


def test_a_new_member_makes_the_others_rejoin(new_group: NewGroup, seat: NewSeat) -> None:
    alice, bob = formed(seat, new_group("pair"), "alice", "bob")
    carol = seat(alice.group, "carol")
    carol.send_join()
    assert carol.silent()
    carol.await_members(3)
    for member in (alice, bob):
        assert alike(member.beat())["ErrorCode"] == REBALANCING
        assert alike(member.sync())["ErrorCode"] == REBALANCING
    bob.send_join()
    assert bob.silent()
    alice.send_join()
    led, followed, new = (alike(member.joined()) for member in (alice, bob, carol))
    assert sorted(each["MemberId"][:3] for each in led["Members"]) == ["ali", "bob", "car"]
    assert [followed["Members"], new["Members"]] == [[], []]
    assert led["Leader"] == led["MemberId"] == followed["Leader"]
    assert led["GenerationId"] == followed["GenerationId"] == new["GenerationId"] == alice.generation
    # Before the leader has assigned, heartbeats keep members alive and SyncGroup requests wait.
    assert alike(bob.beat())["ErrorCode"] == NONE
    bob.send_sync()
    assert bob.silent()
    # A member without an entry gets an empty assignment; entries of unknown members are ignored.
    alice.send_sync(assignments={alice: b"a", bob: b"b"})
    assert [alike(member.answers())["Assignment"] for member in (bob, alice)] == [b"b", b"a"]
    assert alike(carol.sync())["Assignment"] == b""
    assert alike(carol.beat())["ErrorCode"] == NONE


@pytest.mark.parametrize("leaver", [0, 1])
def test_a_leaving_member_causes_a_rebalance_at_once(new_group: NewGroup, seat: NewSeat, leaver: int) -> None:
    members = formed(seat, new_group("left"), "alice", "bob")
    gone, stays = members[leaver], members[1 - leaver]
    assert alike(gone.leave())["ErrorCode"] == NONE
    assert alike(gone.beat())["ErrorCode"] == UNKNOWN_MEMBER
    assert alike(gone.leave(2))["ErrorCode"] == UNKNOWN_MEMBER
    assert alike(stays.beat())["ErrorCode"] == REBALANCING
    again = alike(stays.join())
    assert again["Leader"] == again["MemberId"] == stays.ids[0]
    assert len(again["Members"]) == 1


def test_a_member_that_does_not_rejoin_in_time_is_removed(new_group: NewGroup, seat: NewSeat) -> None:
    group = new_group("slow")
    alice, bob = seat(group, "alice"), seat(group, "bob")
    alice.join(rebalance_ms=500)
    alice.sync(assignments={alice: b"all"})
    bob.send_join(rebalance_ms=500)
    joined = alike(bob.joined())
    assert (joined["ErrorCode"], joined["Leader"], len(joined["Members"])) == (NONE, joined["MemberId"], 1)
    assert alike(alice.beat())["ErrorCode"] == UNKNOWN_MEMBER
    answer = alike(alice.call("JoinGroup", 9, lambda side: joining(group, alice.ids[side])))
    assert answer["ErrorCode"] == UNKNOWN_MEMBER


def test_a_leader_that_does_not_sync_in_time_is_removed(new_group: NewGroup, seat: NewSeat) -> None:
    group = new_group("unsynced")
    alice, bob = seat(group, "alice"), seat(group, "bob")
    alice.join(rebalance_ms=1_500)
    alice.sync(assignments={alice: b"all"})
    bob.send_join(rebalance_ms=1_500)
    bob.await_members(2)
    alice.send_join(rebalance_ms=1_500)
    alike(alice.joined())
    alike(bob.joined())
    bob.send_sync()
    assert alike(bob.answers())["ErrorCode"] == REBALANCING
    assert alike(alice.beat())["ErrorCode"] == UNKNOWN_MEMBER
    assert len(alike(bob.join(rebalance_ms=1_500))["Members"]) == 1


def test_the_most_preferred_common_protocol_is_chosen(new_group: NewGroup, seat: NewSeat) -> None:
    group = new_group("voted")
    both, other = (RANGE, ROUND_ROBIN), (ROUND_ROBIN, RANGE)
    alice, bob, carol = seat(group, "alice"), seat(group, "bob"), seat(group, "carol")
    alice.join(protocols=both)
    alice.sync(assignments={alice: b""})
    bob.send_join(protocols=other)
    carol.send_join(protocols=other)
    carol.await_members(3)
    alice.send_join(protocols=both)
    led = alike(alice.joined())
    assert led["ProtocolName"] == "roundrobin"
    assert {each["Metadata"] for each in led["Members"]} == {ROUND_ROBIN[1]}
    assert [alike(member.joined())["ProtocolName"] for member in (bob, carol)] == ["roundrobin"] * 2
    alike(alice.sync(protocol="roundrobin", assignments={alice: b"1"}))
    dave = seat(group, "dave")
    refused = alike(dave.call("JoinGroup", 3, joining(group, protocols=OTHER)))
    assert refused["ErrorCode"] == INCONSISTENT_PROTOCOL


def test_an_unchanged_rejoining_follower_causes_no_rebalance(new_group: NewGroup, seat: NewSeat) -> None:
    alice, bob = formed(seat, new_group("again"), "alice", "bob")
    reported = alike(bob.join())
    assert (reported["ErrorCode"], reported["GenerationId"]) == (NONE, alice.generation)
    assert alike(alice.beat())["ErrorCode"] == NONE
    bob.send_join(protocols=(CHANGED,))
    await_rebalance(alice)
    alice.send_join()
    members = alike(alice.joined())["Members"]
    assert sorted(each["Metadata"] for each in members) == sorted([CHANGED[1], RANGE[1]])
    alike(bob.joined())


def static(seat: NewSeat, group: str, *names: str, protocols: Protocols = (RANGE,)) -> list[Seat]:
    """A stable group of static members; the first leads."""
    members = [seat(group, name, instance=f"instance-{name}") for name in names]
    members[0].join(protocols=protocols)
    members[0].sync(assignments={members[0]: b""})
    for member in members[1:]:
        member.send_join(protocols=protocols)
    members[0].await_members(len(members))
    members[0].send_join(protocols=protocols)
    for member in members:
        alike(member.joined())
    members[0].send_sync(assignments={member: member.client_id.encode() for member in members})
    for member in members[1:]:
        member.send_sync()
    for member in members:
        assert alike(member.answers())["Assignment"] == member.client_id.encode()
    return members


@pytest.mark.parametrize("version", [5, 8, 9])
@pytest.mark.parametrize("who", [0, 1])
def test_a_returning_static_member_causes_no_rebalance(
    new_group: NewGroup, seat: NewSeat, who: int, version: int
) -> None:
    members = static(seat, new_group("static"), "alice", "bob")
    old, other = members[who], members[1 - who]
    new = seat(old.group, old.client_id, instance=old.instance)
    back = alike(new.join(version))
    assert (back["ErrorCode"], back["GenerationId"]) == (NONE, old.generation)
    assert new.ids[0] != old.ids[0]
    assert alike(new.sync())["Assignment"] == new.client_id.encode()
    assert alike(other.beat())["ErrorCode"] == NONE
    for answers in (old.beat(), old.sync(), old.call("JoinGroup", version, again(old))):
        assert alike(answers)["ErrorCode"] == FENCED
    left = alike(old.leave())
    assert left["Members"][0]["ErrorCode"] == FENCED
    assert alike(new.beat())["ErrorCode"] == NONE


def again(member: Seat) -> Callable[[int], Message]:
    return lambda side: joining(member.group, member.ids[side], instance=member.instance)


def test_a_static_member_with_new_metadata_gets_the_old_assignment(new_group: NewGroup, seat: NewSeat) -> None:
    alice, bob = static(seat, new_group("static"), "alice", "bob")
    for former in (bob, alice):
        new = seat(former.group, former.client_id, instance=former.instance)
        reported = alike(new.join(protocols=(CHANGED,)))
        assert (reported["ErrorCode"], reported["GenerationId"]) == (NONE, former.generation)
        assert alike(new.sync())["Assignment"] == former.client_id.encode()


def test_a_static_member_with_new_protocols_causes_a_rebalance(new_group: NewGroup, seat: NewSeat) -> None:
    group, both = new_group("static"), (RANGE, ROUND_ROBIN)
    alice, bob = static(seat, group, "alice", "bob", protocols=both)
    new = seat(group, "bob", instance=bob.instance)
    new.send_join(protocols=(ROUND_ROBIN,))
    await_rebalance(alice)
    alice.send_join(protocols=both)
    led = alike(alice.joined())
    assert (led["ProtocolName"], len(led["Members"])) == ("roundrobin", 2)
    assert alike(new.joined())["GenerationId"] == alice.generation


@pytest.mark.parametrize("version", [3, 5])
def test_members_are_removed_by_instance_with_separate_codes(new_group: NewGroup, seat: NewSeat, version: int) -> None:
    alice, bob = static(seat, new_group("removed"), "alice", "bob")
    stranger = seat(alice.group, "admin")
    message = leaving(alice.group, ("", "instance-bob"), ("nobody", "instance-alice"), ("", "nobody"), ("x", None))
    answer = alike(stranger.call("LeaveGroup", version, message))
    codes = {(each["MemberId"], each["GroupInstanceId"]): each["ErrorCode"] for each in answer["Members"]}
    assert codes == {
        ("", "instance-bob"): NONE,
        ("nobody", "instance-alice"): FENCED,
        ("", "nobody"): UNKNOWN_MEMBER,
        ("x", None): UNKNOWN_MEMBER,
    }
    assert alike(bob.beat())["ErrorCode"] == UNKNOWN_MEMBER
    assert alike(alice.beat())["ErrorCode"] == REBALANCING


def test_wrong_static_member_ids_are_unknown_or_fenced(new_group: NewGroup, seat: NewSeat) -> None:
    alice, bob = static(seat, new_group("mixed"), "alice", "bob")
    for message, code in (
        (lambda side: joining(alice.group, alice.ids[side], instance="instance-bob"), FENCED),
        (lambda _: joining(alice.group, "nobody", instance="instance-bob"), FENCED),
        (lambda side: joining(alice.group, alice.ids[side], instance="instance-nobody"), UNKNOWN_MEMBER),
        (lambda _: joining(alice.group, "nobody"), UNKNOWN_MEMBER),
    ):
        for version in (5, 9):
            assert alike(seat(alice.group, "mallory").call("JoinGroup", version, message))["ErrorCode"] == code
    for member in (alice, bob):
        assert alike(member.beat())["ErrorCode"] == NONE
