"""The client's side of one connection: requests in, responses out; no socket here.

A shell sends what `request` returns and feeds what it receives; `next_response` returns each response as soon as it is
whole. A server answers the requests of a connection in order, so the oldest request without a response says how the
next frame is decoded, and a response with another correlation id is an error.

    protocol = ClientProtocol(client_id="tool")
    send(protocol.request(ApiVersionsRequest(), version=0))
    while (answer := protocol.next_response()) is None:
        if (room := protocol.room()) is not None:      # a large response has begun: receive into its own memory
            protocol.filled(receive_into(room))
        else:
            protocol.feed(receive(RECEIVE_BYTES))
    protocol.learn_versions(answer)
    send(protocol.request(MetadataRequest(topics=None)))     # in the newest version that both sides know

Source: Kafka's protocol guide; KIP-35 for the negotiation of versions.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Final

from wire.errors import Malformed
from wire.framing import FrameBuffer, decode_response, encode_request_frame
from wire.schema import Versions, response_class, schema_of
from wire.types import Opaque

if TYPE_CHECKING:
    from wire.messages.api_versions import ApiVersionsResponse

MAX_RESPONSE_BYTES: Final = 100 << 20


class UnsupportedApi(Exception):
    """Client and server have no version of an API in common."""


class ClientProtocol:
    """The requests of one connection that have no response yet, and the bytes received for them.

    Bound   one partial response of at most max_response_bytes; the caller bounds the requests that it sends ahead
    Errors  Malformed from next_response(): the connection is of no use afterwards
    """

    def __init__(self, *, client_id: str, max_response_bytes: int = MAX_RESPONSE_BYTES) -> None:
        self.client_id = client_id
        self._frames = FrameBuffer(max_response_bytes)
        self._correlation_id = 0
        self._unanswered: deque[tuple[int, type[Any], int]] = deque()
        self.served: dict[int, Versions] | None = None
        """The versions that the server serves by api key; None: not known yet, every version is taken for served."""
        self.room = self._frames.room
        """Where to receive the next bytes of a large response; None: receive anything, and `feed` it."""
        self.feed = self._frames.feed
        self.filled = self._frames.filled

    @property
    def unanswered(self) -> int:
        """Number of requests sent that have no response yet."""
        return len(self._unanswered)

    def learn_versions(self, answer: ApiVersionsResponse) -> None:
        """Take the versions that the server says it serves."""
        self.served = {each.api_key: Versions(each.min_version, each.max_version) for each in answer.api_keys}

    def newest_version(self, request_class: type) -> int | None:
        """The newest version of an API that both sides know; None if there is none.

        Until `learn_versions`, the newest one that this package knows.
        """
        schema = schema_of(request_class)
        assert schema.api_key is not None
        if self.served is None:
            return schema.versions.highest
        served = self.served.get(schema.api_key)
        if served is None:
            return None
        newest = min(served.highest, schema.versions.highest)
        return newest if newest >= max(served.lowest, schema.versions.lowest) else None

    def request(self, message: object, *, version: int | None = None, is_answered: bool = True) -> list[bytes | Opaque]:
        """The parts of a request's frame, to be sent in order; in the newest common version unless one is given.

        `is_answered` is False for the one request that has no response, Produce with acks=0.
        Errors  UnsupportedApi
        """
        if version is None and (version := self.newest_version(type(message))) is None:
            raise UnsupportedApi(f"the broker serves no version of {type(message).__name__} that is known here")
        api_key = schema_of(type(message)).api_key
        assert api_key is not None
        self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        parts = encode_request_frame(message, version, correlation_id=self._correlation_id, client_id=self.client_id)
        if is_answered:
            answered_by = response_class(api_key)
            assert answered_by is not None, f"{type(message).__name__} has no response class"
            self._unanswered.append((self._correlation_id, answered_by, version))
        return parts

    def next_response(self) -> Any | None:
        """The response to the oldest request without one, or None if more bytes are needed. Errors: Malformed."""
        frame = self._frames.next_frame()
        if frame is None:
            return None
        if not self._unanswered:
            raise Malformed("a response that no request has asked for")
        expected, answered_by, version = self._unanswered.popleft()
        correlation_id, response = decode_response(answered_by, version, frame)
        if correlation_id != expected:
            raise Malformed(f"a response to request {correlation_id}, where {expected} comes next")
        return response
