"""Connections of this node to the listeners of other nodes: brokers and controllers."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kbroker.runtime.net_ports import Env, Stream
from kbroker.security.listener import HandshakeFailed

if TYPE_CHECKING:
    from kbroker.security.server_tls import ServerTls


class PeerSecurity(NamedTuple):
    """What a listener of another node expects; tls is None without TLS, sasl without SASL."""

    protocol: str
    tls: ServerTls | None = None
    sasl: None = None


async def open_stream(env: Env, host: str, port: int, security: PeerSecurity | None = None) -> Stream:
    """Connect, and do the TLS handshake if the peer expects one. The caller limits the time.

    Errors  OSError, also if the peer's certificate is refused
    """
    stream: Stream = await env.connect(host, port)
    if security is None or security.tls is None:
        return stream
    try:
        return await security.tls.connect(stream, host)
    except HandshakeFailed as error:
        stream.close()
        raise ConnectionError(f"TLS handshake with {host}:{port} failed: {error}") from error
    except BaseException:
        stream.close()
        raise
