"""kafka-groups and kafka-log-dirs.

Source  GroupsCommand and LogDirsCommand of Apache Kafka 4.3.1, and a test that runs them beside these
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final

from administration import tool_parser

from kbroker.cli import CommandFailed
from kbroker.cli._admin import admin_client
from kbroker.cli._groups import listed_groups
from kbroker.cli._say import say
from kbroker.client.cluster import Cluster
from wire.errors import check, code_of
from wire.messages.describe_log_dirs import DescribeLogDirsRequest, DescribeLogDirsResult

_GROUP_TYPES: Final = ("classic", "consumer", "share", "streams")
_NARROWEST: Final = 20
_ERRORS: Final = "org.apache.kafka.common.errors"


def groups(words: Sequence[str]) -> int:
    """kafka-groups --list."""
    parser, _ = tool_parser("kafka-groups")
    parser.add_argument("--list", action="store_true", required=True)
    parser.add_argument("--group-type", type=str.lower, choices=_GROUP_TYPES)
    parser.add_argument("--protocol")
    kinds = parser.add_mutually_exclusive_group()
    for name in ("consumer", "share", "streams"):
        kinds.add_argument(f"--{name}", dest="kind", action="store_const", const=name)
    options = parser.parse_args(list(words))
    if options.kind and (options.group_type or options.protocol is not None):
        parser.error(f"--{options.kind} can't be used with --group-type and --protocol")
    try:
        with admin_client(options) as client:
            found = sorted(listed_groups(client), key=lambda each: each.group_id)
    except CommandFailed as failure:
        say(f"Error while executing groups command : {failure}")
        return 1
    wanted = options.group_type or options.kind
    rows = []
    for each in found:
        group_type, protocol = each.group_type.lower(), each.protocol_type
        is_wanted = wanted is None or group_type == wanted
        if options.kind == "consumer":
            is_wanted = is_wanted or protocol in {"consumer", ""}
        if is_wanted and options.protocol in {None, protocol}:
            rows.append((each.group_id, group_type.capitalize(), protocol))
    width = max([_NARROWEST, *(len(cell) for row in rows for cell in row)])
    for row in [("GROUP", "TYPE", "PROTOCOL"), *rows]:
        say(" ".join(f"{cell:<{width}}" for cell in row))
    return 0


def log_directories(words: Sequence[str]) -> int:
    """kafka-log-dirs --describe."""
    parser, _ = tool_parser("kafka-log-dirs")
    parser.add_argument("--describe", action="store_true", required=True)
    parser.add_argument("--topic-list", default="", metavar="TOPIC,...")
    parser.add_argument("--broker-list", default="", metavar="ID,...")
    options = parser.parse_args(list(words))
    topics = {name for name in options.topic_list.split(",") if name}
    try:
        asked = {int(text) for text in options.broker_list.split(",") if text}
    except ValueError as error:
        raise CommandFailed(f"--broker-list has a word that is not the id of a broker: {error}") from error
    with admin_client(options) as client:
        client.metadata([])
        known = set(client.nodes)
        if unknown := asked - known:
            raise CommandFailed(
                f"ERROR: The given brokers do not exist from --broker-list: {_ids(unknown)}. "
                f"Current existent brokers: {_ids(known)}"
            )
        brokers = sorted(asked or known)
        say("Querying brokers for log directories information")
        found = [
            {"broker": node_id, "logDirs": [_directory(each, topics) for each in directories_of(client, node_id)]}
            for node_id in brokers
        ]
    say(f"Received log directory information from brokers {_ids(brokers)}")
    say(json.dumps({"brokers": found, "version": 1}, ensure_ascii=False, separators=(",", ":")))
    return 0


def directories_of(client: Cluster, node_id: int) -> list[DescribeLogDirsResult]:
    """The log directories of a broker."""
    answer = client.ask(DescribeLogDirsRequest(topics=None), node_id)
    check(answer.error_code)
    found: list[DescribeLogDirsResult] = answer.results
    return found


def _ids(brokers: Iterable[int]) -> str:
    return ",".join(map(str, sorted(brokers)))


def _directory(found: DescribeLogDirsResult, topics: Collection[str]) -> dict[str, Any]:
    """A directory with its partitions of some topics, or of all of them; in the order of Kafka's keys."""
    partitions = [
        {
            "partition": f"{topic.name}-{each.partition_index}",
            "size": each.partition_size,
            "offsetLag": each.offset_lag,
            "isFuture": each.is_future_key,
        }
        for topic in found.topics
        if not topics or topic.name in topics
        for each in topic.partitions
    ]
    return {"partitions": partitions, "error": _exception(found.error_code), "logDir": found.log_dir}


def _exception(code: int) -> str | None:
    """The name of Kafka's exception for an error, such as KAFKA_STORAGE_ERROR."""
    if not code:
        return None
    name = code_of(code).name.removesuffix("_EXCEPTION").removesuffix("_ERROR")
    return f"{_ERRORS}.{name.title().replace('_', '')}Exception"
