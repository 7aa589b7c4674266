"""`kbroker config`: print and change settings of topics, brokers, brokers' loggers and groups of any broker.

The flags and the output are those of Kafka's tool, including its short forms `--topic`, `--broker`,
`--broker-defaults`, `--broker-logger` and `--group`.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kbroker.cli import CommandFailed, Commands
from kbroker.cli._admin import add_connection_flags, admin_client
from kbroker.cli._say import say
from kbroker.runtime.visible import visible

if TYPE_CHECKING:
    from kbroker.cli._configs import Entity, Setting
    from kbroker.client.cluster import Cluster

TYPES: Final = ("topics", "brokers", "broker-loggers", "groups", "client-metrics")
_REFUSED: Final = ("users", "clients", "ips")
_SHORT: Final = {
    "topic": "topics",
    "broker": "brokers",
    "broker_logger": "broker-loggers",
    "group": "groups",
    "client_metrics": "client-metrics",
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
    actions = parser.add_mutually_exclusive_group(required=True)
    actions.add_argument("--describe", action="store_const", const="describe", dest="action", help="print settings")
    actions.add_argument("--alter", action="store_const", const="alter", dest="action", help="change settings")
    parser.add_argument("--entity-type", choices=[*TYPES, *_REFUSED], metavar="TYPE", help=", ".join(TYPES))
    parser.add_argument("--entity-name", metavar="NAME", help="name of a topic or group, or id of a broker")
    parser.add_argument("--entity-default", action="store_true", help="with brokers: the defaults of all brokers")
    for flag in _SHORT:
        words = flag.replace("_", "-")
        parser.add_argument(f"--{words}", metavar="NAME", help=f"short for --entity-type {_SHORT[flag]} --entity-name")
    parser.add_argument(
        "--broker-defaults", action="store_true", help="short for --entity-type brokers --entity-default"
    )
    parser.add_argument(
        "--all", action="store_true", help="with --describe: all settings, not only those of this entity"
    )
    parser.add_argument(
        "--add-config", type=parse_added, metavar="NAME=VALUE,...",
        help="settings to change; write a value that contains commas in square brackets",
    )  # fmt: skip
    parser.add_argument(
        "--add-config-file", type=Path, metavar="FILE", help="settings to change, in Kafka's properties format"
    )
    parser.add_argument(
        "--delete-config", action="append", type=parse_deleted, metavar="NAME,...", help="settings to remove"
    )
    parser.add_argument("--format", choices=["text", "json"], default="text", help="output format (default text)")
    parser.set_defaults(run=partial(config, parser))


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


def config(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Print or change settings."""
    kind, name = _entity(parser, options)
    if options.action == "describe":
        if options.add_config or options.add_config_file or options.delete_config:
            parser.error("--describe cannot be used with --add-config, --add-config-file or --delete-config")
        with admin_client(options) as client:
            _describe(client, kind, name, options)
        return
    if options.all:
        parser.error("--all cannot be used with --alter")
    if name is None:
        parser.error("--alter requires --entity-name, or --entity-default for all brokers")
    if not (options.add_config or options.add_config_file or options.delete_config):
        parser.error("--alter requires --add-config, --add-config-file or --delete-config")
    if options.add_config and options.add_config_file:
        parser.error("--add-config cannot be used with --add-config-file")
    added = _read_added(options.add_config_file) if options.add_config_file else options.add_config or {}
    deleted = [each for listed in options.delete_config or [] for each in listed]
    if both := sorted(set(added) & set(deleted)):
        parser.error(f"{', '.join(both)} cannot be both added and deleted")
    with admin_client(options) as client:
        from kbroker.cli._configs import Entity, alter  # noqa: PLC0415  (--help must not import the client)

        alter(client, Entity(kind, name), added=added, deleted=deleted)
    if options.format == "json":
        say(json.dumps({"entity_type": kind, "entity_name": name or None, "added": added, "deleted": deleted}))
    elif name:
        say(f"Completed updating config for {kind.removesuffix('s')} {name}.")
    else:
        say(f"Completed updating default config for {kind} in the cluster.")


def _entity(parser: argparse.ArgumentParser, options: argparse.Namespace) -> tuple[str, str | None]:
    """Type and name of the entity; the name "" means the defaults of all brokers, None means all entities."""
    chosen = [(kind, getattr(options, flag)) for flag, kind in _SHORT.items() if getattr(options, flag) is not None]
    if options.broker_defaults:
        chosen.append(("brokers", ""))
    if options.entity_type is not None:
        if options.entity_name is not None and options.entity_default:
            parser.error("--entity-name cannot be used with --entity-default")
        chosen.append((options.entity_type, "" if options.entity_default else options.entity_name))
    elif options.entity_name is not None or options.entity_default:
        parser.error("--entity-name and --entity-default require --entity-type")
    if len(chosen) != 1:
        parser.error(f"one --entity-type is required, of {', '.join(TYPES)}")
    kind, name = chosen[0]
    if kind in _REFUSED:
        parser.error(f"kbroker config does not support quotas and credentials of {kind}")
    is_default = options.broker_defaults or options.entity_default
    if name == "" and not is_default:
        parser.error(f"the name for {kind} is empty")
    if is_default and kind != "brokers":
        parser.error(f"--entity-default can be used only with brokers, not with {kind}")
    if kind in {"brokers", "broker-loggers"} and name and not re.fullmatch(r"\d{1,9}", name, re.ASCII):
        parser.error(f"the entity name for {kind} must be the id of a broker, found: {name}")
    return kind, name


def _read_added(path: Path) -> dict[str, str]:
    from kbroker.cli._admin import read_properties  # noqa: PLC0415

    found = read_properties(path)
    if not found:
        raise CommandFailed(f"{path} contains no settings")
    try:
        return {check_name(name): value for name, value in found.items()}
    except argparse.ArgumentTypeError as error:
        raise CommandFailed(f"{path}: {error}") from error


def _describe(client: Cluster, kind: str, name: str | None, options: argparse.Namespace) -> None:
    from kbroker.cli import _configs  # noqa: PLC0415

    meant = [_configs.Entity(kind, name)] if name is not None else _configs.entities(client, kind)
    described = [(entity, _configs.describe(client, entity, all_of_them=options.all)) for entity in meant]
    if options.format == "json":
        say(json.dumps([_configs.as_json(entity, settings) for entity, settings in described]))
        return
    for entity, settings in described:
        _print(entity, settings, everything=options.all)


def _print(entity: Entity, settings: Sequence[Setting], *, everything: bool) -> None:
    from kbroker.cli._table import is_terminal, print_table  # noqa: PLC0415

    title = f"Default configs for {entity.kind} in the cluster are:"
    if not entity.is_default:
        title = f"{'All' if everything else 'Dynamic'} configs for {entity.kind.removesuffix('s')} {entity.name} are:"
    if is_terminal():
        rows = [(each.name, _text(each.value), each.source, each.type) for each in settings]
        print_table(visible(title), ("name", "value", "source", "type"), rows)
        return
    say(title)
    for each in settings:
        synonyms = ", ".join(f"{source}:{name}={_text(value)}" for source, name, value in each.synonyms)
        say(f"  {each.name}={_text(each.value)} sensitive={str(each.is_sensitive).lower()} synonyms={{{synonyms}}}")


def _text(value: str | None) -> str:
    return "null" if value is None else value
