"""Bytes from peers at the ports of a node (node.py): requests of clients and of other nodes, logins, requests of a user
with some rights, and requests for the pages.
"""

from __future__ import annotations

import contextlib
import re
import ssl
import struct
from binascii import Error, a2b_base64
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, Final
from uuid import UUID

import jwt

from kbroker import quorum
from kbroker.handlers import Handler, discover
from kbroker.security.authorizing import Operation, Permission, ResourceType
from kbroker.testing.env import WALL_START_MS
from tests.fuzz.acls import OF_TYPE, acl_of, as_bytes
from tests.fuzz.messages import captured
from tests.fuzz.messages import requests as all_requests
from tests.fuzz.node import (
    CLIENTS,
    CONTROLLER,
    GUARDED,
    HIDDEN,
    HOST,
    LOGIN,
    PAGES,
    PASSWORD,
    SIGNING,
    TLS,
    TOKEN,
    TOPIC,
    USER,
    VALUE,
    Node,
    State,
    ask,
    frames_in,
    node,
    trace,
)
from tests.fuzz.target import Target
from tests.greedy import World, greedy_requests
from tests.security.acl_model import by_id, is_allowed
from wire.framing import encode_request_frame
from wire.messages.api_versions import ApiVersionsRequest
from wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from wire.messages.sasl_authenticate import SaslAuthenticateRequest
from wire.messages.sasl_handshake import SaslHandshakeRequest
from wire.stored.metadata import AccessControlEntryRecord

_TOKENS: Final = re.compile(rb"[A-Za-z0-9_=-]+\.[A-Za-z0-9_=-]+\.[A-Za-z0-9_=-]*")
HIDDEN_ID: Final = b"\xa5id-of-hidden-\xa5\xa5"
"""Stands for the id of the hidden topic in an input."""
PEER: Final = "198.51.100.1"
"""The address of the clients."""


def framed(data: bytes) -> bytes:
    """Byte 0, bit 0: whether the rest is one frame, which gets its length, or raw bytes."""
    rest = data[1:]
    return struct.pack(">i", len(rest)) + rest if data[0] & 1 else rest


def talk(data: bytes) -> None:
    """Requests of clients that may do everything."""
    if data:
        ask(CLIENTS, framed(data), replies=frames_in(framed(data)))


def conduct(data: bytes) -> None:
    """Requests of nodes for the controller."""
    if data:
        ask(CONTROLLER, framed(data), replies=frames_in(framed(data)))


def log_in(data: bytes) -> int:
    """Byte 0, bit 1: for the listener with TLS; bit 2: after a handshake. Returns the number of requests that are
    served after a login.

    A login needs the password or a signed token in the input, because the nonce of SCRAM differs each time. Before it,
    no request is served.
    """
    if not data:
        return 0
    here, rest = node(), framed(data)
    before = here.requests_after_login()
    ask(TLS if data[0] & 6 else LOGIN, rest, replies=frames_in(rest), with_tls=bool(data[0] & 4))
    served = here.requests_after_login() - before
    assert not served or PASSWORD.encode() in data or _has_token(data), f"served before a login: {data!r}"
    return served


def _has_token(data: bytes) -> bool:
    for found in _TOKENS.findall(data):
        with contextlib.suppress(jwt.PyJWTError, ValueError):
            jwt.decode(found, SIGNING.public_key(), algorithms=["ES256"], options={"verify_exp": False})
            return True
    return False


# --- with rights ------------------------------------------------------------------------------------------------------

CHANGING: Final = frozenset(Operation) - {Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS, Operation.READ}
"""Operations with which a client may change something. READ of a group does too."""


def obey(data: bytes) -> None:
    """Requests of a user, with ACLs that the input chooses: byte 0, bits 1 to 3: their number; four bytes for each.
    Bit 4: for the controller, not for the broker.

    Without READ the user does not get the record of the hidden topic. Without DESCRIBE the user does not get its name
    or id, unless the request had it. Without a right to change something, nothing changes.
    """
    count = data[0] >> 1 & 7 if data else 0
    if len(data) < 1 + 4 * count:
        return
    acls = [acl_of(data[at : at + 4]) for at in range(1, 1 + 4 * count, 4)]
    here = node()
    rest = framed(data[:1] + data[1 + 4 * count :]).replace(HIDDEN_ID, here.hidden_id.bytes)
    here.call(here.authorizer.update, by_id(acls))
    before = here.state()
    address = GUARDED if data[0] & 16 else LOGIN
    received = ask(address, _logged_in() + rest, replies=2 + frames_in(rest))
    _judge(here, acls, rest, received, before)


def _judge(here: Node, acls: list[AccessControlEntryRecord], sent: bytes, received: bytes, before: State) -> None:
    def may(operation: Operation, type: ResourceType, name: str) -> bool:
        return is_allowed(acls, f"User:{USER}", PEER, operation, type=type, name=name)

    steers = any(may(operation, ResourceType.CLUSTER, "kafka-cluster") for operation in Operation)
    if not steers and not may(Operation.READ, ResourceType.TOPIC, HIDDEN):
        assert VALUE not in received, "a record of a topic that the user may not read"
    if not steers and not may(Operation.DESCRIBE, ResourceType.TOPIC, HIDDEN):
        for secret in (HIDDEN.encode(), here.hidden_id.bytes):
            assert secret not in received or secret in sent, "a topic that the user may not describe"
    after = here.state()
    if after != before:
        changes = [one for one in acls if one.permission_type == Permission.ALLOW and _changes(one)]
        assert changes, f"a user who may change nothing has changed something: {before} {after}"
        here.is_spent = HIDDEN not in after.metadata[0]


def _changes(one: AccessControlEntryRecord) -> bool:
    return one.operation in CHANGING or one.resource_type == ResourceType.GROUP


@cache
def _logged_in() -> bytes:
    right = SaslAuthenticateRequest(auth_bytes=f"\0{USER}\0{PASSWORD}".encode())
    return _encoded((SaslHandshakeRequest(mechanism="PLAIN"), 1), (right, 2))


# --- pages ------------------------------------------------------------------------------------------------------------


def browse(data: bytes) -> None:
    """Bytes for the pages. Byte 0, bit 0: instead of a handshake. Only inputs with the token get names."""
    if not data:
        return
    received = ask(PAGES, data[1:], replies=1 << 30, with_tls=not data[0] & 1)
    assert TOKEN.encode() not in received or TOKEN.encode() in data
    if HIDDEN.encode() in received:
        assert HIDDEN.encode() in data or _has_page_token(data), f"a page without the token: {data!r}"


def _has_page_token(data: bytes) -> bool:
    if TOKEN.encode() in data:
        return True
    for part in re.split(rb"(?i)basic", data)[1:]:
        text = re.sub(rb"[^A-Za-z0-9+/]", b"", part)
        with contextlib.suppress(Error):
            if TOKEN.encode() in a2b_base64(text + b"==="):
                return True
    return False


# --- seeds ------------------------------------------------------------------------------------------------------------


def _encoded(*steps: tuple[Any, int]) -> bytes:
    parts = (encode_request_frame(step, version, correlation_id=1, client_id="c") for step, version in steps)
    return b"".join(bytes(part) for one in parts for part in one)  # type: ignore[arg-type]


def _frames_for(served: Mapping[int, Handler[Any]], topic: str, topic_id: UUID) -> Iterator[bytes]:
    for request in greedy_requests(served, World(topic, topic_id, "g"), max_bytes=600, max_elements=3):
        yield request.frame[4:]


def _of_clients() -> Iterator[bytes]:
    served = discover()
    yield from (b"\x01" + frame for frame in _frames_for(served, TOPIC, UUID(int=1)))
    yield from _served(served, 3)
    frames = [struct.pack(">i", len(frame)) + frame for _, frame in captured("request")]
    yield b"\x00" + b"".join(frame for frame in frames[:6] if len(frame) < 200)


def _of_nodes() -> Iterator[bytes]:
    served = quorum.discover()
    yield from (b"\x01" + frame for frame in _frames_for(served, TOPIC, UUID(int=1)))
    yield from _served(served, 2)


def _served(served: Mapping[int, Handler[Any]], step: int) -> Iterator[bytes]:
    """Requests of some APIs, one of so many."""
    found = [data for data in all_requests() if len(data) > 4 and int.from_bytes(data[:2], "big") in served]
    yield from (b"\x01" + data for data in found[::step])


def _of_users() -> Iterator[bytes]:
    allowed = [
        (Operation.DESCRIBE, ResourceType.TOPIC, TOPIC),
        (Operation.READ, ResourceType.TOPIC, HIDDEN),
        (Operation.READ, ResourceType.GROUP, "g"),
        (Operation.WRITE, ResourceType.TOPIC, TOPIC),
        (Operation.ALL, ResourceType.CLUSTER, "kafka-cluster"),
    ]
    for number, (operation, kind, name) in enumerate(allowed):
        assert name in OF_TYPE[kind]
        given = b"\x02" + as_bytes(kind, operation, name)
        yield given + _encoded((MetadataRequest(topics=None), 12))
        for frame in list(_frames_for(discover(), HIDDEN, UUID(bytes=HIDDEN_ID)))[number :: 2 * len(allowed)]:
            yield bytes([given[0] | 1]) + given[1:] + frame
    for frame in list(_frames_for(quorum.discover(), HIDDEN, UUID(bytes=HIDDEN_ID)))[::4]:
        yield b"\x11" + frame
    named = MetadataRequest(topics=[MetadataRequestTopic(topic_id=UUID(bytes=HIDDEN_ID), name=None)])
    yield b"\x00" + _encoded((named, 12), (MetadataRequest(topics=None), 12))


def _logins() -> Iterator[bytes]:
    versions = (ApiVersionsRequest(client_software_name="c", client_software_version="1"), 3)
    asked = (MetadataRequest(topics=None), 12)
    plain, scram, oauth = (SaslHandshakeRequest(mechanism=name) for name in ("PLAIN", "SCRAM-SHA-256", "OAUTHBEARER"))
    right, wrong = (SaslAuthenticateRequest(auth_bytes=f"\0{USER}\0{word}".encode()) for word in (PASSWORD, "wrong"))
    first = SaslAuthenticateRequest(auth_bytes=f"n,,n={USER},r=client".encode())
    last = SaslAuthenticateRequest(auth_bytes=b"c=biws,r=client,p=AAAA")
    raw = struct.pack(">i", len(right.auth_bytes)) + right.auth_bytes
    for bit in (b"\x00", b"\x04", b"\x02"):
        yield bit + _encoded(versions, (plain, 1), (right, 2), asked)
        yield bit + _encoded(versions, (plain, 1), (wrong, 2), asked)
        yield bit + _encoded((plain, 0)) + raw + _encoded(asked)
        yield bit + _encoded((plain, 1), (right, 2), (scram, 1), (first, 2), (last, 2), asked)
        yield bit + _encoded((scram, 1), (first, 1), (last, 1), asked)
        yield bit + _encoded((scram, 1), asked)
        yield bit + _encoded((right, 2), asked)
        yield bit + _encoded(asked)
        yield bit + _encoded((SaslHandshakeRequest(mechanism="GSSAPI"), 1), (right, 0))
    for bit in (b"\x00", b"\x04"):
        for token in _tokens():
            sent = SaslAuthenticateRequest(auth_bytes=b"n,,\x01auth=Bearer " + token + b"\x01\x01")
            acknowledged = SaslAuthenticateRequest(auth_bytes=b"\x01")
            yield bit + _encoded((oauth, 1), (sent, 2), (acknowledged, 2), asked)
        yield bit + _encoded((oauth, 0)) + struct.pack(">i", len(sent.auth_bytes)) + sent.auth_bytes + _encoded(asked)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(incoming, outgoing, server_hostname=HOST)
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    hello = outgoing.read()
    yield b"\x02" + hello
    yield b"\x02" + hello[:100]
    yield b"\x02" + hello + b"\x15\x03\x03\x00\x02\x02\x28"  # an alert
    yield b"\x00" + hello


def _tokens() -> Iterator[bytes]:
    """A token of the user, and some that are not accepted."""
    now_s = WALL_START_MS // 1000
    claims = {"sub": USER, "iat": now_s, "exp": now_s + 100_000_000}
    signed = jwt.encode(claims, SIGNING, algorithm="ES256", headers={"kid": "k"}).encode()
    yield signed
    yield signed[:-8] + b"AAAAAAAA"
    yield jwt.encode(claims | {"exp": now_s - 100_000}, SIGNING, algorithm="ES256", headers={"kid": "k"}).encode()
    yield jwt.encode(claims, SIGNING, algorithm="ES256", headers={"kid": "unknown"}).encode()
    yield jwt.encode(claims, "", algorithm="none").encode()  # type: ignore[arg-type]
    yield jwt.encode(claims, "x" * 32, algorithm="HS256", headers={"kid": "k"}).encode()


def _of_browsers() -> Iterator[bytes]:
    token = f"Authorization: Bearer {TOKEN}\r\n"
    for path in ("/", "/state", "/metrics", "/health", "/ready", "/state?partitions=1&x=%00", "/topics", "/%2e%2e/"):
        for header in (token, ""):
            yield f"\0GET {path} HTTP/1.1\r\nHost: x\r\n{header}\r\n".encode()
    yield f"\0GET /state/view?table=topics HTTP/1.1\r\nHost: x\r\n{token}\r\n".encode()
    yield b"\0GET /state HTTP/1.1\r\nHost: x\r\nAuthorization: Basic YTp0b2tlbi1vZi10aGUtcGFnZXM=\r\n\r\n"
    yield b"\0GET /state HTTP/1.1\r\nHost: x\r\nAuthorization: Basic YTphOmE=\r\n\r\n"
    yield b"\1GET /state HTTP/1.1\r\nHost: x\r\n\r\n"
    yield f"\0HEAD /metrics HTTP/1.0\r\n{token}\r\n".encode()
    yield f"\0POST / HTTP/1.1\r\nHost: x\r\n{token}Content-Length: 3\r\n\r\nabc".encode()
    yield f"\0GET / HTTP/1.1\r\nHost: x\r\n{token}Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n".encode()
    yield b"\0GET / HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n"
    yield b"\0GET http://x/state HTTP/1.1\r\nHost: evil.example.com\r\nAuthorization: Bearer x\r\n\r\n"


def _target(
    name: str, run: Any, seeds: Any, *, lines: int = 30_000, allocated: int = 512 * 1024, weight: float = 1.0
) -> Target:
    return Target(
        name,
        run,
        seeds,
        lines=(lines, 40),
        allocated=(allocated, 1024),
        weight=weight,
        ratio=0.1,
        prepare=node,
        trace=trace,
    )


TARGETS = (
    _target("broker", talk, _of_clients, weight=3.0),
    _target("controller", conduct, _of_nodes, allocated=4 << 20),  # a Fetch of the metadata log
    _target("login", log_in, _logins, weight=2.0),
    _target("rights", obey, _of_users, weight=2.0),
    _target("pages", browse, _of_browsers, lines=250_000, allocated=1 << 20),  # all metrics
)
