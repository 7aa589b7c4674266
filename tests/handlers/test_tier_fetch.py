"""Fetch from a topic that is mostly in the tier: a whole node, on virtual time."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from kbroker.replication.fetching import FetchRound, PartitionAnswer
from kbroker.testing.memory_node import Client, MemoryBroker, memory_broker
from kbroker.tiered.remote_read import RemoteReader
from tests.garbage import left_to_the_collector
from tests.handlers.asking import (
    batch,
    create_topic,
    delete_records,
    delete_topic,
    fetch_in_background,
    fetching,
    list_offset,
    parts,
    produce,
    read_batches,
    sizes,
    wanted,
)
from wire.compression import Codec
from wire.errors import ErrorCode
from wire.messages.fetch import FetchResponse
from wire.record_batch import Record, build_batch

SETTINGS = {
    "remote.log.storage.system.enable": "true",
    "remote.log.manager.task.interval.ms": 100,
    "log.retention.check.interval.ms": 100,
    "rlmm.config.remote.log.metadata.topic.num.partitions": 1,
    "kbroker.remote.chunk.bytes": 65_536,
}
TIERED = {"remote.storage.enable": "true", "segment.bytes": 1 << 20, "local.retention.bytes": 1, "retention.ms": -1}
VALUE = b"x" * 99_000
PER_SEGMENT = 10
"""The number of batches of VALUE in a segment."""


@pytest.fixture
async def tiered() -> AsyncIterator[MemoryBroker]:
    async with memory_broker(settings=SETTINGS) as running:
        yield running


async def move(broker: MemoryBroker, topic: str, *, segments: int = 2, partitions: int = 1, more: int = 3) -> int:
    """Create a topic with `segments` only in the tier and `more` batches after them; return the local start offset."""
    client = await broker.connect()
    await create_topic(client, topic, partitions=partitions, settings=TIERED)
    for index in range(partitions):
        for number in range(segments * PER_SEGMENT + more):
            made = batch(bytes([number]) + VALUE)
            assert (await produce(client, topic, made, partition=index)).error_code == 0
    for index in range(partitions):
        await until_local_from(client, topic, segments * PER_SEGMENT, partition=index)
    client.close()
    return segments * PER_SEGMENT


async def until_local_from(client: Client, topic: str, offset: int, *, partition: int = 0) -> None:
    for _ in range(1_000):  # let the tier and retention run, in virtual time
        if (await list_offset(client, topic, -4, partition=partition))[1] >= offset:
            return
        await trio.sleep(0.1)
    raise AssertionError(f"{topic}-{partition} does not move to the tier")


def reader_of(broker: MemoryBroker) -> RemoteReader:
    assert broker.node.broker is not None
    reader = broker.node.broker.tier.reader
    assert reader is not None
    return reader


def bases(answer: FetchResponse, partition: int = 0) -> list[int]:
    return [one.base_offset for one in read_batches(parts(answer)[partition])]


# Memory


async def test_stalled_readers_leave_others_one_batch_at_a_time(autojump_clock: MockClock) -> None:
    settings = {**SETTINGS, "kbroker.queued.max.response.bytes": 4 << 20}
    async with memory_broker(settings=settings) as broker:
        await move(broker, "t")
        client = await broker.connect()
        everything = fetching("t", wanted(offset=0))
        assert [len(bases(await client.ask(everything, version=12))) for _ in range(2)][-1] > 1
        for _ in range(20):
            await (await broker.connect()).send(everything, version=12)
        await trio.sleep(1)
        server = broker.node.server
        assert server is not None
        assert 2 << 20 <= server.memory.answers.used_bytes <= 4 << 20
        assert bases(await client.ask(everything, version=12)) == [0]


# The seam


async def test_every_offset_around_the_seam_is_read_exactly_once(tiered: MemoryBroker) -> None:
    local = await move(tiered, "t")
    client = await tiered.connect()
    for start in range(local - 4, local + 3):
        offset, found = start, []
        while offset < local + 3:
            got = bases(await client.ask(fetching("t", wanted(offset=offset)), version=12))
            assert got, f"nothing at {offset}"
            found += got
            offset = got[-1] + 1
        assert found == list(range(start, local + 3))


@pytest.mark.parametrize("codec", list(Codec))
async def test_batches_are_returned_whole_on_both_sides_of_the_seam(tiered: MemoryBroker, codec: Codec) -> None:
    client = await tiered.connect()
    await create_topic(client, "t", settings=TIERED)
    noise = tiered.env.random.randbytes
    each, count = 7, 30
    for number in range(count):
        records = [Record(timestamp=number * each + at, value=noise(9_000)) for at in range(each)]
        assert (await produce(client, "t", build_batch(records, codec=codec))).error_code == 0
    await until_local_from(client, "t", 1)
    local = (await list_offset(client, "t", -4))[1]
    assert local % each == 0
    for offset in range(local - 2 * each, local + 2 * each):
        answer = await client.ask(fetching("t", wanted(offset=offset)), version=12)
        first = read_batches(parts(answer)[0])[0]
        assert (first.base_offset, first.record_count) == (offset - offset % each, each)
        assert first.crc_is_valid()
        assert [record.timestamp for record in first.records()] == list(
            range(first.base_offset, first.base_offset + each)
        )


async def leave_a_hole(tiered: MemoryBroker) -> Client:
    """A topic whose offsets 10 to 12 have no record, as after compaction; 13 is the first local offset."""
    client = await tiered.connect()
    await create_topic(client, "t", settings=TIERED)
    for _ in range(PER_SEGMENT):
        await produce(client, "t", batch(VALUE))
    assert tiered.node.broker is not None
    held = tiered.node.broker.find("t", 0)
    held.log.log_end_offset += 3
    held.log.restart_reading()
    for _ in range(2):
        assert (await produce(client, "t", batch(VALUE))).error_code == 0
    await until_local_from(client, "t", 13)
    return client


async def test_a_hole_at_the_tiers_end_is_skipped(tiered: MemoryBroker) -> None:
    """KAFKA-15388: empty responses would repeat forever."""
    client = await leave_a_hole(tiered)
    for offset in (9, 10, 12, 13):
        got = bases(await client.ask(fetching("t", wanted(offset=offset)), version=12))
        assert got[0] == (9 if offset == 9 else 13), offset


async def test_a_fetch_is_refused_if_its_topic_is_deleted_behind_a_hole(tiered: MemoryBroker) -> None:
    """Another topic may have reused the file names while a thread read the local log."""
    client = await leave_a_hole(tiered)
    request = fetching("t", wanted(offset=10))
    await client.ask(request, version=12)
    tiered.env.latency_ms = 100  # before and after a call at most
    async with trio.open_nursery() as nursery:
        answers = [await fetch_in_background(nursery, tiered, request) for _ in range(8)]
        await trio.sleep(0.1)
        tiered.env.latency_ms = 0
        late = [one for one in answers if not one]
        assert late, "their threads have read, and have not ended"
        await delete_topic(client, "t")
        assert not any(late)
    for ((_, answer),) in late:
        part = parts(answer)[0]
        assert (part.error_code, read_batches(part)) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, [])


async def test_offsets_in_the_reply_are_those_of_the_whole_log(tiered: MemoryBroker) -> None:
    local = await move(tiered, "t")
    client = await tiered.connect()
    for committed in (False, True):
        part = parts(await client.ask(fetching("t", wanted(), read_committed=committed), version=12))[0]
        assert (part.error_code, part.high_watermark, part.last_stable_offset) == (0, local + 3, local + 3)
        assert (part.log_start_offset, part.preferred_read_replica) == (0, -1)
        assert part.aborted_transactions == ([] if committed else None)


async def test_deleted_records_in_the_tier_are_out_of_range(tiered: MemoryBroker) -> None:
    await move(tiered, "t")
    client = await tiered.connect()
    assert await delete_records(client, "t", 7) == (0, 7)
    assert parts(await client.ask(fetching("t", wanted(offset=6)), version=12))[0].error_code == (
        ErrorCode.OFFSET_OUT_OF_RANGE
    )
    assert bases(await client.ask(fetching("t", wanted(offset=7)), version=12))[0] == 7
    assert (await list_offset(client, "t", -2))[:2] == (0, 7)


async def test_a_session_gets_records_from_the_tier(tiered: MemoryBroker) -> None:
    await move(tiered, "t", partitions=2)
    client = await tiered.connect()
    full = await client.ask(fetching("t", wanted(0), wanted(1), session=(0, 0), max_wait_ms=500), version=12)
    assert full.session_id
    assert all(sizes(full).values())
    moved = await client.ask(fetching("t", wanted(0, 5), session=(full.session_id, 1), max_wait_ms=500), version=12)
    assert bases(moved)[0] == 5
    assert bases(moved, 1)[0] == 0, "its offset in the session has not moved, so it is read again"


# The byte budget


async def test_tier_and_local_log_share_one_byte_budget(tiered: MemoryBroker) -> None:
    """KAFKA-20019, KAFKA-19462: 1 MiB in total, from both places."""
    local = await move(tiered, "t", partitions=3, more=5)
    client = await tiered.connect()
    limit = 450_000
    for offsets in ((0, local, 0), (local, 0, local), (0, 0, 0)):
        asked = [wanted(index, offset) for index, offset in enumerate(offsets)]
        got = sizes(await client.ask(fetching("t", *asked, max_bytes=limit), version=12))
        assert 0 < sum(got.values()) <= limit, (offsets, got)


async def test_only_the_first_partition_may_exceed_the_budget(tiered: MemoryBroker) -> None:
    """KAFKA-19795."""
    local = await move(tiered, "t", partitions=3)
    client = await tiered.connect()
    for offsets, first in (((0, 0, 0), 0), ((local, 0, 0), 0), ((0, local, 0), 0)):
        asked = [wanted(index, offset, limit=10) for index, offset in enumerate(offsets)]
        got = sizes(await client.ask(fetching("t", *asked, max_bytes=10), version=12))
        assert [size > 0 for size in got.values()] == [index == first for index in range(3)]


async def test_another_partition_may_exceed_the_budget_instead_of_the_tier(tiered: MemoryBroker) -> None:
    local = await move(tiered, "t", partitions=2)
    client = await tiered.connect()
    tiered.env.latency_ms = 10_000
    asked = [wanted(0, 0, limit=10), wanted(1, local, limit=10)]
    got = sizes(await client.ask(fetching("t", *asked, max_bytes=10, max_wait_ms=100), version=12))
    assert got[0] == 0
    assert got[1] > 0


# Time


async def test_all_partitions_of_a_request_are_read_concurrently(tiered: MemoryBroker) -> None:
    """KAFKA-14915, KAFKA-19133: four reads take the time of one."""
    await move(tiered, "t", partitions=4)
    client = await tiered.connect()
    tiered.env.latency_ms = 100
    answer = await client.ask(fetching("t", *(wanted(index, limit=10) for index in range(4))), version=12)
    assert sum(size > 0 for size in sizes(answer).values()) == 1
    began = trio.current_time()
    asked = [wanted(index, 15, limit=200_000) for index in range(4)]
    answer = await client.ask(fetching("t", *asked, max_wait_ms=500), version=12)
    assert all(size > 0 for size in sizes(answer).values())
    assert trio.current_time() - began <= 0.5


async def test_the_wait_for_the_tier_ignores_max_wait_ms(tiered: MemoryBroker) -> None:
    """KAFKA-15776: max_wait_ms=0 does not end it, and remote.fetch.max.wait.ms does, without an error."""
    await move(tiered, "t")
    client = await tiered.connect()
    tiered.env.latency_ms = 10_000
    began = trio.current_time()
    part = parts(await client.ask(fetching("t", wanted(), max_wait_ms=0), version=12))[0]
    assert 0.5 <= trio.current_time() - began < 0.6
    assert (part.error_code, read_batches(part), part.high_watermark) == (0, [], 23)


async def test_m4_a_late_read_serves_the_next_fetch(tiered: MemoryBroker) -> None:
    await move(tiered, "t")
    client = await tiered.connect()
    tiered.env.latency_ms = 2_000
    answers = 0
    while not sizes(await client.ask(fetching("t", wanted(offset=3)), version=12))[0]:
        answers += 1
        assert answers <= 24, "three things one after the other, each of which takes four seconds at most"
    assert answers > 0
    tiered.env.latency_ms = 0


async def test_m4_a_disconnected_clients_read_serves_the_next_client(tiered: MemoryBroker) -> None:
    await move(tiered, "t")
    cache = reader_of(tiered).cache
    tiered.env.latency_ms = 300
    leaving = await tiered.connect()
    await leaving.send(fetching("t", wanted()), version=12)
    await wait_all_tasks_blocked()
    leaving.close()
    await trio.sleep(5)
    assert cache.read_bytes > 0
    misses = cache.misses
    client = await tiered.connect()
    began = trio.current_time()
    assert sizes(await client.ask(fetching("t", wanted()), version=12))[0]
    assert trio.current_time() == began
    assert cache.misses == misses


async def test_local_records_are_delayed_at_most_by_max_wait_ms(tiered: MemoryBroker) -> None:
    local = await move(tiered, "t", partitions=2)
    client = await tiered.connect()
    tiered.env.latency_ms = 10_000
    for max_wait_ms in (0, 200):
        began = trio.current_time()
        asked = [wanted(0, 12), wanted(1, local)]
        got = sizes(await client.ask(fetching("t", *asked, max_wait_ms=max_wait_ms), version=12))
        assert (got[0], got[1] > 0) == (0, True)
        assert trio.current_time() - began <= max_wait_ms / 1000 + 0.01


async def test_an_unreadable_tier_fails_late_and_local_reads_continue(tiered: MemoryBroker) -> None:
    """M3, KAFKA-19599: the delay prevents a storm of retries."""
    local = await move(tiered, "t", partitions=2)
    client = await tiered.connect()
    for path in tiered.disk.image("/data-tier"):
        if path.endswith((".log", ".index", ".timeindex")):
            tiered.disk.unlink(path)
    began = trio.current_time()
    part = parts(await client.ask(fetching("t", wanted()), version=12))[0]
    assert (part.error_code, part.high_watermark, read_batches(part)) == (ErrorCode.KAFKA_STORAGE_ERROR, -1, [])
    assert 0.4 <= trio.current_time() - began <= 0.6
    answer = parts(await client.ask(fetching("t", wanted(0), wanted(1, local), max_wait_ms=100), version=12))
    assert answer[0].error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert read_batches(answer[1])


@pytest.mark.parametrize("other", ["missing in the tier", "out of range", "unknown"])
async def test_a_sent_reply_with_an_error_is_freed_at_once(tiered: MemoryBroker, other: str) -> None:
    """Otherwise its records, and the chunks of the tier behind them, stay in memory until a garbage collection."""
    await move(tiered, "t", partitions=2)
    for path in tiered.disk.image("/data-tier"):
        if other == "missing in the tier" and "/1/" in path and path.endswith(".log"):
            tiered.disk.unlink(path)
    asked = {"missing in the tier": wanted(1), "out of range": wanted(1, 10_000), "unknown": wanted(2)}[other]
    client = await tiered.connect()

    async def ask() -> None:
        answer = parts(await client.ask(fetching("t", wanted(), asked, max_wait_ms=200), version=12))
        assert read_batches(answer[0])
        assert answer[asked.partition].error_code

    await ask()
    with left_to_the_collector() as left:
        for _ in range(3):
            await ask()
    assert [one for one in left if isinstance(one, FetchRound | PartitionAnswer | memoryview)] == []


async def test_without_a_tier_its_records_are_not_out_of_range(tiered: MemoryBroker) -> None:
    """A consumer that gets OFFSET_OUT_OF_RANGE skips the records; it must retry until the tier is back."""
    local = await move(tiered, "t")
    client = await tiered.connect()
    assert tiered.node.broker is not None
    tiered.node.broker.tier.reader = None
    began = trio.current_time()
    part = parts(await client.ask(fetching("t", wanted()), version=12))[0]
    assert part.error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert trio.current_time() - began == pytest.approx(0.5)
    assert bases(await client.ask(fetching("t", wanted(offset=local)), version=12))[0] == local


async def test_a_stop_ends_a_waiting_fetch_from_the_tier(tiered: MemoryBroker) -> None:
    await move(tiered, "t")
    tiered.env.latency_ms = 300
    async with trio.open_nursery() as nursery:
        await fetch_in_background(nursery, tiered, fetching("t", wanted()))
        tiered.node.stop()


# Followers


async def test_a_follower_is_redirected_to_the_tier_at_once(tiered: MemoryBroker) -> None:
    """KAFKA-16013. The only follower of a single broker is a replica that moves between directories (-3)."""
    local = await move(tiered, "t", partitions=2)
    client = await tiered.connect()
    began = trio.current_time()
    asked = [wanted(0, 0), wanted(1, local + 3)]
    answer = parts(await client.ask(fetching("t", *asked, replica_id=-3, max_wait_ms=5_000), version=12))
    assert trio.current_time() == began
    partition = answer[0]
    assert partition.error_code == ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE
    assert (partition.high_watermark, partition.log_start_offset, partition.last_stable_offset) == (local + 3, 0, -1)
    assert (partition.aborted_transactions, partition.preferred_read_replica, read_batches(partition)) == (None, -1, [])
    assert answer[1].error_code == 0
