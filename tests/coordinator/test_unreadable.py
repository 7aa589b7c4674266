"""Unreadable records of `__consumer_offsets` are skipped, counted and reported; all others are loaded."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from trio.testing import MockClock

from kbroker.coordinator.common.led import State
from kbroker.testing.disk import SimulatedDisk
from kbroker.testing.disk_nodes import Loss
from kbroker.testing.memory_node import memory_broker
from kbroker.web.health import ready as health
from tests.coordinator.test_group_coordinator import LOG, ONE_PARTITION, SMALL, led_by, offset_record, ready
from tests.handlers.groups import beat, commit, fetch_group, form, joining, offsets_of
from wire.compression import Codec
from wire.record_batch import Record, batches, build_batch
from wire.stored.frame import encode_key, encode_value
from wire.stored.groups import GroupMetadataKey, GroupMetadataValue, MemberMetadata

FILE = f"{LOG}/00000000000000000000.log"
KEY = offset_record(0).key
BAD_KEY = Record(key=b"\0\1short", value=b"x")


def member(member_id: str, **more: object) -> MemberMetadata:
    values = {"client_id": "c", "client_host": "/h", "session_timeout": 10_000, "rebalance_timeout": 60_000}
    return MemberMetadata(**{"member_id": member_id, "subscription": b"?", "assignment": b"", **values, **more})


def group_record(*members: MemberMetadata, group_id: str = "g", **more: object) -> Record:
    values = {"protocol_type": "consumer", "generation": 7, "protocol": "range", "leader": None, **more}
    value = GroupMetadataValue(members=list(members), **values)
    return Record(key=encode_key(GroupMetadataKey(group=group_id)), value=encode_value(value, 3))


async def log_with(made: Iterable[bytes], *topics: str) -> SimulatedDisk:
    """The disk of a node whose group log has these batches."""
    async with memory_broker(settings=ONE_PARTITION) as broker:
        await ready(broker, "t", *topics)
        survivor = broker.disk.crash(Loss.PROCESS_DEATH)
    survivor.open(FILE).pwrite(b"".join(made), 0)
    return survivor


def numbered(*records: Record) -> list[bytes]:
    """A batch for each record."""
    return [build_batch([one], base_offset=at, partition_leader_epoch=0) for at, one in enumerate(records)]


@pytest.mark.parametrize(
    "wrong",
    [
        BAD_KEY,
        Record(key=b"", value=b"x"),
        Record(key=b"\0", value=b"x"),
        Record(key=KEY, value=b""),
        Record(key=KEY, value=b"\0"),
        Record(key=KEY, value=b"\0\x63" + bytes(40)),
        Record(key=KEY, value=b"\0\3" + b"\xff" * 100_000),
        Record(key=encode_key(GroupMetadataKey(group="g")), value=b"\0\3\0\1c"),
        group_record(member("m"), protocol=None),
        group_record(member("m"), member("m")),
        group_record(member("m", group_instance_id="i"), member("n", group_instance_id="i")),
    ],
    ids=[
        "a truncated key",
        "an empty key",
        "half a record type",
        "an empty value",
        "half a version",
        "an unknown version",
        "a huge value",
        "a truncated group",
        "members without a protocol",
        "a member twice",
        "a static member twice",
    ],
)
async def test_only_the_unreadable_record_is_skipped(wrong: Record, autojump_clock: MockClock) -> None:
    disk = await log_with(numbered(offset_record(5), wrong, offset_record(6, topic="u")))
    async with memory_broker(disk, settings=ONE_PARTITION) as broker:
        client = await ready(broker, "u")
        led = led_by(broker)
        assert led.state is State.ACTIVE
        assert led.unreadable_records == 1
        assert led.first_unreadable.startswith("offset 1: ")
        assert (await offsets_of(client))[("t", 0)] == 5


@pytest.mark.parametrize(
    "ignored",
    [
        Record(key=None, value=b"x"),
        Record(key=b"\0\x0b\0\1s", value=b"\0\0"),
        Record(key=b"\x7f\xff", value=None),
    ],
    ids=["no key", "a share group", "a type of a later broker"],
)
async def test_records_for_other_coordinators_are_not_counted_as_unreadable(
    ignored: Record, autojump_clock: MockClock
) -> None:
    async with memory_broker(await log_with(numbered(ignored, offset_record(5))), settings=ONE_PARTITION) as broker:
        assert await offsets_of(await broker.connect()) == {("t", 0): 5}
        assert led_by(broker).unreadable_records == 0


async def test_the_last_readable_value_of_a_key_is_used(autojump_clock: MockClock) -> None:
    bad = Record(key=KEY, value=b"\0\3short")
    disk = await log_with([build_batch([offset_record(4), offset_record(5), bad, bad], partition_leader_epoch=0)])
    async with memory_broker(disk, settings=ONE_PARTITION) as broker:
        assert await offsets_of(await broker.connect()) == {("t", 0): 5}
        assert led_by(broker).unreadable_records == 2
        assert led_by(broker).first_unreadable.startswith("offset 2: ")


@pytest.mark.parametrize("slice_bytes", [1, 5 << 20])
@pytest.mark.parametrize("place", [3, 8, 16, 30, 70], ids=["offset", "length", "magic", "header", "records"])
async def test_only_the_records_of_a_damaged_batch_are_skipped(
    place: int, slice_bytes: int, autojump_clock: MockClock
) -> None:
    # After a clean shutdown, closed segments are not checked.
    own = {**SMALL, "offsets.load.buffer.size": slice_bytes}
    async with memory_broker(settings=own) as broker:
        client = await ready(broker, *[f"t{at}" for at in range(4)])
        for at in range(40):
            await commit(client, {(f"t{at % 4}", 0): at}, group_id="g" if at < 4 else f"g{at}")
        log = led_by(broker).partition.log
        assert len(log.segments) > 1
        file = broker.disk.open(log.segments.first.log_path)
        position = next(batches(file.pread(200, 0))).size + place
        file.pwrite(bytes([file.pread(1, position)[0] ^ 0x7F]), position)
        disk = broker.disk
    async with memory_broker(disk, settings=own) as broker:
        led = led_by(broker)
        assert await offsets_of(await broker.connect()) == {("t0", 0): 0, ("t2", 0): 2, ("t3", 0): 3}
        assert (led.state, led.unreadable_records) == (State.ACTIVE, 1)
        assert led.first_unreadable == "offset 1: damaged"


@pytest.mark.parametrize("slice_bytes", [1, 5 << 20])
async def test_gaps_of_a_compacted_log_are_not_damage(slice_bytes: int, autojump_clock: MockClock) -> None:
    kept = [(3, 0), (4, 1), (9, 2)]
    made = [
        build_batch([offset_record(at, topic=f"t{at}")], base_offset=base, partition_leader_epoch=0)
        for base, at in kept
    ]
    disk = await log_with(made, "t0", "t1", "t2")
    own = {**ONE_PARTITION, "offsets.load.buffer.size": slice_bytes}
    async with memory_broker(disk, settings=own) as broker:
        assert await offsets_of(await broker.connect()) == {("t0", 0): 0, ("t1", 0): 1, ("t2", 0): 2}
        assert led_by(broker).unreadable_records == 0


async def test_a_batch_that_does_not_decompress_is_skipped(autojump_clock: MockClock) -> None:
    records = [offset_record(at, topic="u") for at in range(3)]
    good = build_batch(records, codec=Codec.GZIP, partition_leader_epoch=0)
    bad = build_batch(records, base_offset=3, record_count=2, partition_leader_epoch=0)
    disk = await log_with([good, bad, build_batch([offset_record(5)], base_offset=6, partition_leader_epoch=0)])
    async with memory_broker(disk, settings=ONE_PARTITION) as broker:
        await ready(broker, "u")
        assert led_by(broker).state is State.ACTIVE
        assert led_by(broker).unreadable_records == 1
        assert led_by(broker).first_unreadable.startswith("offset 5: a batch that cannot be read: ")
        assert (await offsets_of(await broker.connect()))[("t", 0)] == 5


async def test_health_and_the_log_report_skipped_records(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    disk = await log_with(numbered(BAD_KEY, *[BAD_KEY] * 9))
    async with memory_broker(disk, settings=ONE_PARTITION) as broker:
        await fetch_group(await broker.connect())
        said = b"".join(health(broker.node).pieces).decode()
        assert "10 records of __consumer_offsets cannot be read and were skipped" in said
        assert "__consumer_offsets-0" in said
        lines = [line for line in caplog.records if "skipped" in line.getMessage()]
        assert len(lines) == 1


async def test_a_damaged_log_is_served_and_written_to(autojump_clock: MockClock) -> None:
    disk = await log_with(numbered(BAD_KEY))
    for committed in (1, 2):
        async with memory_broker(disk, settings=ONE_PARTITION) as broker:
            client = await broker.connect()
            await commit(client, {("t", 1): committed})
            disk = broker.disk.crash(Loss.PROCESS_DEATH)
    async with memory_broker(disk, settings=ONE_PARTITION) as broker:
        assert await offsets_of(await broker.connect()) == {("t", 1): 2}


@pytest.mark.parametrize(
    "record",
    [
        group_record(leader="stranger"),
        group_record(member("m"), leader="stranger"),
        group_record(member("m"), generation=2**31 - 1),
        group_record(member("m"), generation=-9),
        group_record(member("m", session_timeout=-1, rebalance_timeout=-7), protocol_type=""),
    ],
    ids=[
        "an unknown leader without members",
        "an unknown leader",
        "the last generation",
        "no generation",
        "negative timeouts",
    ],
)
async def test_an_inconsistent_stored_group_accepts_new_members(record: Record, autojump_clock: MockClock) -> None:
    disk = await log_with(numbered(group_record(generation=100), record))
    async with memory_broker(disk, settings=ONE_PARTITION) as broker:
        client = await broker.connect()
        asked = joining(session_timeout_ms=10_000)
        answer = await client.ask(asked)
        while answer.error_code:  # until the stored member's session times out
            answer = await client.ask(joining(member_id=answer.member_id))
        assert 0 < answer.generation_id < 2**31
        assert answer.leader == answer.member_id
        joined = await form(client, "another")
        assert await beat(client, joined, group_id="another") == 0
