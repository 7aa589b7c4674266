"""One connection to a broker, on which every wait ends with the time limit of the row.

With the settings of a client for TLS and SASL, a connection is encrypted and logged in before its first byte.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from compat.oracle.raw import Answer, Closed, Reply, Silent
from kbroker.client import blocking
from kbroker.client.security import connect, tls_context
from wire.client import UnsupportedApi
from wire.errors import KafkaError, Malformed

ANSWER_S = 30.0
"""How long a request may take, unless the row's limit ends before."""
MAX_RESPONSE_BYTES = 100 << 20


@dataclass
class Deadline:
    """The moment at which a row's time is up."""

    at: float

    @classmethod
    def after(cls, seconds: float) -> Deadline:
        """So many seconds from now."""
        return cls(time.monotonic() + seconds)

    def left_s(self) -> float:
        """The time that is left, at least a millisecond."""
        return max(0.001, self.at - time.monotonic())

    @property
    def is_over(self) -> bool:
        """Whether the time is up."""
        return time.monotonic() >= self.at


class Security:
    """How the card's connections are encrypted and logged in, by the settings of a client.

    Errors  OSError if a file cannot be read
    """

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self.is_encrypted = (tls := tls_context(settings)) is not None
        self._tls = tls
        self._settings = settings
        self._has_login = settings.get("security_protocol", "PLAINTEXT").startswith("SASL_")

    def connect(self, address: tuple[str, int], timeout_s: float) -> socket.socket:
        """A new connection. Errors: OSError."""
        if not self._has_login:
            host, port = address
            return blocking.Connection(host, port, client_id="card", timeout_s=timeout_s, tls=self._tls).socket
        try:
            return connect(address, self._settings, timeout_ms=int(timeout_s * 1000), tls=self._tls).socket
        except (KafkaError, Malformed, UnsupportedApi) as error:
            raise ConnectionError(f"no login: {error}") from error


NONE = Security({})


class Connection:
    """One blocking connection. Errors: OSError if it cannot be made."""

    def __init__(self, address: tuple[str, int], deadline: Deadline, security: Security = NONE) -> None:
        self.deadline = deadline
        self._socket = security.connect(address, min(ANSWER_S, deadline.left_s()))

    def close(self) -> None:
        """Close it."""
        self._socket.close()

    def send(self, data: bytes) -> None:
        """Send bytes unchanged. If the broker has closed the connection, `answer` says so."""
        self._socket.settimeout(min(ANSWER_S, self.deadline.left_s()))
        with contextlib.suppress(OSError):
            self._socket.sendall(data)

    def finish(self) -> None:
        """Send FIN: no more bytes will come. Not for TLS, which cannot close one direction."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def answer(self, *, timeout_s: float = ANSWER_S) -> Answer:
        """The next frame, or why there is none."""
        until = min(self.deadline.at, time.monotonic() + timeout_s)
        try:
            head = self._receive(4, until)
            if head is None:
                return Closed()
            (size,) = struct.unpack(">i", head)
            payload = self._receive(size, until) if 0 <= size <= MAX_RESPONSE_BYTES else head
            return Closed() if payload is None else Reply(payload)
        except TimeoutError:
            return Silent()
        except (ConnectionError, ssl.SSLError):
            return Closed()

    def _receive(self, size: int, until: float) -> bytes | None:
        data = bytearray()
        while len(data) < size:
            self._socket.settimeout(max(0.001, until - time.monotonic()))
            chunk = self._socket.recv(size - len(data))
            if not chunk:
                return None
            data += chunk
            if time.monotonic() > until:
                raise TimeoutError
        return bytes(data)
