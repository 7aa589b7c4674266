"""TLS over streams in memory, so that a test chooses what arrives and when."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID
from trio.testing import wait_all_tasks_blocked

from kbroker.config import Settings
from kbroker.config.tls import TlsSettings
from kbroker.config.values import ConfigError, Secret
from kbroker.metadata.principal import ANONYMOUS, Principal
from kbroker.runtime.disk import RealDisk
from kbroker.runtime.env import RealEnv
from kbroker.security.contexts import load, openssl_name
from kbroker.security.listener import HandshakeFailed
from kbroker.security.securing import tls_of
from kbroker.security.server_tls import ServerTls
from kbroker.security.tls_stream import Range, TlsStream
from kbroker.testing.net import MemoryStream, stream_pair
from tests.security.certificates import Authority, Signed

AUTHORITY = Authority()
SERVER = AUTHORITY.sign()
OTHER = Authority("other")
USER = AUTHORITY.sign((NameOID.COUNTRY_NAME, "DE"), (NameOID.COMMON_NAME, "duke"), names=())


class LaterEnv(RealEnv):
    """Its wall clock is ahead of OpenSSL's."""

    later_ms = 0

    def timestamp_ms(self) -> int:
        return super().timestamp_ms() + self.later_ms


def settings(own: Signed | None = SERVER, *, trusts: Signed | None = AUTHORITY, **more: Any) -> TlsSettings:
    """Settings with certificates in PEM, without files."""
    given: dict[str, Any] = {"ssl_keystore_type": "PEM", "ssl_truststore_type": "PEM"}
    if own is not None:
        given |= {
            "ssl_keystore_key": Secret(own.key_pem()),
            "ssl_keystore_certificate_chain": Secret(own.chain),
        }
    if trusts is not None:
        given["ssl_truststore_certificates"] = Secret(trusts.chain)
    return TlsSettings(**{**given, **more})


def side(given: TlsSettings, *, accepts: bool) -> ServerTls:
    env = RealEnv()
    return ServerTls(env, "SSL", given, env.threads(2), accepts=accepts)


async def connected(
    server: TlsSettings, client: TlsSettings, *, host: str = "localhost"
) -> tuple[TlsStream, TlsStream, Principal]:
    """Both sides after a handshake. Errors: those of the server's side, or else of the client's."""
    near, far = stream_pair()
    found: list[Any] = []
    errors: list[HandshakeFailed] = []
    accepting, connecting = side(server, accepts=True), side(client, accepts=False)

    async def keep(result: Callable[[], Any], stream: MemoryStream) -> None:
        try:
            found.append(await result())
        except HandshakeFailed as error:
            errors.append(error)
            stream.close()

    async def accept() -> tuple[TlsStream, Principal]:
        secured = await accepting.accept(far)
        return secured, accepting.principal(secured)

    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(keep, lambda: connecting.connect(near, host), near)
            await keep(accept, far)
    if errors:
        raise ExceptionGroup("handshake", errors) if len(errors) > 1 else errors[0]
    accepted = next(one for one in found if isinstance(one, tuple))
    return accepted[0], next(one for one in found if one is not accepted), accepted[1]


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


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"ssl_keystore_type": "JKS", "ssl_keystore_key": Secret("x")}, "requires ssl.keystore.type=PEM"),
        ({"ssl_keystore_certificate_chain": None}, "must be set together"),
        ({"ssl_keystore_location": "x"}, "must not both be set"),
        ({"ssl_keystore_certificate_chain": Secret(Authority().sign().chain)}, "key values mismatch"),
        ({"ssl_keystore_key": Secret(SERVER.key_pem("secret"))}, "check ssl.key.password"),
        ({"ssl_truststore_certificates": Secret("nothing")}, "has no certificate"),
        ({"ssl_cipher_suites": ("TLS_NO_WITH_SUCH",)}, "does not support TLS_NO_WITH_SUCH"),
        ({"ssl_cipher_suites": ("TLS_AES_128_GCM_SHA256",)}, "only the first ones"),
        ({"ssl_cipher_suites": ("TLS_RSA_WITH_NULL_SHA256",)}, "NULL-SHA256 protects nothing"),
        ({"ssl_cipher_suites": ("ALL:@SECLEVEL=0",)}, "protects nothing"),
    ],
)
def test_unusable_settings_are_refused(given: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        side(settings(**given), accepts=True)


def test_stores_are_read_from_files(tmp_path: Path) -> None:
    pem = SERVER.write(tmp_path / "server.pem", password="secret")
    p12 = SERVER.write_pkcs12(tmp_path / "server.jks", "changeit")  # keytool writes PKCS12 whatever the name is
    jks = tmp_path / "old.jks"
    jks.write_bytes(bytes.fromhex("feedfeed00000002"))
    disk = RealDisk()
    from_pem = TlsSettings(ssl_keystore_type="PEM", ssl_keystore_location=pem, ssl_key_password=Secret("secret"))
    assert load(from_pem, disk).server is not None
    from_p12 = TlsSettings(ssl_keystore_location=p12, ssl_keystore_password=Secret("changeit"))
    assert load(from_p12, disk).name == "CN=kbroker"
    for wrong, reason in (
        (TlsSettings(ssl_keystore_location=str(jks)), "keytool -importkeystore"),
        (TlsSettings(ssl_keystore_location=p12, ssl_keystore_password=Secret("wrong")), "cannot be read"),
        (TlsSettings(ssl_keystore_location=pem), "set ssl.keystore.type=PEM"),
    ):
        with pytest.raises(ConfigError, match=reason):
            load(wrong, disk)


@pytest.mark.parametrize(
    ("java", "openssl"),
    [
        ("TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", "ECDHE-RSA-AES128-GCM-SHA256"),
        ("TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA384", "ECDHE-ECDSA-AES256-SHA384"),
        ("TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256", "ECDHE-RSA-CHACHA20-POLY1305"),
        ("TLS_DHE_RSA_WITH_AES_256_GCM_SHA384", "DHE-RSA-AES256-GCM-SHA384"),
        ("TLS_RSA_WITH_AES_128_GCM_SHA256", "AES128-GCM-SHA256"),
        ("ECDHE-RSA-AES128-GCM-SHA256", "ECDHE-RSA-AES128-GCM-SHA256"),
    ],
)
def test_cipher_suites_have_names_of_openssl(java: str, openssl: str) -> None:
    assert openssl_name(java) == openssl
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).set_ciphers(openssl)


async def test_cipher_suites_limit_the_choice() -> None:
    suites = ("TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",)
    server, *_ = await connected(settings(ssl_cipher_suites=suites), settings())
    assert server.tls.cipher()[:2] == ("ECDHE-ECDSA-AES128-GCM-SHA256", "TLSv1.2")  # type: ignore[index]


@pytest.mark.parametrize(
    ("lists", "own", "reason"),
    [
        (AUTHORITY.revoke(), USER, None),
        (AUTHORITY.revoke(SERVER), USER, None),
        (AUTHORITY.revoke(USER), USER, "certificate revoked"),
        (AUTHORITY.revoke(USER, days=-1), USER, "CRL has expired"),
        (AUTHORITY.revoke(days=-1), USER, "CRL has expired"),
        (Authority("other").revoke(), USER, "unable to get certificate CRL"),
        (Authority().revoke(), USER, "CRL signature failure"),  # of somebody who only has the authority's name
        (OTHER.chain + AUTHORITY.revoke(), OTHER.sign(), "certificate"),  # the file makes no authority trusted
    ],
)
async def test_x6_revoked_certificates_are_refused(tmp_path: Path, lists: str, own: Signed, reason: str | None) -> None:
    path = tmp_path / "revoked.pem"
    path.write_text(f"# from {reason}\n{lists}")
    server = settings(ssl_client_auth="required", kbroker_ssl_crl_location=str(path))
    if reason is None:
        await connected(server, settings(own))
        return
    with pytest.raises(HandshakeFailed, match=reason):
        await connected(server, settings(own))


async def test_x6_a_node_whose_certificate_is_revoked_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "revoked.pem"
    path.write_text(AUTHORITY.revoke(SERVER))
    with pytest.raises(ExceptionGroup, match="handshake") as caught:
        await connected(settings(), settings(kbroker_ssl_crl_location=str(path)))
    assert any("certificate revoked" in str(one) for one in caught.value.exceptions)


async def test_a_certificate_is_revoked_without_a_restart(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "revoked.pem"
    path.write_text(AUTHORITY.revoke())
    given = settings(ssl_client_auth="required", kbroker_ssl_crl_location=str(path))
    accepting = side(given, accepts=True)

    async def is_accepted() -> bool:
        near, far = stream_pair()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(side(settings(USER), accepts=False).connect, near, "localhost")
            try:
                await accepting.accept(far)
            except HandshakeFailed as error:
                reasons.append(str(error))
        return not reasons

    reasons: list[str] = []
    assert await is_accepted()
    path.write_text(AUTHORITY.revoke(USER))
    await accepting.renew(given)
    assert not await is_accepted()
    path.write_text(AUTHORITY.revoke()[:-40])
    await accepting.renew(given)
    (line,) = (vars(record) for record in caplog.records if "cannot reload" in record.message)
    assert "no complete certificate revocation list in PEM" in str(line["kbroker_fields"]["error"])
    reasons.clear()
    assert not await is_accepted()
    assert reasons == ["certificate: certificate revoked"], "the previous list stays in force"


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "no complete certificate revocation list in PEM; `openssl crl -inform DER"),
        (AUTHORITY.chain.encode(), "no complete certificate revocation list"),
        (b"-----BEGIN X509 CRL-----\nAAAA\n-----END X509 CRL-----\n", "the lists cannot be read"),
    ],
)
def test_unusable_revocation_lists_are_refused(tmp_path: Path, data: bytes, reason: str) -> None:
    path = tmp_path / "revoked.pem"
    path.write_bytes(data)
    with pytest.raises(ConfigError, match=reason):
        side(settings(kbroker_ssl_crl_location=str(path)), accepts=True)


async def test_new_certificates_are_used_without_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "server.pem"
    given = settings(
        None,
        ssl_keystore_location=SERVER.write(path),
    )
    accepting = side(given, accepts=True)

    async def certificate() -> bytes | None:
        near, far = stream_pair()
        client = side(settings(), accepts=False)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(accepting.accept, far)
            secured = await client.connect(near, "localhost")
        return secured.tls.getpeercert(binary_form=True)

    assert await certificate() == SERVER.der
    renewed = AUTHORITY.sign(key=rsa.generate_private_key(65537, 2048))
    renewed.write(path)
    await accepting.renew(given)
    assert await certificate() == renewed.der
    path.write_text("garbage")
    await accepting.renew(given)
    assert await certificate() == renewed.der
    AUTHORITY.sign((NameOID.COMMON_NAME, "another")).write(path)
    await accepting.renew(given)
    assert await certificate() == renewed.der
    with pytest.raises(ConfigError, match="DistinguishedName does not match: existing=CN=kbroker, new=CN=another"):
        accepting.check(given)
    AUTHORITY.sign(names=("localhost",)).write(path)
    with pytest.raises(ConfigError, match="SubjectAltNames do not match"):
        accepting.check(given)


async def test_unusable_settings_are_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    accepting = side(settings(), accepts=True)
    wrong = settings(None, ssl_keystore_location=str(tmp_path / "missing.pem"))
    for _ in range(3):
        await accepting.renew(wrong)
    assert caplog.text.count("cannot reload certificates") == 1
    SERVER.write(tmp_path / "missing.pem")
    await accepting.renew(wrong)
    assert caplog.text.count("cannot reload certificates") == 1


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ((), "none"),
        (("ssl.client.auth=required",), "none"),
        (("listener.name.sasl_ssl.ssl.client.auth=required",), "required"),
    ],
)
def test_sasl_asks_for_certificates_only_by_the_listeners_own_setting(given: tuple[str, ...], wanted: str) -> None:
    loaded = Settings.load(overrides=("listeners=SASL_SSL://localhost:0,SSL://localhost:0", *given))
    assert tls_of(loaded, "SASL_SSL").ssl_client_auth == wanted


async def test_a_trust_store_may_have_comments_in_any_language(tmp_path: Path) -> None:
    path = tmp_path / "trusted.pem"
    path.write_text(f"# Autoridad de Certificación\n{AUTHORITY.chain}", encoding="utf-8")
    given = settings(trusts=None, ssl_truststore_location=str(path))
    _, _, principal = await connected(given, given)
    assert principal == ANONYMOUS


async def test_an_unusual_key_store_does_not_end_the_renewal(tmp_path: Path) -> None:
    path = tmp_path / "own.pem"
    SERVER.write(path)
    given = settings(own=None, ssl_keystore_location=str(path))
    accepting = side(given, accepts=True)
    # OpenSSL reads this label, and Python's conversion of certificates does not.
    path.write_text(SERVER.key_pem() + SERVER.chain.replace(" CERTIFICATE", " X509 CERTIFICATE"))
    await accepting.renew(given)
    with pytest.raises(ConfigError, match="cannot be read"):
        accepting.check(given)
