"""What every model client needs of a cluster: leaders, connections, deadlines. All of it goes over the network."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import trio

from kbroker.client.streaming import ConnectionClosed
from kbroker.metadata.parts import NO_LEADER
from kbroker.testing.cluster import MemoryCluster
from kbroker.testing.memory_node import Client
from wire.errors import Malformed
from wire.messages.find_coordinator import FindCoordinatorRequest
from wire.messages.metadata import MetadataRequest, MetadataRequestTopic

CONNECT_MS: Final = 5_000
REQUEST_MS: Final = 10_000
BACKOFF_MS: Final = 100
MAX_BACKOFF_MS: Final = 1_000
METADATA_VERSION: Final = 9
COORDINATOR_VERSION: Final = 3

Partition = tuple[str, int]


class Unreachable(Exception):
    """A broker could not be reached, or did not answer in time. It may have served the request."""


class Place(NamedTuple):
    """What Metadata says about a partition."""

    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]


class Router:
    """The connections of one client, one to each broker."""

    def __init__(self, cluster: MemoryCluster, host: str) -> None:
        self.cluster = cluster
        self.host = host
        self.places: dict[Partition, Place] = {}
        self._connections: dict[int, Client] = {}
        self._turn = sum(host.encode())  # clients begin with different brokers

    async def ask(self, node: int, request: object, *, version: int, timeout_ms: int = REQUEST_MS) -> Any:
        """Send a request and wait for its answer. Errors: Unreachable."""
        await self.send(node, request, version=version)
        return await self.receive(node, timeout_ms=timeout_ms)

    async def send(self, node: int, request: object, *, version: int) -> None:
        """Send a request ahead. Errors: Unreachable."""
        try:
            with trio.fail_after(CONNECT_MS / 1000):
                if node not in self._connections:
                    if node not in self.cluster.nodes:
                        raise Unreachable(f"there is no broker {node}")
                    self._connections[node] = await self.cluster.connect(node, host=self.host, client_id=self.host)
                await self._connections[node].send(request, version=version)
        except (OSError, ConnectionClosed, trio.ClosedResourceError, trio.TooSlowError) as error:
            self.drop(node)
            raise Unreachable(str(error)) from error

    async def receive(self, node: int, *, timeout_ms: int = REQUEST_MS) -> Any:
        """The answer to the oldest request to a broker. Errors: Unreachable."""
        connection = self._connections.get(node)
        if connection is None:
            raise Unreachable("the connection was lost")
        try:
            with trio.fail_after(timeout_ms / 1000):
                return await connection.receive()
        except (OSError, ConnectionClosed, Malformed, trio.ClosedResourceError, trio.TooSlowError) as error:
            self.drop(node)
            raise Unreachable(str(error)) from error
        except trio.Cancelled:
            self.drop(node)
            raise

    def drop(self, node: int) -> None:
        """Close a connection."""
        if (connection := self._connections.pop(node, None)) is not None:
            connection.close()

    def close(self) -> None:
        """Close all connections."""
        for node in list(self._connections):
            self.drop(node)

    async def refresh(self, topics: Iterable[str], *, node: int | None = None) -> None:
        """Ask for metadata, from the next broker in turn if `node` is None. Errors: Unreachable."""
        wanted = [MetadataRequestTopic(name=name) for name in topics]
        request = MetadataRequest(topics=wanted, allow_auto_topic_creation=False)
        asked = self._next() if node is None else node
        answer = await self.ask(asked, request, version=METADATA_VERSION, timeout_ms=CONNECT_MS)
        for topic in answer.topics:
            for part in topic.partitions:
                self.places[topic.name, part.partition_index] = Place(
                    part.leader_id, part.leader_epoch, tuple(part.replica_nodes), tuple(part.isr_nodes)
                )

    async def leader(self, partition: Partition) -> int:
        """The leader of a partition. Errors: Unreachable if it is unknown."""
        if self.places.get(partition, (NO_LEADER,))[0] == NO_LEADER:
            await self.refresh([partition[0]])
        found = self.places.get(partition)
        if found is None or found.leader == NO_LEADER:
            raise Unreachable("the partition has no leader")
        return found.leader

    async def forget(self, partition: Partition) -> None:
        """Ask for the leader again, after an error; without an answer it is unknown."""
        self.places.pop(partition, None)
        try:
            await self.refresh([partition[0]])
        except Unreachable:
            return

    async def coordinator(self, key: str, *, key_type: int = 0) -> int:
        """The coordinator of a group, or with key type 1 of a transactional id. Errors: Unreachable."""
        request = FindCoordinatorRequest(key=key, key_type=key_type)
        answer = await self.ask(self._next(), request, version=COORDINATOR_VERSION)
        if answer.error_code:
            raise Unreachable("the coordinator is not available")
        found: int = answer.node_id
        return found

    async def any(self, request: object, *, version: int) -> Any:
        """Ask the next broker in turn. Errors: Unreachable."""
        return await self.ask(self._next(), request, version=version)

    def _next(self) -> int:
        brokers = [node.id for node in self.cluster.brokers]
        self._turn += 1
        return brokers[self._turn % len(brokers)]


async def pause(stopping: trio.Event, ms: float) -> None:
    """Wait, but not longer than until the run stops."""
    with trio.move_on_after(ms / 1000):
        await stopping.wait()
