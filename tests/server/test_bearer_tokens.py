"""Bearer tokens over connections (X8): replayed, stolen, for somebody else, and exchanged in a running session."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from kbroker.config import Settings
from kbroker.runtime.net_ports import Env
from kbroker.security.listener import ListenerSecurity
from kbroker.security.sasl.jwks import IssuerKeys
from kbroker.security.sasl.server import SaslServer
from kbroker.testing.env import WALL_START_MS, MemoryEnv
from tests.security.test_oauth import EC, JWKS, OTHER_RSA, RSA, first, token, unsecured
from tests.server.serving import Client, Rig, serving
from tests.server.test_login import JAAS, LOGIN_HANDLERS, RIGHT, authenticate, beats, choose, store
from wire.errors import ErrorCode
from wire.messages.sasl_authenticate import SaslAuthenticateResponse

START_S = WALL_START_MS // 1000
LIFETIME_S, SKEW_S = 60, 30
SETTINGS = (
    JAAS,
    "sasl.enabled.mechanisms=OAUTHBEARER,PLAIN",
    "sasl.oauthbearer.jwks.endpoint.url=file:///keys.json",
    "sasl.oauthbearer.expected.audience=kafka",
    "sasl.oauthbearer.expected.issuer=https://issuer",
    "listener.name.plaintext.plain.connections.max.reauth.ms=60000",
)


def secured(env: Env, settings: Settings) -> ListenerSecurity:
    env.disk.open("/keys.json", create=True).pwrite(JWKS, 0)
    return ListenerSecurity("SASL_PLAINTEXT", None, SaslServer(env, settings, "PLAINTEXT", store()))


@asynccontextmanager
async def token_server() -> AsyncIterator[Rig]:
    async with serving(*SETTINGS, in_memory=True, handlers=LOGIN_HANDLERS, security=secured) as rig:
        yield rig


def issued(*key: Any, begins_s: int = START_S, ends_s: int = START_S + LIFETIME_S, **claims: Any) -> str:
    """A token that is valid for LIFETIME_S from the start of the test."""
    return token(*key, iat=begins_s, exp=ends_s, **claims)


async def present(client: Client, text: str) -> SaslAuthenticateResponse:
    assert (await choose(client, "OAUTHBEARER")).error_code == 0
    return await authenticate(client, first(text))


async def is_refused(client: Client, text: str) -> bool:
    """Whether a token is answered with the status of an invalid one, and the connection then with a failure."""
    status = await present(client, text)
    assert (status.error_code, status.auth_bytes) == (0, b'{"status":"invalid_token"}')
    return await is_closed(client, await authenticate(client, b"\x01"))


async def is_closed(client: Client, answer: SaslAuthenticateResponse) -> bool:
    return answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED and await client.ends_without_reply()


async def test_x8_a_token_opens_connections_until_it_expires_and_ends_their_sessions(
    autojump_clock: MockClock,
) -> None:
    async with token_server() as rig:
        mine, idle = await rig.connect(), await rig.connect()
        stolen = issued()
        for client in (mine, idle):
            answer = await present(client, stolen)
            assert (answer.error_code, answer.session_lifetime_ms) == (0, LIFETIME_S * 1000)
        await trio.sleep(LIFETIME_S - 1)
        assert (await present(await rig.connect(), stolen)).session_lifetime_ms == 1_000
        assert (await present(mine, issued(ends_s=START_S + 600))).error_code == 0
        await trio.sleep(SKEW_S + 1)
        assert await is_refused(await rig.connect(), stolen)
        with pytest.raises(AssertionError, match="closed the connection"):
            await beats(idle)
        assert await beats(mine)
        assert await is_refused(mine, stolen), "not even by the client that has used it before"


async def test_x8_a_slow_issuer_delays_only_tokens_with_unknown_keys(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = 0
    async with token_server() as rig, trio.open_nursery() as nursery:
        env = rig.env
        assert isinstance(env, MemoryEnv)
        env.latency_ms = 1

        def read_slowly(_: IssuerKeys) -> bytes:
            nonlocal reads
            reads += 1
            env.charge(3_000)
            return JWKS

        monkeypatch.setattr(IssuerKeys, "_read", read_slowly)
        began = trio.current_time()
        for _ in range(2):  # at the same time: the second waits for the read of the first
            nursery.start_soon(present_good, await rig.connect())
        await trio.sleep(2.9)
        assert not rig.count("requests.Heartbeat")
        await trio.sleep(1.1)
        assert (rig.count("requests.Heartbeat"), reads) == (2, 1)
        await trio.sleep(10)
        stranger = await rig.connect()
        nursery.start_soon(is_refused, stranger, issued(EC, "unknown", "ES256"))
        await trio.sleep(1)
        began = trio.current_time()
        await present_good(await rig.connect())
        assert trio.current_time() - began < 0.1
        assert reads == 2


async def present_good(client: Client) -> None:
    assert (await present(client, issued())).error_code == 0
    assert await beats(client)


async def test_keys_that_have_expired_are_read_without_a_login(autojump_clock: MockClock) -> None:
    made: SaslServer

    def remembered(env: Env, settings: Settings) -> ListenerSecurity:
        nonlocal made
        security = secured(env, settings)
        assert security.sasl is not None
        made = security.sasl
        return security

    async with (
        serving(*SETTINGS, in_memory=True, handlers=LOGIN_HANDLERS, security=remembered) as rig,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(made.run)
        await present_good(await rig.connect())
        rig.env.disk.open("/keys.json", create=True).pwrite(b'{"keys": []}'.ljust(len(JWKS)), 0)
        await present_good(await rig.connect())
        await trio.sleep(3_601)
        client = await rig.connect()
        text = issued(begins_s=START_S + 3_600, ends_s=START_S + 3_700)
        assert await is_refused(client, text)
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    "text",
    [
        issued(aud="other"),
        issued(iss="https://evil"),
        issued(begins_s=START_S - 600, ends_s=START_S - SKEW_S),
        issued(nbf=START_S + 600),
        issued(OTHER_RSA, "r"),
        issued(EC, "r", "ES256"),
        issued()[:-4] + "AAAA",
        unsecured(iat=START_S, exp=START_S + LIFETIME_S),
    ],
    ids=["audience", "issuer", "expired", "not yet", "another key", "another kind of key", "changed", "unsigned"],
)
async def test_x8_a_token_for_something_else_opens_no_connection(autojump_clock: MockClock, text: str) -> None:
    async with token_server() as rig:
        assert await is_refused(await rig.connect(), text)
        patient = await rig.connect()
        await present(patient, text)
        # A good token after a bad one is no acknowledgement.
        assert await is_closed(patient, await authenticate(patient, first(issued())))
        assert rig.count("requests.Heartbeat") == 0
        client = await rig.connect()
        assert (await present(client, issued())).error_code == 0
        assert await beats(client)


@pytest.mark.parametrize(
    ("mechanism", "message"),
    [
        ("OAUTHBEARER", first(issued(sub="bo"))),
        ("OAUTHBEARER", first(issued(), "n,a=bo,")),
        ("OAUTHBEARER", first(issued(aud="other"))),
        ("OAUTHBEARER", first(unsecured(iat=START_S, exp=START_S + LIFETIME_S))),
        ("PLAIN", RIGHT),  # the same user, but the password is the weaker proof
    ],
    ids=["another user", "as another user", "another audience", "unsigned", "PLAIN"],
)
async def test_x8_a_session_ends_if_its_token_is_exchanged_for_less(
    autojump_clock: MockClock, mechanism: str, message: bytes
) -> None:
    async with token_server() as rig:
        client = await rig.connect()
        assert (await present(client, issued(RSA))).error_code == 0
        await trio.sleep(1)
        assert (await choose(client, mechanism)).error_code == 0
        answer = await authenticate(client, message)
        if not answer.error_code:
            assert answer.auth_bytes == b'{"status":"invalid_token"}'
            answer = await authenticate(client, b"\x01")
        assert str(answer.error_message).startswith("Authentication failed during re-authentication")
        assert await is_closed(client, answer)


async def test_x8_a_session_by_password_takes_no_token(autojump_clock: MockClock) -> None:
    async with token_server() as rig:
        client = await rig.connect()
        await choose(client, "PLAIN")
        assert (await authenticate(client, RIGHT)).error_code == 0
        await trio.sleep(1)
        assert await is_closed(client, await present(client, issued()))
