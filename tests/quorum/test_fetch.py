"""Fetch and FetchSnapshot of the metadata log: positions, waiting, errors, and that a copy gives the same image."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from kbroker.client.streaming import Connection
from kbroker.controller import snapshots
from kbroker.controller.observers import ObserverKey
from kbroker.controller.records import batch_records
from kbroker.metadata.image import Image
from kbroker.metadata.parts import CLUSTER_METADATA_TOPIC_ID
from kbroker.metadata.snapshot import image_records
from kbroker.testing.disk import SimulatedDisk
from tests.quorum.site import CLUSTER_ID, HOST, NODE_ID, PORT, Site, controller_site, creation
from wire.errors import ErrorCode
from wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, PartitionData, ReplicaState
from wire.messages.fetch_snapshot import (
    FetchSnapshotRequest,
    PartitionSnapshot,
    PartitionSnapshotResponse,
    SnapshotId,
    TopicSnapshot,
)
from wire.record_batch import batches

OBSERVER = ObserverKey(7, UUID(int=77))


def fetching(
    offset: int,
    epoch: int,
    *,
    current: int = 1,
    version: int = 17,
    partition: int = 0,
    max_wait_ms: int = 0,
    cluster_id: str | None = CLUSTER_ID,
    topic_id: UUID = CLUSTER_METADATA_TOPIC_ID,
    max_bytes: int = 1 << 20,
    **more: Any,
) -> FetchRequest:
    key: dict[str, Any] = {"topic_id": topic_id} if version >= 13 else {"topic": "__cluster_metadata"}
    asked = FetchPartition(
        partition=partition,
        current_leader_epoch=current,
        fetch_offset=offset,
        last_fetched_epoch=epoch,
        partition_max_bytes=0,
        replica_directory_id=OBSERVER.directory_id,
        **more,
    )
    return FetchRequest(
        cluster_id=cluster_id,
        replica_id=OBSERVER.id if version < 15 else -1,
        replica_state=ReplicaState(replica_id=OBSERVER.id) if version >= 15 else None,
        max_wait_ms=max_wait_ms,
        min_bytes=0,
        max_bytes=max_bytes,
        topics=[FetchTopic(partitions=[asked], **key)],
    )


async def fetch(client: Connection, *position: int, version: int = 17, **more: Any) -> PartitionData:
    answer = await client.ask(fetching(*position, version=version, **more), version=version)
    return only(answer)


def only(answer: FetchResponse) -> PartitionData:
    assert answer.error_code == 0, answer
    return answer.responses[0].partitions[0]


class Copy:
    """A node that follows the metadata log with plain requests."""

    def __init__(self) -> None:
        self.image = Image()
        self.offset = self.epoch = 0

    async def follow(self, client: Connection, *, current: int = 1, max_bytes: int = 1 << 20) -> PartitionData:
        """Fetch until everything is there; returns the last answer."""
        while True:
            data = await fetch(client, self.offset, self.epoch, current=current, max_bytes=max_bytes, cluster_id=None)
            assert data.error_code == 0, data
            if data.snapshot_id is not None or data.diverging_epoch is not None or not data.records:
                return data
            for batch in batches(data.records):
                self.image = self.image.apply(
                    batch_records(batch), offset=batch.last_offset, epoch=batch.partition_leader_epoch
                )
                self.offset, self.epoch = batch.last_offset + 1, batch.partition_leader_epoch


@pytest.mark.parametrize("version", [12, 13, 15, 16, 17, 18])
async def test_an_observer_gets_the_log_and_the_address_of_the_leader(client: Connection, version: int) -> None:
    answer = await client.ask(fetching(0, 0, version=version), version=version)
    data = only(answer)
    assert (data.error_code, data.log_start_offset, data.diverging_epoch, data.snapshot_id) == (0, 0, None, None)
    assert data.current_leader is not None
    assert (data.current_leader.leader_id, data.current_leader.leader_epoch) == (NODE_ID, 1)
    found = list(batches(data.records))
    assert found[0].is_control
    assert data.high_watermark == found[-1].last_offset + 1
    endpoints = [(node.node_id, node.host, node.port) for node in answer.node_endpoints]
    assert endpoints == ([(NODE_ID, HOST, PORT)] if version >= 16 else [])


@pytest.mark.parametrize("max_bytes", [1, 1 << 20])
async def test_k8_a_copy_of_the_log_gives_the_same_image(site: Site, client: Connection, max_bytes: int) -> None:
    await site.register(client, 1)
    for name in "abc":
        assert (await client.ask(creation(name, {0: [1]}))).topics[0].error_code == 0
    copy = Copy()
    await copy.follow(client, max_bytes=max_bytes)
    assert copy.image == site.image


async def test_a_fetch_at_the_end_waits_for_the_next_decision(site: Site, client: Connection) -> None:
    end_offset = site.image.end_offset
    started = trio.current_time()
    empty = await fetch(client, end_offset, 1, max_wait_ms=500)
    assert (trio.current_time() - started, empty.records, empty.high_watermark) == (0.5, b"", end_offset)
    other = await site.connect()
    found: list[PartitionData] = []

    async def wait() -> None:
        found.append(await fetch(client, end_offset, 1, max_wait_ms=60_000))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await wait_all_tasks_blocked()
        assert not found
        await site.register(other, 1)
    assert trio.current_time() - started < 60
    assert found[0].records


async def test_an_observer_that_knows_an_older_high_watermark_is_answered_at_once(
    site: Site, client: Connection
) -> None:
    end_offset, started = site.image.end_offset, trio.current_time()
    data = await fetch(client, end_offset, 1, version=18, max_wait_ms=60_000, high_watermark=end_offset - 1)
    assert (trio.current_time(), data.high_watermark) == (started, end_offset)


@pytest.mark.parametrize(
    ("position", "more", "code"),
    [
        ((0, 0), {"current": 0}, ErrorCode.FENCED_LEADER_EPOCH),
        ((0, 0), {"current": 2}, ErrorCode.UNKNOWN_LEADER_EPOCH),
        ((-1, 0), {}, ErrorCode.INVALID_REQUEST),
        ((0, -1), {}, ErrorCode.INVALID_REQUEST),
        ((0, 2), {}, ErrorCode.INVALID_REQUEST),
        ((0, 0), {"max_wait_ms": -1}, ErrorCode.INVALID_REQUEST),
    ],
)
async def test_c7_wrong_epochs_and_positions_name_the_leader(
    site: Site, client: Connection, position: tuple[int, int], more: dict[str, int], code: ErrorCode
) -> None:
    data = await fetch(client, *position, **more)
    assert (data.error_code, data.high_watermark, data.records) == (code, -1, b"")
    assert data.current_leader is not None
    assert (data.current_leader.leader_id, data.current_leader.leader_epoch) == (NODE_ID, 1)
    assert not site.controller.observers.active(site.env.timestamp_ms())


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (fetching(0, 0, cluster_id="another"), ErrorCode.INCONSISTENT_CLUSTER_ID),
        (fetching(0, 0, partition=1), ErrorCode.INVALID_REQUEST),
        (fetching(0, 0, topic_id=UUID(int=9)), ErrorCode.INVALID_REQUEST),
        (FetchRequest(max_wait_ms=0, min_bytes=0, topics=[]), ErrorCode.INVALID_REQUEST),
    ],
)
async def test_only_the_metadata_log_of_this_cluster_is_served(
    client: Connection, request_: FetchRequest, code: ErrorCode
) -> None:
    answer = await client.ask(request_, version=17)
    assert (answer.error_code, answer.responses) == (code, [])


async def test_a_sender_without_a_cluster_id_is_answered(client: Connection) -> None:
    assert (await fetch(client, 0, 0, cluster_id=None)).records


async def test_fetches_show_how_far_an_observer_is(site: Site, client: Connection) -> None:
    observers = site.controller.observers
    await fetch(client, 0, 0)
    now_ms = site.env.timestamp_ms()
    assert observers.active(now_ms)[OBSERVER].end_offset == 0
    await fetch(client, site.image.end_offset, 1)
    observer = observers.active(now_ms)[OBSERVER]
    assert (observer.end_offset, observer.caught_up_ms) == (site.image.end_offset, now_ms)


async def test_a_longer_log_of_an_old_epoch_diverges() -> None:
    disk = SimulatedDisk(timestamp_ms=lambda: 0)
    disk.make_directory("/data")
    disk.sync_directory("/")
    async with controller_site(disk) as site:
        first_end = site.image.end_offset
    async with controller_site(disk.crash()) as site:
        client = await site.connect()
        data = await fetch(client, first_end + 5, 1, current=2)
        assert data.diverging_epoch is not None
        assert (data.diverging_epoch.epoch, data.diverging_epoch.end_offset) == (1, first_end)
        assert data.records == b""
        assert (await fetch(client, first_end, 1, current=2)).records
        beyond = await fetch(client, site.image.end_offset + 1, 2, current=2)
        assert beyond.diverging_epoch is not None
        assert beyond.diverging_epoch.end_offset == site.image.end_offset


# -- snapshots


async def with_snapshot(site: Site, client: Connection) -> snapshots.SnapshotId:
    """Write records until the controller has written a snapshot."""
    await site.register(client, 1)
    for index in range(30):
        await client.ask(creation(f"topic-{index}", {0: [1]}))
        await wait_all_tasks_blocked()
    (snapshot, *_) = site.controller.log.snapshot_ids
    return snapshot


def asking_snapshot(
    snapshot: tuple[int, int], position: int, *, max_bytes: int = 300, current: int = 1, **more: Any
) -> FetchSnapshotRequest:
    end_offset, epoch = snapshot
    asked = PartitionSnapshot(
        partition=more.pop("partition", 0),
        current_leader_epoch=current,
        snapshot_id=SnapshotId(end_offset=end_offset, epoch=epoch),
        position=position,
    )
    name = more.pop("name", "__cluster_metadata")
    return FetchSnapshotRequest(
        cluster_id=more.pop("cluster_id", CLUSTER_ID),
        replica_id=OBSERVER.id,
        max_bytes=max_bytes,
        topics=[TopicSnapshot(name=name, partitions=[asked])],
    )


async def ask_snapshot(client: Connection, *position: Any, **more: Any) -> PartitionSnapshotResponse:
    answer = await client.ask(asking_snapshot(*position, **more))
    assert answer.error_code == 0
    return answer.topics[0].partitions[0]


async def test_an_empty_log_starts_from_the_newest_snapshot() -> None:
    async with controller_site(metadata_log_max_record_bytes_between_snapshots=1000) as site:
        client = await site.connect()
        await with_snapshot(site, client)
        newest = site.controller.log.snapshot_ids[-1]
        data = await fetch(client, 0, 0)
        assert data.snapshot_id is not None
        assert (data.snapshot_id.end_offset, data.snapshot_id.epoch) == newest
        assert data.records == b""
        found, size = b"", 1
        while len(found) < size:
            part = await ask_snapshot(client, newest, len(found))
            assert (part.error_code, part.position) == (0, len(found))
            size = part.size
            found += bytes(part.unaligned_records)
        assert found == site.disk.image()[f"/data/__cluster_metadata-0/{newest.file_name}"]
        copied = SimulatedDisk()
        file = copied.open("/copy", create=True)
        file.pwrite(found, 0)
        copy = Copy()
        copy.image = Image().apply(
            snapshots.read_snapshot(copied, "/copy"), offset=newest.end_offset - 1, epoch=newest.epoch
        )
        copy.offset, copy.epoch = newest
        await copy.follow(client)
        assert copy.image == site.image
        assert list(image_records(copy.image)) == list(image_records(site.image))


async def test_positions_before_the_log_need_a_snapshot() -> None:
    async with controller_site(
        metadata_log_max_record_bytes_between_snapshots=1000, metadata_max_retention_bytes=1500
    ) as site:
        client = await site.connect()
        await with_snapshot(site, client)
        start = site.controller.log.log_start_offset
        oldest, newest = site.controller.log.snapshot_ids[0], site.controller.log.snapshot_ids[-1]
        assert start == oldest.end_offset > 0, "the log before the oldest snapshot is deleted"
        for position in ((start - 1, 1), (start, 0)):
            data = await fetch(client, *position)
            assert data.snapshot_id is not None
            assert (data.snapshot_id.end_offset, data.snapshot_id.epoch) == newest
        assert (await fetch(client, start, 1)).records
        assert (await fetch(client, start, 1)).log_start_offset == start


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ({"current": 0}, ErrorCode.FENCED_LEADER_EPOCH),
        ({"current": 2}, ErrorCode.UNKNOWN_LEADER_EPOCH),
        ({"partition": 1}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ({"name": "orders"}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ({}, ErrorCode.SNAPSHOT_NOT_FOUND),
    ],
)
async def test_snapshots_that_do_not_exist_are_refused(client: Connection, more: Any, code: ErrorCode) -> None:
    part = await ask_snapshot(client, (0, 0), 0, **more)
    assert (part.error_code, part.unaligned_records) == (code, b"")


async def test_positions_outside_of_a_snapshot_are_refused() -> None:
    async with controller_site(metadata_log_max_record_bytes_between_snapshots=1000) as site:
        client = await site.connect()
        snapshot = await with_snapshot(site, client)
        size = (await ask_snapshot(client, snapshot, 0)).size
        for position in (-1, size):
            refused = await ask_snapshot(client, snapshot, position)
            assert refused.error_code == ErrorCode.POSITION_OUT_OF_RANGE
        assert (await ask_snapshot(client, snapshot, size - 1)).error_code == 0
        other = await client.ask(asking_snapshot(snapshot, 0, cluster_id="another"))
        assert other.error_code == ErrorCode.INCONSISTENT_CLUSTER_ID
