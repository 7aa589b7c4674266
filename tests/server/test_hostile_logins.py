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
from kbroker.security.sasl.scram import CredentialStore
from kbroker.security.sasl.server import SaslServer
from kbroker.security.server_tls import ServerTls
from tests.security.tls_sides import USER, side
from tests.security.tls_sides import settings as tls_settings
from tests.server.serving import Client, Rig, framed, heart, serving
from tests.server.test_login import (
    LOGIN_HANDLERS,
    RIGHT,
    SETTINGS,
    VERSIONS,
    WRONG,
    authenticate,
    beats,
    choose,
    logged_in,
    login_server,
)
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


WEAK = {
    "TLS_RSA_WITH_NULL_MD5": 0x0001,
    "TLS_RSA_WITH_NULL_SHA256": 0x003B,
    "TLS_ECDHE_ECDSA_WITH_NULL_SHA": 0xC006,
    "TLS_RSA_EXPORT_WITH_RC4_40_MD5": 0x0003,
    "TLS_RSA_EXPORT_WITH_DES40_CBC_SHA": 0x0008,
    "TLS_RSA_WITH_RC4_128_MD5": 0x0004,
    "TLS_ECDHE_ECDSA_WITH_RC4_128_SHA": 0xC007,
    "TLS_RSA_WITH_DES_CBC_SHA": 0x0009,
    "TLS_ECDHE_ECDSA_WITH_3DES_EDE_CBC_SHA": 0xC008,
    "TLS_DH_anon_WITH_AES_128_GCM_SHA256": 0x00A6,
    "TLS_ECDH_anon_WITH_AES_128_CBC_SHA": 0xC018,
    "TLS_RSA_WITH_AES_128_CBC_SHA": 0x002F,  # without forward secrecy
}
STRONG, OF_OLD_VERSIONS = 0xC02B, 0xC009  # both with ECDHE and ECDSA, by AES_128_GCM_SHA256 and AES_128_CBC_SHA
ALERT_TYPE, HANDSHAKE_TYPE = 0x15, 0x16
HANDSHAKE_FAILURE, PROTOCOL_VERSION = 40, 70


def old_hello(suites: list[int], version: int = 0x0303) -> bytes:
    """The first message of a client that offers a version up to TLS 1.2, and what Python's would never offer."""
    groups, formats, algorithms = b"\0\4\0\x17\0\x18", b"\1\0", b"\0\x08\4\3\4\1\2\3\2\1"
    extensions = b"".join(
        struct.pack(">HH", kind, len(data)) + data for kind, data in ((10, groups), (11, formats), (13, algorithms))
    )
    offered = struct.pack(f">{len(suites)}H", *suites)
    body = struct.pack(">H32xBH", version, 0, len(offered)) + offered + b"\1\0"
    body += struct.pack(">H", len(extensions)) + extensions
    message = b"\1" + len(body).to_bytes(3, "big") + body
    return struct.pack(">BHH", HANDSHAKE_TYPE, min(version, 0x0301), len(message)) + message


@pytest.mark.parametrize(
    ("hello", "alert"),
    [
        *((old_hello([suite]), HANDSHAKE_FAILURE) for suite in WEAK.values()),
        (old_hello(list(WEAK.values())), HANDSHAKE_FAILURE),
        *((old_hello([OF_OLD_VERSIONS, STRONG], version), PROTOCOL_VERSION) for version in (0x0301, 0x0302)),
        (old_hello([OF_OLD_VERSIONS], 0x0300), HANDSHAKE_FAILURE),
        (old_hello([*WEAK.values(), STRONG]), None),
    ],
    ids=[*WEAK, "all of them", "TLS 1.0", "TLS 1.1", "SSL 3", "a strong one too"],
)
async def test_x6_weak_suites_and_old_versions_are_refused(
    autojump_clock: MockClock, hello: bytes, alert: int | None
) -> None:
    async with tls_server() as rig:
        client = await rig.connect()
        await client.stream.send([hello])
        answer = await client.stream.receive(1 << 16)
        if alert is None:
            assert answer[0] == HANDSHAKE_TYPE
            at_suite = 5 + 4 + 2 + 32 + 1 + answer[43]
            assert answer[at_suite : at_suite + 2] == STRONG.to_bytes(2, "big"), "the server chooses among what remains"
        else:
            assert (answer[0], answer[6]) == (ALERT_TYPE, alert)
            assert await client.ends_without_reply()


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


@pytest.mark.parametrize("has_sasl", [True, False], ids=["SASL_SSL", "SSL"])
async def test_rules_for_certificates_name_only_clients_that_do_not_log_in(
    autojump_clock: MockClock, has_sasl: bool
) -> None:
    given = tls_settings(ssl_client_auth="required", ssl_principal_mapping_rules="RULE:CN=nobody/nobody/")

    def security(env: Env, settings: Settings) -> ListenerSecurity:
        tls = ServerTls(env, "SSL", given, env.threads(2), accepts=True)
        sasl = SaslServer(env, settings, "PLAINTEXT", CredentialStore()) if has_sasl else None
        return ListenerSecurity("SASL_SSL" if has_sasl else "SSL", tls, sasl)

    async with serving(*SETTINGS, in_memory=True, handlers=LOGIN_HANDLERS, security=security) as rig:
        plain = (await rig.connect()).stream
        client = Client(await side(tls_settings(USER), accepts=False).connect(plain, "localhost"))
        if has_sasl:
            assert (await choose(client)).error_code == 0
            assert (await authenticate(client, RIGHT)).error_code == 0
            assert await beats(client)
        else:
            assert await client.ends_without_reply()


async def test_x6_clients_are_served_beside_many_half_open_handshakes(autojump_clock: MockClock) -> None:
    async with tls_server() as rig:
        for number in range(200):
            client = await rig.connect()
            await client.stream.send([HELLO[: 1 + number]])
        began = trio.current_time()
        assert await is_served(rig)
        assert trio.current_time() - began < 1
