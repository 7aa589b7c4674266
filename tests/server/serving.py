"""A server with handlers that requests control, and clients that send frames: in memory or over sockets."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import trio

from kbroker.broker.client_quotas import ClientQuotas
from kbroker.config import Settings
from kbroker.controller.features import SUPPORTED_FEATURES
from kbroker.handlers import CloseConnection, Context, Handler, Later, handles
from kbroker.handlers.api_versions import api_versions
from kbroker.runtime.env import RealEnv
from kbroker.runtime.metrics import Metrics
from kbroker.runtime.net_ports import Env, Listener, Stream
from kbroker.runtime.purgatory import Purgatory
from kbroker.runtime.turns import Turns
from kbroker.security.listener import OPEN, ListenerSecurity
from kbroker.server.dispatch import Dispatcher
from kbroker.server.tcp import Server
from kbroker.testing.disk import SimulatedDisk
from kbroker.testing.env import MemoryEnv
from kbroker.testing.net import MemoryListener, stream_pair
from wire.errors import ErrorCode, KafkaError
from wire.framing import FrameBuffer, decode_response, encode_request_frame
from wire.messages.fetch import FetchableTopicResponse, FetchRequest, FetchResponse, PartitionData
from wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from wire.messages.produce import ProduceRequest, ProduceResponse


class Broker:
    """The state that the handlers share."""

    def __init__(self) -> None:
        self.image = SimpleNamespace(offset=7, levels={"metadata.version": 21, "kraft.version": 0})
        self.supported_features = SUPPORTED_FEATURES
        self.purgatory = Purgatory()
        self.ready = False
        self.gate = trio.Event()
        self.appended: list[bytes] = []

    def make_ready(self) -> None:
        self.ready = True
        self.purgatory.wake("key")


@handles(HeartbeatRequest, versions="0-4")
async def heartbeat(request: HeartbeatRequest, broker: Broker, context: Context) -> HeartbeatResponse:
    """Do what the group id says; return the member id as the throttle time."""
    match request.group_id:
        case "wait":
            ready = await context.wait(
                broker.purgatory, "key", until=lambda: broker.ready, max_wait_ms=request.generation_id
            )
            return HeartbeatResponse(error_code=0 if ready else ErrorCode.REQUEST_TIMED_OUT)
        case "refuse":
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, "never heard of it")
        case "disk":
            raise OSError(5, "Input/output error")
        case "fault":
            raise ZeroDivisionError("a fault of ours")
        case "close":
            raise CloseConnection("the handler says so")
        case "checkpoint":
            await trio.lowlevel.checkpoint()
    return HeartbeatResponse(error_code=0)


@handles(
    ProduceRequest, versions="3-11", advertised="0-11", on_error=lambda request, code: ProduceResponse(responses=[])
)
async def produce(request: ProduceRequest, broker: Broker, context: Context) -> ProduceResponse | Later | None:
    """Store the records; for the topic "gated" wait for the gate first, for "fault" fail. With acks=-1 the response
    comes when the gate is open; for the topic "lost" it then fails.
    """
    for topic in request.topic_data:
        if topic.name == "fault":
            raise ZeroDivisionError("a fault of ours")
        if topic.name == "close":
            raise CloseConnection("the handler says so")
        if topic.name == "gated":
            await broker.gate.wait()
        for partition in topic.partition_data:
            assert isinstance(partition.records, memoryview)
            broker.appended.append(bytes(partition.records))
    if request.acks == -1:
        is_lost = request.topic_data[0].name == "lost"

        async def complete() -> ProduceResponse:
            await broker.gate.wait()
            if is_lost:
                raise ZeroDivisionError("a fault of ours")
            return ProduceResponse(responses=[])

        return Later(complete)
    return ProduceResponse(responses=[]) if request.acks else None


@handles(FetchRequest, versions="4-17", on_error=lambda request, code: None)
async def fetch(request: FetchRequest, broker: Broker, context: Context) -> FetchResponse:
    """Return max_bytes zeros."""
    data = PartitionData(
        partition_index=0, high_watermark=0, aborted_transactions=None, records=bytes(request.max_bytes)
    )
    return FetchResponse(responses=[FetchableTopicResponse(topic="orders", partitions=[data])])


HANDLERS: Mapping[int, Handler[Any]] = {one.api_key: one for one in (produce, fetch, heartbeat, api_versions)}


class Client:
    """A client that sends requests and reads frames."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.frames = FrameBuffer(2**31 - 1)

    async def send(self, *requests: tuple[object, int, int]) -> None:
        """Send requests at once; each is a message, its version and a correlation id."""
        await self.stream.send([b"".join(framed(*request) for request in requests)])

    async def receive(self, response_class: type[Any], version: int) -> tuple[int, Any]:
        """The correlation id and the message of the next reply."""
        while (frame := self.frames.next_frame()) is None:
            assert await self._more(), "the server closed the connection"
        return decode_response(response_class, version, frame)

    async def receive_heartbeat(self) -> tuple[int, int]:
        """The correlation id and the error code of the next reply."""
        number, response = await self.receive(HeartbeatResponse, 0)
        return number, response.error_code

    async def ends_without_reply(self) -> bool:
        """Wait until the server closes the connection; return whether it sent nothing before."""
        try:
            while await self._more():
                pass
        except trio.BrokenResourceError:
            pass  # closed while the server had unread bytes
        return self.frames.pending_bytes == 0

    async def _more(self) -> bool:
        room = self.frames.room()
        if room is not None:
            received = await self.stream.receive_into(room)
            self.frames.filled(received)
            return received > 0
        data = await self.stream.receive(65536)
        if data:
            self.frames.feed(data)
        return bool(data)


def framed(message: object, version: int, correlation_id: int) -> bytes:
    """A request frame without opaque parts."""
    parts = encode_request_frame(message, version, correlation_id=correlation_id, client_id="tests")
    return b"".join(part for part in parts if isinstance(part, bytes))


def heart(group_id: str = "", *, wait_ms: int = 0, member_id: str = "m") -> HeartbeatRequest:
    """A request for the handler `heartbeat` here."""
    return HeartbeatRequest(group_id=group_id, generation_id=wait_ms, member_id=member_id)


class Rig:
    """A running server with its broker, metrics and clients."""

    def __init__(self, env: Env, server: Server, listener: Listener, broker: Broker, metrics: Metrics) -> None:
        self.env = env
        self.server = server
        self.listener = listener
        self.broker = broker
        self.metrics = metrics
        self._streams: list[Stream] = []

    async def connect(self) -> Client:
        """A new connection."""
        stream = await self.env.connect(self.listener.host, self.listener.port)
        self._streams.append(stream)
        return Client(stream)

    def connect_from(self, host: str) -> Client:
        """A new connection from this address, in memory."""
        near, far = stream_pair(client_host=host)
        assert isinstance(self.listener, MemoryListener)
        self.listener.arrivals.send_nowait(far)
        self._streams.append(near)
        return Client(near)

    def count(self, name: str) -> int:
        """The value of a counter."""
        return self.metrics.counters[name].value

    async def until(self, name: str, value: int) -> None:
        """Wait until a counter has reached a value."""
        with trio.fail_after(10):
            while self.count(name) < value:
                await trio.lowlevel.checkpoint()

    def close(self) -> None:
        """Close the clients' connections."""
        for stream in self._streams:
            stream.close()


@asynccontextmanager
async def serving(
    *settings: str,
    in_memory: bool,
    logged_errors: int = 0,
    handlers: Mapping[int, Handler[Any]] = HANDLERS,
    quotas: ClientQuotas | None = None,
    security: Callable[[Env, Settings], ListenerSecurity] = lambda env, settings: OPEN,
) -> AsyncIterator[Rig]:
    """A server with these settings (`key=value`), which runs until the block ends and logs as many errors as given."""
    env: Env = MemoryEnv(SimulatedDisk()) if in_memory else RealEnv()
    broker, metrics = Broker(), Metrics()
    turns = Turns(env.now_ns)
    loaded = Settings.load(overrides=settings)
    dispatcher = Dispatcher(
        handlers, broker, metrics=metrics, env=env, turns=turns, limits=loaded.limits, quotas=quotas
    )
    server = Server(env, dispatcher, settings=loaded, metrics=metrics)
    errors: list[logging.LogRecord] = []
    handler = logging.Handler(logging.ERROR)
    handler.emit = errors.append  # type: ignore[method-assign]
    logging.getLogger("kbroker.server").addHandler(handler)
    async with trio.open_nursery() as nursery:
        await nursery.start(server.run)
        listener = await env.listen("127.0.0.1", 0)
        server.add(listener, name="PLAINTEXT", security=security(env, loaded))
        rig = Rig(env, server, listener, broker, metrics)
        try:
            yield rig
        finally:
            logging.getLogger("kbroker.server").removeHandler(handler)
            rig.close()
            nursery.cancel_scope.cancel()
    assert len(errors) == logged_errors, [error.getMessage() for error in errors]
