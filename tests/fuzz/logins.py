"""The states of SASL: every exchange, with messages in any order, and the tokens of OAUTHBEARER.

An exchange ends with a user only if the input holds the right password, or a token that the rules accept. Faults, and
users without such a proof, are failures.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from functools import cache

from kbroker.config import Settings
from kbroker.config.sasl import SaslSettings
from kbroker.metadata.image import Image
from kbroker.security.sasl import AuthenticationFailed, Exchange
from kbroker.security.sasl.jwks import UnreadableKeys, usable_keys
from kbroker.security.sasl.oauth import OauthExchange, TokenRules
from kbroker.security.sasl.plain import PlainExchange, PlainUsers
from kbroker.security.sasl.scram import (
    MECHANISMS,
    SCRAM_SHA_256,
    CredentialStore,
    ScramExchange,
    ScramUsers,
    credential_of,
    salted_password,
)
from tests.fuzz.target import Target
from wire.stored.metadata import UserScramCredentialRecord

NOW_MS = 1_750_000_000_000
USER, PASSWORD = "alice", "secret-of-alice"
SALT, NONCE = b"0123456789abcdef", "server0nonce"


@cache
def _salted(name: str) -> bytes:
    return salted_password(MECHANISMS[name], PASSWORD, SALT, 4_096)


@cache
def _users() -> ScramUsers:
    records = {}
    for mechanism in MECHANISMS.values():
        credential = credential_of(mechanism, _salted(mechanism.name), SALT, 4_096)
        records[USER, mechanism.number] = UserScramCredentialRecord(
            name=USER,
            mechanism=mechanism.number,
            salt=SALT,
            stored_key=credential.stored_key,
            server_key=credential.server_key,
            iterations=4_096,
        )
    store, image = CredentialStore(b"secret of the fuzzer"), Image(scram_credentials=records)
    store.image = lambda: image
    return ScramUsers(store)


@cache
def _rules(is_unsecured: bool) -> TokenRules:
    given = {"kbroker.sasl.oauthbearer.unsecured": str(is_unsecured).lower()}
    settings = Settings.load(
        overrides=[f"{key}={value}" for key, value in given.items()], defaults={"log.dirs": "/none"}
    )
    return TokenRules(settings.for_listener(SaslSettings, "SASL"), None, lambda: NOW_MS)


_MAKERS: tuple[Callable[[], Exchange], ...] = (
    lambda: ScramExchange(MECHANISMS["SCRAM-SHA-256"], _users(), NONCE),
    lambda: ScramExchange(MECHANISMS["SCRAM-SHA-512"], _users(), NONCE),
    lambda: PlainExchange(PlainUsers({USER: PASSWORD}, None)),
    lambda: OauthExchange(_rules(is_unsecured=True)),
    lambda: OauthExchange(_rules(is_unsecured=False)),
)
_UNSECURED, _WITHOUT_KEYS = 3, 4


def log_in(data: bytes) -> None:
    """Byte 0 chooses the mechanism; the messages follow, divided by bytes 255, which no message contains."""
    if not data:
        return
    kind = data[0] % (len(_MAKERS) + 1)
    if kind == len(_MAKERS):
        _read_keys(data[1:])
        return
    exchange = _MAKERS[kind]()
    for token in data[1:].split(b"\xff")[:5]:
        try:
            step = exchange.respond(token)
        except AuthenticationFailed:
            continue  # later messages must fail too
        if step.user is not None:
            assert step.user.encode(), "a user without a name, or with half a character"
            assert kind != _WITHOUT_KEYS, "a login with a token that no key has signed"
            assert kind == _UNSECURED or (step.user == USER and (kind != 2 or PASSWORD.encode() in data))
            if kind < 2:
                assert _decoded(token) in _PROVED, f"a login without a proof: {token!r}"


def _read_keys(data: bytes) -> None:
    try:
        usable_keys(data)
    except (UnreadableKeys, ValueError):
        return


def _final(first_bare: bytes, nonce: str) -> bytes:
    """The right final message of alice's login."""
    salt = base64.b64encode(SALT).decode()
    unproven = f"c=biws,r={nonce}{NONCE}"
    signed = f"{first_bare.decode()},r={nonce}{NONCE},s={salt},i=4096,{unproven}".encode()
    client_key = SCRAM_SHA_256.sign(_salted("SCRAM-SHA-256"), b"Client Key")
    signature = SCRAM_SHA_256.sign(SCRAM_SHA_256.digest(client_key), signed)
    proof = bytes(one ^ other for one, other in zip(client_key, signature, strict=True))
    return f"{unproven},p={base64.b64encode(proof).decode()}".encode()


def _decoded(final: bytes) -> tuple[bytes, bytes]:
    """A final message, with the bytes of its proof: base64 can write the same bytes in several ways, for Java too."""
    unproven, _, proof = final.partition(b",p=")
    return unproven, base64.b64decode(proof)


_BARE = b"n=alice,r=client"
_FINAL = _final(_BARE, "client")
_PROVED = {_decoded(_FINAL)}


def _token(header: object, claims: object, signature: str = "") -> bytes:
    def part(value: object) -> str:
        text = value if isinstance(value, str) else json.dumps(value)
        return base64.urlsafe_b64encode(text.encode()).rstrip(b"=").decode()

    return f"n,,\x01auth=Bearer {part(header)}.{part(claims)}.{signature}\x01\x01".encode()


def _seeds() -> Iterator[bytes]:
    final = _FINAL
    for kind in (0, 1):
        yield bytes([kind]) + b"n,," + _BARE + b"\xff" + final
        yield bytes([kind]) + b"n,a=alice," + _BARE + b"\xff" + final + b"\xff" + final
        yield bytes([kind]) + b"y,,n=alice,r=client\xff" + final
        yield bytes([kind]) + b"n,,n=al=2Cice,r=client,ext=1\xffc=biws,r=clientserver0nonce,p=AAAA"
        yield bytes([kind]) + final
    yield b"\x02\0alice\0" + PASSWORD.encode()
    yield b"\x02bob\0alice\0" + PASSWORD.encode()
    yield b"\x02\0alice\0wrong\xff\0alice\0" + PASSWORD.encode()
    claims = {"sub": "alice", "exp": NOW_MS // 1000 + 60, "iat": NOW_MS // 1000}
    for kind in (3, 4):
        yield bytes([kind]) + _token({"alg": "none"}, claims)
        yield bytes([kind]) + _token({"alg": "none"}, claims) + b"\xff\x01"
        yield bytes([kind]) + _token({"alg": "RS256", "kid": "../../etc/passwd"}, claims, "AAAA")
        yield bytes([kind]) + _token({"alg": "HS256"}, claims, "AAAA")
        yield bytes([kind]) + _token({"alg": "none"}, claims | {"exp": "tomorrow"})
        yield bytes([kind]) + _token({"alg": "none"}, claims | {"exp": 10**400})
        yield bytes([kind]) + _token({"alg": "none"}, claims | {"nbf": -(10**400)})
        yield bytes([kind]) + _token({"alg": "none"}, claims | {"sub": "\ud800"})
        yield bytes([kind]) + _token({"alg": "none"}, "[" * 1500)
        yield bytes([kind]) + _token({"alg": ["none"]}, claims)
    yield b'\x05{"keys":[{"kty":"EC","crv":"P-256","x":"AA","y":"AA","kid":"a"}]}'
    yield b'\x05{"keys":[{"kty":"RSA","n":"AQAB","e":"AQAB","use":"sig"}]}'
    yield b"\x05" + b"[" * 2_000


TARGETS = (Target("sasl", log_in, _seeds, lines=(20_000, 200)),)
