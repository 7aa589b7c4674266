"""The tier's metrics on /metrics: limits, quotas, waits and caches, in virtual time."""

from __future__ import annotations

from functools import partial

import pytest
import trio
from prometheus_client.parser import text_string_to_metric_families
from trio.testing import MockClock

from kbroker.testing.disk import SimulatedDisk
from kbroker.testing.memory_node import Client, MemoryBroker, memory_broker
from kbroker.tiered.api import RemoteLogSegmentMetadata, TopicIdPartition
from kbroker.tiered.metadata_manager import TopicRemoteLogMetadataManager
from kbroker.web.exposition import render
from tests.broker.test_tier_lifecycle import QUICK, TIERED, fill, local_start, read_all, segments, until, value
from tests.handlers.asking import batch, create_topic, fetching, list_offset, parts, read, wanted

MANAGER = "kafka_log_remote_remotelogmanager_"
RETENTION, LOCAL_RETENTION = f"{MANAGER}retentionsizeinpercent", f"{MANAGER}localretentionsizeinpercent"
READ_TIMES = f"{MANAGER}remotelogreaderfetchrateandtimems"
COPY_THROTTLE, FETCH_THROTTLE = (
    f"kafka_server_remotelogmanager_remote_{what}_throttle_time" for what in ("copy", "fetch")
)
EXPIRED_FETCHES = "kafka_server_delayedremotefetchmetrics_expires_total"
EXPIRED_LOOKUPS = "kafka_server_delayedremotelistoffsetsmetrics_expires_total"
ALL_EXPIRED_LOOKUPS = "kbroker_all_topics_remotelistoffsetsexpires_total"
COMPUTATION = "kafka_server_brokertopicmetrics_remotelogsizecomputationtime"
INDEXES, CHUNKS = "kbroker_tier_indexes_total", "kbroker_tier_chunks_total"
IDLE = "kafka_log_remote_remotestoragethreadpool_remotelogreaderavgidlepercent"
SIZE = len(batch(value(0)))
LABELS = ("topic", "partition", "sort")
SLOW_MS = 250


class SlowToList(TopicRemoteLogMetadataManager):
    """A plug-in that takes SLOW_MS to list the segments of a partition."""

    def list_remote_log_segments(self, partition: TopicIdPartition) -> list[RemoteLogSegmentMetadata]:
        clock = trio.lowlevel.current_clock()
        assert isinstance(clock, MockClock)
        clock.jump(SLOW_MS / 1000)
        return super().list_remote_log_segments(partition)


def own(name: str) -> str:
    """The name of the histogram of Prometheus."""
    return name.replace("kafka_", "kbroker_", 1)


def page(broker: MemoryBroker) -> dict[tuple[str, ...], float]:
    """The samples by name, and topic and partition, or sort."""
    text = b"".join(render(broker.node)).decode()
    return {
        (sample.name, *(sample.labels[key] for key in LABELS if key in sample.labels)): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def moved(broker: MemoryBroker, count: int) -> Client:
    """A client of a broker with a topic t, with this number of records only in the tier, and one local record."""
    client = await broker.connect()
    await create_topic(client, "t", settings=TIERED)
    await fill(client, "t", count + 1)
    await until(lambda: segments(broker, "t") == count == local_start(broker, "t"))
    return client


async def test_used_retention_limits_are_reported_in_percent() -> None:
    """Like Kafka's gauges: rounded down, of the size in both tiers, duplicates counted once; 0 without a limit."""
    kept = {"remote.storage.enable": "true", "segment.bytes": 400, "retention.ms": -1}
    topics = {
        # Six records in the tier and one here, of which each fills a segment.
        "both": {**kept, "retention.bytes": 100_000, "local.retention.bytes": 100},
        # All of them are local, and six in the tier as well: each counts once.
        "doubled": {**kept, "retention.bytes": 10_000},
        "unlimited": kept,
        "read-only": {**kept, "retention.bytes": 10_000, "remote.log.copy.disable": "true"},
        "plain": {"retention.bytes": 10_000, "segment.bytes": 400},
    }
    async with memory_broker(settings=QUICK) as broker:
        client = await broker.connect()
        for name, settings in topics.items():
            await create_topic(client, name, settings=settings)
            await fill(client, name, 7)
        await until(lambda: local_start(broker, "both") == 6 == segments(broker, "doubled"))
        await trio.sleep(2)
        found = page(broker)
    assert {name: found.get((RETENTION, name, "0")) for name in topics} == {
        "both": 7 * SIZE * 100 // 100_000,
        "doubled": 7 * SIZE * 100 // 10_000,
        "unlimited": 0,
        "read-only": 7 * SIZE * 100 // 10_000,
        "plain": None,
    }
    assert {name: found.get((LOCAL_RETENTION, name, "0")) for name in topics} == {
        "both": SIZE * 100 // 100,
        "doubled": 7 * SIZE * 100 // 10_000,
        "unlimited": 0,
        "read-only": 7 * SIZE * 100 // 10_000,
        "plain": None,
    }


async def test_the_size_computation_time_is_reported() -> None:
    manager = f"{SlowToList.__module__}:{SlowToList.__name__}"
    async with memory_broker(settings={**QUICK, "remote.log.metadata.manager.class.name": manager}) as broker:
        client = await broker.connect()
        for name in ("a", "b"):
            await create_topic(client, name, settings=TIERED)
            await fill(client, name, 2)
        await until(lambda: segments(broker, "a") == 1 == segments(broker, "b"))
        await trio.sleep(2)
        found = page(broker)
    assert found[COMPUTATION, "a"] == found[COMPUTATION, "b"] == SLOW_MS


async def test_throttle_times_of_copies_and_reads_are_reported() -> None:
    quotas = {
        f"remote.log.manager.{what}.{key}": size
        for what in ("copy", "fetch")
        for key, size in (("max.bytes.per.second", 100), ("quota.window.num", 1), ("quota.window.size.seconds", 1))
    }
    disk = SimulatedDisk()
    async with memory_broker(disk, settings=QUICK) as broker:
        await moved(broker, 6)
        found = page(broker)
        assert found[f"{COPY_THROTTLE}_count",] == found[f"{FETCH_THROTTLE}_count",] == 0
    patient = {"remote.fetch.max.wait.ms": 60_000, "kbroker.remote.read.ahead.bytes": 0}
    async with memory_broker(disk, settings={**QUICK, **quotas, **patient}) as broker:
        client = await broker.connect()
        began = trio.current_time()
        await fill(client, "t", 6, start=7)
        await until(lambda: segments(broker, "t") == 12)
        copied_s = trio.current_time() - began
        found = page(broker)
        # The budget of one second lets the first one start, which overdraws it.
        assert found[f"{COPY_THROTTLE}_count",] == 5
        assert found[own(f"{COPY_THROTTLE}_sum"),] == pytest.approx(copied_s * 1000, rel=0.1)
        assert found[own(f"{COPY_THROTTLE}_sum"),] > 4 * (SIZE - 100) * 1000 / 100
        assert found[f"{FETCH_THROTTLE}_count",] == 0
        began = trio.current_time()
        await read_all(client, "t", 3)
        read_s = trio.current_time() - began
        found = page(broker)
        assert found[f"{FETCH_THROTTLE}_count",] == 2
        assert found[own(f"{FETCH_THROTTLE}_sum"),] == pytest.approx(read_s * 1000, rel=0.1)


async def test_requests_that_the_tier_answers_too_late_are_counted() -> None:
    async with memory_broker(settings={**QUICK, "remote.fetch.max.wait.ms": 1_000}) as broker:
        client = await moved(broker, 3)
        assert (await read(client, "t"))[0] == value(0)
        assert (await list_offset(client, "t", 0))[0] == 0
        found = page(broker)
        assert (found[EXPIRED_FETCHES,], found[ALL_EXPIRED_LOOKUPS,], found[EXPIRED_LOOKUPS, "t", "0"]) == (0, 0, 0)
        assert found[f"{READ_TIMES}_count",] == 1
        broker.env.latency_ms = 20_000
        began = trio.current_time()
        assert parts(await client.ask(fetching("t", wanted(offset=1), max_wait_ms=0), version=12))[0].records == b""
        took_s = trio.current_time() - began
        found = page(broker)
        assert (found[EXPIRED_FETCHES,], found[ALL_EXPIRED_LOOKUPS,]) == (1, 0)
        assert found[f"{READ_TIMES}_count",] == 2
        assert took_s == pytest.approx(1.0)
        assert found[own(f"{READ_TIMES}_sum"),] == pytest.approx(took_s * 1000)
        gone = await broker.connect()
        await gone.send(fetching("t", wanted(offset=2), max_wait_ms=0), version=12)
        await trio.sleep(0.5)
        gone.close()
        await trio.sleep(60)
        assert page(broker)[EXPIRED_FETCHES,] == 1, "the client had gone"


async def test_concurrent_waiting_fetches_are_all_counted() -> None:
    async with memory_broker(settings={**QUICK, "kbroker.remote.read.ahead.bytes": 0}) as broker:
        await moved(broker, 3)
        broker.env.latency_ms = 20_000
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                client = await broker.connect()
                nursery.start_soon(partial(client.ask, fetching("t", wanted(offset=1), max_wait_ms=0), version=12))
                await trio.sleep(0.01)
        assert page(broker)[EXPIRED_FETCHES,] == 3


async def test_running_reads_reduce_the_idle_fraction() -> None:
    settings = {**QUICK, "remote.log.reader.threads": 4, "kbroker.remote.read.ahead.bytes": 0}
    async with memory_broker(settings=settings) as broker:
        assert page(broker)[IDLE,] == 1
        await moved(broker, 3)
        broker.env.latency_ms = 10_000
        client = await broker.connect()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(client.ask, fetching("t", wanted()), version=12))
            await until(lambda: page(broker)[IDLE,] == 0.75)
            broker.env.latency_ms = 0
        await trio.sleep(20)
        assert page(broker)[IDLE,] == 1


async def test_a_stop_writes_recently_read_indexes() -> None:
    disk = SimulatedDisk()
    async with memory_broker(disk, settings=QUICK) as broker:
        assert (await list_offset(await moved(broker, 3), "t", 1))[:2] == (0, 0)
        assert page(broker)["kbroker_tier_index_cache_bytes",] == 0
    async with memory_broker(disk, settings=QUICK) as broker:
        assert (await list_offset(await broker.connect(), "t", 1))[:2] == (0, 0)
        found = page(broker)
        assert (found[INDEXES, "fetched"], found[INDEXES, "disk"]) == (0, 1)


async def test_cache_hits_and_misses_are_reported() -> None:
    disk = SimulatedDisk()
    settings = {**QUICK, "kbroker.remote.read.ahead.bytes": 0}
    async with memory_broker(disk, settings=settings) as broker:
        assert not [key for key in page(broker) if key[0] in (INDEXES, CHUNKS)], "nothing is tiered"
        client = await moved(broker, 3)
        before = page(broker)
        assert before["kbroker_tier_chunk_read_bytes_total",] == before["kbroker_tier_index_cache_bytes",] == 0
        for _ in range(2):
            assert (await list_offset(client, "t", 1))[:2] == (0, 0)
        await until(lambda: page(broker)["kbroker_tier_index_cache_bytes",] > 0)
        found = page(broker)
        assert (found[INDEXES, "fetched"], found[INDEXES, "resident"], found[INDEXES, "disk"]) == (1, 1, 0)
        assert (found[CHUNKS, "miss"], found[CHUNKS, "hit"]) == (1, 1)
        assert found["kbroker_tier_chunk_read_bytes_total",] == SIZE
        kept = found["kbroker_tier_index_cache_bytes",]
        assert kept == sum(len(data or b"") for _, data in disk.image("/data/remote-log-index-cache").items()) > 0
    async with memory_broker(disk, settings=settings) as broker:
        client = await broker.connect()
        assert (await list_offset(client, "t", 1))[:2] == (0, 0)
        found = page(broker)
        assert (found[INDEXES, "fetched"], found[INDEXES, "disk"], found[INDEXES, "damaged"]) == (0, 1, 0)
        await trio.sleep(70)  # by then the unused ones were evicted
        assert page(broker)["kbroker_tier_index_cache_bytes",] == kept
    for path, data in disk.image("/data/remote-log-index-cache").items():
        if data:
            file = disk.open(path)
            file.pwrite(bytes(byte ^ 0xFF for byte in data), 0)
            file.close()
    async with memory_broker(disk, settings=settings) as broker:
        client = await broker.connect()
        assert (await list_offset(client, "t", 1))[:2] == (0, 0)
        found = page(broker)
        assert (found[INDEXES, "fetched"], found[INDEXES, "disk"], found[INDEXES, "damaged"]) == (1, 0, 1)
        assert found[INDEXES, "rebuilt"] == found[INDEXES, "write_error"] == 0
