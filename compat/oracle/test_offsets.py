"""ListOffsets, OffsetForLeaderEpoch, DeleteRecords and InitProducerId."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from compat.oracle.batches import GZIP, Batch, Item
from compat.oracle.conftest import Pair, Topic, same
from compat.oracle.schema import Message
from compat.oracle.test_produce import produce

START = 1_700_000_000_000


@pytest.fixture(scope="module")
def dated(pair: Pair, new_topic_name: Callable[[str], str]) -> Topic:
    """Partition 0: twelve records in three batches, 1 s apart except for one; 1 is empty; 2 is 0 cut at offset 5."""
    topic = pair.create(new_topic_name("offsets"), partitions=3)
    for partition in (0, 2):
        for number, codec in enumerate([0, GZIP, 0]):
            items = [Item(b"v", timestamp_delta=1000 * place) for place in range(4)]
            items[1].timestamp_delta = 9000 if number == 1 else 1000
            batch = Batch(items, base_timestamp=START + 4000 * number, codec=codec)
            same(pair.call("Produce", 9, produce(topic.name, batch.encode(), partition=partition)))
    answer = same(pair.call("DeleteRecords", 2, delete(topic.name, 2, 5)))
    assert answer["Topics"][0]["Partitions"][0] == {"PartitionIndex": 2, "LowWatermark": 5, "ErrorCode": 0}
    return topic


def delete(topic: str, partition: int, offset: int) -> Message:
    wanted = {"PartitionIndex": partition, "Offset": offset}
    return {"Topics": [{"Name": topic, "Partitions": [wanted]}], "TimeoutMs": 5000}


def listing(topic: str, timestamp: int, *partitions: int, **more: Any) -> Message:
    asked = [{"PartitionIndex": index, "Timestamp": timestamp, **more} for index in partitions or (0, 1, 2)]
    return {"ReplicaId": -1, "Topics": [{"Name": topic, "Partitions": asked}]}


SPECIAL = [-1, -2, -3, -4, -5, -6, -7, -(2**63)]
DATES = [
    0,
    START - 1,
    START,
    START + 1,
    START + 1500,
    START + 4000,
    START + 9500,
    START + 12_999,
    START + 20_000,
    2**63 - 1,
]


@pytest.mark.parametrize("version", range(1, 12))
def test_every_timestamp_in_every_version(pair: Pair, dated: Topic, version: int) -> None:
    for timestamp in (*SPECIAL, *DATES):
        answers = pair.call("ListOffsets", version, listing(dated.name, timestamp))
        assert (timestamp, same(answers)) == (timestamp, answers[0])


@pytest.mark.parametrize("version", [2, 7, 10])
def test_committed_reads_find_the_same_offsets(pair: Pair, dated: Topic, version: int) -> None:
    for timestamp in (-1, -2, START + 1500):
        same(pair.call("ListOffsets", version, {**listing(dated.name, timestamp), "IsolationLevel": 1}))


@pytest.mark.parametrize("epoch", [-1, 0, 1])
def test_a_leader_epoch_is_compared(pair: Pair, dated: Topic, epoch: int) -> None:
    same(pair.call("ListOffsets", 4, listing(dated.name, -1, CurrentLeaderEpoch=epoch)))


@pytest.mark.parametrize("version", [1, 5, 10])
def test_unknown_and_duplicate_partitions_fail_as_in_kafka(pair: Pair, dated: Topic, version: int) -> None:
    same(pair.call("ListOffsets", version, listing(dated.name, -1, 0, 3, -1)))
    same(pair.call("ListOffsets", version, listing("never-created", -1, 0)))
    same(pair.call("ListOffsets", version, listing("../x", -1, 0)))
    same(pair.call("ListOffsets", version, listing(dated.name, -1, 1, 1)))


@pytest.mark.parametrize("replica", [-2, 0, 5])
def test_a_replica_id_is_not_checked(pair: Pair, dated: Topic, replica: int) -> None:
    same(pair.call("ListOffsets", 9, {**listing(dated.name, -1), "ReplicaId": replica}))


def ending(topic: str, epoch: int, *partitions: int, current: int = -1) -> Message:
    asked = [
        {"Partition": index, "CurrentLeaderEpoch": current, "LeaderEpoch": epoch} for index in partitions or (0, 1, 2)
    ]
    return {"ReplicaId": -1, "Topics": [{"Topic": topic, "Partitions": asked}]}


@pytest.mark.parametrize("version", [2, 3, 4])
def test_the_end_of_an_epoch(pair: Pair, dated: Topic, version: int) -> None:
    for epoch in (-1, 0, 1, 7):
        for current in (-1, 0, 1):
            same(pair.call("OffsetForLeaderEpoch", version, ending(dated.name, epoch, current=current)))
    same(pair.call("OffsetForLeaderEpoch", version, ending(dated.name, 0, 3)))
    same(pair.call("OffsetForLeaderEpoch", version, ending("never-created", 0, 0)))


@pytest.mark.parametrize("version", [0, 1, 2])
def test_records_are_deleted_up_to_an_offset(pair: Pair, new_topic_name: Callable[[str], str], version: int) -> None:
    topic = pair.create(new_topic_name("deleted"))
    for _ in range(3):
        same(pair.call("Produce", 9, produce(topic.name, Batch([Item(), Item()]).encode())))
    for offset in (2, 3, 1, -2, 7, -1, 0, 6):
        same(pair.call("DeleteRecords", version, delete(topic.name, 0, offset)))
        same(pair.call("ListOffsets", 5, listing(topic.name, -2, 0)))
    same(pair.call("DeleteRecords", version, delete(topic.name, 1, 0)))
    same(pair.call("DeleteRecords", version, delete("never-created", 0, 0)))


@pytest.mark.parametrize("version", range(6))
def test_producer_ids_are_unique(pair: Pair, version: int) -> None:
    first, second = pair.producer_ids(version), pair.producer_ids(version)
    same(first)
    for one, two in zip(first, second, strict=True):
        assert two["ProducerId"] > one["ProducerId"] >= 0
        assert two["ProducerEpoch"] == 0


@pytest.mark.parametrize("version", [3, 5])
def test_a_producer_id_without_a_transactional_id_is_not_renewed(pair: Pair, version: int) -> None:
    message = {"TransactionalId": None, "TransactionTimeoutMs": 60_000, "ProducerId": 7, "ProducerEpoch": 3}
    same(pair.call("InitProducerId", version, message))


@pytest.mark.parametrize(("producer_id", "epoch"), [(7, -1), (-1, 3), (-2, 0)])
def test_half_a_producer_id_is_refused_as_in_kafka(pair: Pair, producer_id: int, epoch: int) -> None:
    message = {
        "TransactionalId": None,
        "TransactionTimeoutMs": 60_000,
        "ProducerId": producer_id,
        "ProducerEpoch": epoch,
    }
    same(pair.call("InitProducerId", 4, message))
