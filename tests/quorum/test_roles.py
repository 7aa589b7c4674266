"""Nodes by roles: a controller that is no broker, and a broker that opens a controller listener."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest
import trio

from kbroker import quorum
from kbroker.client.streaming import Connection, ConnectionClosed
from kbroker.config import Settings
from kbroker.node import Node, NodeFailed
from kbroker.testing.disk import Fault, SimulatedDisk
from kbroker.testing.env import MemoryEnv
from kbroker.testing.memory_node import MemoryBroker, memory_broker
from kbroker.web import exposition, health
from tests.handlers.asking import create_topic
from tests.quorum.site import CLUSTER_ID, HOST, NODE_ID, PORT, SETTINGS, creation, registration
from tests.quorum.test_fetch import Copy
from wire.errors import ErrorCode
from wire.messages.broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse
from wire.messages.broker_registration import BrokerRegistrationRequest
from wire.messages.describe_cluster import DescribeClusterRequest
from wire.messages.metadata import MetadataRequest

COMBINED = {
    "listeners": "PLAINTEXT://broker.example:9092,CONTROLLER://broker.example:9093",
    "controller.listener.names": "CONTROLLER",
}


@asynccontextmanager
async def controller_node(disk: SimulatedDisk, *, stops_cleanly: bool = True) -> AsyncIterator[tuple[Node, MemoryEnv]]:
    """A node with process.roles=controller."""
    env = MemoryEnv(disk)
    settings = Settings.load(overrides=[*SETTINGS, "log.dirs=/data", "kbroker.metadata.reserve.bytes=65536"])
    node = Node(env, settings, cluster_id=CLUSTER_ID)

    async def run(*, task_status: trio.TaskStatus[tuple[str, int]] = trio.TASK_STATUS_IGNORED) -> None:
        await node.run(on_ready=lambda host, port: task_status.started((host, port)))

    async with trio.open_nursery() as nursery:
        assert await nursery.start(run) == (HOST, PORT)
        yield node, env
        if stops_cleanly:
            node.stop()
        else:
            nursery.cancel_scope.cancel()


async def connect(env: MemoryEnv, host: str = HOST) -> Connection:
    client = Connection(await env.connect(host, PORT), client_id="test")
    client.protocol.served = {api_key: handler.versions for api_key, handler in quorum.discover().items()}
    return client


async def beat(client: Connection, broker_id: int, epoch: int, *, offset: int = -1) -> BrokerHeartbeatResponse:
    """A heartbeat with this metadata offset, by default that of the broker's registration."""
    request = BrokerHeartbeatRequest(
        broker_id=broker_id,
        broker_epoch=epoch,
        current_metadata_offset=epoch if offset < 0 else offset,
        want_fence=False,
        want_shut_down=False,
    )
    answer = await client.ask(request)
    assert isinstance(answer, BrokerHeartbeatResponse)
    assert answer.error_code == 0
    return answer


@pytest.mark.parametrize("stops_cleanly", [True, False])
async def test_a_controller_keeps_its_log_over_a_restart(stops_cleanly: bool) -> None:
    disk = SimulatedDisk()
    async with controller_node(disk, stops_cleanly=stops_cleanly) as (_, env):
        client = await connect(env)
        epoch = (await client.ask(registration(1))).broker_epoch
        assert not (await beat(client, 1, epoch)).is_fenced
        assert (await client.ask(creation("a", {0: [1]}))).topics[0].error_code == 0
        client.close()
    async with controller_node(disk if stops_cleanly else disk.crash()) as (_, env):
        client = await connect(env)
        copy = Copy()
        await copy.follow(client, current=2)
        assert list(copy.image.topics_by_name) == ["a"]
        assert copy.image.brokers[1].epoch == epoch
        assert copy.image.controllers[NODE_ID].endpoints["CONTROLLER"].port == PORT
        asked = DescribeClusterRequest(include_cluster_authorized_operations=False, endpoint_type=2)
        assert (await client.ask(asked)).cluster_id == CLUSTER_ID
        assert not (await beat(client, 1, epoch)).is_fenced, "its session goes on under the new controller"
        client.close()


async def test_r1_a_controller_fences_brokers_that_fall_silent() -> None:
    async with controller_node(SimulatedDisk()) as (_, env):
        client = await connect(env)
        epoch = (await client.ask(registration(1))).broker_epoch
        await beat(client, 1, epoch)
        copy = Copy()
        await trio.sleep(8.9)
        await copy.follow(client)
        assert not copy.image.brokers[1].fenced
        await trio.sleep(0.2)
        await copy.follow(client)
        assert copy.image.brokers[1].fenced
        client.close()


async def test_d8_a_controller_ends_if_its_log_cannot_be_written() -> None:
    disk = SimulatedDisk()

    async def ask_while_the_disk_fails() -> None:
        async with controller_node(disk) as (_, env):
            client = await connect(env)
            disk.inject(Fault(error=5, name="sync", path="*.log", times=-1))
            with suppress(ConnectionClosed):
                await client.ask(registration(1))
            await trio.sleep(10)

    with pytest.raises(ExceptionGroup) as caught:
        await ask_while_the_disk_fails()
    assert caught.group_contains(NodeFailed)


async def join(broker: MemoryBroker, broker_id: int) -> tuple[Connection, int]:
    """Register and unfence a broker of another process."""
    client = await connect(broker.env, "broker.example")
    epoch = (await client.ask(registered(broker, broker_id))).broker_epoch
    await beat(client, broker_id, epoch)
    return client, epoch


def registered(broker: MemoryBroker, broker_id: int) -> BrokerRegistrationRequest:
    assert broker.node.broker is not None
    request = registration(broker_id)
    request.cluster_id = broker.node.broker.cluster_id
    return request


async def brokers_of(broker: MemoryBroker) -> list[int]:
    client = await broker.connect()
    return [one.node_id for one in (await client.ask(MetadataRequest(topics=[]))).brokers]


async def test_other_brokers_join_a_node_with_a_controller_listener() -> None:
    async with memory_broker(settings=COMBINED) as broker:
        assert await brokers_of(broker) == [1]
        client, epoch = await join(broker, 2)
        assert await brokers_of(broker) == [1, 2]
        assert (await client.ask(creation("a", {0: [1, 2]}))).topics[0].error_code == 0
        refused = await client.ask(registered(broker, 1))
        assert refused.error_code == ErrorCode.DUPLICATE_BROKER_REGISTRATION
        await trio.sleep(8)
        await beat(client, 2, epoch)
        await trio.sleep(8)
        assert await brokers_of(broker) == [1, 2]
        await trio.sleep(2)
        assert await brokers_of(broker) == [1], "broker 2 fell silent, and broker 1 needs no heartbeats"
        client.close()


async def test_the_directory_of_a_single_node_becomes_that_of_a_cluster() -> None:
    disk = SimulatedDisk()
    async with memory_broker(disk) as broker:
        topic_id = await create_topic(await broker.connect(), "orders", partitions=2)
        cluster_id = registered(broker, 2).cluster_id
    async with memory_broker(disk, settings=COMBINED) as broker:
        client, _ = await join(broker, 2)
        assert registered(broker, 2).cluster_id == cluster_id
        copy = Copy()
        await copy.follow(client, current=2)
        assert copy.image.topics_by_id[topic_id].name == "orders"
        assert sorted(copy.image.brokers) == [1, 2]
        client.close()


async def test_a_combined_node_stops_after_the_others_know_its_new_leaders() -> None:
    async with memory_broker(settings=COMBINED) as broker:
        client, epoch = await join(broker, 2)
        assert (await client.ask(creation("a", {0: [1, 2]}))).topics[0].error_code == 0
        copy = Copy()
        broker.node.stop()
        await trio.sleep(3)
        await copy.follow(client)
        partition = copy.image.partition("a", 0)
        assert partition is not None
        assert (partition.leader, partition.isr) == (2, (2,))
        assert copy.image.brokers[1].in_controlled_shutdown
        assert not copy.image.brokers[1].fenced, "broker 2 has not reported that it knows"
        await beat(client, 2, epoch, offset=copy.image.offset)
        await trio.sleep(3)
        with pytest.raises(ConnectionClosed):
            await client.ask(registered(broker, 3))


async def test_a_controller_shows_the_metrics_of_the_cluster() -> None:
    async with controller_node(SimulatedDisk()) as (node, env):
        client = await connect(env)
        for broker in (1, 2):
            epoch = (await client.ask(registration(broker))).broker_epoch
            if broker == 1:
                await beat(client, broker, epoch)
        assert (await client.ask(creation("a", {0: [1], 1: [1]}))).topics[0].error_code == 0
        await trio.sleep(10)
        page = b"".join(exposition.render(node)).decode()
        client.close()
    for name, value in {
        "activecontrollercount": 1, "globaltopiccount": 1, "globalpartitioncount": 2, "offlinepartitionscount": 2,
        "activebrokercount": 0, "fencedbrokercount": 2,
    }.items():  # fmt: skip
        assert f"\nkafka_controller_kafkacontroller_{name} {value:.1f}\n" in page
    assert health.problems(node) == ["the node is stopping"]
