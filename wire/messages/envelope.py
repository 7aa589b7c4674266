"""Envelope: a broker forwards a client's request to the active controller (KIP-590).

request_data is the client's request with its header, request_principal a DefaultPrincipalData with its version before
it (wire/stored/principal.py), client_host_address the 4 or 16 bytes of an IP address. response_data is the response
with its header.
"""

from wire.schema import message
from wire.types import bytes_, int16


@message(api_key=58, versions="0", flexible="0+")
class EnvelopeRequest:
    request_data: bytes_
    request_principal: bytes_ | None
    client_host_address: bytes_


@message(api_key=58, versions="0", flexible="0+")
class EnvelopeResponse:
    response_data: bytes_ | None = None
    error_code: int16 = 0
