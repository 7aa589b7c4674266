"""Settings of TLS: stores, cipher suites, revocation lists, and their renewal without a restart."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

import pytest
import trio
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID

from kbroker.config import Settings
from kbroker.config.tls import TlsSettings
from kbroker.config.values import ConfigError, Secret
from kbroker.metadata.principal import ANONYMOUS
from kbroker.runtime.disk import RealDisk
from kbroker.security.contexts import load, openssl_name
from kbroker.security.listener import HandshakeFailed
from kbroker.security.securing import tls_of
from kbroker.testing.net import stream_pair
from tests.security.certificates import Authority, Signed
from tests.security.tls_sides import AUTHORITY, OTHER, SERVER, USER, connected, settings, side


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
