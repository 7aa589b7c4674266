"""kafka-configs for users, clients and addresses: quotas, and SCRAM credentials of users.

Other resources are those of `kbroker config`.

Source  ConfigCommand of Apache Kafka 4.3.1, and a test that runs it beside this
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from kbroker.cli import CommandFailed, Parser, main
from kbroker.cli._admin import add_connection_flags, admin_client, explain_code
from kbroker.cli._say import say
from kbroker.cli.user import MECHANISMS, create_user, delete_user, users_of
from kbroker.client.cluster import Cluster
from kbroker.security.sasl.scram import MAX_ITERATIONS, MIN_ITERATIONS
from wire.errors import check
from wire.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntryData,
    OpData,
)
from wire.messages.describe_client_quotas import ComponentData, DescribeClientQuotasRequest, EntityData

_KINDS: Final = {"users": "user", "clients": "client-id", "ips": "ip"}
_SHORT: Final = {"user": "users", "client": "clients", "ip": "ips"}
_SHOWN: Final = {"user": "user-principal", "client-id": "client-id", "ip": "ip"}
_EXACT, _DEFAULT, _ANY = 0, 1, 2
_BETWEEN: Final = re.compile(r",(?![^\[]*\])")
_CREDENTIAL: Final = re.compile(r"(?:iterations=(?P<iterations>\d+),)?password=(?P<password>.+)")

Entity = dict[str, str | None]
"""Names by type in Kafka's protocol; None is the default."""


def configs(words: Sequence[str]) -> int:
    """kafka-configs."""
    parts = [part for word in words for part in (word.split("=", 1) if word.startswith("--") else [word])]
    if not {"--entity-type", *(f"--{each}{end}" for each in _SHORT for end in ("", "-defaults"))} & set(parts):
        return main(["config", *words])
    types = [parts[at + 1] for at, part in enumerate(parts[:-1]) if part == "--entity-type"]
    if types and not set(types) <= set(_KINDS):
        return main(["config", *words])
    options = _parser().parse_args(list(words))
    entity = _entity(options)
    with admin_client(options) as client:
        if options.describe:
            _describe(client, entity)
        else:
            _alter(client, entity, _pairs(options.add_config), _names(options.delete_config))
    if options.alter:
        kind, name = next(iter(entity.items()))
        plural = next(each for each, of in _KINDS.items() if of == kind)
        whose = f"default config for {plural} in the cluster" if name is None else f"config for {plural[:-1]} {name}"
        say(f"Completed updating {whose}.")
    return 0


class _Named(argparse.Action):
    """Collects names and defaults of entities in their order."""

    def __call__(self, _parser: Any, namespace: argparse.Namespace, values: Any, option: str | None = None) -> None:
        flag = (option or "").removeprefix("--")
        short = flag.removesuffix("-defaults")
        if short in _SHORT:
            namespace.types = [*namespace.types, _SHORT[short]]
        namespace.names = [*namespace.names, values if isinstance(values, str) else None]


def _parser() -> Parser:
    parser = Parser(prog="kafka-configs")
    add_connection_flags(parser)
    what = parser.add_mutually_exclusive_group(required=True)
    for name in ("alter", "describe"):
        what.add_argument(f"--{name}", action="store_true")
    parser.add_argument("--add-config", default="")
    parser.add_argument("--delete-config", default="")
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--entity-type", dest="types", action="append", default=[], choices=list(_KINDS))
    for flag in ("entity-name", *_SHORT):
        parser.add_argument(f"--{flag}", dest="names", action=_Named, default=[])
    for flag in ("entity-default", *(f"{each}-defaults" for each in _SHORT)):
        parser.add_argument(f"--{flag}", dest="names", action=_Named, nargs=0)
    return parser


def _entity(options: argparse.Namespace) -> Entity:
    """What the flags name; a type without a name means all of them, for --describe."""
    kinds = [_KINDS[each] for each in options.types]
    if len(set(kinds)) < len(kinds) or len(options.names) > len(kinds) or {"ip", "user"} <= set(kinds):
        raise CommandFailed("the entity types and names do not fit together")
    if options.alter and len(options.names) < len(kinds):
        raise CommandFailed("an entity name or --entity-default must be specified with --alter for each entity type")
    named: Entity = dict(zip(kinds, options.names, strict=False))
    return {**named, **dict.fromkeys(kinds[len(named) :], "")} if options.describe else named


def _pairs(text: str) -> dict[str, str]:
    pairs = [each.strip().partition("=") for each in _BETWEEN.split(text) if each.strip()]
    return {name.strip(): value.strip().removeprefix("[").removesuffix("]") for name, _, value in pairs}


def _names(text: str) -> list[str]:
    return [each.strip() for each in text.split(",") if each.strip()]


def _alter(client: Cluster, entity: Entity, added: Mapping[str, str], removed: Sequence[str]) -> None:
    if not added and not removed:
        raise CommandFailed("at least one of --add-config or --delete-config must be specified with --alter")
    credentials = [name for name in (*added, *removed) if name in MECHANISMS]
    if credentials and (list(entity) != ["user"] or entity["user"] is None):
        raise CommandFailed("credentials belong to a user with a name")
    ops = [
        OpData(key=name, value=_number(name, text), remove=False)
        for name, text in added.items()
        if name not in MECHANISMS
    ]
    ops += [OpData(key=name, value=0.0, remove=True) for name in removed if name not in MECHANISMS]
    if credentials and ops:
        raise CommandFailed(
            "Cannot alter both quota and SCRAM credential configs simultaneously for 'users' using --bootstrap-server."
        )
    parsed = {name: _credential(added[name]) for name in added if name in MECHANISMS}
    if ops:
        parts = [EntityData(entity_type=kind, entity_name=name) for kind, name in entity.items()]
        entry = AlterClientQuotasRequestEntryData(entity=parts, ops=ops)
        (done,) = client.ask_controller(AlterClientQuotasRequest(entries=[entry], validate_only=False)).entries
        if done.error_code:
            raise CommandFailed(explain_code(done.error_code, done.error_message))
    for mechanism, (password, iterations) in parsed.items():
        create_user(client, str(entity["user"]), password, [mechanism], iterations)
    if doomed := [name for name in removed if name in MECHANISMS]:
        delete_user(client, str(entity["user"]), doomed)


def _number(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise CommandFailed(f"Cannot parse quota configuration value for {name}: {text}") from None


def _credential(text: str) -> tuple[str, int]:
    found = _CREDENTIAL.fullmatch(text)
    if found is None:
        raise CommandFailed("a credential has the form [iterations=8192,password=...]")
    iterations = int(found["iterations"] or MIN_ITERATIONS)
    if not MIN_ITERATIONS <= iterations <= MAX_ITERATIONS:
        raise CommandFailed(f"iterations must be between {MIN_ITERATIONS} and {MAX_ITERATIONS}")
    return found["password"], iterations


def _describe(client: Cluster, entity: Entity) -> None:
    matches = {
        name: (_ANY, None) if value == "" else (_DEFAULT, None) if value is None else (_EXACT, value)
        for name, value in entity.items()
    }
    components = [ComponentData(entity_type=kind, match_type=how, match=name) for kind, (how, name) in matches.items()]
    answer = client.ask(DescribeClientQuotasRequest(components=components, strict=True))
    check(answer.error_code, answer.error_message)
    for entry in answer.entries or ():
        values = ", ".join(f"{each.key}={each.value}" for each in sorted(entry.values, key=lambda each: each.key))
        say(f"Quota configs for {_whose({each.entity_type: each.entity_name for each in entry.entity})} are {values}")
    if list(entity) != ["user"] or entity["user"] is None:
        return
    for name, mechanisms in sorted(users_of(client).items()):
        if entity["user"] in ("", name):
            values = ", ".join(f"{mechanism}=iterations={count}" for mechanism, count in sorted(mechanisms))
            say(f"SCRAM credential configs for user-principal '{name}' are {values}")


def _whose(entity: Entity) -> str:
    named = [(kind, entity[kind]) for kind in _SHOWN if kind in entity]
    return ", ".join(
        f"the default {_SHOWN[kind]}" if name is None else f"{_SHOWN[kind]} '{name}'" for kind, name in named
    )
