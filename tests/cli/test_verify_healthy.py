"""`kbroker verify` has no findings in a broker's directory, whatever the broker did."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from kbroker.cli._verify_directory import DirectoryCheck
from kbroker.cli._verify_report import Report
from kbroker.testing.disk import Operation, SimulatedDisk
from kbroker.testing.disk_nodes import Loss
from kbroker.testing.draws import Draws
from kbroker.testing.env import WALL_START_MS
from kbroker.testing.memory_node import DATA_DIRECTORY, Client, MemoryBroker, memory_broker
from tests.handlers.asking import batch, create_topic, delete_records, delete_topic, new_producer, produce
from wire.record_batch import Record, build_batch

RETENTION = {"log.retention.check.interval.ms": 1_000, "log.segment.delete.delay.ms": 0}


def findings(disk: SimulatedDisk, capsys: pytest.CaptureFixture[str]) -> list[str]:
    capsys.readouterr()
    DirectoryCheck(disk, DATA_DIRECTORY, report=Report(as_json=False)).check(lambda _: None)
    return [line for line in capsys.readouterr().out.splitlines() if ": note: " not in line]


async def test_all_records_were_deleted(autojump_clock: MockClock, capsys: pytest.CaptureFixture[str]) -> None:
    async with memory_broker(settings=RETENTION) as broker:
        client = await broker.connect()
        await create_topic(client, "t")
        for _ in range(7):
            await produce(client, "t", batch(b"v"))
        assert await delete_records(client, "t", -1) == (0, 7)
    assert findings(broker.disk, capsys) == []


@pytest.mark.parametrize("timestamps", [[0], [0, 0, 0], [-1, 0], [-1], [-1, -1, 5], [5, 0, 5], [256], [0, 256]])
@pytest.mark.parametrize("at_once", [False, True])
async def test_a_closed_segment_has_any_timestamps(
    autojump_clock: MockClock, capsys: pytest.CaptureFixture[str], timestamps: list[int], at_once: bool
) -> None:
    async with memory_broker() as broker:
        client = await broker.connect()
        await create_topic(client, "t", settings={"retention.ms": -1, "segment.bytes": 450})
        records = [Record(timestamp=one, value=b"v") for one in timestamps]
        for batch_of in [records] if at_once else [[one] for one in records]:
            assert (await produce(client, "t", build_batch(batch_of))).error_code == 0
        await produce(client, "t", batch(b"v" * 350))
        assert sum(name.endswith(".log") for name in broker.files() if name.startswith("t-0")) == 2
    assert findings(broker.disk, capsys) == []


class Use:
    """A broker that runs generated operations."""

    def __init__(self, broker: MemoryBroker, client: Client, draws: Draws, topics: list[str], life: int) -> None:
        self.broker, self.client, self.draws, self.topics, self.life = broker, client, draws, topics, life
        self.sequences: dict[str, int] = {}
        self.producer = -1
        self.created = 0

    async def step(self) -> None:
        kind = self.draws.choice([self.create, *[self.append] * 12, self.delete_records, self.delete, self.wait])
        await kind()

    async def create(self) -> None:
        self.created += 1
        name = f"t{self.life}-{self.created}"
        settings = {
            "segment.bytes": self.draws.choice([500, 1_000, 5_000]),
            "index.interval.bytes": self.draws.choice([0, 100, 4_096]),
            "retention.bytes": self.draws.choice([-1, 0, 1_500]),
            "retention.ms": self.draws.choice([-1, 20_000]),
            "message.timestamp.type": self.draws.choice(["CreateTime", "LogAppendTime"]),
            "flush.messages": self.draws.choice([1, 1 << 40]),
        }
        await create_topic(self.client, name, settings=settings)
        self.topics.append(name)

    async def append(self) -> None:
        if not self.topics:
            return
        topic, draws = self.draws.choice(self.topics), self.draws
        base = draws.choice([-1, 0, 1, WALL_START_MS + round(trio.current_time() * 1_000)])
        records = [Record(timestamp=base, value=b"v" * draws.between(0, 90)) for _ in range(draws.between(1, 4))]
        more = {}
        if draws.chance(0.5):
            self.producer = await new_producer(self.client) if self.producer < 0 else self.producer
            more = {"producer_id": self.producer, "producer_epoch": 0, "base_sequence": self.sequences.get(topic, 0)}
            self.sequences[topic] = self.sequences.get(topic, 0) + len(records)
        answer = await produce(self.client, topic, build_batch(records, **more))
        assert answer.error_code == 0, answer

    async def delete_records(self) -> None:
        if self.topics:
            topic = self.draws.choice(self.topics)
            log = self.broker.node.broker.find(topic, 0).log
            offset = self.draws.choice([-1, self.draws.between(log.log_start_offset, log.log_end_offset)])
            assert (await delete_records(self.client, topic, offset))[0] == 0

    async def delete(self) -> None:
        if len(self.topics) > 2:
            await delete_topic(self.client, self.topics.pop(self.draws.below(len(self.topics))))

    async def wait(self) -> None:
        await trio.sleep(self.draws.choice([0.1, 3, 30]))


@pytest.mark.parametrize("seed", range(10))
async def test_a_directory_that_was_used_in_any_way(
    autojump_clock: MockClock, capsys: pytest.CaptureFixture[str], seed: int
) -> None:
    """After stops and kills, and as a kill between any two operations of the disk leaves it."""
    draws, disk = Draws("verify", seed), SimulatedDisk()
    topics: list[str] = []
    for life in range(3):

        def look(operation: Operation, disk: SimulatedDisk = disk) -> None:
            if draws.chance(0.02):
                survivor = disk.crash(Loss.PROCESS_DEATH, during=operation)
                assert findings(survivor, capsys) == [], operation

        is_clean = draws.chance(0.5)
        async with memory_broker(disk, settings=RETENTION, stops_cleanly=is_clean) as broker:
            disk.observer = look
            use = Use(broker, await broker.connect(), draws, topics, life)
            for _ in range(40):
                await use.step()
        disk.observer = None
        if not is_clean:
            disk = disk.crash(Loss.PROCESS_DEATH)
        assert findings(disk, capsys) == [], (life, is_clean)
