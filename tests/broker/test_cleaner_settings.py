"""The settings of the log cleaner take effect at once, for the broker and for a topic."""

from __future__ import annotations

import pytest
import trio

from kbroker.storage.cleaning_map import ENTRY_BYTES
from tests.broker.test_log_cleaner import cleaned, compacting, dirty, put
from tests.handlers.asking import BROKER, TOPIC
from tests.handlers.test_configs import alter
from tests.storage.cleaning import contents, final_map

WEEK = 604_800_000


@pytest.mark.parametrize(
    ("topic_key", "broker_key", "holding", "cleaning"),
    [
        ("min.cleanable.dirty.ratio", "log.cleaner.min.cleanable.ratio", 1.0, 0.2),
        ("min.compaction.lag.ms", "log.cleaner.min.compaction.lag.ms", WEEK, 1),
        ("max.compaction.lag.ms", "log.cleaner.max.compaction.lag.ms", WEEK, 5_000),
        (None, "log.cleaner.threads", 0, 2),
    ],
)
@pytest.mark.parametrize("kind", [TOPIC, BROKER])
async def test_a_setting_holds_the_cleaner_back_until_it_changes(
    kind: int, topic_key: str | None, broker_key: str, holding: object, cleaning: object
) -> None:
    key = topic_key if kind == TOPIC else broker_key
    if key is None:
        return
    given = {} if topic_key != "max.compaction.lag.ms" else {"min.cleanable.dirty.ratio": 1.0}
    async with compacting(policy=given) as (running, client, broker):
        name = "t" if kind == TOPIC else ""
        assert await alter(client, kind, name, key, str(holding)) == 0
        await put(running, client, 60)
        await trio.sleep(20)
        log = broker.find("t", 0).log
        assert dirty(log)
        assert await alter(client, kind, name, key, str(cleaning)) == 0
        await cleaned(log)
        assert len(contents(log)) < 20


@pytest.mark.parametrize(("kind", "key"), [(TOPIC, "delete.retention.ms"), (BROKER, "log.cleaner.delete.retention.ms")])
async def test_a_tombstone_stays_for_delete_retention_ms(kind: int, key: str) -> None:
    async with compacting(policy={"min.cleanable.dirty.ratio": 0.0}) as (running, client, broker):
        assert await alter(client, kind, "t" if kind == TOPIC else "", key, "60000") == 0
        await put(running, client, 1, value=None)
        await put(running, client, 30, first=1)
        log = broker.find("t", 0).log
        await cleaned(log)
        assert (0, b"key-0", None) in contents(log)
        await trio.sleep(30)
        await put(running, client, 30, first=1)
        await cleaned(log)
        assert (0, b"key-0", None) in contents(log)
        await trio.sleep(60)
        await put(running, client, 30, first=1)
        await cleaned(log)
        assert (0, b"key-0", None) not in contents(log)


@pytest.mark.parametrize(
    ("key", "few", "many"),
    [
        ("log.cleaner.dedupe.buffer.size", 10 * ENTRY_BYTES, 1_000 * ENTRY_BYTES),
        ("log.cleaner.io.buffer.load.factor", 10 / 1_000, 1.0),
    ],
)
async def test_a_small_map_needs_several_passes(
    key: str, few: float, many: float, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "kbroker.broker.log_cleaner")
    buffer = {"log.cleaner.dedupe.buffer.size": 1_000 * ENTRY_BYTES}
    async with compacting(buffer, {"min.cleanable.dirty.ratio": 0.0}) as (running, client, broker):
        passes = []
        for value in (few, many):
            assert await alter(client, BROKER, "", key, str(value)) == 0
            caplog.clear()
            await put(running, client, 60, keys=20)
            log = broker.find("t", 0).log
            before = final_map(log)
            await cleaned(log)
            assert final_map(log) == before
            passes.append(sum("cleaned a log" in record.getMessage() for record in caplog.records))
        assert passes[0] > 2
        assert passes[1] == 1


async def test_the_cleaner_reads_and_writes_at_the_given_rate() -> None:
    async with compacting({"log.cleaner.io.max.bytes.per.second": 500.0}) as (running, client, broker):
        await put(running, client, 60)
        log, size = broker.find("t", 0).log, broker.find("t", 0).log.size
        began = trio.current_time()
        while dirty(log):
            await trio.sleep(1)
            assert trio.current_time() - began < 1_000
        assert trio.current_time() - began >= 2 * (size - 1_000) / 500
        assert await alter(client, BROKER, "", "log.cleaner.io.max.bytes.per.second", "1e9") == 0
        await put(running, client, 60)
        await cleaned(log)


async def test_the_cleaner_looks_for_work_at_the_given_interval() -> None:
    async with compacting({"log.cleaner.backoff.ms": 100_000}) as (running, client, broker):
        await trio.sleep(1)
        await put(running, client, 60)
        log = broker.find("t", 0).log
        await trio.sleep(90)
        assert dirty(log)
        assert await alter(client, BROKER, "", "log.cleaner.backoff.ms", "1000") == 0
        await cleaned(log)
        await put(running, client, 60)
        await trio.sleep(5)
        assert not dirty(log)
