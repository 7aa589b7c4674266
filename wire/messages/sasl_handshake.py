"""SaslHandshake: choose a mechanism. After v0 raw tokens follow, after v1 SaslAuthenticate requests. Never flexible."""

from wire.schema import message
from wire.types import int16, string


@message(api_key=17, versions="0-1", flexible="none")
class SaslHandshakeRequest:
    mechanism: string


@message(api_key=17, versions="0-1", flexible="none")
class SaslHandshakeResponse:
    error_code: int16 = 0
    mechanisms: list[string]
