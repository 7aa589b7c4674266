"""A whole node in memory, for targets whose inputs are the bytes of a peer at one of its ports.

The node runs in a thread of its own with virtual time, which stands still between two inputs. An input fails if a
request meets a fault, if the node logs an error, or if it ends. The node keeps the effects of earlier inputs, so it is
replaced after some hundreds of inputs; a failure names the inputs before it.

It has six ports: a listener for clients and one of its controller, where every client may do everything; listeners
of both kinds with a login, whose user has no rights, and one of them with TLS; and pages with TLS and a token.
"""

from __future__ import annotations

import base64
import contextlib
import json
import logging
import ssl
import struct
import sys
import threading
from collections.abc import Callable
from functools import cache
from math import inf
from typing import Any, Final, NamedTuple, TypeVar
from uuid import UUID

import trio
from cryptography.hazmat.primitives.asymmetric import ec
from jwt.algorithms import ECAlgorithm
from trio.testing import MockClock

from kbroker.config.authorizer import STANDARD_AUTHORIZER
from kbroker.handlers import discover
from kbroker.runtime.net_ports import Stream
from kbroker.security.audit import AuditedAuthorizer
from kbroker.security.listener import HandshakeFailed
from kbroker.security.tls_stream import TlsStream
from kbroker.testing.disk import SimulatedDisk
from kbroker.testing.memory_node import MemoryBroker, memory_broker
from tests.fuzz.target import TraceFunction
from tests.handlers.asking import batch as batch_of
from tests.handlers.asking import create_topic, produce
from tests.handlers.groups import find
from tests.security.certificates import Authority

Result = TypeVar("Result")

INPUTS_OF_A_NODE: Final = 500
HOST: Final = "broker.example"
CLIENTS, LOGIN, TLS, CONTROLLER, GUARDED, PAGES = ((HOST, port) for port in (9092, 9093, 9094, 9095, 9096, 9644))
USER, PASSWORD, TOKEN = "alice", "secret-of-alice", "token-of-the-pages"
TOPIC, HIDDEN, VALUE = "t", "hidden-topic", b"value-of-a-hidden-record"
"""A topic, and another one with a record."""
SIGNING: Final = ec.derive_private_key(0x5EED, ec.SECP256R1())
"""The key of the issuer of tokens: always the same, so that tokens in the repository stay valid."""
_KEYS: Final = "/keys.json"
_BEFORE_LOGIN: Final = frozenset({"ApiVersions", "SaslHandshake", "SaslAuthenticate"})
_CERTIFICATE: Final = Authority().sign(names=(HOST,))
_PATIENCE_S: Final = 2.0
"""Virtual seconds that an input waits for the rest of its answers."""
_MOST_RECEIVED: Final = 1 << 20


class _Errors(logging.Handler):
    """The errors that the node logs."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))


class State(NamedTuple):
    """The stored state that clients can change. If it is equal before and after an input, the input changed nothing."""

    metadata: tuple[Any, ...]
    end_offsets: dict[Any, int]


class Node:
    """A node, in its thread."""

    def __init__(self) -> None:
        self.inputs: list[bytes] = []
        self.is_spent = False  # an input has removed what others need
        self.errors = _Errors()
        self.hidden_id = UUID(int=0)
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
        async with memory_broker(_disk(), settings=_settings()) as broker:
            client = await broker.connect()
            await create_topic(client, TOPIC, partitions=2)
            self.hidden_id = await create_topic(client, HIDDEN)
            assert (await produce(client, HIDDEN, batch_of(VALUE))).error_code == 0
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
        if self._stop is not None and self._thread.is_alive():
            self.call(self._stop.set)
        self._thread.join()
        if self._failure is not None:
            raise self._failure

    def call(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """Call a function in the thread of the node."""
        return trio.from_thread.run_sync(function, *arguments, trio_token=self._token)

    @property
    def broker(self) -> MemoryBroker:
        """The broker of the node."""
        assert self._broker is not None
        return self._broker

    @property
    def authorizer(self) -> AuditedAuthorizer:
        """The authorizer of the broker."""
        found = self.broker.node.broker.authorizer
        assert isinstance(found, AuditedAuthorizer)
        return found

    def requests_after_login(self) -> int:
        """The number of requests that the node has served, except those of a login."""
        counters = self.broker.node.metrics.counters.items()
        apis = {f"requests.{handler.name}" for handler in discover().values() if handler.name not in _BEFORE_LOGIN}
        return sum(counter.value for name, counter in counters if name in apis)

    def state(self) -> State:
        """The current state."""
        image = self.broker.node.broker.image
        stored = (
            {name: (topic.id, len(topic.partitions)) for name, topic in image.topics_by_name.items()},
            {name: dict(keys) for name, keys in image.configs.items()},
            dict(image.client_quotas),
            dict(image.acls),
            dict(image.scram_credentials),
            dict(image.features),
            set(image.brokers),
        )
        partitions = self.broker.node.broker.replicas.partitions.items()
        return State(stored, {key: partition.log.log_end_offset for key, partition in partitions})

    def send(self, address: tuple[str, int], data: bytes, *, replies: int, with_tls: bool = False) -> bytes:
        """Send bytes on a new connection, wait for this number of answers or the end of the connection, and return what
        came, at most _MOST_RECEIVED bytes. with_tls: the bytes are sent after a handshake.
        """
        self.inputs.append(data)
        before = base64.b64encode(b"".join(struct.pack(">i", len(one)) + one for one in self.inputs[-20:]))
        if not self._thread.is_alive():
            raise AssertionError(f"the node has ended: {self._failure!r}")
        try:
            received = trio.from_thread.run(self._send, address, data, replies, with_tls, trio_token=self._token)
        except trio.RunFinishedError as error:
            raise AssertionError(f"the node has ended: {self._failure!r}, after {before!r}") from error
        faults = self.broker.node.metrics.counter("requests.faults").value
        assert not faults, f"a fault in a request: {self.errors.lines}, after {before!r}"
        assert not self.errors.lines, f"{self.errors.lines}, after {before!r}"
        return received

    async def _send(self, address: tuple[str, int], data: bytes, replies: int, with_tls: bool) -> bytes:
        stream: Stream = await self.broker.env.connect(*address)
        self._clock.autojump_threshold = 0
        pending, received = bytearray(), bytearray()
        try:
            with trio.move_on_after(_PATIENCE_S):
                if with_tls:
                    stream = TlsStream(stream, _trusting(), server_side=False, server_hostname=HOST)
                    await stream.handshake()
                await stream.send([data])
                while (more := await stream.receive(65536)) and replies > 0:
                    received += more[: _MOST_RECEIVED - len(received)]
                    pending += more
                    while len(pending) >= 4 and len(pending) >= (end := 4 + int.from_bytes(pending[:4], "big")):
                        del pending[:end]
                        replies -= 1
                    if replies == 0:
                        break
        except (trio.BrokenResourceError, trio.ClosedResourceError, HandshakeFailed):
            pass
        finally:
            stream.close()
            with trio.CancelScope(shield=True):
                await trio.testing.wait_all_tasks_blocked()
            self._clock.autojump_threshold = inf
        return bytes(received)


def _disk() -> SimulatedDisk:
    disk = SimulatedDisk()
    public = ECAlgorithm.to_jwk(SIGNING.public_key(), as_dict=True)
    file = disk.open(_KEYS, create=True)
    file.pwrite(json.dumps({"keys": [public | {"kid": "k", "use": "sig"}]}).encode(), 0)
    file.close()
    return disk


@cache
def _settings() -> dict[str, object]:
    key, chain = (pem.replace("\n", "\\n") for pem in (_CERTIFICATE.key_pem(), _CERTIFICATE.chain))
    ports = {"PLAINTEXT": CLIENTS, "LOGIN": LOGIN, "TLS": TLS, "CONTROLLER": CONTROLLER, "GUARDED": GUARDED}
    kinds = ("PLAINTEXT", "SASL_PLAINTEXT", "SASL_SSL", "PLAINTEXT", "SASL_PLAINTEXT")
    return {
        "kbroker.http.listener": f"{PAGES[0]}:{PAGES[1]}",
        "kbroker.http.security.protocol": "SSL",
        "kbroker.http.token": TOKEN,
        "auto.create.topics.enable": "false",
        "kbroker.max.metadata.records": 200,  # a creation of thousands of partitions is allowed to take longer
        "listeners": ",".join(f"{name}://{host}:{port}" for name, (host, port) in ports.items()),
        "controller.listener.names": "CONTROLLER,GUARDED",
        "listener.security.protocol.map": ",".join(f"{name}:{kind}" for name, kind in zip(ports, kinds, strict=True)),
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,OAUTHBEARER",
        "sasl.oauthbearer.jwks.endpoint.url": f"file://{_KEYS}",
        **{
            f"listener.name.{name}.plain.sasl.jaas.config": f'PlainLoginModule required user_{USER}="{PASSWORD}";'
            for name in ("login", "tls", "guarded")
        },
        "ssl.keystore.type": "PEM",
        "ssl.keystore.key": key,
        "ssl.keystore.certificate.chain": chain,
        "authorizer.class.name": STANDARD_AUTHORIZER,
        "super.users": "User:ANONYMOUS",
    }


@cache
def _trusting() -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=_CERTIFICATE.chain)
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context


_nodes: list[Node] = []


def node() -> Node:
    """The node of the next input, a new one after some hundreds of inputs."""
    if _nodes and (_nodes[0].is_spent or len(_nodes[0].inputs) >= INPUTS_OF_A_NODE):
        _nodes.pop().stop()
    if not _nodes:
        _nodes.append(Node())
    return _nodes[0]


def ask(address: tuple[str, int], data: bytes, *, replies: int, with_tls: bool = False) -> bytes:
    """See `Node.send`; after a failure a repetition uses a new node."""
    try:
        return node().send(address, data, replies=replies, with_tls=with_tls)
    except BaseException:
        _nodes.clear()  # without waiting for its end, which may never come
        raise


def trace(function: TraceFunction | None) -> None:
    """Set the trace function of the thread in which the node runs."""
    with contextlib.suppress(trio.RunFinishedError):
        for each in _nodes:  # none after a failure
            each.call(sys.settrace, function)


def frames_in(data: bytes) -> int:
    """The number of frames that begin in these bytes."""
    count = position = 0
    while position + 4 <= len(data):
        size = int.from_bytes(data[position : position + 4], "big", signed=True)
        position += 4 + max(size, 0)
        count += 1
    return count
