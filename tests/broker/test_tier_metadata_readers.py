"""`__remote_log_metadata` is read from its leader, on whichever broker that is."""

from __future__ import annotations

import pytest
import trio

from kbroker.broker.tier_metadata_reader import WAIT_MS, LeaderReader
from kbroker.metadata.image import PartitionImage
from kbroker.metadata.names import REMOTE_LOG_METADATA_TOPIC
from kbroker.replication.offset_lookup import DEBUGGING, LATEST_TIERED
from kbroker.replication.partition_reads import Fetcher
from tests.broker.running_broker import DATA
from tests.broker.several import MemoryCluster
from tests.broker.tiered_cluster import (
    TIERED,
    complaints,
    fill,
    knows_the_tier,
    produce_all,
    read_all,
    replace_disk,
    replica,
    segments,
    tiered_cluster,
)
from tests.handlers.asking import list_offset
from wire.errors import ErrorCode, KafkaError
from wire.record_batch import Record, build_batch

ONE_REPLICA = {
    "rlmm.config.remote.log.metadata.topic.num.partitions": 1,
    "rlmm.config.remote.log.metadata.topic.replication.factor": 1,
    "rlmm.config.remote.log.metadata.topic.min.isr": 1,
}
ON_THREE = {**ONE_REPLICA, "rlmm.config.remote.log.metadata.topic.replication.factor": 3}


def home(cluster: MemoryCluster) -> int:
    """The leader of the only partition of the tier's metadata; -1 before it exists."""
    found = cluster.image.partition(REMOTE_LOG_METADATA_TOPIC, 0)
    return -1 if found is None else found.leader


async def create_away_from_the_metadata(cluster: MemoryCluster) -> list[int]:
    """A tiered partition on the two brokers that have no replica of the metadata."""
    await cluster.create("other", replicas=((1,),), **TIERED)
    await cluster.until(lambda: home(cluster) > 0)
    away = [one for one in (1, 2, 3) if one != home(cluster)]
    await cluster.create(replicas=(away,), **TIERED)
    return away


async def test_a_broker_without_a_replica_of_the_metadata_copies_and_follows() -> None:
    async with tiered_cluster(settings=ONE_REPLICA) as (cluster, disk):
        leader, follower = await create_away_from_the_metadata(cluster)
        await fill(cluster, 6)
        await replace_disk(cluster, follower)
        await cluster.start(follower)
        await cluster.until(lambda: cluster.isr() == {leader, follower})
        log = cluster.brokers[follower].partition().log
        assert (log.log_start_offset, log.local_log_start_offset) == (0, 5)
        remote = cluster.brokers[follower].partition().remote
        assert remote is not None
        await cluster.until(lambda: remote.highest_offset_in_remote_storage == 4)
        async with cluster.client(follower) as client:
            asked = await list_offset(client, "t", LATEST_TIERED, version=11, replica_id=DEBUGGING)
            assert asked[:2] == (0, 4), "`kbroker health` asks followers too"
            asked = await list_offset(client, "t", LATEST_TIERED, version=11)
            assert asked[0] == ErrorCode.NOT_LEADER_OR_FOLLOWER
        await cluster.kill(leader)
        await cluster.until(lambda: cluster.leader() == follower)
        await fill(cluster, 3, start=6)
        await read_all(cluster, 9)
        assert complaints(cluster, disk) == []


async def test_m10_without_the_leader_of_the_metadata_copies_wait() -> None:
    async with tiered_cluster(settings=ONE_REPLICA) as (cluster, disk):
        await create_away_from_the_metadata(cluster)
        await fill(cluster, 4)
        lost = home(cluster)
        await cluster.kill(lost)
        await produce_all(cluster, 4, start=4)
        await trio.sleep(60)
        log = replica(cluster).log
        assert log.local_log_start_offset == 3
        await read_all(cluster, 8)
        await cluster.start(lost)
        await cluster.until(lambda: log.local_log_start_offset == 7)
        await read_all(cluster, 8)
        assert complaints(cluster, disk) == []


@pytest.mark.parametrize("loss", ["killed", "stalled"])
async def test_m10_copies_continue_with_another_leader_of_the_metadata(loss: str) -> None:
    async with tiered_cluster(settings=ON_THREE) as (cluster, disk):
        await cluster.create("other", replicas=((1,),), **TIERED)
        await cluster.until(lambda: home(cluster) > 0)
        before = home(cluster)
        await cluster.create(replicas=([one for one in (1, 2, 3) if one != before],), **TIERED)
        await fill(cluster, 4)
        if loss == "killed":
            await cluster.kill(before)
        else:
            # Its connections stay open, and it answers nothing that waits.
            cluster.brokers[before].is_cut_from_controller = True
            await cluster.heartbeat(cluster.brokers[before], want_fence=True)
        await cluster.until(lambda: home(cluster) not in (before, -1))
        begun = trio.current_time()
        await fill(cluster, 4, start=4)
        assert trio.current_time() - begun < 2, "it does not wait for an answer of the earlier leader"
        await read_all(cluster, 8)
        assert complaints(cluster, disk) == []


async def test_a_copy_does_not_wait_for_followers_of_the_metadata() -> None:
    """Its own record is read back from the leader, which knows first that it is committed."""
    async with tiered_cluster(settings=ON_THREE) as (cluster, _):
        await cluster.create("other", replicas=((1,),), **TIERED)
        await cluster.until(lambda: home(cluster) > 0)
        (one, *_) = [one for one in (1, 2, 3) if one != home(cluster)]
        await cluster.create(replicas=((one,),), **{**TIERED, "local.retention.bytes": -2})
        await produce_all(cluster, 21)
        await cluster.until(lambda: replica(cluster).remote.highest_offset_in_remote_storage == 19)
        times = [each.event_timestamp_ms for each in segments(cluster, one)]
        assert times[-1] - times[0] < 19 * 100, "milliseconds for each segment"


async def test_m10_damage_at_the_leader_of_the_metadata_is_skipped() -> None:
    async with tiered_cluster(settings=ONE_REPLICA) as (cluster, _):
        _, follower = await create_away_from_the_metadata(cluster)
        await fill(cluster, 6)
        lost = home(cluster)
        await cluster.kill(lost)
        await cluster.start(lost)
        file = cluster.disks[lost].open(f"{DATA}/{REMOTE_LOG_METADATA_TOPIC}-0/{0:020}.log")
        file.pwrite(b"\xff" * 4, 200)
        await cluster.kill(follower)
        await cluster.start(follower)
        await cluster.until(lambda: knows_the_tier(cluster, follower))
        assert 3 <= len(segments(cluster, follower)) < 6
        await fill(cluster, 3, start=6)


async def test_m10_a_damaged_header_at_the_leader_of_the_metadata_is_skipped() -> None:
    """The leader's own search for offsets cannot pass it."""
    async with tiered_cluster(settings=ONE_REPLICA) as (cluster, _):
        _, follower = await create_away_from_the_metadata(cluster)
        await fill(cluster, 6)
        lost = home(cluster)
        await cluster.kill(lost)
        await cluster.start(lost)
        file = cluster.disks[lost].open(f"{DATA}/{REMOTE_LOG_METADATA_TOPIC}-0/{0:020}.log")
        position = 12 + int.from_bytes(file.pread(4, 8), "big")
        file.pwrite(b"\x01", position + 8)
        end = cluster.brokers[lost].partition(REMOTE_LOG_METADATA_TOPIC).log.log_end_offset
        await cluster.kill(follower)
        await cluster.start(follower)
        await fill(cluster, 3, start=6)
        reader = LeaderReader(cluster.brokers[follower].broker, 0, on_close=id)
        with trio.fail_after(WAIT_MS / 1000 + 1):
            events = await reader.read(int.from_bytes(file.pread(8, position), "big"), -1, partition_count=1)
        assert events is not None
        assert events.next_offset == end, "what was written later can be read"
        reader.close()
        await cluster.until(lambda: knows_the_tier(cluster, follower))
        assert segments(cluster, follower)[-1].end_offset == 7
        await fill(cluster, 3, start=9)
        await cluster.until(lambda: segments(cluster, follower)[-1].end_offset == 10)


@pytest.mark.parametrize("at_leader", [True, False])
async def test_a_high_watermark_inside_a_batch_is_retried_after_a_pause(at_leader: bool) -> None:
    """A follower may have reached the middle of a batch: Apache Kafka's truncates to any offset."""
    async with tiered_cluster(settings=ONE_REPLICA) as (cluster, _):
        await create_away_from_the_metadata(cluster)
        leader = cluster.brokers[home(cluster)]
        partition = leader.partition(REMOTE_LOG_METADATA_TOPIC)
        offset, ids = partition.log.log_end_offset, (leader.id, 9)
        partition.apply(
            PartitionImage(ids, ids, leader=leader.id, leader_epoch=1, partition_epoch=partition.partition_epoch + 1)
        )
        batch = build_batch([Record(timestamp=1, value=b"1"), Record(timestamp=1, value=b"2")])
        partition.log.append(batch, leader_epoch=1, timestamp_ms=1)
        partition.on_append()
        partition.on_follower_fetch(Fetcher(9), offset + 1)
        assert partition.known_high_watermark == offset + 1
        broker = leader.broker if at_leader else cluster.brokers[leader.id % 3 + 1].broker
        reader = LeaderReader(broker, 0, on_close=id)
        with trio.fail_after(60), pytest.raises(KafkaError, match="OFFSET_NOT_AVAILABLE"):
            await reader.read(offset, -1, partition_count=1)
        partition.on_follower_fetch(Fetcher(9), offset + 2)
        events = await reader.read(offset, -1, partition_count=1)
        assert events is not None
        assert events.next_offset == offset + 2
        reader.close()
