"""Random lives of tiered topics: produced to, deleted from, enabled and disabled, deleted, restarted and killed, while
threads take their time. In the end every record between a log's start and its end can be read as written, and deleted
topics leave nothing.
"""

from __future__ import annotations

import errno
from random import Random

import pytest
import trio

from kbroker.testing.disk import Fault, SimulatedDisk
from kbroker.testing.disk_nodes import Loss
from kbroker.testing.memory_node import Client, MemoryBroker, memory_broker
from tests.broker.test_tier_lifecycle import (
    EARLIEST,
    LATEST,
    QUICK,
    TIER,
    TIERED,
    alter,
    objects,
    until,
    value,
)
from tests.handlers.asking import (
    batch,
    create_topic,
    delete_records,
    delete_topic,
    fetching,
    list_offset,
    parts,
    produce,
    values,
    wanted,
)
from wire.errors import ErrorCode

TOPICS = ("a", "b")
STEPS, LIVES = 25, 3
ON = {"remote.storage.enable": "true"}
OFF = {"remote.storage.enable": "false", "remote.log.delete.on.disable": "true"}
READ_ONLY = {"remote.log.copy.disable": "true", "local.retention.bytes": None}
COPYING = {"remote.log.copy.disable": "false", "local.retention.bytes": "1"}


class Life:
    """The expected state of the topics; `ends` has the number of records of each existing topic."""

    def __init__(self, draw: Random) -> None:
        self.draw = draw
        self.ends: dict[str, int] = {}
        self.starts: dict[str, int] = {}
        self.done: set[str] = set()
        self.disk = SimulatedDisk()
        self.lost_power = False

    async def take_stock(self, client: Client) -> None:
        """Compare with what a start has found. A power loss may truncate a log, but not the tier."""
        for name, end in list(self.ends.items()):
            if self.lost_power:
                found = (await list_offset(client, name, LATEST))[1]
                assert found <= end
                self.ends[name], self.starts[name] = found, min(self.starts[name], found)
            # A log that was about to become tiered may seem to start at 0 until the tier's metadata are known.
            await read_between(client, name, 0, self.ends[name])
            await read_between(client, name, self.starts[name], self.ends[name])
        self.lost_power = False

    async def step(self, client: Client) -> None:
        name = self.draw.choice(TOPICS)
        if name not in self.ends:
            await create_topic(client, name, settings={**TIERED, "retention.ms": -1})
            self.ends[name] = self.starts[name] = 0
            return
        do = self.draw.choices(
            (self._produce, self._read, self._enable, self._trim, self._delete, self._wait, self._retain, self._break),
            (8, 6, 3, 1, 1, 4, 1, 2),
        )[0]
        self.done.add(do.__name__)
        await do(client, name)

    async def _produce(self, client: Client, name: str) -> None:
        for _ in range(self.draw.randint(1, 4)):
            answer = await produce(client, name, batch(value(self.ends[name])))
            assert (answer.error_code, answer.base_offset) == (0, self.ends[name])
            self.ends[name] += 1

    async def _read(self, client: Client, name: str) -> None:
        await read_between(client, name, self.starts[name], self.ends[name])

    async def _enable(self, client: Client, name: str) -> None:
        changes = self.draw.choice((ON, OFF, READ_ONLY, COPYING))
        code, _ = await alter(client, name, changes)
        # Copying cannot be disabled with a local retention of its own; nothing else is refused.
        assert code in (0, ErrorCode.INVALID_CONFIG)

    async def _trim(self, client: Client, name: str) -> None:
        start = self.draw.randint(self.starts[name], self.ends[name])
        code, low = await delete_records(client, name, start)
        # A topic that left the tier may have lost more.
        assert (code, low >= start) == (0, True)
        self.starts[name] = start

    async def _delete(self, client: Client, name: str) -> None:
        await delete_topic(client, name)
        del self.ends[name], self.starts[name]

    async def _retain(self, client: Client, name: str) -> None:
        """Let retention delete some records; it may do so at any time from now on."""
        assert (await alter(client, name, {"retention.bytes": self.draw.choice((-1, 1_500, 3_000))}))[0] == 0

    async def _break(self, _client: Client, _name: str) -> None:
        """Make the store fail, or work again."""
        self.disk.heal()
        if self.draw.random() < 0.5:
            fault = Fault(self.draw.choice((errno.EIO, errno.ENOSPC)), path=f"{TIER}/*", times=-1)
            self.disk.inject(fault)

    async def _wait(self, _client: Client, _name: str) -> None:
        await trio.sleep(self.draw.choice((0.01, 0.1, 1, 5)))


async def read_between(client: Client, name: str, least_start: int, end: int) -> None:
    """Read like a consumer everything that exists, and compare it; there may be no gap after the start."""
    assert (await list_offset(client, name, LATEST))[1] == end
    offset = (await list_offset(client, name, EARLIEST))[1]
    assert least_start <= offset <= end
    for _ in range(1_000):
        if offset >= end:
            return
        part = parts(await client.ask(fetching(name, wanted(offset=offset), max_wait_ms=100), version=12))[0]
        if part.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            # The topic is leaving the tier: its start has passed the offset to read.
            start = (await list_offset(client, name, EARLIEST))[1]
            assert start > offset
            offset = start
            continue
        if part.error_code == ErrorCode.KAFKA_STORAGE_ERROR:
            continue  # entering or leaving the tier: clients retry, and so does this one
        assert part.error_code == 0, part
        for found in values(part):
            if offset < end:
                assert found == value(offset)
                offset += 1
    raise AssertionError(f"{name} cannot be read to its end: {offset=} of {end}")


@pytest.mark.long
@pytest.mark.parametrize("seed", range(8))
async def test_random_lives_of_tiered_topics_lose_no_records(seed: int) -> None:
    draw = Random(seed)
    life = Life(draw)
    for number in range(LIVES):
        end = draw.choice((None, Loss.PROCESS_DEATH, Loss.ONLY_SYNCED, Loss.SECTORS, Loss.TORN))
        latency_ms = draw.choice((0, 5, 200))
        async with memory_broker(
            life.disk, settings=QUICK, seed=seed, latency_ms=latency_ms, stops_cleanly=end is None
        ) as broker:
            client = await broker.connect()
            await life.take_stock(client)
            for _ in range(STEPS):
                await life.step(client)
            life.disk.heal()
            if number == LIVES - 1:
                await finish(broker, client, life)
            if end is not None:
                life.lost_power = end is not Loss.PROCESS_DEATH
                life.disk = broker.disk.crash(end, seed=seed)
    assert {"_produce", "_read", "_enable"} <= life.done


async def finish(broker: MemoryBroker, client: Client, life: Life) -> None:
    """Delete every topic: the tier must be empty."""
    for name in list(life.ends):
        await read_between(client, name, life.starts[name], life.ends[name])
        await delete_topic(client, name)
    await until(lambda: not objects(broker))
