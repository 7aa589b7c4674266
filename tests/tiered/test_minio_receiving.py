"""Receiving answers of a store over a connection: `kbroker.tiered.minio_receiving`."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random

import pytest
import urllib3
from urllib3.response import BaseHTTPResponse

from kbroker.tiered.api import RetriableRemoteStorageError
from kbroker.tiered.minio_client import Deadline
from kbroker.tiered.minio_receiving import receive_into

SIZE = 3_000_000
BODY = Random(1).randbytes(SIZE)
STOPS = [200_000, 1_700_000, 2_900_000]
"""Below the wake-up limit, in the middle, and near the end, where each piece wakes the reader."""

Answer = Callable[[socket.socket], None]


@contextmanager
def served(*answers: Answer, read_s: float = 10.0) -> Iterator[urllib3.HTTPConnectionPool]:
    """A pool with at most one connection, to a server that answers the requests of one connection."""

    def serve() -> None:
        connected, _ = listening.accept()
        with connected:
            for answer in answers:
                request = b""
                while b"\r\n\r\n" not in request:
                    got = connected.recv(65_536)
                    if not got:
                        return
                    request += got
                answer(connected)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(10)
        server = threading.Thread(target=serve)
        server.start()
        pool = urllib3.HTTPConnectionPool(
            "127.0.0.1", listening.getsockname()[1], maxsize=1, block=True, retries=False, timeout=read_s
        )
        try:
            yield pool
        finally:
            pool.close()
            server.join(10)
            assert not server.is_alive()


def head(size: int = SIZE, *more: str) -> bytes:
    return "\r\n".join(["HTTP/1.1 200 OK", f"Content-Length: {size}", *more, "", ""]).encode()


def whole(connected: socket.socket) -> None:
    connected.sendall(head() + BODY)


def in_pieces(connected: socket.socket) -> None:
    connected.sendall(head())
    for start in range(0, SIZE, 7_001):
        connected.sendall(BODY[start : start + 7_001])


def cut_off(stop: int) -> Answer:
    def answer(connected: socket.socket) -> None:
        connected.sendall(head() + BODY[:stop])
        connected.shutdown(socket.SHUT_WR)

    return answer


def stuck(stop: int) -> Answer:
    """Send nothing more until the client has disconnected."""

    def answer(connected: socket.socket) -> None:
        connected.sendall(head() + BODY[:stop])
        connected.recv(1)

    return answer


def in_chunks(connected: socket.socket) -> None:
    connected.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    for start in range(0, SIZE, 100_000):
        connected.sendall(b"%x\r\n" % 100_000 + BODY[start : start + 100_000] + b"\r\n")
    connected.sendall(b"0\r\n\r\n")


def deadline(milliseconds: float = 20_000) -> Deadline:
    return Deadline(time.monotonic_ns, milliseconds, "reading")


def get(pool: urllib3.HTTPConnectionPool) -> BaseHTTPResponse:
    return pool.urlopen("GET", "/", preload_content=False, decode_content=False)


def received(response: BaseHTTPResponse, size: int, *, step: int = SIZE) -> bytes:
    """At most `size` bytes of the body, each time received into a buffer of `step` bytes."""
    memory = memoryview(bytearray(size))
    at = 0
    while at < size and (got := receive_into(response, memory[at : at + step], deadline())):
        at += got
    return bytes(memory[:at])


@pytest.mark.parametrize("answer", [whole, in_pieces, in_chunks])
@pytest.mark.parametrize("step", [10_000, 8_192, 50_000, 1_000_000, 2_100_000, SIZE])
def test_a_body_is_complete_and_its_connection_is_reused(answer: Answer, step: int) -> None:
    with served(answer, whole, answer) as pool:
        for _ in range(3):
            response = get(pool)
            assert received(response, SIZE, step=step) == BODY
            assert receive_into(response, memoryview(bytearray(10)), deadline()) == 0
            response.release_conn()
        assert pool.num_connections == 1


def test_nothing_is_read_beyond_the_body() -> None:
    with served(lambda connected: connected.sendall(head() + BODY + b"not of it")) as pool:
        response = get(pool)
        assert received(response, SIZE + 50, step=SIZE + 50) == BODY
        response.close()
        response.release_conn()


@pytest.mark.parametrize("stop", STOPS)
def test_a_truncated_body_ends_early(stop: int) -> None:
    with served(cut_off(stop)) as pool:
        response = get(pool)
        assert received(response, SIZE) == BODY[:stop]
        response.close()
        response.release_conn()


def fill(response: BaseHTTPResponse, memory: memoryview, until: Deadline) -> None:
    while got := receive_into(response, memory, until):
        memory = memory[got:]


@pytest.mark.parametrize("stop", STOPS)
def test_a_pause_returns_received_bytes_or_an_error(stop: int) -> None:
    with served(stuck(stop), read_s=0.2) as pool:
        response = get(pool)
        memory = memoryview(bytearray(SIZE))
        with pytest.raises(OSError, match="timed out"):
            fill(response, memory, deadline())
        assert bytes(memory[:stop]) == BODY[:stop]
        response.close()
        response.release_conn()


@pytest.mark.parametrize("stop", STOPS)
def test_a_paused_sender_does_not_exceed_the_deadline(stop: int) -> None:
    with served(stuck(stop), read_s=0.5) as pool:
        response = get(pool)
        memory = memoryview(bytearray(SIZE))
        began = time.monotonic()
        with pytest.raises((RetriableRemoteStorageError, OSError)):
            fill(response, memory, deadline(300))
        assert time.monotonic() - began < 10
        response.close()
        response.release_conn()


def test_a_slow_body_is_complete() -> None:
    """Fewer bytes than the wake-up limit arrive within the read timeout."""

    def slowly(connected: socket.socket) -> None:
        connected.sendall(head())
        for start in range(0, SIZE, 100_000):
            time.sleep(0.05)
            connected.sendall(BODY[start : start + 100_000])

    with served(slowly, whole, read_s=0.2) as pool:
        for _ in range(2):
            response = get(pool)
            assert received(response, SIZE) == BODY
            response.release_conn()
        assert pool.num_connections == 1
