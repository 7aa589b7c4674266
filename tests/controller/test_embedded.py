"""The controller's writer: decisions one after the other, synced in groups, published before their responses."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from kbroker.broker.lifecycle import BrokerLifecycle
from kbroker.broker.producer_ids import ProducerIds
from kbroker.config import Settings
from kbroker.config.metadata import MetadataSettings
from kbroker.controller.embedded import EmbeddedController, controller_of, open_controller
from kbroker.controller.metadata_log import DIRECTORY
from kbroker.controller.records import MAX_BATCH_BYTES
from kbroker.metadata.errors import UnusableMetadata
from kbroker.metadata.image import Image
from kbroker.storage.log_directory import LogDirectory
from kbroker.testing.disk import Fault, Operation, SimulatedDisk
from kbroker.testing.disk_nodes import Loss
from kbroker.testing.env import MemoryEnv
from tests.controller.cluster import CLUSTER_ID, RULES, SETTINGS, topic
from tests.controller.injected import inject
from wire.messages.broker_registration import Endpoint
from wire.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsResponse, CreatePartitionsTopic
from wire.messages.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse
from wire.messages.incremental_alter_configs import IncrementalAlterConfigsRequest, IncrementalAlterConfigsResponse
from wire.stored.metadata import TopicRecord

DEFAULTS = MetadataSettings()
LOG_DIRECTORY = UUID(int=5_001)


def new_disk() -> SimulatedDisk:
    disk = SimulatedDisk(timestamp_ms=lambda: 0)
    disk.make_directory("/data")
    disk.sync_directory("/")
    return disk


async def create(client: EmbeddedController, *topics: CreatableTopic) -> CreateTopicsResponse:
    return await client.ask(CreateTopicsRequest(topics=list(topics)), CreateTopicsResponse)


async def open_client(
    disk: SimulatedDisk, config: MetadataSettings = DEFAULTS, *, max_batch_bytes: int = MAX_BATCH_BYTES
) -> EmbeddedController:
    return await open_controller(
        MemoryEnv(disk), "/data", settings=SETTINGS, rules=RULES, config=config, max_batch_bytes=max_batch_bytes
    )


@asynccontextmanager
async def registered(client: EmbeddedController, incarnation: int = 1) -> AsyncIterator[BrokerLifecycle]:
    lifecycle = BrokerLifecycle(
        client, client.publisher, env=MemoryEnv(SimulatedDisk()), broker_id=1, cluster_id=CLUSTER_ID
    )
    async with trio.open_nursery() as nursery:
        await nursery.start(client.run)
        incarnation_id = client.sessions.own_incarnation = UUID(int=700 + incarnation)
        await lifecycle.register(
            incarnation_id=incarnation_id,
            endpoints=[Endpoint(name="PLAINTEXT", host="h", port=9092, security_protocol=0)],
            log_dirs=[LOG_DIRECTORY],
        )
        await lifecycle.unfence()
        yield lifecycle
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def running(client: EmbeddedController) -> AsyncIterator[EmbeddedController]:
    async with registered(client):
        yield client


async def test_a_topic_is_published_and_synced_before_its_answer(autojump_clock: MockClock) -> None:
    disk = new_disk()
    client = await open_client(disk)
    seen: list[str] = []
    client.publisher.add_listener(lambda image, delta: seen.extend(one.name for one in delta.created_topics))
    disk.observer = lambda operation: seen.append(operation.name) if operation.path.endswith(".log") else None
    async with running(client):
        seen.clear()
        response = await create(client, topic("a"))
        seen.append("answer")
    assert response.topics[0].error_code == 0
    assert seen == ["write", "sync", "a", "answer"]
    assert list(client.publisher.image.topics_by_name) == ["a"]


async def test_waiting_decisions_share_one_sync(autojump_clock: MockClock) -> None:
    disk = new_disk()
    client = await open_client(disk)
    syncs: list[Operation] = []
    async with running(client):
        disk.observer = lambda operation: syncs.append(operation) if operation.name == "sync" else None
        async with trio.open_nursery() as nursery:
            for number in range(50):
                nursery.start_soon(create, client, topic(f"t{number}"))
    assert len(client.publisher.image.topics_by_id) == 50
    assert len(syncs) <= 2


async def test_each_decision_sees_the_one_before_it(autojump_clock: MockClock) -> None:
    client = await open_client(new_disk())
    codes: list[int] = []

    async def one() -> None:
        response = await create(client, topic("same"))
        codes.append(response.topics[0].error_code)

    async with running(client), trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(one)
    assert sorted(codes) == [0, 36, 36, 36, 36]


async def test_a_group_too_large_for_one_batch_uses_several(autojump_clock: MockClock) -> None:
    disk = new_disk()
    client = await open_client(disk, max_batch_bytes=700)
    async with running(client):
        async with trio.open_nursery() as nursery:
            for number in range(20):
                nursery.start_soon(create, client, topic(f"t{number}", 2, 1))
        large = await create(client, topic("large", 60, 1))
        assert large.topics[0].error_code == 0
        await create(client, topic("after"))
    again = await open_client(disk, max_batch_bytes=700)
    assert again.publisher.image.topics_by_name == client.publisher.image.topics_by_name
    assert len(again.publisher.image.topics_by_name["large"].partitions) == 60


async def test_partitions_configs_and_deletions_are_published_too(autojump_clock: MockClock) -> None:
    async with running(await open_client(new_disk())) as client:
        await create(client, topic("a", 1, 1))
        grown = await client.ask(
            CreatePartitionsRequest(
                topics=[CreatePartitionsTopic(name="a", count=4, assignments=None)],
                timeout_ms=1,
                validate_only=False,
            ),
            CreatePartitionsResponse,
        )
        assert grown.results[0].error_code == 0
        assert len(client.publisher.image.topics_by_name["a"].partitions) == 4
        altered = await client.ask(
            IncrementalAlterConfigsRequest(resources=[], validate_only=False), IncrementalAlterConfigsResponse
        )
        assert altered.responses == []
        deleted = await client.ask(DeleteTopicsRequest(topic_names=["a"], timeout_ms=1), DeleteTopicsResponse)
        assert deleted.responses[0].error_code == 0
        assert client.publisher.image.topics_by_name == {}


async def test_trap_25_producer_ids_are_unique_across_callers_and_restarts(autojump_clock: MockClock) -> None:
    disk = new_disk()
    seen: list[int] = []
    for life in range(2):
        client = await open_client(disk)
        async with registered(client, incarnation=life) as lifecycle:
            producer_ids = ProducerIds(client, lifecycle, MemoryEnv(disk))

            async def take(producer_ids: ProducerIds = producer_ids) -> None:
                for _ in range(300):
                    seen.append(await producer_ids.next())

            async with trio.open_nursery() as nursery:
                for _ in range(4):
                    nursery.start_soon(take)
    assert len(seen) == len(set(seen)) == 2_400


async def test_a_bug_in_a_decision_reaches_only_its_caller(autojump_clock: MockClock) -> None:
    async with running(await open_client(new_disk())) as client:
        with pytest.raises(ZeroDivisionError):
            await inject(client, lambda: 1 // 0)
        assert (await create(client, topic("a"))).topics[0].error_code == 0


async def test_a_decision_that_has_begun_is_made_without_its_caller(autojump_clock: MockClock) -> None:
    async with running(await open_client(new_disk())) as client:
        with trio.CancelScope() as scope:

            def records() -> list[Any]:
                scope.cancel()
                return [TopicRecord(name="a", topic_id=UUID(int=1))]

            await inject(client, records)
        await wait_all_tasks_blocked()
        assert list(client.publisher.image.topics_by_name) == ["a"]


async def test_a_cancelled_caller_leaves_no_request_in_the_queue(autojump_clock: MockClock) -> None:
    async with running(await open_client(new_disk())) as client, trio.open_nursery() as nursery:
        goes_on = trio.Event()
        client.publisher.add_listener(lambda _image, _delta: goes_on.wait())
        nursery.start_soon(create, client, topic("a"))
        await wait_all_tasks_blocked()
        with trio.move_on_after(3) as scope:
            await create(client, topic("b"))
        assert scope.cancelled_caught
        goes_on.set()
        await create(client, topic("c"))
        assert list(client.publisher.image.topics_by_name) == ["a", "c"]


@pytest.mark.parametrize("name", ["write", "sync"])
async def test_d8_a_failed_metadata_write_ends_the_controller(autojump_clock: MockClock, name: str) -> None:
    disk = new_disk()
    client = await open_client(disk)
    with pytest.RaisesGroup(UnusableMetadata, flatten_subgroups=True):
        async with running(client):
            disk.inject(Fault(error=5, name=name, path="*.log", times=-1))
            await create(client, topic("a"))
    assert client.publisher.image.topics_by_name == {}, "nothing was published"


async def open_in_directory(disk: SimulatedDisk) -> EmbeddedController:
    """Open the controller as a node does, with its log directory."""
    new_ids = iter(range(9_000, 9_999))
    directory = LogDirectory(
        "/data",
        disk=disk,
        node_id=1,
        cluster_id=CLUSTER_ID,
        new_uuid=lambda: UUID(int=next(new_ids)),
        begins=False,
    )
    return await controller_of(MemoryEnv(disk), Settings.load(), directory, [])


async def test_d8_a_start_writes_metadata_again_that_only_the_cache_has(autojump_clock: MockClock) -> None:
    disk = new_disk()
    client = await open_in_directory(disk)
    with pytest.RaisesGroup(UnusableMetadata, flatten_subgroups=True):
        async with running(client):
            disk.fail("sync", f"/data/{DIRECTORY}/*.log")
            await create(client, topic("a"))
    second = disk.crash(Loss.PROCESS_DEATH)
    client = await open_in_directory(second)
    assert set(client.publisher.image.topics_by_name) == {"a"}
    async with registered(client, incarnation=2):
        await create(client, topic("b"))
    third = second.crash(Loss.ONLY_SYNCED)
    assert set((await open_in_directory(third)).publisher.image.topics_by_name) == {"a", "b"}


async def test_a_snapshot_is_written_when_it_is_due(autojump_clock: MockClock) -> None:
    disk = new_disk()
    config = MetadataSettings(metadata_log_max_record_bytes_between_snapshots=2_000)
    async with running(await open_client(disk, config)) as client:
        for number in range(30):
            await create(client, topic(f"t{number}"))
        await trio.sleep(100)
        names = [name for name in disk.list(f"/data/{DIRECTORY}") if name.endswith(".checkpoint")]
        assert names
        image = client.publisher.image
    again = await open_client(disk, config)
    assert again.publisher.image.topics_by_name == image.topics_by_name


async def test_a_snapshot_is_written_hourly_if_records_are_new(autojump_clock: MockClock) -> None:
    disk = new_disk()

    def snapshots() -> int:
        return sum(name.endswith(".checkpoint") for name in disk.list(f"/data/{DIRECTORY}"))

    async with running(await open_client(disk)) as client:
        await create(client, topic("a"))
        await trio.sleep(3_500)
        assert snapshots() == 0
        await trio.sleep(300)
        assert snapshots() == 1
        await trio.sleep(7_200)
        assert snapshots() == 1, "no new records"


async def test_d9_a_snapshot_is_retried_after_a_full_disk(autojump_clock: MockClock) -> None:
    disk = new_disk()
    config = MetadataSettings(metadata_log_max_snapshot_interval_ms=100_000)
    async with running(await open_client(disk, config)) as client:
        disk.inject(Fault(error=28, name="write", path="*.checkpoint.part"))
        await create(client, topic("a"))
        await trio.sleep(150)
        await create(client, topic("b"))
        await trio.sleep(150)
        assert any(name.endswith(".checkpoint") for name in disk.list(f"/data/{DIRECTORY}"))


@pytest.mark.parametrize("clean", [True, False])
async def test_trap_20_a_restart_raises_the_leader_epoch_by_two(autojump_clock: MockClock, *, clean: bool) -> None:
    disk = new_disk()
    for life in range(3):
        client = await open_client(disk)
        async with registered(client, incarnation=life) as lifecycle:
            if life == 0:
                await create(client, topic("a", 1, 1))
            partition = client.publisher.image.partition("a", 0)
            assert partition is not None
            assert (partition.leader, partition.leader_epoch, partition.partition_epoch) == (1, 2 * life, 2 * life)
            assert client.publisher.image.epoch == life + 1
            if clean:
                await lifecycle.shut_down()
        if clean:
            await client.close()


async def test_the_broker_registers_fenced_and_is_then_unfenced(autojump_clock: MockClock) -> None:
    steps: list[Callable[[Image], object]] = [lambda image: image.brokers[1].fenced]
    client = await open_client(new_disk())
    fenced: list[object] = []
    client.publisher.add_listener(lambda image, delta: fenced.append(steps[0](image)))
    async with running(client):
        broker = client.publisher.image.brokers[1]
        assert broker.endpoints == {"PLAINTEXT": Endpoint(name="PLAINTEXT", host="h", port=9092, security_protocol=0)}
        assert broker.log_dirs == (LOG_DIRECTORY,)
    assert fenced == [True, False]


async def test_d9_a_full_disk_while_adopting_a_snapshot_is_survived(autojump_clock: MockClock) -> None:
    disk = new_disk()

    def newest() -> str:
        return max(name for name in disk.list(f"/data/{DIRECTORY}") if name.endswith(".checkpoint"))

    async with running(
        await open_client(disk, MetadataSettings(metadata_log_max_snapshot_interval_ms=100_000))
    ) as client:
        await create(client, topic("a"))
        disk.inject(Fault(error=28, name="write", path="*.timeindex"))
        await trio.sleep(150)
        not_adopted = newest()
        await create(client, topic("b"))
        await trio.sleep(150)
        assert newest() > not_adopted
