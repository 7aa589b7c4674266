"""One host of a simulated network: what nodes and clients connect from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

import trio

from kbroker.runtime.ports import Buffer
from kbroker.testing.net import MemoryListener, MemoryStream

if TYPE_CHECKING:
    from kbroker.testing.network import SimulatedNetwork

NODE: Final = "node-"
"""The hosts of nodes begin with it, and those of clients do not."""
_RECEIVE_BYTES: Final = 64 * 1024


class HasHost(Protocol):
    """A node."""

    @property
    def host(self) -> str: ...


Place: TypeAlias = str | HasHost
"""A node, or the name of a host. A client's host may have any name; it exists as soon as it is used."""


def host_of(place: Place) -> str:
    """The name of a host."""
    return place if isinstance(place, str) else place.host


class Host:
    """The network as one host sees it: `MemoryEnv.network`, and `trio.open_tcp_stream` for a client under test."""

    def __init__(self, network: SimulatedNetwork, name: str) -> None:
        self.name = name
        self._network = network

    async def listen(self, host: str, port: int, *, accepts: bool = True) -> MemoryListener:
        """See `kbroker.runtime.net_ports.Env.listen`."""
        return await self._network.listen(host, port, accepts=accepts)

    async def connect(self, host: str, port: int) -> MemoryStream:
        """See `kbroker.runtime.net_ports.Env.connect`."""
        return await self._network.connect_from(self.name, host, port)

    async def open_tcp_stream(self, host: str, port: int) -> TrioStream:
        """Like `trio.open_tcp_stream`, in the simulated network.

        Errors  ConnectionRefusedError; while the link is cut or the other host has no power, it waits
        """
        return TrioStream(await self.connect(host, port))


class TrioStream(trio.abc.Stream):
    """A simulated connection as trio's abstract class.

    Errors  trio.BrokenResourceError and trio.ClosedResourceError, as of a `trio.SocketStream`; a connection that the
            peer has closed or reset ends with b""
    """

    def __init__(self, stream: MemoryStream) -> None:
        self._stream = stream

    async def send_all(self, data: Buffer) -> None:
        await trio.lowlevel.checkpoint()
        await self._stream.send([data])

    async def wait_send_all_might_not_block(self) -> None:
        await trio.lowlevel.checkpoint()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        await trio.lowlevel.checkpoint()
        return await self._stream.receive(max_bytes or _RECEIVE_BYTES)

    async def aclose(self) -> None:
        self._stream.close()
        await trio.lowlevel.checkpoint()
