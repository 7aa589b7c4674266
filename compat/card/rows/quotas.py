"""Client quotas and SCRAM credentials of names that belong to the card."""

from __future__ import annotations

from compat.card.client import Client
from compat.card.codec import Message
from compat.card.registry import Area

AREA = Area("quotas")


def _entity(name: str, kind: str = "client-id") -> list[Message]:
    return [{"EntityType": kind, "EntityName": name}]


def _altered(client: Client, entity: list[Message], key: str, value: float | None) -> Message:
    operation = {"Key": key, "Value": 0.0 if value is None else value, "Remove": value is None}
    entry = {"Entity": entity, "Ops": [operation]}
    return client.call("AlterClientQuotas", 1, {"Entries": [entry], "ValidateOnly": False})


@AREA.row("a quota is set, described and removed")
def _(client: Client) -> None:
    name = client.session.new_name("client")
    asked = {"Components": [{"EntityType": "client-id", "MatchType": 0, "Match": name}], "Strict": True}
    client.note("set", _altered(client, _entity(name), "producer_byte_rate", 1e9))
    try:
        client.until(
            lambda: bool(client.call("DescribeClientQuotas", 1, asked)["Entries"]), "the quota is not described"
        )
        client.note("described", client.call("DescribeClientQuotas", 1, asked))
    finally:
        client.note("removed", _altered(client, _entity(name), "producer_byte_rate", None))
    client.until(lambda: not client.call("DescribeClientQuotas", 1, asked)["Entries"], "the quota is not removed")


@AREA.row("wrong quotas are refused")
def _(client: Client) -> None:
    name = client.session.new_name("client")
    client.note("an unknown key", _altered(client, _entity(name), "no_such_quota", 1.0))
    client.note("an unknown kind of entity", _altered(client, _entity(name, "planet"), "producer_byte_rate", 1.0))
    client.note("a rate of minus one", _altered(client, _entity(name), "producer_byte_rate", -1.0))
    client.note("no entity", _altered(client, [], "producer_byte_rate", 1.0))


@AREA.row("SCRAM credentials of an unknown user are described")
def _(client: Client) -> None:
    name = client.session.new_name("user")
    client.note("answer", client.call("DescribeUserScramCredentials", 0, {"Users": [{"Name": name}]}))


@AREA.row("SCRAM credentials of an unknown user are deleted")
def _(client: Client) -> None:
    name = client.session.new_name("user")
    message = {"Deletions": [{"Name": name, "Mechanism": 1}], "Upsertions": []}
    client.note("answer", client.call("AlterUserScramCredentials", 0, message))
