"""`kbroker offset`: print the first, last or other offsets of partitions, or the offset of a timestamp.

The flags and the output, `topic:partition:offset`, are those of kafka-get-offsets.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from kbroker.cli import CommandFailed, Commands
from kbroker.cli import _positions as parse
from kbroker.cli._admin import add_connection_flags, admin_client
from kbroker.cli._say import note, say, say_json

if TYPE_CHECKING:
    from kbroker.client.cluster import Cluster

_RULE: Final = re.compile(r"([^:,]*)(?::(?:(\d*)|(\d*)-(\d*)))?", re.ASCII)


class Rule(NamedTuple):
    """The partitions from `first` to `end` (exclusive) of the topics that match an expression."""

    topics: str
    first: int = 0
    end: int = parse.MAX_INT32


def add_parser(commands: Commands) -> None:
    """Declare the command and its flags."""
    parser = commands.add_parser(
        "offset",
        aliases=["offsets"],
        help="print offsets of partitions",
        description="Print offsets of partitions on any Kafka-compatible broker.",
    )
    add_connection_flags(parser)
    parser.add_argument("--topic", metavar="NAME", help="comma-separated list of regular expressions")
    parser.add_argument("--partitions", type=parse_partitions, metavar="0,1", help="only these partitions")
    parser.add_argument(
        "--topic-partitions", type=parse_rules, metavar="a:1,b:0-3,c:5-,d:-3",
        help="topics (regular expressions), each with a partition or a range of partitions; the end is exclusive",
    )  # fmt: skip
    parser.add_argument(
        "--time", type=parse.time_spec, default=parse.SPECS["latest"], metavar="TIME",
        help="-1 or latest (default), -2 or earliest, -3 or max-timestamp, -4 or earliest-local, -5 or latest-tiered, "
        "or a timestamp in ms, for the first record that is not older",
    )  # fmt: skip
    parser.add_argument("--exclude-internal-topics", action="store_true", help="skip internal topics")
    parser.add_argument("--format", choices=["text", "json"], default="text", help="output format (default text)")
    parser.set_defaults(run=partial(offset, parser))


def parse_partitions(text: str) -> frozenset[int]:
    """Parse partitions such as `0,1`."""
    return frozenset(parse.partition(word.strip()) for word in text.split(","))


def parse_rules(text: str) -> list[Rule]:
    """Parse rules such as `a:1,b:0-3,c:5-,d:-3,:0`."""
    rules = []
    for word in text.split(","):
        match = _RULE.fullmatch(word)
        if match is None:
            raise argparse.ArgumentTypeError(f"Invalid rule specification: {word}")
        topics, only, first, end = match.groups()
        try:
            re.compile(topics)
        except re.error as error:
            raise argparse.ArgumentTypeError(f"{topics} is an invalid regex: {error}") from None
        lowest = parse.partition(only or first or "0")
        end = lowest + 1 if only else parse.partition(end or str(parse.MAX_INT32))
        rules.append(Rule(topics or ".*", lowest, end))
    return rules


def offset(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Print the offsets of the chosen partitions."""
    if options.topic_partitions and (options.topic or options.partitions):
        parser.error("--topic-partitions cannot be used with --topic or --partitions")
    with admin_client(options) as client:
        from kbroker.cli._groups import led_partitions, log_offsets  # noqa: PLC0415  (--help must not import the client)

        meant = _meant(client, options)
        offsets = log_offsets(client, meant, options.time)
        led = led_partitions(client, {topic for topic, _ in meant}) if len(offsets) < len(meant) else {}
    for topic, index in meant:
        if (topic, index) not in offsets:
            reason = "has no leader" if (topic, index) in led else "does not exist any more"
            note(f"kbroker offset: {topic}-{index} {reason}")
    rows = [(*each, offsets[each]) for each in meant if offsets.get(each, -1) >= 0]
    _print(rows, options.format)


def _meant(client: Cluster, options: argparse.Namespace) -> list[tuple[str, int]]:
    """The partitions that the flags choose, sorted."""
    from kbroker.cli._topics import matching_topics  # noqa: PLC0415

    found = [
        (topic.name, each.partition_index)
        for topic in matching_topics(client, options.topic, exclude_internal=options.exclude_internal_topics)
        for each in topic.partitions
        if (options.partitions is None or each.partition_index in options.partitions)
        and _is_chosen(topic.name, each.partition_index, options.topic_partitions)
    ]
    if not found:
        raise CommandFailed("Could not match any topic-partitions with the specified filters")
    return sorted(found)


def _is_chosen(topic: str, index: int, rules: Sequence[Rule] | None) -> bool:
    return rules is None or any(
        rule.first <= index < rule.end and re.fullmatch(rule.topics, topic) is not None for rule in rules
    )


def _print(rows: Sequence[tuple[str, int, int]], how: str) -> None:
    from kbroker.cli._table import is_terminal, print_table  # noqa: PLC0415

    if how == "json":
        names = ("topic", "partition", "offset")
        say_json([dict(zip(names, row, strict=True)) for row in rows])
    elif is_terminal():
        print_table("", ("topic", "partition", "offset"), rows)
    else:
        for topic, index, found in rows:
            say(f"{topic}:{index}:{found}")
