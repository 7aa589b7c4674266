"""Metadata, DescribeCluster and DescribeTopicPartitions about topics of the card."""

from __future__ import annotations

import functools

from compat.card.client import UNKNOWN_ID, Client
from compat.card.codec import Message
from compat.card.registry import Area

AREA = Area("metadata")
BAD_NAMES = {
    "an empty name": "", "a dot": ".", "two dots": "..", "a slash": "../x", "a blank": "a b", "NUL": "nul\0",
    "250 characters": "x" * 250, "a letter outside ASCII": "\u00fcber",
}  # fmt: skip


def _own(answer: Message) -> Message:
    """The part of a Metadata answer that is about topics."""
    return {key: value for key, value in answer.items() if key in ("Topics", "ErrorCode")}


def _version(version: int, client: Client) -> None:
    topic = client.shared_topic("metadata", lambda: client.topic("metadata", partitions=3))
    asked = {"Topics": [{"Name": topic.name}], "AllowAutoTopicCreation": False}
    client.note("answer", _own(client.call("Metadata", version, asked)))


for _number in range(14):
    AREA.add(f"version {_number} describes a topic of three partitions", functools.partial(_version, _number))


@AREA.row("a topic that does not exist")
def _(client: Client) -> None:
    for version in (4, 9, 12):
        asked = {"Topics": [{"Name": client.new_name("absent")}], "AllowAutoTopicCreation": False}
        client.note_code(f"version {version}", _own(client.call("Metadata", version, asked))["Topics"][0]["ErrorCode"])


def _named(name: str, client: Client) -> None:
    for version in (4, 12):
        asked = {"Topics": [{"Name": name}], "AllowAutoTopicCreation": False}
        client.note(f"version {version}", _own(client.call("Metadata", version, asked)))


for _label, _name in BAD_NAMES.items():
    AREA.add(f"a name that no topic can have: {_label}", functools.partial(_named, _name))


@AREA.row("topics are found by id")
def _(client: Client) -> None:
    topic = client.topic("by-id")
    for label, wanted in (("its id", topic.id), ("an unknown id", UNKNOWN_ID)):
        asked = {"Topics": [{"TopicId": wanted, "Name": None}], "AllowAutoTopicCreation": False}
        client.note(label, _own(client.call("Metadata", 12, asked)))


@AREA.row("no topics are asked for")
def _(client: Client) -> None:
    for version in (1, 4, 12):
        client.note(f"version {version}", client.call("Metadata", version, {"Topics": []})["Topics"])


@AREA.row("all topics are listed, with their ids")
def _(client: Client) -> None:
    topic = client.topic("listed")
    for version in (1, 12):
        answer = client.call("Metadata", version, {"Topics": None, "AllowAutoTopicCreation": False})
        client.note(f"version {version}", [each for each in answer["Topics"] if each["Name"] == topic.name])


@AREA.row("a topic is created automatically if the request allows it")
def _(client: Client) -> None:
    name = client.new_name("automatic")
    asked = {"Topics": [{"Name": name}], "AllowAutoTopicCreation": True}

    def is_there() -> bool:
        return bool(client.call("Metadata", 9, asked)["Topics"][0]["ErrorCode"] == 0)

    client.until(is_there, "the topic is not created (auto.create.topics.enable=false?)")
    client.note("the topic is there", value=True)


@AREA.row("the cluster is described")
def _(client: Client) -> None:
    for version in (0, 1, 2):
        answer = client.call(
            "DescribeCluster", version, {"EndpointType": 1, "IncludeClusterAuthorizedOperations": False}
        )
        listed = any(each["BrokerId"] == client.session.node for each in answer["Brokers"])
        client.note(f"version {version}", {"ErrorCode": answer["ErrorCode"], "the broker is listed": listed})


@AREA.row("topics are described page by page")
def _(client: Client) -> None:
    topic = client.topic("pages", partitions=3)
    cursor = None
    for page in (1, 2, 3):
        asked = {"Topics": [{"Name": topic.name}], "ResponsePartitionLimit": 2, "Cursor": cursor}
        answer = client.call("DescribeTopicPartitions", 0, asked)
        client.note(f"page {page}", answer)
        if (cursor := answer["NextCursor"]) is None:
            break
