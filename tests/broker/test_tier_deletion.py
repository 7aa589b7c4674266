"""Deletion from the tier with several brokers: once, also if the leader dies in the middle."""

from __future__ import annotations

from collections import Counter

import pytest
import trio

from kbroker.tiered.api import RemoteLogSegmentMetadata
from tests.broker.several import MemoryCluster
from tests.broker.shared_store import SharedStore
from tests.broker.tiered_cluster import (
    TIERED,
    complaints,
    configure_topic,
    fill,
    knows_the_tier,
    produce_all,
    read_all,
    replica,
    segments,
    stored,
    tiered_cluster,
    until_led,
)
from tests.handlers.asking import fetching, parts, read, wanted
from wire.errors import ErrorCode
from wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse, DeleteTopicState
from wire.types import ZERO_UUID


@pytest.fixture
def deletions(monkeypatch: pytest.MonkeyPatch) -> Counter[int]:
    """How often the store was asked to delete each segment, by its first offset."""
    found: Counter[int] = Counter()
    original = SharedStore.delete_log_segment_data

    def delete(self: SharedStore, metadata: RemoteLogSegmentMetadata) -> None:
        found[metadata.start_offset] += 1
        original(self, metadata)

    monkeypatch.setattr(SharedStore, "delete_log_segment_data", delete)
    return found


async def delete_topic(cluster: MemoryCluster) -> None:
    request = DeleteTopicsRequest(topics=[DeleteTopicState(name="t", topic_id=ZERO_UUID)], timeout_ms=1000)
    answer = await cluster.controller.ask(request, DeleteTopicsResponse, version=6)
    assert not answer.responses[0].error_code


async def test_a_removed_topic_is_deleted_once(deletions: Counter[int]) -> None:
    async with tiered_cluster() as (cluster, disk):
        await cluster.create(**TIERED)
        await fill(cluster, 10)
        await delete_topic(cluster)
        await cluster.until(lambda: not stored(disk))
        await trio.sleep(10)
        assert deletions == Counter(range(9))


@pytest.mark.parametrize("delay_ms", [0, 1, 3, 5, 8, 12, 20, 40])
async def test_m12_the_followers_finish_the_deletion_of_a_dead_leader(delay_ms: int) -> None:
    async with tiered_cluster() as (cluster, disk):
        await cluster.create(**TIERED)
        await fill(cluster, 10)
        leader = cluster.leader()
        await delete_topic(cluster)
        await trio.sleep(delay_ms / 1000)
        await cluster.kill(leader)
        await cluster.until(lambda: not stored(disk))
        await trio.sleep(10)
        await cluster.start(leader)
        await trio.sleep(10)
        assert not stored(disk)
        await cluster.create(**TIERED)
        await fill(cluster, 3)
        await read_all(cluster, 3)
        assert complaints(cluster, disk) == []


async def test_r15_a_topic_created_again_has_nothing_of_the_old_one() -> None:
    async with tiered_cluster() as (cluster, disk):
        await cluster.create(**TIERED)
        await fill(cluster, 6)
        await produce_all(cluster, 2, start=6)  # which are being copied now
        old = set(stored(disk))
        await delete_topic(cluster)
        await cluster.create(**TIERED)
        await until_led(cluster)
        new = [b"%d" % number + b"y" * 300 for number in range(5)]
        for one in new:
            assert not (await cluster.produce([one], to=cluster.leader())).error_code
        log = replica(cluster).log
        await cluster.until(lambda: log.local_log_start_offset == 4)
        await cluster.until(lambda: not old & set(stored(disk)))
        async with cluster.client(cluster.leader()) as client:
            for offset, one in enumerate(new):
                assert (await read(client, "t", offset=offset))[0] == one
        assert len(stored(disk)) == len(segments(cluster, cluster.leader())) == 4


async def test_a_topic_leaves_the_tier_on_all_brokers(deletions: Counter[int]) -> None:
    async with tiered_cluster() as (cluster, disk):
        await cluster.create(**TIERED)
        await fill(cluster, 6)
        await configure_topic(cluster, remote_storage_enable="false", remote_log_delete_on_disable="true")
        await cluster.until(lambda: not stored(disk))
        await trio.sleep(10)
        assert deletions == Counter(range(5))
        for one in (1, 2, 3):
            log = cluster.brokers[one].partition().log
            assert (log.log_start_offset, log.local_log_start_offset, log.log_end_offset) == (5, 5, 6)
        await cluster.kill(1)
        await cluster.until(lambda: cluster.leader() not in (1, -1))
        async with cluster.client(cluster.leader()) as client:
            answer = await client.ask(fetching("t", wanted(0, 4)), version=12)
            assert parts(answer)[0].error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        await read_all(cluster, 6, start=5)


@pytest.mark.parametrize("delay_ms", [0, 3, 8, 20])
async def test_the_next_leader_finishes_the_deletion_of_a_topic_that_left_the_tier(delay_ms: int) -> None:
    async with tiered_cluster() as (cluster, disk):
        await cluster.create(**TIERED)
        await fill(cluster, 10)
        logs = [cluster.brokers[one].partition().log for one in (1, 2, 3)]
        await cluster.until(lambda: all(log.local_log_start_offset == 9 for log in logs))
        await configure_topic(cluster, remote_storage_enable="false", remote_log_delete_on_disable="true")
        await trio.sleep(delay_ms / 1000)
        await cluster.kill(cluster.leader())
        await cluster.until(lambda: not stored(disk))
        await until_led(cluster)
        await cluster.until(lambda: replica(cluster).log.log_start_offset == 9)
        await read_all(cluster, 10, start=9)


async def test_a_topic_that_returns_to_the_tier_keeps_its_new_copies() -> None:
    """It returns while the followers wait to finish the deletion of its old copies."""
    async with tiered_cluster() as (cluster, disk):
        await cluster.create(**TIERED)
        await fill(cluster, 6)
        await configure_topic(cluster, remote_storage_enable="false", remote_log_delete_on_disable="true")
        await cluster.until(lambda: not stored(disk))
        await configure_topic(cluster, remote_storage_enable="true")
        await fill(cluster, 6, start=6)
        await trio.sleep(10)
        await read_all(cluster, 12, start=5)
        await cluster.until(lambda: all(knows_the_tier(cluster, one) for one in (1, 2, 3)))
        assert complaints(cluster, disk) == []


async def test_without_copies_the_data_in_the_tier_stay_readable_under_all_leaders() -> None:
    async with tiered_cluster() as (cluster, disk):
        await cluster.create(**{**TIERED, "retention.bytes": 1_000_000})
        await fill(cluster, 6)
        await configure_topic(cluster, remote_log_copy_disable="true", local_retention_bytes="-2")
        await produce_all(cluster, 4, start=6)
        for dead in (1, 2):
            await read_all(cluster, 10)
            await cluster.kill(dead)
            await cluster.until(lambda dead=dead: cluster.leader() not in (*range(1, dead + 1), -1))
            await cluster.until(lambda: knows_the_tier(cluster, cluster.leader()))
        await read_all(cluster, 10)
        assert len(segments(cluster, cluster.leader())) == 5
        assert complaints(cluster, disk) == []


@pytest.mark.parametrize("limit", ["retention.bytes", "retention.ms"])
async def test_only_the_leader_expires_segments(limit: str, deletions: Counter[int]) -> None:
    async with tiered_cluster() as (cluster, disk):
        await cluster.create(**TIERED)
        await fill(cluster, 10)
        await configure_topic(cluster, **{limit.replace(".", "_"): "1000"})
        log = replica(cluster).log
        await cluster.until(lambda: log.log_start_offset >= 7)
        await trio.sleep(10)
        assert set(deletions.values()) == {1}
        assert {cluster.brokers[one].partition().log.log_start_offset for one in (1, 2, 3)} == {log.log_start_offset}
        assert complaints(cluster, disk) == []
        assert len(stored(disk)) == len(segments(cluster, cluster.leader()))
