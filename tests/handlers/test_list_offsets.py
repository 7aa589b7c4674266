import pytest

from kbroker.testing.disk_nodes import Loss
from kbroker.testing.env import WALL_START_MS
from kbroker.testing.memory_node import Client, MemoryBroker, memory_broker
from tests.handlers.asking import batch, create_topic, delete_records, list_offset, produce
from wire.errors import ErrorCode
from wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from wire.record_batch import Record, build_batch

FIRST_VERSIONS = {-1: 1, -2: 1, -3: 7, -4: 8, -5: 9, -6: 11}
NOTHING = (0, -1, -1, -1)


async def fill(client: Client, topic: str) -> None:
    """Append offsets 0-2 one second apart, 3 with the time of 1, and 4 an hour earlier."""
    await create_topic(client, topic)
    for times in ((0, 1, 2), (1,), (-3600,)):
        records = [Record(timestamp=WALL_START_MS + 1000 * time, value=b"v") for time in times]
        assert (await produce(client, topic, build_batch(records))).error_code == 0


@pytest.mark.parametrize("version", range(1, 12))
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        pytest.param(-1, (0, 5, -1, 0), id="latest"),
        pytest.param(-2, (0, 0, -1, 0), id="earliest"),
        pytest.param(-3, (0, 2, WALL_START_MS + 2000, 0), id="max timestamp"),
        pytest.param(-4, (0, 0, -1, 0), id="earliest local"),
        pytest.param(-5, NOTHING, id="latest tiered"),
        pytest.param(-6, NOTHING, id="earliest pending upload"),
        pytest.param(-7, NOTHING, id="no name"),
        pytest.param(-(2**63), NOTHING, id="no name at all"),
    ],
)
async def test_special_timestamps_work_in_the_versions_that_define_them(
    client: Client, version: int, name: int, expected: tuple[int, int, int, int]
) -> None:
    await fill(client, "t")
    if version < FIRST_VERSIONS.get(name, 99):
        expected = (ErrorCode.UNSUPPORTED_VERSION, -1, -1, -1)
    elif version < 4:
        expected = (*expected[:3], -1)
    assert await list_offset(client, "t", name, version=version) == expected


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (-99_999, (0, 0, WALL_START_MS, 0)),
        (0, (0, 0, WALL_START_MS, 0)),
        (0.5, (0, 1, WALL_START_MS + 1000, 0)),
        (1, (0, 1, WALL_START_MS + 1000, 0)),
        (2, (0, 2, WALL_START_MS + 2000, 0)),
        (2.001, NOTHING),
    ],
)
async def test_a_timestamp_finds_the_first_record_with_that_or_later(
    client: Client, seconds: float, expected: tuple[int, int, int, int]
) -> None:
    await fill(client, "t")
    assert await list_offset(client, "t", WALL_START_MS + int(1000 * seconds)) == expected


async def test_an_empty_partition_has_ends_but_no_records(client: Client) -> None:
    await create_topic(client, "t")
    assert [await list_offset(client, "t", name) for name in (-1, -2, -4)] == [(0, 0, -1, 0)] * 3
    assert [await list_offset(client, "t", name) for name in (-3, 0)] == [NOTHING] * 2


async def test_deleted_records_are_not_found(client: Client) -> None:
    await fill(client, "t")
    await delete_records(client, "t", 2)
    assert await list_offset(client, "t", -2) == (0, 2, -1, 0)
    assert await list_offset(client, "t", 0) == (0, 2, WALL_START_MS + 2000, 0)
    await delete_records(client, "t", -1)
    assert await list_offset(client, "t", 0) == NOTHING


@pytest.mark.parametrize(
    ("epoch", "code"), [(-1, 0), (0, 0), (1, ErrorCode.UNKNOWN_LEADER_EPOCH), (-2, ErrorCode.FENCED_LEADER_EPOCH)]
)
async def test_r13_the_leader_epoch_is_compared_from_version_4_on(client: Client, epoch: int, code: int) -> None:
    await create_topic(client, "t")
    assert (await list_offset(client, "t", -1, version=4, current_leader_epoch=epoch))[0] == code


@pytest.mark.parametrize("replica_id", [-2, 0, 5])
async def test_a_replica_id_is_not_checked(client: Client, replica_id: int) -> None:
    await fill(client, "t")
    assert await list_offset(client, "t", -1, replica_id=replica_id) == (0, 5, -1, 0)


async def test_each_offset_has_the_epoch_of_its_record(broker: MemoryBroker, client: Client) -> None:
    await fill(client, "t")
    async with memory_broker(broker.disk.crash(Loss.PROCESS_DEATH)) as again:
        client = await again.connect()
        later = batch(b"later", timestamp=WALL_START_MS + 10_000)
        await produce(client, "t", later)
        _, end, _, newest = await list_offset(client, "t", -1)
        assert end == 6
        assert newest > 0
        assert await list_offset(client, "t", -2) == (0, 0, -1, 0)
        assert await list_offset(client, "t", WALL_START_MS + 10_000) == (0, 5, WALL_START_MS + 10_000, newest)


async def test_unknown_and_duplicate_partitions_fail_alone(client: Client) -> None:
    await create_topic(client, "t", partitions=2)
    asked = [ListOffsetsPartition(partition_index=index, timestamp=-1) for index in (0, 1, 1, 7)]
    asked.append(ListOffsetsPartition(partition_index=8, timestamp=-99))
    answer = await client.ask(
        ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name="t", partitions=asked)]), version=5
    )
    assert {part.partition_index: part.error_code for part in answer.topics[0].partitions} == {
        0: 0,
        1: ErrorCode.INVALID_REQUEST,
        7: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        8: ErrorCode.UNSUPPORTED_VERSION,
    }
    assert len(answer.topics[0].partitions) == 4
