"""Lets a connection of a listener with SASL send requests only after a login, and until its session expires.

Before that it admits ApiVersions, SaslHandshake and SaslAuthenticate, in this order, and tokens without a header after
version 0 of SaslHandshake. Any other request closes the connection; in place of a token it gets ILLEGAL_SASL_STATE
first, as in Kafka.
"""

from __future__ import annotations

import struct
from collections.abc import Awaitable
from typing import Final

import trio

from kbroker.handlers import CloseConnection, Context
from kbroker.runtime.net_ports import Part
from kbroker.security.sasl import AuthenticationFailed
from kbroker.security.sasl.session import SaslSession, State
from kbroker.server.dispatch import Dispatcher, Unfinished
from wire.errors import ErrorCode

_API_VERSIONS: Final = 18
_HANDSHAKE: Final = 17
_AUTHENTICATE: Final = 36
_MAX_QUESTIONS: Final = 5
"""The most requests for versions. A client asks twice if it knows newer versions than this broker."""
_LENGTH: Final = struct.Struct(">i")
_HEAD: Final = struct.Struct(">hh")

Begun = list[Part] | Unfinished | None


class Login:
    """The gate in front of the dispatcher of one connection."""

    def __init__(self, dispatcher: Dispatcher, session: SaslSession, context: Context) -> None:
        self.session = session
        self._dispatcher = dispatcher
        self._questions = 0
        self._has_versions = False
        context.sasl = session

    def begin(self, frame: memoryview, context: Context) -> Awaitable[Begun]:
        """As `Dispatcher.begin`, for a client that has logged in or does so."""
        session = self.session
        is_handshake = len(frame) > 1 and frame[0] == 0 and frame[1] == _HANDSHAKE
        if session.state is State.COMPLETE and not is_handshake:
            if session.is_expired:
                raise CloseConnection("the session has expired and the client has not logged in again")
            return self._dispatcher.begin(frame, context)
        if session.state is State.FAILED:
            raise CloseConnection("a request after a failed login")
        return self.step(frame, context)

    async def step(self, frame: memoryview, context: Context) -> Begun:
        """The same for a request of a login, which must not have failed."""
        session = self.session
        state = session.state
        if state is State.TOKENS and session.takes_raw_tokens:
            answer: Begun = await self._take_raw_token(frame)
        else:
            api_key, version = _HEAD.unpack_from(frame) if len(frame) >= _HEAD.size else (-1, -1)
            if state is State.TOKENS and api_key != _AUTHENTICATE:
                answer = self._dispatcher.refuse(frame, ErrorCode.ILLEGAL_SASL_STATE)
                session.fail(ErrorCode.ILLEGAL_SASL_STATE)
            elif state is State.HANDSHAKE and not self._is_expected(api_key, version):
                raise CloseConnection(f"a request with api key {api_key} before the login")
            else:
                answer = await self._dispatcher.begin(frame, context)
        state = session.state
        if state is State.COMPLETE:
            context.principal = session.principal
        elif state is State.FAILED:
            if session.delay_ms:
                with trio.CancelScope() as scope, context.waiting(scope):
                    await session.server.env.sleep_ms(session.delay_ms)
            if answer is None:
                raise CloseConnection("the login failed")
            context.stopping = True  # the connection sends the answer, and closes
        return answer

    def _is_expected(self, api_key: int, version: int) -> bool:
        if api_key == _HANDSHAKE:
            return True
        if api_key != _API_VERSIONS or self._has_versions:
            return False
        # If this version is not served, the client asks again with a version that the answer names.
        self._has_versions = version in self._dispatcher.handlers[_API_VERSIONS].versions
        self._questions += 1
        return self._questions <= _MAX_QUESTIONS

    async def _take_raw_token(self, frame: memoryview) -> Begun:
        try:
            step, _ = await self.session.authenticate(bytes(frame))
        except AuthenticationFailed:
            return None
        return [_LENGTH.pack(len(step.token)) + step.token]
