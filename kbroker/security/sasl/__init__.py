"""SASL mechanisms of a server, as state machines without I/O.

An `Exchange` is one login: it takes the client's tokens in order, and gives the answers. `session.py` takes
the tokens from Kafka's requests.

Only the broker's log has the reason of a failure. The client gets the same text for every reason, so that it cannot
find out which users exist.
"""

from __future__ import annotations

from typing import Final, NamedTuple, Protocol

MAX_TOKEN_BYTES: Final = 16 * 1024
"""The longest token of PLAIN and SCRAM."""


class AuthenticationFailed(Exception):
    """The exchange has failed. The message is for the broker's log."""


class UnknownKey(AuthenticationFailed):
    """A token is signed with a key that is not known here, or not yet."""


class Step(NamedTuple):
    """The answer to one token.

    Shape  user is the authenticated user, None as long as the exchange goes on; with a refusal, the login fails
           for this reason after the client's next token
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
        """Take the client's next token. Errors: AuthenticationFailed; the exchange is over then."""
        ...
