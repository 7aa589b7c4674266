"""The whole protocol between a follower and a tiered leader, as in KIP-405.

The metadata log has a second broker: registered, fenced, assigned to the partition, outside the ISR. The tests play its
part, using only requests, the records of `__remote_log_metadata` and the directory of the tier. The partition is that
of the KIP: epochs LE-0 from offset 0, LE-1 from 3, LE-2 from 5, LE-3 from 7, and the segments 0-2 and 3-5 in the tier.
The epoch numbers are larger here, because a restart raises them by more than one.

Source  KIP-405, "Follower fetch scenarios"; BuildRemoteLogAuxState of Apache Kafka 4.3.1
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from uuid import UUID

import pytest
import trio

from kbroker.storage.leader_epoch import LeaderEpochs, parse_epochs
from kbroker.storage.producer_state import parse_snapshot
from kbroker.testing.disk import SimulatedDisk
from kbroker.testing.memory_node import Client, MemoryBroker, memory_broker
from kbroker.tiered.api import IndexType, RemoteLogSegmentMetadata, TopicIdPartition
from kbroker.tiered.lifecycle import RemoteLogMetadataCache
from kbroker.tiered.local import LocalRemoteStorage
from kbroker.tiered.metadata_topic import decode_event
from tests.controller.injected import inject
from tests.handlers.asking import TOPIC as A_TOPIC
from tests.handlers.asking import (
    alter_configs,
    batch,
    create_topic,
    fetching,
    list_offset,
    parts,
    produce,
    read_batches,
    wanted,
)
from tests.handlers.test_tier_fetch import SETTINGS, until_local_from
from wire.errors import ErrorCode
from wire.messages.broker_registration import Endpoint
from wire.messages.fetch import PartitionData
from wire.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from wire.stored.metadata import PartitionChangeRecord, RegisterBrokerRecord

TOPIC = "orders"
FOLLOWER = 2
VALUE = b"x" * 329_000
"""Three of them fill a segment."""

CONFIGS = {
    "remote.storage.enable": "true",
    "segment.bytes": 1 << 20,
    "retention.ms": -1,
    # Offsets 3 to 7 stay local.
    "local.retention.bytes": 5 * 329_000,
    "file.delete.delay.ms": 0,
}


@dataclass
class World:
    """The leader, its epochs by their names in the KIP, and the topic id."""

    broker: MemoryBroker
    epochs: list[int]
    topic_id: UUID
    client: Client


@dataclass
class Follower:
    """The state of broker B: the bytes of its log, the log's start offset, and its leader epochs."""

    world: World
    start: int = 0
    end: int = 0
    log: list[bytes] = field(default_factory=list)
    epochs: LeaderEpochs = field(default_factory=LeaderEpochs)

    async def fetch(self, offset: int, *, last_fetched_epoch: int = -1) -> PartitionData:
        """Send one Fetch as a replica; it must be answered at once."""
        world = self.world
        asked = wanted(
            0, offset, current_leader_epoch=world.epochs[-1], last_fetched_epoch=last_fetched_epoch, log_start_offset=0
        )
        request = fetching(world.topic_id, asked, replica_id=FOLLOWER, replica_epoch=1, max_wait_ms=5_000)
        began = trio.current_time()
        part = parts(await world.client.ask(request, version=17))[0]
        assert trio.current_time() == began, "a Fetch with something to return never waits"
        return part

    async def follow(self, to: int) -> None:
        """Fetch up to an offset (state Fetching)."""
        while self.end < to:
            part = await self.fetch(self.end, last_fetched_epoch=self.epochs.latest)
            assert (part.error_code, part.diverging_epoch) == (0, None)
            for one in read_batches(part):
                assert one.base_offset == self.end
                self.log.append(bytes(one.data))
                self.epochs.assign(one.partition_leader_epoch, one.base_offset)
                self.end = one.next_offset

    async def offset(self, timestamp: int) -> tuple[int, int]:
        """(offset, leader epoch) from ListOffsets for a special timestamp."""
        epoch = self.world.epochs[-1]
        found = await list_offset(
            self.world.client, TOPIC, timestamp, replica_id=FOLLOWER, current_leader_epoch=epoch, version=8
        )
        assert found[0] == 0
        return found[1], found[3]

    async def end_of_epoch(self, epoch: int) -> tuple[int, int]:
        """(epoch, end offset) from OffsetForLeaderEpoch."""
        asked = OffsetForLeaderPartition(partition=0, current_leader_epoch=self.world.epochs[-1], leader_epoch=epoch)
        topics = [OffsetForLeaderTopic(topic=TOPIC, partitions=[asked])]
        answer = await self.world.client.ask(OffsetForLeaderEpochRequest(replica_id=FOLLOWER, topics=topics))
        found = answer.topics[0].partitions[0]
        assert found.error_code == 0
        return found.leader_epoch, found.end_offset

    async def remote_metadata(self) -> RemoteLogMetadataCache:
        """The tier's metadata, read from its topic as a client."""
        partition = TopicIdPartition(self.world.topic_id, TOPIC, 0)
        known = RemoteLogMetadataCache()
        offset = 0
        while True:
            answer = await self.world.client.ask(fetching("__remote_log_metadata", wanted(0, offset)), version=12)
            got = read_batches(parts(answer)[0])
            if not got:
                return known
            for one in got:
                for record in one.records():
                    assert record.value is not None
                    event = decode_event(record.value)
                    if event.remote_log_segment_id.topic_id_partition == partition:
                        assert known.replay(event) is None
                offset = one.next_offset

    async def build_from_tier(self) -> RemoteLogSegmentMetadata:
        """State BuildingRemoteLogAux: build the state before the leader's local log from the tier."""
        log_start, _ = await self.offset(-2)
        local_start, epoch = await self.offset(-4)
        target = epoch
        if epoch > 0:
            earlier, end = await self.end_of_epoch(epoch - 1)
            if end > local_start - 1:
                target = earlier
        segment = (await self.remote_metadata()).remote_log_segment_metadata(target, local_start - 1)
        assert segment is not None
        storage = LocalRemoteStorage(self.world.broker.disk)
        storage.configure({"dir": "/data-tier"})
        # Fetch both before truncating the log, because truncation cannot be undone.
        entries = parse_epochs(storage.fetch_index(segment, IndexType.LEADER_EPOCH).decode())
        producers = parse_snapshot(storage.fetch_index(segment, IndexType.PRODUCER_SNAPSHOT))
        assert producers == []
        assert log_start == 0
        self.log.clear()
        self.start = self.end = segment.end_offset + 1
        self.epochs = LeaderEpochs(entries)
        return segment

    def named(self) -> list[tuple[int, int]]:
        """Its leader epochs by their names in the KIP."""
        return [(self.world.epochs.index(epoch), start) for epoch, start in self.epochs.entries]


@asynccontextmanager
async def leader() -> AsyncIterator[World]:
    """The leader of the KIP's example, in its fourth epoch."""
    disk = SimulatedDisk()
    epochs: list[int] = []
    topic_id = UUID(int=0)
    for number, count in enumerate((3, 2, 2)):
        async with memory_broker(disk, settings=SETTINGS, seed=number) as broker:
            client = await broker.connect()
            if not epochs:
                topic_id = await create_topic(client, TOPIC, settings=CONFIGS)
            await add_messages(client, epochs, count)
    async with memory_broker(disk, settings=SETTINGS, seed=9) as broker:
        client = await broker.connect()
        await add_messages(client, epochs, 1)
        await until_local_from(client, TOPIC, 3)
        await register_follower(broker, topic_id)
        epochs[-1] = (await list_offset(client, TOPIC, -1))[3]
        yield World(broker, epochs, topic_id, client)


async def add_messages(client: Client, epochs: list[int], count: int) -> None:
    epochs.append((await list_offset(client, TOPIC, -1))[3])
    for _ in range(count):
        assert (await produce(client, TOPIC, batch(VALUE))).error_code == 0


async def register_follower(broker: MemoryBroker, topic_id: UUID) -> None:
    """Add broker 2 to the metadata: fenced, and a replica outside the ISR."""
    assert broker.node.broker is not None
    broker_id = broker.node.broker.node_id
    held = broker.node.broker.image.partition(TOPIC, 0)
    assert held is not None
    directory = UUID(int=77)
    records = [
        RegisterBrokerRecord(
            broker_id=FOLLOWER,
            incarnation_id=UUID(int=5),
            broker_epoch=1,
            end_points=[Endpoint(name="PLAINTEXT", host="b.example", port=9092, security_protocol=0)],
            features=[],
            rack=None,
            fenced=True,
            log_dirs=[directory],
        ),
        PartitionChangeRecord(
            partition_id=0,
            topic_id=topic_id,
            replicas=[broker_id, FOLLOWER],
            isr=[broker_id],
            directories=[*held.directories, directory],
        ),
    ]
    await inject(broker.node.broker.controller, lambda: records)
    placed = broker.node.broker.image.partition(TOPIC, 0)
    assert placed is not None
    assert (placed.replicas, placed.isr) == ((broker_id, FOLLOWER), (broker_id,))
    assert broker.node.broker.image.brokers[FOLLOWER].fenced


async def leave_only(world: World, count: int, *, local_from: int) -> None:
    """Produce until the local log starts at an offset."""
    for _ in range(count):
        assert (await produce(world.client, TOPIC, batch(VALUE))).error_code == 0
    assert await alter_configs(world.client, A_TOPIC, TOPIC, {"local.retention.bytes": 1}) == (0, None)
    await until_local_from(world.client, TOPIC, local_from)


async def leaders_log(world: World, start: int) -> list[bytes]:
    """The leader's batches from an offset on, read as a consumer."""
    found: list[bytes] = []
    while True:
        answer = await world.client.ask(fetching(world.topic_id, wanted(0, start)), version=17)
        got = read_batches(parts(answer)[0])
        if not got:
            return found
        found += [bytes(one.data) for one in got]
        start = got[-1].next_offset


def assert_moved(part: PartitionData, *, high_watermark: int) -> None:
    """Check the reply for an offset in the tier: code 109 with the offsets of the log and no records."""
    assert part.error_code == ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE
    assert (part.high_watermark, part.log_start_offset, part.last_stable_offset) == (high_watermark, 0, -1)
    assert (part.aborted_transactions, part.preferred_read_replica, read_batches(part)) == (None, -1, [])


async def test_scenario_1_a_new_follower_starts_after_the_tier() -> None:
    async with leader() as world:
        follower = Follower(world)
        assert_moved(await follower.fetch(0), high_watermark=8)
        assert await follower.offset(-4) == (3, world.epochs[1])
        segment = await follower.build_from_tier()
        assert (segment.start_offset, segment.end_offset) == (0, 2)
        assert (follower.end, follower.named()) == (3, [(0, 0)])
        await follower.follow(8)
        assert follower.named() == [(0, 0), (1, 3), (2, 5), (3, 7)]
        assert follower.log == await leaders_log(world, 3)


async def test_scenario_2_a_follower_behind_the_local_log_starts_over() -> None:
    async with leader() as world:
        follower = Follower(world, end=4, epochs=LeaderEpochs([(world.epochs[0], 0), (world.epochs[1], 3)]))
        # Truncating: the leader's LE-1 ends after the follower's log, so nothing is truncated.
        assert await follower.end_of_epoch(world.epochs[1]) == (world.epochs[1], 5)
        await leave_only(world, 4, local_from=9)
        assert_moved(await follower.fetch(4, last_fetched_epoch=world.epochs[1]), high_watermark=12)
        assert await follower.offset(-4) == (9, world.epochs[3])
        segment = await follower.build_from_tier()
        assert segment.end_offset == 8
        assert follower.named() == [(0, 0), (1, 3), (2, 5), (3, 7)]
        await follower.follow(12)
        assert follower.log == await leaders_log(world, 9)


async def test_scenario_2_a_follower_within_the_local_log_continues() -> None:
    async with leader() as world:
        follower = Follower(world, end=4, epochs=LeaderEpochs([(world.epochs[0], 0), (world.epochs[1], 3)]))
        await follower.follow(8)
        assert follower.named() == [(0, 0), (1, 3), (2, 5), (3, 7)]


async def test_scenario_3_a_diverged_follower_first_learns_its_divergence() -> None:
    """Its LE-1 ends at 5, the leader's at 4: it diverges first, and reads the tier afterwards."""
    async with leader() as world:
        await leave_only(world, 4, local_from=9)
        follower = Follower(world)
        part = await follower.fetch(6, last_fetched_epoch=world.epochs[1])
        assert part.error_code == 0
        assert part.diverging_epoch is not None
        assert (part.diverging_epoch.epoch, part.diverging_epoch.end_offset) == (world.epochs[1], 5)
        assert read_batches(part) == []
        assert_moved(await follower.fetch(5, last_fetched_epoch=world.epochs[1]), high_watermark=12)
        await follower.build_from_tier()
        await follower.follow(12)
        assert follower.log == await leaders_log(world, 9)


async def test_a_follower_that_reads_the_tier_does_not_delay_commits() -> None:
    async with leader() as world:
        follower = Follower(world)
        await follower.fetch(0)
        assert (await produce(world.client, TOPIC, batch(b"one more"), acks=-1)).error_code == 0
        assert (await list_offset(world.client, TOPIC, -1))[1] == 9


@pytest.mark.parametrize(("name", "expected"), [(-2, 0), (-5, 5), (-6, 6)])
async def test_a_follower_can_look_up_the_bounds_of_the_tier(name: int, expected: int) -> None:
    """KIP-1023, KIP-1005."""
    async with leader() as world:
        assert (await list_offset(world.client, TOPIC, name, replica_id=FOLLOWER))[:2] == (0, expected)
