"""SASL and TLS walked in wrong orders (X4, X6): nothing is served before a login, and others are served after it."""

from __future__ import annotations

import ssl
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest
import trio
from hypothesis import given
from hypothesis import settings as how
from hypothesis import strategies as st
from trio.testing import MockClock

from kbroker.config import Settings
from kbroker.runtime.net_ports import Env
from kbroker.security.listener import ListenerSecurity
from kbroker.security.server_tls import ServerTls
from tests.security.test_tls_stream import USER, side
from tests.security.test_tls_stream import settings as tls_settings
from tests.server.serving import Client, Rig, framed, heart, serving
from tests.server.test_login import RIGHT, VERSIONS, WRONG, logged_in, login_server
from wire.messages.sasl_authenticate import SaslAuthenticateRequest
from wire.messages.sasl_handshake import SaslHandshakeRequest

PATIENCE_S = 200.0
"""Virtual seconds: longer than every deadline of a connection that has not logged in."""


def chosen(mechanism: str, version: int) -> bytes:
    return framed(SaslHandshakeRequest(mechanism=mechanism), version, 1)


def sent_token(token: bytes, version: int) -> bytes:
    return framed(SaslAuthenticateRequest(auth_bytes=token), version, 2)


def raw(token: bytes) -> bytes:
    return struct.pack(">i", len(token)) + token


HEART, PLAIN, PLAIN_RAW = framed(heart(), 4, 3), chosen("PLAIN", 1), chosen("PLAIN", 0)
LOGINS = [*((PLAIN, sent_token(RIGHT, version)) for version in range(3)), (PLAIN_RAW, raw(RIGHT))]
STEPS = [
    HEART,
    PLAIN,
    PLAIN_RAW,
    *(second for _, second in LOGINS),
    *(
        chosen(mechanism, version)
        for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512", "GSSAPI", "")
        for version in (0, 1)
    ),
    *(sent_token(token, 2) for token in (WRONG, b"", b"n,,n=al,r=x", b"c=biws,r=x,p=AAAA", b"\xff", bytes(20_000))),
    *(raw(token) for token in (WRONG, b"n,,n=al,r=x", b"\0" * 50)),
    framed(VERSIONS, 3, 4),
    struct.pack(">i", -1),
    struct.pack(">i", 600_000) + b"x" * 100,
    b"\0\0\0\x0a\0\x11\0\1",
    b"GET / HTTP/1.1\r\n\r\n",
]


@how(max_examples=100, deadline=None)
@given(st.lists(st.sampled_from(STEPS), min_size=1, max_size=6))
def test_x4_no_order_of_messages_opens_a_connection_without_a_login(steps: list[bytes]) -> None:
    async def main() -> None:
        async with login_server() as rig:
            client = await rig.connect()
            await talk(client, steps)
            beats = rig.count("requests.Heartbeat")
            login = next((at for at in range(len(steps)) if tuple(steps[at : at + 2]) in LOGINS), len(steps))
            assert beats <= steps[login + 2 :].count(HEART)
            if login == 0 and steps[2:3] == [HEART]:
                assert beats >= 1
            await logged_in(rig)

    trio.run(main, clock=MockClock(autojump_threshold=0))


async def talk(client: Client, steps: list[bytes]) -> None:
    """Send the messages, each after some time for its answer, and wait until the connection ends or nothing comes."""
    with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
        for step in steps:
            await client.stream.send([step])
            with trio.move_on_after(1):
                await client.stream.receive(1 << 16)
        with trio.move_on_after(PATIENCE_S):
            while await client.stream.receive(1 << 16):
                pass
    client.stream.close()


# --- TLS --------------------------------------------------------------------------------------------------------------


def secured(env: Env, given: Settings) -> ListenerSecurity:
    tls = ServerTls(env, "SSL", tls_settings(ssl_client_auth="required"), env.threads(2), accepts=True)
    return ListenerSecurity("SSL", tls, None)


@asynccontextmanager
async def tls_server() -> AsyncIterator[Rig]:
    async with serving(in_memory=True, security=secured) as rig:
        yield rig


def hello(*, most: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3) -> bytes:
    """The first message of a client."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_ciphers("ALL@SECLEVEL=0")
    context.minimum_version = min(most, ssl.TLSVersion.TLSv1_2)
    context.maximum_version = most
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with suppress(ssl.SSLWantReadError):
        context.wrap_bio(incoming, outgoing).do_handshake()
    return outgoing.read()


def changed(data: bytes, at: int, value: int) -> bytes:
    return data[:at] + bytes([value]) + data[at + 1 :]


HELLO = hello()
ALERT, APPLICATION = b"\x15\x03\x03\x00\x02\x02\x00", b"\x17\x03\x03\x00\x10" + bytes(16)
HOSTILE = {
    "a Kafka request": HEART,
    "HTTP": b"GET / HTTP/1.1\r\nHost: kafka\r\n\r\n",
    "SSH": b"SSH-2.0-OpenSSH_9.6\r\n",
    "TLS 1.2 without a certificate": hello(most=ssl.TLSVersion.TLSv1_2),
    "a hello of SSL 3": changed(HELLO, 2, 0),
    "a hello of half its length": HELLO[: len(HELLO) // 2],
    "one byte of a hello": HELLO[:1],
    "a hello twice": HELLO * 2,
    "a hello with another type": changed(HELLO, 5, 2),
    "a hello with a wrong length": changed(HELLO, 8, 0xFF),
    "a hello, then an alert": HELLO + ALERT,
    "a hello, then application data": HELLO + APPLICATION,
    "a hello, then a request in the clear": HELLO + HEART,
    "application data": APPLICATION,
    "an alert": ALERT,
    "a record of 65535 bytes": b"\x16\x03\x01\xff\xff" + b"x" * 70_000,
    "empty records": b"\x16\x03\x01\x00\x00" * 1_000,
    "a finished message": b"\x16\x03\x03\x00\x04\x14\x00\x00\x00",
}


async def is_served(rig: Rig) -> bool:
    """Whether a client with a certificate is served."""
    stream = await side(tls_settings(USER), accepts=False).connect((await rig.connect()).stream, "localhost")
    client = Client(stream)
    await client.send((heart(), 0, 3))
    return await client.receive_heartbeat() == (3, 0)


@pytest.mark.parametrize("ends", [False, True], ids=["stays", "ends"])
@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE)
async def test_x6_a_hostile_handshake_ends_the_connection(autojump_clock: MockClock, data: bytes, ends: bool) -> None:
    async with tls_server() as rig:
        client = await rig.connect()
        await client.stream.send([data])
        if ends:
            client.stream.close()
        else:
            with trio.fail_after(PATIENCE_S), suppress(trio.BrokenResourceError):
                while await client.stream.receive(1 << 16):
                    pass
        assert rig.count("requests.Heartbeat") == 0
        assert await is_served(rig)


async def test_x6_clients_are_served_beside_many_half_open_handshakes(autojump_clock: MockClock) -> None:
    async with tls_server() as rig:
        for number in range(200):
            client = await rig.connect()
            await client.stream.send([HELLO[: 1 + number]])
        began = trio.current_time()
        assert await is_served(rig)
        assert trio.current_time() - began < 1
