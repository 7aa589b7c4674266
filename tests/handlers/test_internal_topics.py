"""Records that clients may write to the topics that the broker itself reads."""

from __future__ import annotations

import pytest

from kbroker.coordinator.common.ports import partition_for
from kbroker.testing.memory_node import Client, MemoryBroker
from kbroker.testing.remote_metadata import ORDERS, segment_metadata
from kbroker.tiered.metadata_topic import encode_event, metadata_partition
from tests.handlers.asking import NAMED, create_topic, producing
from wire.compression import Codec
from wire.errors import ErrorCode
from wire.messages.produce import PartitionProduceResponse
from wire.record_batch import Record, build_batch
from wire.stored.frame import encode_key, encode_value
from wire.stored.groups import GroupMetadataKey, GroupMetadataValue, OffsetCommitKey, OffsetCommitValue
from wire.stored.transactions import TransactionLogKey, TransactionLogValue

GROUPS, TRANSACTIONS, TIER = "__consumer_offsets", "__transaction_state", "__remote_log_metadata"
COUNT = 3
OFFSET_KEY = encode_key(OffsetCommitKey(group="g", topic="t", partition=0))
OFFSET = Record(key=OFFSET_KEY, value=encode_value(OffsetCommitValue(offset=1, metadata="", commit_timestamp=5), 3))
TRANSACTION_KEY = encode_key(TransactionLogKey(transactional_id="g"))
TRANSACTION = Record(
    key=TRANSACTION_KEY,
    value=encode_value(
        TransactionLogValue(
            producer_id=1,
            producer_epoch=0,
            transaction_timeout_ms=1,
            transaction_status=0,
            transaction_partitions=None,
            transaction_last_update_timestamp_ms=1,
            transaction_start_timestamp_ms=1,
        ),
        1,
    ),
)
EVENT = Record(value=encode_event(segment_metadata(ORDERS, 0, 9)))
HOME = {
    GROUPS: partition_for("g", COUNT),
    TRANSACTIONS: partition_for("g", COUNT),
    TIER: metadata_partition(ORDERS, COUNT),
}


@pytest.fixture
async def tools(broker: MemoryBroker) -> Client:
    """A client with the client id of Kafka's tools, on a broker with these topics."""
    client = await broker.connect(client_id="__admin_client")
    for topic in HOME:
        await create_topic(client, topic, partitions=COUNT)
    return client


async def write(
    client: Client, topic: str, *records: Record, partition: int | None = None, codec: Codec = Codec.NONE
) -> PartitionProduceResponse:
    index = HOME[topic] if partition is None else partition
    answer = await client.ask(producing((topic, index, build_batch(records, codec=codec))), version=NAMED)
    found = answer.responses[0].partition_responses[0]
    assert isinstance(found, PartitionProduceResponse)
    return found


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
@pytest.mark.parametrize(
    ("topic", "record"),
    [
        (GROUPS, OFFSET),
        (GROUPS, Record(key=OFFSET_KEY, value=None)),
        (GROUPS, Record(key=b"\0\3\0\1g", value=b"\0\0")),
        (TRANSACTIONS, TRANSACTION),
        (TRANSACTIONS, Record(key=TRANSACTION_KEY, value=None)),
        (TIER, EVENT),
    ],
)
async def test_readable_records_are_accepted(tools: Client, topic: str, record: Record, codec: Codec) -> None:
    assert (await write(tools, topic, record, codec=codec)).error_code == 0


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
@pytest.mark.parametrize(
    ("topic", "record"),
    [
        (GROUPS, Record(key=None, value=b"x")),
        (GROUPS, Record(key=b"\0\1short", value=b"x")),
        (GROUPS, Record(key=OFFSET_KEY, value=b"\0")),
        (GROUPS, Record(key=OFFSET_KEY, value=b"\0\x63" + bytes(50))),
        (
            GROUPS,
            Record(
                key=encode_key(GroupMetadataKey(group="other")),
                value=encode_value(
                    GroupMetadataValue(protocol_type="", generation=1, protocol=None, leader=None, members=[]), 3
                ),
            ),
        ),
        (TRANSACTIONS, Record(key=b"\0\0short", value=b"x")),
        (TRANSACTIONS, Record(key=TRANSACTION_KEY, value=b"\0\1")),
        (TIER, Record(value=None)),
        (TIER, Record(value=b"not an event")),
    ],
)
async def test_unreadable_records_are_refused(tools: Client, topic: str, record: Record, codec: Codec) -> None:
    good = {GROUPS: OFFSET, TRANSACTIONS: TRANSACTION, TIER: EVENT}[topic]
    answer = await write(tools, topic, good, record, codec=codec)
    assert answer.error_code == ErrorCode.INVALID_RECORD
    assert [error.batch_index for error in answer.record_errors] == [1]
    assert f"{topic} cannot accept this record" in answer.error_message


@pytest.mark.parametrize(("topic", "record"), [(GROUPS, OFFSET), (TRANSACTIONS, TRANSACTION), (TIER, EVENT)])
async def test_a_record_of_another_partition_is_refused(tools: Client, topic: str, record: Record) -> None:
    answer = await write(tools, topic, record, partition=(HOME[topic] + 1) % COUNT)
    assert answer.error_code == ErrorCode.INVALID_RECORD
    assert f"it belongs to partition {HOME[topic]}" in answer.error_message


async def test_only_kafkas_tools_may_write_internal_topics(broker: MemoryBroker, client: Client) -> None:
    assert (await write(client, GROUPS, OFFSET)).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    await create_topic(client, GROUPS, partitions=COUNT)
    assert (await write(client, GROUPS, OFFSET)).error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    tools = await broker.connect(client_id="__admin_client")
    assert (await write(tools, GROUPS, OFFSET)).error_code == 0
