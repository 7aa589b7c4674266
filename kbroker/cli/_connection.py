"""One blocking connection to a broker in typed messages, for what must start faster than a client can be imported."""

from __future__ import annotations

import socket
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, TypeVar

from kbroker.cli import CommandFailed
from kbroker.cli._admin import parse_server
from wire.errors import Malformed
from wire.framing import decode_response, encode_request_frame
from wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from wire.schema import schema_of

if TYPE_CHECKING:
    import ssl

Response = TypeVar("Response")

MAX_RESPONSE_BYTES: Final = 100 << 20
# Every broker answers version 0, also one that knows none of our newer ones.
_ASKED_FIRST: Final = 0


class Connection:
    """A context manager; raises OSError and Malformed. `settings` are a client's, see `_admin.client_settings`."""

    def __init__(self, server: str, settings: dict[str, Any]) -> None:
        host, port = parse_server(server)
        self._socket = socket.create_connection((host, port))
        self._correlation_id = 0
        self._ranges: dict[int, tuple[int, int]] = {}
        try:
            if settings.get("security_protocol", "PLAINTEXT") == "SSL":
                self._socket = _tls_context(settings).wrap_socket(self._socket, server_hostname=host)
            answer = self.ask(ApiVersionsRequest(), ApiVersionsResponse, _ASKED_FIRST)
        except BaseException:
            self._socket.close()
            raise
        if answer.error_code:
            self._socket.close()
            raise CommandFailed(f"{server} answers ApiVersions with error {answer.error_code}")
        self._ranges = {each.api_key: (each.min_version, each.max_version) for each in answer.api_keys}

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        with suppress(OSError):
            self._socket.close()

    def version_of(self, request_class: type) -> int | None:
        """The newest version of an API that both sides know; None if there is none."""
        schema = schema_of(request_class)
        assert schema.api_key is not None
        lowest, highest = self._ranges.get(schema.api_key, (0, -1))
        newest = min(highest, schema.versions.highest)
        return newest if newest >= max(lowest, schema.versions.lowest) else None

    def ask(self, request: Any, response_class: type[Response], version: int) -> Response:
        """Send a request and wait for its reply."""
        self._correlation_id += 1
        frame = encode_request_frame(request, version, correlation_id=self._correlation_id, client_id="kbroker")
        self._socket.sendall(b"".join(part for part in frame if isinstance(part, bytes)))
        size = int.from_bytes(self._exactly(4), "big", signed=True)
        if not 0 < size <= MAX_RESPONSE_BYTES:
            raise Malformed(f"what answers there does not speak Kafka's protocol (a reply of {size} bytes)")
        correlation_id, response = decode_response(response_class, version, self._exactly(size))
        if correlation_id != self._correlation_id:
            raise Malformed(f"a reply to request {correlation_id}, where {self._correlation_id} was asked")
        return response

    def _exactly(self, size: int) -> bytearray:
        data = bytearray()
        while len(data) < size:
            more = self._socket.recv(min(size - len(data), 1 << 20))
            if not more:
                raise ConnectionError("the connection was closed")
            data += more
        return data


def _tls_context(settings: dict[str, Any]) -> ssl.SSLContext:
    import ssl  # noqa: PLC0415  (most brokers are asked in plain text)

    context = ssl.create_default_context(cafile=settings.get("ssl_cafile"))
    if not settings.get("ssl_check_hostname", True):
        context.check_hostname = False
    if "ssl_certfile" in settings:
        context.load_cert_chain(settings["ssl_certfile"], settings.get("ssl_keyfile"), settings.get("ssl_password"))
    return context
