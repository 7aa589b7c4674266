"""Topics: creation, names, assignments, partitions, deletion."""

from __future__ import annotations

import functools

from compat.card.client import UNKNOWN_ID, Client
from compat.card.codec import Message
from compat.card.registry import Area
from compat.card.session import ABSENT
from compat.oracle.test_topics_and_configs import create, creation, growth

AREA = Area("topics")


def created(client: Client, version: int, *topics: Message, validate: bool = False) -> list[Message]:
    """The topics of a CreateTopics answer, without their settings, which depend on the broker's."""
    found: list[Message] = client.call("CreateTopics", version, create(*topics, validate=validate))["Topics"]
    for topic in found:
        topic.pop("Configs", None)
    return found


def _version(version: int, client: Client) -> None:
    topic = creation(client.new_name("created"), partitions=2)
    client.note("first", created(client, version, topic))
    client.note("again", created(client, version, topic))


for _number in range(2, 8):
    AREA.add(f"CreateTopics version {_number} creates a topic once", functools.partial(_version, _number))


def _places(*places: tuple[int, list[int]]) -> Message:
    listed = [{"PartitionIndex": index, "BrokerIds": brokers} for index, brokers in places]
    return {"NumPartitions": -1, "ReplicationFactor": -1, "Assignments": listed}


def _settings(name: str, value: str | None) -> Message:
    return {"Configs": [{"Name": name, "Value": value}]}


# `{}` is a name of the card; other names are not valid.
WRONG: dict[str, tuple[str, Message]] = {
    "no partitions": ("{}", {"NumPartitions": 0}),
    "minus two partitions": ("{}", {"NumPartitions": -2}),
    "a replication factor of 0": ("{}", {"ReplicationFactor": 0}),
    "a replication factor of minus two": ("{}", {"ReplicationFactor": -2}),
    "a replication factor above the brokers": ("{}", {"ReplicationFactor": 1000}),
    "the name of two dots": ("..", {}),
    "the name of one dot": (".", {}),
    "a name with a slash": ("../x", {}),
    "an empty name": ("", {}),
    "a name of 250 characters": ("x" * 250, {}),
    "a name with NUL": ("nul\0", {}),
    "a name with a blank": ("a b", {}),
    "an unknown setting": ("{}", _settings("no.such.setting", "1")),
    "a setting out of range": ("{}", _settings("segment.bytes", "-1")),
    "a setting that is no number": ("{}", _settings("retention.ms", "soon")),
    "a setting of no such kind": ("{}", _settings("cleanup.policy", "burn")),
    "a null setting": ("{}", _settings("retention.ms", None)),
    "an assignment to an unknown broker": ("{}", _places((0, [2_000_000_000]))),
    "an assignment that begins at 1": ("{}", _places((1, [1]))),
    "an assignment to no broker": ("{}", _places((0, []))),
    "an assignment and a count": ("{}", {**_places((0, [1])), "NumPartitions": 2}),
    "more than ten thousand partitions": ("{}", {"NumPartitions": 10_001}),
}


def _wrong(name: str, changes: Message, client: Client) -> None:
    chosen = client.new_name("wrong") if name == "{}" else name
    topic = {**creation(chosen), **changes}
    client.note("validated", created(client, 7, topic, validate=True))
    client.note("created", created(client, 7, topic))


for _label, (_name, _changes) in WRONG.items():
    AREA.add(f"a topic is refused: {_label}", functools.partial(_wrong, _name, _changes))


@AREA.row("names that differ in a dot and an underscore collide")
def _(client: Client) -> None:
    name = client.topic("a.b").name
    other = name.replace("a.b", "a_b")
    client.session.topics.add(other)
    client.note("answer", created(client, 7, creation(other)))


@AREA.row("a name twice in one request")
def _(client: Client) -> None:
    name, other = client.new_name("twice"), client.new_name("once")
    client.note("answer", created(client, 7, creation(name), creation(other), creation(name)))


@AREA.row("validateOnly creates nothing")
def _(client: Client) -> None:
    name = client.new_name("validated")
    client.note("answer", created(client, 7, creation(name), validate=True))
    asked = {"Topics": [{"Name": name}], "AllowAutoTopicCreation": False}
    client.note("Metadata", client.call("Metadata", 9, asked)["Topics"])


@AREA.row("assignments and defaults are applied")
def _(client: Client) -> None:
    node = client.session.node
    assigned = {**creation(client.new_name("assigned")), **_places((0, [node]), (1, [node]))}
    client.note("assigned", created(client, 7, assigned))
    default = creation(client.new_name("defaults"), partitions=-1, replication=-1)
    answer = created(client, 7, default)[0]
    client.note("defaults", {"ErrorCode": answer["ErrorCode"], "partitions": answer["NumPartitions"] >= 1})


@AREA.row("an empty list of topics")
def _(client: Client) -> None:
    client.note("answer", created(client, 7))


def _growth(version: int, client: Client) -> None:
    name, node = client.topic("grown", partitions=2).name, client.session.node
    steps = {
        "to the same": growth(name, 2),
        "to fewer": growth(name, 1),
        "to none": growth(name, 0),
        "to minus one": growth(name, -1),
        "of an unknown topic": growth(ABSENT, 3),
        "with too few assignments": growth(name, 4, assignments=[[node]]),
        "to an unknown broker": growth(name, 3, assignments=[[2_000_000_000]]),
        "twice to one broker": growth(name, 3, assignments=[[node, node]]),
        "validated": growth(name, 3, validate=True),
        "to three": growth(name, 3, assignments=[[node]]),
        "to four": growth(name, 4, assignments=[[node]]),
        "to four again": growth(name, 4),
    }
    for label, message in steps.items():
        client.note(label, client.call("CreatePartitions", version, message)["Results"])
    client.await_leaders(name, 4)


for _number in range(4):
    AREA.add(f"CreatePartitions version {_number} adds partitions", functools.partial(_growth, _number))


def _deletion(version: int, client: Client) -> None:
    names = [client.topic("deleted").name, ABSENT]
    message: Message = {"TimeoutMs": 10_000, "TopicNames": names, "Topics": [{"Name": name} for name in names]}
    client.note("answer", client.call("DeleteTopics", version, message))
    asked = {"Topics": [{"Name": names[0]}], "AllowAutoTopicCreation": False}

    def is_gone() -> bool:
        return bool(client.call("Metadata", 9, asked)["Topics"][0]["ErrorCode"] == 3)

    client.until(is_gone, "Metadata still lists the deleted topic")


for _number in range(1, 7):
    AREA.add(f"DeleteTopics version {_number} deletes by name", functools.partial(_deletion, _number))


@AREA.row("topics are deleted by id")
def _(client: Client) -> None:
    topic = client.topic("deleted-by-id")
    for label, wanted in (("its id", topic.id), ("an unknown id", UNKNOWN_ID)):
        message = {"TimeoutMs": 10_000, "Topics": [{"Name": None, "TopicId": wanted}]}
        client.note(label, client.call("DeleteTopics", 6, message))


@AREA.row("a topic that is created again has another id and no records")
def _(client: Client) -> None:
    topic = client.topic("again")
    client.call("DeleteTopics", 6, {"TimeoutMs": 10_000, "Topics": [{"Name": topic.name}]})
    found: list[Message] = []

    def is_created() -> bool:
        found[:] = created(client, 7, creation(topic.name))
        return bool(found[0]["ErrorCode"] != 36)

    client.until(is_created, "the deleted topic still exists")
    client.note_code("code", found[0]["ErrorCode"])
    client.note("the id differs", found[0]["TopicId"] != topic.id)


@AREA.row("reassignments and elections of unknown partitions")
def _(client: Client) -> None:
    name = client.topic("moved").name
    parts = [{"PartitionIndex": index, "Replicas": None} for index in (0, 9)]
    message = {"TimeoutMs": 5000, "Topics": [{"Name": name, "Partitions": parts}]}
    client.note("nothing to cancel", client.call("AlterPartitionReassignments", 0, message))
    for kind in (0, 1):
        asked = {"ElectionType": kind, "TimeoutMs": 5000, "TopicPartitions": [{"Topic": name, "Partitions": [0, 9]}]}
        client.note(f"election {kind}", client.call("ElectLeaders", 2, asked))
