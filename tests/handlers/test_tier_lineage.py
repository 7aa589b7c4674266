"""Scenarios 3 and 4 of KIP-405 from the view of the last leader: multiple hard failures, and unclean leader elections
after which the tier holds segments of several leaders with diverging epochs.

The tests play the part of the other leaders: their segments are real objects in the tier's directory, and a client
appends their records to `__remote_log_metadata`. The tests compare the replies to standard requests (records along the
lineage of the leader's epochs, offsets, epochs, timestamps), and the objects that remain in the tier.

Source  KIP-405, "Follower fetch scenarios (including truncation scenarios)": scenario 3, multiple hard failures;
        scenario 4, unclean leader election including truncation; follower to leader transition. KIP-101
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from uuid import UUID

import trio

from kbroker.broker.tier_lifecycle import Tier
from kbroker.storage.leader_epoch import LeaderEpochs
from kbroker.testing.disk import SimulatedDisk
from kbroker.testing.disk_nodes import Loss
from kbroker.testing.env import WALL_START_MS
from kbroker.testing.memory_node import Client, MemoryBroker, memory_broker
from kbroker.testing.remote_metadata import DELETED, DELETING, FINISHED, update_to
from kbroker.testing.remote_segments import write_batches
from kbroker.tiered.api import RemoteLogMetadataManager, RemoteLogSegmentMetadata, TopicIdPartition
from kbroker.tiered.lifecycle import MetadataEvent
from kbroker.tiered.local import LocalRemoteStorage
from kbroker.tiered.metadata_topic import encode_event
from tests.handlers.asking import TOPIC as A_TOPIC
from tests.handlers.asking import (
    alter_configs,
    batch,
    create_topic,
    delete_records,
    fetching,
    list_offset,
    parts,
    produce,
    read_batches,
    wanted,
)
from tests.handlers.test_tier_fetch import SETTINGS, until_local_from
from tests.handlers.test_tier_follower import Follower, World, register_follower
from wire.record_batch import Record, build_batch

TOPIC = "orders"
OTHER, THIRD = 2, 3
CONFIGS = {"remote.storage.enable": "true", "retention.ms": -1, "file.delete.delay.ms": 0, "flush.messages": 1}
Epochs = tuple[tuple[int, int], ...]


def message(number: int) -> bytes:
    return b"msg %d" % number


def when(number: int) -> int:
    """The timestamp of a message; each message of the KIP has its own."""
    return WALL_START_MS + 1_000 * number


def written(offset: int, number: int, epoch: int) -> bytes:
    """A message as stored in a log."""
    return build_batch(
        [Record(offset, when(number), None, message(number))], base_offset=offset, partition_leader_epoch=epoch
    )


class Leader:
    """The broker under test, while it leads `orders-0`."""

    def __init__(self, broker: MemoryBroker, client: Client, topic_id: UUID) -> None:
        self.broker, self.client, self.topic_id = broker, client, topic_id
        self.partition = TopicIdPartition(topic_id, TOPIC, 0)

    @property
    def tier(self) -> Tier:
        assert self.broker.node.broker is not None
        return self.broker.node.broker.tier

    @property
    def metadata(self) -> RemoteLogMetadataManager:
        """The broker's metadata of the tier."""
        manager = self.tier.manager
        assert manager is not None
        return manager.tools.metadata

    @property
    def storage(self) -> LocalRemoteStorage:
        storage = LocalRemoteStorage(self.broker.disk)
        storage.configure({"dir": "/data-tier"})
        return storage

    async def epoch(self) -> int:
        assert self.broker.node.broker is not None
        return self.broker.node.broker.find(TOPIC, 0).leader_epoch

    async def write(self, *numbers: int) -> None:
        for number in numbers:
            made = batch(message(number), timestamp=when(number))
            assert (await produce(self.client, TOPIC, made)).error_code == 0

    async def configure(self, **configs: object) -> None:
        changes = {name.replace("_", "."): value for name, value in configs.items()}
        assert await alter_configs(self.client, A_TOPIC, TOPIC, changes) == (0, None)

    async def move_to_tier(self, *, end: int) -> None:
        """Close the active segment, copy all segments to the tier, and delete them locally."""
        now = self.broker.env.timestamp_ms() - 1
        await trio.sleep(1)
        await self.configure(kbroker_remote_flush_timestamp_ms=now + 500, local_retention_bytes=0)
        await until_local_from(self.client, TOPIC, end)

    async def tell(self, event: MetadataEvent) -> None:
        """Append an event to `__remote_log_metadata` as another broker would."""
        record = build_batch([Record(0, self.broker.env.timestamp_ms(), None, encode_event(event))])
        assert (await produce(self.client, "__remote_log_metadata", record)).error_code == 0
        assert self.broker.node.broker is not None
        self.broker.node.broker.find("__remote_log_metadata", 0).log.flush()

    async def begun_by(
        self, broker_id: int, number: int, batches: Sequence[bytes], *, start: int, end: int, epochs: Epochs
    ) -> RemoteLogSegmentMetadata:
        """Play another leader that copies a segment: the object is in the tier, and its metadata state is "copying".

        Shape  epochs are those of the leader's whole log
        """
        first = max(entry for entry in epochs if entry[1] <= start)
        within = ((first[0], start), *(entry for entry in epochs if start < entry[1] <= end))
        home = "/elsewhere"
        if not self.broker.disk.exists(home):
            self.broker.disk.make_directory(home)
        made = write_batches(
            home,
            batches,
            start_offset=start,
            end_offset=end,
            leader_epochs=within,
            history=epochs,
            disk=self.broker.disk,
            partition=self.partition,
            broker_id=broker_id,
            segment_id=UUID(int=number),
            start_ms=self.broker.env.timestamp_ms(),
        )
        await self.tell(made.metadata)
        self.storage.copy_log_segment_data(made.metadata, made.data)
        return made.metadata

    async def copied_by(
        self, broker_id: int, number: int, batches: Sequence[bytes], *, start: int, end: int, epochs: Epochs
    ) -> RemoteLogSegmentMetadata:
        """The same, with a finished copy."""
        begun = await self.begun_by(broker_id, number, batches, start=start, end=end, epochs=epochs)
        return await self.finished(begun)

    async def finished(self, begun: RemoteLogSegmentMetadata) -> RemoteLogSegmentMetadata:
        """The other broker finishes its copy; wait until this broker has read the event."""
        await self.tell(replace(update_to(begun, FINISHED), broker_id=begun.broker_id))
        for _ in range(100):
            for known in self.metadata.list_remote_log_segments(self.partition):
                if known.remote_log_segment_id == begun.remote_log_segment_id and known.state is FINISHED:
                    return known
            await trio.sleep(0.1)
        raise AssertionError("what another broker wrote there is not known")

    async def read_all(self, *, start: int = 0) -> list[tuple[int, bytes, int]]:
        """(offset, value, leader epoch) of all records that a consumer gets; checks their CRCs."""
        found: list[tuple[int, bytes, int]] = []
        at = start
        while True:
            answer = await self.client.ask(fetching(self.topic_id, wanted(0, at)), version=17)
            part = parts(answer)[0]
            assert part.error_code == 0, part
            got = read_batches(part)
            if not got:
                return found
            for one in got:
                assert one.crc_is_valid()
                for record in one.records():
                    assert record.value is not None
                    found.append((one.base_offset, record.value, one.partition_leader_epoch))
            at = got[-1].next_offset

    def found(self, epoch: int, offset: int) -> RemoteLogSegmentMetadata | None:
        return self.metadata.remote_log_segment_metadata(self.partition, epoch, offset)

    def objects(self) -> set[UUID]:
        return {one.segment_id for one in self.storage.list_objects() if one.segment_id is not None}

    async def until_gone(self, *segments: RemoteLogSegmentMetadata) -> None:
        gone = {one.remote_log_segment_id.id for one in segments}
        for _ in range(100):
            if not self.objects() & gone:
                return
            await trio.sleep(0.1)
        raise AssertionError(f"{self.objects() & gone} are still in the tier")

    async def follower(self, epochs: Sequence[int], mine: Sequence[tuple[int, int]], end: int) -> Follower:
        """Broker A as a follower with an existing log."""
        world = World(self.broker, [*epochs], self.topic_id, self.client)
        return Follower(world, end=end, epochs=LeaderEpochs(mine))


async def leading(broker: MemoryBroker, topic_id: UUID | None = None) -> Leader:
    client = await broker.connect()
    if topic_id is None:
        topic_id = await create_topic(client, TOPIC, settings=CONFIGS)
    leader = Leader(broker, client, topic_id)
    for _ in range(100):
        if (await list_offset(client, TOPIC, -5))[0] == 0:  # waits until the tier's metadata is loaded
            return leader
        await trio.sleep(0.1)
    raise AssertionError("it never knows what is in the tier")


async def led_before(disk: SimulatedDisk, *numbers: int) -> tuple[UUID, int]:
    """Let this broker write messages and stop; return (topic id, leader epoch)."""
    async with memory_broker(disk, settings=SETTINGS) as broker:
        leader = await leading(broker)
        epoch = await leader.epoch()
        await leader.write(*numbers)
        return leader.topic_id, epoch


async def test_scenario_3_multiple_hard_failures() -> None:
    """A (the leader) and B have messages 0 to 2 of LE-0; A has tiered seg-0-1. Both crash. B loses messages 1 and 2,
    which were not synced, leads in LE-1, and accepts message 3 at offset 1. A's copy of offset 1 is not in the lineage.
    """
    disk = SimulatedDisk()
    # Step 1: A has tiered its first segment. B, which is this broker, has the same log, but only message 0 is synced.
    async with memory_broker(disk, settings=SETTINGS, stops_cleanly=False) as broker:
        b = await leading(broker)
        le_0 = await b.epoch()
        await b.write(0)
        await b.configure(flush_messages=1_000)
        await b.write(1, 2)
        same = await b.read_all()
        assert same == [(number, message(number), le_0) for number in range(3)]
        uuid_1 = await b.copied_by(
            OTHER, 1, [written(0, 0, le_0), written(1, 1, le_0)], start=0, end=1, epochs=((le_0, 0),)
        )
        assert b.found(le_0, 1) == uuid_1
        topic_id = b.topic_id
        left = broker.disk.crash(Loss.ONLY_SYNCED)
    # Step 2: both crashed. B comes back first, without messages 1 and 2, and leads.
    async with memory_broker(left, settings=SETTINGS, seed=1) as broker:
        b = await leading(broker, topic_id)
        le_1 = await b.epoch()
        assert le_1 > le_0
        assert (await list_offset(b.client, TOPIC, -1))[:2] == (0, 1)
        await b.write(3)
        history = [(0, message(0), le_0), (1, message(3), le_1)]
        assert await b.read_all() == history
        # Step 3: A returns as a follower with 0 to 2 of LE-0. B makes it truncate its log to 1; then it follows.
        await register_follower(broker, topic_id)
        le_now = await b.epoch()
        a = await b.follower([le_0, le_1, le_now], [(le_0, 0)], 3)
        part = await a.fetch(3, last_fetched_epoch=le_0)
        assert part.diverging_epoch is not None
        assert (part.diverging_epoch.epoch, part.diverging_epoch.end_offset) == (le_0, 1)
        assert await a.end_of_epoch(le_0) == (le_0, 1)
        a.end = 1
        a.epochs = LeaderEpochs([(le_0, 0)])
        await a.follow(2)
        assert list(a.epochs.entries) == [(le_0, 0), (le_1, 1)]
        # B tiers its own segment uuid-2. It has the same offsets as uuid-1, but another record at offset 1.
        await b.move_to_tier(end=2)
        uuid_2 = b.found(le_1, 1)
        assert uuid_2 is not None
        assert uuid_2.segment_leader_epochs[-1] == (le_1, 1)
        assert b.objects() == {uuid_1.remote_log_segment_id.id, uuid_2.remote_log_segment_id.id}
        # Look-ups by epoch: only A's segment has offset 1 in LE-0, and no look-up along B's epochs finds it.
        assert b.found(le_0, 1) == uuid_1
        assert b.found(le_1, 0) is None
        highest = b.metadata.highest_offset_for_epoch
        assert (highest(b.partition, le_0), highest(b.partition, le_1)) == (1, 1)
        # All records come from the tier, but not A's record at offset 1.
        assert (await list_offset(b.client, TOPIC, -4))[1] == 2
        assert await b.read_all() == history
        assert await b.read_all(start=1) == history[1:]
        # By timestamp: message 1 is not found, message 3 is.
        assert await list_offset(b.client, TOPIC, when(1)) == (0, 1, when(3), le_1)
        assert await list_offset(b.client, TOPIC, when(0)) == (0, 0, when(0), le_0)
        assert (await list_offset(b.client, TOPIC, -2))[1] == 0
        assert (await list_offset(b.client, TOPIC, -5))[1] == 1
        # Retention deletes B's segment, and A's unreferenced segment once the log starts after it.
        await b.write(4)
        await b.configure(retention_bytes=0)
        await b.until_gone(uuid_1, uuid_2)
        assert (await list_offset(b.client, TOPIC, -2))[1] == 2
        assert await b.read_all(start=2) == [(2, message(4), le_now)]


async def test_scenario_4_unclean_leader_elections_including_truncation() -> None:
    """A leads in LE-0 and writes messages 0 to 4. B has 0 to 2, becomes an unclean leader in LE-1 and writes 5 to 7. C,
    this broker, has 0 and 1, becomes an unclean leader in LE-2 and writes 8 to 12. Each leader has tiered its messages,
    so the tier has up to three records for an offset.
    """
    disk = SimulatedDisk()
    topic_id, le_0 = await led_before(disk, 0, 1)
    async with memory_broker(disk, settings=SETTINGS, seed=1) as broker:
        c = await leading(broker, topic_id)
        le_1, le_2 = le_0 + 1, await c.epoch()
        assert le_1 < le_2
        in_0 = [written(number, number, le_0) for number in range(5)]
        in_1 = [written(offset, offset + 2, le_1) for offset in range(3, 6)]
        of_a = ((le_0, 0),)
        of_b = ((le_0, 0), (le_1, 3))
        a_0_2 = await c.copied_by(OTHER, 1, in_0[:3], start=0, end=2, epochs=of_a)
        a_3_4 = await c.copied_by(OTHER, 2, in_0[3:], start=3, end=4, epochs=of_a)
        b_0_3 = await c.copied_by(THIRD, 3, in_0[:3] + in_1[:1], start=0, end=3, epochs=of_b)
        b_4_5 = await c.copied_by(THIRD, 4, in_1[1:], start=4, end=5, epochs=of_b)
        foreign = [a_0_2, a_3_4, b_0_3, b_4_5]
        await c.write(8, 9, 10, 11, 12)
        history = [(0, message(0), le_0), (1, message(1), le_0)]
        history += [(offset, message(offset + 6), le_2) for offset in range(2, 7)]
        assert await c.read_all() == history, "it is all here, whatever the tier has"
        await c.move_to_tier(end=7)
        c_2_6 = c.found(le_2, 2)
        assert c_2_6 is not None
        assert c_2_6.broker_id not in (OTHER, THIRD)
        await expect_scenario_4(c, history, le_0, le_1, le_2)
        everything = c.objects()
        assert {one.remote_log_segment_id.id for one in foreign} < everything
    # The same after another start from the disk.
    async with memory_broker(disk, settings=SETTINGS, seed=2) as broker:
        c = await leading(broker, topic_id)
        await expect_scenario_4(c, history, le_0, le_1, le_2)
        # A and B return: each gets the last offset and epoch that it shares with C.
        await register_follower(broker, topic_id)
        now = await c.epoch()
        for mine, last_epoch, end in [(of_a, le_0, 5), (of_b, le_1, 6)]:
            follower = await c.follower([now], mine, end)
            part = await follower.fetch(end, last_fetched_epoch=last_epoch)
            assert part.diverging_epoch is not None
            assert (part.diverging_epoch.epoch, part.diverging_epoch.end_offset) == (le_0, 2)
            assert await follower.end_of_epoch(last_epoch) == (le_0, 2)
        # Retention by size counts only C's lineage, not the segments of A and B.
        own = sum(
            one.segment_size_in_bytes
            for one in c.metadata.list_remote_log_segments(c.partition)
            if one.broker_id not in (OTHER, THIRD)
        )
        await c.configure(retention_bytes=own)
        await trio.sleep(2)
        assert c.objects() == everything
        assert await c.read_all() == history
        await c.configure(retention_bytes=-1)
        # Unreferenced segments are deleted only after the log start offset has passed them.
        for start, gone in [(2, []), (3, [a_0_2]), (5, [a_3_4, b_0_3]), (6, [b_4_5])]:
            assert await delete_records(c.client, TOPIC, start) == (0, start)
            await c.until_gone(*gone)
            await trio.sleep(1)
            everything -= {one.remote_log_segment_id.id for one in gone}
            assert c.objects() == everything, start
            assert await c.read_all(start=start) == history[start:]
            assert (await list_offset(c.client, TOPIC, -2))[1] == start


async def expect_scenario_4(c: Leader, history: list[tuple[int, bytes, int]], le_0: int, le_1: int, le_2: int) -> None:
    """Check C's replies when its whole log is in the tier."""
    # Look-ups by epoch find each leader's segments.
    own = c.found(le_2, 2)
    assert own is not None
    for epoch, offsets, numbers in [
        (le_0, (0, 1, 2), (1, 3)),
        (le_0, (3, 4), (2,)),
        (le_1, (3,), (3,)),
        (le_1, (4, 5), (4,)),
        (le_2, (2, 3, 4, 5, 6), (own.remote_log_segment_id.id.int,)),
    ]:
        for offset in offsets:
            found = c.found(epoch, offset)
            assert found is not None
            assert found.remote_log_segment_id.id.int in numbers, (epoch, offset)
    for epoch, offset in [(le_0, 5), (le_1, 2), (le_1, 6), (le_2, 1), (le_2, 7), (le_2 + 9, 0)]:
        assert c.found(epoch, offset) is None, (epoch, offset)
    highest = [c.metadata.highest_offset_for_epoch(c.partition, epoch) for epoch in (le_0, le_1, le_2)]
    assert highest == [4, 5, 6]
    # Reads from every offset return the same records along the lineage, all from the tier.
    assert (await list_offset(c.client, TOPIC, -4))[1] == 7
    for start in range(8):
        assert await c.read_all(start=start) == history[start:]
    # By timestamp: the messages of fenced leaders are not found.
    assert await list_offset(c.client, TOPIC, when(2)) == (0, 2, when(8), le_2)
    assert await list_offset(c.client, TOPIC, when(5)) == (0, 2, when(8), le_2)
    assert await list_offset(c.client, TOPIC, when(11)) == (0, 5, when(11), le_2)
    assert (await list_offset(c.client, TOPIC, -2))[1] == 0
    assert (await list_offset(c.client, TOPIC, -5))[1] == 6


async def test_a_late_copy_of_a_fenced_leader_expires() -> None:
    """Follower to leader transition: A is still copying when B becomes leader. B copies the unfinished segment again;
    A's copy of the same records finishes later. No record is read twice.
    """
    disk = SimulatedDisk()
    topic_id, le_0 = await led_before(disk, 0, 1, 2)
    async with memory_broker(disk, settings=SETTINGS, seed=1) as broker:
        b = await leading(broker, topic_id)
        le_1 = await b.epoch()
        same = [written(number, number, le_0) for number in range(3)]
        begun = await b.begun_by(OTHER, 1, same, start=0, end=2, epochs=((le_0, 0),))
        await b.write(3)
        history = [(number, message(number), le_0) for number in range(3)] + [(3, message(3), le_1)]
        await b.move_to_tier(end=4)
        own = b.found(le_0, 0)
        assert own is not None
        assert own.broker_id != OTHER
        assert await b.read_all() == history
        late = await b.finished(begun)
        assert b.found(le_1, 3) == own
        for start in range(4):
            assert await b.read_all(start=start) == history[start:]
        assert b.metadata.highest_offset_for_epoch(b.partition, le_0) == 2
        assert await delete_records(b.client, TOPIC, 3) == (0, 3)
        await b.until_gone(late)
        assert await b.read_all(start=3) == history[3:]
        assert await delete_records(b.client, TOPIC, 4) == (0, 4)
        await b.until_gone(own)
        assert b.objects() == set()


async def test_a_log_can_start_in_a_fenced_leaders_segment() -> None:
    """C's own copy of the first records is deleted; only A's segment has them, followed by records outside C's lineage.
    The log starts there even if C's checkpoint is lost.
    """
    disk = SimulatedDisk()
    topic_id, le_0 = await led_before(disk, 0, 1)
    async with memory_broker(disk, settings=SETTINGS, seed=1) as broker:
        c = await leading(broker, topic_id)
        le_2 = await c.epoch()
        in_0 = [written(number, number, le_0) for number in range(5)]
        a_0_4 = await c.copied_by(OTHER, 1, in_0, start=0, end=4, epochs=((le_0, 0),))
        await c.move_to_tier(end=2)
        await c.write(8, 9)
        await c.move_to_tier(end=4)
        history = [(0, message(0), le_0), (1, message(1), le_0), (2, message(8), le_2), (3, message(9), le_2)]
        assert await c.read_all() == history
        known = c.metadata.list_remote_log_segments(c.partition)
        head = next(one for one in known if one.broker_id != OTHER and one.start_offset == 0)
        for state in (DELETING, DELETED):
            await c.tell(update_to(head, state))
        assert await c.read_all() == history
    disk.unlink("/data/log-start-offset-checkpoint")
    async with memory_broker(disk, settings=SETTINGS, seed=2) as broker:
        c = await leading(broker, topic_id)
        await trio.sleep(1)
        assert (await list_offset(c.client, TOPIC, -2))[1] == 0
        assert await c.read_all() == history
        assert c.found(le_0, 0) == a_0_4
