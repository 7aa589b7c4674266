import pytest
import trio

from kbroker.client.streaming import ConnectionClosed
from kbroker.node import NodeFailed
from kbroker.testing.disk import Fault
from kbroker.testing.env import WALL_START_MS
from kbroker.testing.memory_node import Client, MemoryBroker, memory_broker
from tests.handlers.asking import (
    NAMED,
    batch,
    create_topic,
    fetching,
    list_offset,
    new_producer,
    parts,
    produce,
    producing,
    read,
    read_batches,
    wanted,
)
from wire.compression import Codec
from wire.errors import ErrorCode
from wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from wire.messages.delete_topics import DeleteTopicsRequest
from wire.record_batch import Record, build_batch

HOUR_MS = 3_600_000
GOOD = batch(b"value")
FLIPPED = GOOD[:-2] + bytes([GOOD[-2] ^ 1]) + GOOD[-1:]


@pytest.mark.parametrize("version", range(3, 12))
async def test_a_batch_is_acknowledged_in_every_version(client: Client, version: int) -> None:
    await create_topic(client, "t")
    for base_offset in (0, 2):
        answer = await produce(client, "t", batch(b"a", b"b"), version=version)
        assert (answer.error_code, answer.base_offset, answer.log_append_time_ms) == (0, base_offset, -1)
        assert answer.log_start_offset == (0 if version >= 5 else -1)
    assert await read(client, "t") == [b"a", b"b"] * 2


@pytest.mark.parametrize(
    ("records", "code"),
    [
        pytest.param(None, ErrorCode.INVALID_RECORD, id="null"),
        pytest.param(b"", ErrorCode.INVALID_RECORD, id="no bytes"),
        pytest.param(GOOD[:-3], ErrorCode.INVALID_RECORD, id="cut short"),
        pytest.param(GOOD + GOOD, ErrorCode.INVALID_RECORD, id="two batches"),
        pytest.param(FLIPPED, ErrorCode.CORRUPT_MESSAGE, id="wrong CRC"),
        pytest.param(batch(b"v", base_offset=5), ErrorCode.INVALID_RECORD, id="base offset"),
        pytest.param(batch(b"v", record_count=2), ErrorCode.INVALID_RECORD, id="count"),
        pytest.param(batch(b"v", is_control=True), ErrorCode.INVALID_RECORD, id="control batch"),
        pytest.param(batch(b"v", producer_id=1, producer_epoch=0), ErrorCode.INVALID_RECORD, id="no sequence"),
        pytest.param(batch(b"x" * 1_048_588), ErrorCode.MESSAGE_TOO_LARGE, id="too large"),
        pytest.param(batch(b"v", timestamp=WALL_START_MS + 2 * HOUR_MS), ErrorCode.INVALID_TIMESTAMP, id="future"),
    ],
)
@pytest.mark.parametrize("version", [3, 11])
async def test_w5_a_bad_batch_gets_kafkas_code_and_is_not_stored(
    client: Client, records: bytes | None, code: ErrorCode, version: int
) -> None:
    await create_topic(client, "t")
    answer = await produce(client, "t", records, version=version)
    assert (answer.error_code, answer.base_offset, answer.log_append_time_ms) == (code, -1, -1)
    assert await list_offset(client, "t", -1) == (0, 0, -1, 0)


async def test_w5_zstd_is_refused_below_version_7(client: Client) -> None:
    await create_topic(client, "t")
    records = batch(b"v" * 100, codec=Codec.ZSTD)
    refused = await produce(client, "t", records, version=6)
    assert refused.error_code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    assert (await produce(client, "t", records, version=7)).error_code == 0


async def test_w5_a_batch_beyond_a_segment_is_refused(client: Client) -> None:
    await create_topic(client, "t", settings={"segment.bytes": 1 << 20, "max.message.bytes": 1 << 22})
    answer = await produce(client, "t", batch(b"x" * (1 << 20)))
    assert answer.error_code == ErrorCode.RECORD_LIST_TOO_LARGE


@pytest.mark.parametrize("topic", ["absent", "../x", "", "nul\0", "x" * 250])
@pytest.mark.parametrize("version", [3, 11])
async def test_x5_an_unknown_or_invalid_topic_creates_no_file(
    broker: MemoryBroker, client: Client, topic: str, version: int
) -> None:
    before = broker.files()
    assert (await produce(client, topic, GOOD, version=version)).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert broker.files() == before
    assert set(broker.disk.list("/")) == {"data"}


@pytest.mark.parametrize("acks", [-2, 2, 7])
async def test_w5_invalid_acks_are_refused_after_the_topic_check(client: Client, acks: int) -> None:
    await create_topic(client, "t")
    answer = await client.ask(producing(("t", 0, GOOD), ("absent", 0, GOOD), acks=acks), version=NAMED)
    codes = [part.error_code for topic in answer.responses for part in topic.partition_responses]
    assert codes == [ErrorCode.INVALID_REQUIRED_ACKS, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert await read(client, "t") == []


@pytest.mark.parametrize("acks", [1, -1])
async def test_each_partition_is_answered_independently(client: Client, acks: int) -> None:
    await create_topic(client, "a", partitions=2)
    await create_topic(client, "b")
    answer = await client.ask(
        producing(("a", 0, batch(b"1")), ("a", 1, FLIPPED), ("a", 2, GOOD), ("b", 0, batch(b"2")), acks=acks),
        version=NAMED,
    )
    results = {
        (topic.name, part.index): (part.error_code, part.base_offset)
        for topic in answer.responses
        for part in topic.partition_responses
    }
    assert results == {
        ("a", 0): (0, 0),
        ("a", 1): (ErrorCode.CORRUPT_MESSAGE, -1),
        ("a", 2): (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1),
        ("b", 0): (0, 0),
    }
    assert (await read(client, "a"), await read(client, "b")) == ([b"1"], [b"2"])


async def test_acks_0_has_no_reply_but_the_next_request_has(client: Client) -> None:
    await create_topic(client, "t")
    await client.send(producing(("t", 0, batch(b"silent")), acks=0), version=NAMED, is_answered=False)
    assert (await produce(client, "t", batch(b"loud"))).base_offset == 1
    assert await read(client, "t") == [b"silent", b"loud"]


async def test_w5_an_error_with_acks_0_closes_after_appending_the_rest(broker: MemoryBroker, client: Client) -> None:
    await create_topic(client, "t", partitions=3)
    await client.send(producing(("t", 0, batch(b"0")), ("t", 1, FLIPPED), ("t", 2, batch(b"2")), acks=0), version=NAMED)
    with pytest.raises(ConnectionClosed):
        await client.receive()
    other = await broker.connect()
    assert [await read(other, "t", partition=index) for index in range(3)] == [[b"0"], [], [b"2"]]


async def test_a_repeated_batch_gets_its_first_offset_and_timestamp(client: Client) -> None:
    await create_topic(client, "t")
    producer = {"producer_id": await new_producer(client), "producer_epoch": 0}
    first = batch(b"a", b"b", base_sequence=0, **producer)
    assert (await produce(client, "t", first)).log_append_time_ms == -1
    assert (await produce(client, "t", batch(b"c", base_sequence=2, **producer))).base_offset == 2
    again = await produce(client, "t", first)
    assert (again.error_code, again.base_offset) == (0, 0)
    assert again.log_append_time_ms == WALL_START_MS, "the timestamp of the batch that is stored"
    assert await read(client, "t") == [b"a", b"b", b"c"]


async def test_a_repeated_batch_gets_its_first_log_append_time(client: Client) -> None:
    await create_topic(client, "t", settings={"message.timestamp.type": "LogAppendTime"})
    producer = {"producer_id": await new_producer(client), "producer_epoch": 0}
    records = batch(b"a", base_sequence=0, **producer)
    await trio.sleep(1)
    first = await produce(client, "t", records)
    await trio.sleep(1)
    again = await produce(client, "t", records)
    assert first.log_append_time_ms == again.log_append_time_ms == WALL_START_MS + 1_000


@pytest.mark.parametrize(
    ("sequence", "epoch", "code"),
    [(2, 0, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER), (0, 1, 0), (5, 2, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)],
)
async def test_sequence_gaps_of_a_producer_are_refused(client: Client, sequence: int, epoch: int, code: int) -> None:
    await create_topic(client, "t")
    producer_id = await new_producer(client)
    await produce(client, "t", batch(b"a", producer_id=producer_id, producer_epoch=0, base_sequence=0))
    answer = await produce(
        client, "t", batch(b"b", producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)
    )
    assert answer.error_code == code
    assert answer.log_start_offset == 0, "the log refused the batch, so the reply has its start offset"


async def test_an_older_epoch_of_a_producer_is_refused(client: Client) -> None:
    await create_topic(client, "t")
    producer_id = await new_producer(client)
    await produce(client, "t", batch(b"a", producer_id=producer_id, producer_epoch=3, base_sequence=0))
    answer = await produce(client, "t", batch(b"b", producer_id=producer_id, producer_epoch=2, base_sequence=1))
    assert answer.error_code == ErrorCode.INVALID_PRODUCER_EPOCH


async def test_log_append_time_is_returned_and_stored(client: Client) -> None:
    await create_topic(client, "t", settings={"message.timestamp.type": "LogAppendTime"})
    await trio.sleep(60)
    answer = await produce(client, "t", batch(b"a"))
    assert answer.log_append_time_ms == WALL_START_MS + 60_000
    part = parts(await client.ask(fetching("t", wanted()), version=12))[0]
    (stored,) = read_batches(part)
    assert stored.is_log_append_time
    assert stored.max_timestamp == answer.log_append_time_ms
    assert stored.crc_is_valid()


async def test_refused_records_are_listed_from_version_8_on(client: Client) -> None:
    await create_topic(client, "t")
    late = WALL_START_MS + 2 * HOUR_MS
    records = build_batch(
        [Record(timestamp=WALL_START_MS, value=b"a"), Record(timestamp=late, value=b"b")], base_timestamp=WALL_START_MS
    )
    answer = await produce(client, "t", records, version=8)
    assert answer.error_code == ErrorCode.INVALID_TIMESTAMP
    assert [error.batch_index for error in answer.record_errors] == [1]
    assert answer.error_message
    assert (await produce(client, "t", records, version=7)).record_errors == []


async def test_transactional_records_without_a_transactional_id_fail_the_request(client: Client) -> None:
    await create_topic(client, "t", partitions=2)
    of_transaction = batch(b"v", producer_id=1, producer_epoch=0, base_sequence=0, is_transactional=True)
    answer = await client.ask(producing(("t", 0, GOOD), ("t", 1, of_transaction)), version=NAMED)
    codes = [part.error_code for part in answer.responses[0].partition_responses]
    assert codes == [ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED] * 2
    assert await read(client, "t") == []


async def test_min_insync_replicas_never_exceeds_the_number_of_replicas(client: Client) -> None:
    await create_topic(client, "t", settings={"min.insync.replicas": 2})
    assert (await produce(client, "t", GOOD)).error_code == 0


async def test_concurrent_appends_continue_during_rolls_and_syncs(broker: MemoryBroker) -> None:
    client = await broker.connect()
    await create_topic(client, "t", settings={"segment.bytes": 1 << 20, "flush.messages": 1})
    answers = []

    async def write(number: int) -> None:
        writer = await broker.connect()
        for _ in range(5):
            answers.append((await produce(writer, "t", batch(bytes(100_000 + number)))).base_offset)

    async with trio.open_nursery() as nursery:
        for number in range(6):
            nursery.start_soon(write, number)
    assert sorted(answers) == list(range(30))
    assert sum(name.startswith("t-0/") and name.endswith(".log") for name in broker.files()) > 1
    found: list[bytes | None] = []
    while len(found) < 30:
        found += await read(client, "t", offset=len(found))
    assert sorted(len(value or b"") for value in found) == sorted(
        100_000 + number for number in range(6) for _ in "12345"
    )


async def test_d8_a_failed_disk_is_reported_and_never_retried() -> None:
    async with memory_broker(stops_cleanly=False) as broker:
        client = await broker.connect()
        await create_topic(client, "t", settings={"flush.messages": 1})
        broker.disk.inject(Fault(5, name="sync", path="*/t-0/*.log"))
        assert (await produce(client, "t", GOOD)).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        broker.disk.heal()
        assert (await produce(client, "t", GOOD)).error_code == ErrorCode.KAFKA_STORAGE_ERROR


async def test_d8_a_node_whose_only_directory_fails_stops_with_an_error() -> None:
    with pytest.raises(ExceptionGroup) as caught:  # noqa: PT012 - it fails while the block runs
        async with memory_broker() as broker:
            client = await broker.connect()
            await create_topic(client, "t", settings={"flush.messages": 1})
            broker.disk.inject(Fault(5, name="sync", path="*/t-0/*.log"))
            assert (await produce(client, "t", GOOD)).error_code == ErrorCode.KAFKA_STORAGE_ERROR
            await trio.sleep(60)
    assert caught.group_contains(NodeFailed, match="the data directory /data has failed")


async def test_d9_a_full_disk_refuses_records_until_there_is_space(broker: MemoryBroker, client: Client) -> None:
    await create_topic(client, "t")
    await produce(client, "t", batch(b"before"))
    broker.disk.inject(Fault(28, name="write", path="*/t-0/*.log", written=30))
    assert (await produce(client, "t", batch(b"lost"))).error_code == ErrorCode.KAFKA_STORAGE_ERROR
    broker.disk.heal()
    assert (await produce(client, "t", batch(b"after"))).base_offset == 1
    assert await read(client, "t") == [b"before", b"after"]


async def test_d9_with_little_space_records_are_refused_but_readable() -> None:
    async with memory_broker(settings={"kbroker.min.free.bytes": 1_000_000}) as broker:
        client = await broker.connect()
        await create_topic(client, "t")
        await create_topic(client, "doomed")
        await produce(client, "t", batch(b"before"))
        broker.disk.capacity_bytes = 500_000
        await trio.sleep(60)
        assert (await produce(client, "t", GOOD)).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert await read(client, "t") == [b"before"]
        topic = CreatableTopic(name="u", num_partitions=1, replication_factor=1, assignments=[], configs=[])
        made = await client.ask(CreateTopicsRequest(topics=[topic]), version=5)
        assert [topic.error_code for topic in made.topics] == [ErrorCode.KAFKA_STORAGE_ERROR]
        gone = await client.ask(DeleteTopicsRequest(topic_names=["doomed"], timeout_ms=0), version=1)
        assert [topic.error_code for topic in gone.responses] == [ErrorCode.NONE]
        broker.disk.capacity_bytes = None
        await trio.sleep(60)
        assert (await produce(client, "t", GOOD)).error_code == 0
