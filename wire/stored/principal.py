"""The principal inside an Envelope, after its version (int16); see `wire.stored.frame.encode_value`."""

from wire.schema import stored
from wire.types import boolean, string


@stored(versions="0", flexible="0+")
class DefaultPrincipalData:
    type: string
    name: string
    token_authenticated: boolean
