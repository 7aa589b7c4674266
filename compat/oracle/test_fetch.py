"""Fetch: sizes, sessions, errors, epochs; both brokers have the same bytes."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import pytest

from compat.oracle.batches import ZSTD, Batch, Item, batch_of
from compat.oracle.conftest import ForSide, Pair, Topic, same
from compat.oracle.raw import Reply
from compat.oracle.schema import Message, decode_response, encode_request
from compat.oracle.test_produce import produce

UNKNOWN_TOPIC_ID = 100
ALL_VERSIONS = range(4, 18)
ROUNDS, PARTITIONS = 6, 3


@pytest.fixture(scope="module")
def filled(pair: Pair, new_topic_name: Callable[[str], str]) -> Topic:
    """Three partitions; 0 and 1 have six batches of 3 records, about 1,100 bytes each; 2 is empty."""
    topic = pair.create(new_topic_name("fetch"), partitions=PARTITIONS)
    for number in range(ROUNDS):
        batch = Batch([Item(b"%d-%d" % (number, place) + b"x" * 350) for place in range(3)])
        for partition in (0, 1):
            same(pair.call("Produce", 9, produce(topic.name, batch.encode(), partition=partition)))
    return topic


@pytest.fixture(scope="module")
def fill(pair: Pair, new_topic_name: Callable[[str], str]) -> Callable[..., Topic]:
    """A function that creates a topic of one partition with some batches."""

    def make(*batches: bytes) -> Topic:
        topic = pair.create(new_topic_name("fetch"))
        for batch in batches:
            same(pair.call("Produce", 9, produce(topic.name, batch)))
        return topic

    return make


def wanted(partition: int = 0, offset: int = 0, *, limit: int = 1 << 20, **more: Any) -> Message:
    return {"Partition": partition, "FetchOffset": offset, "PartitionMaxBytes": limit, **more}


def fetch(topic: Topic, version: int, *partitions: Message, **more: Any) -> ForSide:
    """A full fetch of some partitions; by topic id from version 13 on."""

    def for_side(side: int) -> Message:
        key = {"TopicId": topic.ids[side]} if version >= 13 else {"Topic": topic.name}
        message: Message = {"MaxWaitMs": 0, "MinBytes": 0, "Topics": [{**key, "Partitions": list(partitions)}]}
        if version < 15:
            message["ReplicaId"] = -1
        if version >= 7:
            message["SessionEpoch"] = -1
        return {**message, **more}

    return for_side


def parts(answer: Message) -> dict[int, Message]:
    return {part["PartitionIndex"]: part for response in answer["Responses"] for part in response["Partitions"]}


def sizes(answer: Message) -> dict[int, int]:
    return {index: len(part["Records"] or b"") for index, part in parts(answer).items()}


def whole_batches(records: bytes) -> bytes:
    """Records without the incomplete batch at their end.

    Stated: Kafka cuts at the limit, in the middle of a batch; clients drop the incomplete one. kbroker does not send
    it.
    """
    end = 0
    while end + 12 <= len(records):
        following = end + 12 + struct.unpack_from(">i", records, end + 8)[0]
        if following > len(records):
            break
        end = following
    return records[:end]


@pytest.mark.parametrize("version", ALL_VERSIONS)
def test_every_version_reads_the_same(pair: Pair, filled: Topic, version: int) -> None:
    answer = same(pair.call("Fetch", version, fetch(filled, version, wanted(0), wanted(1, 7), wanted(2))))
    found = sizes(answer)
    assert found[0] > found[1] > found[2] == 0
    assert parts(answer)[1]["Records"][:8] == (6).to_bytes(8, "big"), "the whole batch that holds offset 7"


@pytest.mark.parametrize("limit", [0, 1, 1_000, 2_500, 4_000, 2**31 - 1])
@pytest.mark.parametrize("whole", [0, 1, 1_000, 2_500, 9_000, 2**31 - 1])
def test_w8_sizes_are_limited_to_whole_batches_as_in_kafka(pair: Pair, filled: Topic, limit: int, whole: int) -> None:
    message = fetch(filled, 12, wanted(2), wanted(0, 4, limit=limit), wanted(1, limit=limit), MaxBytes=whole)
    answers = pair.call("Fetch", 12, message)
    for each in answers:
        for part in parts(each).values():
            part["Records"] = whole_batches(part["Records"])
    assert sizes(same(answers))[0] > 0, "one whole batch always"


@pytest.mark.parametrize("offset", [0, 5, 17, 18, 19, 1000, -1, 2**63 - 1])
@pytest.mark.parametrize("version", [4, 11, 12, 17])
def test_offsets_at_the_ends_and_beyond(pair: Pair, filled: Topic, offset: int, version: int) -> None:
    answer = same(pair.call("Fetch", version, fetch(filled, version, wanted(0, offset))))
    assert parts(answer)[0]["ErrorCode"] == (0 if 0 <= offset <= 18 else 1)


@pytest.mark.parametrize("version", [9, 12, 16, 17])
@pytest.mark.parametrize("epoch", [-1, 0, 1, 7])
def test_a_leader_epoch_is_compared_with_the_partitions(pair: Pair, filled: Topic, version: int, epoch: int) -> None:
    same(pair.call("Fetch", version, fetch(filled, version, wanted(0, CurrentLeaderEpoch=epoch))))


@pytest.mark.parametrize("last", [-1, 0, 1, 5])
@pytest.mark.parametrize("offset", [0, 18, 25])
def test_a_diverging_epoch_is_reported(pair: Pair, filled: Topic, last: int, offset: int) -> None:
    same(pair.call("Fetch", 12, fetch(filled, 12, wanted(0, offset, LastFetchedEpoch=last))))


@pytest.mark.parametrize("version", [4, 7, 12])
@pytest.mark.parametrize("partition", [3, -1, 2**31 - 1])
def test_an_unknown_partition_fails_alone(pair: Pair, filled: Topic, version: int, partition: int) -> None:
    same(pair.call("Fetch", version, fetch(filled, version, wanted(partition), wanted(0))))


@pytest.mark.parametrize("version", [4, 7, 12])
@pytest.mark.parametrize("name", ["never-created", "../x", "", "x" * 250])
def test_x5_an_unknown_topic_fails_alone(pair: Pair, version: int, name: str) -> None:
    same(pair.call("Fetch", version, fetch(Topic(name, (b"", b"")), version, wanted(0))))


@pytest.mark.parametrize("version", [13, 17])
@pytest.mark.parametrize("topic_id", [bytes(16), b"\x01" * 16], ids=["zero", "unknown"])
def test_an_unknown_topic_id_fails_alone(pair: Pair, filled: Topic, version: int, topic_id: bytes) -> None:
    answer = same(pair.call("Fetch", version, fetch(Topic("", (topic_id, topic_id)), version, wanted(0))))
    assert parts(answer)[0]["ErrorCode"] == UNKNOWN_TOPIC_ID
    assert filled.ids[1] != topic_id


def test_zstd_is_served_to_every_version(pair: Pair, new_topic_name: Callable[[str], str]) -> None:
    """4.3.1 no longer answers UNSUPPORTED_COMPRESSION_TYPE below version 10 (removed with down-conversion)."""
    topic = pair.create(new_topic_name("zstd"), configs={"compression.type": "zstd"})
    same(pair.call("Produce", 9, produce(topic.name, batch_of(b"value"))))
    for version in (4, 9, 10):
        for answer in pair.call("Fetch", version, fetch(topic, version, wanted(0))):
            assert parts(answer)[0]["ErrorCode"] == 0
            assert parts(answer)[0]["Records"][22] == ZSTD


def test_a_batch_above_every_limit_is_returned_completely(pair: Pair, fill: Callable[..., Topic]) -> None:
    topic = fill(batch_of(b"x" * 900_000), batch_of(b"y"))
    answer = same(pair.call("Fetch", 12, fetch(topic, 12, wanted(0, limit=10), MaxBytes=10)))
    assert sizes(answer)[0] > 900_000


@pytest.mark.parametrize("replica", [0, 5, -2, -3])
def test_an_unknown_replica_id_is_answered_as_in_kafka(pair: Pair, filled: Topic, replica: int) -> None:
    same(pair.call("Fetch", 12, fetch(filled, 12, wanted(0), ReplicaId=replica)))


@pytest.mark.parametrize("isolation", [0, 1])
def test_both_isolation_levels_read_to_the_end(pair: Pair, filled: Topic, isolation: int) -> None:
    answer = same(pair.call("Fetch", 12, fetch(filled, 12, wanted(0), IsolationLevel=isolation)))
    assert parts(answer)[0]["LastStableOffset"] == 18


def test_an_empty_fetch_waits_for_max_wait_ms(pair: Pair, filled: Topic) -> None:
    answer = same(pair.call("Fetch", 12, fetch(filled, 12, wanted(2), MaxWaitMs=300, MinBytes=1)))
    assert sizes(answer) == {2: 0}


def test_a_waiting_fetch_is_woken_by_an_append(pair: Pair, fill: Callable[..., Topic]) -> None:
    topic = fill()
    answers = []
    for side, (reader, writer) in enumerate(zip(pair.connect(), pair.connect(), strict=True)):
        message = fetch(topic, 12, wanted(0), MaxWaitMs=20_000, MinBytes=1)
        assert callable(message)
        reader.send(encode_request("Fetch", 12, message(side)))
        writer.call("Produce", 9, produce(topic.name, batch_of(b"awaited")))
        got = reader.answer(timeout_s=5)
        assert isinstance(got, Reply), "woken long before MaxWaitMs"
        answers.append(decode_response("Fetch", 12, got.payload))
        reader.close()
        writer.close()
    assert b"awaited" in parts(same(answers))[0]["Records"]


class Session:
    """One fetch session on each side; every answer is compared."""

    def __init__(self, pair: Pair, version: int) -> None:
        self.pair, self.version, self.ids = pair, version, [0, 0]

    def fetch(
        self, topic: Topic, epoch: int, *partitions: Message, forget: tuple[int, ...] = (), session: int | None = None
    ) -> Message:
        """Fetch with the session of each side (or a given one)."""

        def for_side(side: int) -> Message:
            key = {"TopicId": topic.ids[side]} if self.version >= 13 else {"Topic": topic.name}
            topics = [{**key, "Partitions": list(partitions)}] if partitions else []
            forgotten = [{**key, "Partitions": list(forget)}] if forget else []
            chosen = self.ids[side] if session is None else session
            message = {"MaxWaitMs": 0, "MinBytes": 0, "SessionId": chosen, "SessionEpoch": epoch}
            return {**message, "Topics": topics, "ForgottenTopicsData": forgotten}

        answers = self.pair.call("Fetch", self.version, for_side)
        if epoch == 0:
            self.ids = [answer["SessionId"] for answer in answers]
        return same(answers)


@pytest.mark.parametrize("version", [7, 12, 13, 17])
def test_a_session_returns_only_changes(pair: Pair, fill: Callable[..., Topic], filled: Topic, version: int) -> None:
    topic = fill(batch_of(b"first"))
    session = Session(pair, version)
    opened = session.fetch(topic, 0, wanted(0))
    assert opened["SessionId"] != 0
    assert sizes(opened) == {0: len(batch_of(b"first"))}
    assert sizes(session.fetch(topic, 1, wanted(0, 1))) == {}, "nothing new"
    same(pair.call("Produce", 9, produce(topic.name, batch_of(b"second"))))
    assert 0 in sizes(session.fetch(topic, 2)), "the append shows"
    assert sizes(session.fetch(topic, 3, wanted(0, 2))) == {}
    assert 1 in sizes(session.fetch(filled, 4, wanted(1))), "a partition is added"
    assert sizes(session.fetch(filled, 5, forget=(1,))) == {}, "and forgotten"


@pytest.mark.parametrize("version", [7, 12, 17])
def test_w8_session_errors_are_kafkas(pair: Pair, filled: Topic, version: int) -> None:
    session = Session(pair, version)
    session.fetch(filled, 0, wanted(0))
    assert session.fetch(filled, 5, wanted(0))["ErrorCode"] == 71
    assert session.fetch(filled, 1, wanted(0), session=12345)["ErrorCode"] == 70
    assert session.fetch(filled, 1, wanted(0), session=0)["ErrorCode"] in {70, 71}
    assert session.fetch(filled, 1, wanted(0, 18))["ErrorCode"] == 0, "the session has survived that"


def test_a_session_is_closed_by_epoch_minus_one(pair: Pair, filled: Topic) -> None:
    session = Session(pair, 12)
    session.fetch(filled, 0, wanted(0))
    assert session.fetch(filled, -1, wanted(0))["SessionId"] == 0
    assert session.fetch(filled, 1, wanted(0))["ErrorCode"] == 70


def test_a_partition_error_in_a_session_is_repeated(pair: Pair, filled: Topic) -> None:
    session = Session(pair, 12)
    assert parts(session.fetch(filled, 0, wanted(0, 99), wanted(9)))[9]["ErrorCode"] == 3
    session.fetch(filled, 1)
    session.fetch(filled, 2, wanted(0, 18))
