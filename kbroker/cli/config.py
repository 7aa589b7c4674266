"""`kbroker config`: print and change settings of topics, brokers, brokers' loggers and groups of any broker.

The flags and the output are those of Kafka's tool, including its short forms `--topic`, `--broker`,
`--broker-defaults`, `--broker-logger` and `--group`.
"""

from __future__ import annotations

import argparse
import re
from functools import partial
from pathlib import Path
from typing import Final

from kbroker.cli import CommandFailed, Commands
from kbroker.cli._actions import Actions
from kbroker.cli._admin import add_connection_flags, admin_client, read_properties
from kbroker.cli._say import say, say_json

TYPES: Final = ("topics", "brokers", "broker-loggers", "groups", "client-metrics")
_REFUSED: Final = ("users", "clients", "ips")
_SHORT: Final = {
    "topic": "topics",
    "broker": "brokers",
    "broker-logger": "broker-loggers",
    "group": "groups",
    "client-metrics": "client-metrics",
}
_NAME: Final = re.compile(r"[a-zA-Z0-9._-]+")
# Matches after a separator that is not inside square brackets, as in Kafka's tool.
_OUTSIDE: Final = r"(?=[^\]]*(?:\[|$))"


def add_parser(commands: Commands) -> None:
    """Declare the command and its flags."""
    parser = commands.add_parser(
        "config",
        aliases=["configs"],
        help="print or change settings of topics, brokers and groups",
        description="Print or change settings of topics, brokers and groups on any Kafka-compatible broker.",
    )
    add_connection_flags(parser)
    actions = Actions(parser, {"describe": "print settings", "alter": "change settings"})
    parser.add_argument("--entity-type", choices=[*TYPES, *_REFUSED], metavar="TYPE", help=", ".join(TYPES))
    parser.add_argument("--entity-name", type=_name, metavar="NAME", help="name of a topic or group, or id of a broker")
    parser.add_argument("--entity-default", action="store_true", help="with brokers: the defaults of all brokers")
    for flag, kind in _SHORT.items():
        parser.add_argument(
            f"--{flag}", action="append", dest="short", type=partial(_named, kind), metavar="NAME",
            help=f"short for --entity-type {kind} --entity-name",
        )  # fmt: skip
    parser.add_argument(
        "--broker-defaults", action="append_const", dest="short", const=("brokers", ""),
        help="short for --entity-type brokers --entity-default",
    )  # fmt: skip
    actions.add(
        "describe", "--all", action="store_true", help="with --describe: all settings, not only those of this entity"
    )
    actions.add(
        "alter", "--add-config", type=parse_added, metavar="NAME=VALUE,...",
        help="settings to change; write a value that contains commas in square brackets",
    )  # fmt: skip
    actions.add(
        "alter", "--add-config-file", type=Path, metavar="FILE",
        help="settings to change, in Kafka's properties format",
    )  # fmt: skip
    actions.add(
        "alter", "--delete-config", action="append", type=parse_deleted, metavar="NAME,...", help="settings to remove"
    )
    parser.add_argument("--format", choices=["text", "json"], default="text", help="output format (default text)")
    parser.set_defaults(run=partial(config, actions))


def _name(text: str) -> str:
    if not text:
        raise argparse.ArgumentTypeError("the name is empty")
    return text


def _named(kind: str, text: str) -> tuple[str, str]:
    return kind, _name(text)


def parse_added(text: str) -> dict[str, str]:
    """Parse settings such as `a=1,b=[2,3],c=`."""
    found = {}
    for word in re.split("," + _OUTSIDE, text):
        pair = re.split(r"\s*=\s*" + _OUTSIDE, word)
        if len(pair) != 2:
            raise argparse.ArgumentTypeError(
                'Invalid entity config: all configs to be added must be in the format "key=val".'
            )
        found[check_name(pair[0].strip())] = re.sub(r"[\[\]]", "", pair[1]).strip()
    return found


def parse_deleted(text: str) -> list[str]:
    """Parse names such as `a,b`."""
    return [check_name(word.strip()) for word in text.split(",")]


def check_name(name: str) -> str:
    """Return a valid name of a setting. Errors: ArgumentTypeError."""
    if not _NAME.fullmatch(name):
        raise argparse.ArgumentTypeError(f"Invalid character found for config key: {name}")
    return name


def config(actions: Actions, options: argparse.Namespace) -> None:
    """Print or change settings."""
    refuse = actions.parser.error
    kind, name = _entity(actions.parser, options)
    actions.check(options)
    if options.action == "describe":
        with admin_client(options) as client:
            from kbroker.cli._configs import show  # noqa: PLC0415  (--help must not import the client)

            show(client, kind, name, options)
        return
    if name is None:
        refuse("--alter requires --entity-name, or --entity-default for all brokers")
    if not (options.add_config or options.add_config_file or options.delete_config):
        refuse("--alter requires --add-config, --add-config-file or --delete-config")
    if options.add_config and options.add_config_file:
        refuse("--add-config cannot be used with --add-config-file")
    added = _read_added(options.add_config_file) if options.add_config_file else options.add_config or {}
    deleted = [each for listed in options.delete_config or [] for each in listed]
    if both := sorted(set(added) & set(deleted)):
        refuse(f"{', '.join(both)} cannot be both added and deleted")
    with admin_client(options) as client:
        from kbroker.cli._configs import Entity, alter  # noqa: PLC0415

        alter(client, Entity(kind, name), added=added, deleted=deleted)
    if options.format == "json":
        say_json({"entity_type": kind, "entity_name": name or None, "added": added, "deleted": deleted})
    elif name:
        say(f"Completed updating config for {kind.removesuffix('s')} {name}.")
    else:
        say(f"Completed updating default config for {kind} in the cluster.")


def _entity(parser: argparse.ArgumentParser, options: argparse.Namespace) -> tuple[str, str | None]:
    """Type and name of the entity; the name "" means the defaults of all brokers, None means all entities."""
    chosen = list(options.short or [])
    if options.entity_type is not None:
        if options.entity_name is not None and options.entity_default:
            parser.error("--entity-name cannot be used with --entity-default")
        chosen.append((options.entity_type, "" if options.entity_default else options.entity_name))
    elif options.entity_name is not None or options.entity_default:
        parser.error("--entity-name and --entity-default require --entity-type")
    if len(chosen) != 1:
        parser.error(f"one --entity-type is required, of {', '.join(TYPES)}")
    ((kind, name),) = chosen
    if kind in _REFUSED:
        hint = "; kbroker user sets credentials" if kind == "users" else ""
        parser.error(f"kbroker config does not support quotas and credentials of {kind}{hint}")
    if options.entity_default and kind != "brokers":
        parser.error(f"--entity-default can be used only with brokers, not with {kind}")
    if kind in {"brokers", "broker-loggers"} and name and not re.fullmatch(r"\d{1,9}", name, re.ASCII):
        parser.error(f"the entity name for {kind} must be the id of a broker, found: {name}")
    return kind, name


def _read_added(path: Path) -> dict[str, str]:
    found = read_properties(path)
    if not found:
        raise CommandFailed(f"{path} contains no settings")
    try:
        return {check_name(name): value for name, value in found.items()}
    except argparse.ArgumentTypeError as error:
        raise CommandFailed(f"{path}: {error}") from error
