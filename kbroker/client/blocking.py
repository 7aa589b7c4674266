"""One blocking connection to a broker: typed requests and responses over a socket, for commands and jobs."""

from __future__ import annotations

import socket
from contextlib import suppress
from select import select
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from wire.client import ClientProtocol, UnsupportedApi
from wire.errors import Malformed, code_of
from wire.framing import RECEIVE_BYTES
from wire.messages.api_versions import ApiVersionsRequest

if TYPE_CHECKING:
    import ssl

# Every broker answers version 0, including those that know no newer one.
_NEGOTIATING_VERSION = 0
_LOOKED_AT = 4
_TLS_RECORDS = (b"\x15", b"\x16")  # an alert, a handshake


def _refuse_other_protocols(begin: bytes) -> None:
    """Recognize other protocols by the first bytes of an answer. Errors: ConnectionError."""
    if begin.startswith(b"HTTP"):
        raise ConnectionError("an HTTP server answers there, not a broker")
    if begin[:1] in _TLS_RECORDS and begin[1:2] == b"\3":
        raise ConnectionError("the server uses TLS on this port, and the client does not (security.protocol=SSL)")
    if not begin:
        raise ConnectionError("the server closed the connection; maybe it uses TLS on this port (security.protocol)")


class Connection:
    """A context manager. `connect` negotiates versions; without it every request needs a version.

    Errors  OSError (ConnectionError if the broker closes the connection, TimeoutError), wire.errors.Malformed
    """

    def __init__(
        self, host: str, port: int, *, client_id: str, timeout_s: float | None = None, tls: ssl.SSLContext | None = None
    ) -> None:
        self.protocol = ClientProtocol(client_id=client_id)
        self.socket = socket.create_connection((host, port), timeout=timeout_s)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls is not None:
            try:
                self.socket = tls.wrap_socket(self.socket, server_hostname=host)
            except BaseException:
                self.socket.close()
                raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        with suppress(OSError):
            self.socket.close()

    def was_closed(self) -> bool:
        """Whether the broker has closed the connection while no response is due; unknown, so False, with TLS."""
        if self.protocol.unanswered or hasattr(self.socket, "context"):
            return False
        try:
            return bool(select([self.socket], [], [], 0)[0]) and not self.socket.recv(1, socket.MSG_PEEK)
        except OSError:
            return True

    def negotiate(self) -> None:
        """Ask which versions the broker serves. Errors: UnsupportedApi if it does not say."""
        try:
            self.send(ApiVersionsRequest(), version=_NEGOTIATING_VERSION)
            if not hasattr(self.socket, "context"):  # TLS cannot look ahead
                _refuse_other_protocols(self.socket.recv(_LOOKED_AT, socket.MSG_PEEK))
            answer = self.receive()
        except Malformed as error:
            raise Malformed(f"the server does not use Kafka's protocol ({error})") from error
        if answer.error_code:
            raise UnsupportedApi(f"the broker answers ApiVersions with {code_of(answer.error_code).name}")
        self.protocol.learn_versions(answer)

    def ask(self, request: object, *, version: int | None = None) -> Any:
        """Send a request and wait for its response. Errors: UnsupportedApi."""
        self.send(request, version=version)
        return self.receive()

    def send(self, request: object, *, version: int | None = None, is_answered: bool = True) -> None:
        """Send a request whose response is received later, if it has one."""
        parts = self.protocol.request(request, version=version, is_answered=is_answered)
        self.socket.sendall(b"".join(part if isinstance(part, bytes) else bytes(part) for part in parts))  # type: ignore[call-overload]

    def receive(self) -> Any:
        """The response to the oldest request that has none yet."""
        protocol = self.protocol
        while (response := protocol.next_response()) is None:
            room = protocol.room()
            if room is not None:
                received = self.socket.recv_into(room)
                protocol.filled(received)
            else:
                data = self.socket.recv(RECEIVE_BYTES)
                received = len(data)
                if data:
                    protocol.feed(data)
            if not received:
                raise ConnectionError("the broker closed the connection")
        return response
