"""SaslHandshake and SaslAuthenticate: the login of a client (KIP-43, KIP-152, KIP-368).

The session of the connection decides (`kbroker.security.sasl.session`). A connection of a listener without SASL has
none, and gets ILLEGAL_SASL_STATE, as in Kafka.
"""

from __future__ import annotations

from kbroker.handlers import Context, handles
from kbroker.security.sasl import AuthenticationFailed
from kbroker.security.sasl.session import State
from wire.errors import ErrorCode
from wire.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from wire.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse


@handles(SaslHandshakeRequest, versions="0-1", is_exempt=True)
async def sasl_handshake(request: SaslHandshakeRequest, broker: object, context: Context) -> SaslHandshakeResponse:
    """Choose a mechanism. Errors: UNSUPPORTED_SASL_MECHANISM, ILLEGAL_SASL_STATE."""
    session = context.sasl
    if session is None:
        return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE, mechanisms=[])
    code = session.handshake(request.mechanism, context.api_version)
    return SaslHandshakeResponse(error_code=code, mechanisms=list(session.server.mechanisms))


@handles(SaslAuthenticateRequest, versions="0-2", is_exempt=True)
async def sasl_authenticate(
    request: SaslAuthenticateRequest, broker: object, context: Context
) -> SaslAuthenticateResponse:
    """Answer a token. Errors: SASL_AUTHENTICATION_FAILED, ILLEGAL_SASL_STATE."""
    session = context.sasl
    if session is None or session.state is not State.TOKENS:
        text = "SaslAuthenticate request received after successful authentication"
        return SaslAuthenticateResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE, error_message=text, auth_bytes=b"")
    try:
        step, session_ms = await session.authenticate(bytes(request.auth_bytes))
    except AuthenticationFailed:
        return SaslAuthenticateResponse(
            error_code=ErrorCode.SASL_AUTHENTICATION_FAILED, error_message=session.failure_text, auth_bytes=b""
        )
    return SaslAuthenticateResponse(error_message="", auth_bytes=step.token, session_lifetime_ms=session_ms)
