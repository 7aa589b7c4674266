"""PLAIN: user and password in one message. Use it only over TLS, because the network sees the password.

Passwords come from `user_NAME="password"` in the listener's sasl.jaas.config, as in Kafka. With
kbroker.sasl.plain.scram.credentials=true the SCRAM credentials of the metadata log count too, so that passwords need
no file; a check then hashes the password as a SCRAM client does, and equally often for every user.

Source  RFC 4616; PlainSaslServer of Apache Kafka 4.3.1; CVE-2021-38153
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping

from kbroker.security.sasl import MAX_TOKEN_BYTES, AuthenticationFailed, Step
from kbroker.security.sasl.scram import ScramUsers


class PlainUsers:
    """The users of a listener.

    Shape  passwords by user; scram None if SCRAM credentials do not count
    """

    def __init__(self, passwords: Mapping[str, str], scram: ScramUsers | None) -> None:
        self.is_slow = scram is not None
        self._passwords = {user: _digest(password) for user, password in passwords.items()}
        self._scram = scram

    def is_right(self, user: str, password: str) -> bool:
        """Whether a password is that of a user. The time depends neither on the user nor on the password."""
        expected = self._passwords.get(user)
        is_listed = hmac.compare_digest(expected or _NO_PASSWORD, _digest(password)) and expected is not None
        is_stored = self._scram is not None and self._scram.is_password(user, password)
        return is_listed or is_stored


class PlainExchange:
    """One login: one message of the client."""

    def __init__(self, users: PlainUsers) -> None:
        self.is_slow = users.is_slow
        self._users: PlainUsers | None = users

    def respond(self, token: bytes) -> Step:
        """Check the client's only message: who it acts as, user and password. Errors: AuthenticationFailed."""
        users, self._users = self._users, None
        if users is None:
            raise AuthenticationFailed("a message after the end of the exchange")
        if len(token) > MAX_TOKEN_BYTES:
            raise AuthenticationFailed(f"a message of {len(token)} bytes")
        try:
            parts = token.decode().split("\0")
        except UnicodeDecodeError as error:
            raise AuthenticationFailed("a message that is not UTF-8") from error
        if len(parts) != 3:
            raise AuthenticationFailed(f"a message of {len(parts)} parts instead of 3")
        acts_as, user, password = parts
        if not user or not password:
            raise AuthenticationFailed("no user or no password")
        if not users.is_right(user, password):
            raise AuthenticationFailed("an unknown user or a wrong password")
        if acts_as not in ("", user):
            raise AuthenticationFailed("the client asks to act as another user")
        return Step(b"", user)


def _digest(password: str) -> bytes:
    return hashlib.sha256(password.encode()).digest()


_NO_PASSWORD = _digest("")
