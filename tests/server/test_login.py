"""Logins over a connection: what is admitted before, delays of failures, sessions that end, re-authentication."""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import settings as how
from hypothesis import strategies as st
from trio.testing import MockClock

from kbroker.client.security import exchange
from kbroker.config import Settings
from kbroker.handlers.sasl import sasl_authenticate, sasl_handshake
from kbroker.metadata.image import Image
from kbroker.runtime.net_ports import Env
from kbroker.security.listener import ListenerSecurity
from kbroker.security.sasl import AuthenticationFailed
from kbroker.security.sasl.failures import FORGOTTEN_AFTER_MS, FailedLogins
from kbroker.security.sasl.peer import PeerLogin, log_in
from kbroker.security.sasl.scram import MECHANISMS, CredentialStore, credential_of, salted_password
from kbroker.security.sasl.server import SaslServer
from kbroker.security.sasl.session import SaslSession
from kbroker.security.sasl.session import State as SessionState
from kbroker.testing.disk import SimulatedDisk
from kbroker.testing.env import MemoryEnv
from tests.server.serving import HANDLERS, Client, Rig, framed, heart, serving
from wire.errors import ErrorCode
from wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from wire.messages.heartbeat import HeartbeatResponse
from wire.messages.produce import ProduceRequest
from wire.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from wire.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from wire.stored.metadata import UserScramCredentialRecord

JAAS = 'listener.name.plaintext.plain.sasl.jaas.config=PlainLoginModule required user_al="sesame" user_bo="x";'
SETTINGS = (JAAS, "sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512")
SESSIONS = "listener.name.plaintext.plain.connections.max.reauth.ms=60000"
RIGHT, WRONG = b"\0al\0sesame", b"\0al\0guess"
LOGIN_HANDLERS = {**HANDLERS, **{one.api_key: one for one in (sasl_handshake, sasl_authenticate)}}
VERSIONS = ApiVersionsRequest(client_software_name="t", client_software_version="1")


def store() -> CredentialStore:
    """With user al, whose password is "pencil"."""
    records = {}
    for mechanism in MECHANISMS.values():
        made = credential_of(mechanism, salted_password(mechanism, "pencil", b"salt", 4096), b"salt", 4096)
        records["al", mechanism.number] = UserScramCredentialRecord(
            name="al", mechanism=mechanism.number, **made._asdict()
        )
    found, image = CredentialStore(b"secret"), Image(scram_credentials=records)
    found.image = lambda: image
    return found


def secured(env: Env, settings: Settings) -> ListenerSecurity:
    return ListenerSecurity("SASL_PLAINTEXT", None, SaslServer(env, settings, "PLAINTEXT", store()))


@asynccontextmanager
async def login_server(*settings: str) -> AsyncIterator[Rig]:
    async with serving(*SETTINGS, *settings, in_memory=True, handlers=LOGIN_HANDLERS, security=secured) as rig:
        yield rig


async def choose(client: Client, mechanism: str = "PLAIN", version: int = 1) -> SaslHandshakeResponse:
    await client.send((SaslHandshakeRequest(mechanism=mechanism), version, 1))
    answer: SaslHandshakeResponse = (await client.receive(SaslHandshakeResponse, version))[1]
    return answer


async def authenticate(client: Client, token: bytes, version: int = 2) -> SaslAuthenticateResponse:
    await client.send((SaslAuthenticateRequest(auth_bytes=token), version, 2))
    answer: SaslAuthenticateResponse = (await client.receive(SaslAuthenticateResponse, version))[1]
    return answer


async def logged_in(rig: Rig, token: bytes = RIGHT, version: int = 2) -> Client:
    client = await rig.connect()
    assert (await choose(client)).error_code == 0
    assert (await authenticate(client, token, version)).error_code == 0
    return client


async def beats(client: Client) -> bool:
    await client.send((heart(), 4, 3))
    return (await client.receive(HeartbeatResponse, 4))[1].error_code == 0


@pytest.mark.parametrize("version", [0, 1, 2])
async def test_a_login_by_plain_opens_the_connection(autojump_clock: MockClock, version: int) -> None:
    async with login_server() as rig:
        client = await rig.connect()
        await client.send((VERSIONS, 3, 7))
        keys = {one.api_key for one in (await client.receive(ApiVersionsResponse, 3))[1].api_keys}
        assert {17, 18, 36} <= keys
        offered = await choose(client)
        assert offered.mechanisms == ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]
        answer = await authenticate(client, RIGHT, version)
        assert (answer.error_code, answer.auth_bytes, answer.session_lifetime_ms) == (0, b"", 0)
        assert await beats(client)


@pytest.mark.parametrize("mechanism", MECHANISMS)
async def test_a_login_by_scram(autojump_clock: MockClock, mechanism: str) -> None:
    async with login_server() as rig:
        client = await rig.connect()
        await choose(client, mechanism)
        credentials = {"sasl_plain_username": "al", "sasl_plain_password": "pencil"}
        tokens = exchange(mechanism, credentials, host="h", nonce="n")
        answer = await authenticate(client, next(tokens))
        answer = await authenticate(client, tokens.send(bytes(answer.auth_bytes)))
        with pytest.raises(StopIteration):
            tokens.send(bytes(answer.auth_bytes))
        assert await beats(client)


async def test_raw_tokens_follow_version_0_of_the_handshake(autojump_clock: MockClock) -> None:
    async with login_server() as rig:
        client = await rig.connect()
        await choose(client, version=0)
        await client.stream.send([struct.pack(">i", len(RIGHT)) + RIGHT])
        assert await client.stream.receive(100) == bytes(4)
        assert await beats(client)
        client = await rig.connect()
        await choose(client, version=0)
        await client.stream.send([struct.pack(">i", len(WRONG)) + WRONG])
        assert await client.ends_without_reply()


@pytest.mark.parametrize("mechanism", ["GSSAPI", "plain", "", "SCRAM-SHA-1", "OAUTHBEARER"])
async def test_an_unknown_mechanism_closes_the_connection(autojump_clock: MockClock, mechanism: str) -> None:
    async with login_server() as rig:
        client = await rig.connect()
        answer = await choose(client, mechanism)
        assert answer.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
        assert len(answer.mechanisms) == 3
        assert await client.ends_without_reply()


async def test_x1_all_failures_have_one_text_and_come_late(autojump_clock: MockClock) -> None:
    texts = set()
    async with login_server() as rig:
        for token in (WRONG, b"\0no\0guess", b"", b"\0al\0sesame\0", b"bo\0al\0sesame", b"\xff"):
            client = await rig.connect()
            await choose(client)
            began = trio.current_time()
            answer = await authenticate(client, token)
            assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
            assert trio.current_time() - began > 0.09
            texts.add(answer.error_message)
            assert await client.ends_without_reply()
    assert texts == {"Authentication failed: Invalid username or password"}


async def test_x1_an_address_that_guesses_gets_slower_and_others_do_not(autojump_clock: MockClock) -> None:
    async with login_server() as rig:
        took = []
        for _ in range(16):
            client = await rig.connect()
            await choose(client)
            began = trio.current_time()
            await authenticate(client, WRONG)
            took.append(round(trio.current_time() - began, 1))
            assert await client.ends_without_reply()
        assert took[:8] == [0.1] * 5 + [0.2, 0.4, 0.8]
        assert took[-2:] == [10.0, 10.0]  # also beyond the time for a login
        began = trio.current_time()
        await logged_in(rig)
        assert trio.current_time() - began < 0.1


async def test_x1_a_refused_bearer_token_counts_at_once_and_once(autojump_clock: MockClock) -> None:
    """A client may close the connection instead of acknowledging the status."""
    noted: list[str] = []

    class Counting(SaslServer):
        def on_failure(self, mechanism: str, host: str, why: AuthenticationFailed) -> int:
            noted.append(str(why))
            return super().on_failure(mechanism, host, why)

    env = MemoryEnv(SimulatedDisk())
    given = ["sasl.enabled.mechanisms=OAUTHBEARER", "kbroker.sasl.oauthbearer.unsecured=true"]
    server = Counting(env, Settings.load(overrides=given), "PLAINTEXT", store())
    began = trio.current_time()
    for _ in range(30):
        session = SaslSession(server, "192.0.2.1")
        session.handshake("OAUTHBEARER", 1)
        step, _ = await session.authenticate(b"n,,\x01auth=Bearer a.b.c\x01\x01")
        assert step.token == b'{"status":"invalid_token"}'
        assert session.state is SessionState.TOKENS
    assert len(noted) == 30
    assert trio.current_time() - began > 1.5, "10 at once, 10 in each second"
    for _ in range(2):
        with pytest.raises(AuthenticationFailed, match="cannot be read"):
            await session.authenticate(b"\x01")
        assert session.state is SessionState.FAILED
        session.state = SessionState.TOKENS
    assert len(noted) == 30
    assert session.delay_ms >= 100


@pytest.mark.parametrize("scram", ["false", "true"])  # with true threads hash the passwords
async def test_x1_many_connections_do_not_make_more_attempts(autojump_clock: MockClock, scram: str) -> None:
    checked = []

    class Counting(SaslServer):
        async def respond(self, *arguments: Any) -> Any:
            try:
                return await super().respond(*arguments)
            finally:
                checked.append(trio.current_time())

    env = MemoryEnv(SimulatedDisk(), latency_ms=20)
    settings = Settings.load(overrides=[*SETTINGS, f"kbroker.sasl.plain.scram.credentials={scram}"])
    server = Counting(env, settings, "PLAINTEXT", store())

    async def guess() -> None:
        session = SaslSession(server, "192.0.2.1")
        session.handshake("PLAIN", 1)
        with pytest.raises(Exception, match="wrong password"):
            await session.authenticate(WRONG)

    async with trio.open_nursery() as nursery:
        for _ in range(100):
            nursery.start_soon(guess)
    # 10 at once, 10 in each second, and those that the threads check at the same time
    assert len([at for at in checked if at < checked[0] + 5]) <= 62


async def test_x1_logins_at_once_from_one_address_do_not_wait_for_each_other(autojump_clock: MockClock) -> None:
    settings = Settings.load(overrides=[*SETTINGS, "kbroker.sasl.plain.scram.credentials=true"])
    server = SaslServer(MemoryEnv(SimulatedDisk()), settings, "PLAINTEXT", store())

    async def enter() -> None:
        session = SaslSession(server, "192.0.2.1")
        session.handshake("PLAIN", 1)
        assert (await session.authenticate(RIGHT))[0].user == "al"

    async with trio.open_nursery() as nursery:
        for _ in range(30):
            nursery.start_soon(enter)
    assert trio.current_time() == 0


def test_failures_are_forgotten_and_bounded() -> None:
    failures = FailedLogins(delay_ms=100, max_delay_ms=10_000)
    assert [failures.note("a", 0) for _ in range(7)] == [100] * 5 + [200, 400]
    assert failures.note("a", FORGOTTEN_AFTER_MS) == 100
    for index in range(10_001):
        failures.note(f"b{index}", 0)
    assert len(failures._of) == 10_000
    assert FailedLogins(delay_ms=0, max_delay_ms=0).note("a", 0) == 0


def test_x1_an_ipv6_network_fails_as_one_address() -> None:
    failures = FailedLogins(delay_ms=100, max_delay_ms=10_000)
    delays = [failures.note(f"2400:cb00::{number}", 0) for number in range(1, 8)]
    assert delays == [100] * 5 + [200, 400]
    for number in range(20):
        failures.note(f"2400:cb00::{number:x}:1", 0)
    assert failures.pause_ms("2400:cb00::ffff", 0) > 0
    assert failures.pause_ms("2400:cb00:0:1::1", 0) == 0


@pytest.mark.parametrize("first", [heart(), ProduceRequest(acks=1, timeout_ms=1, topic_data=[])])
async def test_x4_other_requests_before_a_login_close_the_connection(autojump_clock: MockClock, first: object) -> None:
    async with login_server() as rig:
        client = await rig.connect()
        await client.stream.send([framed(first, 4, 1)])
        assert await client.ends_without_reply()


async def test_w9_a_client_asks_for_versions_only_a_few_times(autojump_clock: MockClock) -> None:
    """Requests that change nothing must end: their client could keep the broker busy forever."""
    unknown = struct.pack(">ihhih", 11, 18, 99, 7, -1) + b"\0"
    async with login_server() as rig:
        client = await rig.connect()
        await client.stream.send([unknown * 2])
        for _ in range(2):
            assert (await client.receive(ApiVersionsResponse, 0))[1].error_code == ErrorCode.UNSUPPORTED_VERSION
        await client.send((VERSIONS, 3, 7))
        assert (await client.receive(ApiVersionsResponse, 3))[1].error_code == 0
        assert (await choose(client)).error_code == 0
        client = await rig.connect()
        await client.stream.send([unknown * 10])
        for _ in range(5):
            await client.receive(ApiVersionsResponse, 0)
        assert await client.ends_without_reply()


async def test_x4_a_request_instead_of_a_token_is_answered_with_34(autojump_clock: MockClock) -> None:
    async with login_server() as rig:
        client = await rig.connect()
        await choose(client)
        await client.send((heart(), 4, 1))
        assert (await client.receive(HeartbeatResponse, 4))[1].error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert await client.ends_without_reply()


async def test_x4_a_token_before_the_handshake_closes_the_connection(autojump_clock: MockClock) -> None:
    async with login_server() as rig:
        client = await rig.connect()
        await client.send((SaslAuthenticateRequest(auth_bytes=RIGHT), 2, 1))
        assert await client.ends_without_reply()


async def test_x4_requests_are_small_before_a_login_only(autojump_clock: MockClock) -> None:
    async with login_server("sasl.server.max.receive.size=100") as rig:
        client = await rig.connect()
        await client.stream.send([struct.pack(">i", 101)])
        assert await client.ends_without_reply()
        client = await logged_in(rig)
        await client.send((heart(member_id="m" * 1_000), 4, 1))
        assert (await client.receive(HeartbeatResponse, 4))[1].error_code == 0


async def test_w9_a_login_that_takes_too_long_is_ended(autojump_clock: MockClock) -> None:
    async with login_server() as rig:
        client = await rig.connect()
        await choose(client)
        assert await client.ends_without_reply()
        assert 9 < trio.current_time() < 12


async def test_pipelined_requests_after_a_failure_are_not_handled(autojump_clock: MockClock) -> None:
    async with login_server() as rig:
        client = await rig.connect()
        await client.send(
            (SaslHandshakeRequest(mechanism="PLAIN"), 1, 1),
            (SaslAuthenticateRequest(auth_bytes=WRONG), 2, 2),
            (SaslAuthenticateRequest(auth_bytes=RIGHT), 2, 3),
            (heart(), 4, 4),
        )
        await client.receive(SaslHandshakeResponse, 1)
        assert (await client.receive(SaslAuthenticateResponse, 2))[1].error_code == 58
        assert await client.ends_without_reply()


async def test_an_expired_session_ends_and_may_log_in_again_before(autojump_clock: MockClock) -> None:
    async with login_server("listener.name.plaintext.plain.connections.max.reauth.ms=5000") as rig:
        client, lazy = await rig.connect(), await logged_in(rig)
        await choose(client)
        assert (await authenticate(client, RIGHT)).session_lifetime_ms == 5_000
        await trio.sleep(4.9)
        assert await beats(client)
        assert (await choose(client)).error_code == 0
        assert (await authenticate(client, RIGHT)).session_lifetime_ms == 5_000
        await trio.sleep(0.2)
        assert await beats(client)
        await lazy.send((heart(), 4, 3))
        assert await lazy.ends_without_reply()
        await trio.sleep(5)
        assert (await choose(client)).error_code == 0  # as in Kafka, also after the end
        assert (await authenticate(client, RIGHT)).error_code == 0
        assert await beats(client)


@pytest.mark.parametrize(
    ("mechanism", "token"), [("PLAIN", b"\0bo\0x"), ("PLAIN", WRONG), ("SCRAM-SHA-256", b"n,,n=al,r=x")]
)
async def test_a_session_keeps_principal_and_mechanism(autojump_clock: MockClock, mechanism: str, token: bytes) -> None:
    async with login_server(SESSIONS) as rig:
        client = await logged_in(rig)
        await trio.sleep(1)
        assert (await choose(client, mechanism)).error_code == 0
        answer = await authenticate(client, token)
        assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert answer.error_message.startswith("Authentication failed during re-authentication")
        assert await client.ends_without_reply()


async def test_a_client_logs_in_again_at_most_once_a_second(autojump_clock: MockClock) -> None:
    async with login_server(SESSIONS) as rig:
        client = await logged_in(rig)
        assert (await choose(client)).error_code == 0
        assert (await authenticate(client, RIGHT)).error_code == 0
        assert (await choose(client)).error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert await beats(client)
        assert (await authenticate(client, RIGHT)).error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert await beats(client)


async def test_a_session_without_end_takes_no_new_login(autojump_clock: MockClock) -> None:
    """As in Kafka, which then handles SaslHandshake as any other request."""
    async with login_server() as rig:
        client = await logged_in(rig)
        await trio.sleep(1)
        assert (await choose(client)).error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert (await authenticate(client, WRONG)).error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert await beats(client)


async def test_requests_during_a_new_login_end_the_connection(autojump_clock: MockClock) -> None:
    async with login_server(SESSIONS) as rig:
        client = await logged_in(rig)
        await trio.sleep(1)
        await choose(client)
        await client.send((heart(), 4, 3))
        assert (await client.receive(HeartbeatResponse, 4))[1].error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert await client.ends_without_reply()


async def test_a_listener_without_sasl_refuses_logins(autojump_clock: MockClock) -> None:
    async with serving(in_memory=True, handlers=LOGIN_HANDLERS) as rig:
        client = await rig.connect()
        assert (await choose(client)).error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert (await authenticate(client, RIGHT)).error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert await beats(client)


async def test_another_node_logs_in(autojump_clock: MockClock) -> None:
    async with login_server() as rig:
        for mechanism, password in (("PLAIN", "sesame"), ("SCRAM-SHA-512", "pencil")):
            login = PeerLogin(mechanism, {"sasl_plain_username": "al", "sasl_plain_password": password})
            client = await rig.connect()
            await log_in(rig.env, client.stream, login, host="h")
            assert await beats(client)
            bad = PeerLogin(mechanism, {"sasl_plain_username": "al", "sasl_plain_password": "no"})
            with pytest.raises(ConnectionError, match="refuses the login: Authentication failed"):
                await log_in(rig.env, (await rig.connect()).stream, bad, host="h")
            assert "al" not in repr(login)


STEPS = st.sampled_from(["versions", "handshake0", "handshake1", "bad mechanism", "right", "wrong", "raw", "heart"])


@how(deadline=None, max_examples=25)
@given(st.lists(STEPS, min_size=1, max_size=6))
def test_no_order_of_requests_gets_past_the_login(steps: list[str]) -> None:
    """A heartbeat is answered without an error only after a right token that followed a handshake."""

    async def walk() -> None:
        async with login_server() as rig:
            client = await rig.connect()
            is_in, chosen = False, None
            for step in steps:
                try:
                    match step:
                        case "versions":
                            await client.send((VERSIONS, 3, 1))
                            await client.receive(ApiVersionsResponse, 3)
                        case "handshake0" | "handshake1":
                            version = int(step[-1])
                            if (await choose(client, version=version)).error_code == 0:
                                chosen = version
                        case "bad mechanism":
                            assert (await choose(client, "NO")).error_code
                            chosen = None
                        case "right" | "wrong":
                            answer = await authenticate(client, RIGHT if step == "right" else WRONG)
                            if answer.error_code == 0:
                                assert step == "right"
                                assert chosen == 1
                                is_in = True
                        case "raw":
                            await client.stream.send([struct.pack(">i", len(RIGHT)) + RIGHT])
                            if await client.stream.receive(4) != bytes(4):
                                return
                            assert chosen == 0
                            is_in = True
                        case "heart":
                            if await beats(client):
                                assert is_in
                except trio.BrokenResourceError:
                    return
                except AssertionError as error:
                    if "the server closed the connection" not in str(error):
                        raise
                    return

    trio.run(walk, clock=MockClock(autojump_threshold=0))
