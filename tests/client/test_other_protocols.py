"""The client names the cause at once if no broker is at an address: nothing, a web server, TLS, or no TLS."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Thread

import pytest

from kbroker.client.cluster import Cluster
from wire.errors import KafkaError

HTTP = b"HTTP/1.1 400 Bad Request\r\n\r\n"
TLS_ALERT = b"\x15\x03\x01\x00\x02\x02\x46"


@contextmanager
def answering(data: bytes) -> Iterator[str]:
    """A server that answers the first bytes of each connection with these, and closes it."""

    def serve(listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                with listener.accept()[0] as peer:
                    peer.recv(1 << 16)
                    peer.sendall(data)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = Thread(target=serve, args=(listener,))
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(timeout=20)


@pytest.mark.parametrize(
    ("answer", "protocol", "cause"),
    [
        (HTTP, "PLAINTEXT", "an HTTP server answers there"),
        (TLS_ALERT, "PLAINTEXT", "the server uses TLS on this port"),
        (b"", "PLAINTEXT", "maybe it uses TLS"),
        (b"\0\0\0\4junk", "SSL", "the server does not use TLS on this port"),
    ],
)
def test_another_protocol_is_named(answer: bytes, protocol: str, cause: str) -> None:
    with answering(answer) as address:
        settings = {"bootstrap_servers": [address], "security_protocol": protocol, "waits_for_broker": False}
        with pytest.raises(KafkaError, match=cause):
            Cluster(settings)


@pytest.mark.parametrize(
    ("address", "cause"),
    [("127.0.0.1:1", "Connection refused"), ("no-such-host.invalid:9092", "ame or service not known|name resolution")],
)
def test_an_address_without_a_server_is_named(address: str, cause: str) -> None:
    with pytest.raises(KafkaError, match=cause):
        Cluster({"bootstrap_servers": [address], "waits_for_broker": False})
