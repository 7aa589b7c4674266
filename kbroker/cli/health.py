"""`kbroker health`: one line and an exit code that say whether a broker does its work; made for HEALTHCHECK.

Healthy means: it answers ApiVersions and Metadata, every partition has a leader, and no log directory is offline. A
port that accepts connections proves none of that. A check runs every few seconds on a machine that has other things to
do, so it speaks the protocol itself over one connection, which costs a fraction of what importing a client does; only
where the broker wants SASL the client is used.
"""

from __future__ import annotations

import argparse
import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from kbroker.cli import CommandFailed, Commands
from kbroker.cli._admin import add_connection_flags, client_settings
from kbroker.cli._positions import milliseconds
from kbroker.cli._say import say

if TYPE_CHECKING:
    from types import FrameType

    from kbroker.cli._connection import Connection

DEFAULT_TIMEOUT_MS: Final = 5_000
NAMED: Final = 3
"""How many partitions without a leader are named; their number is told anyway."""


class Health(NamedTuple):
    """What a broker said of its cluster and of itself."""

    cluster_id: str | None
    brokers: list[int]
    partition_count: int
    leaderless: list[str]
    offline_directories: list[str]


def add_parser(commands: Commands) -> None:
    """Declare the command and its flags."""
    parser = commands.add_parser(
        "health",
        help="check that a broker answers and that nothing of it is offline",
        description="Exit with 0 if a broker answers, every partition has a leader and no log directory is offline.",
    )
    add_connection_flags(parser)
    parser.add_argument(
        "--timeout", type=milliseconds, default=DEFAULT_TIMEOUT_MS, metavar="MS",
        help=f"for everything together, in milliseconds (default {DEFAULT_TIMEOUT_MS})",
    )  # fmt: skip
    parser.add_argument("--format", choices=["text", "json"], default="text", help="json is for machines")
    parser.set_defaults(run=health)


def health(options: argparse.Namespace) -> int:
    """Check the first broker that can be reached; the exit code."""
    settings = client_settings(options)
    with _alarm(options.timeout):
        found = _ask_any(settings, options)
    if options.format == "json":
        say(json.dumps({"is_healthy": not _complaints(found), **found._asdict()}))
    if complaints := _complaints(found):
        raise CommandFailed("; ".join(complaints))
    if options.format == "text":
        brokers = f"{len(found.brokers)} broker{'s' if len(found.brokers) != 1 else ''}"
        say(f"healthy: cluster {found.cluster_id}, {brokers}, {found.partition_count} partitions, all with a leader")
    return 0


def _complaints(found: Health) -> list[str]:
    complaints = []
    if found.leaderless:
        named = ", ".join(found.leaderless[:NAMED]) + (", ..." if len(found.leaderless) > NAMED else "")
        complaints.append(f"{len(found.leaderless)} of {found.partition_count} partitions have no leader: {named}")
    if found.offline_directories:
        complaints.append(f"offline log directories: {', '.join(found.offline_directories)}")
    return complaints


@contextmanager
def _alarm(timeout_ms: int) -> Iterator[None]:
    """End what takes longer with CommandFailed: a time-out for each step would let a slow broker take all of them."""

    def expire(_number: int, _frame: FrameType | None) -> None:
        raise CommandFailed(f"no answer within {timeout_ms} ms")

    before = signal.signal(signal.SIGALRM, expire)
    signal.setitimer(signal.ITIMER_REAL, timeout_ms / 1000)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _ask_any(settings: dict[str, Any], options: argparse.Namespace) -> Health:
    if settings.get("security_protocol", "PLAINTEXT").startswith("SASL_"):
        return _ask_client(options)
    from kbroker.cli._connection import Connection  # noqa: PLC0415  (help must not cost the import of the wire)
    from wire.errors import Malformed  # noqa: PLC0415

    failures = []
    for server in settings["bootstrap_servers"]:
        try:
            with Connection(server, settings) as connection:
                return _ask(connection)
        except (OSError, Malformed) as error:
            failures.append(f"{server}: {getattr(error, 'strerror', None) or error}")
    raise CommandFailed(f"no broker answers at {'; '.join(failures)}")


def _ask(connection: Connection) -> Health:
    from wire.messages.describe_log_dirs import DescribeLogDirsRequest, DescribeLogDirsResponse  # noqa: PLC0415
    from wire.messages.metadata import MetadataRequest, MetadataResponse  # noqa: PLC0415

    version = connection.version_of(MetadataRequest)
    if version is None:
        raise CommandFailed("the broker does not answer Metadata in a version that is known here")
    # In version 0, which has no null, an empty list means all topics; asking for all of them creates none.
    request = MetadataRequest(topics=None if version else [])
    metadata = connection.ask(request, MetadataResponse, version)
    offline = []
    if (version := connection.version_of(DescribeLogDirsRequest)) is not None:
        answer = connection.ask(DescribeLogDirsRequest(topics=[]), DescribeLogDirsResponse, version)
        offline = [result.log_dir for result in answer.results if result.error_code]
    return Health(
        cluster_id=metadata.cluster_id,
        brokers=[broker.node_id for broker in metadata.brokers],
        partition_count=sum(len(topic.partitions) for topic in metadata.topics),
        leaderless=[
            f"{topic.name}-{partition.partition_index}"
            for topic in metadata.topics
            for partition in topic.partitions
            if partition.leader_id < 0
        ],
        offline_directories=offline,
    )


def _ask_client(options: argparse.Namespace) -> Health:
    from kbroker.cli._admin import admin_client  # noqa: PLC0415

    with admin_client(options) as client:
        cluster, topics = client.describe_cluster(), client.describe_topics()
        directories = [each for broker in client.describe_log_dirs({}) for each in broker["log_dirs"]]
    return Health(
        cluster_id=cluster.get("cluster_id"),
        brokers=[broker["broker_id"] for broker in cluster["brokers"]],
        partition_count=sum(len(topic["partitions"]) for topic in topics),
        leaderless=[
            f"{topic['name']}-{partition['partition_index']}"
            for topic in topics
            for partition in topic["partitions"]
            if partition["leader_id"] < 0
        ],
        offline_directories=[each["log_dir"] for each in directories if each["error_code"]],
    )
