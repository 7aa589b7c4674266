"""Well-formed requests whose arrays have as many elements as fit into 400 kB: measures the wait of another client and
the memory.

    python -m compat.torture.attack_arrays
    python -m compat.torture.attack_arrays --broker kafka

Every array of every API is filled according to the declarations of the messages (`tests.greedy`): once with
as many elements as a request may have, and once with more than that. Then a hundred clients request the metadata of
5,000 partitions at the same time. The seed determines the order of the requests.
"""

from __future__ import annotations

import contextlib
import socket
import sys
from collections.abc import Iterator

from compat.torture.bystander import Measure, Target, frame, main
from kbroker.handlers import discover
from kbroker.testing.draws import Draws
from tests.greedy import Greedy, Shape, World, greedy_requests
from wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from wire.messages.find_coordinator import FindCoordinatorRequest
from wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)

REQUEST_BYTES = 400_000
MAX_ELEMENTS = 20_000  # kbroker.max.request.elements
LONGEST_MS, MEMORY_MIB = 100, 100
LONGEST_METADATA_MS = 200
PARTITIONS = 5_000
CLIENTS, ROUNDS = 100, 5
PATIENCE_S = 60
METADATA_VERSION = 12
TOPIC, GROUP_RESOURCE, GROUP = "many", 32, "greedy"


def attack(target: Target, draws: Draws) -> list[Measure]:
    """Send them all."""
    target.create_topic(TOPIC, partitions=PARTITIONS)
    requests = [*_described_groups(), *_greedy(_world(target))]
    for number in range(len(requests) - 1, 0, -1):
        other = draws.below(number + 1)
        requests[number], requests[other] = requests[other], requests[number]
    with target.watched() as seen:
        for request in requests:
            ask(target.address, request.frame)
    with target.watched() as metadata_seen:
        ask_for_metadata(target.address, clients=CLIENTS, rounds=ROUNDS)
    metadata = Measure(
        "longest Produce during Metadata", metadata_seen.longest_ms, LONGEST_METADATA_MS, "ms", is_timing=True
    )
    return [*seen.measures(longest_ms=LONGEST_MS, memory_mib=MEMORY_MIB), metadata]


def _world(target: Target) -> World:
    """Commit an offset for every partition, so that the group has as many as possible."""
    with target.client() as client:
        client.socket.settimeout(PATIENCE_S)
        asked = MetadataRequest(topics=[MetadataRequestTopic(name=TOPIC)])
        (topic,) = client.ask(asked, version=METADATA_VERSION).topics
        client.ask(FindCoordinatorRequest(coordinator_keys=[GROUP]), version=4)
        offsets = [
            OffsetCommitRequestPartition(partition_index=index, committed_offset=1, committed_metadata="")
            for index in range(PARTITIONS)
        ]
        commit = OffsetCommitRequest(
            group_id=GROUP, member_id="", topics=[OffsetCommitRequestTopic(name=TOPIC, partitions=offsets)]
        )
        client.ask(commit, version=9)
    return World(TOPIC, topic.topic_id, GROUP)


def _greedy(world: World) -> Iterator[Greedy]:
    handlers = discover()
    yield from greedy_requests(handlers, world, max_bytes=REQUEST_BYTES, max_elements=MAX_ELEMENTS)
    for request in greedy_requests(handlers, world, max_bytes=REQUEST_BYTES, max_elements=REQUEST_BYTES):
        if request.elements > MAX_ELEMENTS:
            yield request


def _described_groups() -> Iterator[Greedy]:
    """Any name is a group whose settings can be described."""
    resources = [
        DescribeConfigsResource(resource_type=GROUP_RESOURCE, resource_name=f"{number:x}", configuration_keys=None)
        for number in range(MAX_ELEMENTS)
    ]
    request = DescribeConfigsRequest(resources=resources, include_synonyms=True, include_documentation=True)
    yield Greedy("DescribeConfigs", 4, "groups", Shape.DISTINCT, MAX_ELEMENTS, frame(request, 4))


def ask(address: tuple[str, int], request: bytes) -> int:
    """Send a request and read its reply; returns the reply's size, 0 if the connection was closed instead."""
    with socket.create_connection(address, timeout=PATIENCE_S) as connection, contextlib.suppress(ConnectionError):
        connection.sendall(request)
        return _take_reply(connection)
    return 0


def _take_reply(connection: socket.socket) -> int:
    head = connection.recv(4, socket.MSG_WAITALL)
    left = size = int.from_bytes(head, "big")
    while left:
        data = connection.recv(min(left, 1 << 20))
        if not data:
            return 0
        left -= len(data)
    return size


def ask_for_metadata(address: tuple[str, int], *, clients: int, rounds: int) -> None:
    """Request all topics on this many connections at the same time, several times."""
    request = frame(MetadataRequest(topics=None), METADATA_VERSION)
    connections = [socket.create_connection(address, timeout=PATIENCE_S) for _ in range(clients)]
    try:
        for _ in range(rounds):
            for connection in connections:
                connection.sendall(request)
            for connection in connections:
                assert _take_reply(connection) > PARTITIONS, "the topic is gone"
    finally:
        for connection in connections:
            connection.close()


if __name__ == "__main__":
    sys.exit(main(__doc__, attack))
