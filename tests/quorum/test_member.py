"""A broker whose controller is another process: how it joins, and what it survives."""

from __future__ import annotations

import errno
import json

import pytest
import trio

from kbroker.node import Node
from kbroker.testing.disk import Fault, SimulatedDisk
from kbroker.testing.net import MemoryNetwork
from kbroker.web.health import ready
from kbroker.web.state import render
from tests.quorum.member import DATA, Member, fenced, run, until
from tests.quorum.site import CLUSTER_ID, NODE_ID, Site, controller_site, creation
from wire.errors import ErrorCode
from wire.messages.create_topics import CreateTopicsResponse
from wire.messages.describe_quorum import DescribeQuorumRequest, DescribeQuorumRequestPartitionData
from wire.messages.describe_quorum import DescribeQuorumRequestTopicData as QuorumTopic
from wire.messages.elect_leaders import ElectLeadersRequest, ElectLeadersResponse
from wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from wire.messages.init_producer_id import InitProducerIdRequest
from wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from wire.messages.unregister_broker import UnregisterBrokerRequest, UnregisterBrokerResponse


async def test_an_empty_broker_takes_the_clusters_id_and_serves_clients(site: Site) -> None:
    member = Member(site.env.network)
    async with member.running():
        assert not fenced(site)
        client = await member.connect()
        answer = await client.ask(creation("orders", {0: [1], 1: [1]}))
        assert isinstance(answer, CreateTopicsResponse)
        assert [topic.error_code for topic in answer.topics] == [0]

        async def is_led() -> bool:
            found = await member.metadata()
            return [part.leader_id for topic in found.topics for part in topic.partitions] == [1, 1]

        await until(is_led)
        assert (await member.metadata()).cluster_id == CLUSTER_ID
        client.close()
    assert fenced(site), "a controlled shutdown"


async def test_tools_see_the_broker_as_an_observer_through_the_broker(site: Site) -> None:
    member = Member(site.env.network)
    async with member.running():
        client = await member.connect()
        partitions = [DescribeQuorumRequestPartitionData(partition_index=0)]
        answer = await client.ask(
            DescribeQuorumRequest(topics=[QuorumTopic(topic_name="__cluster_metadata", partitions=partitions)])
        )
        (partition,) = answer.topics[0].partitions
        assert partition.leader_id == NODE_ID
        assert [one.replica_id for one in partition.observers] == [1]
        client.close()


async def test_c2_a_broker_serves_clients_without_a_controller_and_follows_it_again() -> None:
    network, disk = MemoryNetwork(), SimulatedDisk(timestamp_ms=lambda: 0)
    disk.make_directory("/data")
    disk.sync_directory("/")
    member = Member(network)
    async with trio.open_nursery() as nursery:
        ended = trio.Event()
        site = await nursery.start(_control, disk, network, ended)
        async with member.running() as node:
            await site.controller.ask(creation("before", {0: [1]}), CreateTopicsResponse, version=7)
            assert _controllers_seen(node) == (NODE_ID, [])
            ended.set()
            await trio.sleep(30)
            assert _controllers_seen(node) == (-1, ["no controller answers: requests that change the cluster fail"])
            assert [topic.name for topic in (await member.metadata()).topics] == ["before"]
            client = await member.connect()
            first = await client.ask(InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=0))
            assert first.error_code == 0, "the broker has a block of producer ids"
            refused = await client.ask(creation("refused", {0: [1]}))
            assert [topic.error_code for topic in refused.topics] == [ErrorCode.REQUEST_TIMED_OUT]
            client.close()
            ended = trio.Event()
            site = await nursery.start(_control, disk, network, ended)
            await site.controller.ask(creation("after", {0: [1]}), CreateTopicsResponse, version=7)

            async def is_known() -> bool:
                return {topic.name for topic in (await member.metadata()).topics} == {"before", "after"}

            await until(is_known)
            await trio.sleep(20)  # longer than a session
            assert not fenced(site)
        assert fenced(site)
        ended.set()


@pytest.mark.parametrize("after_s", [0, 30])
async def test_c2_an_unknown_topic_does_not_hold_up_a_client_without_a_controller(after_s: int) -> None:
    network, disk = MemoryNetwork(), SimulatedDisk(timestamp_ms=lambda: 0)
    disk.make_directory("/data")
    disk.sync_directory("/")
    member = Member(network)
    async with trio.open_nursery() as nursery:
        ended = trio.Event()
        await nursery.start(_control, disk, network, ended)
        async with member.running():
            client = await member.connect()
            ended.set()
            await trio.sleep(after_s)
            before = trio.current_time()
            answer = await client.ask(MetadataRequest(topics=[MetadataRequestTopic(name="new")]))
            assert trio.current_time() - before <= 3.1
            assert answer.topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            client.close()


def _controllers_seen(node: Node) -> tuple[int, list[str]]:
    """The controller in /state, and the warnings in /health."""
    state = json.loads(b"".join(render(node)))["node"]
    health = json.loads(b"".join(ready(node).pieces))
    return state["controller"], health["warnings"]


async def _control(
    disk: SimulatedDisk, network: MemoryNetwork, ended: trio.Event, *, task_status: trio.TaskStatus[Site]
) -> None:
    async with controller_site(disk, network=network) as site:
        task_status.started(site)
        await ended.wait()


async def test_a_killed_broker_waits_until_its_old_session_has_ended(site: Site) -> None:
    member = Member(site.env.network)
    async with member.running(stops_cleanly=False):
        pass
    before = trio.current_time()
    async with member.running():
        assert 0 < trio.current_time() - before < 15
        assert not fenced(site)


async def test_a_broker_with_an_empty_directory_leads_only_where_the_loss_is_accepted(site: Site) -> None:
    async with Member(site.env.network).running(stops_cleanly=False):
        await site.controller.ask(creation("orders", {0: [1], 1: [1]}), CreateTopicsResponse, version=7)

    def leaders() -> list[int]:
        return [partition.leader for partition in site.image.topics_by_name["orders"].partitions.values()]

    empty = Member(site.env.network)
    empty.starts = 10  # another directory id
    async with empty.running():
        await trio.sleep(30)
        assert leaders() == [-1, -1]
        config = AlterableConfig(name="unclean.leader.election.enable", config_operation=0, value="true")
        resource = AlterConfigsResource(resource_type=2, resource_name="orders", configs=[config])
        accepted = IncrementalAlterConfigsRequest(resources=[resource], validate_only=False)
        await site.controller.ask(accepted, IncrementalAlterConfigsResponse, version=1)
        await trio.sleep(3)
        election = ElectLeadersRequest(election_type=1, topic_partitions=None, timeout_ms=1_000)
        await site.controller.ask(election, ElectLeadersResponse, version=2)
        assert leaders() == [1, 1]


async def test_a_shutdown_waits_for_the_others_only_as_long_as_they_need(site: Site) -> None:
    async with Member(site.env.network, 2).running():
        async with Member(site.env.network).running():
            await site.controller.ask(creation("orders", {0: [1]}), CreateTopicsResponse, version=7)
            await trio.sleep(5)
            began = trio.current_time()
        assert trio.current_time() - began < 0.5, "heartbeats come every two seconds"


async def test_a_broker_stops_without_a_controller_after_some_seconds() -> None:
    network, disk = MemoryNetwork(), SimulatedDisk(timestamp_ms=lambda: 0)
    disk.make_directory("/data")
    disk.sync_directory("/")
    async with trio.open_nursery() as nursery:
        ended = trio.Event()
        await nursery.start(_control, disk, network, ended)
        async with Member(network).running():
            ended.set()
            await trio.sleep(5)
            before = trio.current_time()
        assert 7 < trio.current_time() - before < 10


async def test_a_restart_fetches_only_what_is_new(site: Site) -> None:
    member = Member(site.env.network)
    async with member.running():
        pass
    stored = member.disk.image(DATA)
    (segment,) = (path for path in stored if path.endswith(".log") and "__cluster_metadata-0" in path)
    async with member.running():
        later = member.disk.image(DATA)[segment]
        assert later is not None
        assert later.startswith(stored[segment] or b"")


async def test_a_new_broker_starts_with_a_snapshot() -> None:
    network = MemoryNetwork()
    async with (
        controller_site(network=network, metadata_log_max_record_bytes_between_snapshots=500) as site,
        Member(network).running(),
    ):
        for number in range(20):
            await site.controller.ask(creation(f"topic-{number}", {0: [1]}), CreateTopicsResponse, version=7)
            await trio.sleep(1)
        await until(lambda: bool(site.controller.log.snapshot_ids))
        second = Member(network, 2)
        async with second.running() as node:
            assert node.broker is not None
            assert len(node.broker.image.topics_by_name) == 20
            assert any(path.endswith(".checkpoint") for path in second.disk.image(DATA))
        async with second.running() as node:
            assert node.broker is not None
            assert len(node.broker.image.topics_by_name) == 20


@pytest.mark.parametrize(
    ("name", "code", "text"),
    [
        ("1", 0, None),
        ("", 0, None),
        ("2", 42, "Unexpected broker id, expected 1, but received 2"),
    ],
)
async def test_a_broker_changes_its_own_settings_only(site: Site, name: str, code: int, text: str | None) -> None:
    await site.register(await site.connect(), 2)
    member = Member(site.env.network)
    async with member.running():
        client = await member.connect()
        topic = AlterConfigsResource(resource_type=2, resource_name="missing", configs=[])
        change = AlterableConfig(name="log.retention.ms", config_operation=0, value="8000")
        settings = AlterConfigsResource(resource_type=4, resource_name=name, configs=[change])
        request = IncrementalAlterConfigsRequest(resources=[settings, topic], validate_only=False)
        answer = await client.ask(request)
        client.close()
        assert [(one.error_code, one.error_message) for one in answer.responses] == [
            (code, text), (3, "The topic 'missing' does not exist."),
        ]  # fmt: skip


async def test_a_broker_waits_to_be_unfenced_while_the_controllers_disk_is_full(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    node = Member(site.env.network).node()
    site.disk.inject(Fault(errno.ENOSPC, name="write", path="*.log", skip=1, times=-1))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(run, node)
        await trio.sleep(150)
        assert fenced(site), "only its registration was written"
        assert not node.is_serving
        assert caplog.text.count("a heartbeat failed") == 3, "the line is repeated every minute"
        site.disk.heal()
        await until(lambda: node.is_serving)
        node.stop()


async def test_a_broker_stops_in_order_while_the_controllers_disk_is_full(site: Site) -> None:
    await site.register(await site.connect(), 2)
    member = Member(site.env.network)
    async with member.running():
        site.disk.inject(Fault(errno.ENOSPC, name="write", path="*.log", times=-1))
    assert member.disk.exists(f"{DATA}/.kafka_cleanshutdown")


async def test_c7_an_unregistered_broker_registers_again(site: Site) -> None:
    async with Member(site.env.network).running() as node:
        assert node.broker is not None
        epoch = node.broker.lifecycle.epoch
        await site.controller.ask(UnregisterBrokerRequest(broker_id=1), UnregisterBrokerResponse, version=0)
        await until(lambda: 1 in site.image.brokers and not fenced(site))
        assert node.broker.lifecycle.epoch == site.image.brokers[1].epoch > epoch


@pytest.mark.parametrize("days", [400, -400])
async def test_t1_a_wrong_clock_is_named_and_changes_nothing(
    site: Site, caplog: pytest.LogCaptureFixture, days: int
) -> None:
    def lines() -> list[str]:
        return [record.getMessage() for record in caplog.records if "clocks of this machine" in record.getMessage()]

    caplog.set_level("INFO")
    member = Member(site.env.network)
    site.env.wall_jump_ms = -days * 24 * 3_600_000
    async with member.running() as node:
        await trio.sleep(60)
        assert not fenced(site)
        assert node.broker.env.ahead_ms // 3_600_000 == max(0, days) * 24  # deletion by age counts without it
        (line,) = lines()
        assert "differ" in line
        site.env.wall_jump_ms = 0
        await site.controller.ask(creation("new", {0: [1]}), CreateTopicsResponse, version=7)
        await until(lambda: "agree again" in lines()[-1])


async def _decide_and_wait(site: Site) -> None:
    """20 decisions; afterwards their batches are more than an hour old."""
    await site.register(await site.connect(), 2)
    for number in range(20):
        await site.controller.ask(creation(f"topic-{number}", {0: [2]}), CreateTopicsResponse, version=7)
    await trio.sleep(3_700)


async def test_t1_old_batches_after_a_long_absence_are_no_wrong_clock(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    member = Member(site.env.network)
    async with member.running():
        pass
    await _decide_and_wait(site)
    async with member.running(controller_quorum_fetch_max_bytes=100):
        pass
    assert "clocks of this machine" not in caplog.text


async def test_t1_old_batches_after_a_long_separation_are_no_wrong_clock(caplog: pytest.LogCaptureFixture) -> None:
    network, elsewhere, disk = MemoryNetwork(), MemoryNetwork(), SimulatedDisk(timestamp_ms=lambda: 0)
    disk.make_directory("/data")
    disk.sync_directory("/")
    ended = trio.Event()
    async with trio.open_nursery() as nursery:
        await nursery.start(_control, disk, network, ended)
        async with Member(network).running(controller_quorum_fetch_max_bytes=100) as node:
            ended.set()
            await trio.sleep(30)
            # Without snapshots the broker has to fetch the batches.
            async with controller_site(disk, network=elsewhere, metadata_log_max_snapshot_interval_ms=0) as site:
                await _decide_and_wait(site)
                network.listeners.update(elsewhere.listeners)
                end_offset = site.image.end_offset
                await until(lambda: node.broker is not None and node.broker.image.end_offset >= end_offset)
                node.stop()
    assert "clocks of this machine" not in caplog.text
