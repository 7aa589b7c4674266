"""`kbroker topic`: create, delete, list, describe and alter topics of any broker, with the flags of Kafka's tool.

Results go to stdout, errors to stderr with Kafka's messages. `--describe` prints tables on a terminal, Kafka's lines
elsewhere, and JSON with `--format json`.
"""

from __future__ import annotations

import argparse
from functools import partial
from typing import Final

from kbroker.cli import EXIT_FAILED, CommandFailed, Commands
from kbroker.cli import _positions as parse
from kbroker.cli._actions import Actions
from kbroker.cli._admin import add_connection_flags, admin_client
from kbroker.cli._say import note

MAX_REPLICATION_FACTOR: Final = 32_767


def add_parser(commands: Commands) -> None:
    """Declare the command and its flags."""
    parser = commands.add_parser(
        "topic",
        aliases=["topics"],
        help="create, delete, list, describe or alter topics",
        description="Create, delete, list, describe or alter topics on any Kafka-compatible broker.",
    )
    add_connection_flags(parser)
    parser.named = "--topic"
    actions = Actions(
        parser,
        {
            "create": "create a topic",
            "delete": "delete topics",
            "alter": "add partitions to topics",
            "list": "print the names of topics",
            "describe": "print partitions, replicas and settings of topics",
        },
    )
    parser.add_argument(
        "--topic", metavar="NAME", help="topic; except with --create, a comma-separated list of regular expressions"
    )
    actions.add("describe", "--topic-id", metavar="ID", help="id of the topic to describe")
    actions.add(
        "create alter", "--partitions", type=partial(parse.integer, at_least=1, at_most=parse.MAX_INT32), metavar="N",
        help="number of partitions",
    )  # fmt: skip
    actions.add(
        "create", "--replication-factor", metavar="N", help="number of replicas of each partition",
        type=partial(parse.integer, at_least=1, at_most=MAX_REPLICATION_FACTOR),
    )  # fmt: skip
    actions.add(
        "create alter", "--replica-assignment", type=parse_assignment, metavar="0:1,1:2",
        help="brokers of each partition: commas separate partitions, colons separate the replicas of one partition",
    )  # fmt: skip
    actions.add(
        "create", "--config", action="append", type=parse.pair, metavar="NAME=VALUE", help="topic setting; repeatable"
    )
    actions.add("delete", "-y", "--yes", action="store_true", help="do not ask before deleting what a pattern matches")
    for flag, usable_with, text in (
        ("if-exists", "delete alter describe", "do nothing if the topic does not exist"),
        ("if-not-exists", "create", "do nothing if the topic exists"),
        ("exclude-internal", "list describe", "skip internal topics"),
    ):
        actions.add(usable_with, f"--{flag}", action="store_true", help=text)
    for flag, text in (
        ("under-replicated-partitions", "partitions with out-of-sync replicas"),
        ("unavailable-partitions", "partitions without a live leader"),
        ("under-min-isr-partitions", "partitions with fewer in-sync replicas than min.insync.replicas"),
        ("at-min-isr-partitions", "partitions with exactly min.insync.replicas in-sync replicas"),
        ("topics-with-overrides", "topics with settings of their own"),
    ):
        actions.add("describe", f"--{flag}", action="store_true", help=f"show only {text}")
    parser.add_argument("--format", choices=["text", "json"], default="text", help="output format (default text)")
    parser.set_defaults(run=partial(topic, actions))


def parse_assignment(text: str) -> list[list[int]]:
    """The broker ids of each partition in `0:1,1:2`."""
    assignment: list[list[int]] = []
    for index, word in enumerate(text.split(",")):
        try:
            replicas = [int(broker) for broker in word.split(":")]
        except ValueError:
            raise argparse.ArgumentTypeError(f"{word!r} is not a colon-separated list of broker ids") from None
        if duplicates := sorted({broker for broker in replicas if replicas.count(broker) > 1}):
            raise argparse.ArgumentTypeError(
                f"Partition replica lists may not contain duplicate entries: {','.join(map(str, duplicates))}"
            )
        if assignment and len(replicas) != len(assignment[0]):
            raise argparse.ArgumentTypeError(f"Partition {index} has different replication factor: {replicas}")
        assignment.append(replicas)
    return assignment


def topic(actions: Actions, options: argparse.Namespace) -> int:
    """Run the action that the flags choose; return the exit code."""
    _check(actions, options)
    try:
        with admin_client(options) as client:
            from kbroker.cli._topic_actions import ACTIONS  # noqa: PLC0415  (--help must not import the client)

            ACTIONS[options.action](client, options)
    except CommandFailed as failure:
        note(f"Error while executing topic command : {failure}")
        return EXIT_FAILED
    return 0


def _check(actions: Actions, options: argparse.Namespace) -> None:
    """Exit with a usage error if flags contradict each other."""
    action, refuse = options.action, actions.parser.error
    if action == "alter" and options.config:
        refuse("--config cannot be used with --alter: use `kbroker config` to change settings of a topic")
    actions.check(options)
    if action in {"create", "delete", "alter"} and not options.topic:
        refuse(f"--{action} requires --topic")
    if action == "alter" and options.partitions is None:
        refuse("--alter requires --partitions")
    if action == "create" and options.replica_assignment and (options.partitions or options.replication_factor):
        refuse("--replica-assignment cannot be used with --partitions or --replication-factor")
    if action == "describe" and options.if_exists and not (options.topic or options.topic_id):
        refuse("--topic or --topic-id is required to describe a topic")
