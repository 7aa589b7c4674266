"""Malformed frames: the broker under test and Apache Kafka answer with the same class {reply, close, silence}."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from compat.oracle.batches import batch_of
from compat.oracle.conftest import Pair, kind, same
from compat.oracle.frame_table import (
    ACCEPTED_BY_KAFKA,
    ADDITIONS,
    BODIES,
    HEADERS,
    LENGTHS,
    UNKNOWN_KEYS,
    UNKNOWN_VERSIONS,
)
from compat.oracle.raw import Reply
from compat.oracle.schema import decode_response, encode_body, encode_request, framed, request_header


def each(table: Mapping[str, bytes]) -> list[Any]:
    """The frames of a table as parameters of a test."""
    return [pytest.param(data, id=label) for label, data in table.items()]


@pytest.mark.parametrize("data", each(LENGTHS))
def test_w1_a_length_out_of_range_closes_the_connection(pair: Pair, data: bytes) -> None:
    assert [kind(answer) for answer in pair.ask(data)] == ["close", "close"]


@pytest.mark.parametrize("data", each(HEADERS))
def test_w2_a_header_that_is_cut_closes_the_connection(pair: Pair, data: bytes) -> None:
    answers = [kind(answer) for answer in pair.ask(data)]
    assert answers[1] == answers[0] == "close"


@pytest.mark.parametrize("keep", [1, 3, 4, 5, 20])
def test_w2_a_frame_that_ends_with_the_stream_closes_the_connection(pair: Pair, keep: int) -> None:
    frame = encode_request("Metadata", 1, {"Topics": None})
    assert [kind(answer) for answer in pair.ask(frame[:keep], finish=True)] == ["close", "close"]


@pytest.mark.parametrize("api_key", UNKNOWN_KEYS)
def test_w3_an_unknown_api_key_closes_the_connection(pair: Pair, api_key: int) -> None:
    frame = framed(request_header(api_key, 0, 1, "compat", flexible=False) + bytes(8))
    assert [kind(answer) for answer in pair.ask(frame)] == ["close", "close"]


@pytest.mark.parametrize(("api_key", "version"), UNKNOWN_VERSIONS)
def test_w3_a_disabled_version_closes_the_connection(pair: Pair, api_key: int, version: int) -> None:
    frame = framed(request_header(api_key, version, 1, "compat", flexible=False) + bytes(40))
    assert [kind(answer) for answer in pair.ask(frame)] == ["close", "close"]


@pytest.mark.parametrize("frame", each(BODIES))
def test_w4_an_invalid_body_gets_kafkas_class_of_answer(pair: Pair, frame: bytes) -> None:
    theirs, ours = (kind(answer) for answer in pair.ask(frame))
    assert ours == theirs == "close"


@pytest.mark.parametrize("frame", each(ACCEPTED_BY_KAFKA))
def test_w4_malformed_bodies_that_kafka_accepts_may_be_refused(pair: Pair, frame: bytes) -> None:
    """A stated difference: Kafka accepts any negative length as null, 2^32-1 tags as none, and tags in any order."""
    theirs, ours = (kind(answer) for answer in pair.ask(frame))
    assert theirs == "reply"
    assert ours in {"reply", "close"}


@pytest.mark.parametrize("frame", each(ADDITIONS))
def test_w4_additions_of_newer_clients_are_ignored(pair: Pair, frame: bytes) -> None:
    answers = pair.ask(frame)
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
