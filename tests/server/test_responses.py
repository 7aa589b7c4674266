"""The error codes of a response that are counted."""

from __future__ import annotations

import pytest

from kbroker.runtime.metrics import Histogram
from kbroker.server.responses import finder
from kbroker.testing.memory_node import memory_broker
from tests.server.serving import heart, serving
from wire.errors import ErrorCode
from wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from wire.messages.heartbeat import HeartbeatResponse
from wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from wire.schema import schema_of


def codes(response: object) -> list[int]:
    api_key = schema_of(type(response)).api_key
    assert api_key is not None
    return list(finder(api_key)(response))


def test_a_top_level_code_counts_unless_it_is_none() -> None:
    assert codes(HeartbeatResponse(error_code=ErrorCode.ILLEGAL_GENERATION)) == [ErrorCode.ILLEGAL_GENERATION]
    assert codes(HeartbeatResponse(error_code=ErrorCode.NONE)) == []


def test_codes_of_partitions_count_one_by_one() -> None:
    answers = [
        PartitionProduceResponse(index=index, error_code=code, base_offset=-1)
        for index, code in enumerate((ErrorCode.NONE, ErrorCode.INVALID_RECORD, ErrorCode.MESSAGE_TOO_LARGE))
    ]
    response = ProduceResponse(responses=[TopicProduceResponse(name="t", partition_responses=answers)])
    assert codes(response) == [ErrorCode.INVALID_RECORD, ErrorCode.MESSAGE_TOO_LARGE]


def test_metadata_counts_codes_of_topics_but_not_of_partitions() -> None:
    partition = MetadataResponsePartition(
        error_code=ErrorCode.LEADER_NOT_AVAILABLE, partition_index=0, leader_id=-1, replica_nodes=[1], isr_nodes=[]
    )
    topics = [
        MetadataResponseTopic(error_code=ErrorCode.NONE, name="t", partitions=[partition]),
        MetadataResponseTopic(error_code=ErrorCode.INVALID_TOPIC_EXCEPTION, name="/", partitions=[]),
    ]
    assert codes(MetadataResponse(brokers=[], topics=topics)) == [ErrorCode.INVALID_TOPIC_EXCEPTION]


@pytest.mark.parametrize("group_id", ["refuse", "disk", "fault"])
async def test_an_error_that_a_handler_raises_is_counted_once(group_id: str) -> None:
    async with serving(in_memory=True, logged_errors=int(group_id != "refuse")) as rig:
        client = await rig.connect()
        await client.send((heart(group_id), 0, 1))
        _, response = await client.receive(HeartbeatResponse, 0)
        name = ErrorCode(response.error_code).name
        assert rig.metrics.tallies["requests.errors_by_code"].counts == {("Heartbeat", name): 1}


async def test_produce_and_fetch_errors_count_once_per_request() -> None:
    async with memory_broker() as broker:
        client = await broker.connect()
        data = [PartitionProduceData(index=0, records=b"")]
        produce = ProduceRequest(acks=1, timeout_ms=1, topic_data=[TopicProduceData(name="none", partition_data=data)])
        await client.ask(produce, version=7)
        asked = [FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1)]
        fetch = FetchRequest(max_wait_ms=0, min_bytes=0, topics=[FetchTopic(topic="none", partitions=asked)])
        await client.ask(fetch, version=11)
        await client.ask(FetchRequest(max_wait_ms=0, min_bytes=0, topics=[]), version=11)
        await client.ask(MetadataRequest(topics=[MetadataRequestTopic(name="/")]), version=9)
        assert broker.node.metrics.tallies["requests.errors_by_code"].counts == {
            ("Produce", "UNKNOWN_TOPIC_OR_PARTITION"): 1,
            ("Fetch", "UNKNOWN_TOPIC_OR_PARTITION"): 1,
            ("Metadata", "INVALID_TOPIC_EXCEPTION"): 1,
        }


async def test_durations_are_measured_also_for_failed_requests(autojump_clock: object) -> None:
    async with serving(in_memory=True) as rig:
        client = await rig.connect()
        await client.send((heart("refuse"), 0, 1), (heart("wait", wait_ms=50), 0, 2))
        await client.receive_heartbeat()
        await client.receive_heartbeat()
        times: Histogram = rig.metrics.histograms["requests.Heartbeat.us"]
        assert sum(times.counts) == 2
        assert 50_000 <= times.total < 51_000
