"""SaslAuthenticate: one step of a SASL exchange."""

from wire.schema import field, message
from wire.types import bytes_, int16, int64, string


@message(api_key=36, versions="0-2", flexible="2+")
class SaslAuthenticateRequest:
    auth_bytes: bytes_


@message(api_key=36, versions="0-2", flexible="2+")
class SaslAuthenticateResponse:
    error_code: int16 = 0
    error_message: string | None
    auth_bytes: bytes_
    session_lifetime_ms: int64 = field(versions="1+", default=0, ignorable=True)
