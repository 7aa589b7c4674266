"""Connections to listeners of other nodes that fail on the way."""

from __future__ import annotations

import socket
import struct

import pytest
import trio

from kbroker.runtime.env import RealEnv
from kbroker.security.connecting import PeerSecurity, open_stream
from tests.security.tls_sides import settings, side

RESET_ON_CLOSE = struct.pack("ii", 1, 0)


async def test_a_peer_that_dies_in_the_handshake_cannot_be_reached() -> None:
    """The error is one that callers expect of a broken network, so the node lives on."""
    security = PeerSecurity("SSL", side(settings(), accepts=False))
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")

    async def die() -> None:
        stream = await listener.accept()
        await stream.receive_some(100)
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
        await stream.aclose()

    with trio.fail_after(20):
        async with listener, trio.open_nursery() as nursery:
            nursery.start_soon(die)
            with pytest.raises(ConnectionError, match=r"TLS handshake with .* failed: Connection reset"):
                await open_stream(RealEnv(), "127.0.0.1", listener.socket.getsockname()[1], security)
