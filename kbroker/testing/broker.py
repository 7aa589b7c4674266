"""A whole node in memory: its disk, its network and its clock are the test's, and clients speak typed messages to it.

    async with memory_broker() as broker:
        client = await broker.connect()
        answer = await client.ask(MetadataRequest(topics=None), version=12)

Under `trio.testing.MockClock` with autojump a Fetch that waits for five seconds takes no time, and the order of
events is the same in every run. A fault of the broker (an exception that is no KafkaError) fails the test that
provoked it, even if the client got some reply.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar, TypeVarTuple

import trio

from kbroker.config import Settings
from kbroker.handlers import discover
from kbroker.node import Node
from kbroker.runtime.net_ports import Stream
from kbroker.testing.disk import SimulatedDisk
from kbroker.testing.disk_nodes import Loss
from kbroker.testing.env import MemoryEnv
from wire.framing import RECEIVE_BYTES, FrameBuffer, decode_response, encode_request_frame
from wire.schema import response_class, schema_of

Result = TypeVar("Result")
Arguments = TypeVarTuple("Arguments")

DATA_DIRECTORY = "/data"
MAX_REPLY_BYTES = 256 * 1024 * 1024


class ConnectionClosed(Exception):
    """The broker has closed the connection instead of answering."""


class Client:
    """One connection to a broker: requests may be sent ahead, replies come in their order."""

    def __init__(self, stream: Stream, *, client_id: str = "test") -> None:
        self.stream = stream
        self.client_id = client_id
        self._frames = FrameBuffer(MAX_REPLY_BYTES)
        self._correlation_id = 0
        self._expected: list[tuple[int, type, int]] = []

    async def ask(self, request: object, *, version: int | None = None) -> Any:
        """The response to one request, in the newest version that brokers serve unless one is given.

        Errors  ConnectionClosed
        """
        await self.send(request, version=version)
        return await self.receive()

    async def send(self, request: object, *, version: int | None = None) -> None:
        """Send a request whose reply is received later."""
        api_key = schema_of(type(request)).api_key
        assert api_key is not None
        expected = response_class(api_key)
        assert expected is not None
        if version is None:
            version = discover()[api_key].versions.highest
        self._correlation_id += 1
        self._expected.append((self._correlation_id, expected, version))
        await self.send_bytes(
            b"".join(
                part if isinstance(part, bytes) else part.read()  # type: ignore[attr-defined]
                for part in encode_request_frame(
                    request, version, correlation_id=self._correlation_id, client_id=self.client_id
                )
            )
        )

    async def send_bytes(self, data: bytes) -> None:
        """Send anything."""
        try:
            await self.stream.send([data])
        except trio.BrokenResourceError as error:
            raise ConnectionClosed from error

    async def receive(self) -> Any:
        """The reply to the oldest request that has none yet. Errors: ConnectionClosed."""
        correlation_id, expected, version = self._expected.pop(0)
        answer: tuple[int, Any] = decode_response(expected, version, await self._next_frame())
        assert answer[0] == correlation_id, "replies come in the order of the requests"
        return answer[1]

    def expect_no_reply(self) -> None:
        """The request that was sent last is answered by nothing (Produce with acks=0)."""
        self._expected.pop()

    async def _next_frame(self) -> memoryview:
        while True:
            frame = self._frames.next_frame()
            if frame is not None:
                return frame
            room = self._frames.room()
            if room is None:
                data = await self.stream.receive(RECEIVE_BYTES)
                if data:
                    self._frames.feed(data)
            else:
                data = await self.stream.receive(len(room))
                room[: len(data)] = data
                self._frames.filled(len(data))
            if not data:
                raise ConnectionClosed

    def close(self) -> None:
        """Close the connection, whatever is under way."""
        self.stream.close()


class _SlowEnv(MemoryEnv):
    """An environment in which threads take their time."""

    def __init__(self, disk: SimulatedDisk, *, seed: int, latency_ms: int) -> None:
        super().__init__(disk, seed=seed)
        self.latency_ms = latency_ms

    async def run_blocking(self, function: Callable[[*Arguments], Result], *arguments: *Arguments) -> Result:
        if not self.latency_ms:
            return await super().run_blocking(function, *arguments)
        with trio.CancelScope(shield=True):  # a thread cannot be stopped
            await trio.sleep(self.random.uniform(0, self.latency_ms) / 1000)
            result = function(*arguments)
            await trio.sleep(self.random.uniform(0, self.latency_ms) / 1000)
        return result


@dataclass(slots=True)
class MemoryBroker:
    """A node that runs; see `memory_broker`."""

    node: Node
    env: _SlowEnv
    disk: SimulatedDisk
    address: tuple[str, int]
    _clients: list[Client] = field(default_factory=list)

    async def connect(self, *, client_id: str = "test") -> Client:
        """A new connection."""
        client = Client(await self.env.connect(*self.address), client_id=client_id)
        self._clients.append(client)
        return client

    def slow_down(self, latency_ms: int) -> None:
        """From now on a blocking call takes up to twice so long; see `memory_broker`."""
        self.env.latency_ms = latency_ms

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
    expects_faults: bool = False,
) -> AsyncIterator[MemoryBroker]:
    """Run a node on `disk`, or on a new one, until the block ends.

    `settings` are Kafka's keys. A blocking call begins up to `latency_ms` after it was made, and ends as much later, so
    that whatever may happen meanwhile does happen. Without `stops_cleanly` it ends as a process does that is killed:
    the disk's `crash` then says what the next one finds.
    """
    disk = disk or SimulatedDisk()
    # Two lives on one disk must not draw the same ids, and the same life shall draw the same ones in every run.
    lived = sum(len(contents or b"") for contents in disk.image().values())
    env = _SlowEnv(disk, seed=(seed << 40) + lived, latency_ms=latency_ms)
    loaded = Settings.load(
        overrides=[f"{key}={value}" for key, value in (settings or {}).items()],
        defaults={
            "log.dirs": DATA_DIRECTORY,
            "listeners": "PLAINTEXT://broker.example:9092",
            "kbroker.metadata.reserve.bytes": "65536",  # on a simulated disk the real one is memory
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
    assert expects_faults or not faults, f"{faults} requests met a fault of the broker, see its log"


def killed(broker: MemoryBroker, loss: Loss = Loss.PROCESS_DEATH) -> SimulatedDisk:
    """The disk as the next process finds it if this one is killed now."""
    return broker.disk.crash(loss)


async def _run(node: Node, *, task_status: trio.TaskStatus[tuple[str, int]] = trio.TASK_STATUS_IGNORED) -> None:
    await node.run(on_ready=lambda host, port: task_status.started((host, port)))
