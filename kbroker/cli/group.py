"""`kbroker group`: list, describe and delete consumer groups of any broker, and reset or delete their offsets.

The flags are those of Kafka's tool, which has no `--wait`. Results go to stdout: tables on a terminal, Kafka's columns
elsewhere, JSON with `--format json`. Notes (no active members, a rebalance in progress) go to stderr.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from kbroker.cli import Commands
from kbroker.cli import _positions as parse
from kbroker.cli._actions import Actions
from kbroker.cli._admin import add_connection_flags, admin_client

DEFAULT_TIMEOUT_MS: Final = 5_000
WAIT_TIMEOUT_MS: Final = 60_000
STATES: Final = (
    "PreparingRebalance",
    "CompletingRebalance",
    "Stable",
    "Dead",
    "Empty",
    "Assigning",
    "Reconciling",
    "NotReady",
)
TYPES: Final = ("Classic", "Consumer", "Share", "Streams")
ALL: Final = ()
"""The value of `--state` and `--type` if they are given without one."""
SHOWN: Final = -1
"""The same of `--members`."""

# The targets of --reset-offsets.
_TARGETS: Final[Mapping[str, dict[str, Any]]] = {
    "to-earliest": {"action": "store_true", "help": "log start offset"},
    "to-latest": {"action": "store_true", "help": "log end offset"},
    "to-current": {"action": "store_true", "help": "current offset of the group; the log end offset if it has none"},
    "to-offset": {"type": parse.any_integer, "metavar": "N", "help": "this offset"},
    "to-datetime": {
        "type": parse.point_in_time,
        "metavar": "YYYY-MM-DDTHH:mm:SS.sss",
        "help": "first record at or after this time (UTC unless it has a time zone)",
    },
    "by-duration": {
        "type": parse.duration,
        "metavar": "PnDTnHnMnS",
        "help": "first record at or after the current time minus this duration",
    },
    "shift-by": {"type": parse.any_integer, "metavar": "N", "help": "current offset plus N; N may be negative"},
    "from-file": {"type": Path, "metavar": "FILE", "help": "offsets in a CSV file; see --export"},
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
    parser.named = "--group"
    actions = Actions(
        parser,
        {
            "list": "print the names of groups",
            "describe": "print offsets with lag, or members, or state of groups",
            "delete": "delete groups that have no members, and their offsets",
            "reset-offsets": "change the offsets of groups that have no members; requires --execute to take effect",
            "delete-offsets": "delete offsets of a group",
            "wait": "wait until a group has a state, a number of members or a small lag",
        },
    )
    actions.add(
        "describe delete reset-offsets delete-offsets wait", "--group", action="append", metavar="NAME",
        help="group; repeatable",
    )  # fmt: skip
    actions.add("describe delete reset-offsets", "--all-groups", action="store_true", help="all groups")
    actions.add("delete", "-y", "--yes", action="store_true", help="do not ask before deleting all groups")
    actions.add(
        "reset-offsets delete-offsets", "--topic", action="append", type=parse.topic_partitions,
        metavar="NAME[:0,1]", help="topic, optionally with partitions; repeatable",
    )  # fmt: skip
    actions.add(
        "reset-offsets", "--all-topics", action="store_true", help="all partitions for which the group has an offset"
    )
    actions.add(
        "wait", "--lag", type=parse.natural, metavar="N",
        help="wait until the group is at most N records behind, in all partitions together",
    )  # fmt: skip
    described = parser.add_argument_group("output of --describe and --list, conditions of --wait")
    actions.add("describe", "--offsets", to=described, action="store_true", help="offsets with lag (the default)")
    actions.add(
        "describe wait", "--members", to=described, nargs="?", const=SHOWN, type=parse.natural, metavar="N",
        help="members; with --wait, wait until there are N",
    )  # fmt: skip
    actions.add(
        "describe list wait", "--state", to=described, nargs="?", const=ALL, type=partial(_chosen, STATES, "state"),
        metavar="STATES", help="print the state; with --list, only groups in these states; with --wait, one of these",
    )  # fmt: skip
    actions.add(
        "list", "--type", to=described, nargs="?", const=ALL, type=partial(_chosen, TYPES, "type"), metavar="TYPES",
        help="print the type; only groups of these types",
    )  # fmt: skip
    actions.add(
        "describe", "--verbose", to=described, action="store_true",
        help="also print leader epochs and the partitions of each member",
    )  # fmt: skip
    reset = parser.add_argument_group("target of --reset-offsets")
    for target, declaration in _TARGETS.items():
        actions.add("reset-offsets", f"--{target}", to=reset, **declaration)
    for flag, text in (
        ("dry-run", "change nothing (the default)"),
        ("execute", "change the offsets"),
        ("export", "print the plan as CSV for --from-file"),
    ):
        actions.add("reset-offsets", f"--{flag}", to=reset, action="store_true", help=text)
    parser.add_argument(
        "--timeout", type=parse.milliseconds, metavar="MS",
        help=f"how long to wait for a group's coordinator (default {DEFAULT_TIMEOUT_MS}), or with --wait for the group"
        f" (default {WAIT_TIMEOUT_MS})",
    )  # fmt: skip
    parser.add_argument("--format", choices=["text", "json"], default="text", help="output format (default text)")
    parser.set_defaults(run=partial(group, actions))


def _chosen(known: Sequence[str], what: str, text: str) -> list[str]:
    """The words of a comma-separated list, in Kafka's spelling; none for an empty text. Case is ignored."""
    spelled = {name.lower(): name for name in known}
    words = [word.strip() for word in text.split(",") if text]
    for word in words:
        if word.lower() not in spelled:
            raise argparse.ArgumentTypeError(f"{word!r} is not a {what} of a group; use one of {', '.join(known)}")
    return [spelled[word.lower()] for word in words]


def group(actions: Actions, options: argparse.Namespace) -> int:
    """Run the action that the flags choose; return the exit code."""
    _check(actions, options)
    with admin_client(options) as client:
        from kbroker.cli._group_actions import ACTIONS  # noqa: PLC0415  (--help must not import the client)

        return ACTIONS[options.action](client, options)


def _check(actions: Actions, options: argparse.Namespace) -> None:
    """Exit with a usage error if flags contradict each other."""
    action, refuse = options.action, actions.parser.error
    actions.check(options)
    if options.timeout is None:
        options.timeout = WAIT_TIMEOUT_MS if action == "wait" else DEFAULT_TIMEOUT_MS
    if action != "list" and not (options.group or options.all_groups):
        takes_one = action in {"delete-offsets", "wait"}
        refuse(f"--{action} requires {'--group' if takes_one else '--group or --all-groups'}")
    if options.group and options.all_groups:
        refuse("--group cannot be used with --all-groups")
    if options.group and "" in options.group:
        refuse("the name of a group is empty")
    if action == "describe":
        if options.offsets + (options.members is not None) + (options.state is not None) > 1:
            refuse("--describe takes one of --offsets, --members and --state")
        if options.state or options.members not in (None, SHOWN):
            refuse("--state and --members take no value with --describe")
    elif action == "wait":
        if len(options.group) != 1:
            refuse("--wait takes one --group")
        if (options.state is not None and not options.state) or options.members == SHOWN:
            refuse("--state and --members require a value with --wait")
        if options.state is None and options.members is None and options.lag is None:
            refuse("--wait requires --state, --members or --lag")
    elif action == "delete-offsets":
        if not options.topic or len(options.group) != 1:
            refuse("--delete-offsets requires one --group and --topic")
    elif action == "reset-offsets":
        given = [getattr(options, target.replace("-", "_")) for target in _TARGETS]
        if sum(each is not None and each is not False for each in given) != 1:
            refuse(f"--reset-offsets requires one of {', '.join(f'--{target}' for target in _TARGETS)}")
        if options.dry_run and options.execute:
            refuse("--dry-run cannot be used with --execute")
        if options.topic and options.all_topics:
            refuse("--topic cannot be used with --all-topics")
        if not (options.topic or options.all_topics or options.from_file):
            refuse("--reset-offsets requires --all-topics or --topic")
        if options.export and options.format == "json":
            refuse("--export prints CSV and cannot be used with --format json")
