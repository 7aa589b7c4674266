"""SaslHandshake: choose a mechanism. Raw tokens follow after v0, SaslAuthenticate requests after v1. Never flexible."""

from wire.schema import message
from wire.types import int16, string


@message(api_key=17, versions="0-1", flexible="none")
class SaslHandshakeRequest:
    mechanism: string


@message(api_key=17, versions="0-1", flexible="none")
class SaslHandshakeResponse:
    error_code: int16 = 0
    mechanisms: list[string]
