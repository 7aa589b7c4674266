"""One connection to a broker on the event loop: typed requests and responses over a `Stream`.

The stream comes from `Env.connect`, so the same client runs over sockets and in the simulated network.
"""

from __future__ import annotations

from typing import Any, cast

import trio

from kbroker.runtime.net_ports import Part, Stream
from wire.client import MAX_RESPONSE_BYTES, ClientProtocol
from wire.framing import RECEIVE_BYTES


class ConnectionClosed(Exception):
    """The broker closed the connection."""


class Connection:
    """Requests may be sent ahead; responses come in the order of the requests.

    Errors  ConnectionClosed; wire.errors.Malformed, after which the connection is of no use
    """

    def __init__(self, stream: Stream, *, client_id: str, max_response_bytes: int = MAX_RESPONSE_BYTES) -> None:
        self.stream = stream
        self.protocol = ClientProtocol(client_id=client_id, max_response_bytes=max_response_bytes)

    async def ask(self, request: object, *, version: int | None = None) -> Any:
        """Send one request and wait for its response."""
        await self.send(request, version=version)
        return await self.receive()

    async def send(self, request: object, *, version: int | None = None, is_answered: bool = True) -> None:
        """Send a request whose response is received later, if it has one."""
        parts = self.protocol.request(request, version=version, is_answered=is_answered)
        await self._send(cast("list[Part]", parts))

    async def send_bytes(self, data: bytes) -> None:
        """Send bytes as they are."""
        await self._send([data])

    async def receive(self) -> Any:
        """The response to the oldest request that has none yet."""
        protocol = self.protocol
        while (response := protocol.next_response()) is None:
            room = protocol.room()
            try:
                if room is not None:
                    received = await self.stream.receive_into(room)
                    protocol.filled(received)
                else:
                    data = await self.stream.receive(RECEIVE_BYTES)
                    received = len(data)
                    if data:
                        protocol.feed(data)
            except trio.BrokenResourceError as error:
                raise ConnectionClosed from error
            if not received:
                raise ConnectionClosed
        return response

    def close(self) -> None:
        """Close the connection at once."""
        self.stream.close()

    async def _send(self, parts: list[Part]) -> None:
        try:
            await self.stream.send(parts)
        except trio.BrokenResourceError as error:
            raise ConnectionClosed from error
