"""Classic groups: joining, syncing, heartbeats, leaving, static members, offsets, listing, deletion."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from compat.card.client import Client
from compat.card.codec import Message
from compat.card.registry import Area
from compat.card.session import ABSENT, Topic
from compat.oracle.groups import (
    CHANGED,
    RANGE,
    ROUND_ROBIN,
    Protocols,
    beating,
    committing,
    fetching,
    joining,
    leaving,
    subscription,
    syncing,
)
from compat.oracle.test_groups import ACTIONS, GENERATIONS, WRONG_TO_A_STABLE_GROUP

AREA = Area("groups")
REBALANCING = 27
# Members send no heartbeats of their own, and a busy machine must not end their sessions.
PATIENT = {"session_ms": 60_000, "rebalance_ms": 60_000}


class Member:
    """One member on a connection of its own."""

    def __init__(self, client: Client, group: str, name: str = "alice", *, instance: str | None = None) -> None:
        self.client, self.group, self.name, self.instance = client, group, name, instance
        self.connection = client.connection()
        self.id, self.generation = "", -1
        self._sent: list[tuple[str, int]] = []

    def send(self, api: str, version: int, message: Message) -> None:
        """Send a request, whose answer `answer` returns."""
        self.client.send(self.connection, api, version, message, client_id=self.name)
        self._sent.append((api, version))

    def answer(self) -> Message:
        """The next answer."""
        api, version = self._sent.pop(0)
        return self.client.receive(self.connection, api, version)

    def call(self, api: str, version: int, message: Message) -> Message:
        """Send and wait."""
        self.send(api, version, message)
        return self.answer()

    def send_join(self, version: int = 9, **more: Any) -> None:
        """Get an id if the version requires one, then send the JoinGroup that will wait."""
        more = {**PATIENT, **more}
        if version >= 4 and not self.id and self.instance is None:
            self.id = self.call("JoinGroup", version, joining(self.group, **more))["MemberId"]
        self.send("JoinGroup", version, joining(self.group, self.id, instance=self.instance, **more))

    def joined(self) -> Message:
        """The answer to a JoinGroup; keeps the id and the generation."""
        answer = self.answer()
        self.id, self.generation = answer["MemberId"], answer["GenerationId"]
        return answer

    def join(self, version: int = 9, **more: Any) -> Message:
        """Join and wait."""
        self.send_join(version, **more)
        return self.joined()

    def send_sync(self, version: int = 5, assignments: Mapping[Member, bytes] | None = None, **more: Any) -> None:
        """Send a SyncGroup with assignments for members."""
        given = {member.id: assigned for member, assigned in (assignments or {}).items()}
        message = syncing(self.group, self.generation, self.id, given, instance=self.instance, **more)
        self.send("SyncGroup", version, message)

    def sync(self, version: int = 5, assignments: Mapping[Member, bytes] | None = None, **more: Any) -> Message:
        """Sync and wait."""
        self.send_sync(version, assignments, **more)
        return self.answer()

    def beat(self, version: int = 4, *, generation: int | None = None) -> Message:
        """A heartbeat."""
        reported = self.generation if generation is None else generation
        return self.call("Heartbeat", version, beating(self.group, reported, self.id, instance=self.instance))

    def leave(self, version: int = 5) -> Message:
        """Leave the group."""
        return self.call("LeaveGroup", version, leaving(self.group, (self.id, self.instance)))

    def await_members(self, count: int) -> None:
        """Wait until the group has this many members, so that requests on other connections have arrived."""

        def are_there() -> bool:
            found = self.client.call("DescribeGroups", 5, {"Groups": [self.group]})["Groups"][0]
            return len(found["Members"]) == count

        self.client.until(are_there, f"the group does not get {count} members")

    def await_rebalance(self) -> None:
        """Wait until the broker asks the member to rejoin."""
        self.client.until(lambda: bool(self.beat()["ErrorCode"] == REBALANCING), "no rebalance begins")


def formed(client: Client, *names: str, is_static: bool = False, protocols: Protocols = (RANGE,)) -> list[Member]:
    """A stable group; its first member leads it."""
    group = client.group()
    members = [Member(client, group, name, instance=f"instance-{name}" if is_static else None) for name in names]
    leader, *others = members
    leader.join(protocols=protocols)
    leader.sync(assignments={leader: b""})
    if others:
        for member in others:
            member.send_join(protocols=protocols)
        leader.await_members(len(members))
        leader.send_join(protocols=protocols)
        for member in members:
            member.joined()
    for member in others:
        member.send_sync()
    leader.send_sync(assignments={member: member.name.encode() for member in members})
    for member in members:
        member.answer()
    return members


def _life(versions: tuple[int, int, int, int], client: Client) -> None:
    join, sync, beat, leave = versions
    member = Member(client, client.group())
    both = (RANGE, ROUND_ROBIN)
    if join >= 4:
        first = member.call("JoinGroup", join, joining(member.group, protocols=both))
        client.note("an id is given first", first)
        member.id = first["MemberId"]
    client.note("joined", member.join(join, protocols=both))
    client.note("synced", member.sync(sync, {member: b"assigned \x00\xff"}))
    client.note("a heartbeat", member.beat(beat))
    client.note("synced again", member.sync(sync))
    client.note("a leader that rejoins", member.join(join, protocols=both))
    client.note("a heartbeat of the former generation", member.beat(beat, generation=1))
    client.note("left", member.leave(leave))
    client.note("a heartbeat after that", member.beat(beat))


for _versions in GENERATIONS:
    _shown = "JoinGroup {}, SyncGroup {}, Heartbeat {}, LeaveGroup {}".format(*_versions)
    AREA.add(f"a member joins, syncs, beats and leaves with {_shown}", functools.partial(_life, _versions))


WRONG_JOINS: dict[str, Callable[[str], Message]] = {
    "no group id": lambda _: joining(""),
    "a session too short": lambda group: joining(group, session_ms=5),
    "a session too long": lambda group: joining(group, session_ms=2**31 - 1),
    "an unknown member id": lambda group: joining(group, "nobody"),
    "no protocols": lambda group: joining(group, protocols=()),
    "no protocol type": lambda group: joining(group, kind=""),
}


def _wrong_join(make: Callable[[str], Message], client: Client) -> None:
    group = client.group()
    for version in (0, 3, 5, 9):
        answer = Member(client, group).call("JoinGroup", version, make(group))
        client.note(f"version {version}", answer)


for _label, _make in WRONG_JOINS.items():
    AREA.add(f"a first join is refused: {_label}", functools.partial(_wrong_join, _make))


@AREA.row("names of static members are checked", limit_s=40)
def _(client: Client) -> None:
    for name in ("", ".", "..", "a b", "x" * 250, "\u00fc"):
        member = Member(client, client.group())
        client.note(f"instance {name[:3]!r}", member.call("JoinGroup", 9, joining(member.group, instance=name)))


def _wrong(make: Callable[[str, int, str], tuple[str, Message]], client: Client) -> None:
    (member,) = formed(client, "alice", protocols=(RANGE, ROUND_ROBIN))
    api, versions = ACTIONS[make(member.group, member.generation, "")[0]]
    stranger = Member(client, member.group, "bob")
    for version in versions:
        answer = stranger.call(api, version, make(member.group, member.generation, member.id)[1])
        client.note(f"{api} version {version}", answer)
        client.note_code(f"a heartbeat after version {version}", member.beat()["ErrorCode"])
    member.leave()


for _label, _event in WRONG_TO_A_STABLE_GROUP.items():
    AREA.add(f"a stable group refuses: {_label}", functools.partial(_wrong, _event))


@AREA.row("a new member makes the others rejoin", limit_s=40)
def _(client: Client) -> None:
    alice, bob = formed(client, "alice", "bob")
    carol = Member(client, alice.group, "carol")
    carol.send_join()
    client.note("the new member waits", client.is_silent(carol.connection))
    carol.await_members(3)
    for member in (alice, bob):
        client.note(f"a heartbeat of {member.name}", member.beat())
        client.note(f"a sync of {member.name}", member.sync())
    bob.send_join()
    alice.send_join()
    for member in (alice, bob, carol):
        client.note(f"{member.name} has joined", member.joined())
    bob.send_sync()
    client.note("a follower's sync waits for the leader", client.is_silent(bob.connection))
    alice.send_sync(assignments={alice: b"a", bob: b"b"})
    for member in (bob, alice):
        client.note(f"the assignment of {member.name}", member.answer())
    client.note("a member without an entry", carol.sync())
    for member in (alice, bob, carol):
        member.leave()


@AREA.row("a member that leaves causes a rebalance at once", limit_s=40)
def _(client: Client) -> None:
    alice, bob = formed(client, "alice", "bob")
    client.note("the leader leaves", alice.leave())
    client.note("its heartbeat after that", alice.beat())
    client.note("it leaves again, version 2", alice.leave(2))
    client.note("a heartbeat of the other", bob.beat())
    client.note("the other rejoins", bob.join())
    bob.leave()


@AREA.row("a member that does not rejoin in time is removed", limit_s=40)
def _(client: Client) -> None:
    group = client.group()
    alice, bob = Member(client, group, "alice"), Member(client, group, "bob")
    alice.join(rebalance_ms=500)
    alice.sync(assignments={alice: b"all"})
    bob.send_join(rebalance_ms=500)
    client.note("the other joins alone", bob.joined())
    client.note("a heartbeat of the removed member", alice.beat())
    bob.leave()


@AREA.row("a member whose session ends is removed", limit_s=40)
def _(client: Client) -> None:
    group = client.group()
    alice, bob = Member(client, group, "alice"), Member(client, group, "bob")
    alice.join(session_ms=6_000, rebalance_ms=60_000)
    alice.sync(assignments={alice: b"all"})
    bob.send_join(session_ms=30_000, rebalance_ms=60_000)
    client.note("the other joins alone", bob.joined())
    bob.leave()


@AREA.row("the protocol that most members prefer is chosen", limit_s=40)
def _(client: Client) -> None:
    group = client.group()
    both, other = (RANGE, ROUND_ROBIN), (ROUND_ROBIN, RANGE)
    alice, bob, carol = (Member(client, group, name) for name in ("alice", "bob", "carol"))
    alice.join(protocols=both)
    alice.sync(assignments={alice: b""})
    bob.send_join(protocols=other)
    carol.send_join(protocols=other)
    carol.await_members(3)
    alice.send_join(protocols=both)
    for member in (alice, bob, carol):
        client.note(f"{member.name} has joined", member.joined()["ProtocolName"])
    alice.sync(protocol="roundrobin", assignments={alice: b"1"})
    dave = Member(client, group, "dave")
    refused = dave.call("JoinGroup", 3, joining(group, protocols=[("sticky", RANGE[1])]))
    client.note("a member with none of them", refused)
    for member in (alice, bob, carol):
        member.leave()


@AREA.row("a follower that rejoins unchanged causes no rebalance", limit_s=40)
def _(client: Client) -> None:
    alice, bob = formed(client, "alice", "bob")
    client.note("it rejoins", bob.join())
    client.note("a heartbeat of the leader", alice.beat())
    bob.send_join(protocols=(CHANGED,))
    alice.await_rebalance()
    alice.send_join()
    client.note("with other metadata all rejoin", sorted(each["Metadata"] for each in alice.joined()["Members"]))
    bob.joined()
    for member in (alice, bob):
        member.leave()


def _returns(who: int, client: Client) -> None:
    members = formed(client, "alice", "bob", is_static=True)
    old, other = members[who], members[1 - who]
    new = Member(client, old.group, old.name, instance=old.instance)
    client.note("it returns", new.join())
    client.note("its assignment", new.sync())
    client.note("a heartbeat of the other", other.beat())
    client.note("a heartbeat with the old id", old.beat())
    client.note("a sync with the old id", old.sync())
    rejoining = joining(old.group, old.id, instance=old.instance)
    client.note("a join with the old id", old.call("JoinGroup", 9, rejoining))
    client.note("a leave with the old id", old.leave())
    client.note("a heartbeat with the new id", new.beat())
    for member in (new, other):
        member.leave()


for _index, _role in enumerate(("leader", "follower")):
    AREA.add(
        f"a static {_role} that returns causes no rebalance, and its old id is fenced",
        functools.partial(_returns, _index), limit_s=40,
    )  # fmt: skip


@AREA.row("members are removed by instance, with a code for each", limit_s=40)
def _(client: Client) -> None:
    alice, bob = formed(client, "alice", "bob", is_static=True)
    stranger = Member(client, alice.group, "admin")
    message = leaving(alice.group, ("", "instance-bob"), ("nobody", "instance-alice"), ("", "nobody"), ("x", None))
    client.note("answer", stranger.call("LeaveGroup", 5, message))
    client.note("a heartbeat of the removed member", bob.beat())
    client.note("a heartbeat of the other", alice.beat())
    alice.leave()


def committed_topic(client: Client) -> Topic:
    """A topic of four partitions for offsets."""
    return client.shared_topic("committed", lambda: client.topic("committed", partitions=4))


def commit(client: Client, version: int, topic: Topic | str, message: Message) -> Message:
    """OffsetCommit, with the topic's id where the version has ids."""
    if isinstance(topic, Topic):
        for each in message["Topics"]:
            if each["Name"] == topic.name:
                each["TopicId"] = topic.id
    return client.call("OffsetCommit", version, message)


def _commits(version: int, client: Client) -> None:
    topic, group = committed_topic(client), client.group()
    offsets = [(0, 7, "mine"), (1, 0, ""), (2, 2**62, "\u00fcml"), (3, 5, None), (9, 1, "")]
    message = committing(group, {topic.name: offsets}, leader_epoch=3)
    client.note("answer", commit(client, version, topic, message))
    client.note("fetched", client.call("OffsetFetch", 7, fetching(group, {topic.name: [0, 1, 2, 3, 9]})))


for _number in range(2, 11):
    AREA.add(f"OffsetCommit version {_number} stores offsets", functools.partial(_commits, _number))


def _fetches(version: int, client: Client) -> None:
    topic, group = committed_topic(client), client.group()
    commit(client, 8, topic, committing(group, {topic.name: [(0, 7, "mine"), (1, 0, "")]}))
    asked = fetching(group, {topic.name: [0, 1, 2, 9]})
    for each in asked["Groups"]:
        each["Topics"][0]["TopicId"] = topic.id
    client.note("some partitions", client.call("OffsetFetch", version, asked))
    if version >= 2:
        client.note("all partitions", client.call("OffsetFetch", version, fetching(group, None)))
    client.note("an unknown group", client.call("OffsetFetch", version, fetching(group + "x", {topic.name: [0]})))


for _number in range(1, 11):
    AREA.add(f"OffsetFetch version {_number} returns offsets", functools.partial(_fetches, _number))


@AREA.row("commits that are refused")
def _(client: Client) -> None:
    topic, group = committed_topic(client), client.group()
    cases = {
        "long metadata": committing(group, {topic.name: [(0, 1, "x" * 4096), (1, 2, "x" * 4097)]}),
        "an unknown topic": committing(group, {ABSENT: [(0, 1, "")]}),
        "a generation without a member": committing(group, {topic.name: [(0, 1, "")]}, generation=5),
        "a member of no group": committing(group, {topic.name: [(0, 1, "")]}, generation=5, member_id="nobody"),
    }
    for label, message in cases.items():
        client.note(label, commit(client, 8, topic, message))


@AREA.row("a member commits only with its generation", limit_s=40)
def _(client: Client) -> None:
    topic, member = committed_topic(client), Member(client, client.group())
    for _round in (1, 2):
        member.join(protocols=[("range", subscription(topic.name))])
        member.sync(assignments={member: b"all"})
    for generation, member_id in ((2, None), (1, None), (3, None), (2, "nobody"), (2, ""), (-1, "")):
        owner = member.id if member_id is None else member_id
        message = committing(member.group, {topic.name: [(0, 5, "five")]}, generation=generation, member_id=owner)
        who = "itself" if member_id is None else repr(member_id)
        client.note(f"generation {generation}, member {who}", commit(client, 8, topic, message))
    member.leave()


@AREA.row("offsets are deleted, except those of subscribed topics", limit_s=40)
def _(client: Client) -> None:
    topic, member = committed_topic(client), Member(client, client.group())
    other = client.topic("unsubscribed")
    member.join(protocols=[("range", subscription(topic.name))])
    member.sync(assignments={member: b"all"})
    for each in (topic, other):
        message = committing(member.group, {each.name: [(0, 1, "")]}, generation=1, member_id=member.id)
        commit(client, 8, each, message)
    for label, name in (("subscribed", topic.name), ("not subscribed", other.name), ("unknown", ABSENT)):
        asked = {"GroupId": member.group, "Topics": [{"Name": name, "Partitions": [{"PartitionIndex": 0}]}]}
        client.note(label, client.call("OffsetDelete", 0, asked))
    member.leave()
    client.note("what is left", client.call("OffsetFetch", 7, fetching(member.group, None)))


def _described(version: int, client: Client) -> None:
    group = client.group()

    def state() -> Message:
        found: Message = client.call("DescribeGroups", version, {"Groups": [group]})["Groups"][0]
        for member in found["Members"]:
            member["ClientHost"] = bool(member["ClientHost"])
        return found

    client.note("an unknown group", state())
    member = Member(client, group)
    member.join()
    client.note("before the leader's sync", state())
    member.sync(assignments={member: b"all"})
    client.note("a stable group", state())
    member.leave()
    client.note("an empty group", state())


for _number in range(7):
    AREA.add(f"DescribeGroups version {_number} shows a group's states", functools.partial(_described, _number))


def _listed(version: int, client: Client) -> None:
    (member,) = formed(client, "alice")
    empty = client.group("empty")
    commit(client, 8, "", committing(empty, {committed_topic(client).name: [(0, 1, "")]}))
    names = {member.group: "stable", empty: "empty"}
    for states in ([], ["Stable"], ["Empty", "Dead"], ["empty"]):
        if states and version < 4:
            continue
        answer = client.call("ListGroups", version, {"StatesFilter": states, "TypesFilter": []})
        found = [each | {"GroupId": names[each["GroupId"]]} for each in answer["Groups"] if each["GroupId"] in names]
        found.sort(key=lambda each: str(each["GroupId"]))
        client.note(f"states {states}", {"ErrorCode": answer["ErrorCode"], "Groups": found})
    member.leave()


for _number in range(6):
    AREA.add(f"ListGroups version {_number} lists groups", functools.partial(_listed, _number))


@AREA.row("only empty groups are deleted, with their offsets", limit_s=40)
def _(client: Client) -> None:
    topic = committed_topic(client)
    (member,) = formed(client, "alice")
    message = committing(member.group, {topic.name: [(0, 1, "")]}, generation=member.generation, member_id=member.id)
    commit(client, 8, topic, message)
    for label, name in (("a group with a member", member.group), ("an unknown group", member.group + "x")):
        client.note(label, client.call("DeleteGroups", 2, {"GroupsNames": [name]}))
    member.leave()
    client.note("an empty group", client.call("DeleteGroups", 2, {"GroupsNames": [member.group]}))
    client.note("again", client.call("DeleteGroups", 2, {"GroupsNames": [member.group]}))
    client.note("its offsets", client.call("OffsetFetch", 7, fetching(member.group, {topic.name: [0]})))


def _coordinator(version: int, client: Client) -> None:
    group = client.group()
    for kind in (0, 1, 3, 99):
        if kind and not version:
            continue
        asked = {"Key": group, "KeyType": kind, "CoordinatorKeys": [group]}
        client.note(f"kind {kind}", client.call("FindCoordinator", version, asked))
    asked = {"Key": "", "KeyType": 0, "CoordinatorKeys": [""]}
    client.note("an empty group id", client.call("FindCoordinator", version, asked))


for _number in range(7):
    AREA.add(f"FindCoordinator version {_number} finds a coordinator", functools.partial(_coordinator, _number))
