"""ListOffsets and OffsetForLeaderEpoch over both tiers: a whole node, on virtual time."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import trio

from kbroker.testing.env import WALL_START_MS
from kbroker.testing.memory_node import MemoryBroker, memory_broker
from tests.handlers.asking import batch, create_topic, delete_records, list_offset, produce
from tests.handlers.test_offset_for_leader_epoch import end_of
from tests.handlers.test_tier_fetch import PER_SEGMENT, SETTINGS, TIERED, VALUE, until_local_from
from wire.errors import ErrorCode
from wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING_UPLOAD = range(-1, -7, -1)
LOCAL, END = 2 * PER_SEGMENT, 2 * PER_SEGMENT + 3
NEWEST = 14


def time_of(offset: int) -> int:
    """The timestamp of a record: `offset` seconds after the first, except NEWEST, which has the largest timestamp."""
    return WALL_START_MS + (1_000_000 if offset == NEWEST else 1_000 * offset)


@pytest.fixture
async def tiered() -> AsyncIterator[MemoryBroker]:
    """Topic t has offsets 0 to 19 only in the tier, and 20 to 22 locally."""
    async with memory_broker(settings=SETTINGS) as broker:
        client = await broker.connect()
        await create_topic(client, "t", settings={**TIERED, "message.timestamp.after.max.ms": 1 << 50})
        for offset in range(END):
            made = batch(VALUE, timestamp=time_of(offset))
            assert (await produce(client, "t", made)).error_code == 0
        await until_local_from(client, "t", LOCAL)
        yield broker


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (LATEST, (0, END, -1, 0)),
        (EARLIEST, (0, 0, -1, 0)),
        (EARLIEST_LOCAL, (0, LOCAL, -1, 0)),
        (LATEST_TIERED, (0, LOCAL - 1, -1, 0)),
        (EARLIEST_PENDING_UPLOAD, (0, LOCAL, -1, 0)),
        (MAX_TIMESTAMP, (0, NEWEST, time_of(NEWEST), 0)),
    ],
)
@pytest.mark.parametrize("replica_id", [-1, 3])
async def test_special_timestamps_cover_both_tiers(
    tiered: MemoryBroker, name: int, expected: tuple[int, int, int, int], replica_id: int
) -> None:
    """KAFKA-17552: the largest timestamp is in the tier."""
    client = await tiered.connect()
    assert await list_offset(client, "t", name, replica_id=replica_id, version=11) == expected


@pytest.mark.parametrize(
    ("name", "first"), [(MAX_TIMESTAMP, 7), (EARLIEST_LOCAL, 8), (LATEST_TIERED, 9), (EARLIEST_PENDING_UPLOAD, 11)]
)
async def test_a_special_timestamp_is_refused_in_older_versions(tiered: MemoryBroker, name: int, first: int) -> None:
    """KAFKA-16480, KAFKA-17331."""
    client = await tiered.connect()
    before = await list_offset(client, "t", name, version=first - 1)
    assert before[:2] == (ErrorCode.UNSUPPORTED_VERSION, -1)
    assert (await list_offset(client, "t", name, version=first))[0] == 0


async def test_a_timestamp_is_looked_up_first_in_the_tier(tiered: MemoryBroker) -> None:
    client = await tiered.connect()
    for offset in range(END):
        asked = WALL_START_MS + 1_000 * offset - 1
        expected = next(one for one in range(END) if time_of(one) >= asked)
        found = await list_offset(client, "t", asked)
        assert found == (0, expected, time_of(expected), 0), offset
    assert await list_offset(client, "t", time_of(NEWEST) + 1) == (0, -1, -1, -1)


async def test_deleting_records_in_the_tier_changes_look_ups(tiered: MemoryBroker) -> None:
    client = await tiered.connect()
    assert await delete_records(client, "t", NEWEST + 1) == (0, NEWEST + 1)
    assert (await list_offset(client, "t", EARLIEST))[1] == NEWEST + 1
    assert await list_offset(client, "t", MAX_TIMESTAMP) == (0, END - 1, time_of(END - 1), 0)
    assert await list_offset(client, "t", 0) == (0, NEWEST + 1, time_of(NEWEST + 1), 0)


async def test_a_tiered_topic_without_segments_differs_from_an_untiered_one() -> None:
    async with memory_broker(settings=SETTINGS) as broker:
        client = await broker.connect()
        await create_topic(client, "t", settings=TIERED)
        await create_topic(client, "plain")
        await produce(client, "t", batch(b"a"))
        await produce(client, "plain", batch(b"a"))
        await trio.sleep(5)
        assert await list_offset(client, "t", LATEST_TIERED) == (0, -1, -1, -1)
        assert await list_offset(client, "t", EARLIEST_PENDING_UPLOAD) == (0, 0, -1, 0)
        for name in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
            assert await list_offset(client, "plain", name) == (0, -1, -1, -1)


async def test_a_search_in_a_slow_tier_times_out(tiered: MemoryBroker) -> None:
    """KAFKA-15859: it does not delay other requests."""
    client, other = await tiered.connect(), await tiered.connect()
    tiered.env.latency_ms = 100_000

    async def ask(timeout_ms: int, expected_s: float) -> None:
        asked = ListOffsetsPartition(partition_index=0, current_leader_epoch=-1, timestamp=WALL_START_MS)
        request = ListOffsetsRequest(
            replica_id=-1,
            isolation_level=0,
            topics=[ListOffsetsTopic(name="t", partitions=[asked])],
            timeout_ms=timeout_ms,
        )
        began = trio.current_time()
        answer = await client.ask(request, version=10)
        assert answer.topics[0].partitions[0].error_code == ErrorCode.REQUEST_TIMED_OUT
        assert trio.current_time() - began == pytest.approx(expected_s)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask, 2_000, 2.0)
        began = trio.current_time()
        assert (await list_offset(other, "t", EARLIEST_LOCAL))[1] == LOCAL
        assert trio.current_time() == began
    await ask(0, 30.0)
    tiered.env.latency_ms = 0


async def test_an_unreadable_tier_is_a_storage_error(tiered: MemoryBroker) -> None:
    client = await tiered.connect()
    for path in tiered.disk.image("/data-tier"):
        if path.endswith((".log", "index")):
            tiered.disk.unlink(path)
    assert (await list_offset(client, "t", WALL_START_MS))[0] == ErrorCode.KAFKA_STORAGE_ERROR
    assert (await list_offset(client, "t", LATEST))[:2] == (0, END)


async def test_old_epochs_in_the_tier_keep_their_end_offsets(tiered: MemoryBroker) -> None:
    async with memory_broker(tiered.disk.crash(), settings=SETTINGS, seed=1) as again:
        client = await again.connect()
        for _ in range(PER_SEGMENT + 1):
            assert (await produce(client, "t", batch(VALUE))).error_code == 0
        newest = (await list_offset(client, "t", LATEST))[3]
        await until_local_from(client, "t", END)
        assert (await list_offset(client, "t", EARLIEST))[1:] == (0, -1, 0)
        assert (await list_offset(client, "t", EARLIEST_LOCAL))[3] == newest
        assert await end_of(client, 0) == (0, 0, END)
        assert await end_of(client, newest - 1) == (0, 0, END)
        assert await end_of(client, newest) == (0, newest, END + PER_SEGMENT + 1)
        tiered_to, _, epoch = (await list_offset(client, "t", LATEST_TIERED))[1:]
        assert epoch == (newest if tiered_to >= END else 0)
