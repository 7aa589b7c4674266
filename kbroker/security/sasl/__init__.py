"""SASL mechanisms of a server, as state machines without I/O.

An `Exchange` is one login: it takes the client's tokens in order, and gives the answers. Nothing here knows Kafka's
requests; `authenticator.py` carries the tokens over a connection.

A failed exchange says why only to the broker's log. The client gets the same text whatever the reason, so that it
cannot find out which users exist.
"""

from __future__ import annotations

from typing import Final, NamedTuple, Protocol

MAX_TOKEN_BYTES: Final = 16 * 1024
"""The longest token of PLAIN and SCRAM."""


class AuthenticationFailed(Exception):
    """The exchange has failed. The message is for the broker's log."""


class Step(NamedTuple):
    """The answer to one token.

    Shape  user is the authenticated user, None as long as the exchange goes on; refusal says why the login fails after
           the client's next token, whatever that is
    Units  expires_ms is the wall time at which the credentials expire, None if they do not
    """

    token: bytes
    user: str | None = None
    expires_ms: int | None = None
    refusal: AuthenticationFailed | None = None


class Exchange(Protocol):
    """One login with one mechanism.

    is_slow  `respond` hashes a password or checks a signature: call it in a thread
    """

    is_slow: bool

    def respond(self, token: bytes) -> Step:
        """Take the client's next token. Errors: AuthenticationFailed; the exchange is then of no use."""
        ...
