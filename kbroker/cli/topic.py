"""`kbroker topic`: create, delete, list, describe and alter topics of any broker, with the flags of Kafka's tool.

Results go to stdout, errors to stderr with Kafka's messages. `--describe` prints tables on a terminal, Kafka's lines
elsewhere, and JSON with `--format json`.
"""

from __future__ import annotations

import argparse
import json
import sys
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from kbroker.cli import EXIT_FAILED, CommandFailed, Commands
from kbroker.cli._admin import add_connection_flags, admin_client
from kbroker.cli._say import say

if TYPE_CHECKING:
    from kbroker.client.cluster import Cluster

ACTIONS: Final = ("create", "delete", "alter", "list", "describe")
MAX_REPLICATION_FACTOR: Final = 32_767
COLLISION_WARNING: Final = (
    "WARNING: Due to limitations in metric names, topics with a period ('.') or underscore ('_') could collide. To "
    "avoid issues it is best to use either, but not both."
)
# The actions with which each flag can be used, as in Kafka's tool.
_FLAGS_OF: Final = {
    "config": {"create"},
    "partitions": {"create", "alter"},
    "replication_factor": {"create"},
    "replica_assignment": {"create", "alter"},
    "if_not_exists": {"create"},
    "if_exists": {"alter", "delete", "describe"},
    "exclude_internal": {"list", "describe"},
    "topic_id": {"describe"},
    "under_replicated_partitions": {"describe"},
    "unavailable_partitions": {"describe"},
    "under_min_isr_partitions": {"describe"},
    "at_min_isr_partitions": {"describe"},
    "topics_with_overrides": {"describe"},
}


def add_parser(commands: Commands) -> None:
    """Declare the command and its flags."""
    parser = commands.add_parser(
        "topic",
        aliases=["topics"],
        help="create, delete, list, describe or alter topics",
        description="Create, delete, list, describe or alter topics on any Kafka-compatible broker.",
    )
    add_connection_flags(parser)
    actions = parser.add_mutually_exclusive_group(required=True)
    for action, text in (
        ("create", "create a topic"),
        ("delete", "delete topics"),
        ("alter", "add partitions to topics"),
        ("list", "print the names of topics"),
        ("describe", "print partitions, replicas and settings of topics"),
    ):
        actions.add_argument(f"--{action}", action="store_const", const=action, dest="action", help=text)
    parser.add_argument(
        "--topic", metavar="NAME", help="topic; except with --create, a comma-separated list of regular expressions"
    )
    parser.add_argument("--topic-id", metavar="ID", help="id of the topic to describe")
    parser.add_argument("--partitions", type=_partitions, metavar="N", help="number of partitions")
    parser.add_argument(
        "--replication-factor", type=_replication_factor, metavar="N", help="number of replicas of each partition"
    )
    parser.add_argument(
        "--replica-assignment", type=parse_assignment, metavar="0:1,1:2",
        help="brokers of each partition: commas separate partitions, colons separate the replicas of one partition",
    )  # fmt: skip
    parser.add_argument(
        "--config", action="append", type=parse_config, metavar="NAME=VALUE", help="topic setting; repeatable"
    )
    for flag, text in (
        ("if-exists", "do nothing if the topic does not exist"),
        ("if-not-exists", "do nothing if the topic exists"),
        ("exclude-internal", "skip internal topics"),
        ("under-replicated-partitions", "show only partitions with out-of-sync replicas"),
        ("unavailable-partitions", "show only partitions without a live leader"),
        ("under-min-isr-partitions", "show only partitions with fewer in-sync replicas than min.insync.replicas"),
        ("at-min-isr-partitions", "show only partitions with exactly min.insync.replicas in-sync replicas"),
        ("topics-with-overrides", "show only topics with settings of their own"),
    ):
        parser.add_argument(f"--{flag}", action="store_true", default=None, help=text)
    parser.add_argument("--format", choices=["text", "json"], default="text", help="output format (default text)")
    parser.set_defaults(run=partial(topic, parser))


def _partitions(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("The partitions must be greater than 0")
    return number


def _replication_factor(text: str) -> int:
    number = int(text)
    if not 1 <= number <= MAX_REPLICATION_FACTOR:
        raise argparse.ArgumentTypeError("The replication factor must be between 1 and 32767 inclusive")
    return number


def parse_config(text: str) -> tuple[str, str]:
    """Split `name=value` at the first `=`."""
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise argparse.ArgumentTypeError('all configs to be added must be in the format "key=val"')
    return name.strip(), value.strip()


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


def topic(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    """Run the action that the flags choose; return the exit code."""
    _check(parser, options)
    act = {"create": _create, "delete": _delete, "alter": _alter, "list": _list, "describe": _describe}[options.action]
    try:
        with admin_client(options) as client:
            act(client, options)
    except CommandFailed as failure:
        say(f"Error while executing topic command : {failure}", file=sys.stderr)
        return EXIT_FAILED
    return 0


def _check(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Exit with a usage error if flags contradict each other."""
    action = options.action
    if action == "alter" and options.config:
        parser.error("--config cannot be used with --alter: use `kbroker config` to change settings of a topic")
    for name, goes_with in _FLAGS_OF.items():
        if getattr(options, name) is not None and action not in goes_with:
            parser.error(f"--{name.replace('_', '-')} cannot be used with --{action}")
    if action in {"create", "delete", "alter"} and not options.topic:
        parser.error(f"--{action} requires --topic")
    if action == "alter" and options.partitions is None:
        parser.error("--alter requires --partitions")
    if action == "create" and options.replica_assignment and (options.partitions or options.replication_factor):
        parser.error("--replica-assignment cannot be used with --partitions or --replication-factor")
    if action == "describe" and options.if_exists and not (options.topic or options.topic_id):
        parser.error("--topic or --topic-id is required to describe a topic")


def _create(client: Cluster, options: argparse.Namespace) -> None:
    from kbroker.cli._topics import create_topic  # noqa: PLC0415  (--help must not import the client)

    if "." in options.topic or "_" in options.topic:
        say(COLLISION_WARNING, file=sys.stderr)
    is_created = create_topic(
        client,
        options.topic,
        partitions=options.partitions,
        replication_factor=options.replication_factor,
        assignment=options.replica_assignment or [],
        configs=dict(options.config or []),
        if_not_exists=bool(options.if_not_exists),
    )
    if options.format == "json":
        _print_json({"topic": options.topic, "is_created": is_created})
    elif is_created:
        say(f"Created topic {options.topic}.")


def _existing(client: Cluster, options: argparse.Namespace, *, keeps_internal: bool = False) -> list[str]:
    """The topics that match; with `keeps_internal`, internal topics only if they are named exactly.

    Raises CommandFailed if no topic matches, unless --if-exists is given.
    """
    from kbroker.cli._topics import internal_topics, matching_topics  # noqa: PLC0415

    names = matching_topics(client, options.topic, exclude_internal=bool(options.exclude_internal))
    if keeps_internal and (kept := sorted(internal_topics(client, names) - set(options.topic.split(",")))):
        names = [name for name in names if name not in kept]
        why = f"skipping internal topics that are not named exactly: {', '.join(kept)}"
        if not names:
            raise CommandFailed(why)
        say(f"WARNING: {why}", file=sys.stderr)
    if options.topic and not names and not options.if_exists:
        raise CommandFailed(f"Topic '{options.topic}' does not exist as expected")
    return names


def _delete(client: Cluster, options: argparse.Namespace) -> None:
    from kbroker.cli._topics import delete_topics  # noqa: PLC0415

    names = _existing(client, options, keeps_internal=True)
    delete_topics(client, names)
    if options.format == "json":
        _print_json({"deleted": names})


def _alter(client: Cluster, options: argparse.Namespace) -> None:
    from kbroker.cli._topics import add_partitions  # noqa: PLC0415

    names = _existing(client, options, keeps_internal=True)
    add_partitions(client, names, options.partitions, options.replica_assignment or [])
    if options.format == "json":
        _print_json({"altered": names, "partition_count": options.partitions})


def _list(client: Cluster, options: argparse.Namespace) -> None:
    from kbroker.cli._topics import matching_topics  # noqa: PLC0415

    names = matching_topics(client, options.topic, exclude_internal=bool(options.exclude_internal))
    if options.format == "json":
        _print_json(names)
    else:
        for name in names:
            say(name)


def _describe(client: Cluster, options: argparse.Namespace) -> None:
    from kbroker.cli import _topics  # noqa: PLC0415

    if options.topic_id:
        names = _topics.names_of_id(client, options.topic_id)
        if not names and not options.if_exists:
            raise CommandFailed(f"TopicId '{options.topic_id}' does not exist as expected")
    else:
        names = _existing(client, options)
    filters = _topics.Filters(
        under_replicated=bool(options.under_replicated_partitions),
        unavailable=bool(options.unavailable_partitions),
        under_min_isr=bool(options.under_min_isr_partitions),
        at_min_isr=bool(options.at_min_isr_partitions),
        topics_with_overrides=bool(options.topics_with_overrides),
    )
    topics = _topics.describe(client, names)
    live = _topics.live_brokers(client) if filters.unavailable else set()
    if options.format == "json":
        say(_topics.describe_as_json(topics, filters, live, _topics.controller_epoch(client)))
    else:
        _topics.print_described(topics, filters, live)


def _print_json(value: Any) -> None:
    say(json.dumps(value))
