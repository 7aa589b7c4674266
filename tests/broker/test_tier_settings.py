"""Each dynamic setting of the tier: it takes effect when set, and the default applies after its deletion."""

from __future__ import annotations

import pytest
import trio

from kbroker.testing.disk import SimulatedDisk
from kbroker.testing.env import WALL_START_MS, MemoryThreads
from kbroker.testing.memory_node import Client, MemoryBroker, memory_broker
from kbroker.tiered.api import TopicIdPartition
from kbroker.tiered.metadata_manager import TopicRemoteLogMetadataManager
from tests.broker.test_tier_lifecycle import QUICK, TIER, TIERED, alter, fill, local_start, segments, until, value
from tests.handlers.asking import BROKER, TOPIC, create_topic, fetching, list_offset, parts, values, wanted
from wire.errors import ErrorCode

WHOLE = {key: text for key, text in TIERED.items() if not key.startswith("local.")}


class NeverReady(TopicRemoteLogMetadataManager):
    """A plug-in that never becomes ready."""

    def is_ready(self, partition: TopicIdPartition) -> bool:
        return False

    async def wait_until_ready(self, partition: TopicIdPartition) -> None:
        await trio.sleep_forever()


async def moved(broker: MemoryBroker, count: int, *, settings: dict[str, object] | None = None) -> Client:
    """A client of a broker with a topic t; all but the last of its segments are in the tier."""
    client = await broker.connect()
    await create_topic(client, "t", settings=TIERED if settings is None else settings)
    await fill(client, "t", count)
    await until(lambda: segments(broker, "t") == count - 1)
    return client


async def set_all(client: Client, key: str, text: object | None) -> None:
    assert await alter(client, "", {key: text}, resource=BROKER) == (0, None)


@pytest.mark.parametrize("kind", [TOPIC, BROKER], ids=["topic", "broker"])
@pytest.mark.parametrize(("key", "limit"), [("local.retention.bytes", 1), ("local.retention.ms", 1_000)])
async def test_a_local_retention_change_takes_effect(kind: int, key: str, limit: int) -> None:
    name, key = ("t", key) if kind == TOPIC else ("", f"log.{key}")
    async with memory_broker(settings=QUICK) as broker:
        client = await moved(broker, 5, settings=dict(WHOLE))
        await trio.sleep(5)
        assert local_start(broker, "t") == 0
        assert await alter(client, name, {key: limit}, resource=kind) == (0, None)
        await until(lambda: local_start(broker, "t") >= 4)
        assert await alter(client, name, {key: None}, resource=kind) == (0, None)
        start = local_start(broker, "t")
        await fill(client, "t", 3, start=5)
        await trio.sleep(5)
        assert local_start(broker, "t") == start


async def test_a_change_of_the_fetch_wait_takes_effect() -> None:
    """KAFKA-15776."""
    key = "remote.fetch.max.wait.ms"
    async with memory_broker(settings=QUICK) as broker:
        client = await moved(broker, 3)
        await until(lambda: local_start(broker, "t") == 2)
        for path, data in broker.disk.image(TIER).items():
            if data is not None:
                broker.disk.unlink(path)

        async def waited() -> float:
            began = trio.current_time()
            answer = await client.ask(fetching("t", wanted(offset=0), max_wait_ms=0), version=12)
            assert parts(answer)[0].error_code == ErrorCode.KAFKA_STORAGE_ERROR
            return round(trio.current_time() - began, 2)

        assert await waited() == 0.5
        await set_all(client, key, 2_000)
        assert await waited() == 2.0
        await set_all(client, key, None)
        assert await waited() == 0.5


async def test_a_change_of_the_lookup_wait_takes_effect() -> None:
    """KAFKA-15859."""
    key = "remote.list.offsets.request.timeout.ms"
    name = f"{NeverReady.__module__}:{NeverReady.__name__}"
    disk = SimulatedDisk()
    async with memory_broker(disk, settings=QUICK) as broker:
        await moved(broker, 3)
        await until(lambda: local_start(broker, "t") == 2)
    async with memory_broker(disk, settings={**QUICK, "remote.log.metadata.manager.class.name": name}) as broker:
        client = await broker.connect()

        async def waited() -> float:
            began = trio.current_time()
            assert (await list_offset(client, "t", WALL_START_MS, version=9))[0] == ErrorCode.REQUEST_TIMED_OUT
            return round(trio.current_time() - began, 2)

        assert await waited() == 30.0
        await set_all(client, key, 2_000)
        assert await waited() == 2.0
        await set_all(client, key, None)
        assert await waited() == 30.0


async def test_a_change_of_the_fetch_quota_takes_effect() -> None:
    key = "remote.log.manager.fetch.max.bytes.per.second"
    async with memory_broker(settings=QUICK) as broker:
        client = await moved(broker, 6)
        await until(lambda: local_start(broker, "t") == 5)

        async def seconds(first: int, last: int) -> float:
            began = trio.current_time()
            for offset in range(first, last):
                found: list[bytes | None] = []
                while not found:
                    answer = await client.ask(
                        fetching("t", wanted(offset=offset, limit=1), max_wait_ms=100), version=12
                    )
                    assert parts(answer)[0].error_code == 0
                    found = values(parts(answer)[0])
                assert found[0] == value(offset)
            return trio.current_time() - began

        await set_all(client, key, 20)
        assert await seconds(0, 3) > 10, "1 kB at 20 bytes per second, with a burst of 11 seconds"
        await set_all(client, key, None)
        assert await seconds(3, 6) < 5


async def test_a_change_of_the_index_cache_size_takes_effect() -> None:
    async with memory_broker(settings=QUICK) as broker:
        client = await moved(broker, 4)
        await until(lambda: local_start(broker, "t") == 3)
        assert (await list_offset(client, "t", WALL_START_MS))[1] == 0

        def cached() -> list[str]:
            return [name for name in broker.files() if name.startswith("remote-log-index-cache/")]

        await until(lambda: bool(cached()))
        await set_all(client, "remote.log.index.file.cache.total.size.bytes", 1)
        await until(lambda: not cached())


@pytest.mark.parametrize(
    "key",
    [
        "remote.log.manager.copier.thread.pool.size",
        "remote.log.manager.expiration.thread.pool.size",
        "remote.log.manager.follower.thread.pool.size",
        "remote.log.reader.threads",
    ],
)
async def test_a_change_of_the_thread_pools_takes_effect(key: str) -> None:
    async with memory_broker(settings=QUICK) as broker:
        client = await moved(broker, 2)
        assert broker.node.broker is not None
        tier = broker.node.broker.tier
        assert tier.manager is not None
        assert tier.reader is not None

        def sizes() -> dict[str, float]:
            assert tier.manager is not None
            assert tier.reader is not None
            followers = tier.manager.tools.follower_threads
            assert isinstance(followers, MemoryThreads)
            return {
                "remote.log.manager.copier.thread.pool.size": tier.manager.copiers.total_tokens,
                "remote.log.manager.expiration.thread.pool.size": tier.manager.expirers.total_tokens,
                "remote.log.manager.follower.thread.pool.size": followers.max_threads,
                "remote.log.reader.threads": tier.reader.settings.remote_log_reader_threads,
            }

        before = sizes()
        assert sorted(before.values()) == [2, 10, 10, 10]
        await set_all(client, key, 3)
        assert sizes() == {**before, key: 3}
        await set_all(client, key, None)
        assert sizes() == before
