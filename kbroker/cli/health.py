"""`kbroker health`: check a broker; print one line and set the exit code, for example in a HEALTHCHECK.

A broker is healthy if it answers ApiVersions and Metadata, every partition has a leader, no log directory is offline,
and it has read the tier's metadata of all its replicas; a controller, which does not serve Metadata, if it knows an
active controller. Checks run often, so the command uses one connection, which is cheaper to import than the cluster's
client.

The command asks for the end of the tier of each partition, as a tool that does not wait (replica id -2). kbroker
answers REQUEST_TIMED_OUT for a replica, of a leader or a follower, whose metadata it has not read yet, by the same
knowledge as /health. Brokers that hold no replica of a partition answer with another error, which does not count.
"""

from __future__ import annotations

import argparse
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from kbroker.cli import CommandFailed, Commands, add_format_flag
from kbroker.cli._admin import add_connection_flags, client_errors, client_settings
from kbroker.cli._positions import milliseconds
from kbroker.cli._say import say, say_json

if TYPE_CHECKING:
    from types import FrameType

    from kbroker.client.blocking import Connection

DEFAULT_TIMEOUT_MS: Final = 5_000
NO_CONTROLLER: Final = -1
_CONTROLLERS: Final = 2  # as the type of an endpoint
NAMED: Final = 3
"""Maximum number of partitions that a message names."""
_AS_TOOL: Final = -2  # the replica id
_LATEST_TIERED: Final = -5
_FIRST_WITH_TIER: Final = 9  # of ListOffsets
_ASKED_TOGETHER: Final = 2_000


class Health(NamedTuple):
    """What a node reports about its cluster and itself.

    Shape  unread_tiers are partitions whose metadata of the tier the broker has not read yet; controller is the active
           controller, -1 if there is none; None if the node is a broker
    """

    cluster_id: str | None
    brokers: list[int]
    partition_count: int
    leaderless: list[str]
    offline_directories: list[str]
    unread_tiers: list[str]
    controller: int | None = None


def add_parser(commands: Commands) -> None:
    """Declare the command and its flags."""
    parser = commands.add_parser(
        "health",
        help="check that a broker works",
        description="Exit with 0 if a broker answers, every partition has a leader, no log directory is offline and"
        " the tier's metadata have been read; or if a controller answers and there is an active one.",
    )
    add_connection_flags(parser)
    parser.add_argument(
        "--timeout", type=milliseconds, default=DEFAULT_TIMEOUT_MS, metavar="MS",
        help=f"time limit of the whole check, in milliseconds (default {DEFAULT_TIMEOUT_MS})",
    )  # fmt: skip
    add_format_flag(parser)
    parser.set_defaults(run=health)


def health(options: argparse.Namespace) -> int:
    """Check the first reachable broker; return the exit code."""
    settings = client_settings(options)
    with _alarm(options.timeout):
        found = _ask_any(settings)
    if options.format == "json":
        say_json({"is_healthy": not _complaints(found), **found._asdict()})
    if complaints := _complaints(found):
        raise CommandFailed("; ".join(complaints))
    if options.format == "text" and found.controller is not None:
        say(f"healthy: cluster {found.cluster_id}, active controller {found.controller}")
    elif options.format == "text":
        brokers = f"{len(found.brokers)} broker{'s' if len(found.brokers) != 1 else ''}"
        say(f"healthy: cluster {found.cluster_id}, {brokers}, {found.partition_count} partitions, all with a leader")
    return 0


def _complaints(found: Health) -> list[str]:
    complaints = []
    if found.controller == NO_CONTROLLER:
        complaints.append("there is no active controller")
    for partitions, what in (
        (found.leaderless, "have no leader"),
        (found.unread_tiers, "wait until the broker has read the tier's metadata"),
    ):
        if partitions:
            named = ", ".join(partitions[:NAMED]) + (", ..." if len(partitions) > NAMED else "")
            complaints.append(f"{len(partitions)} of {found.partition_count} partitions {what}: {named}")
    if found.offline_directories:
        complaints.append(f"offline log directories: {', '.join(found.offline_directories)}")
    return complaints


@contextmanager
def _alarm(timeout_ms: int) -> Iterator[None]:
    """Raise CommandFailed after this time. Timeouts of single steps would add up with a slow broker."""

    def expire(_number: int, _frame: FrameType | None) -> None:
        raise CommandFailed(f"no answer within {timeout_ms} ms")

    before = signal.signal(signal.SIGALRM, expire)
    signal.setitimer(signal.ITIMER_REAL, timeout_ms / 1000)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _ask_any(settings: dict[str, Any]) -> Health:
    from kbroker.client.security import connect, tls_context  # noqa: PLC0415  (--help must not import the client)
    from kbroker.config.client_properties import parse_server  # noqa: PLC0415
    from wire.client import UnsupportedApi  # noqa: PLC0415
    from wire.errors import Malformed  # noqa: PLC0415

    failures = []
    for server in settings["bootstrap_servers"]:
        try:
            tls = tls_context(settings)
            with client_errors(), connect(parse_server(server), settings, timeout_ms=None, tls=tls) as connection:
                return _ask(connection)
        except UnsupportedApi as error:
            raise CommandFailed(f"{server}: {error}") from error
        except (OSError, Malformed) as error:
            failures.append(f"{server}: {getattr(error, 'strerror', None) or error}")
    raise CommandFailed(f"no broker answers at {'; '.join(failures)}")


def _ask(connection: Connection) -> Health:
    from wire.messages.describe_cluster import DescribeClusterRequest  # noqa: PLC0415
    from wire.messages.describe_log_dirs import DescribeLogDirsRequest  # noqa: PLC0415
    from wire.messages.metadata import MetadataRequest  # noqa: PLC0415

    version = connection.protocol.newest_version(MetadataRequest)
    if version is None and (connection.protocol.newest_version(DescribeClusterRequest) or 0) >= 1:
        return _ask_controller(connection)
    if version is None:
        raise CommandFailed("the broker supports no version of Metadata that kbroker knows")
    # Version 0 has no null; there, an empty list means all topics. A request for all topics creates none.
    request = MetadataRequest(topics=None if version else [])
    metadata = connection.ask(request)
    offline = []
    if connection.protocol.newest_version(DescribeLogDirsRequest) is not None:
        answer = connection.ask(DescribeLogDirsRequest(topics=[]))
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
        unread_tiers=_unread_tiers(connection, metadata),
    )


def _unread_tiers(connection: Connection, metadata: Any) -> list[str]:
    from wire.errors import ErrorCode  # noqa: PLC0415
    from wire.messages.list_offsets import (  # noqa: PLC0415
        ListOffsetsPartition,
        ListOffsetsRequest,
        ListOffsetsTopic,
    )

    version = connection.protocol.newest_version(ListOffsetsRequest)
    if version is None or version < _FIRST_WITH_TIER:
        return []
    asked = [
        (str(topic.name), ListOffsetsPartition(partition_index=each.partition_index, timestamp=_LATEST_TIERED))
        for topic in metadata.topics
        for each in topic.partitions
    ]
    found = []
    for start in range(0, len(asked), _ASKED_TOGETHER):
        topics: dict[str, list[ListOffsetsPartition]] = {}
        for name, partition in asked[start : start + _ASKED_TOGETHER]:
            topics.setdefault(name, []).append(partition)
        request = ListOffsetsRequest(
            replica_id=_AS_TOOL,
            topics=[ListOffsetsTopic(name=name, partitions=partitions) for name, partitions in topics.items()],
        )
        found += [
            f"{topic.name}-{each.partition_index}"
            for topic in connection.ask(request).topics
            for each in topic.partitions
            if each.error_code == ErrorCode.REQUEST_TIMED_OUT
        ]
    return found


def _ask_controller(connection: Connection) -> Health:
    from wire.errors import code_of  # noqa: PLC0415
    from wire.messages.describe_cluster import DescribeClusterRequest  # noqa: PLC0415

    request = DescribeClusterRequest(include_cluster_authorized_operations=False, endpoint_type=_CONTROLLERS)
    found = connection.ask(request)
    if found.error_code:
        raise CommandFailed(f"the controller answers {code_of(found.error_code).name}")
    return Health(found.cluster_id, [], 0, [], [], [], controller=found.controller_id)
