"""OAUTHBEARER: which tokens are accepted, and where their keys come from."""

from __future__ import annotations

import base64
import http.server
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from hypothesis import given
from hypothesis import settings as how
from hypothesis import strategies as st

from kbroker.config.sasl import SaslSettings
from kbroker.config.values import ConfigError
from kbroker.runtime.event_log import TerminalFormatter
from kbroker.security.sasl import AuthenticationFailed, UnknownKey
from kbroker.security.sasl.jwks import MAX_BYTES, IssuerKeys, UnreadableKeys, checked_url, usable_keys
from kbroker.security.sasl.oauth import OauthExchange, TokenRules

NOW_S = 1_800_000_000
CLAIMS: dict[str, Any] = {
    "sub": "al", "aud": ["kafka", "x"], "iss": "https://issuer", "iat": NOW_S, "exp": NOW_S + 60, "scope": "a b",
}  # fmt: skip
SETTINGS = SaslSettings(
    sasl_oauthbearer_expected_audience=("kafka",), sasl_oauthbearer_expected_issuer="https://issuer"
)
RSA = rsa.generate_private_key(public_exponent=65537, key_size=2048)
OTHER_RSA = rsa.generate_private_key(public_exponent=65537, key_size=2048)
WEAK_RSA = rsa.generate_private_key(public_exponent=65537, key_size=1024)
EC = ec.generate_private_key(ec.SECP256R1())


def jwk(key: Any, key_id: str, **more: str) -> dict[str, Any]:
    algorithm = (
        jwt.algorithms.ECAlgorithm if isinstance(key, ec.EllipticCurvePrivateKey) else jwt.algorithms.RSAAlgorithm
    )
    return {**json.loads(algorithm.to_jwk(key.public_key())), "kid": key_id, **more}


JWKS = json.dumps({"keys": [jwk(RSA, "r"), jwk(EC, "e"), jwk(OTHER_RSA, "o"), jwk(WEAK_RSA, "weak")]}).encode()


class FixedKeys:
    def find(self, key_id: str | None) -> list[Any]:
        found = [key for key in usable_keys(JWKS) if key_id in (None, key.key_id)]
        if not found:
            raise AuthenticationFailed("no key")
        return found


def token(key: Any = RSA, key_id: str | None = "r", algorithm: str = "RS256", **claims: Any) -> str:
    headers = {} if key_id is None else {"kid": key_id}
    given = {name: value for name, value in {**CLAIMS, **claims}.items() if value is not None}
    return jwt.encode(given, key, algorithm=algorithm, headers=headers)


def rules(settings: SaslSettings = SETTINGS, now_s: float = NOW_S) -> TokenRules:
    return TokenRules(settings, FixedKeys(), lambda: int(now_s * 1000))


def refused(text: str, settings: SaslSettings = SETTINGS, now_s: float = NOW_S) -> str:
    with pytest.raises(AuthenticationFailed) as raised:
        rules(settings, now_s).check(text)
    return str(raised.value)


@pytest.mark.parametrize(
    ("key", "key_id", "algorithm"),
    [(RSA, "r", "RS256"), (RSA, "r", "PS256"), (RSA, None, "RS256"), (EC, "e", "ES256"), (EC, None, "ES256")],
)
def test_a_valid_token_names_its_user(key: Any, key_id: str | None, algorithm: str) -> None:
    assert rules().check(token(key, key_id, algorithm)) == ("al", (NOW_S + 60) * 1000)


def part(content: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(content).encode()).rstrip(b"=").decode()


def unsecured(alg: str = "none", **claims: Any) -> str:
    return f"{part({'alg': alg})}.{part({**CLAIMS, **claims})}."


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (unsecured(), "algorithm"),
        (unsecured("None"), "algorithm"),
        (unsecured("nOnE"), "algorithm"),
        (f"{part({'alg': ['none']})}.{part(CLAIMS)}.", "algorithm"),
        (token(OTHER_RSA, "r"), "signature"),
        (token(OTHER_RSA, "unknown"), "no key"),
        (token(RSA, "e"), "no key fits"),  # another type of key
        (token(RSA, "r", "RS512"), "algorithm"),  # not in the list
        (token()[:-3], "signature"),
        (token().rpartition(".")[0], "not a JWT"),
        (token() + "." + token(), "not a JWT"),
        ("a" * 70_000, "not a JWT"),
        (f"{part([])}.{part(CLAIMS)}.", "cannot be read"),
        (f"{'x' * 5}.{part(CLAIMS)}.", "cannot be read"),
        (token(aud="other"), "audience"),
        (token(aud=None), "audience"),
        (token(aud=["other", 5]), "audience"),
        (token(iss="https://evil"), "issuer"),
        (token(iss=None), "issuer"),
        (token(sub=None), "no user"),
        (token(sub=" "), "no user"),
        (token(exp=None), "exp"),
        (token(iat=None), "iat"),
        (token(scope=7), "scope"),
        (token(exp=NOW_S - 30), "expired"),
        (token(nbf=NOW_S + 31), "not valid yet"),
    ],
)  # fmt: skip
def test_x8_a_token_is_refused(text: str, reason: str) -> None:
    assert reason in refused(text)


@pytest.mark.parametrize(("subject", "user"), [(" al\t", "al"), ("\xa0al", "\xa0al"), ("al\u2003", "al\u2003")])
def test_x8_a_user_is_trimmed_as_by_java(subject: str, user: str) -> None:
    """An issuer whose users choose names may allow spaces beyond ASCII: they must not make one into another."""
    assert rules().check(token(sub=subject)).user == user


def test_x8_a_key_of_the_set_is_no_secret_of_hmac() -> None:
    """An attacker signs with HS256, and with the public key as the secret."""
    public = RSA.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    import hashlib
    import hmac

    signed = f"{part({'alg': 'HS256', 'kid': 'r'})}.{part(CLAIMS)}"
    mac = base64.urlsafe_b64encode(hmac.digest(public, signed.encode(), hashlib.sha256)).rstrip(b"=").decode()
    assert "algorithm" in refused(f"{signed}.{mac}")


def test_x8_a_header_cannot_name_a_key_or_a_place() -> None:
    evil = {"jwk": jwk(OTHER_RSA, "r"), "jku": "https://evil/keys", "x5u": "https://evil/cert", "kid": "../../r"}
    assert "no key" in refused(jwt.encode(CLAIMS, OTHER_RSA, algorithm="RS256", headers=evil))
    assert "signature" in refused(jwt.encode(CLAIMS, OTHER_RSA, algorithm="RS256", headers=evil | {"kid": "r"}))
    assert "extension" in refused(jwt.encode(CLAIMS, RSA, algorithm="RS256", headers={"kid": "r", "crit": ["x"]}))


def test_x8_clocks_may_differ_by_the_skew() -> None:
    assert rules(now_s=NOW_S + 60 + 29.9).check(token()).user == "al"
    assert "expired" in refused(token(), now_s=NOW_S + 60 + 30)
    assert rules().check(token(nbf=NOW_S + 30)).user == "al"


def test_claims_with_other_names_are_read() -> None:
    given = SaslSettings(sasl_oauthbearer_sub_claim_name="azp", sasl_oauthbearer_scope_claim_name="scp")
    assert rules(given).check(token(azp="service", scp=["a"], sub=None, aud=None, iss=None)).user == "service"


def test_tokens_without_a_signature_need_a_setting() -> None:
    given = SaslSettings(kbroker_sasl_oauthbearer_unsecured=True)
    check = TokenRules(given, None, lambda: NOW_S * 1000).check
    assert check(unsecured()).user == "al"
    for bad in (unsecured() + "AAAA", unsecured(exp=NOW_S - 60), unsecured(sub=""), token()):
        with pytest.raises(AuthenticationFailed):
            check(bad)


def first(text: str, header: str = "n,,") -> bytes:
    return f"{header}\x01auth=Bearer {text}\x01\x01".encode()


def test_the_exchange_of_rfc_7628() -> None:
    assert OauthExchange(rules()).respond(first(token())) == (b"", "al", (NOW_S + 60) * 1000, None)
    assert OauthExchange(rules()).respond(first(token(), "n,a=al,")).user == "al"
    exchange = OauthExchange(rules())
    step = exchange.respond(first("a.b.c"))
    assert step.token == b'{"status":"invalid_token"}'
    assert str(step.refusal) == "the token cannot be read"
    for message in (b"\x01", first(token())):  # a good token after a bad one does not help
        with pytest.raises(AuthenticationFailed):
            exchange.respond(message)


MANY_PAIRS = b"".join(b"%c%c=\x01" % (one, other) for one in b"abcdefghij" for other in b"abcdefghij")


@pytest.mark.parametrize(
    "message",
    [b"", b"\x01", b"n,,\x01\x01", b"n,,\x01auth=Bearer a.b.c\x01", b"y,,\x01auth=Bearer a.b.c\x01\x01",
     b"n,,\x01auth=Basic a.b.c\x01\x01", b"n,,\x01auth=Bearer a.b.c\x01auth=Bearer a.b.c\x01\x01",
     b"n,,\x01auth=Bearer \xff\x01\x01", b"n,,\x01auth=Bearer a.b.c\x01" + MANY_PAIRS + b"\x01",
     b"n,,\x01auth=Bearer " + b"a" * 200_000 + b"\x01\x01"],
)  # fmt: skip
def test_a_message_of_another_form_is_refused(message: bytes) -> None:
    with pytest.raises(AuthenticationFailed):
        OauthExchange(rules()).respond(message)


def test_a_token_acts_for_its_user_only() -> None:
    exchange = OauthExchange(rules())
    assert exchange.respond(first(token(), "n,a=admin,")).user is None


@how(deadline=None, max_examples=60)
@given(st.data())
def test_x8_no_changed_token_is_accepted(data: st.DataObject) -> None:
    text = token()
    at = data.draw(st.integers(0, len(text) - 1))
    changed = text[:at] + data.draw(st.sampled_from("Az09-_.")) + text[at + 1 :]
    # The last characters of a part may have bits that do not count.
    (head, _, signature), (same_head, _, same_signature) = changed.rpartition("."), text.rpartition(".")
    if head != same_head or _decoded(signature) != _decoded(same_signature):
        refused(changed)


def _decoded(part: str) -> bytes | None:
    try:
        return base64.urlsafe_b64decode(part + "==")
    except ValueError:
        return None


# --- keys -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "is_good"),
    [
        ("https://issuer/keys?x=1", True), ("file:///etc/keys.json", True), ("http://localhost:8080/keys", True),
        ("http://127.0.0.1/keys", True), ("http://issuer/keys", False), ("ftp://issuer/keys", False),
        ("file://host/keys", False), ("keys.json", False), ("https:///keys", False), ("https://al:pw@issuer/", False),
        ("https://issuer:port/", False), ("https://issuer/keys?secret=a b", False),
        ("https://[al:secret@issuer/", False),
    ],
)  # fmt: skip
def test_x8_keys_come_only_from_places_that_can_be_trusted(url: str, is_good: bool) -> None:
    given = SaslSettings(sasl_oauthbearer_jwks_endpoint_url=url)
    if is_good:
        assert checked_url(given) == urlsplit(url)
    else:
        with pytest.raises(ConfigError) as raised:
            checked_url(given)
        assert "secret" not in str(raised.value)
    if url == "http://issuer/keys":
        assert checked_url(SaslSettings(sasl_oauthbearer_jwks_endpoint_url=url, kbroker_sasl_oauthbearer_http=True))


class Place:
    """A file with keys that counts how often it is read."""

    def __init__(self, contents: bytes | Exception = JWKS) -> None:
        self.contents = contents
        self.reads = 0
        self.now_ms = 0
        url = urlsplit("file:///keys.json")
        self.keys = IssuerKeys(SaslSettings(), url, self.read, lambda: self.now_ms)

    def read(self, path: str, max_bytes: int) -> bytes:
        assert path == "/keys.json"
        self.reads += 1
        if isinstance(self.contents, Exception):
            raise self.contents
        return self.contents[:max_bytes]

    def knows(self, key_id: str | None) -> bool:
        """As a login asks, which lets the keys be read if it needs them."""
        return has(self.keys, key_id) or (self.keys.may_change and (self.keys.refresh() or has(self.keys, key_id)))


def has(keys: IssuerKeys, key_id: str | None) -> bool:
    try:
        return bool(keys.find(key_id))
    except UnknownKey:
        return False


def test_keys_are_read_once_in_the_refresh_time() -> None:
    place = Place()
    assert place.knows("r")
    assert place.knows("e")
    place.now_ms = 3_599_999
    assert place.knows("r")
    assert place.reads == 1
    assert place.keys.due_ms == 3_600_000
    place.now_ms = 3_600_000
    place.contents = json.dumps({"keys": [jwk(EC, "e")]}).encode()
    assert place.knows("r"), "a known key waits for no read"
    place.keys.refresh()
    assert not place.knows("r")
    assert place.reads == 2


def test_x8_unknown_keys_cannot_make_the_broker_ask_often() -> None:
    place = Place()
    for index in range(1_000):
        place.now_ms += 100
        assert not place.knows(f"unknown{index}")
    assert place.reads <= 11  # in 100 s
    assert place.knows("r")


def test_known_keys_stay_if_a_read_fails_and_pauses_grow() -> None:
    place = Place()
    assert place.knows("r")
    place.contents = OSError("gone")
    place.now_ms = 3_600_000
    for _ in range(300):
        assert place.knows("r")
        if place.keys.due_ms is not None and place.now_ms >= place.keys.due_ms:
            place.keys.refresh()
        place.now_ms += 100
    assert 7 <= place.reads <= 12  # 0.1, 0.2, 0.4 ... 10 s


def test_the_log_does_not_show_secrets_of_the_url(caplog: pytest.LogCaptureFixture) -> None:
    def fail(*_: object) -> bytes:
        raise OSError("gone")

    url = urlsplit("file://al:password@/keys.json?token=canary#canary")
    IssuerKeys(SaslSettings(), url, fail, lambda: 0).refresh()
    (line,) = map(TerminalFormatter().format, caplog.records)
    assert "/keys.json" in line
    assert "canary" not in line
    assert "password" not in line


@pytest.mark.parametrize(
    "contents",
    [b"", b"[]", b"{", b'{"keys": 5}', json.dumps({"keys": [{}] * 101}).encode(), b" " * (MAX_BYTES + 1)],
)
def test_unusable_keys_are_not_taken(contents: bytes) -> None:
    place = Place(contents)
    assert not place.knows(None)
    if contents.strip():
        with pytest.raises((UnreadableKeys, ValueError)):
            usable_keys(contents)


def test_keys_for_other_purposes_are_left_out() -> None:
    secret = {"kty": "oct", "k": "AAAA", "kid": "h"}
    listed = [secret, {"kty": "RSA"}, 5, jwk(RSA, "enc", use="enc"), jwk(WEAK_RSA, "weak"), jwk(RSA, "r", use="sig")]
    assert [key.key_id for key in usable_keys(json.dumps({"keys": listed}).encode())] == ["r"]


@contextmanager
def http_server(handler: type[http.server.BaseHTTPRequestHandler]) -> Iterator[str]:
    """A server in threads; gives its URL."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def keys_at(url: str) -> IssuerKeys:
    return IssuerKeys(SaslSettings(), urlsplit(url), lambda *_: b"", lambda: 0)


def test_keys_are_read_over_http_without_redirects() -> None:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/redirect":
                self.send_response(302)
                self.send_header("Location", "/keys")
                self.end_headers()
                return
            data = JWKS if self.path == "/keys" else b" " * (MAX_BYTES + 10)
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    with http_server(Handler) as url:
        for path, is_known in (("/keys", True), ("/redirect", False), ("/large", False)):
            keys = keys_at(url + path)
            keys.refresh()
            assert has(keys, "r") == is_known


@pytest.mark.parametrize("trickled", [b"HTTP/1.1 200 OK\r\nX: ", b"HTTP/1.1 200 OK\r\n\r\n" + JWKS])
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_x8_an_issuer_that_trickles_is_left_in_time(
    trickled: bytes, scheme: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """In its header, in a body without a length, which looks complete at any time, and in the TLS handshake."""
    monkeypatch.setattr("kbroker.security.sasl.jwks.TIMEOUT_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def trickle() -> None:
            connection, _ = listening.accept()
            with connection, suppress(OSError):
                connection.sendall(trickled if scheme == "http" else b"\x16\x03\x03\x3f\xff\x02\x00\x3f\xfb")
                while True:
                    connection.sendall(b" ")
                    time.sleep(0.05)

        thread = threading.Thread(target=trickle)
        thread.start()
        keys = keys_at(f"{scheme}://127.0.0.1:{listening.getsockname()[1]}/keys")
        began = time.monotonic()
        keys.refresh()
        assert time.monotonic() - began < 5
        thread.join()
    assert not has(keys, "r")
    assert "the answer is too slow" in "".join(map(TerminalFormatter().format, caplog.records))
