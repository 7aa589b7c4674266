"""How a listener authenticates and protects its connections.

A connection of a listener with TLS first does the handshake, one with SASL then authenticates, and only then it serves
requests. Both together have kbroker.authentication.timeout.ms. This module does not import `ssl`, so that a broker
without TLS starts as fast as before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from kbroker.metadata.principal import Principal
from kbroker.runtime.net_ports import Stream

if TYPE_CHECKING:
    from kbroker.security.sasl.server import SaslServer


class HandshakeFailed(Exception):
    """A TLS handshake failed, or one of the peers refuses the other's certificate. The message is for the log."""


class Acceptor(Protocol):
    """The TLS of a listener (`kbroker.security.server_tls`)."""

    async def accept(self, stream: Stream) -> Stream:
        """Do the handshake; return the stream that decrypts.

        Errors  HandshakeFailed; trio.BrokenResourceError if the client has gone
        """
        ...

    def principal(self, stream: Stream) -> Principal:
        """The principal in the certificate of a client; `accept` returned the stream. Errors: HandshakeFailed."""
        ...


class ListenerSecurity(NamedTuple):
    """The security of one listener.

    Shape   protocol is PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL; tls is None without TLS, sasl without SASL
    """

    protocol: str
    tls: Acceptor | None = None
    sasl: SaslServer | None = None


OPEN: Final = ListenerSecurity("PLAINTEXT")
"""A listener without authentication."""
