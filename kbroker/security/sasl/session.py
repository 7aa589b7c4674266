"""The SASL session of one connection: handshake, exchange, and re-authentication (KIP-43, KIP-152, KIP-368).

    HANDSHAKE   the client may ask for versions, and then chooses a mechanism
    TOKENS      tokens of the mechanism; in SaslAuthenticate, or as they are after version 0 of SaslHandshake
    COMPLETE    requests; if the session has an end, a SaslHandshake starts a re-authentication
    FAILED      nothing more: the connection closes after its last answer

A re-authentication keeps mechanism and principal. An expired session may still re-authenticate; any other request
closes its connection.

Source  SaslServerAuthenticator and KafkaChannel of Apache Kafka 4.3.1
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from kbroker.metadata.principal import ANONYMOUS, Principal
from kbroker.security.sasl import AuthenticationFailed, Exchange, Step
from kbroker.security.sasl.server import SaslServer
from wire.errors import ErrorCode

MIN_REAUTHENTICATION_MS: Final = 1_000
_FAILURE_TEXTS: Final = {
    "PLAIN": "Authentication failed: Invalid username or password",
    "OAUTHBEARER": '{"status":"invalid_token"}',
}
"""Apache Kafka's texts for clients that log in with wrong credentials."""


class State(Enum):
    """The next input that the session expects."""

    HANDSHAKE = 0
    TOKENS = 1
    COMPLETE = 2
    FAILED = 3


class SaslSession:
    """See the module docstring. One task uses it.

    Shape  principal is the user of the last complete login; takes_raw_tokens after version 0 of SaslHandshake;
           delay_ms is how long the answer to a failure waits
    """

    def __init__(self, server: SaslServer, host: str) -> None:
        self.server = server
        self.state = State.HANDSHAKE
        self.principal = ANONYMOUS
        self.takes_raw_tokens = False
        self.delay_ms = 0
        self._host = host
        self._mechanism = ""
        self._authenticated_by = ""
        self._exchange: Exchange | None = None
        self._refusal: AuthenticationFailed | None = None
        self._began_ms: int | None = None
        self._expires_ms: int | None = None

    @property
    def is_over(self) -> bool:
        """Whether the client has logged in, or the connection has to be closed."""
        return self.state is State.COMPLETE or self.state is State.FAILED

    @property
    def is_expired(self) -> bool:
        """Whether the client should have logged in again."""
        return self._expires_ms is not None and self.server.env.now_ms() > self._expires_ms

    @property
    def failure_text(self) -> str:
        """The text that the client gets: one for each mechanism, the same for every reason."""
        if not self._authenticated_by and self._mechanism in _FAILURE_TEXTS:
            return _FAILURE_TEXTS[self._mechanism]
        what = "re-authentication" if self._authenticated_by else "authentication"
        return f"Authentication failed during {what} due to invalid credentials with SASL mechanism {self._mechanism}"

    def handshake(self, mechanism: str, version: int) -> ErrorCode:
        """The client chooses a mechanism."""
        if self.state is State.COMPLETE:
            if self._expires_ms is None:
                return ErrorCode.ILLEGAL_SASL_STATE
            now_ms = self.server.env.now_ms()
            if self._began_ms is not None and now_ms - self._began_ms < MIN_REAUTHENTICATION_MS:
                return ErrorCode.ILLEGAL_SASL_STATE
            self._began_ms = now_ms
        elif self.state is not State.HANDSHAKE:
            return self.fail(ErrorCode.ILLEGAL_SASL_STATE)
        if mechanism not in self.server.mechanisms:
            return self.fail(ErrorCode.UNSUPPORTED_SASL_MECHANISM)
        self._mechanism = mechanism
        has_changed = self._authenticated_by not in ("", mechanism)
        self._exchange = None if has_changed else self.server.begin(mechanism)
        self.takes_raw_tokens = version == 0
        self.state = State.TOKENS
        return ErrorCode.NONE

    async def authenticate(self, token: bytes) -> tuple[Step, int]:
        """Take a token; return the answer, and how long the session may last in milliseconds, 0 for ever.

        Errors  AuthenticationFailed; the session has failed then
        """
        assert self.state is State.TOKENS
        self.state = State.FAILED  # unless the token is accepted
        if self._refusal is not None:
            raise self._refusal
        try:
            if self._exchange is None:
                raise AuthenticationFailed(f"re-authentication by {self._mechanism} after {self._authenticated_by}")
            step = await self.server.respond(self._exchange, token, self._host)
            if step.user is None:
                self.state = State.TOKENS
                if step.refusal is not None:
                    # Noted at once: the client may close instead of taking the failure.
                    self._refusal = step.refusal
                    self.delay_ms = self.server.on_failure(self._mechanism, self._host, step.refusal)
                return step, 0
            principal = Principal("User", step.user)
            if self._authenticated_by and principal != self.principal:
                raise AuthenticationFailed(f"re-authentication of {self.principal} as {principal}")
        except AuthenticationFailed as error:
            self.delay_ms = self.server.on_failure(self._mechanism, self._host, error)
            raise
        self.principal, self._authenticated_by, self._exchange = principal, self._mechanism, None
        session_ms = self.server.session_ms(self._mechanism, step.expires_ms)
        self._expires_ms = None if session_ms is None else self.server.env.now_ms() + session_ms
        self.state = State.COMPLETE
        return step, session_ms or 0

    def fail(self, code: ErrorCode) -> ErrorCode:
        """End the session because of something other than wrong credentials; returns the code."""
        self.state = State.FAILED
        self._exchange = None
        return code
