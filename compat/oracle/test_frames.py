"""Malformed frames: the broker under test and Apache Kafka answer with the same class {reply, close, silence}."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest

from compat.oracle.batches import batch_of
from compat.oracle.conftest import Pair, kind, same
from compat.oracle.raw import Reply
from compat.oracle.schema import decode_response, encode_body, encode_request, framed, request_header, uvarint

MIB = 1 << 20


def length(size: int) -> bytes:
    return struct.pack(">i", size)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(length(-1), id="minus one"),
        pytest.param(length(-(2**31)), id="least integer"),
        pytest.param(length(100 * MIB + 1) + b"x" * 100, id="one byte above socket.request.max.bytes"),
        pytest.param(length(2**31 - 1) + b"x" * 100, id="2 GB"),
        pytest.param(b"GET / HTTP/1.1\r\nHost: kafka\r\n\r\n", id="HTTP"),
        pytest.param(bytes.fromhex("160301020001000000"), id="TLS hello"),
        pytest.param(b"SSH-2.0-OpenSSH_9.2\r\n", id="SSH"),
    ],
)
def test_w1_a_length_out_of_range_closes_the_connection(pair: Pair, data: bytes) -> None:
    assert [kind(answer) for answer in pair.ask(data)] == ["close", "close"]


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(length(0), id="empty frame"),
        pytest.param(framed(b"\x00"), id="one byte"),
        pytest.param(framed(struct.pack(">hh", 18, 0)), id="no correlation id"),
        pytest.param(framed(struct.pack(">hhi", 18, 0, 1)), id="no client id"),
        pytest.param(framed(struct.pack(">hhih", 18, 0, 1, 10) + b"short"), id="client id cut"),
        pytest.param(framed(struct.pack(">hhih", 18, 3, 1, -1)), id="flexible header without tags"),
    ],
)
def test_w2_a_header_that_is_cut_closes_the_connection(pair: Pair, data: bytes) -> None:
    answers = [kind(answer) for answer in pair.ask(data)]
    assert answers[1] == answers[0] == "close"


@pytest.mark.parametrize("keep", [1, 3, 4, 5, 20])
def test_w2_a_frame_that_ends_with_the_stream_closes_the_connection(pair: Pair, keep: int) -> None:
    frame = encode_request("Metadata", 1, {"Topics": None})
    assert [kind(answer) for answer in pair.ask(frame[:keep], finish=True)] == ["close", "close"]


@pytest.mark.parametrize("api_key", [-1, 4, 5, 6, 7, 52, 56, 62, 200, 32767])
def test_w3_an_unknown_api_key_closes_the_connection(pair: Pair, api_key: int) -> None:
    frame = framed(request_header(api_key, 0, 1, "compat", flexible=False) + bytes(8))
    assert [kind(answer) for answer in pair.ask(frame)] == ["close", "close"]


@pytest.mark.parametrize(
    ("api_key", "version"),
    [
        (0, 0),
        (0, 1),
        (0, 2),
        (0, 14),
        (1, 3),
        (1, 19),
        (2, 0),
        (2, 12),
        (3, -1),
        (3, 14),
        (19, 1),
        (20, 0),
        (22, 7),
        (23, 1),
        (32, 0),
    ],
)
def test_w3_a_disabled_version_closes_the_connection(pair: Pair, api_key: int, version: int) -> None:
    frame = framed(request_header(api_key, version, 1, "compat", flexible=False) + bytes(40))
    assert [kind(answer) for answer in pair.ask(frame)] == ["close", "close"]


def _flexible_metadata(body: bytes) -> bytes:
    return framed(request_header(3, 12, 1, "compat", flexible=True) + body)


def _tags(*tags: bytes) -> bytes:
    return uvarint(len(tags)) + b"".join(tags)


_METADATA_12 = b"\x01\x00\x00"  # no topics, no automatic creation, no authorized operations; then the tags


@pytest.mark.parametrize(
    "frame",
    [
        pytest.param(framed(request_header(3, 1, 1, "c", flexible=False) + length(2**31 - 1)), id="array of 2^31"),
        pytest.param(
            framed(request_header(3, 1, 1, "c", flexible=False) + length(5)), id="array longer than the frame"
        ),
        pytest.param(
            framed(request_header(3, 1, 1, "c", flexible=False) + length(1) + struct.pack(">h", -1)),
            id="null topic name",
        ),
        pytest.param(
            framed(request_header(3, 1, 1, "c", flexible=False) + length(1) + struct.pack(">h", -5)),
            id="negative string",
        ),
        pytest.param(
            framed(request_header(3, 1, 1, "c", flexible=False) + length(1) + struct.pack(">h", 99)), id="string beyond"
        ),
        pytest.param(_flexible_metadata(b"\xff\xff\xff\xff\x0f"), id="compact array of 2^32-2"),
        pytest.param(_flexible_metadata(b"\xff\xff\xff\xff\xff\xff\x01"), id="varint of seven bytes"),
        pytest.param(_flexible_metadata(_METADATA_12 + _tags(b"\x09\x7f")), id="tag longer than the frame"),
        pytest.param(_flexible_metadata(_METADATA_12), id="no tag buffer"),
        pytest.param(
            framed(request_header(3, 12, 1, "c", flexible=False) + b"\xff\xff\xff\xff\xff\xff"), id="wrong header tags"
        ),
    ],
)
def test_w4_an_invalid_body_gets_kafkas_class_of_answer(pair: Pair, frame: bytes) -> None:
    theirs, ours = (kind(answer) for answer in pair.ask(frame))
    assert ours == theirs == "close"


@pytest.mark.parametrize(
    "frame",
    [
        pytest.param(framed(struct.pack(">hhih", 18, 0, 1, -2)), id="client id of minus two"),
        pytest.param(framed(request_header(3, 1, 1, "c", flexible=False) + length(-2)), id="array of minus two"),
        pytest.param(_flexible_metadata(_METADATA_12 + b"\xff\xff\xff\xff\x0f"), id="2^32-1 tags"),
        pytest.param(_flexible_metadata(_METADATA_12 + _tags(b"\x63\x00", b"\x63\x00")), id="a tag twice"),
        pytest.param(_flexible_metadata(_METADATA_12 + _tags(b"\x63\x00", b"\x05\x00")), id="descending tags"),
    ],
)
def test_w4_malformed_bodies_that_kafka_accepts_may_be_refused(pair: Pair, frame: bytes) -> None:
    """A stated difference: Kafka accepts any negative length as null, 2^32-1 tags as none, and tags in any order."""
    theirs, ours = (kind(answer) for answer in pair.ask(frame))
    assert theirs == "reply"
    assert ours in {"reply", "close"}


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(_METADATA_12 + _tags(b"\x63\x02ab"), id="unknown tag"),
        pytest.param(_METADATA_12 + _tags(b"\x05\x00", b"\x63\x02ab"), id="two unknown tags"),
        pytest.param(_METADATA_12 + _tags() + b"surplus", id="bytes after the body"),
    ],
)
def test_w4_additions_of_newer_clients_are_ignored(pair: Pair, body: bytes) -> None:
    answers = pair.ask(_flexible_metadata(body))
    assert [kind(answer) for answer in answers] == ["reply", "reply"]
    same([decode_response("Metadata", 12, answer.payload) for answer in answers if isinstance(answer, Reply)])


def test_a_null_client_id_is_answered(pair: Pair) -> None:
    same(pair.call("Metadata", 1, {"Topics": []}, client_id=None))
    same(pair.call("Metadata", 9, {"Topics": []}, client_id=None))


def test_pipelined_requests_are_answered_in_order(pair: Pair, new_topic_name: Callable[[str], str]) -> None:
    topic = pair.create(new_topic_name("pipelined"))
    produce = {
        "Acks": -1,
        "TimeoutMs": 5000,
        "TopicData": [{"Name": topic.name, "PartitionData": [{"Index": 0, "Records": batch_of(b"one")}]}],
    }
    requests = [
        ("Metadata", 1, {"Topics": []}),
        ("Produce", 7, produce),
        ("ApiVersions", 0, {}),
        ("Produce", 7, produce),
    ]
    frames = b"".join(
        encode_request(api, version, message, correlation_id=number)
        for number, (api, version, message) in enumerate(requests)
    )
    answers = []
    for connection in pair.connect():
        connection.send(frames)
        got = [connection.answer() for _ in requests]
        answers.append(
            [
                decode_response(api, version, answer.payload, correlation_id=number)
                for number, ((api, version, _), answer) in enumerate(zip(requests, got, strict=True))
                if isinstance(answer, Reply)
            ]
        )
        connection.close()
    for theirs, ours in zip(answers[0], answers[1], strict=True):
        if "ApiKeys" not in theirs:
            same([theirs, ours])
    assert [len(side) for side in answers] == [4, 4]
    assert answers[1][3]["Responses"][0]["PartitionResponses"][0]["BaseOffset"] == 1


def test_a_frame_received_byte_by_byte_is_answered(pair: Pair) -> None:
    frame = encode_request("Metadata", 5, {"Topics": []})
    for connection in pair.connect():
        for place in range(len(frame)):
            connection.send(frame[place : place + 1])
        assert isinstance(connection.answer(), Reply)
        connection.close()


def test_a_produce_with_acks_0_gets_no_reply(pair: Pair, new_topic_name: Callable[[str], str]) -> None:
    topic = pair.create(new_topic_name("acks-0"))
    message = {
        "Acks": 0,
        "TimeoutMs": 5000,
        "TopicData": [{"Name": topic.name, "PartitionData": [{"Index": 0, "Records": batch_of(b"one")}]}],
    }
    frames = encode_request("Produce", 7, message) + encode_request("Metadata", 1, {"Topics": []}, correlation_id=77)
    answers = pair.ask(frames)
    assert [struct.unpack(">i", answer.payload[:4])[0] for answer in answers if isinstance(answer, Reply)] == [77, 77]


@pytest.mark.usefixtures("kafka_libraries")
def test_the_codec_of_these_tests_writes_kafkas_header() -> None:
    """A canary: an ApiVersions v3 frame, byte by byte."""
    frame = encode_request("ApiVersions", 3, {"ClientSoftwareName": "a", "ClientSoftwareVersion": "1"}, client_id="c")
    assert frame == bytes.fromhex("00000011 0012 0003 00000001 0001 63 00 02 61 02 31 00".replace(" ", ""))[:3] + bytes(
        [len(frame) - 4]
    ) + bytes.fromhex("0012000300000001000163000261023100")
    assert encode_body("ApiVersionsRequest", 0, {}) == b""
