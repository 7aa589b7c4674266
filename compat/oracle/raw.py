"""A client of raw bytes: send anything, and see whether the broker replies, closes the connection or stays silent."""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from compat.brokers import address_of
from compat.oracle.schema import Message, decode_response, encode_request

TIMEOUT_S: Final = 10.0


@dataclass(frozen=True)
class Reply:
    """A frame arrived; `payload` is the bytes after its length."""

    payload: bytes


@dataclass(frozen=True)
class Closed:
    """The broker closed the connection without a reply."""


@dataclass(frozen=True)
class Silent:
    """No reply within the time, and the connection is open."""


Answer = Reply | Closed | Silent


class RawConnection:
    """One blocking connection to a broker.

    Units  timeout_s limits the wait for the connection and, unless a call has its own, for each answer
    """

    def __init__(self, bootstrap_servers: str, *, timeout_s: float = TIMEOUT_S) -> None:
        self.timeout_s = timeout_s
        self.socket = socket.create_connection(address_of(bootstrap_servers), timeout=timeout_s)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def close(self) -> None:
        """Close the connection."""
        self.socket.close()

    def send(self, data: bytes) -> None:
        """Send bytes unchanged. If the broker has already closed the connection, `answer` reports it."""
        with contextlib.suppress(ConnectionError):
            self.socket.sendall(data)

    def finish(self) -> None:
        """Send FIN: no more bytes will come."""
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_WR)

    def answer(self, *, timeout_s: float | None = None) -> Answer:
        """The next frame, or why there is none."""
        self.socket.settimeout(self.timeout_s if timeout_s is None else timeout_s)
        try:
            head = self._receive(4)
            return Closed() if head is None else self._rest(head)
        except TimeoutError:
            return Silent()
        except ConnectionError:
            return Closed()

    def _rest(self, head: bytes) -> Answer:
        payload = self._receive(struct.unpack(">i", head)[0])
        return Closed() if payload is None else Reply(payload)

    def _receive(self, size: int) -> bytes | None:
        data = bytearray()
        while len(data) < size:
            chunk = self.socket.recv(size - len(data))
            if not chunk:
                return None
            data += chunk
        return bytes(data)

    def exchange(self, frame: bytes, *, timeout_s: float | None = None) -> Answer:
        """Send bytes and wait for the answer."""
        self.send(frame)
        return self.answer(timeout_s=timeout_s)

    def call(self, api: str, version: int, message: Message, *, client_id: str | None = "compat") -> Message:
        """Send a request and decode its response; anything but a reply is an error."""
        got = self.exchange(encode_request(api, version, message, client_id=client_id))
        assert isinstance(got, Reply), f"{api} v{version}: {got}"
        return decode_response(api, version, got.payload)


@contextlib.contextmanager
def connected(bootstrap_servers: str, *, timeout_s: float = TIMEOUT_S) -> Iterator[RawConnection]:
    """A connection that is closed at the end."""
    connection = RawConnection(bootstrap_servers, timeout_s=timeout_s)
    try:
        yield connection
    finally:
        connection.close()


def ask(bootstrap_servers: str, data: bytes, *, finish: bool = False, timeout_s: float = TIMEOUT_S) -> Answer:
    """Send bytes on a new connection and return the answer."""
    with connected(bootstrap_servers) as connection:
        connection.send(data)
        if finish:
            connection.finish()
        return connection.answer(timeout_s=timeout_s)
