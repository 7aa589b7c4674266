"""Frames are cut as they arrive, headers follow the versions, and an announced length alone allocates nothing."""

from __future__ import annotations

import struct
import tracemalloc
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wire.codec import decode, encode
from wire.errors import ErrorCode, Malformed
from wire.framing import (
    MAX_ROOM_BYTES,
    RECEIVE_BYTES,
    BufferPool,
    FrameBuffer,
    RequestHeader,
    decode_request_header,
    decode_response,
    encode_request_frame,
    encode_response_frame,
)
from wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from wire.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from wire.types import ZERO_UUID

MEGABYTE = 1 << 20


def framed(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def receive(buffer: FrameBuffer, stream: bytes, sizes: list[int]) -> list[bytes]:
    """The frames of a stream that is fed like in a server, in receives of the given sizes, the last one repeated."""
    frames: list[bytes] = []
    position = 0
    sizes = sizes or [1]
    while True:
        while (frame := buffer.next_frame()) is not None:
            frames.append(bytes(frame))
        if position == len(stream):
            return frames
        size = sizes.pop(0) if len(sizes) > 1 else sizes[0]
        room = buffer.room()
        if room is None:
            data = stream[position : position + min(size, RECEIVE_BYTES)]
            buffer.feed(data)
            position += len(data)
        else:
            assert len(room) > 0
            data = stream[position : position + min(size, len(room))]
            room[: len(data)] = data
            buffer.filled(len(data))
            position += len(data)


@settings(deadline=None, max_examples=150)
@given(
    bodies=st.lists(st.sampled_from([1, 2, 100, 5_000, 33_000, 70_000, 300_000]), max_size=5),
    sizes=st.lists(st.sampled_from([1, 3, 4, 5, 1_000, 40_000, 65_536, 200_000]), min_size=1, max_size=12),
)
def test_frames_are_complete_and_in_order_for_all_receive_sizes(bodies: list[int], sizes: list[int]) -> None:
    frames = [bytes([index + 1]) * size for index, size in enumerate(bodies)]
    stream = b"".join(map(framed, frames))
    buffer = FrameBuffer(MEGABYTE)
    assert receive(buffer, stream, [*sizes, 65_536]) == frames
    assert buffer.pending_bytes == 0


def test_a_small_frame_is_a_view_over_the_bytes_received() -> None:
    buffer = FrameBuffer(MEGABYTE)
    received = framed(b"one") + framed(b"two")
    buffer.feed(received)
    one, two = buffer.next_frame(), buffer.next_frame()
    assert one is not None
    assert two is not None
    assert (bytes(one), bytes(two)) == (b"one", b"two")
    assert one.obj is received
    assert two.obj is received
    assert buffer.next_frame() is None


def test_a_large_frame_is_a_writable_view_over_its_buffer() -> None:
    buffer = FrameBuffer(MEGABYTE)
    buffer.feed(struct.pack(">i", MEGABYTE) + bytes(60_000))
    assert buffer.next_frame() is None
    rooms = []
    while (room := buffer.room()) is not None:
        assert buffer.next_frame() is None
        rooms.append(len(room))
        buffer.filled(len(room))
    frame = buffer.next_frame()
    assert frame is not None
    assert len(frame) == MEGABYTE
    assert not frame.readonly
    assert len(rooms) <= 8
    assert buffer.room() is None


@pytest.mark.parametrize("size", [-1, 0, 101, 2**31 - 1, -(2**31), *struct.unpack(">iii", b"GET SSH-\x16\x03\x01\x02")])
def test_w1_w2_a_length_outside_the_limits_is_malformed(size: int) -> None:
    buffer = FrameBuffer(100)
    buffer.feed(struct.pack(">i", size) + b"GET / HTTP/1.1")
    with pytest.raises(Malformed):
        buffer.next_frame()


def test_w1_memory_grows_with_received_bytes_not_announced_length() -> None:
    buffer = FrameBuffer(100 * MEGABYTE)
    piece = bytes(10_000)
    tracemalloc.start()
    try:
        buffer.feed(struct.pack(">i", 100 * MEGABYTE))
        assert buffer.next_frame() is None
        assert buffer.room() is None
        assert tracemalloc.get_traced_memory()[1] < 1_000
        received = 0
        while received < 2 * MEGABYTE:
            room = buffer.room()
            if room is None:
                buffer.feed(piece)
            else:
                room[: len(piece)] = piece
                buffer.filled(len(piece))
            received += len(piece)
            assert buffer.next_frame() is None
            extra = max(RECEIVE_BYTES, min(received, MAX_ROOM_BYTES))
            # bytearray reserves an extra eighth when it grows
            assert tracemalloc.get_traced_memory()[1] <= 1.13 * (received + RECEIVE_BYTES + extra) + 1_000
    finally:
        tracemalloc.stop()


def test_w1_an_announcement_alone_takes_no_memory_for_the_frame() -> None:
    buffers = [FrameBuffer(100 * MEGABYTE) for _ in range(100)]
    tracemalloc.start()
    try:
        for buffer in buffers:
            buffer.feed(struct.pack(">i", 100 * MEGABYTE) + b"GET")
            assert buffer.next_frame() is None
            assert buffer.room() is None
            assert buffer.pending_bytes == 7
        assert tracemalloc.get_traced_memory()[1] < 100 * 500
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("cut", [1, 3, 4, 7])
def test_w2_a_cut_frame_is_pending_and_never_handed_out(cut: int) -> None:
    buffer = FrameBuffer(100)
    buffer.feed(framed(b"heart")[:cut])
    assert buffer.next_frame() is None
    assert buffer.pending_bytes == cut


def test_request_headers_have_tags_from_the_first_flexible_version_on() -> None:
    head = struct.pack(">hhih", 12, 3, 77, 4) + b"kcat"
    header, body = decode_request_header(head + b"body")
    assert header == RequestHeader(api_key=12, api_version=3, correlation_id=77, client_id="kcat")
    assert bytes(body) == b"body"

    head = struct.pack(">hhih", 12, 4, 77, -1) + b"\1\5\2xy"
    header, body = decode_request_header(head + b"body")
    assert header == RequestHeader(api_key=12, api_version=4, correlation_id=77, client_id="")
    assert bytes(body) == b"body"


def test_request_headers_of_a_version_beyond_the_highest_have_tags() -> None:
    header, body = decode_request_header(struct.pack(">hhih", 18, 99, 5, 0) + b"\0unread")
    assert header.api_version == 99
    assert bytes(body) == b"unread"


def test_request_headers_of_unknown_keys_are_read_without_tags() -> None:
    header, body = decode_request_header(struct.pack(">hhih", 9_999, 0, 5, 0) + b"unread")
    assert header.api_key == 9_999
    assert bytes(body) == b"unread"


@pytest.mark.parametrize("version", range(5))
def test_requests_survive_a_round_trip_through_frames(version: int) -> None:
    request = HeartbeatRequest(group_id="g", generation_id=3, member_id="m")
    frame = b"".join(map(bytes, encode_request_frame(request, version, correlation_id=9, client_id="größe")))  # type: ignore[arg-type]
    buffer = FrameBuffer(1_000)
    buffer.feed(frame)
    received = buffer.next_frame()
    assert received is not None
    header, body = decode_request_header(received)
    assert header == RequestHeader(12, version, 9, "größe")
    assert decode(HeartbeatRequest, version, body, exact=True) == request


@pytest.mark.parametrize(("version", "tags"), [(3, b""), (4, b"\0")])
def test_response_headers_have_tags_in_flexible_versions(version: int, tags: bytes) -> None:
    response = HeartbeatResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS)
    (frame,) = encode_response_frame(7, response, version)
    assert frame == framed(struct.pack(">i", 7) + tags + encode(response, version))
    assert decode_response(HeartbeatResponse, version, bytes(frame)[4:]) == (7, response)


@pytest.mark.parametrize("version", range(5))
def test_api_versions_responses_never_have_header_tags(version: int) -> None:
    response = ApiVersionsResponse(error_code=ErrorCode.NONE, api_keys=[])
    (frame,) = encode_response_frame(7, response, version)
    assert frame == framed(struct.pack(">i", 7) + encode(response, version))
    assert decode_response(ApiVersionsResponse, version, bytes(frame)[4:]) == (7, response)


def test_unknown_api_versions_requests_get_a_v0_body() -> None:
    refusal = ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=[], throttle_time_ms=0)
    assert decode(ApiVersionsResponse, 0, encode(refusal, 0), exact=True) == refusal
    assert decode(ApiVersionsRequest, 0, b"whatever a later version says") == ApiVersionsRequest()


@dataclass
class FileRange:
    size: int


@pytest.mark.parametrize("version", [4, 11, 12, 17])
def test_opaque_records_stay_in_their_places(version: int) -> None:
    def response(*records: object) -> FetchResponse:
        partitions = [
            PartitionData(partition_index=i, high_watermark=9, aborted_transactions=None, records=held)  # type: ignore[arg-type]
            for i, held in enumerate(records)
        ]
        topic = FetchableTopicResponse(topic="t" if version < 13 else "", topic_id=ZERO_UUID, partitions=partitions)
        return FetchResponse(responses=[topic])

    big, small = FileRange(500), FileRange(3)
    parts = encode_response_frame(1, response(big, b"inline", None, small), version)
    assert [part for part in parts if not isinstance(part, bytes)] == [big, small]
    content = b"".join(part if isinstance(part, bytes) else bytes(part.size) for part in parts)
    assert [content] == encode_response_frame(1, response(bytes(500), b"inline", None, bytes(3)), version)
    assert struct.unpack_from(">i", content) == (len(content) - 4,)


def test_opaque_records_cannot_be_encoded_in_one_piece() -> None:
    partition = PartitionData(partition_index=0, high_watermark=9, aborted_transactions=None, records=FileRange(5))
    response = FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=[partition])])
    with pytest.raises(TypeError):
        encode(response, 4)


def test_a_buffer_keeps_no_returned_frame_alive() -> None:
    buffer = FrameBuffer(4 * MEGABYTE)
    tracemalloc.start()
    try:
        for frame in (bytes(60_000), bytes(2 * MEGABYTE)):
            assert receive(buffer, framed(frame), [RECEIVE_BYTES]) == [frame]
            del frame
        assert tracemalloc.get_traced_memory()[0] < 10_000
    finally:
        tracemalloc.stop()


def test_w2_a_cut_large_frame_is_pending_too() -> None:
    buffer = FrameBuffer(MEGABYTE)
    buffer.feed(struct.pack(">i", MEGABYTE) + bytes(20_000))
    assert buffer.next_frame() is None
    assert buffer.room() is not None
    assert buffer.pending_bytes == 20_004
    buffer.filled(10)
    assert buffer.pending_bytes == 20_014


def receive_in_pieces(buffer: FrameBuffer, data: bytes, piece: int = 50_000) -> memoryview:
    """Feed the bytes of one frame to a buffer like a server does; returns the frame."""
    position = 0
    while (frame := buffer.next_frame()) is None:
        room = buffer.room()
        if room is None:
            buffer.feed(data[position : position + piece])
            position += piece
        else:
            count = min(len(room), piece, len(data) - position)
            room[:count] = data[position : position + count]
            buffer.filled(count)
            position += count
    return frame


def test_the_buffer_of_a_released_frame_is_reused_cleanly() -> None:
    pool = BufferPool()
    first_connection, second_connection = FrameBuffer(MEGABYTE, pool), FrameBuffer(MEGABYTE, pool)
    first = receive_in_pieces(first_connection, framed(bytes([1]) * 900_000))
    used = first.obj
    first_connection.release(first)
    second = receive_in_pieces(second_connection, framed(bytes([2]) * 700_000))
    assert second.obj is used
    assert len(second) == 700_000
    assert set(second) == {2}
    third = receive_in_pieces(second_connection, framed(bytes([3]) * 900_000))
    assert third.obj is not used
    assert set(second) == {2}
    assert set(third) == {3}


def test_a_pool_keeps_few_buffers_and_no_huge_one() -> None:
    pool = BufferPool(max_buffers=2, max_bytes=1000)
    for size in (500, 2000, 100, 900):
        pool.give(bytearray(size))
    taken = [pool.take(400), pool.take(400), pool.take(1)]
    assert sorted(len(buffer) for buffer in taken if buffer is not None) == [500, 900]
    assert taken.count(None) == 1


def test_small_frames_have_no_buffer_to_release() -> None:
    pool = BufferPool()
    buffer = FrameBuffer(MEGABYTE, pool)
    buffer.feed(framed(bytes([1]) * 100))
    frame = buffer.next_frame()
    assert frame is not None
    buffer.release(frame)
    assert pool.take(1) is None


@pytest.mark.parametrize(("api_key", "is_large"), [(0, True), (3, False)])
def test_only_a_produce_may_be_larger_than_other_requests(api_key: int, is_large: bool) -> None:
    buffer = FrameBuffer(100 * MEGABYTE, max_request_bytes=MEGABYTE)
    buffer.feed(struct.pack(">i", MEGABYTE + 1) + b"\0")
    assert buffer.next_frame() is None, "half of the api key decides nothing"
    buffer.feed(bytes((api_key,)))
    if is_large:
        assert buffer.next_frame() is None
    else:
        with pytest.raises(Malformed, match="api key 3"):
            buffer.next_frame()


@pytest.mark.parametrize("cut", range(1, 7))
def test_a_cut_frame_keeps_no_earlier_frames(cut: int) -> None:
    body = bytes(1_000)
    frame = b"\0\0\x03\xe8" + body
    tracemalloc.start()
    try:
        buffer = FrameBuffer(1_000)
        buffer.feed(frame * 50 + frame[:cut])
        for _ in range(50):
            assert buffer.next_frame() == body
        assert buffer.next_frame() is None
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 5_000
    assert buffer.pending_bytes == cut
    buffer.feed(frame[cut:])
    assert buffer.next_frame() == body
