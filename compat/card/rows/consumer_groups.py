"""Groups of the consumer protocol (KIP-848): assignments, epochs, static members, regular expressions, refusals."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any, Final

from compat.card.client import Client
from compat.card.codec import Message
from compat.card.registry import Area
from compat.card.session import ABSENT, Topic
from compat.oracle.groups import committing, fetching, joining

AREA = Area("consumer groups")
GROUP_RESOURCE: Final = 32
LEAVE, LEAVE_STATIC = -1, -2
UNCHANGED: Final = object()


class Members:
    """A group, and the partitions that its members report as theirs."""

    def __init__(self, client: Client, *topics: Topic) -> None:
        client.session.require("ConsumerGroupHeartbeat", 1)
        client.session.require_feature("group.version", 1)
        self.client, self.name = client, client.group("modern")
        self.topics = {topic.name: topic for topic in topics}
        self.owned: dict[str, dict[str, list[int]]] = {}
        self.epochs: dict[str, int] = {}
        # With an interval of 0 each heartbeat sees the newest assignment.
        configs = [{"Name": "consumer.assignment.interval.ms", "ConfigOperation": 0, "Value": "0"}]
        resource = {"ResourceType": GROUP_RESOURCE, "ResourceName": self.name, "Configs": configs}
        client.call("IncrementalAlterConfigs", 1, {"Resources": [resource], "ValidateOnly": False})
        asked = {"ResourceType": GROUP_RESOURCE, "ResourceName": self.name, "ConfigurationKeys": [configs[0]["Name"]]}

        def is_applied() -> bool:
            found = client.call("DescribeConfigs", 4, {"Resources": [asked]})["Results"][0]["Configs"]
            return not found or found[0]["Value"] == "0"  # a broker may have no such setting

        client.until(is_applied, "consumer.assignment.interval.ms of the group is not 0")

    def beat(
        self, member_id: str, epoch: int | None = None, *, topics: Iterable[str] | None = None,
        regex: str | None = None, owned: Any = UNCHANGED, version: int = 1, **more: Any,
    ) -> Message:  # fmt: skip
        """One heartbeat; joins with the topics if the epoch is 0."""
        epoch = self.epochs.get(member_id, 0) if epoch is None else epoch
        joins = epoch == 0
        held = {} if joins else self.owned.get(member_id, {})
        reported = held if owned is UNCHANGED else owned
        places = None
        if reported is not None:
            places = [{"TopicId": self.topics[name].id, "Partitions": list(of)} for name, of in reported.items()]
        message = {
            "GroupId": self.name, "MemberId": member_id, "MemberEpoch": epoch,
            "RebalanceTimeoutMs": 30_000 if joins else -1,
            "SubscribedTopicNames": None if topics is None else list(topics), "SubscribedTopicRegex": regex,
            "TopicPartitions": places, **more,
        }  # fmt: skip
        answer: Message = self._named(self.client.call("ConsumerGroupHeartbeat", version, message))
        answer["HeartbeatIntervalMs"] = answer["HeartbeatIntervalMs"] > 0
        if answer["ErrorCode"] == 0 and epoch >= 0:
            self.epochs[member_id] = answer["MemberEpoch"]
            if answer["Assignment"] is not None:
                found = answer["Assignment"]["TopicPartitions"]
                self.owned[member_id] = {each["Topic"]: each["Partitions"] for each in found}
        return answer

    def _named(self, value: Any) -> Any:
        """The message with topic names in the place of ids, and partitions in order."""
        names = {topic.id: name for name, topic in self.topics.items()}
        if isinstance(value, list):
            return [self._named(each) for each in value]
        if not isinstance(value, dict):
            return value
        found = {key: self._named(inner) for key, inner in value.items() if key != "TopicId"}
        if "TopicId" in value:
            found["Topic"] = names.get(value["TopicId"], "unknown")
            found["Partitions"] = sorted(value["Partitions"])
        return found

    def describe(self, version: int = 1) -> Message:
        """The group; members by their ids."""
        message = {"GroupIds": [self.name], "IncludeAuthorizedOperations": False}
        (group,) = self._named(self.client.call("ConsumerGroupDescribe", version, message))["Groups"]
        group["Members"].sort(key=lambda member: member["MemberId"])
        for member in group["Members"]:
            member["ClientHost"] = bool(member["ClientHost"])
        return dict(group)


def topics_of(client: Client) -> list[Topic]:
    """A topic of four partitions and one of three."""
    return [
        client.shared_topic(f"assigned {count}", lambda count=count: client.topic("assigned", partitions=count))  # type: ignore[misc]
        for count in (4, 3)
    ]


@AREA.row("members join, share partitions and leave", limit_s=30)
def _(client: Client) -> None:
    topics = topics_of(client)
    group, name = Members(client, *topics), topics[0].name
    client.note("a joins", group.beat("a", topics=[name]))
    client.note("the group of one", group.describe())
    client.note("b joins", group.beat("b", topics=[name]))
    client.note("the group of two", group.describe())
    held = group.owned["a"]
    client.note("a has to give up two", group.beat("a"))
    kept = group.owned["a"]
    client.note("a still has four", group.beat("a", owned=held))
    client.note("b waits", group.beat("b"))
    client.note("a has two", group.beat("a", owned=kept))
    client.note("b gets two", group.beat("b"))
    client.note("the stable group", group.describe(0))
    client.note("b leaves", group.beat("b", LEAVE))
    client.note("a gets all", group.beat("a"))
    client.note("a leaves", group.beat("a", LEAVE))
    client.note("the empty group", group.describe())
    client.note("a after that", group.beat("a", 1))


def _subscriptions(assignor: str, client: Client) -> None:
    topics = topics_of(client)
    group, (one, two) = Members(client, *topics), [topic.name for topic in topics]
    client.note("a joins", group.beat("a", topics=[one, two], ServerAssignor=assignor))
    client.note("b joins", group.beat("b", topics=[two], ServerAssignor=assignor))
    for number in (1, 2, 3):
        client.note(f"a, heartbeat {number}", group.beat("a"))
        client.note(f"b, heartbeat {number}", group.beat("b"))
    client.note("a subscribes to less", group.beat("a", topics=[one], RackId="rack"))
    client.note("a after that", group.beat("a"))
    client.note("b subscribes to nothing", group.beat("b", topics=[]))
    client.note("a subscribes to a missing topic", group.beat("a", topics=[ABSENT]))
    client.note("the group", group.describe())
    for member in ("a", "b"):
        group.beat(member, LEAVE)


for _assignor in ("uniform", "range"):
    AREA.add(f"subscriptions change with the assignor {_assignor}", functools.partial(_subscriptions, _assignor))

INVALID: dict[str, Message] = {
    "an empty member id": {"MemberId": ""},
    "a blank member id": {"MemberId": "  "},
    "an empty instance id": {"InstanceId": ""},
    "an empty rack": {"RackId": ""},
    "no rebalance timeout": {"RebalanceTimeoutMs": -1},
    "no owned partitions": {"owned": None},
    "no subscription": {"topics": None},
    "an unknown assignor": {"ServerAssignor": "sticky"},
    "an empty assignor": {"ServerAssignor": ""},
    "epoch minus three": {"epoch": -3},
    "a static leave without an instance": {"epoch": LEAVE_STATIC},
    "a leave of an unknown group": {"epoch": LEAVE},
    "epoch 1 of an unknown group": {"epoch": 1},
    "an empty group id": {"GroupId": ""},
}


@AREA.row("heartbeats that are refused")
def _(client: Client) -> None:
    for label, changes in INVALID.items():
        fields: dict[str, Any] = {"topics": ["t"], **changes}
        group = Members(client, *topics_of(client))
        answer = group.beat(fields.pop("MemberId", "m"), fields.pop("epoch", 0), **fields)
        client.note(label, answer)


@AREA.row("version 0 gives members an id")
def _(client: Client) -> None:
    group = Members(client, *topics_of(client))
    for label, member_id in (("no id", ""), ("an id of its own", "mine")):
        answer = group.beat(member_id, 0, topics=[next(iter(group.topics))], version=0)
        client.note(label, {"ErrorCode": answer["ErrorCode"], "length of the id": len(answer["MemberId"])})
        group.beat(answer["MemberId"], LEAVE)


@AREA.row("wrong epochs are fenced")
def _(client: Client) -> None:
    topics = topics_of(client)
    group, name = Members(client, *topics), topics[0].name
    epoch = group.beat("a", topics=[name])["MemberEpoch"]
    client.note("a later epoch", group.beat("a", epoch + 1))
    group.beat("b", topics=[name])
    group.beat("a")
    group.beat("a")
    owned = group.owned["a"]
    client.note("the former epoch with a part of the partitions", group.beat("a", epoch, owned={name: owned[name]}))
    client.note("the former epoch with other partitions", group.beat("a", epoch, owned={name: [0, 1, 2, 3]}))
    client.note("the former epoch without partitions", group.beat("a", epoch, owned=None))
    client.note("an unknown member", group.beat("nobody", group.epochs["b"]))
    client.note("it joins again", group.beat("a", 0, topics=[name]))
    client.note("an unknown member leaves", group.beat("nobody", LEAVE))
    for member in ("a", "b"):
        group.beat(member, LEAVE)


@AREA.row("full heartbeats are answered with the assignment")
def _(client: Client) -> None:
    topics = topics_of(client)
    group, name = Members(client, *topics), topics[0].name
    group.beat("a", topics=[name])
    client.note("a short heartbeat", group.beat("a"))
    client.note("a full heartbeat", group.beat("a", topics=[name], RebalanceTimeoutMs=30_000))
    group.beat("a", LEAVE)


@AREA.row("static members leave for a while, and their former ids are fenced")
def _(client: Client) -> None:
    topics = topics_of(client)
    group, name = Members(client, *topics), topics[0].name
    client.note("a joins", group.beat("a", topics=[name], InstanceId="one"))
    client.note("c takes the instance of a", group.beat("c", topics=[name], InstanceId="one"))
    client.note("c with an epoch", group.beat("c", 1, InstanceId="one"))
    client.note("a with another instance", group.beat("a", 1, InstanceId="two"))
    client.note("c leaves for a", group.beat("c", LEAVE_STATIC, InstanceId="one"))
    client.note("a leaves for a while", group.beat("a", LEAVE_STATIC, InstanceId="one"))
    client.note("the group waits for it", group.describe())
    client.note("a goes on", group.beat("a", InstanceId="one"))
    client.note("d returns as the instance", group.beat("d", topics=[name], InstanceId="one"))
    client.note("a after that", group.beat("a", InstanceId="one"))
    client.note("d leaves", group.beat("d", LEAVE, InstanceId="one"))


@AREA.row("a regular expression subscribes to topics")
def _(client: Client) -> None:
    topics = topics_of(client)
    group = Members(client, *topics)
    group.beat("a", topics=[], regex=f"{topics[0].name}|{topics[1].name}")
    # The expression is evaluated after the first heartbeat.
    client.until(lambda: bool(group.beat("a")["Assignment"]) or bool(group.owned.get("a")), "no topics are assigned")
    client.note("the assignment", sorted(len(partitions) for partitions in group.owned["a"].values()))
    client.note("an invalid expression", group.beat("b", topics=[], regex="("))
    group.beat("a", LEAVE)


@AREA.row("members commit offsets with their epoch")
def _(client: Client) -> None:
    topics = topics_of(client)
    group, name = Members(client, *topics), topics[0].name
    epoch = group.beat("a", topics=[name])["MemberEpoch"]
    for label, generation, member in (
        ("its epoch", epoch, "a"), ("a later epoch", epoch + 1, "a"), ("an unknown member", epoch, "nobody"),
        ("no member", -1, ""),
    ):  # fmt: skip
        message = committing(group.name, {name: [(0, 5, "five")]}, generation=generation, member_id=member)
        client.note(label, client.call("OffsetCommit", 9, message))
    asked = fetching(group.name, {name: [0]}, member_id="a", member_epoch=epoch)
    client.note("fetched with the epoch", client.call("OffsetFetch", 9, asked))
    wrong = fetching(group.name, {name: [0]}, member_id="a", member_epoch=epoch + 1)
    client.note("fetched with a later epoch", client.call("OffsetFetch", 9, wrong))
    group.beat("a", LEAVE)


@AREA.row("the other protocol's APIs see the group")
def _(client: Client) -> None:
    topics = topics_of(client)
    group, name = Members(client, *topics), topics[0].name
    group.beat("a", topics=[name])
    client.note("DescribeGroups", client.call("DescribeGroups", 6, {"Groups": [group.name]}))
    client.note("DeleteGroups", client.call("DeleteGroups", 2, {"GroupsNames": [group.name]}))
    client.note("JoinGroup without metadata", client.call("JoinGroup", 3, joining(group.name, protocols=[("x", b"")])))
    listed = client.call("ListGroups", 5, {"StatesFilter": [], "TypesFilter": ["consumer"]})["Groups"]
    client.note("ListGroups", [each for each in listed if each["GroupId"] == group.name])
    group.beat("a", LEAVE)
    client.note("an unknown group", client.call("ConsumerGroupDescribe", 1, {"GroupIds": [group.name + "x"]}))
