"""`kbroker group`: list, describe and delete consumer groups of any broker, and reset or delete their offsets.

The flags are those of Kafka's tool. Results go to stdout: tables on a terminal, Kafka's columns elsewhere, JSON with
`--format json`. Notes (no active members, a rebalance in progress) go to stderr.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kbroker.cli import EXIT_FAILED, CommandFailed, Commands
from kbroker.cli import _positions as parse
from kbroker.cli._admin import add_connection_flags, admin_client, explain, explain_code
from kbroker.cli._group_words import STATES, TYPES, chosen
from kbroker.cli._say import say, visible_writer
from kbroker.runtime.visible import visible_lines

if TYPE_CHECKING:
    from kbroker.cli._groups import GroupState
    from kbroker.cli._resets import Plan, Way
    from kbroker.client.cluster import Cluster, Partition

DEFAULT_TIMEOUT_MS: Final = 5_000
ALL: Final = ""
"""The value of `--state` and `--type` if they are given without one."""

_WAYS: Final = (
    "to_earliest",
    "to_latest",
    "to_current",
    "to_offset",
    "to_datetime",
    "by_duration",
    "shift_by",
    "from_file",
)
# The actions with which each flag can be used, as in Kafka's tool.
_FLAGS_OF: Final = {
    **{name: {"reset-offsets"} for name in (*_WAYS, "dry_run", "execute", "export", "all_topics")},
    "topic": {"reset-offsets", "delete-offsets"},
    "group": {"describe", "delete", "reset-offsets", "delete-offsets"},
    "all_groups": {"describe", "delete", "reset-offsets"},
    "members": {"describe"},
    "offsets": {"describe"},
    "verbose": {"describe"},
    "state": {"describe", "list"},
    "type": {"list"},
}


def add_parser(commands: Commands) -> None:
    """Declare the command and its flags."""
    parser = commands.add_parser(
        "group",
        aliases=["groups"],
        help="list, describe or delete consumer groups, or reset their offsets",
        description="List, describe or delete consumer groups on any Kafka-compatible broker, or reset their offsets.",
    )
    add_connection_flags(parser)
    actions = parser.add_mutually_exclusive_group(required=True)
    for action, text in (
        ("list", "print the names of groups"),
        ("describe", "print offsets with lag, or members, or state of groups"),
        ("delete", "delete groups that have no members, and their offsets"),
        ("reset-offsets", "change the offsets of groups that have no members; requires --execute to take effect"),
        ("delete-offsets", "delete offsets of a group"),
    ):
        actions.add_argument(f"--{action}", action="store_const", const=action, dest="action", help=text)
    parser.add_argument("--group", action="append", metavar="NAME", help="group; repeatable")
    parser.add_argument("--all-groups", action="store_true", default=None, help="all groups")
    parser.add_argument(
        "--topic", action="append", type=parse.topic_partitions, metavar="NAME[:0,1]",
        help="topic, optionally with partitions; repeatable",
    )  # fmt: skip
    parser.add_argument(
        "--all-topics", action="store_true", default=None, help="all partitions for which the group has an offset"
    )
    described = parser.add_argument_group("output of --describe and --list")
    described.add_argument("--offsets", action="store_true", default=None, help="offsets with lag (the default)")
    described.add_argument("--members", action="store_true", default=None, help="members")
    described.add_argument(
        "--state",
        nargs="?",
        const=ALL,
        metavar="STATES",
        help="print the state; with --list, only groups in these states",
    )
    described.add_argument(
        "--type", nargs="?", const=ALL, metavar="TYPES", help="print the type; only groups of these types"
    )
    described.add_argument(
        "--verbose",
        action="store_true",
        default=None,
        help="also print leader epochs and the partitions of each member",
    )
    _add_ways(parser)
    parser.add_argument(
        "--timeout", type=parse.milliseconds, default=DEFAULT_TIMEOUT_MS, metavar="MS",
        help=f"how long to wait for a group's coordinator (default {DEFAULT_TIMEOUT_MS})",
    )  # fmt: skip
    parser.add_argument("--format", choices=["text", "json"], default="text", help="output format (default text)")
    parser.set_defaults(run=partial(group, parser))


def _add_ways(parser: argparse.ArgumentParser) -> None:
    ways = parser.add_argument_group("target of --reset-offsets")
    for flag, text in (
        ("to-earliest", "log start offset"),
        ("to-latest", "log end offset"),
        ("to-current", "current offset of the group; the log end offset if it has none"),
    ):
        ways.add_argument(f"--{flag}", action="store_true", default=None, help=text)
    ways.add_argument("--to-offset", type=parse.any_integer, metavar="N", help="this offset")
    ways.add_argument(
        "--to-datetime", type=parse.point_in_time, metavar="YYYY-MM-DDTHH:mm:SS.sss",
        help="first record at or after this time (UTC unless it has a time zone)",
    )  # fmt: skip
    ways.add_argument(
        "--by-duration",
        type=parse.duration,
        metavar="PnDTnHnMnS",
        help="first record at or after the current time minus this duration",
    )
    ways.add_argument(
        "--shift-by", type=parse.any_integer, metavar="N", help="current offset plus N; N may be negative"
    )
    ways.add_argument("--from-file", type=Path, metavar="FILE", help="offsets in a CSV file; see --export")
    ways.add_argument("--dry-run", action="store_true", default=None, help="change nothing (the default)")
    ways.add_argument("--execute", action="store_true", default=None, help="change the offsets")
    ways.add_argument("--export", action="store_true", default=None, help="print the plan as CSV for --from-file")


def group(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    """Run the action that the flags choose; return the exit code."""
    _check(parser, options)
    act = {
        "list": _list,
        "describe": _describe,
        "delete": _delete,
        "reset-offsets": _reset,
        "delete-offsets": _delete_offsets,
    }[options.action]
    with admin_client(options) as client:
        return act(client, options) or 0


def _check(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Exit with a usage error if flags contradict each other; split the lists of states and types."""
    action = options.action
    for name, goes_with in _FLAGS_OF.items():
        if getattr(options, name) is not None and action not in goes_with:
            parser.error(f"--{name.replace('_', '-')} cannot be used with --{action}")
    if action != "list" and not (options.group or options.all_groups):
        flags = "--group" if action == "delete-offsets" else "--group or --all-groups"
        parser.error(f"--{action} requires {flags}")
    if options.group and options.all_groups:
        parser.error("--group cannot be used with --all-groups")
    if options.group and "" in options.group:
        parser.error("the name of a group is empty")
    if action == "describe":
        if sum(1 for name in ("offsets", "members", "state") if getattr(options, name) is not None) > 1:
            parser.error("--describe takes one of --offsets, --members and --state")
        if options.state:
            parser.error("--state takes no value with --describe")
    elif action == "list":
        try:
            options.state = chosen(options.state, STATES, "state")
            options.type = chosen(options.type, TYPES, "type")
        except argparse.ArgumentTypeError as error:
            parser.error(str(error))
    elif action == "delete-offsets":
        if not options.topic or len(options.group) != 1:
            parser.error("--delete-offsets requires one --group and --topic")
    elif action == "reset-offsets":
        _check_reset(parser, options)


def _check_reset(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    ways = [name for name in _WAYS if getattr(options, name) is not None]
    flags = ", ".join(f"--{name.replace('_', '-')}" for name in _WAYS)
    if len(ways) != 1:
        parser.error(f"--reset-offsets requires one of {flags}")
    if options.dry_run and options.execute:
        parser.error("--dry-run cannot be used with --execute")
    if options.topic and options.all_topics:
        parser.error("--topic cannot be used with --all-topics")
    if not (options.topic or options.all_topics or options.from_file):
        parser.error("--reset-offsets requires --all-topics or --topic")
    if options.export and options.format == "json":
        parser.error("--export prints CSV and cannot be used with --format json")


def _names(client: Cluster, options: argparse.Namespace) -> list[str]:
    from kbroker.cli._groups import list_groups  # noqa: PLC0415

    if options.all_groups:
        return [each.group for each in list_groups(client, states=(), types=())]
    return list(dict.fromkeys(options.group))


def _list(client: Cluster, options: argparse.Namespace) -> None:
    from kbroker.cli._groups import list_groups  # noqa: PLC0415  (--help must not import the client)
    from kbroker.cli._table import print_rows  # noqa: PLC0415

    found = list_groups(client, states=options.state or (), types=options.type or ())
    if options.format == "json":
        _print_json([{"group": each.group, "type": each.type, "state": each.state} for each in found])
    elif options.state is None and options.type is None:
        for each in found:
            say(each.group)
    else:
        columns = ["GROUP", *(["TYPE"] if options.type is not None else [])]
        columns += ["STATE"] if options.state is not None else []
        fields = {"GROUP": "group", "TYPE": "type", "STATE": "state"}
        print_rows(columns, [[getattr(each, fields[name]) for name in columns] for each in found])


def _describe(client: Cluster, options: argparse.Namespace) -> int:
    from kbroker.cli import _group_output, _groups  # noqa: PLC0415

    states = _groups.describe(client, _names(client, options), timeout_ms=options.timeout)
    found = [state for state in states if state.exists]
    for state in states:
        _note(state)
    if options.format == "json":
        _print_json([_group_output.as_json(state, _groups.progress(client, state)) for state in found])
    elif options.members:
        _group_output.print_members(found, verbose=bool(options.verbose))
    elif options.state is not None:
        _group_output.print_states(found, verbose=bool(options.verbose))
    else:
        for number, state in enumerate(found):
            if number:
                say()
            _group_output.print_progress(state, _groups.progress(client, state), verbose=bool(options.verbose))
    return 0 if len(found) == len(states) else EXIT_FAILED


def _note(state: GroupState) -> None:
    if not state.exists:
        text = f"group {state.group!r} does not exist"
    elif state.state == "Empty":
        text = f"group {state.group!r} has no active members"
    elif state.state != "Stable":
        text = f"group {state.group!r} is rebalancing"
    else:
        return
    _say(text)


def _say(text: str) -> None:
    sys.stdout.flush()
    say(f"kbroker group: {text}", file=sys.stderr)


def _delete(client: Cluster, options: argparse.Namespace) -> int:
    from kbroker.cli import _groups  # noqa: PLC0415
    from wire.errors import KafkaError  # noqa: PLC0415

    names = _names(client, options)
    refused = {}
    for name in names:
        try:
            _groups.delete(client, name, timeout_ms=options.timeout)
        except KafkaError as error:
            refused[name] = explain(error)
    deleted = [name for name in names if name not in refused]
    if options.format == "json":
        _print_json({"deleted": deleted})
    elif deleted:
        say(f"Deletion of requested consumer groups ({', '.join(map(repr, deleted))}) was successful.")
    for name, why in refused.items():
        _say(f"group {name!r} was not deleted: {why}")
    return EXIT_FAILED if refused else 0


def _reset(client: Cluster, options: argparse.Namespace) -> int:
    from kbroker.cli import _groups, _resets  # noqa: PLC0415
    from kbroker.cli._table import print_rows  # noqa: PLC0415

    names = _names(client, options)
    way = _way(options, names)
    states = {state.group: state for state in _groups.describe(client, names, timeout_ms=options.timeout)}
    plan: Plan = {}
    is_refused = False
    for name in names:
        if states[name].state not in {_groups.EMPTY, _groups.DEAD}:
            _say(f"cannot reset the offsets of group {name!r}: it is {states[name].state}, not empty")
            is_refused = True
            continue
        plan[name] = way(client, name, _scope(client, name, options))
    if options.execute:
        for name, offsets in plan.items():
            _resets.commit(client, name, offsets)
    rows = [(name, *each, offset) for name, offsets in plan.items() for each, offset in sorted(offsets.items())]
    if options.export:
        visible_writer(sys.stdout, visible_lines)(_resets.format_plan(plan))
    elif options.format == "json":
        keys = ("group", "topic", "partition", "new_offset")
        done = bool(options.execute)
        _print_json({"is_executed": done, "offsets": [dict(zip(keys, row, strict=True)) for row in rows]})
    else:
        print_rows(("GROUP", "TOPIC", "PARTITION", "NEW-OFFSET"), rows)
    if not options.execute and not options.dry_run:
        _say("nothing was changed; use --execute to change the offsets")
    return EXIT_FAILED if is_refused else 0


def _scope(client: Cluster, name: str, options: argparse.Namespace) -> Sequence[Partition]:
    from kbroker.cli import _groups  # noqa: PLC0415

    if options.all_topics:
        return sorted(_groups.committed_offsets(client, name))
    return _groups.expand(client, options.topic or [])


def _way(options: argparse.Namespace, names: Sequence[str]) -> Way:
    from kbroker.cli import _resets  # noqa: PLC0415
    from kbroker.client.operations import EARLIEST, LATEST  # noqa: PLC0415
    from kbroker.runtime.env import RealEnv  # noqa: PLC0415

    if options.to_earliest:
        return _resets.to_spec(EARLIEST)
    if options.to_latest:
        return _resets.to_spec(LATEST)
    if options.to_current:
        return _resets.to_current
    if options.to_offset is not None:
        return _resets.to_offset(options.to_offset)
    if options.to_datetime is not None:
        return _resets.to_timestamp(options.to_datetime)
    if options.by_duration is not None:
        return _resets.to_timestamp(RealEnv().timestamp_ms() - options.by_duration)
    if options.shift_by is not None:
        return _resets.shift_by(options.shift_by)
    return _resets.from_plan(_resets.read_plan(options.from_file, names))


def _delete_offsets(client: Cluster, options: argparse.Namespace) -> int:
    from kbroker.cli._groups import expand  # noqa: PLC0415
    from kbroker.cli._table import print_rows  # noqa: PLC0415
    from kbroker.client.operations import delete_offsets  # noqa: PLC0415
    from wire.errors import KafkaError  # noqa: PLC0415

    (name,) = options.group
    partitions = expand(client, options.topic)
    try:
        codes = delete_offsets(client, name, partitions, timeout_ms=options.timeout)
    except KafkaError as error:
        raise CommandFailed(f"the offsets of group {name!r} were not deleted: {explain(error)}") from error
    rows = [(*each, explain_code(code) if code else None) for each, code in sorted(codes.items())]
    if options.format == "json":
        _print_json([dict(zip(("topic", "partition", "error"), row, strict=True)) for row in rows])
    else:
        columns = ("TOPIC", "PARTITION", "STATUS")
        print_rows(columns, [(*each, f"Error: {error}" if error else "Successful") for *each, error in rows])
    return EXIT_FAILED if any(error for *_, error in rows) else 0


def _print_json(value: Any) -> None:
    say(json.dumps(value))
