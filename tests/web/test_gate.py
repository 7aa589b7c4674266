"""The token of the pages."""

from __future__ import annotations

import hmac
import ssl
from base64 import b64encode

import pytest
import trio
from trio.testing import MockClock

from kbroker.config import Settings
from kbroker.config.values import ConfigError, Secret
from kbroker.node import NodeFailed
from kbroker.security.tls_stream import TlsStream
from kbroker.testing.disk import SimulatedDisk
from kbroker.testing.memory_node import MemoryBroker, memory_broker
from kbroker.web.gate import Gate
from tests.security.certificates import Authority
from tests.web.asking import ADDRESS, Browser, get

TOKEN = "canary-0123456789"
HTTP = {"kbroker.http.listener": "{}:{}".format(*ADDRESS), "kbroker.http.token": TOKEN}


def basic(name: str, password: str) -> str:
    return f"Basic {b64encode(f'{name}:{password}'.encode()).decode()}"


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
def test_the_token_is_admitted_in_any_spelling_of_its_scheme(scheme: str) -> None:
    assert Gate(Secret(TOKEN)).admits(f"{scheme} {TOKEN}".encode())
    assert Gate(Secret(TOKEN)).admits(f"{scheme}   {TOKEN} ".encode())


def test_tokens_of_any_length_are_compared_by_digests_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[int, int]] = []
    compare = hmac.compare_digest

    def counted(given: bytes, expected: bytes) -> bool:
        compared.append((len(given), len(expected)))
        return compare(given, expected)

    monkeypatch.setattr(hmac, "compare_digest", counted)
    given = [f"Bearer {TOKEN}", "Bearer c", f"Bearer {TOKEN[:-1]}x", f"Bearer {'x' * 5_000}", basic("any", "x")]
    assert [Gate(Secret(TOKEN)).admits(one.encode()) for one in given] == [True, False, False, False, False]
    assert compared == [(32, 32)] * len(given)


@pytest.mark.parametrize("name", ["", "any", "näme"])
def test_a_browser_sends_the_token_as_password_with_any_name(name: str) -> None:
    assert Gate(Secret(TOKEN)).admits(basic(name, TOKEN).encode())


@pytest.mark.parametrize(
    "value",
    [
        "",
        TOKEN,
        "Bearer",
        "Bearer ",
        f"Bearer {TOKEN[:-1]}",
        f"Bearer {TOKEN}x",
        f"Bearer {TOKEN.upper()}",
        f"Token {TOKEN}",
        f"Basic {TOKEN}",
        "Basic not-base64",
        "Basic =",
        basic(TOKEN, ""),
        basic(TOKEN, "x"),
        f"Basic {b64encode(TOKEN.encode()).decode()}",
    ],
)
def test_anything_else_is_refused(value: str) -> None:
    assert not Gate(Secret(TOKEN)).admits(value.encode())


@pytest.mark.parametrize("path", ["/", "/metrics", "/state", "/state/view", "/state/partition?topic=x", "/none"])
async def test_pages_need_the_token(path: str, caplog: pytest.LogCaptureFixture) -> None:
    async with memory_broker(settings=HTTP) as broker:
        for authorization in (None, f"Bearer {TOKEN[::-1]}", basic("admin", "admin")):
            got = await get(broker.env, path, authorization=authorization)
            assert got.status == 401
            assert "www-authenticate" in got.headers
            assert TOKEN.encode() not in got.body
        for authorization in (f"Bearer {TOKEN}", basic("prometheus", TOKEN)):
            assert (await get(broker.env, path, authorization=authorization)).status in (200, 400, 404)
        browser = await Browser.connect(broker.env)
        assert (await browser.get(path, authorization=f"Bearer {TOKEN}")).status != 401
        assert (await browser.get(path)).status == 401, "a connection is not a login"
    # One line a peer, however often it tries.
    assert [line.message for line in caplog.records].count("a request for the pages without a valid token") == 1
    assert TOKEN not in caplog.text


async def test_both_schemes_are_offered() -> None:
    async with memory_broker(settings=HTTP) as broker:
        browser = await Browser.connect(broker.env)
        await browser.send(b"GET /state HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        head = (await browser.rest()).partition(b"\r\n\r\n")[0].lower()
        assert b'www-authenticate: bearer realm="kbroker"' in head
        assert b'www-authenticate: basic realm="kbroker"' in head


@pytest.mark.parametrize(
    ("path", "status"), [("/health", "ready"), ("/health/ready", "ready"), ("/health/live", "alive")]
)
async def test_health_without_the_token_shows_only_the_status(path: str, status: str) -> None:
    async with memory_broker(settings=HTTP) as broker:
        got = await get(broker.env, path)
        assert (got.status, got.json) == (200, {"status": status})
        assert "node_id" in (await get(broker.env, path, authorization=f"Bearer {TOKEN}")).json


async def test_the_token_comes_from_a_file() -> None:
    disk = SimulatedDisk()
    for path, text in {"/token": f"{TOKEN}\n", "/short": "short\n", "/binary": "é" * 20}.items():
        disk.open(path, create=True).pwrite(text.encode(), 0)
    settings = {"kbroker.http.listener": HTTP["kbroker.http.listener"]}
    async with memory_broker(disk, settings={**settings, "kbroker.http.token.file": "/token"}) as broker:
        assert (await get(broker.env, "/metrics")).status == 401
        assert (await get(broker.env, "/metrics", authorization=f"Bearer {TOKEN}")).status == 200
    for path, why in {"/short": "at least 16", "/binary": "printable ASCII", "/missing": "cannot read"}.items():
        with pytest.RaisesGroup(pytest.RaisesExc(NodeFailed, match=why), flatten_subgroups=True):
            async with memory_broker(disk, settings={**settings, "kbroker.http.token.file": path}):
                pass


@pytest.mark.parametrize("token", ["", "short", "with blanks in it, or", "tëst" * 5, "line\nend" * 4])
def test_a_token_that_can_be_guessed_or_not_be_sent_is_refused(token: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Settings.load(defaults={"kbroker.http.token": token})
    assert str(caught.value).startswith("Invalid value [hidden] for configuration kbroker.http.token: a token ")


async def test_pages_that_others_can_reach_cause_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    def warned() -> list[str]:
        found = [line.message for line in caplog.records if "other machines can reach the pages" in line.message]
        caplog.clear()
        return found

    async with memory_broker(settings={"kbroker.http.listener": HTTP["kbroker.http.listener"]}):
        (line,) = warned()
        assert "kbroker.http.token is not set" in line
        assert "no TLS" in line
    async with memory_broker(settings=HTTP):
        (line,) = warned()
        assert "kbroker.http.token" not in line
        assert "no TLS" in line
    async with memory_broker(settings={**HTTP, "kbroker.http.listener": "127.0.0.1:9644"}):
        assert warned() == []


AUTHORITY = Authority()
SIGNED = AUTHORITY.sign(names=(ADDRESS[0],))
HTTPS = {
    **HTTP,
    "kbroker.http.security.protocol": "SSL",
    "listener.name.http.ssl.keystore.type": "PEM",
    "listener.name.http.ssl.keystore.key": SIGNED.key_pem(),
    "listener.name.http.ssl.keystore.certificate.chain": SIGNED.chain,
}


async def secured(broker: MemoryBroker) -> Browser:
    context = ssl.create_default_context(cadata=AUTHORITY.chain)
    stream = TlsStream(await broker.env.connect(*ADDRESS), context, server_side=False, server_hostname=ADDRESS[0])
    await stream.handshake()
    return Browser(stream)


async def test_pages_over_tls_need_the_token_too(caplog: pytest.LogCaptureFixture) -> None:
    async with memory_broker(settings=HTTPS) as broker:
        browser = await secured(broker)
        assert (await browser.get("/metrics")).status == 401
        got = await browser.get("/metrics", authorization=f"Bearer {TOKEN}")
        assert (got.status, b"kbroker_" in got.body) == (200, True)
        assert (await browser.get("/health")).json == {"status": "ready"}
    assert "other machines can reach the pages" not in caplog.text
    assert TOKEN not in caplog.text
    assert "BEGIN" not in caplog.text


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (b"", "it takes longer than 10000 ms"),
        (b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n", "the peer does not speak TLS"),
        (b"\x16\x03\x01\x02", "it takes longer than 10000 ms"),
    ],
)
async def test_clients_without_tls_are_disconnected_and_hinder_nobody(
    sent: bytes, why: str, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with memory_broker(settings=HTTPS) as broker:
        for _ in range(3):  # which cause one line
            plain = await Browser.connect(broker.env)
            if sent:
                await plain.send(sent)
        assert (await (await secured(broker)).get("/health")).status == 200
        before = trio.current_time()
        assert b"HTTP" not in await plain.rest()
        assert trio.current_time() - before <= 10
    failed = "a TLS handshake for the pages failed"
    (line,) = (vars(record)["kbroker_fields"] for record in caplog.records if record.message == failed)
    assert str(line["why"]).startswith(why)


async def test_a_broker_does_not_start_if_its_pages_have_no_certificate() -> None:
    settings = {**HTTP, "kbroker.http.security.protocol": "SSL"}
    with pytest.RaisesGroup(pytest.RaisesExc(NodeFailed, match="listener http: TLS requires"), flatten_subgroups=True):
        async with memory_broker(settings=settings):
            pass


@pytest.mark.parametrize(
    ("settings", "lacking"),
    [
        ({}, "PLAINTEXT has no authentication and no encryption"),
        ({"listeners": "PLAINTEXT://127.0.0.1:9092"}, None),
        ({"listeners": "SSL://broker.example:9092"}, "SSL has no authentication"),
        ({"listeners": "SSL://broker.example:9092", "ssl.client.auth": "required"}, None),
        ({"listeners": "SASL_PLAINTEXT://broker.example:9092"}, "SASL_PLAINTEXT has no encryption"),
        ({"listeners": "SASL_SSL://broker.example:9092"}, None),
    ],
)
async def test_a_listener_that_others_can_reach_is_reported_with_what_it_lacks(
    settings: dict[str, str], lacking: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    pem = {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.key": SIGNED.key_pem(),
        "ssl.keystore.certificate.chain": SIGNED.chain,
        "ssl.truststore.type": "PEM",
        "ssl.truststore.certificates": AUTHORITY.chain,
        "sasl.enabled.mechanisms": "SCRAM-SHA-256",
    }
    inter_broker = settings.get("listeners", "PLAINTEXT").partition(":")[0]
    async with memory_broker(settings={**pem, "inter.broker.listener.name": inter_broker, **settings}):
        pass
    found = [line.message for line in caplog.records if line.message.startswith("clients on other machines")]
    assert found == ([f"clients on other machines can connect, but {lacking}"] if lacking else [])
