"""The client's side of a connection: negotiated versions, and responses matched with their requests."""

from __future__ import annotations

from itertools import pairwise

import pytest

from wire.client import ClientProtocol, UnsupportedApi
from wire.errors import Malformed
from wire.framing import decode_request_header, encode_response_frame
from wire.messages.api_versions import ApiVersion, ApiVersionsResponse
from wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from wire.messages.produce import ProduceRequest

REQUEST = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
HEARTBEAT, PRODUCE = 12, 0


def knowing(api_key: int, lowest: int, highest: int) -> ClientProtocol:
    """A client whose server serves one API."""
    protocol = ClientProtocol(client_id="c")
    versions = [ApiVersion(api_key=api_key, min_version=lowest, max_version=highest)]
    protocol.learn_versions(ApiVersionsResponse(error_code=0, api_keys=versions))
    return protocol


def sent(protocol: ClientProtocol, request: object = REQUEST, *, is_answered: bool = True) -> tuple[int, int]:
    """Send a request; the version and the correlation id of its frame."""
    frame = b"".join(protocol.request(request, is_answered=is_answered))[4:]
    header, _ = decode_request_header(frame)
    return header.api_version, header.correlation_id


def response(correlation_id: int, error_code: int, version: int) -> bytes:
    return b"".join(encode_response_frame(correlation_id, HeartbeatResponse(error_code=error_code), version))


@pytest.mark.parametrize(("lowest", "highest", "version"), [(0, 2, 2), (1, 99, 4), (4, 4, 4)])
def test_a_request_has_the_newest_common_version(lowest: int, highest: int, version: int) -> None:
    assert sent(knowing(HEARTBEAT, lowest, highest))[0] == version


@pytest.mark.parametrize(("api_key", "lowest", "highest"), [(HEARTBEAT, 90, 99), (PRODUCE, 3, 9)])
def test_without_a_common_version_nothing_is_sent(api_key: int, lowest: int, highest: int) -> None:
    protocol = knowing(api_key, lowest, highest)
    with pytest.raises(UnsupportedApi, match="HeartbeatRequest"):
        protocol.request(REQUEST)
    assert protocol.unanswered == 0


def test_responses_are_decoded_in_the_order_of_their_requests() -> None:
    protocol = knowing(HEARTBEAT, 0, 4)
    ids = [sent(protocol)[1] for _ in range(3)]
    assert all(one != other for one, other in pairwise(ids))
    data = b"".join(response(number, code, 4) for code, number in enumerate(ids))
    for byte in data[:-1]:
        protocol.feed(bytes([byte]))
    codes = [answer.error_code for answer in iter(protocol.next_response, None)]
    protocol.feed(data[-1:])
    codes += [answer.error_code for answer in iter(protocol.next_response, None)]
    assert (codes, protocol.unanswered) == ([0, 1, 2], 0)


def test_a_response_out_of_order_is_malformed() -> None:
    protocol = knowing(HEARTBEAT, 0, 4)
    sent(protocol)
    _, second = sent(protocol)
    protocol.feed(response(second, 0, 4))
    with pytest.raises(Malformed, match="comes next"):
        protocol.next_response()


def test_a_response_without_a_request_is_malformed() -> None:
    protocol = knowing(HEARTBEAT, 0, 4)
    protocol.feed(response(1, 0, 4))
    with pytest.raises(Malformed, match="no request"):
        protocol.next_response()


def test_a_request_without_a_response_expects_none() -> None:
    protocol = knowing(PRODUCE, 3, 9)
    sent(protocol, ProduceRequest(acks=0, timeout_ms=1, topic_data=[]), is_answered=False)
    assert protocol.unanswered == 0


def test_a_response_above_the_bound_is_malformed() -> None:
    protocol = ClientProtocol(client_id="c", max_response_bytes=10)
    protocol.feed((11).to_bytes(4, "big"))
    with pytest.raises(Malformed):
        protocol.next_response()
