"""A network in memory: streams between the tasks of one event loop, in virtual time if the clock is.

Theory of operation: a connection is two pipes, each with the room of a socket buffer, so that a slow reader blocks the
sender. Bytes arrive at once and in order; there is no loss. `kbroker.runtime.net_ports` documents what a stream
promises.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from typing import Protocol

import trio

from kbroker.runtime.net_ports import FileBytes, Part
from kbroker.runtime.ports import Buffer

PIPE_BYTES = 64 * 1024
_FIRST_FREE_PORT = 20_000


class Pipe:
    """One direction of a connection."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.ended = False
        self.on_end: Callable[[], object] | None = None
        self.moved = trio.lowlevel.ParkingLot()

    def put(self, data: Buffer) -> int:
        if self.ended:
            raise trio.BrokenResourceError("the peer has closed the connection")
        taken = min(len(data), PIPE_BYTES - len(self.data))
        self.data += memoryview(data)[:taken]
        self.moved.unpark_all()
        return taken

    def end(self) -> None:
        """Its writer has closed it."""
        self.ended = True
        self.moved.unpark_all()
        if self.on_end is not None:
            self.on_end()

    def leave(self) -> None:
        """Its reader has closed it."""
        self.end()


class MemoryStream:
    """One end of a connection in memory; see `kbroker.runtime.net_ports.Stream`."""

    def __init__(self, incoming: Pipe, outgoing: Pipe, *, peer_host: str, peer_port: int) -> None:
        self.peer_host = peer_host
        self.peer_port = peer_port
        self.received_bytes = 0
        self.sent_bytes = 0
        self._incoming = incoming
        self._outgoing = outgoing
        self._closed = False

    async def receive(self, max_bytes: int) -> bytes:
        pipe = self._incoming
        while not pipe.data and not pipe.ended:
            await pipe.moved.park()
        if self._closed:
            raise trio.ClosedResourceError("we closed the connection")
        data = bytes(pipe.data[:max_bytes])
        del pipe.data[:max_bytes]
        pipe.moved.unpark_all()
        self.received_bytes += len(data)
        return data

    async def receive_into(self, buffer: memoryview | bytearray) -> int:
        data = await self.receive(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    async def send(self, parts: Sequence[Part]) -> None:
        for part in parts:
            if not isinstance(part, bytes | bytearray | memoryview):
                part = await self.read_range(part)  # noqa: PLW2901 - its bytes
            rest = memoryview(part)
            while rest:
                sent = self.send_nowait(rest)
                rest = rest[sent:]
                if not sent:
                    await self._outgoing.moved.park()

    def send_nowait(self, data: Buffer) -> int:
        if self._closed:
            raise trio.ClosedResourceError("we closed the connection")
        sent = self._outgoing.put(data)
        self.sent_bytes += sent
        return sent

    async def read_range(self, part: FileBytes) -> Buffer:
        return part.file.pread(part.size, part.position)

    def watch(self, on_peer_closed: Callable[[], object]) -> None:
        assert self._incoming.on_end is None
        self._incoming.on_end = on_peer_closed
        if self._incoming.ended:
            on_peer_closed()

    def unwatch(self) -> None:
        self._incoming.on_end = None

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._incoming.on_end = None
            self._incoming.leave()
            self._outgoing.end()

    def cut(self) -> None:
        """Break the link: to each end it looks as if the other one had closed the connection."""
        self._incoming.end()
        self._outgoing.end()


def stream_pair(*, client_host: str = "198.51.100.1") -> tuple[MemoryStream, MemoryStream]:
    """Both ends of a new connection: the client's and the server's."""
    up, down = Pipe(), Pipe()
    client = MemoryStream(down, up, peer_host="192.0.2.1", peer_port=9092)
    server = MemoryStream(up, down, peer_host=client_host, peer_port=1)
    return client, server


class MemoryListener:
    """An address in memory; see `kbroker.runtime.net_ports.Listener`."""

    def __init__(self, network: MemoryNetwork, host: str, port: int) -> None:
        self.host = host
        self.port = port
        self.is_listening = False
        self._network = network
        self.arrivals, self._get = trio.open_memory_channel[MemoryStream](1024)

    def listen(self) -> None:
        self.is_listening = True

    async def accept(self) -> MemoryStream:
        return await self._get.receive()

    async def notice_closed_peers(self) -> None:
        await trio.sleep_forever()  # the pipes call back directly

    def close(self) -> None:
        self._network.listeners.pop((self.host, self.port), None)


class Network(Protocol):
    """The network as one environment sees it; see `kbroker.runtime.net_ports.Env`."""

    async def listen(self, host: str, port: int, *, accepts: bool = True) -> MemoryListener: ...

    async def connect(self, host: str, port: int) -> MemoryStream: ...


class MemoryNetwork:
    """Addresses and their listeners."""

    def __init__(self) -> None:
        self.listeners: dict[tuple[str, int], MemoryListener] = {}

    async def listen(self, host: str, port: int, *, accepts: bool = True) -> MemoryListener:
        """See `kbroker.runtime.net_ports.Env.listen`; options have no effect."""
        if (host, port) in self.listeners:
            raise OSError(errno.EADDRINUSE, f"{host}:{port} is taken")
        port = port or next(free for free in range(_FIRST_FREE_PORT, 2**16) if (host, free) not in self.listeners)
        listener = self.listeners[host, port] = MemoryListener(self, host, port)
        listener.is_listening = accepts
        return listener

    async def connect(self, host: str, port: int) -> MemoryStream:
        """See `kbroker.runtime.net_ports.Env.connect`."""
        listener = self.listeners.get((host, port))
        if listener is None or not listener.is_listening:
            raise ConnectionRefusedError(errno.ECONNREFUSED, f"no listener at {host}:{port}")
        client, server = stream_pair()
        listener.arrivals.send_nowait(server)
        return client
