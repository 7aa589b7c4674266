"""The client's side of SASL mechanisms."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kbroker.client.security import exchange
from wire.errors import KafkaError

# The example of RFC 7677.
NONCE = "rOprNGfwEbeRWgbNEkqO"
USER: dict[str, Any] = {"sasl_plain_username": "user", "sasl_plain_password": "pencil"}
CHALLENGE = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
PROOF = b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
SIGNATURE = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def test_scram_proves_the_password_as_in_the_rfc() -> None:
    tokens = exchange("SCRAM-SHA-256", USER, host="h", nonce=NONCE)
    assert next(tokens) == b"n,,n=user,r=" + NONCE.encode()
    assert tokens.send(CHALLENGE) == PROOF
    with pytest.raises(StopIteration):
        tokens.send(SIGNATURE)


@pytest.mark.parametrize(
    ("challenge", "signature", "reason"),
    [
        (CHALLENGE, b"v=AAAA", "its SCRAM signature is wrong"),
        (CHALLENGE, b"e=other-error", "its SCRAM signature is wrong"),
        (CHALLENGE.replace(b"r=rOpr", b"r=xxxx"), SIGNATURE, "challenge is invalid"),
        (CHALLENGE.replace(b"4096", b"99999999"), SIGNATURE, "challenge is invalid"),
        (CHALLENGE.replace(b"4096", b"4095"), SIGNATURE, "challenge is invalid"),
        (b"nonsense", SIGNATURE, "challenge cannot be read"),
    ],
)
def test_scram_refuses_a_broker_without_the_password(challenge: bytes, signature: bytes, reason: str) -> None:
    tokens = exchange("SCRAM-SHA-256", USER, host="h", nonce=NONCE)
    next(tokens)
    with pytest.raises(KafkaError, match=reason):
        list(map(tokens.send, (challenge, signature)))


def test_plain_sends_user_and_password_at_once() -> None:
    assert list(exchange("PLAIN", USER, host="h", nonce=NONCE)) == [b"\0user\0pencil"]


def test_a_mechanism_requires_its_credentials() -> None:
    with pytest.raises(KafkaError, match="requires a username"):
        exchange("PLAIN", {}, host="h", nonce=NONCE)


def test_oauthbearer_sends_the_token_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("a.b.c\n")
    settings = {"sasl_oauthbearer_token_file": str(path)}
    tokens = exchange("OAUTHBEARER", settings, host="h", nonce=NONCE)
    assert next(tokens) == b"n,,\x01auth=Bearer a.b.c\x01\x01"
    assert tokens.send(b'{"status":"invalid_token"}') == b"\x01"
    tokens = exchange("OAUTHBEARER", settings, host="h", nonce=NONCE)
    next(tokens)
    with pytest.raises(StopIteration):
        tokens.send(b"")
    path.unlink()
    with pytest.raises(KafkaError, match="cannot be read"):
        next(exchange("OAUTHBEARER", settings, host="h", nonce=NONCE))
