"""The runtime of shards: appends in threads, loading, and the cleaning of long logs."""

from __future__ import annotations

import errno
from collections.abc import Iterator

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from kbroker.coordinator.common.led import LedPartition, State
from kbroker.coordinator.common.loading import Loading
from kbroker.coordinator.group_coordinator import GroupCoordinator
from kbroker.testing.disk import Fault, SimulatedDisk
from kbroker.testing.disk_nodes import Loss
from kbroker.testing.memory_node import Client, MemoryBroker, memory_broker
from tests.handlers.asking import create_topic, delete_topic
from tests.handlers.groups import beat, commit, fetch_group, find, form, offsets_of
from wire.errors import ErrorCode, KafkaError
from wire.messages.heartbeat import HeartbeatRequest
from wire.record_batch import Record, batches, build_batch
from wire.stored.frame import encode_key, encode_value
from wire.stored.groups import OffsetCommitKey, OffsetCommitValue

LOG = "/data/__consumer_offsets-0"
ONE_PARTITION = {"offsets.topic.num.partitions": 1}
SMALL = {**ONE_PARTITION, "offsets.topic.segment.bytes": 4096}


def groups_of(broker: MemoryBroker) -> GroupCoordinator:
    assert broker.node.broker is not None
    return broker.node.broker.groups


def led_by(broker: MemoryBroker, index: int = 0) -> LedPartition:
    return groups_of(broker).led[index]


async def ready(broker: MemoryBroker, *topics: str) -> Client:
    """A client of a node that has the offsets topic and these topics."""
    client = await broker.connect()
    await find(client)
    for topic in topics:
        await create_topic(client, topic, partitions=3)
    return client


def stored(disk: SimulatedDisk) -> Iterator[Record]:
    """All records in the group log."""
    for path, contents in sorted(disk.image(LOG).items()):
        if path.endswith(".log"):
            assert contents is not None
            for one in batches(contents):
                yield from one.records()


@pytest.mark.parametrize("latency_ms", [0, 40])
async def test_concurrent_commits_survive_segment_rolls(latency_ms: int, autojump_clock: MockClock) -> None:
    """While a slow thread rolls the segment, other commits wait; none is lost or reordered."""
    async with memory_broker(settings=SMALL, latency_ms=latency_ms) as broker:
        await ready(broker, "t")

        async def commit_many(group_id: str) -> None:
            client = await broker.connect()
            for offset in range(30):
                answer = await commit(client, {("t", 0): offset}, group_id=group_id, metadata="x" * 100)
                assert answer == {("t", 0): 0}
                assert await offsets_of(client, group_id) == {("t", 0): offset}

        async with trio.open_nursery() as nursery:
            for number in range(5):
                nursery.start_soon(commit_many, f"group-{number}")
        offsets = [record.offset for record in stored(broker.disk)]
        assert len(offsets) >= 150
        assert offsets == list(range(len(offsets))), "each offset once, in order"
        survivor = broker.disk.crash(Loss.PROCESS_DEATH)
    async with memory_broker(survivor, settings=SMALL) as broker:
        client = await broker.connect()
        for number in range(5):
            assert await offsets_of(client, f"group-{number}") == {("t", 0): 29}


async def test_power_loss_loses_no_synced_commit(autojump_clock: MockClock) -> None:
    async with memory_broker(settings={**ONE_PARTITION, "log.flush.interval.messages": 1}, latency_ms=5) as broker:
        client = await ready(broker, "t")
        joined = await form(client)
        assert await commit(client, {("t", 0): 5}, joined=joined) == {("t", 0): 0}
        survivor = broker.disk.crash(Loss.ONLY_SYNCED)
    async with memory_broker(survivor, settings=ONE_PARTITION) as broker:
        client = await broker.connect()
        assert await offsets_of(client) == {("t", 0): 5}
        assert await beat(client, joined) == 0


async def test_deleting_the_offsets_topic_fails_an_append_in_progress(
    autojump_clock: MockClock,
) -> None:
    async with memory_broker(settings={**ONE_PARTITION, "log.flush.interval.messages": 1}, latency_ms=300) as broker:
        client, other = await ready(broker, "t"), await broker.connect()
        codes: list[int] = []

        async def commit_one() -> None:
            codes.extend((await commit(client, {("t", 0): 5})).values())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(commit_one)
            await trio.sleep(0.001)
            await delete_topic(other, "__consumer_offsets")
        assert codes in ([0], [ErrorCode.NOT_COORDINATOR])
        assert groups_of(broker).led == {}
        await find(client)
        assert await offsets_of(client) == {}


async def test_a_failed_write_leaves_the_group_unchanged(autojump_clock: MockClock) -> None:
    async with memory_broker(settings=ONE_PARTITION) as broker:
        client = await ready(broker, "t")
        await commit(client, {("t", 0): 5})
        broker.disk.inject(Fault(errno.ENOSPC, name="write", path=f"{LOG}/*.log", written=20))
        assert await commit(client, {("t", 0): 6}) == {("t", 0): ErrorCode.NOT_COORDINATOR}
        assert await offsets_of(client) == {("t", 0): 5}
        assert await commit(client, {("t", 0): 7}) == {("t", 0): 0}
        survivor = broker.disk.crash(Loss.PROCESS_DEATH)
    async with memory_broker(survivor, settings=ONE_PARTITION) as broker:
        assert await offsets_of(await broker.connect()) == {("t", 0): 7}


async def test_a_commit_too_large_for_a_batch_is_refused(
    autojump_clock: MockClock,
) -> None:
    async with memory_broker(settings={**ONE_PARTITION, "message.max.bytes": 1000}) as broker:
        client = await ready(broker, "t")
        wanted = {("t", index): 5 for index in range(3)}
        answer = await commit(client, wanted, metadata="x" * 400)
        assert set(answer.values()) == {ErrorCode.UNKNOWN_SERVER_ERROR}
        assert await commit(client, wanted) == dict.fromkeys(wanted, 0)


@pytest.mark.parametrize("attempt", range(5))
async def test_after_a_stall_heartbeats_are_read_before_sessions_expire(
    attempt: int, autojump_clock: MockClock
) -> None:
    """Repeated because the order of tasks is random."""
    async with memory_broker(settings=ONE_PARTITION) as broker:
        client = await ready(broker)
        joined = await form(client)
        await wait_all_tasks_blocked()
        request = HeartbeatRequest(group_id="g", generation_id=joined.generation_id, member_id=joined.member_id)
        await client.send(request)
        autojump_clock.jump(20)
        assert (await client.receive()).error_code == 0
        assert await beat(client, joined) == 0


@pytest.mark.parametrize("way", ["deleted", "expired"])
async def test_tombstones_may_need_several_batches(way: str, autojump_clock: MockClock) -> None:
    settings = {**ONE_PARTITION, "message.max.bytes": 1000, "offsets.retention.minutes": 60}
    async with memory_broker(settings=settings) as broker:
        client = await ready(broker, "t")
        for number in range(20):
            await commit(client, {("t", index): 5 for index in range(3)}, group_id=f"group-{number}")
        assert led_by(broker).shard.offset_count == 60
        if way == "deleted":
            await delete_topic(client, "t")
        else:
            await trio.sleep(2 * 3600)
        assert led_by(broker).shard.offset_count == 0
        survivor = broker.disk.crash(Loss.PROCESS_DEATH)
    async with memory_broker(survivor, settings=settings) as broker:
        await offsets_of(await broker.connect())
        assert led_by(broker).shard.offset_count == 0


# Loading


async def test_a_failed_read_while_loading_is_a_storage_error(autojump_clock: MockClock) -> None:
    async with memory_broker(settings=ONE_PARTITION) as broker:
        await commit(await ready(broker, "t"), {("t", 0): 5})
        loading = Loading(led_by(broker), slice_bytes=1 << 20)
        broker.disk.inject(Fault(errno.EMFILE, name="read", path=f"{LOG}/*.log"))
        with pytest.raises(KafkaError) as raised:
            loading.step()
        assert raised.value.code is ErrorCode.KAFKA_STORAGE_ERROR
        loading.step()
        assert loading.is_complete


async def test_a_topic_deleted_during_loading_loses_its_offsets(autojump_clock: MockClock) -> None:
    async with memory_broker(settings=ONE_PARTITION) as broker:
        client = await ready(broker, "t", "u", "v")
        await commit(client, {("t", 0): 5, ("u", 0): 6})
        await fill(client, rounds=60, topic="v")
        survivor = broker.disk.crash(Loss.PROCESS_DEATH)
    slow = {**ONE_PARTITION, "offsets.load.buffer.size": 1}
    async with memory_broker(survivor, settings=slow, latency_ms=1000) as broker:
        client = await broker.connect()
        for topic in ("t", "u"):
            await delete_topic(client, topic)
        await create_topic(client, "u")
        assert led_by(broker).state is State.LOADING
        await trio.sleep(300)
        assert await offsets_of(client) == {("v", 0): 59, ("v", 1): 59}
        survivor = broker.disk.crash(Loss.PROCESS_DEATH)
    async with memory_broker(survivor, settings=ONE_PARTITION) as broker:
        assert await offsets_of(await broker.connect()) == {("v", 0): 59, ("v", 1): 59}, "also after a restart"


def offset_record(offset: int, *, topic: str = "t") -> Record:
    key = OffsetCommitKey(group="g", topic=topic, partition=0)
    value = OffsetCommitValue(offset=offset, metadata="", commit_timestamp=1_700_000_000_000)
    return Record(key=encode_key(key), value=encode_value(value, 3))


@pytest.mark.parametrize(("marker", "offset"), [(1, 7), (0, 5), (None, 5)], ids=["committed", "aborted", "open"])
async def test_transactional_offsets_need_a_commit_marker(
    marker: int | None, offset: int, autojump_clock: MockClock
) -> None:
    async with memory_broker(settings=ONE_PARTITION) as broker:
        await ready(broker, "t")
        survivor = broker.disk.crash(Loss.PROCESS_DEATH)
    made = build_batch([offset_record(5)], partition_leader_epoch=0)
    of_producer = {"partition_leader_epoch": 0, "producer_id": 9, "producer_epoch": 0, "is_transactional": True}
    made += build_batch([offset_record(7)], base_offset=1, base_sequence=0, **of_producer)  # type: ignore[arg-type]
    if marker is not None:
        end = Record(key=b"\0\0" + marker.to_bytes(2, "big"), value=b"\0\0\0\0\0\0")
        made += build_batch([end], base_offset=2, is_control=True, **of_producer)  # type: ignore[arg-type]
    survivor.open(f"{LOG}/00000000000000000000.log").pwrite(made, 0)
    async with memory_broker(survivor, settings=ONE_PARTITION) as broker:
        client = await broker.connect()
        assert await offsets_of(client) == {("t", 0): offset}
        found = await fetch_group(client, places=[("t", 0)], require_stable=True)
        code = ErrorCode.UNSTABLE_OFFSET_COMMIT if marker is None else 0
        assert found.topics[0].partitions[0].error_code == code


# Cleaning


CLEANED = {**SMALL, "log.cleaner.backoff.ms": 1000, "log.segment.delete.delay.ms": 0}


async def fill(
    client: Client, *, rounds: int, group_ids: tuple[str, ...] = ("g",), first: int = 0, topic: str = "t"
) -> None:
    for offset in range(first, first + rounds):
        for group_id in group_ids:
            await commit(client, {(topic, 0): offset, (topic, 1): offset}, group_id=group_id, metadata="x" * 50)


async def test_a_log_of_mostly_history_stays_short(autojump_clock: MockClock) -> None:
    async with memory_broker(settings=CLEANED) as broker:
        client = await ready(broker, "t")
        joined = await form(client, "members")
        held = led_by(broker).partition.log
        for start in range(0, 200, 20):
            await fill(client, rounds=20, first=start, group_ids=("g", "h"))
            await trio.sleep(6)
            await beat(client, joined, group_id="members")
        assert held.log_end_offset > 800
        assert held.size < 4 * 4096
        survivor = broker.disk.crash(Loss.PROCESS_DEATH)
    async with memory_broker(survivor, settings=CLEANED) as broker:
        client = await broker.connect()
        for group_id in ("g", "h"):
            assert await offsets_of(client, group_id) == {("t", 0): 199, ("t", 1): 199}
        assert await beat(client, joined, group_id="members") == 0


async def test_a_start_reads_little_of_a_long_log(autojump_clock: MockClock) -> None:
    """Even with Kafka's segments, which are too large to be closed."""
    segments = {"offsets.topic.segment.bytes": 104_857_600, "offsets.topic.num.partitions": 200}
    async with memory_broker(settings={**CLEANED, **segments}) as broker:
        client = await ready(broker, "t")
        assert broker.node.broker is not None
        groups = broker.node.broker.groups
        held = groups.led[groups.runtime.partition_of("g")].partition.log
        for offset in range(100):
            assert await commit(client, {("t", 0): offset}, metadata="x" * 4_000) == {("t", 0): 0}
            await trio.sleep(0.2)
        await trio.sleep(2)
        assert held.size < 100_000
        survivor = broker.disk.crash(Loss.PROCESS_DEATH)
    async with memory_broker(survivor, settings={**CLEANED, **segments}) as broker:
        assert await offsets_of(await broker.connect()) == {("t", 0): 99}


async def test_a_mostly_live_log_keeps_its_records(autojump_clock: MockClock) -> None:
    async with memory_broker(settings=CLEANED) as broker:
        client = await ready(broker, "t")
        group_ids = tuple(f"group-{number}" for number in range(40))
        await fill(client, rounds=2, group_ids=group_ids)
        await trio.sleep(20)
        assert led_by(broker).partition.log.size > 8000
        for group_id in group_ids:
            assert await offsets_of(client, group_id) == {("t", 0): 1, ("t", 1): 1}


async def test_commits_during_a_cleaning_are_kept(autojump_clock: MockClock) -> None:
    async with memory_broker(settings=CLEANED, latency_ms=20) as broker:
        client = await ready(broker, "t")
        group_ids = tuple(f"group-{number}" for number in range(12))
        done = trio.Event()
        latest: dict[str, int] = {}

        async def commit_on() -> None:
            mine = await broker.connect()
            offset = 0
            while not done.is_set():
                offset += 1
                for group_id in group_ids:
                    assert set((await commit(mine, {("t", 0): offset}, group_id=group_id)).values()) == {0}
                    latest[group_id] = offset
                await trio.sleep(0.2)

        led = led_by(broker)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(commit_on)
            ends = set()
            for _ in range(40):
                await trio.sleep(1)
                ends.add(led.partition.log.cleaned_offset)
            done.set()
        assert len(ends) > 3, "the log was cleaned several times"
        survivor = broker.disk.crash(Loss.PROCESS_DEATH)
        del client
    async with memory_broker(survivor, settings=CLEANED) as broker:
        client = await broker.connect()
        for group_id in group_ids:
            assert await offsets_of(client, group_id) == {("t", 0): latest[group_id]}


async def test_groups_continue_after_a_cleaning_that_finds_no_space(autojump_clock: MockClock) -> None:
    async with memory_broker(settings=CLEANED) as broker:
        client = await ready(broker, "t")
        held = led_by(broker).partition.log
        broker.disk.inject(Fault(errno.ENOSPC, name="write", path=f"{LOG}/*.cleaned", times=4))
        await fill(client, rounds=40)
        await trio.sleep(3)
        assert held.cleaned_offset is None
        assert not [path for path in broker.files() if path.endswith(".cleaned")]
        assert await offsets_of(client) == {("t", 0): 39, ("t", 1): 39}
        await trio.sleep(20)
        assert held.cleaned_offset is not None
        assert held.size < 8_000
        assert await offsets_of(client) == {("t", 0): 39, ("t", 1): 39}


async def test_t2_expiry_pauses_after_the_clock_is_set_ahead(autojump_clock: MockClock) -> None:
    del autojump_clock
    settings = {**ONE_PARTITION, "offsets.retention.minutes": 60 * 24}
    async with memory_broker(settings=settings) as broker:
        client = await ready(broker, "t")
        assert await commit(client, {("t", 0): 5}) == {("t", 0): 0}
        await trio.sleep(1_200)
        broker.env.wall_jump_ms = 365 * 24 * 3_600_000
        await trio.sleep(3_000)
        client = await broker.connect()
        assert (await offsets_of(client, "g"))[("t", 0)] == 5
        await trio.sleep(3_000)
        client = await broker.connect()
        assert await offsets_of(client, "g") == {}
