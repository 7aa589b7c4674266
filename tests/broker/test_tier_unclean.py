"""Unclean elections of a tiered partition: the leader epochs decide what of the tier is part of its history."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import trio

from kbroker.testing.disk import SimulatedDisk
from kbroker.tiered.api import FINISHED
from tests.broker.several import MemoryCluster
from tests.broker.tiered_cluster import (
    TIERED,
    configure_topic,
    fill,
    knows_the_tier,
    produce_all,
    replace_disk,
    replica,
    segments,
    stored,
    tiered_cluster,
    until_led,
    value,
)
from tests.handlers.asking import fetching, parts, read_batches, wanted
from wire.errors import ErrorCode

UNCLEAN = {**TIERED, "unclean.leader.election.enable": "true", "replicas": ((1, 2),)}


def new(number: int) -> bytes:
    return b"new-%04d" % number + b"y" * 300


async def produce_new(cluster: MemoryCluster, count: int, *, start: int) -> None:
    """Produce batches from offset `start` on, and wait until the leader has only the last segment locally."""
    await until_led(cluster)
    for number in range(start, start + count):
        answer = await cluster.produce([new(number)], to=cluster.leader())
        assert (answer.error_code, answer.base_offset) == (0, number)
    await only_the_last_segment(cluster)


async def produce_old(cluster: MemoryCluster, count: int, *, start: int = 0) -> None:
    """Produce records that may be lost, in the same way."""
    await produce_all(cluster, count, start=start)
    await only_the_last_segment(cluster)


async def only_the_last_segment(cluster: MemoryCluster) -> None:
    log = replica(cluster).log
    await cluster.until(lambda: log.local_log_start_offset == max(one.base_offset for one in log.segments))


async def read_exactly(cluster: MemoryCluster, expected: Sequence[bytes], *, start: int = 0) -> None:
    """Read from every offset with a small limit, and compare all records of each answer."""
    await until_led(cluster)
    end = start + len(expected)
    await cluster.until(lambda: replica(cluster).known_high_watermark == end)
    await cluster.until(lambda: knows_the_tier(cluster, cluster.leader()))
    async with cluster.client(cluster.leader()) as client:
        for offset in range(start, end):
            part = parts(await client.ask(fetching("t", wanted(0, offset, limit=1_500)), version=12))[0]
            assert part.error_code == ErrorCode.NONE
            found = [(record.offset, record.value) for one in read_batches(part) for record in one.records()]
            assert found[0][0] == offset
            assert found == [(at, expected[at - start]) for at, _ in found]


async def elect_behind(cluster: MemoryCluster, *, common: int, lost: int, segment_bytes: int = 400) -> None:
    """Broker 2 has `common` records, broker 1 and the tier `lost` more of an epoch of their own; then broker 2 leads
    alone.
    """
    await cluster.create(**{**UNCLEAN, "segment.bytes": segment_bytes})
    await produce_old(cluster, common)
    await cluster.until(lambda: cluster.isr() == {1, 2})
    await cluster.until(lambda: cluster.brokers[2].partition().known_high_watermark == common)
    await cluster.kill(2)
    await produce_old(cluster, lost, start=common)
    await cluster.kill(1)
    await cluster.start(2)
    await cluster.until(lambda: cluster.leader() == 2)


@pytest.mark.parametrize(("common", "segment_bytes"), [(1, 400), (4, 400), (2, 1_300), (4, 1_300), (6, 1_300)])
async def test_records_of_a_lost_history_in_the_tier_are_never_read(common: int, segment_bytes: int) -> None:
    """KIP-405: the new leader ends before the tier does, also inside a segment of the tier (of 3 records)."""
    async with tiered_cluster() as (cluster, disk):
        await elect_behind(cluster, common=common, lost=6, segment_bytes=segment_bytes)
        await produce_new(cluster, 8, start=common)
        expected = [value(number) for number in range(common)] + [new(number) for number in range(common, common + 8)]
        await read_exactly(cluster, expected)
        await cluster.start(1)
        await cluster.until(lambda: cluster.isr() == {1, 2})
        await cluster.agree()
        await cluster.kill(2)
        await cluster.until(lambda: cluster.leader() == 1)
        await read_exactly(cluster, expected)
        await produce_new(cluster, 3, start=common + 8)
        expected += [new(number) for number in range(common + 8, common + 11)]
        await read_exactly(cluster, expected)
        known = {one.remote_log_segment_id.id for one in segments(cluster, 1)}
        assert set(stored(disk)) == known


async def test_segments_of_a_lost_history_expire_with_their_offsets() -> None:
    async with tiered_cluster() as (cluster, disk):
        await elect_behind(cluster, common=4, lost=6)
        await produce_new(cluster, 12, start=4)
        log = replica(cluster).log
        assert any(one.segment_leader_epochs[0][0] == 0 and one.start_offset > 5 for one in segments(cluster, 2))
        await cluster.brokers[2].broker.delete_records("t", 0, 15)
        await cluster.until(lambda: all(one.start_offset >= 14 for one in segments(cluster, 2)))
        assert log.log_start_offset == 15
        assert {one.state for one in segments(cluster, 2)} <= {FINISHED}
        assert len(stored(disk)) == len(segments(cluster, 2)) <= 1
        await read_exactly(cluster, [new(15)], start=15)


async def lose_everything(cluster: MemoryCluster) -> None:
    await cluster.create(**UNCLEAN)
    await fill(cluster, 8)
    await cluster.kill(2)
    await cluster.kill(1)
    del cluster.disks[2]
    await cluster.start(2)
    await cluster.until(lambda: cluster.leader() == 2)


async def test_an_empty_leader_does_not_serve_the_tier() -> None:
    """KIP-405: nothing in the tier is part of its history. It begins at offset 0 again."""
    async with tiered_cluster() as (cluster, disk):
        await lose_everything(cluster)
        await produce_new(cluster, 12, start=0)
        expected = [new(number) for number in range(12)]
        await read_exactly(cluster, expected)
        await replace_disk(cluster, 2)
        await cluster.start(2)
        await cluster.until(lambda: cluster.leader() == 2)
        await trio.sleep(5)
        assert replica(cluster).log.log_end_offset == 0
        await cluster.start(1)
        await cluster.until(lambda: cluster.isr() == {1, 2})
        await cluster.agree()
        assert stored(disk)


async def test_an_unclean_leader_of_the_tiers_metadata_is_read_again() -> None:
    """Changes are lost. The segments are still local where they were copied, and they are copied again."""
    settings = {
        "rlmm.config.remote.log.metadata.topic.num.partitions": 1,
        "rlmm.config.remote.log.metadata.topic.replication.factor": 2,
        "rlmm.config.remote.log.metadata.topic.min.isr": 1,
    }
    async with tiered_cluster(1, 2, 3, 4, settings=settings) as (cluster, disk):
        await metadata_loses_its_tail(cluster, disk)


async def metadata_loses_its_tail(cluster: MemoryCluster, disk: SimulatedDisk) -> None:
    await cluster.create("other", replicas=((1,),), **TIERED)
    topic = "__remote_log_metadata"
    await cluster.until(lambda: topic in cluster.image.topics_by_name)
    placed = cluster.image.partition(topic, 0)
    assert placed is not None
    first, second = placed.replicas
    (home, *_) = [one for one in (1, 2, 3, 4) if one not in placed.replicas]
    await cluster.create(replicas=((home,),), **{**TIERED, "local.retention.bytes": -2})
    await produce_kept(cluster, 4)
    await cluster.until(lambda: cluster.isr(topic) == {first, second})
    await configure_topic(cluster, topic, unclean_leader_election_enable="true")
    await cluster.kill(second)
    await produce_kept(cluster, 4, start=4)
    await cluster.kill(first)
    await cluster.start(second)
    await cluster.until(lambda: cluster.leader(topic) == second)
    await produce_kept(cluster, 4, start=8)
    known = segments(cluster, home)
    assert [one.start_offset for one in known][:3] == [0, 1, 2]
    assert known[-1].start_offset == 10
    await cluster.start(first)
    await cluster.until(lambda: cluster.isr(topic) == {first, second})
    await read_exactly(cluster, [new(number) for number in range(12)])
    assert {one.remote_log_segment_id.id for one in known} <= set(stored(disk))


async def produce_kept(cluster: MemoryCluster, count: int, *, start: int = 0) -> None:
    """Produce batches, and wait until all but the last are in the tier."""
    await until_led(cluster)
    for number in range(start, start + count):
        assert not (await cluster.produce([new(number)], to=cluster.leader())).error_code
    held = replica(cluster)
    await cluster.until(
        lambda: held.remote is not None and held.remote.highest_offset_in_remote_storage == start + count - 2
    )
