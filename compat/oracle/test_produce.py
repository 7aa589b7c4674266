"""Produce: each row of the error table, and the stored bytes of accepted batches (W5).

If the broker under test may answer differently from Kafka, the row states how and why; every other row must agree.
"""

from __future__ import annotations

import gzip
import os
import struct
from collections.abc import Callable

import pytest

from compat.oracle.batches import GZIP, Batch, Item
from compat.oracle.conftest import Pair, Topic, kind, same
from compat.oracle.produce_table import (
    FLIPPED,
    GOOD,
    INVALID_RECORD,
    INVALID_REQUIRED_ACKS,
    LOG_APPEND_TIME,
    NONE,
    ROWS,
    STORIES,
    UNKNOWN_TOPIC,
    Row,
    Step,
)
from compat.oracle.raw import Reply
from compat.oracle.schema import Message, decode_response, encode_request


def produce(topic: str, records: bytes | None, *, acks: int = -1, partition: int = 0) -> Message:
    return {
        "Acks": acks,
        "TimeoutMs": 10_000,
        "TopicData": [{"Name": topic, "PartitionData": [{"Index": partition, "Records": records}]}],
    }


def partition_of(response: Message) -> Message:
    found = response["Responses"][0]["PartitionResponses"][0]
    assert isinstance(found, dict)
    return found


@pytest.fixture(scope="module")
def topics(pair: Pair, new_topic_name: Callable[[str], str]) -> Callable[..., Topic]:
    """Topics by their settings, each created once."""
    made: dict[tuple[tuple[str, str], ...], Topic] = {}

    def topic(configs: tuple[tuple[str, str], ...] = ()) -> Topic:
        if configs not in made:
            made[configs] = pair.create(new_topic_name("produce"), configs=dict(configs))
        return made[configs]

    return topic


@pytest.mark.parametrize("row", ROWS, ids=[row.name for row in ROWS])
def test_w5_a_batch_gets_kafkas_code(pair: Pair, new_topic_name: Callable[[str], str], row: Row) -> None:
    topic = pair.create(new_topic_name("produce"), configs=dict(row.configs))
    theirs, ours = (
        partition_of(answer) for answer in pair.call("Produce", row.version, produce(topic.name, row.records))
    )
    assert theirs["ErrorCode"] == row.code
    if ours["ErrorCode"] == theirs["ErrorCode"]:
        same([theirs, ours])
    else:
        assert ours["ErrorCode"] in row.ours, row.reason
        assert ours["BaseOffset"] == -1
    stored = pair.call("ListOffsets", 1, latest(topic.name))
    ends = [answer["Topics"][0]["Partitions"][0]["Offset"] for answer in stored]
    assert ends[0] == (0 if row.code else ends[0])
    assert ends[1] == (ends[0] if ours["ErrorCode"] == row.code else 0)


def latest(topic: str) -> Message:
    return {"ReplicaId": -1, "Topics": [{"Name": topic, "Partitions": [{"PartitionIndex": 0, "Timestamp": -1}]}]}


def fetch(topic: str, *, offset: int = 0) -> Message:
    wanted = {"Partition": 0, "FetchOffset": offset, "PartitionMaxBytes": 10_000_000}
    return {"ReplicaId": -1, "MaxWaitMs": 100, "MinBytes": 0, "Topics": [{"Topic": topic, "Partitions": [wanted]}]}


@pytest.mark.parametrize("version", range(3, 12))
def test_a_good_batch_is_acknowledged_in_every_version(pair: Pair, topics: Callable[..., Topic], version: int) -> None:
    same(pair.call("Produce", version, produce(topics().name, GOOD)))


@pytest.mark.parametrize("acks", [-2, 2, 7, 32767])
def test_w5_wrong_acks_are_refused(pair: Pair, topics: Callable[..., Topic], acks: int) -> None:
    answer = same(pair.call("Produce", 9, produce(topics().name, GOOD, acks=acks)))
    assert partition_of(answer)["ErrorCode"] == INVALID_REQUIRED_ACKS


@pytest.mark.parametrize("name", ["never-created", "../x", ".", "..", "x" * 250, "a b", "", "nul\0"])
@pytest.mark.parametrize("version", [7, 11])
def test_x5_an_unknown_or_invalid_topic_is_unknown(pair: Pair, name: str, version: int) -> None:
    answer = same(pair.call("Produce", version, produce(name, GOOD)))
    assert partition_of(answer)["ErrorCode"] == UNKNOWN_TOPIC


@pytest.mark.parametrize("partition", [1, -1, 2**31 - 1])
def test_an_unknown_partition_fails_alone(pair: Pair, topics: Callable[..., Topic], partition: int) -> None:
    message = produce(topics().name, GOOD)
    message["TopicData"][0]["PartitionData"].append({"Index": partition, "Records": GOOD})
    answers = pair.call("Produce", 9, message)
    codes = [
        {each["Index"]: each["ErrorCode"] for each in answer["Responses"][0]["PartitionResponses"]}
        for answer in answers
    ]
    assert codes[0] == codes[1] == {0: NONE, partition: UNKNOWN_TOPIC}


def test_null_records_are_refused(pair: Pair, topics: Callable[..., Topic]) -> None:
    """A stated difference: 4.3.1 fails internally and stays silent; INVALID_RECORD is its answer to zero bytes."""
    theirs, ours = pair.ask(encode_request("Produce", 9, produce(topics().name, None)), timeout_s=1)
    assert kind(theirs) == "silence"
    if isinstance(ours, Reply):
        assert partition_of(decode_response("Produce", 9, ours.payload))["ErrorCode"] == INVALID_RECORD
    else:
        assert os.environ.get("KBROKER_COMPAT_BROKER") == "kafka"


@pytest.mark.parametrize("records", [FLIPPED, GOOD + GOOD, b""], ids=["bad checksum", "two batches", "empty"])
def test_w5_an_error_with_acks_0_closes_the_connection(
    pair: Pair, topics: Callable[..., Topic], records: bytes
) -> None:
    answers = pair.ask(encode_request("Produce", 9, produce(topics().name, records, acks=0)), timeout_s=2)
    assert [kind(answer) for answer in answers] == ["close", "close"]


def test_w5_an_unknown_topic_with_acks_0_closes_the_connection(pair: Pair) -> None:
    answers = pair.ask(encode_request("Produce", 9, produce("never-created", GOOD, acks=0)), timeout_s=2)
    assert [kind(answer) for answer in answers] == ["close", "close"]


@pytest.mark.parametrize(
    "batch",
    [
        pytest.param(
            Batch([Item(b"a", b"k", [("h", b"1"), ("h", None)], 5), Item(None, None, (), 0)]), id="create time"
        ),
        pytest.param(Batch(attributes=0x08), id="attribute LogAppendTime is cleared"),
        pytest.param(Batch(max_timestamp=1_600_000_000_000), id="greatest timestamp is mended"),
        pytest.param(Batch(leader_epoch=77), id="leader epoch is ours"),
        pytest.param(Batch(attributes=0x80), id="unused bits stay"),
        pytest.param(Batch([Item(b"a" * 500)] * 3, codec=GZIP), id="gzip stays unchanged"),
    ],
)
def test_the_stored_bytes_equal_kafkas(pair: Pair, new_topic_name: Callable[[str], str], batch: Batch) -> None:
    topic = pair.create(new_topic_name("stored"))
    for _ in range(2):
        same(pair.call("Produce", 9, produce(topic.name, batch.encode())))
    theirs, ours = (answer["Responses"][0]["Partitions"][0] for answer in pair.call("Fetch", 4, fetch(topic.name)))
    assert ours["Records"] == theirs["Records"]
    assert len(theirs["Records"]) == 2 * len(batch.encode())


def test_log_append_time_rewrites_the_greatest_timestamp(pair: Pair, topics: Callable[..., Topic]) -> None:
    topic = topics(LOG_APPEND_TIME)
    answers = pair.call("Produce", 9, produce(topic.name, Batch([Item(), Item(timestamp_delta=9)]).encode()))
    fetched = pair.call("Fetch", 4, fetch(topic.name))
    for answer, read in zip(answers, fetched, strict=True):
        records = read["Responses"][0]["Partitions"][0]["Records"]
        attributes, _, base, greatest = struct.unpack(">hiqq", records[21:43])
        assert attributes == 0x08
        assert base == 1_700_000_000_000
        assert greatest == partition_of(answer)["LogAppendTimeMs"]


@pytest.mark.parametrize("codec", ["gzip", "uncompressed"])
def test_a_topics_compression_type_is_applied(pair: Pair, new_topic_name: Callable[[str], str], codec: str) -> None:
    topic = pair.create(new_topic_name("recompressed"), configs={"compression.type": codec})
    sent = Batch([Item(b"x" * 300)] * 3, codec=0 if codec == "gzip" else GZIP)
    same(pair.call("Produce", 9, produce(topic.name, sent.encode())))
    theirs, ours = (
        answer["Responses"][0]["Partitions"][0]["Records"] for answer in pair.call("Fetch", 4, fetch(topic.name))
    )
    assert ours[21:23] == theirs[21:23] == (b"\x00\x01" if codec == "gzip" else b"\x00\x00")
    if codec == "uncompressed":
        assert ours == theirs
    else:
        assert gzip.decompress(ours[61:]) == gzip.decompress(theirs[61:])


@pytest.mark.parametrize("story", STORIES.values(), ids=STORIES.keys())
def test_an_idempotent_producers_batches_are_judged_as_kafka_judges_them(
    pair: Pair, new_topic_name: Callable[[str], str], story: list[Step]
) -> None:
    topic = pair.create(new_topic_name("idempotent"))
    ids = [answer["ProducerId"] for answer in pair.producer_ids()]
    for step in story:
        answers = []
        for side, connection in enumerate(pair.connect()):
            batch = Batch(
                [Item(b"%d" % step.sequence)] * step.count,
                producer_id=ids[side],
                producer_epoch=step.epoch,
                base_sequence=step.sequence,
            )
            answers.append(connection.call("Produce", 9, produce(topic.name, batch.encode())))
            connection.close()
        assert partition_of(same(answers))["ErrorCode"] == step.code
