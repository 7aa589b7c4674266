"""The pages about a node, compared with the actions of its clients."""

from __future__ import annotations

import errno
import json
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import TypeVar, TypeVarTuple

import h11
import pytest
import trio
from prometheus_client.parser import text_string_to_metric_families
from trio.testing import MockClock

from kbroker.config import Settings
from kbroker.metadata.delta import Delta
from kbroker.metadata.image import Image, PartitionImage, TopicImage
from kbroker.node import Node
from kbroker.runtime.metrics import Metrics
from kbroker.runtime.net_ports import Env
from kbroker.testing.disk import Fault, SimulatedDisk
from kbroker.testing.env import MemoryEnv
from kbroker.testing.memory_node import Client, MemoryBroker, memory_broker
from kbroker.web.exposition import SAMPLES_IN_A_PIECE
from kbroker.web.isr_changes import count_isr_changes
from kbroker.web.metrics import DECLARED, HISTOGRAM, QUANTILES
from kbroker.web.state import render as render_state
from tests.handlers.transactions import add_partitions, end, init, settled
from tests.web.asking import ADDRESS, Browser, get
from wire.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntryData,
    OpData,
)
from wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from wire.messages.delete_topics import DeleteTopicsRequest
from wire.messages.describe_client_quotas import EntityData
from wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from wire.messages.find_coordinator import FindCoordinatorRequest
from wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from wire.messages.metadata import MetadataRequest
from wire.messages.offset_commit import OffsetCommitRequest, OffsetCommitRequestPartition, OffsetCommitRequestTopic
from wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from wire.record_batch import Record, build_batch
from wire.types import uuid_to_text

CLIENT_HOST, CLIENT_PORT = "198.51.100.1", 1  # of kbroker.testing.net
HTTP = {"kbroker.http.listener": "{}:{}".format(*ADDRESS)}

Result = TypeVar("Result")
Arguments = TypeVarTuple("Arguments")
Key = tuple[str, frozenset[tuple[str, str]]]


@asynccontextmanager
async def observed(disk: SimulatedDisk | None = None) -> AsyncIterator[tuple[MemoryBroker, Client]]:
    async with memory_broker(disk, settings=HTTP) as broker:
        yield broker, await broker.connect(client_id='a "client"\n')


async def test_pages_are_served_under_host_names_from_the_settings() -> None:
    settings = {
        **HTTP,
        "kbroker.http.hosts": "Monitoring.example",
        "advertised.listeners": "PLAINTEXT://told.example:1",
    }
    async with memory_broker(settings=settings) as broker:
        for name, status in [("monitoring.example", 200), ("told.example", 200), ("other.example", 421)]:
            browser = await Browser.connect(broker.node.env)
            await browser.send(f"GET /state HTTP/1.1\r\nHost: {name}:9644\r\n\r\n".encode())
            assert (await browser.stream.receive(100)).startswith(b"HTTP/1.1 %d " % status)


async def create(client: Client, name: str, *, partitions: int = 1) -> None:
    topic = CreatableTopic(name=name, num_partitions=partitions, replication_factor=1, assignments=[], configs=[])
    answer = await client.ask(CreateTopicsRequest(topics=[topic]), version=5)
    assert answer.topics[0].error_code == 0


async def produce(client: Client, topic: str, *, records: int, index: int = 0) -> int:
    """The size of the batch."""
    batch = build_batch([Record(offset, 1_000 + offset, None, b"value") for offset in range(records)])
    data = [TopicProduceData(name=topic, partition_data=[PartitionProduceData(index=index, records=batch)])]
    await client.ask(ProduceRequest(acks=-1, timeout_ms=5_000, topic_data=data), version=7)
    return len(batch)


async def fetch(client: Client, topic: str, *, offset: int = 0, max_wait_ms: int = 0) -> None:
    asked = [FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)]
    request = FetchRequest(max_wait_ms=max_wait_ms, min_bytes=1, topics=[FetchTopic(topic=topic, partitions=asked)])
    await client.ask(request, version=11)


async def metrics(env: Env) -> dict[Key, float]:
    """Every sample of the page by its name and labels."""
    text = (await get(env, "/metrics")).body.decode()
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def key(name: str, **labels: str) -> Key:
    return name, frozenset(labels.items())


async def test_what_clients_produce_and_fetch_is_counted_by_topic() -> None:
    async with observed() as (broker, client):
        await create(client, "t", partitions=2)
        size = await produce(client, "t", records=3) + await produce(client, "t", records=2, index=1)
        await produce(client, "none", records=1)
        await fetch(client, "t")
        found = await metrics(broker.env)
    name = "kafka_server_brokertopicmetrics_{}_total".format
    total = "kbroker_all_topics_{}_total".format
    assert found[key(name("messagesin"), topic="t")] == found[key(total("messagesin"))] == 5
    assert found[key(name("bytesin"), topic="t")] == found[key(total("bytesin"))] == size
    assert found[key("kafka_log_log_size", topic="t", partition="0")] < size
    assert found[key(name("bytesout"), topic="t")] == found[key("kafka_log_log_size", topic="t", partition="0")]
    assert found[key("kafka_log_log_logendoffset", topic="t", partition="0")] == 3
    assert found[key("kafka_log_log_logendoffset", topic="t", partition="1")] == 2
    assert found[key("kafka_network_requestmetrics_requests_total", request="Produce")] == 3
    error = key("kafka_network_requestmetrics_errors_total", request="Produce", error="UNKNOWN_TOPIC_OR_PARTITION")
    assert found[error] == 1
    assert found[key("kafka_server_replicamanager_leadercount")] == 2
    assert found[key("kafka_controller_kafkacontroller_globalpartitioncount")] == 2
    assert found[key("kafka_server_socket_server_metrics_connection_count", listener="PLAINTEXT")] == 1


async def test_a_deleted_topic_remains_only_in_the_sum() -> None:
    async with observed() as (broker, client):
        await create(client, "t")
        await create(client, "u")
        await produce(client, "t", records=3)
        await produce(client, "u", records=4)
        await client.ask(DeleteTopicsRequest(topic_names=["t"], timeout_ms=1_000), version=4)
        found = await metrics(broker.env)
    name = "kafka_server_brokertopicmetrics_messagesin_total"
    assert found[key("kbroker_all_topics_messagesin_total")] == 7
    assert found[key(name, topic="u")] == 4
    assert not [labels for _, labels in found if ("topic", "t") in labels]


async def test_latencies_are_a_histogram_in_milliseconds(autojump_clock: MockClock) -> None:
    async with observed() as (broker, client):
        await create(client, "t")
        for max_wait_ms in (0, 3, 5, 40_000):
            await fetch(client, "t", max_wait_ms=max_wait_ms)
        found = await metrics(broker.env)
    name = "kbroker_network_requestmetrics_totaltimems{}".format
    assert found[key(name("_count"), request="Fetch")] == 4
    assert found[key(name("_sum"), request="Fetch")] == pytest.approx(40_008, abs=1)
    for bound, count in {"0.032": 1, "2.048": 1, "4.096": 2, "8.192": 3, "33554.432": 3, "+Inf": 4}.items():
        assert found[key(name("_bucket"), request="Fetch", le=bound)] == count, bound


async def test_quantiles_are_kafkas_and_forget_old_values(autojump_clock: MockClock) -> None:
    name = "kafka_network_requestmetrics_totaltimems"

    async def quantiles() -> dict[str, float]:
        found = await metrics(broker.env)
        assert found[key(f"{name}_count", request="Fetch")] == count
        return {label: found[key(name, request="Fetch", quantile=label)] for label in QUANTILES}

    async with observed() as (broker, client):
        await create(client, "t")
        count = 10
        for max_wait_ms in (*[5] * 9, 1_000):
            await fetch(client, "t", max_wait_ms=max_wait_ms)
        found = await quantiles()
        assert 4 < found["0.50"] < found["0.75"] <= 8.2
        assert 500 < found["0.95"] < found["0.98"] < found["0.999"] <= 1_100
        await trio.sleep(300)
        assert await quantiles() == found, "as in Kafka, they stay without new values"
        for max_wait_ms in [50] * 2:
            await fetch(client, "t", max_wait_ms=max_wait_ms)
        count += 2
        found = await quantiles()
    assert 30 < found["0.50"] < found["0.95"] < 70, "values of five minutes ago hardly count"
    assert found["0.999"] > 500, "but they are not forgotten"


async def test_a_request_that_waits_is_in_purgatory(autojump_clock: MockClock) -> None:
    purgatory = key("kafka_server_delayedoperationpurgatory_purgatorysize", delayedOperation="Fetch")
    async with observed() as (broker, client):
        await create(client, "t")
        assert (await metrics(broker.env))[purgatory] == 0
        async with trio.open_nursery() as nursery:

            async def wait() -> None:
                await fetch(client, "t", max_wait_ms=10_000)

            nursery.start_soon(wait)
            await trio.sleep(5)
            assert (await metrics(broker.env))[purgatory] == 1


async def test_many_series_of_a_metric_form_one_family() -> None:
    async with observed() as (broker, client):
        partitions = 2 * SAMPLES_IN_A_PIECE + 1
        await create(client, "t", partitions=partitions)
        text = (await get(broker.env, "/metrics")).body.decode()
        found = await metrics(broker.env)
    assert text.count("# TYPE kafka_log_log_size gauge") == 1
    assert sum(name == "kafka_log_log_size" for name, _ in found) == partitions
    types = [line for line in text.splitlines() if line.startswith("# TYPE")]
    assert len(types) == len(set(types))


async def test_metrics_without_labels_are_on_the_first_page() -> None:
    async with observed() as (broker, _client):
        found = await metrics(broker.env)
    expected = {f"{one.name}_count" if one.kind == HISTOGRAM else one.name for one in DECLARED if not one.labels}
    assert {name for name in expected if key(name) not in found} == set()


async def test_state_shows_offsets_segments_and_connections() -> None:
    async with observed() as (broker, client):
        await create(client, "t")
        size = await produce(client, "t", records=3)
        topic = (await client.ask(MetadataRequest(topics=None), version=12)).topics[0]
        got = await get(broker.env, "/state")
    assert got.headers["content-type"] == "application/json"
    state = got.json
    (partition,) = state["partitions"]
    assert partition["topic_id"] == uuid_to_text(topic.topic_id)
    assert (partition["topic"], partition["partition"], partition["leader"]) == ("t", 0, 1)
    assert (partition["log_start_offset"], partition["high_watermark"]) == (0, 3)
    assert (partition["log_end_offset"], partition["last_stable_offset"]) == (3, 3)
    assert partition["leader_epoch"] == topic.partitions[0].leader_epoch
    assert partition["segments"] == [{"base_offset": 0, "size_bytes": size, "max_timestamp_ms": 1_002}]
    (connection,) = state["connections"]
    assert connection["client_id"] == 'a "client"\n'
    assert connection["listener"] == "PLAINTEXT"
    assert connection["peer"] == f"{CLIENT_HOST}:{CLIENT_PORT}"
    assert connection["requests"] == 3
    assert state["groups"] == []
    assert state["node"]["state"] == "running"


async def join(client: Client, group_id: str) -> str:
    """Join a group as its only member; return the member id."""
    protocols = [JoinGroupRequestProtocol(name="range", metadata=b"")]
    request = JoinGroupRequest(
        group_id=group_id,
        session_timeout_ms=30_000,
        rebalance_timeout_ms=30_000,
        member_id="",
        protocol_type="tests",
        protocols=protocols,
    )
    answer = await client.ask(request, version=3)
    assert answer.error_code == 0
    return str(answer.member_id)


async def find_coordinator(client: Client, group_id: str) -> None:
    """Wait until a group has a coordinator."""
    while (await client.ask(FindCoordinatorRequest(key=group_id), version=2)).error_code:
        await trio.lowlevel.checkpoint()


async def commit(client: Client, group_id: str, topic: str, offsets: dict[int, int]) -> None:
    partitions = [
        OffsetCommitRequestPartition(partition_index=index, committed_offset=offset, committed_metadata="")
        for index, offset in offsets.items()
    ]
    topics = [OffsetCommitRequestTopic(name=topic, partitions=partitions)]
    answer = await client.ask(OffsetCommitRequest(group_id=group_id, member_id="", topics=topics), version=5)
    assert {partition.error_code for partition in answer.topics[0].partitions} == {0}


async def test_groups_are_shown_with_their_members_and_their_lag() -> None:
    async with observed() as (broker, client):
        await create(client, "t", partitions=3)
        await produce(client, "t", records=5)
        await find_coordinator(client, "g")
        await commit(client, "g", "t", {0: 2, 1: 7})
        member_id = await join(client, "joined")
        found, state = await metrics(broker.env), (await get(broker.env, "/state")).json
        assert (await get(broker.env, "/health")).status == 200
    lag, committed = "kafka_consumergroup_lag", "kafka_consumergroup_current_offset"
    assert {name: value for name, value in found.items() if name[0] in (lag, committed)} == {
        key(committed, consumergroup="g", topic="t", partition="0"): 2,
        key(committed, consumergroup="g", topic="t", partition="1"): 7,
        key(lag, consumergroup="g", topic="t", partition="0"): 3,
        key(lag, consumergroup="g", topic="t", partition="1"): 0,
    }
    assert found[key("kafka_coordinator_group_groupmetadatamanager_numgroups")] == 2
    assert found[key("kafka_consumergroup_members", consumergroup="g", state="Empty")] == 0
    groups = {one["group_id"]: one for one in state["groups"]}
    assert groups["g"]["offsets"] == [
        {"topic": "t", "partition": 0, "committed_offset": 2, "lag": 3},
        {"topic": "t", "partition": 1, "committed_offset": 7, "lag": 0},
    ]
    (member,) = groups["joined"]["members"]
    assert (member["member_id"], member["client_id"]) == (member_id, 'a "client"\n')
    assert groups["joined"]["leader"] == member_id


async def test_transactional_ids_are_shown_with_their_transactions() -> None:
    async with observed() as (broker, client):
        await create(client, "t", partitions=3)
        producer = await init(client, "x")
        await add_partitions(client, "x", *producer, ("t", 0), ("t", 2))
        await init(client, "idle")
        found, state = await metrics(broker.env), (await get(broker.env, "/state")).json
        await end(client, "x", *producer)
        await settled(client, "x")
        later = await metrics(broker.env)
    assert (found[key("kbroker_transactional_ids")], found[key("kbroker_transactions", state="ongoing")]) == (2, 1)
    assert later[key("kbroker_transactions_completed_total", result="commit")] == 1
    assert (
        later[key("kbroker_transactions", state="ongoing")] == later[key("kbroker_transactions", state="prepared")] == 0
    )
    ids = {one["transactional_id"]: one for one in state["transactions"]}
    assert (ids["x"]["state"], ids["x"]["partitions"], ids["idle"]["state"]) == ("Ongoing", {"t": [0, 2]}, "Empty")
    assert (ids["x"]["producer_id"], ids["x"]["producer_epoch"]) == producer


async def test_state_is_json_with_any_number_of_partitions() -> None:
    async with observed() as (broker, client):
        await create(client, "many", partitions=45)
        state = (await get(broker.env, "/state")).json
    assert [one["partition"] for one in state["partitions"]] == list(range(45))


async def test_no_piece_of_state_has_segments_of_many_partitions() -> None:
    """Making a piece blocks the event loop."""
    async with observed() as (broker, client):
        await create(client, "t", partitions=4)
        assert broker.node.broker is not None
        for index in range(4):
            for _ in range(100):
                await produce(client, "t", records=1, index=index)
                broker.node.broker.replicas.partitions["t", index].log.roll(timestamp_ms=0)
        pieces = list(render_state(broker.node))
    assert max(piece.count(b'"base_offset"') for piece in pieces) <= 2 * 101
    assert [one["segment_count"] for one in json.loads(b"".join(pieces))["partitions"]] == [101] * 4


async def test_a_serving_node_is_ready() -> None:
    async with observed() as (broker, _client):
        got = await get(broker.env, "/health")
        assert got.status == 200
        assert got.json["status"] == "ready"
        assert got.json["metadata_offset"] == broker.node.broker.image.offset  # type: ignore[union-attr]
        assert (await get(broker.env, "/health/ready")).json == got.json
        assert (await get(broker.env, "/")).status == 200


class SlowEnv(MemoryEnv):
    """An environment in which every call in a thread takes a second."""

    async def run_blocking(self, function: Callable[[*Arguments], Result], *arguments: *Arguments) -> Result:
        await trio.sleep(1)
        return function(*arguments)


async def test_a_starting_or_stopping_node_is_alive_but_not_ready(autojump_clock: MockClock) -> None:
    env = SlowEnv(SimulatedDisk())
    defaults = {"log.dirs": "/data", "listeners": "PLAINTEXT://broker.example:9092"}
    overrides = [f"{name}={value}" for name, value in HTTP.items()]
    node = Node(env, Settings.load(overrides=overrides, defaults=defaults))
    seen: list[str] = []

    async def look() -> str:
        live, ready = await get(env, "/health/live"), await get(env, "/health")
        assert live.status == 200
        problems = ready.json["problems"]
        assert (ready.status == 200) == (not problems)
        state = (await get(env, "/state")).json
        assert (await metrics(env))[key("kafka_server_kafkaserver_brokerstate")] in (1, 3, 6)
        return f"{state['node']['state']}: {'; '.join(problems)}"

    async with trio.open_nursery() as nursery:

        async def run() -> None:
            await node.run(on_ready=lambda host, port: None)
            nursery.cancel_scope.cancel()

        nursery.start_soon(run)
        await trio.sleep(1.5)
        with suppress(h11.RemoteProtocolError):  # the pages end with the node
            while True:
                seen.append(await look())
                if node.is_serving:
                    node.stop()
                await trio.sleep(0.5)
    assert list(dict.fromkeys(seen)) == [
        "starting: the node is starting: it is loading metadata and logs",
        "starting: the node is starting: it is not registered yet",
        "running: ",
        "stopping: the node is stopping",
    ]


async def test_a_failed_directory_is_reported_until_the_node_ends(autojump_clock: MockClock) -> None:
    disk = SimulatedDisk()
    with pytest.RaisesGroup(Exception, flatten_subgroups=True):
        async with observed(disk) as (broker, client):
            await create(client, "t")
            disk.inject(Fault(error=errno.EIO, name="write", path="*/t-0/*.log"))
            await produce(client, "t", records=1)
            got = await get(broker.env, "/health")
            assert got.status == 503
            assert any("has failed" in problem for problem in got.json["problems"])
            assert (await get(broker.env, "/health/live")).status == 200
            found = await metrics(broker.env)
            assert found[key("kafka_log_logmanager_offlinelogdirectorycount")] == 1
            assert found[key("kafka_server_replicamanager_offlinereplicacount")] == 1
            await trio.sleep_forever()


async def test_without_the_setting_there_are_no_pages() -> None:
    async with memory_broker() as broker:
        with pytest.raises(ConnectionRefusedError):
            await broker.env.connect(*ADDRESS)


def test_a_broker_without_pages_does_not_load_what_they_need() -> None:
    program = "import sys, kbroker.node, kbroker.cli.serve; print({'h11', 'prometheus_client'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, check=True).stdout == b"set()\n"


def _image(partitions: dict[int, PartitionImage]) -> Image:
    return Image(topics_by_id={uuid.UUID(int=9): TopicImage("t", uuid.UUID(int=9), partitions)})


def _partition(*isr: int, leader: int = 1, recovering: int = 0, eligible: tuple[int, ...] = ()) -> PartitionImage:
    return PartitionImage(
        replicas=(1, 2, 3),
        isr=isr,
        leader=leader,
        leader_epoch=0,
        partition_epoch=0,
        leader_recovery_state=recovering,
        eligible_leader_replicas=eligible,
    )


@pytest.mark.parametrize(
    ("before", "after", "counted"),
    [
        (_partition(1, 2, 3), _partition(1, 2), (1, 0, 0)),
        (_partition(1), _partition(1, 2, 3), (0, 1, 0)),
        (_partition(1, 2), _partition(1, 2), (0, 0, 0)),
        (_partition(1, 2, leader=2), _partition(2, leader=2), (0, 0, 0)),
        (_partition(1, 2, leader=2), _partition(1), (1, 0, 0)),
        (_partition(2, leader=-1), _partition(1, recovering=1), (0, 0, 1)),
        (_partition(2, leader=-1), _partition(3, leader=3, recovering=1), (0, 0, 0)),
        (_partition(2, leader=-1, recovering=1), _partition(1, recovering=1), (0, 0, 1)),
        (_partition(1, leader=-1, recovering=1), _partition(1, recovering=1), (0, 0, 0)),
        (_partition(leader=-1, eligible=(1,)), _partition(1), (0, 1, 0)),
        (_partition(2, leader=2), _partition(1, 2), (0, 1, 0)),  # it has joined the ISR before its election
        (None, _partition(1, 2, 3), (0, 0, 0)),
        (_partition(1, 2, 3), None, (0, 0, 0)),
    ],
)
def test_isr_changes_and_unclean_elections_are_counted_on_the_leader(
    before: PartitionImage | None, after: PartitionImage | None, counted: tuple[int, int, int]
) -> None:
    metrics = Metrics()
    images = [_image({} if partition is None else {0: partition}) for partition in (before, after)]
    count_isr_changes(metrics, 1)(images[1], Delta(*images))
    names = ("isr.shrinks", "isr.expands", "unclean.elections")
    assert tuple(metrics.counter(name).value for name in names) == counted


def test_no_metric_is_declared_twice() -> None:
    names = [one.name for one in DECLARED]
    assert len(names) == len(set(names))


async def test_the_use_of_a_quota_is_shown_by_its_client() -> None:
    async with observed() as (broker, client):
        await create(client, "t")
        for quota in ("producer_byte_rate", "consumer_byte_rate", "controller_mutation_rate"):
            entity = [EntityData(entity_type="client-id", entity_name=None)]
            change = AlterClientQuotasRequestEntryData(entity=entity, ops=[OpData(key=quota, value=1, remove=False)])
            await client.ask(AlterClientQuotasRequest(entries=[change], validate_only=False))
        await create(client, "u", partitions=4)
        await produce(client, "t", records=3)
        found = await metrics(broker.env)
    labels = {"user": "", "client_id": 'a "client"\n'}
    assert found[key("kafka_server_produce_byte_rate", **labels)] > 1
    assert found[key("kafka_server_produce_throttle_time", **labels)] > 1_000
    assert found[key("kafka_server_controllermutation_tokens", **labels)] == pytest.approx(7, abs=0.1)
    assert found[key("kafka_server_controllermutation_throttle_time", **labels)] == 0
    assert not [name for name, _ in found if name == "kafka_server_request_request_time"]
