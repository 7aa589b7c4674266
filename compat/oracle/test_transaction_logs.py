"""The log side of transactions: the same batches, markers and reads on both brokers.

Histories of several producers are generated. They write without a coordinator, so verification is disabled for them;
then every read is compared. Verification itself is compared with the coordinators of both brokers.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest

from compat.oracle.batches import Batch, Item
from compat.oracle.conftest import ForSide, Pair, Topic, same
from compat.oracle.schema import Message
from compat.oracle.test_fetch import fetch, parts, wanted, whole_batches
from compat.oracle.test_transactions import SAFE_DOWNGRADE, UPGRADE, finalize
from compat.oracle.transactions import OTHER_ID, Twins

TRANSACTIONAL = 0x10
VERIFICATION = "transaction.partition.verification.enable"
BROKERS, SET, DELETE = 4, 0, 1
COMMITTED = {"IsolationLevel": 1}
STEPS, PARTITIONS = 60, 2
UNKNOWN_ID = b"\1" * 16


@pytest.fixture
def unverified(pair: Pair) -> Iterator[Pair]:
    """Both brokers without verification."""
    configure(pair, SET, "false")
    yield pair
    configure(pair, DELETE, None)


def configure(pair: Pair, operation: int, value: str | None) -> None:
    config = {"Name": VERIFICATION, "ConfigOperation": operation, "Value": value}
    resource = {"ResourceType": BROKERS, "ResourceName": "", "Configs": [config]}
    same(pair.call("IncrementalAlterConfigs", 1, {"Resources": [resource], "ValidateOnly": False}))


def batch(
    producer_id: int, epoch: int, sequence: int, *, count: int = 1, size: int = 20, transactional: bool = True
) -> bytes:
    return Batch(
        [Item(b"%d" % number * size) for number in range(count)],
        attributes=TRANSACTIONAL if transactional else 0,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
    ).encode()


def producing(topic: Topic, records: Callable[[int], bytes] | bytes, *, version: int, name: str = "x") -> ForSide:
    """A transactional Produce to partition 0."""

    def for_side(side: int) -> Message:
        key = {"TopicId": topic.ids[side]} if version >= 13 else {"Name": topic.name}
        data = [{"Index": 0, "Records": records(side) if callable(records) else records}]
        return {
            "TransactionalId": name, "Acks": -1, "TimeoutMs": 10_000, "TopicData": [{**key, "PartitionData": data}],
        }  # fmt: skip

    return for_side


def marking(topic: Topic, producer_id: int, epoch: int, *partitions: int, commit: bool, **more: int) -> Message:
    marker = {
        "ProducerId": producer_id,
        "ProducerEpoch": epoch,
        "TransactionResult": commit,
        "Topics": [{"Name": topic.name, "PartitionIndexes": list(partitions or (0,))}],
        "CoordinatorEpoch": 0,
        **more,
    }
    return {"Markers": [marker]}


class History:
    """Random requests of a few producers, mostly valid ones; both brokers must answer each alike."""

    def __init__(self, pair: Pair, topic: Topic, seed: int) -> None:
        self.pair, self.topic, self.rng = pair, topic, random.Random(seed)
        self.version = self.rng.choice((0, 2))
        self.epochs = dict.fromkeys(range(100, 104), 0)
        self.sequences = dict.fromkeys(self.epochs, 0)

    def step(self) -> None:
        rng = self.rng
        producer_id = rng.choice(list(self.epochs))
        if rng.random() < 0.3:
            self.mark(producer_id)
        elif rng.random() < 0.1:
            records = Batch([Item(b"other")]).encode()
            same(self.pair.call("Produce", 9, producing(self.topic, records, version=9)))
        else:
            self.write(producer_id)

    def write(self, producer_id: int) -> None:
        rng, count = self.rng, self.rng.randint(1, 3)
        epoch = self.epochs[producer_id] + rng.choice((0,) * 12 + (-1, 1))
        sequence = self.sequences[producer_id] + rng.choice((0,) * 12 + (-1, 1, 5))
        if epoch < 0 or sequence < 0:
            return
        records = batch(producer_id, epoch, sequence, count=count, size=200, transactional=rng.random() < 0.95)
        answer = same(self.pair.call("Produce", 9, producing(self.topic, records, version=9)))
        (found,) = answer["Responses"][0]["PartitionResponses"]
        if not found["ErrorCode"]:
            if epoch != self.epochs[producer_id]:
                self.epochs[producer_id] = epoch
            self.sequences[producer_id] = sequence + count

    def mark(self, producer_id: int) -> None:
        rng = self.rng
        known = self.epochs[producer_id]
        epoch = known + (self.version == 2) + rng.choice((0,) * 8 + (-1, 1))
        if epoch < 0:
            return
        more = {"TransactionVersion": self.version} if self.version else {}
        request = marking(
            self.topic, producer_id, epoch, 0, 7, commit=rng.random() < 0.5,
            CoordinatorEpoch=rng.choice((3,) * 8 + (2,)), **more,
        )  # fmt: skip
        answer = same(self.pair.call("WriteTxnMarkers", 2 if self.version else 1, request))
        codes = {one["PartitionIndex"]: one["ErrorCode"] for one in answer["Markers"][0]["Topics"][0]["Partitions"]}
        if not codes[0] and epoch != known:
            self.epochs[producer_id], self.sequences[producer_id] = epoch, 0


def read_committed(pair: Pair, topic: Topic, offset: int, limit: int) -> Message:
    """A Fetch of both; the list of aborted transactions without those that begin after the records.

    Stated: Kafka lists those up to the next entry of its offset index.
    """
    answers = pair.call("Fetch", 11, fetch(topic, 11, wanted(0, offset, limit=limit), **COMMITTED))
    for answer in answers:
        part = parts(answer)[0]
        part["Records"] = without_clocks(whole_batches(part["Records"] or b""))
        end = end_of(part["Records"])
        part["AbortedTransactions"] = sorted(
            (one["FirstOffset"], one["ProducerId"])
            for one in part["AbortedTransactions"] or []
            if end is not None and one["FirstOffset"] < end
        )
    return same(answers)


def without_clocks(records: bytes) -> bytes:
    """Records with the timestamps of markers, and the checksums over them, set to 0."""
    data, at = bytearray(records), 0
    while at < len(data):
        size = 12 + int.from_bytes(data[at + 8 : at + 12], "big")
        if data[at + 22] & 0x20:
            data[at + 17 : at + 21] = bytes(4)
            data[at + 27 : at + 43] = bytes(16)
        at += size
    return bytes(data)


def end_of(records: bytes) -> int | None:
    at, end = 0, None
    while at < len(records):
        base = int.from_bytes(records[at : at + 8], "big")
        end = base + int.from_bytes(records[at + 23 : at + 27], "big") + 1
        at += 12 + int.from_bytes(records[at + 8 : at + 12], "big")
    return end


@pytest.mark.parametrize("seed", range(6))
def test_k5_histories_of_transactions_are_stored_and_read_alike(
    unverified: Pair, new_topic_name: Callable[[str], str], seed: int
) -> None:
    pair = unverified
    topic = pair.create(new_topic_name("history"), configs={"index.interval.bytes": "1"})
    history = History(pair, topic, seed)
    for _ in range(STEPS):
        history.step()
    end = 0
    for level in (0, 1):
        asked = [{"PartitionIndex": 0, "CurrentLeaderEpoch": -1, "Timestamp": -1}]
        message = {"ReplicaId": -1, "IsolationLevel": level, "Topics": [{"Name": topic.name, "Partitions": asked}]}
        end = same(pair.call("ListOffsets", 7, message))["Topics"][0]["Partitions"][0]["Offset"]
    for offset in range(0, end + 1, 3):
        for limit in (1, 1_000, 1 << 20):
            read_committed(pair, topic, offset, limit)
    message = {"Topics": [{"Name": topic.name, "PartitionIndexes": [0]}]}
    described = []
    for answer in pair.call("DescribeProducers", 0, message):
        states = answer["Topics"][0]["Partitions"][0]["ActiveProducers"]
        for state in states:
            state["LastTimestamp"] = "now" if state["LastTimestamp"] > 1_750_000_000_000 else state["LastTimestamp"]
            state["Place"] = state["ProducerId"]  # `same` hides ids
        described.append(sorted(states, key=lambda state: str(state["Place"])))
    assert described[0] == described[1]
    assert described[0]


def test_records_of_an_open_transaction_are_deleted_alike(
    unverified: Pair, new_topic_name: Callable[[str], str]
) -> None:
    pair = unverified
    topic = pair.create(new_topic_name("deleted"))
    for sequence in range(5):
        same(pair.call("Produce", 9, producing(topic, batch(9, 0, sequence), version=9)))
    partitions = [{"PartitionIndex": 0, "Offset": 3}]
    same(
        pair.call("DeleteRecords", 2, {"TimeoutMs": 10_000, "Topics": [{"Name": topic.name, "Partitions": partitions}]})
    )
    assert parts(read_committed(pair, topic, 3, 1 << 20))[0]["LastStableOffset"] == 3
    same(pair.call("WriteTxnMarkers", 1, marking(topic, 9, 0, commit=False)))
    assert parts(read_committed(pair, topic, 3, 1 << 20))[0]["AbortedTransactions"] == [(0, 9)]


def test_r11_markers_are_refused_alike(unverified: Pair, new_topic_name: Callable[[str], str]) -> None:
    pair = unverified
    topic = pair.create(new_topic_name("markers"), partitions=PARTITIONS)

    def write(epoch: int, sequence: int) -> int:
        answer = same(pair.call("Produce", 9, producing(topic, batch(9, epoch, sequence), version=9)))
        return int(answer["Responses"][0]["PartitionResponses"][0]["ErrorCode"])

    def mark(epoch: int, version: int, *, coordinator: int = 1) -> list[int]:
        request = marking(topic, 9, epoch, 0, 1, 5, commit=True, CoordinatorEpoch=coordinator,
                          TransactionVersion=version)  # fmt: skip
        answer = same(pair.call("WriteTxnMarkers", 2, request))
        return sorted(one["ErrorCode"] for one in answer["Markers"][0]["Topics"][0]["Partitions"])

    assert write(4, 0) == 0
    assert mark(3, 0) == [0, 3, 47]
    assert mark(4, 2) == [0, 3, 47], "an equal epoch, while the transaction is open"
    assert mark(5, 2) == [0, 0, 3]
    assert mark(5, 2) == [0, 0, 3], "a retry"
    assert mark(4, 2) == [3, 47, 47]
    assert mark(5, 0, coordinator=0) == [3, 52, 52]
    assert write(4, 1) == 47
    assert write(5, 1) == 45
    assert write(5, 0) == 0
    assert mark(5, 2) == [0, 3, 47], "a late marker must not complete the next transaction"
    assert mark(5, 0) == [0, 0, 3]
    assert write(32_767, 0) == 0
    assert mark(32_767, 2) == [0, 0, 3], "after an overflow"


@pytest.fixture
def transaction_version(pair: Pair, request: pytest.FixtureRequest) -> Iterator[int]:
    """The transaction.version of both clusters: that of producers which send the version of Produce."""
    if request.param:
        finalize(pair, request.param, UPGRADE)
    yield request.param
    if request.param:
        finalize(pair, 0, SAFE_DOWNGRADE)


@pytest.mark.parametrize(
    ("transaction_version", "version"), [(0, 9), (0, 10), (0, 11), (2, 12), (2, 13)], indirect=["transaction_version"]
)
@pytest.mark.parametrize("state", ["not added", "added", "ended"])
def test_unverified_batches_are_refused_alike(
    pair: Pair, new_topic_name: Callable[[str], str], version: int, state: str, transaction_version: int
) -> None:
    end = 5 if transaction_version == 2 else 4
    topic = pair.create(new_topic_name("verified"))
    for other_id, epoch, sequence in ((None, 0, 0), (None, 0, 3), (None, -1, 0), (None, 1, 0), (OTHER_ID, 0, 0)):
        twins = Twins(pair, new_topic_name("id"))
        twins.call("FindCoordinator", 6, [{"KeyType": 1, "CoordinatorKeys": [twins.name]}] * 2)
        twins.init()
        twins.init()  # epoch 1, so that there is an old one
        if state != "not added":
            twins.add((topic.name, 0), version=end if end == 5 else 3)
        if state == "ended":
            twins.end(is_commit=True, version=end)
            twins.described()
        who = twins.producer(id_from=other_id, epoch=epoch)

        def records(side: int, who: list[tuple[int, int]] = who, sequence: int = sequence) -> bytes:
            return batch(*who[side], sequence)

        try:
            same(pair.call("Produce", version, producing(topic, records, version=version, name=twins.name)))
            same(pair.call("Produce", version, producing(topic, records, version=version, name=twins.name)))
            twins.end(is_commit=False, version=end)
            twins.described()
        except AssertionError as error:
            raise AssertionError(f"{other_id=} {epoch=} {sequence=}: {error}") from error


def test_requests_are_refused_alike(pair: Pair, new_topic_name: Callable[[str], str]) -> None:
    topic = pair.create(new_topic_name("refused"), partitions=PARTITIONS)

    def two(*, named: bool = True) -> Message:
        data = [{"Index": index, "Records": batch(20 + index, 0, 0)} for index in range(PARTITIONS)]
        return {
            "TransactionalId": "x" if named else None, "Acks": -1, "TimeoutMs": 1_000,
            "TopicData": [{"Name": topic.name, "PartitionData": data}],
        }  # fmt: skip

    for version in (9, 11, 12):
        same(pair.call("Produce", version, two()))
        same(pair.call("Produce", version, two(named=False)))
    unknown = {"TopicId": UNKNOWN_ID, "PartitionData": [{"Index": 0, "Records": Batch([Item(b"v")]).encode()}]}

    def by_id(side: int) -> Message:
        known = {**unknown, "TopicId": topic.ids[side]}
        return {"Acks": -1, "TimeoutMs": 1_000, "TopicData": [known, unknown]}

    same(pair.call("Produce", 13, by_id))
    outside = [{"Index": 77, "Records": Batch([Item(b"v")]).encode()}]
    same(
        pair.call(
            "Produce",
            13,
            lambda side: {
                "Acks": -1,
                "TimeoutMs": 1_000,
                "TopicData": [{"TopicId": topic.ids[side], "PartitionData": outside}],
            },
        )
    )
    same(pair.call("WriteTxnMarkers", 1, {"Markers": []}))
