"""TLS over streams in memory, so that a test chooses what arrives and when."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from kbroker.metadata.principal import ANONYMOUS, Principal
from kbroker.runtime.disk import RealDisk
from kbroker.runtime.env import RealEnv
from kbroker.security.contexts import load
from kbroker.security.listener import HandshakeFailed
from kbroker.security.server_tls import ServerTls
from kbroker.security.tls_stream import Range, TlsStream
from kbroker.testing.net import MemoryStream, stream_pair
from tests.security.certificates import Authority
from tests.security.tls_sides import AUTHORITY, USER, connected, settings, side


class LaterEnv(RealEnv):
    """Its wall clock is ahead of OpenSSL's."""

    later_ms = 0

    def timestamp_ms(self) -> int:
        return super().timestamp_ms() + self.later_ms


@pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])
async def test_bytes_arrive_unchanged_both_ways(version: str, tmp_path: Path) -> None:
    server, client, principal = await connected(settings(), settings(ssl_enabled_protocols=(version,)))
    assert principal == ANONYMOUS
    assert server.tls.version() == version
    data = bytes(range(256)) * 4_000
    (tmp_path / "file").write_bytes(b"before" + data + b"after")
    file = RealDisk().open(str(tmp_path / "file"), writable=False)
    ranges = [b"head", Range(file, 6, len(data)), b"", Range(file, 6, 10), data[:200_000], b"tail"]  # type: ignore[arg-type]
    expected = b"head" + data + data[:10] + data[:200_000] + b"tail"

    async def answer() -> None:
        assert await server.receive(100) == b"question"
        await server.send(ranges)  # type: ignore[arg-type]
        server.close()

    received = bytearray()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(answer)
        await client.send([b"quest", b"ion"])
        while piece := await client.receive(30_000):
            received += piece
    assert received == expected
    client.close()


async def test_send_nowait_takes_what_the_network_takes_and_resumes() -> None:
    server, client, _ = await connected(settings(), settings())
    data = bytes(1000) * 300
    sent = 0
    while taken := server.send_nowait(memoryview(data)[sent:]):
        sent += taken
    assert 0 <= sent < len(data)
    received = bytearray()

    async def read() -> None:
        while len(received) < len(data) + 4:
            received.extend(await client.receive(65536))

    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            await wait_all_tasks_blocked()
            await server.send([memoryview(data)[sent:], b"tail"])
    assert received == data + b"tail"


async def test_a_certificate_gives_the_principal_its_name() -> None:
    *_, principal = await connected(settings(ssl_client_auth="required"), settings(USER))
    assert principal == Principal("User", "CN=duke,C=DE")
    rules = "RULE:^CN=(.*?),.*$/$1/U,DEFAULT"
    *_, principal = await connected(
        settings(ssl_client_auth="requested", ssl_principal_mapping_rules=rules), settings(USER)
    )
    assert principal == Principal("User", "DUKE")


@pytest.mark.parametrize(
    ("server", "client", "host", "reason"),
    [
        ({"ssl_client_auth": "required"}, {"own": None}, "localhost", "peer did not return a certificate"),
        ({"ssl_client_auth": "requested"}, {"own": Authority("other").sign()}, "localhost", "certificate"),
        ({"ssl_client_auth": "required"}, {"own": AUTHORITY.sign(days=-1)}, "localhost", "certificate has expired"),
        ({"own": AUTHORITY.sign(days=-1)}, {}, "localhost", "certificate has expired"),
        ({}, {"trusts": Authority("other")}, "localhost", "the peer does not accept this certificate"),
        ({}, {}, "elsewhere.example", "elsewhere.example"),
        ({}, {}, "elsewhere.example", "the peer does not accept this certificate"),
        ({"own": AUTHORITY.sign(names=("localhost",))}, {}, "127.0.0.1", "127.0.0.1"),
        ({"ssl_enabled_protocols": ("TLSv1.2",)}, {"ssl_enabled_protocols": ("TLSv1.3",)}, "localhost", "protocol"),
        (
            {"ssl_client_auth": "required", "ssl_principal_mapping_rules": "RULE:^CN=x$/x/"},
            {"own": USER},
            "localhost",
            "no rule of ssl.principal.mapping.rules applies to CN=duke,C=DE",
        ),
    ],
)
async def test_x6_handshakes_that_must_fail_do(
    server: dict[str, Any], client: dict[str, Any], host: str, reason: str
) -> None:
    with pytest.raises((HandshakeFailed, ExceptionGroup)) as caught:
        await connected(settings(**server), settings(**client), host=host)
    error = caught.value
    texts = [str(one) for one in error.exceptions] if isinstance(error, ExceptionGroup) else [str(error)]
    assert any(reason in text for text in texts), texts


async def test_without_host_name_verification_any_name_is_accepted() -> None:
    await connected(settings(), settings(ssl_endpoint_identification_algorithm=""), host="elsewhere.example")


@pytest.mark.parametrize(
    ("first", "reason"),
    [
        (b"\0\0\0\x2a\0\x12\0\x03", "does not speak TLS"),
        (b"GET / HTTP/1.1\r\n\r\n", "does not speak TLS"),
        (b"\x16\x03\x01\xff\xff" + bytes(100), "packet length too long|excessive|wrong version|bad"),
        (b"\x16\x03\x00\0\x05hello", "."),
    ],
)
async def test_bytes_that_are_no_handshake_are_refused_at_once(first: bytes, reason: str) -> None:
    near, far = stream_pair()
    await near.send([first])
    with trio.fail_after(30), pytest.raises(HandshakeFailed, match=reason):
        await side(settings(), accepts=True).accept(far)


async def test_a_handshake_that_stops_half_way_waits_and_then_ends_with_its_client() -> None:
    near, far = stream_pair()
    hello = ssl.MemoryBIO()
    client = load(settings(), RealDisk()).client.wrap_bio(ssl.MemoryBIO(), hello, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    await near.send([hello.read()[:60]])
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:

            async def accept() -> None:
                with pytest.raises(HandshakeFailed, match="closed"):
                    await side(settings(), accepts=True).accept(far)

            nursery.start_soon(accept)
            await wait_all_tasks_blocked()
            near.close()


async def test_a_handshake_without_end_is_bounded() -> None:
    near, far = stream_pair()

    async def flood() -> None:
        record = b"\x16\x03\x01\x3f\xfc" + bytes.fromhex("01ffffff") + bytes(0x3FF8)
        try:
            while True:
                await near.send([record])
        except trio.BrokenResourceError:
            pass

    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(flood)
            with pytest.raises(HandshakeFailed):
                await side(settings(), accepts=True).accept(far)
            assert far.received_bytes < 300_000
            far.close()


async def test_a_cut_connection_ends_like_a_closed_one() -> None:
    server, client, _ = await connected(settings(), settings())
    client._inner.close()
    assert await server.receive(10) == b""


@pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])
@pytest.mark.parametrize("size", [1, 4, 5, 6, 23, 1_000])
async def test_records_may_be_cut_anywhere(version: str, size: int) -> None:
    """The handshake too: so its last piece may hold the beginning of a record with data."""
    near, far = stream_pair()
    cut, uncut = stream_pair()
    accepting = side(settings(), accepts=True)
    connecting = side(settings(ssl_enabled_protocols=(version,)), accepts=False)
    data = bytes(range(256)) * 12

    async def carry(source: MemoryStream, sink: MemoryStream) -> None:
        while piece := await source.receive(size):
            await sink.send([piece])
            await trio.lowlevel.checkpoint()  # so that the pieces are received one by one

    async def ask() -> None:
        client = await connecting.connect(near, "localhost")
        for at in range(0, len(data), 100):
            await client.send([data[at : at + 100]])

    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(carry, far, cut)
            nursery.start_soon(carry, cut, far)
            nursery.start_soon(ask)
            server, received = await accepting.accept(uncut), bytearray()
            while len(received) < len(data):
                received += await server.receive(1_000)
            nursery.cancel_scope.cancel()
    assert received == data


async def test_w9_many_small_records_do_not_keep_other_tasks_waiting() -> None:
    """The same holds for records without data, such as key updates, of which OpenSSL accepts any number."""
    server, client, _ = await connected(settings(), settings())
    count, turns = 1_000, 0
    for _ in range(count):
        await client.send([b"x"])

    async def work() -> None:
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(work)
        received = 0
        while received < count:
            received += len(await server.receive(count))
        nursery.cancel_scope.cancel()
    assert turns >= 10


@pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])
async def test_x6_a_resumed_session_ends_with_its_certificate(version: str) -> None:
    """OpenSSL resumes it again and again, and looks at no certificate."""
    env = LaterEnv()
    accepting = ServerTls(env, "SSL", settings(ssl_client_auth="required"), env.threads(2), accepts=True)
    connecting = side(settings(USER, ssl_enabled_protocols=(version,)), accepts=False)
    session: ssl.SSLSession | None = None

    async def connect(stream: MemoryStream) -> None:
        nonlocal session
        client = TlsStream(stream, connecting._contexts.client, server_side=False, server_hostname="localhost")
        if session is not None:
            client.tls.session = session
        await client.handshake()
        await client.receive(1)
        session = client.tls.session

    async def accept() -> bool:
        near, far = stream_pair()
        with trio.fail_after(20):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(connect, near)
                try:
                    server = await accepting.accept(far)
                    await server.send([b"."])
                    assert accepting.principal(server) == Principal("User", "CN=duke,C=DE")
                finally:
                    far.close()
        return server.tls.session_reused

    assert not await accept()
    assert await accept()
    env.later_ms = 31 * 86_400_000
    with pytest.raises(ExceptionGroup) as raised:
        await accept()
    assert "expired since the session began" in str(raised.value.exceptions)


async def test_changed_bytes_break_the_connection() -> None:
    server, client, _ = await connected(settings(), settings())
    await client._inner.send([b"\x17\x03\x03\0\x20" + bytes(32)])
    with pytest.raises(trio.BrokenResourceError, match="TLS"):
        await server.receive(10)
