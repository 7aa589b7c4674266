"""The broker compacts topics in the background, and stops where a log changes under it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import pytest
import trio

from kbroker.broker.broker import Broker
from kbroker.storage.log import Log
from kbroker.testing.memory_node import Client, MemoryBroker, memory_broker
from kbroker.web import cleaner_metrics  # noqa: F401  (declares the metrics)
from kbroker.web.health import ready
from kbroker.web.metrics import DECLARED
from tests.handlers.asking import TOPIC, create_topic, delete_topic, produce
from tests.handlers.test_configs import alter
from tests.storage.cleaning import contents, final_map
from wire.record_batch import Record, build_batch

SETTINGS = {"log.cleaner.backoff.ms": 1_000, "log.retention.check.interval.ms": 1_000}


POLICY = {"cleanup.policy": "compact", "segment.bytes": 1_000}


@asynccontextmanager
async def compacting(
    settings: Mapping[str, object] | None = None, policy: Mapping[str, object] | None = None
) -> AsyncIterator[tuple[MemoryBroker, Client, Broker]]:
    """A broker with the compacted topic t, and a client of it."""
    async with memory_broker(settings={**SETTINGS, **(settings or {})}) as running:
        client = await running.connect()
        await create_topic(client, "t", settings={**POLICY, **(policy or {})})
        assert running.node.broker is not None
        yield running, client, running.node.broker


async def put(
    running: MemoryBroker,
    client: Client,
    count: int,
    *,
    keys: int = 3,
    first: int = 0,
    value: bytes | None = b"v" * 50,
    topic: str = "t",
) -> None:
    """Produce `count` batches of one record each, with keys in turn, from key `first` on."""
    for number in range(count):
        key, now_ms = b"key-%d" % (first + number % keys), running.env.timestamp_ms()
        records = build_batch([Record(-1, now_ms, key, value and value + b"%d" % number)])
        assert (await produce(client, topic, records)).error_code == 0


def metric(running: MemoryBroker, name: str) -> float:
    """The value of a metric of the cleaner that has no labels."""
    (found,) = [one for one in DECLARED if one.name.endswith(f"_{name}") and "logcleaner" in one.name]
    ((_, value),) = found.read(running.node)
    assert isinstance(value, int | float)
    return value


def dirty(log: Log) -> bool:
    return log.cleaned_offset != log.segments.active.base_offset


async def cleaned(log: Log) -> None:
    with trio.fail_after(60):
        while dirty(log):  # noqa: ASYNC110  (a pass ends in a nursery of the broker)
            await trio.sleep(1)


async def test_a_compacted_topic_is_cleaned() -> None:
    async with compacting() as (running, client, broker):
        await put(running, client, 60)
        log = broker.find("t", 0).log
        before, size = final_map(log), log.size
        await cleaned(log)
        assert final_map(log) == before
        assert log.size < size / 2
        assert len(contents(log)) < 20
        assert 0 < metric(running, "cleaner_recopy_percent") < 50
        assert 0 < metric(running, "max_buffer_utilization_percent") < 1
        checkpoint = "cleaner-offset-checkpoint"
        assert any(path.endswith(checkpoint) for path in running.files())
        assert not [path for path in running.files() if ".cleaned" in path or ".swap" in path]


async def test_a_damaged_log_is_reported_once_and_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    async with compacting() as (running, client, broker):
        await put(running, client, 60)
        log = broker.find("t", 0).log
        running.disk.open(f"{log.directory}/00000000000000000000.log").pwrite(b"\xff", 100)
        await trio.sleep(100)
        assert len(log.segments) > 3
        assert log.cleaned_offset is None
        why = broker.cleaner.uncleanable[log]
        assert "CRC" in why
        assert sum("cannot clean a log" in record.getMessage() for record in caplog.records) == 1
        assert broker.cleaner.uncleanable_bytes == log.size - log.segments.active.size
        page = b"".join(ready(running.node).pieces).decode()
        assert "1 logs cannot be compacted, such as t-0" in page
        assert metric(running, "uncleanable_partitions_count") == 1
        assert metric(running, "uncleanable_bytes") == broker.cleaner.uncleanable_bytes


async def test_a_log_that_is_truncated_during_a_pass_stays_whole() -> None:
    async with compacting({"log.cleaner.io.max.bytes.per.second": 100.0}) as (running, client, broker):
        await put(running, client, 60)
        log = broker.find("t", 0).log
        await trio.sleep(3)  # the pass waits for its throttle
        before = contents(log)[:4]
        async with broker.locked(log):
            log.truncate_to(4)  # as a follower does after an unclean election
        await trio.sleep(1_000)
        assert contents(log) == before
        assert not [path for path in running.files() if path.endswith(".cleaned")]


async def test_a_topic_can_be_deleted_and_made_again_during_a_pass() -> None:
    async with compacting({"log.cleaner.io.max.bytes.per.second": 100.0}) as (running, client, broker):
        await put(running, client, 60)
        await trio.sleep(3)
        await delete_topic(client, "t")
        await create_topic(client, "t", settings=POLICY)
        await put(running, client, 10, first=50)
        await trio.sleep(500)
        log = broker.find("t", 0).log
        assert {key for _, key, _ in contents(log)} == {b"key-50", b"key-51", b"key-52"}
        assert not broker.cleaner.uncleanable


@pytest.mark.parametrize(("workers", "least", "most"), [(1, 0.3, 0.7), (2, 0.0, 0.2)])
async def test_as_many_logs_are_cleaned_at_once_as_there_are_workers(workers: int, least: float, most: float) -> None:
    """The throttle is for all workers together, so two of them end together, and one ends the first log half way."""
    settings = {"log.cleaner.threads": workers, "log.cleaner.io.max.bytes.per.second": 500.0}
    async with compacting(settings) as (running, client, broker):
        await create_topic(client, "u", settings=POLICY)
        logs = [broker.find(topic, 0).log for topic in ("t", "u")]
        for topic in ("t", "u"):
            await put(running, client, 60, topic=topic)
        before, began = [final_map(log) for log in logs], trio.current_time()
        ended: dict[str, float] = {}
        with trio.fail_after(1_000):
            while len(ended) < 2:
                await trio.sleep(0.1)
                for log in logs:
                    if log.cleaned_offset is not None:
                        ended.setdefault(log.topic, trio.current_time() - began)
        first, second = sorted(ended.values())
        assert least <= (second - first) / second <= most
        assert [final_map(log) for log in logs] == before
        assert not broker.cleaner.uncleanable


async def test_another_policy_ends_the_cleaning() -> None:
    async with compacting() as (running, client, broker):
        assert await alter(client, TOPIC, "t", "cleanup.policy", "delete") == 0
        await put(running, client, 60)
        await trio.sleep(30)
        log = broker.find("t", 0).log
        assert log.cleaned_offset is None
        assert len(contents(log)) == 60
        assert await alter(client, TOPIC, "t", "cleanup.policy", "compact,delete") == 0
        await cleaned(log)
        assert len(contents(log)) < 20


@pytest.mark.long
async def test_a_clock_set_ahead_neither_drops_tombstones_nor_ends_lags() -> None:
    async with compacting() as (running, client, broker):
        await put(running, client, 3, value=None)
        await put(running, client, 30, first=3)
        log = broker.find("t", 0).log
        await cleaned(log)
        assert {key for _, key, value in contents(log) if value is None} == {b"key-0", b"key-1", b"key-2"}
        running.env.wall_jump_ms += 365 * 86_400_000
        await put(running, client, 1, first=9, value=None)
        await put(running, client, 30, first=3)
        await cleaned(log)
        old = {b"key-0", b"key-1", b"key-2"}
        assert {key for _, key, value in contents(log) if value is None} == old | {b"key-9"}
        await trio.sleep(7_200)  # the clock has been stable for an hour, so the broker believes it
        await put(running, await running.connect(), 30, first=3)
        await cleaned(log)
        # The horizon of the new tombstone counts from the new time: it stays for delete.retention.ms.
        assert {key for _, key, value in contents(log) if value is None} == {b"key-9"}
