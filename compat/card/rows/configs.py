"""Settings of topics: described, altered, and invalid ones."""

from __future__ import annotations

import functools

from compat.card.client import Client
from compat.card.codec import Message
from compat.card.registry import Area
from compat.card.session import ABSENT
from compat.oracle.test_topics_and_configs import BROKER, CHANGES, DELETE, SET, TOPIC, alter, resource

AREA = Area("configs")
OWN = {"retention.ms": "86400000", "segment.bytes": "2097152", "max.message.bytes": "1048588"}
KEYS = ("retention.ms", "cleanup.policy", "segment.bytes")


def described(client: Client, version: int, wanted: Message, **more: object) -> list[Message]:
    """The results of a DescribeConfigs; a documentation becomes whether it is there."""
    answer = client.call("DescribeConfigs", version, {"Resources": [wanted], **more})
    for result in answer["Results"]:
        for config in result["Configs"]:
            if "Documentation" in config:
                config["Documentation"] = bool(config["Documentation"])
    results: list[Message] = answer["Results"]
    return results


def _version(version: int, client: Client) -> None:
    topic = client.shared_topic("configured", lambda: client.topic("configured", configs=OWN))
    more = {"IncludeSynonyms": False, "IncludeDocumentation": True}
    client.note("its settings", described(client, version, resource(TOPIC, topic.name, *OWN), **more))


for _number in range(1, 5):
    AREA.add(f"DescribeConfigs version {_number} describes a topic's settings", functools.partial(_version, _number))


@AREA.row("every topic setting is described, with its type and whether it is a default")
def _(client: Client) -> None:
    topic = client.shared_topic("configured", lambda: client.topic("configured", configs=OWN))
    for config in described(client, 4, resource(TOPIC, topic.name))[0]["Configs"]:
        # Values, and whether the broker sets them, are the operator's.
        kept = {key: config[key] for key in ("ReadOnly", "IsSensitive", "ConfigType")}
        client.note(config["Name"], kept)


WRONG = {
    "an unknown topic": resource(TOPIC, ABSENT),
    "a name that no topic can have": resource(TOPIC, "../x"),
    "an empty name": resource(TOPIC, ""),
    "an unknown broker": resource(BROKER, "2000000000"),
    "a broker that is no number": resource(BROKER, "one"),
    "an unknown kind": resource(99, "x"),
    "kind 0": resource(0, "x"),
}


@AREA.row("descriptions of what does not exist")
def _(client: Client) -> None:
    for label, wanted in WRONG.items():
        client.note(label, described(client, 4, wanted))


@AREA.row("only the requested keys are described")
def _(client: Client) -> None:
    topic = client.shared_topic("configured", lambda: client.topic("configured", configs=OWN))
    wanted = resource(TOPIC, topic.name, "retention.ms", "no.such.setting")
    client.note("answer", described(client, 4, wanted, IncludeSynonyms=True))


def _changed(changes: list[tuple[str, int, str | None]], client: Client) -> None:
    topic = client.topic("altered", configs={"retention.ms": "77", "cleanup.policy": "delete"})
    for label, validate in (("validated", True), ("altered", False)):
        message = alter(TOPIC, topic.name, *changes, validate=validate)
        client.note(label, client.call("IncrementalAlterConfigs", 1, message))
    _await_change(client, topic.name)
    wanted = resource(TOPIC, topic.name, "retention.ms", "cleanup.policy")
    if ("retention.ms", DELETE, None) not in changes:  # its default is the operator's
        found = described(client, 4, wanted)[0]["Configs"]
        client.note("afterwards", {each["Name"]: each["Value"] for each in found})


def _await_change(client: Client, name: str) -> None:
    """Make a further change and wait until it shows: Kafka acknowledges changes before its broker applies them."""
    client.call("IncrementalAlterConfigs", 1, alter(TOPIC, name, ("flush.messages", SET, "4711")))
    wanted = resource(TOPIC, name, "flush.messages")

    def is_shown() -> bool:
        return bool(described(client, 4, wanted)[0]["Configs"][0]["Value"] == "4711")

    client.until(is_shown, "DescribeConfigs does not show a change")


for _changes in CHANGES:
    _words = ", ".join(
        f"{('set', 'delete', 'append', 'subtract')[kind]} {key}={value}" for key, kind, value in _changes
    )
    AREA.add(f"a change: {_words or 'nothing'}", functools.partial(_changed, _changes))


@AREA.row("changes of what does not exist")
def _(client: Client) -> None:
    targets = [
        (TOPIC, ABSENT), (TOPIC, "../x"), (BROKER, "2000000000"), (BROKER, "one"), (99, "x"),
    ]  # fmt: skip
    for kind, name in targets:
        answer = client.call("IncrementalAlterConfigs", 1, alter(kind, name, ("retention.ms", SET, "1")))
        client.note(f"kind {kind}, name {name}", answer)


@AREA.row("a resource twice in one request")
def _(client: Client) -> None:
    topic = client.shared_topic("configured", lambda: client.topic("configured", configs=OWN))
    message = alter(TOPIC, topic.name, ("retention.ms", SET, "86400000"))
    message["Resources"] *= 2
    client.note("answer", client.call("IncrementalAlterConfigs", 1, message))


@AREA.row("AlterConfigs replaces all settings")
def _(client: Client) -> None:
    topic = client.topic("replaced", configs={"retention.ms": "77", "segment.bytes": "2097152"})
    configs = [{"Name": "retention.ms", "Value": "99"}]
    message = {"Resources": [{"ResourceType": TOPIC, "ResourceName": topic.name, "Configs": configs}]}
    client.note("answer", client.call("AlterConfigs", 2, {**message, "ValidateOnly": False}))
    _await_change(client, topic.name)
    client.note("the new value", described(client, 4, resource(TOPIC, topic.name, "retention.ms"))[0]["Configs"])
    found = described(client, 4, resource(TOPIC, topic.name, "segment.bytes"))[0]["Configs"][0]
    client.note("the other setting is no longer the topic's", found["ConfigSource"] != 1)
