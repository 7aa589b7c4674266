"""Requests to a store and their answers: `kbroker.tiered.minio_connections`."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from random import Random

import pytest

from kbroker.tiered.api import RetriableRemoteStorageError
from kbroker.tiered.minio_connections import TRANSPORT_ERRORS, Answer, Body, Connections, Deadline, Refused
from kbroker.tiered.minio_settings import MinioSettings

SIZE = 3_000_000
BODY = Random(1).randbytes(SIZE)
STOPS = [200_000, 1_700_000, 2_900_000]
"""Below the wake-up limit, in the middle, and near the end, where each piece wakes the reader."""

Serve = Callable[[socket.socket], None]


@contextmanager
def served(*answers: Serve, connections: int = 1, read_s: float = 10.0) -> Iterator[Connections]:
    """At most one connection at a time, to a server that answers these requests on each of `connections`."""

    def serve() -> None:
        for _ in range(connections):
            serve_one()

    def serve_one() -> None:
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
        host = f"127.0.0.1:{listening.getsockname()[1]}"
        settings = MinioSettings(
            endpoint=host, bucket="b", secure=False, connections_max=1, read_timeout_ms=int(read_s * 1000)
        )
        store = Connections(host, settings)
        try:
            yield store
        finally:
            store.close()
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


def cut_off(stop: int) -> Serve:
    def answer(connected: socket.socket) -> None:
        connected.sendall(head() + BODY[:stop])
        connected.shutdown(socket.SHUT_WR)

    return answer


def stuck(stop: int) -> Serve:
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


def get(store: Connections) -> Answer:
    return store.request("GET", "/", {"host": "store"}, Body(b""), deadline())


def received(answer: Answer, size: int, *, step: int = SIZE) -> bytes:
    """At most `size` bytes of the body, each time received into a buffer of `step` bytes."""
    memory = memoryview(bytearray(size))
    at = 0
    while at < size and (got := answer.receive_into(memory[at : at + step], deadline())):
        at += got
    return bytes(memory[:at])


@pytest.mark.parametrize("answer", [whole, in_pieces])
@pytest.mark.parametrize("step", [10_000, 8_192, 50_000, 1_000_000, 2_100_000, SIZE])
def test_a_body_is_complete_and_its_connection_is_reused(answer: Serve, step: int) -> None:
    with served(answer, whole, answer) as store:
        for _ in range(3):
            found = get(store)
            assert received(found, SIZE, step=step) == BODY
            assert found.receive_into(memoryview(bytearray(10)), deadline()) == 0


@pytest.mark.parametrize("answer", [whole, in_pieces, in_chunks])
def test_a_body_that_is_read_whole_frees_its_connection(answer: Serve) -> None:
    with served(answer, whole, answer) as store:
        for _ in range(3):
            assert get(store).read(deadline()) == BODY


def test_a_refusal_frees_its_connection() -> None:
    def refuse(connected: socket.socket) -> None:
        body = b"<Error><Code>NoSuchKey</Code><Message>It is gone.</Message></Error>"
        connected.sendall(head(len(body)).replace(b"200 OK", b"404 Not Found") + body)

    with served(refuse, whole) as store:
        with pytest.raises(Refused) as caught:
            get(store)
        assert (caught.value.status, caught.value.code) == (404, "NoSuchKey")
        assert get(store).read(deadline()) == BODY


def test_a_request_waits_for_a_free_connection_until_its_deadline() -> None:
    with served(whole) as store:
        held = get(store)
        with pytest.raises(TimeoutError):
            store.request("GET", "/", {"host": "store"}, Body(b""), deadline(50))
        held.discard()


def test_a_connection_that_the_store_has_closed_is_replaced() -> None:
    left = threading.Event()

    def leave(connected: socket.socket) -> None:
        whole(connected)
        connected.shutdown(socket.SHUT_WR)
        left.set()

    with served(leave, connections=2) as store:
        for _ in range(2):
            assert get(store).read(deadline()) == BODY
            left.wait(10)


def test_nothing_is_read_beyond_the_body() -> None:
    with served(lambda connected: connected.sendall(head() + BODY + b"not of it")) as store:
        assert received(get(store), SIZE + 50, step=SIZE + 50) == BODY


@pytest.mark.parametrize("stop", STOPS)
def test_a_truncated_body_ends_early(stop: int) -> None:
    with served(cut_off(stop)) as store:
        found = get(store)
        assert received(found, SIZE) == BODY[:stop]
        assert found.left_bytes == SIZE - stop
        found.discard()
    with served(cut_off(stop)) as store, pytest.raises(TRANSPORT_ERRORS, match="IncompleteRead"):
        get(store).read(deadline())


def fill(answer: Answer, memory: memoryview, until: Deadline) -> None:
    while got := answer.receive_into(memory, until):
        memory = memory[got:]


@pytest.mark.parametrize("stop", STOPS)
def test_a_pause_returns_received_bytes_or_an_error(stop: int) -> None:
    with served(stuck(stop), read_s=0.2) as store:
        found = get(store)
        memory = memoryview(bytearray(SIZE))
        with pytest.raises(OSError, match="timed out"):
            fill(found, memory, deadline())
        assert bytes(memory[:stop]) == BODY[:stop]
        found.discard()


@pytest.mark.parametrize("stop", STOPS)
def test_a_paused_sender_does_not_exceed_the_deadline(stop: int) -> None:
    with served(stuck(stop), read_s=0.5) as store:
        found = get(store)
        memory = memoryview(bytearray(SIZE))
        began = time.monotonic()
        with pytest.raises((RetriableRemoteStorageError, OSError)):
            fill(found, memory, deadline(300))
        assert time.monotonic() - began < 10
        found.discard()


def test_a_slow_body_is_complete() -> None:
    """Fewer bytes than the wake-up limit arrive within the read timeout."""

    def slowly(connected: socket.socket) -> None:
        connected.sendall(head())
        for start in range(0, SIZE, 100_000):
            time.sleep(0.05)
            connected.sendall(BODY[start : start + 100_000])

    with served(slowly, whole, read_s=0.2) as store:
        for _ in range(2):
            assert received(get(store), SIZE) == BODY


def drips(data: bytes) -> Serve:
    """Send these bytes one by one, each within the read timeout, until the client has disconnected."""

    def answer(connected: socket.socket) -> None:
        with suppress(OSError):
            for place in range(len(data)):
                time.sleep(0.02)
                connected.sendall(data[place : place + 1])

    return answer


@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/1.1 200 " + b"O" * 1000,
        b"HTTP/1.1 200 OK\r\nX-Name: " + b"x" * 1000,
        b"HTTP/1.1 100 Continue\r\n\r\n" * 40,
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"0" * 1000,
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n" + b"X-Trailer: x\r\n" * 80,
    ],
)
def test_a_trickling_head_does_not_exceed_the_deadline(data: bytes) -> None:
    with served(drips(data), read_s=5) as store:
        until = deadline(1500)
        began = time.monotonic()
        with pytest.raises((RetriableRemoteStorageError, OSError)):
            store.request("GET", "/", {"host": "store"}, Body(b""), until).read(until)
        assert time.monotonic() - began < 5


def test_an_early_refusal_is_read_although_the_connection_is_reset() -> None:
    """A server that closes with unread bytes resets the connection; its answer has arrived before."""

    def refuse(connected: socket.socket) -> None:
        body = b"<Error><Code>SlowDown</Code></Error>"
        connected.sendall(head(len(body)).replace(b"200 OK", b"503 Slow Down") + body)
        time.sleep(0.1)
        connected.close()

    with served(refuse) as store, pytest.raises(Refused) as caught:
        store.request("PUT", "/", {"host": "store"}, Body(bytes(20_000_000)), deadline())
    assert caught.value.status == 503


def test_an_answer_of_spaces_is_judged_in_linear_time() -> None:
    size = 200_000
    with served(lambda connected: connected.sendall(head(size) + b" " * size)) as store:
        began = time.process_time()
        assert get(store).read(deadline()) == b" " * size
        assert time.process_time() - began < 5


@pytest.mark.parametrize(
    "body",
    [
        b'<?xml version="1.0" encoding="gb2312"?><html/>',
        b'<?xml version="1.0" encoding="no-such"?><html/>',
        b'<!DOCTYPE Error [<!ENTITY a "SlowDown">]><Error><Code>&a;</Code></Error>',
    ],
)
def test_an_unreadable_error_body_leaves_the_status(body: bytes) -> None:
    refused = Refused(503, "Slow Down", body)
    assert (refused.status, refused.code) == (503, "")


def test_spaces_before_the_body_of_an_error_are_skipped() -> None:
    """S3 sends them to keep a connection alive while it completes an upload."""
    assert Refused(500, "OK", b' \n<?xml version="1.0"?><Error><Code>SlowDown</Code></Error>').code == "SlowDown"
