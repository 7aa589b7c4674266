"""A whole node in memory: the test owns its disk, its network and its clock, and its clients speak typed messages.

    async with memory_broker() as broker:
        client = await broker.connect()
        answer = await client.ask(MetadataRequest(topics=None), version=12)

Under `trio.testing.MockClock` with autojump a Fetch that waits for five seconds takes no time, and the order of
events is the same in every run. A fault of the broker (an exception that is not a KafkaError) fails the test that
provoked it, even if the client got a reply.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import cache

import trio

from kbroker.client.streaming import Connection
from kbroker.config import Settings
from kbroker.handlers import discover
from kbroker.node import Node
from kbroker.runtime.net_ports import Stream
from kbroker.testing.disk import SimulatedDisk
from kbroker.testing.env import MemoryEnv
from wire.schema import Versions

DATA_DIRECTORY = "/data"
MAX_REPLY_BYTES = 256 * 1024 * 1024


@cache
def _served() -> dict[int, Versions]:
    return {api_key: handler.versions for api_key, handler in discover().items()}


class Client(Connection):
    """One connection to a broker: requests may be sent ahead, replies come in their order.

    A request without a version is sent in the newest one that brokers serve.
    """

    def __init__(self, stream: Stream, *, client_id: str = "test") -> None:
        super().__init__(stream, client_id=client_id, max_response_bytes=MAX_REPLY_BYTES)
        self.protocol.served = _served()


@dataclass(slots=True)
class MemoryBroker:
    """A running node; see `memory_broker`."""

    node: Node
    env: MemoryEnv
    disk: SimulatedDisk
    address: tuple[str, int]
    _clients: list[Client] = field(default_factory=list)

    async def connect(self, *, client_id: str = "test") -> Client:
        """Open a new connection."""
        client = Client(await self.env.connect(*self.address), client_id=client_id)
        self._clients.append(client)
        return client

    def files(self) -> list[str]:
        """The paths in the data directory, relative to it."""
        found = self.disk.image(DATA_DIRECTORY)
        return sorted(path.removeprefix(DATA_DIRECTORY + "/") for path in found if path != DATA_DIRECTORY)


@asynccontextmanager
async def memory_broker(
    disk: SimulatedDisk | None = None,
    *,
    settings: Mapping[str, object] | None = None,
    seed: int = 0,
    latency_ms: int = 0,
    stops_cleanly: bool = True,
) -> AsyncIterator[MemoryBroker]:
    """Run a node on `disk`, or on a new one, until the block ends.

    `settings` are Kafka's keys; `latency_ms` is that of MemoryEnv. Without `stops_cleanly` the node ends like a killed
    process: the disk's `crash` then gives the disk that the next process finds.
    """
    disk = disk or SimulatedDisk()
    # Two runs on one disk must not draw the same ids, but a repeated run must draw the same ones.
    lived = sum(len(contents or b"") for contents in disk.image().values())
    env = MemoryEnv(disk, seed=(seed << 40) + lived, latency_ms=latency_ms)
    loaded = Settings.load(
        overrides=[f"{key}={value}" for key, value in (settings or {}).items()],
        defaults={
            "log.dirs": DATA_DIRECTORY,
            "listeners": "PLAINTEXT://broker.example:9092",
            "kbroker.metadata.reserve.bytes": "65536",  # the default would take memory on a simulated disk
        },
    )
    node = Node(env, loaded)
    async with trio.open_nursery() as nursery:
        address = await nursery.start(_run, node)
        broker = MemoryBroker(node, env, disk, address)
        try:
            yield broker
        finally:
            for client in broker._clients:
                client.close()
            if stops_cleanly:
                node.stop()
            else:
                nursery.cancel_scope.cancel()
    faults = node.metrics.counter("requests.faults").value
    assert not faults, f"{faults} requests met a fault of the broker, see its log"


async def _run(node: Node, *, task_status: trio.TaskStatus[tuple[str, int]] = trio.TASK_STATUS_IGNORED) -> None:
    await node.run(on_ready=lambda host, port: task_status.started((host, port)))
