"""W4: bytes that do not decode are refused as Malformed, in at most 5 ms of CPU per frame."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable

import pytest

from wire.codec import decode, encode
from wire.errors import Malformed, TooManyElements
from wire.framing import decode_request_header
from wire.messages.api_versions import ApiVersionsRequest
from wire.messages.create_topics import CreateTopicsRequest
from wire.messages.describe_topic_partitions import DescribeTopicPartitionsRequest
from wire.messages.fetch import FetchRequest
from wire.messages.heartbeat import HeartbeatRequest
from wire.messages.metadata import MetadataRequest
from wire.messages.offset_delete import OffsetDeleteRequest
from wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestTopic
from wire.messages.produce import ProduceRequest
from wire.structs import construct_for
from wire.varint import encode_uvarint

FETCH_4 = struct.pack(">iiiib", -1, 500, 1, 1 << 20, 0)  # all fields before the topics
FETCH_12 = FETCH_4 + struct.pack(">ii", 0, -1)
HUGE = b"\xff\xff\xff\xff\x0f"  # the varint of 2^32 - 1

BAD: dict[str, tuple[type, int, bytes]] = {
    "no bytes": (FetchRequest, 4, b""),
    "a count of 2^31 - 1 without elements": (FetchRequest, 4, FETCH_4 + b"\x7f\xff\xff\xff"),
    "a count of 2^31 - 1 and a megabyte": (FetchRequest, 4, FETCH_4 + b"\x7f\xff\xff\xff" + bytes(1 << 20)),
    "a compact count of 2^32 - 2": (FetchRequest, 12, FETCH_12 + HUGE + bytes(100)),
    "a count of one more element than there are bytes for": (
        FetchRequest, 4, FETCH_4 + struct.pack(">i", 3) + struct.pack(">hi", 0, 0) * 2,
    ),
    "a count of integers beyond the end": (
        OffsetDeleteRequest, 0, struct.pack(">hih", 0, 1, 1) + b"t" + struct.pack(">ii", 1 << 30, 0),
    ),
    "a negative count": (FetchRequest, 4, FETCH_4 + struct.pack(">i", -2)),
    "a null in a non-nullable array": (FetchRequest, 4, FETCH_4 + struct.pack(">i", -1)),
    "a null in a non-nullable compact array": (FetchRequest, 12, FETCH_12 + b"\0\1\1\0"),
    "a negative count of a nullable array": (MetadataRequest, 1, struct.pack(">i", -2)),
    "a negative string": (HeartbeatRequest, 0, struct.pack(">h", -5) + bytes(20)),
    "a null in a non-nullable string": (HeartbeatRequest, 0, struct.pack(">h", -1) + bytes(20)),
    "a negative length of a nullable string": (ProduceRequest, 3, struct.pack(">h", -2) + bytes(20)),
    "a string beyond the end": (HeartbeatRequest, 0, struct.pack(">h", 30) + b"group"),
    "a compact string beyond the end": (ApiVersionsRequest, 3, b"\x7fshort"),
    "a compact string of more than 32767 bytes": (ApiVersionsRequest, 3, b"\x81\x80\x02" + bytes(40_000)),
    "a string that is not UTF-8": (HeartbeatRequest, 0, struct.pack(">h", 2) + b"\xc3\x28" + bytes(20)),
    "a surrogate in a string": (HeartbeatRequest, 0, struct.pack(">h", 3) + b"\xed\xa0\x80" + bytes(20)),
    "a varint of six bytes": (ApiVersionsRequest, 3, b"\x80\x80\x80\x80\x80\x01" + bytes(20)),
    "a varint of more than 32 bits": (ApiVersionsRequest, 3, b"\xff\xff\xff\xff\x7f" + bytes(20)),
    "a varint that is cut": (ApiVersionsRequest, 3, b"\x80\x80"),
    "an unterminated varint": (ApiVersionsRequest, 3, b"\xff" * (1 << 20)),
    "one tag twice": (ApiVersionsRequest, 3, b"\1\1\2\5\0\5\0"),
    "tags in descending order": (ApiVersionsRequest, 3, b"\1\1\2\6\0\5\0"),
    "more tags than bytes": (ApiVersionsRequest, 3, b"\1\1" + HUGE + b"\1\0"),
    "a tag beyond the end": (ApiVersionsRequest, 3, b"\1\1\1\5\x7f"),
    "a known tag twice": (FetchRequest, 17, b"\0" * 12 + b"\0" + b"\0" * 8 + b"\1\1\1\2\0\1\0\0\1\0"),
    "a known tag that is longer than its field": (FetchRequest, 12, FETCH_12 + b"\1\1\1\1\0\3\1\0\0"),
    "a known tag that is shorter than its field": (FetchRequest, 12, FETCH_12 + b"\1\1\1\1\0\1\2ab"),
    "an invalid null marker of a struct": (DescribeTopicPartitionsRequest, 0, b"\1\0\0\0\1\x80\0"),
    "records beyond the end": (
        ProduceRequest, 3, struct.pack(">hhiih", -1, -1, 0, 1, 1) + b"t" + struct.pack(">iii", 1, 0, 1 << 30),
    ),
    "records of a negative size": (
        ProduceRequest, 3, struct.pack(">hhiih", -1, -1, 0, 1, 1) + b"t" + struct.pack(">iii", 1, 0, -2),
    ),
}  # fmt: skip


def cpu_ms(work: Callable[[], object]) -> float:
    """The minimum of a few runs: the cost of the work without the load of the machine."""
    times = []
    for _ in range(5):
        before = time.process_time()
        work()
        times.append(time.process_time() - before)
    return min(times) * 1000


@pytest.mark.parametrize(("cls", "version", "data"), BAD.values(), ids=BAD)
def test_w4_bad_bytes_are_malformed_within_5_ms(cls: type, version: int, data: bytes) -> None:
    def refused() -> None:
        with pytest.raises(Malformed):
            decode(cls, version, data)

    assert cpu_ms(refused) <= 5


@pytest.mark.parametrize(("cls", "version", "data"), BAD.values(), ids=BAD)
def test_w4_the_constructs_refuse_the_same(cls: type, version: int, data: bytes) -> None:
    with pytest.raises(Malformed):
        construct_for(cls, version).parse(data)


@pytest.mark.parametrize("size", range(40))
def test_w4_every_cut_is_malformed(size: int) -> None:
    whole = encode(CreateTopicsRequest(topics=[], timeout_ms=1), 5)
    longer = encode(FetchRequest(max_wait_ms=1, min_bytes=1, topics=[], rack_id="rack-of-a-reader"), 12)
    for cls, version, data in ((CreateTopicsRequest, 5, whole), (FetchRequest, 12, longer)):
        if size < len(data):
            with pytest.raises(Malformed):
                decode(cls, version, data[:size])


def test_unknown_tags_are_skipped() -> None:
    unknown = b"\2" + b"\x05\x02ab" + b"\x85\x01\x00"
    body = b"\x05kcat" + b"\x041.7" + unknown
    assert decode(ApiVersionsRequest, 3, body, exact=True) == ApiVersionsRequest(
        client_software_name="kcat", client_software_version="1.7"
    )


def test_a_tag_buffer_can_have_more_than_127_fields() -> None:
    tags = b"".join(struct.pack("BBB", 0x80 | tag & 127, tag >> 7, 0) for tag in range(128, 300))
    body = b"\1\1" + b"\xac\x01" + tags
    assert decode(ApiVersionsRequest, 3, body, exact=True).client_software_name == ""


def test_extra_bytes_are_ignored_unless_exact() -> None:
    body = encode(HeartbeatRequest(group_id="g", generation_id=1, member_id="m"), 0)
    assert decode(HeartbeatRequest, 0, body + b"more") == decode(HeartbeatRequest, 0, body)
    with pytest.raises(Malformed, match="4 bytes after"):
        decode(HeartbeatRequest, 0, body + b"more", exact=True)


@pytest.mark.parametrize(
    "header",
    [
        b"",
        struct.pack(">hhi", 18, 3, 1),
        struct.pack(">hhih", 18, 3, 1, 10) + b"short",
        struct.pack(">hhih", 18, 3, 1, -2) + bytes(10),
        struct.pack(">hhih", 18, 3, 1, 2) + b"\xc3\x28\0",
        struct.pack(">hhih", 18, 3, 1, 1) + b"c",
        struct.pack(">hhih", 18, 3, 1, 1) + b"c\x01\x00\x7f",
        struct.pack(">hhih", 18, 3, 1, 1) + b"c" + HUGE,
    ],
)
def test_w2_w4_bad_request_headers_are_malformed(header: bytes) -> None:
    with pytest.raises(Malformed):
        decode_request_header(header)


def test_more_elements_than_allowed_are_refused_before_they_are_read() -> None:
    topic = OffsetFetchRequestTopic(name="t", partition_indexes=[0, 1, 2])
    body = encode(OffsetFetchRequest(group_id="g", topics=[topic, topic]), 7)
    assert decode(OffsetFetchRequest, 7, body, max_elements=8)
    with pytest.raises(TooManyElements):
        decode(OffsetFetchRequest, 7, body, max_elements=7)
    begun = body[: body.index(b"t") - 1]  # the count of the topics, and none of them
    with pytest.raises(TooManyElements):
        decode(OffsetFetchRequest, 7, begun + bytes(8), max_elements=1)


def test_unknown_tagged_fields_count_as_elements() -> None:
    body = encode(HeartbeatRequest(group_id="g", generation_id=1, member_id="m"), 4)
    with_tags = body[:-1] + b"\x05" + b"".join(bytes((tag, 0)) for tag in range(5))
    assert decode(HeartbeatRequest, 4, with_tags, exact=True, max_elements=5)
    with pytest.raises(TooManyElements):
        decode(HeartbeatRequest, 4, with_tags, max_elements=4)


def test_a_header_with_thousands_of_tags_is_malformed() -> None:
    head = bytes.fromhex("000c 0004 00000001 0000")
    tags = b"".join(encode_uvarint(tag) + b"\0" for tag in range(2_000))
    with pytest.raises(Malformed, match="2000 tagged fields"):
        decode_request_header(head + encode_uvarint(2_000) + tags)
