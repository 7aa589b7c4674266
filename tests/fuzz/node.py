"""A whole broker in memory: the bytes that a client sends to a listener, with and without login, and those that a
browser sends to its pages.

The node runs in a thread of its own with virtual time, which stands still between two inputs. An input fails if a
request meets a fault, if the broker logs an error, or if it ends. The node keeps what earlier inputs did to it, so it
is replaced after some hundreds of inputs; a failure names the inputs before it.
"""

from __future__ import annotations

import base64
import contextlib
import logging
import ssl
import struct
import threading
from collections.abc import Iterator
from functools import cache
from math import inf
from typing import Any
from uuid import UUID

import trio
from trio.testing import MockClock

from kbroker.handlers import discover
from kbroker.testing.memory_node import MemoryBroker, memory_broker
from tests.fuzz.messages import captured
from tests.fuzz.messages import requests as all_requests
from tests.fuzz.target import Target
from tests.greedy import World, greedy_requests
from tests.handlers.asking import create_topic
from tests.handlers.groups import find
from tests.security.certificates import Authority
from wire.framing import encode_request_frame
from wire.messages.api_versions import ApiVersionsRequest
from wire.messages.metadata import MetadataRequest
from wire.messages.sasl_authenticate import SaslAuthenticateRequest
from wire.messages.sasl_handshake import SaslHandshakeRequest

INPUTS_OF_A_NODE = 500
HOST = "broker.example"
PAGES = ("pages.example", 9644)
LOGIN, TLS = (HOST, 9093), (HOST, 9094)
"""A listener with SASL, and one with TLS and SASL."""
USER, PASSWORD = "alice", "secret-of-alice"
BEFORE_LOGIN = frozenset({"ApiVersions", "SaslHandshake", "SaslAuthenticate"})
_PATIENCE_S = 2.0
"""Virtual seconds that an input waits for the rest of its answers."""


class _Errors(logging.Handler):
    """The errors that the broker logs."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))


class _Node:
    """A node, in its thread."""

    def __init__(self) -> None:
        self.inputs: list[bytes] = []
        self.errors = _Errors()
        self._clock = MockClock()
        self._token: trio.lowlevel.TrioToken | None = None
        self._broker: MemoryBroker | None = None
        self._stop: trio.Event | None = None
        self._is_ready = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        logging.getLogger("kbroker").addHandler(self.errors)
        self._thread.start()
        self._is_ready.wait()
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            trio.run(self._main, clock=self._clock)
        except BaseException as error:  # noqa: BLE001 - raised again in the thread of the target
            self._failure = error
        finally:
            self._is_ready.set()

    async def _main(self) -> None:
        self._clock.autojump_threshold = 0
        async with memory_broker(settings=_settings()) as broker:
            client = await broker.connect()
            await create_topic(client, "t", partitions=2)
            await find(client)
            client.close()
            self._broker, self._token, self._stop = broker, trio.lowlevel.current_trio_token(), trio.Event()
            self._clock.autojump_threshold = inf
            self._is_ready.set()
            await self._stop.wait()
            self._clock.autojump_threshold = 0

    def stop(self) -> None:
        """Stop the node and wait for its end."""
        logging.getLogger("kbroker").removeHandler(self.errors)
        if self._token is not None and self._stop is not None and self._thread.is_alive():
            trio.from_thread.run_sync(self._stop.set, trio_token=self._token)
        self._thread.join()
        if self._failure is not None:
            raise self._failure

    def requests_after_login(self) -> int:
        """The number of requests that the node has served, except those of a login."""
        assert self._broker is not None
        counters = self._broker.node.metrics.counters.items()
        apis = {f"requests.{handler.name}" for handler in discover().values() if handler.name not in BEFORE_LOGIN}
        return sum(counter.value for name, counter in counters if name in apis)

    def send(self, address: tuple[str, int] | None, data: bytes, *, replies: int) -> None:
        """Send bytes on a new connection, and wait for this number of answers or the end of the connection."""
        self.inputs.append(data)
        before = base64.b64encode(b"".join(struct.pack(">i", len(one)) + one for one in self.inputs[-20:]))
        if not self._thread.is_alive():
            raise AssertionError(f"the node has ended: {self._failure!r}")
        try:
            trio.from_thread.run(self._send, address, data, replies, trio_token=self._token)
        except trio.RunFinishedError as error:
            raise AssertionError(f"the node has ended: {self._failure!r}, after {before!r}") from error
        assert self._broker is not None
        faults = self._broker.node.metrics.counter("requests.faults").value
        assert not faults, f"a fault in a request: {self.errors.lines}, after {before!r}"
        assert not self.errors.lines, f"{self.errors.lines}, after {before!r}"

    async def _send(self, address: tuple[str, int] | None, data: bytes, replies: int) -> None:
        assert self._broker is not None
        stream = await self._broker.env.connect(*(address or self._broker.address))
        self._clock.autojump_threshold = 0
        received = bytearray()
        try:
            with trio.move_on_after(_PATIENCE_S):
                await stream.send([data])
                while (more := await stream.receive(65536)) and replies > 0:
                    received += more
                    while len(received) >= 4 and len(received) >= (end := 4 + int.from_bytes(received[:4], "big")):
                        del received[:end]
                        replies -= 1
                    if replies == 0:
                        break
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        finally:
            stream.close()
            with trio.CancelScope(shield=True):
                await trio.testing.wait_all_tasks_blocked()
            self._clock.autojump_threshold = inf


@cache
def _settings() -> dict[str, object]:
    key, chain = (pem.replace("\n", "\\n") for pem in (_CERTIFICATE.key_pem(), _CERTIFICATE.chain))
    return {
        "kbroker.http.listener": f"{PAGES[0]}:{PAGES[1]}",
        "auto.create.topics.enable": "false",
        "listeners": f"PLAINTEXT://{HOST}:9092,LOGIN://{HOST}:{LOGIN[1]},TLS://{HOST}:{TLS[1]}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,LOGIN:SASL_PLAINTEXT,TLS:SASL_SSL,CONTROLLER:PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
        **{
            f"listener.name.{name}.plain.sasl.jaas.config": f'PlainLoginModule required user_{USER}="{PASSWORD}";'
            for name in ("login", "tls")
        },
        "ssl.keystore.type": "PEM",
        "ssl.keystore.key": key,
        "ssl.keystore.certificate.chain": chain,
    }


_CERTIFICATE = Authority().sign(names=(HOST,))
_nodes: list[_Node] = []


def _node() -> _Node:
    """The node, a new one after some hundreds of inputs."""
    if _nodes and len(_nodes[0].inputs) >= INPUTS_OF_A_NODE:
        _nodes.pop().stop()
    if not _nodes:
        _nodes.append(_Node())
    return _nodes[0]


def talk(data: bytes) -> None:
    """Byte 0: whether the rest is one frame, which gets its length, or raw bytes."""
    if not data:
        return
    rest = data[1:]
    if data[0] & 1:
        rest = struct.pack(">i", len(rest)) + rest
    _guarded(None, rest, replies=_frames(rest))


def log_in(data: bytes) -> int:
    """Byte 0: whether the rest is one frame or raw bytes (bit 0), and for which listener (bit 1). No request is served
    before a login, for which the input needs the password: the nonce of SCRAM differs each time. Returns the number of
    requests that are served after a login.
    """
    if not data:
        return 0
    rest = struct.pack(">i", len(data) - 1) + data[1:] if data[0] & 1 else data[1:]
    before = _node().requests_after_login()
    _guarded(TLS if data[0] & 2 else LOGIN, rest, replies=_frames(rest))
    served = _nodes[0].requests_after_login() - before
    assert not served or PASSWORD.encode() in data, f"served before a login: {data!r}"
    return served


def _frames(data: bytes) -> int:
    count = position = 0
    while position + 4 <= len(data):
        size = int.from_bytes(data[position : position + 4], "big", signed=True)
        position += 4 + max(size, 0)
        count += 1
    return count


def browse(data: bytes) -> None:
    """Bytes for the pages."""
    if data:
        _guarded(PAGES, data, replies=1 << 30)


def _guarded(address: tuple[str, int] | None, data: bytes, *, replies: int) -> None:
    try:
        _node().send(address, data, replies=replies)
    except BaseException:
        _nodes.clear()  # what failed may be repeated on a fresh node
        raise


def _frames_of_clients() -> Iterator[bytes]:
    served = discover()
    world = World("t", UUID(int=1), "g")
    for request in greedy_requests(served, world, max_bytes=600, max_elements=3):
        yield b"\x01" + request.frame[4:]
    for data in all_requests():
        if len(data) > 4 and int.from_bytes(data[:2], "big") in served:
            yield b"\x01" + data
    frames = [struct.pack(">i", len(frame)) + frame for _, frame in captured("request")]
    yield b"\x00" + b"".join(frame for frame in frames[:6] if len(frame) < 200)


def _requests_of_browsers() -> Iterator[bytes]:
    for path in ("/", "/state", "/metrics", "/health", "/ready", "/state?partitions=1&x=%00", "/topics", "/%2e%2e/"):
        yield f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode()
    yield b"HEAD /metrics HTTP/1.0\r\n\r\n"
    yield b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc"
    yield b"GET / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"
    yield b"GET / HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n"
    yield b"GET http://x/state HTTP/1.1\r\nHost: evil.example.com\r\nAuthorization: Bearer x\r\n\r\n"


def _logins() -> Iterator[bytes]:
    def frames(*steps: tuple[Any, int]) -> bytes:
        parts = (encode_request_frame(step, version, correlation_id=1, client_id="c") for step, version in steps)
        return b"".join(bytes(part) for one in parts for part in one)  # type: ignore[arg-type]

    versions = (ApiVersionsRequest(client_software_name="c", client_software_version="1"), 3)
    asked = (MetadataRequest(topics=None), 12)
    plain, scram = (SaslHandshakeRequest(mechanism=name) for name in ("PLAIN", "SCRAM-SHA-256"))
    right, wrong = (SaslAuthenticateRequest(auth_bytes=f"\0{USER}\0{word}".encode()) for word in (PASSWORD, "wrong"))
    first = SaslAuthenticateRequest(auth_bytes=f"n,,n={USER},r=client".encode())
    last = SaslAuthenticateRequest(auth_bytes=b"c=biws,r=client,p=AAAA")
    raw = struct.pack(">i", len(right.auth_bytes)) + right.auth_bytes
    for bit in (b"\x00", b"\x02"):
        yield bit + frames(versions, (plain, 1), (right, 2), asked)
        yield bit + frames(versions, (plain, 1), (wrong, 2), asked)
        yield bit + frames((plain, 0)) + raw + frames(asked)
        yield bit + frames((plain, 1), (right, 2), (scram, 1), (first, 2), (last, 2), asked)
        yield bit + frames((scram, 1), (first, 1), (last, 1), asked)
        yield bit + frames((scram, 1), asked)
        yield bit + frames((right, 2), asked)
        yield bit + frames(asked)
        yield bit + frames((SaslHandshakeRequest(mechanism="GSSAPI"), 1), (right, 0))
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(incoming, outgoing, server_hostname=HOST)
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    hello = outgoing.read()
    yield b"\x02" + hello
    yield b"\x02" + hello[:100]
    yield b"\x02" + hello + b"\x15\x03\x03\x00\x02\x02\x28"  # an alert
    yield b"\x00" + hello


TARGETS = (
    Target("broker", talk, _frames_of_clients, cpu_ms=200.0, lines=(0, 0), allocated=(0, 0), weight=3.0, ratio=0.2),
    Target("login", log_in, _logins, cpu_ms=200.0, lines=(0, 0), allocated=(0, 0), weight=3.0, ratio=0.2),
    Target("pages", browse, _requests_of_browsers, cpu_ms=200.0, lines=(0, 0), allocated=(0, 0), ratio=0.2),
)
