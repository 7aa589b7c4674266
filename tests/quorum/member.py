"""A broker whose controller is another process, in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
import trio

from kbroker.client.streaming import Connection
from kbroker.config import Settings
from kbroker.handlers import discover
from kbroker.node import Node, NodeFailed
from kbroker.testing.disk import SimulatedDisk
from kbroker.testing.env import MemoryEnv
from kbroker.testing.net import MemoryNetwork
from tests.quorum.site import HOST, NODE_ID, PORT, Site
from wire.messages.metadata import MetadataRequest, MetadataResponse

DATA = "/data"


class Member:
    """One broker; its disk survives a stop."""

    def __init__(self, network: MemoryNetwork, broker_id: int = 1, disk: SimulatedDisk | None = None) -> None:
        self.disk = disk or SimulatedDisk(timestamp_ms=lambda: 0)
        self.network = network
        self.broker_id = broker_id
        self.address = (f"broker{broker_id}.example", 9092)
        self.starts = 0

    def node(self, **overrides: object) -> Node:
        self.starts += 1
        env = MemoryEnv(self.disk, seed=100 * self.broker_id + self.starts)
        env.network = self.network
        lines = {
            "process.roles": "broker",
            "node.id": self.broker_id,
            "log.dirs": DATA,
            "listeners": f"PLAINTEXT://{self.address[0]}:9092",
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.voters": f"{NODE_ID}@{HOST}:{PORT}",
            "kbroker.metadata.reserve.bytes": 65_536,
            "offsets.topic.replication.factor": 1,
            **{key.replace("_", "."): value for key, value in overrides.items()},
        }
        return Node(env, Settings.load(overrides=[f"{key}={value}" for key, value in lines.items()]))

    @asynccontextmanager
    async def running(self, *, stops_cleanly: bool = True, **overrides: object) -> AsyncIterator[Node]:
        node = self.node(**overrides)
        async with trio.open_nursery() as nursery:
            await nursery.start(run, node)
            yield node
            if stops_cleanly:
                node.stop()
            else:
                nursery.cancel_scope.cancel()
        assert not node.metrics.counter("requests.faults").value

    async def connect(self) -> Connection:
        assert self.network.listeners
        env = MemoryEnv(self.disk)
        env.network = self.network
        client = Connection(await env.connect(*self.address), client_id="test")
        client.protocol.served = {api_key: handler.versions for api_key, handler in discover().items()}
        return client

    async def metadata(self) -> MetadataResponse:
        client = await self.connect()
        answer = await client.ask(MetadataRequest(topics=None))
        client.close()
        assert isinstance(answer, MetadataResponse)
        return answer


async def run(node: Node, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
    await node.run(on_ready=lambda _host, _port: task_status.started())


async def refusal(node: Node) -> str:
    """The line with which a start fails."""
    with pytest.raises(NodeFailed) as caught:
        await node.run(on_ready=lambda _host, _port: pytest.fail("it has started"))
    return str(caught.value)


async def until(is_true: Callable[[], bool | Awaitable[bool]]) -> None:
    with trio.fail_after(60):
        while True:
            found = is_true()
            if found if isinstance(found, bool) else await found:
                return
            await trio.sleep(0.1)


def fenced(site: Site, broker_id: int = 1) -> bool:
    return site.image.brokers[broker_id].fenced
