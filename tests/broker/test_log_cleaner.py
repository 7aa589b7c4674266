"""The broker compacts topics in the background, and stops where a log changes under it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import trio

from kbroker.broker.broker import Broker
from kbroker.storage.log import Log
from kbroker.testing.broker import Client, MemoryBroker, memory_broker
from tests.handlers.asking import TOPIC, create_topic, produce
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
) -> None:
    """Produce `count` batches of one record each, with keys in turn, from key `first` on."""
    for number in range(count):
        key, now_ms = b"key-%d" % (first + number % keys), running.env.timestamp_ms()
        records = build_batch([Record(-1, now_ms, key, value and value + b"%d" % number)])
        assert (await produce(client, "t", records)).error_code == 0


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
        assert [one.bytes_read for one in broker.cleaner.last_results]
        checkpoint = "cleaner-offset-checkpoint"
        assert any(path.endswith(checkpoint) for path in running.files())
        assert not [path for path in running.files() if ".cleaned" in path or ".swap" in path]


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
