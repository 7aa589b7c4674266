"""Connections of this node to the listeners of other nodes: brokers and controllers."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import trio

from kbroker.runtime.net_ports import Env, Stream
from kbroker.security.listener import HandshakeFailed

if TYPE_CHECKING:
    from kbroker.security.sasl.peer import PeerLogin
    from kbroker.security.server_tls import ServerTls


class PeerSecurity(NamedTuple):
    """The security that a listener of another node expects; tls is None without TLS, sasl without SASL."""

    protocol: str
    tls: ServerTls | None = None
    sasl: PeerLogin | None = None


async def open_stream(env: Env, host: str, port: int, security: PeerSecurity | None = None) -> Stream:
    """Connect, do the TLS handshake and log in, as the peer expects. The caller limits the time.

    Errors  OSError, also if the peer's certificate is refused, or the peer refuses the login
    """
    stream: Stream = await env.connect(host, port)
    if security is None:
        return stream
    try:
        if security.tls is not None:
            stream = await security.tls.connect(stream, host)
        if security.sasl is not None:
            from kbroker.security.sasl.peer import log_in  # noqa: PLC0415  (not needed without SASL)

            await log_in(env, stream, security.sasl, host=f"{host}:{port}")
    except (HandshakeFailed, trio.BrokenResourceError) as error:
        stream.close()
        raise ConnectionError(f"TLS handshake with {host}:{port} failed: {error}") from error
    except BaseException:
        stream.close()
        raise
    return stream
