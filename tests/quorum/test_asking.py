"""The controller's APIs for brokers and tools: registration, heartbeats, decisions, envelopes, what it describes."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from kbroker import quorum
from kbroker.client.streaming import Connection
from kbroker.quorum.envelope import FORWARDABLE
from tests.quorum.site import CLUSTER_ID, HOST, NODE_ID, PORT, Site, creation, registration
from tests.quorum.test_fetch import fetch
from wire.errors import ErrorCode
from wire.framing import decode_response, encode_request_frame
from wire.messages.allocate_producer_ids import AllocateProducerIdsRequest
from wire.messages.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionRequestPartition,
    AlterPartitionRequestTopic,
    BrokerState,
)
from wire.messages.api_versions import ApiVersionsRequest
from wire.messages.broker_heartbeat import BrokerHeartbeatRequest
from wire.messages.create_topics import CreateTopicsResponse
from wire.messages.describe_cluster import DescribeClusterRequest
from wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from wire.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumRequestPartitionData,
    DescribeQuorumRequestTopicData,
)
from wire.messages.elect_leaders import ElectLeadersRequest
from wire.messages.envelope import EnvelopeRequest, EnvelopeResponse
from wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from wire.messages.list_partition_reassignments import ListPartitionReassignmentsRequest
from wire.messages.unregister_broker import UnregisterBrokerRequest
from wire.stored.frame import encode_value
from wire.stored.principal import DefaultPrincipalData

KAFKAS = {
    1: (4, 18), 17: (0, 1), 18: (0, 4), 19: (2, 7), 20: (1, 6), 29: (1, 3), 30: (1, 3), 31: (1, 3), 32: (1, 4),
    33: (0, 2), 36: (0, 2), 37: (0, 3), 43: (0, 2), 44: (0, 1), 45: (0, 1), 46: (0, 0), 49: (0, 1), 51: (0, 0),
    55: (0, 2), 56: (2, 3), 57: (0, 2), 58: (0, 0), 59: (0, 1), 60: (0, 2), 62: (0, 4),
    63: (0, 2), 64: (0, 0), 67: (0, 0), 70: (0, 0),
    73: (0, 0),
}  # fmt: skip
"""The versions of these APIs on a controller of Apache Kafka 4.3.1 (protocol.md 4.8)."""


async def test_the_listener_advertises_kafkas_versions(client: Connection) -> None:
    answer = await client.ask(ApiVersionsRequest(client_software_name="test", client_software_version="1"))
    found = {one.api_key: (one.min_version, one.max_version) for one in answer.api_keys}
    # Cordoned directories need metadata.version 30.
    assert found == {**KAFKAS, 17: (0, 1), 36: (0, 2), 51: (0, 0), 63: (0, 1)}
    assert sorted(found) == sorted(quorum.discover())


async def test_a_broker_registers_and_is_unfenced_when_it_has_caught_up(site: Site, client: Connection) -> None:
    answer = await client.ask(registration(1))
    assert answer.error_code == 0
    assert site.image.brokers[1].epoch == answer.broker_epoch
    site.epochs[1] = answer.broker_epoch
    heartbeat = await site.beat(client, 1)
    assert (heartbeat.is_caught_up, heartbeat.is_fenced, heartbeat.should_shut_down) == (True, False, False)
    assert site.image.brokers[1].active


async def test_d12_a_live_brokers_id_is_refused(site: Site, client: Connection) -> None:
    await site.register(client, 1)
    answer = await client.ask(registration(1, incarnation=2))
    assert answer.error_code == ErrorCode.DUPLICATE_BROKER_REGISTRATION
    other = registration(2)
    other.cluster_id = "another"
    assert (await client.ask(other)).error_code == ErrorCode.INCONSISTENT_CLUSTER_ID


async def test_c7_requests_with_a_stale_epoch_are_refused(site: Site, client: Connection) -> None:
    epoch = await site.register(client, 1) - 1
    requests: list[Any] = [
        BrokerHeartbeatRequest(
            broker_id=1, broker_epoch=epoch, current_metadata_offset=0, want_fence=False, want_shut_down=False
        ),
        AllocateProducerIdsRequest(broker_id=1, broker_epoch=epoch),
        AlterPartitionRequest(broker_id=1, broker_epoch=epoch, topics=[]),
    ]
    for request in requests:
        assert (await client.ask(request)).error_code == ErrorCode.STALE_BROKER_EPOCH


async def test_a_leader_changes_its_isr_and_is_stopped_cleanly(site: Site, client: Connection) -> None:
    for broker in (1, 2):
        await site.register(client, broker)
    assert (await client.ask(creation("a", {0: [1, 2]}))).topics[0].error_code == 0
    topic = site.image.topics_by_name["a"]
    asked = AlterPartitionRequestPartition(
        partition_index=0, leader_epoch=0, partition_epoch=0, new_isr_with_epochs=[BrokerState(broker_id=1)]
    )
    asked_topic = AlterPartitionRequestTopic(topic_id=topic.id, partitions=[asked])
    request = AlterPartitionRequest(broker_id=1, broker_epoch=site.epochs[1], topics=[asked_topic])
    (altered,) = (await client.ask(request)).topics[0].partitions
    assert (altered.error_code, altered.isr, altered.partition_epoch) == (0, [1], 1)
    assert not (await site.beat(client, 1, shut_down=True)).should_shut_down
    assert not (await site.beat(client, 1, shut_down=True)).should_shut_down, "broker 2 does not know it yet"
    await site.beat(client, 2)
    assert (await site.beat(client, 1, shut_down=True)).should_shut_down
    partition = site.image.partition("a", 0)
    assert partition is not None
    assert (partition.leader, partition.isr) == (-1, (1,))


async def test_blocks_of_producer_ids_differ(site: Site, client: Connection) -> None:
    epoch = await site.register(client, 1)
    request = AllocateProducerIdsRequest(broker_id=1, broker_epoch=epoch)
    blocks = [await client.ask(request) for _ in range(2)]
    assert [(block.producer_id_start, block.producer_id_len) for block in blocks] == [(0, 1000), (1000, 1000)]


async def test_tools_reach_the_controller_directly(site: Site, client: Connection) -> None:
    await site.register(client, 1)
    await client.ask(creation("a", {0: [1]}))
    config = AlterableConfig(name="retention.ms", config_operation=0, value="5")
    resource = AlterConfigsResource(resource_type=2, resource_name="a", configs=[config])
    answer = await client.ask(IncrementalAlterConfigsRequest(resources=[resource], validate_only=False))
    assert answer.responses[0].error_code == 0
    assert site.image.topic_configs("a") == {"retention.ms": "5"}
    described = await client.ask(
        DescribeConfigsRequest(
            resources=[
                DescribeConfigsResource(resource_type=2, resource_name="a", configuration_keys=["retention.ms"])
            ],
            include_synonyms=False,
            include_documentation=False,
        )
    )
    assert [config.value for config in described.results[0].configs] == ["5"]
    elected = await client.ask(ElectLeadersRequest(election_type=0, topic_partitions=None, timeout_ms=1))
    assert elected.error_code == 0
    listed = await client.ask(ListPartitionReassignmentsRequest(timeout_ms=1, topics=None))
    assert (listed.error_code, listed.topics) == (0, [])
    assert (await client.ask(UnregisterBrokerRequest(broker_id=1))).error_code == 0
    assert not site.image.brokers


@pytest.mark.parametrize("name", ["", str(NODE_ID)])
async def test_a_controller_describes_its_changed_settings(client: Connection, name: str) -> None:
    change = AlterableConfig(name="unclean.leader.election.enable", config_operation=0, value="true")
    resource = AlterConfigsResource(resource_type=4, resource_name=name, configs=[change])
    answer = await client.ask(IncrementalAlterConfigsRequest(resources=[resource], validate_only=False))
    assert answer.responses[0].error_code == 0
    asked = DescribeConfigsResource(resource_type=4, resource_name=name, configuration_keys=[change.name])
    request = DescribeConfigsRequest(resources=[asked], include_synonyms=False, include_documentation=False)
    (described,) = (await client.ask(request)).results
    assert [config.value for config in described.configs] == ["true"]


async def test_describe_cluster_names_the_controllers(client: Connection) -> None:
    asked = DescribeClusterRequest(include_cluster_authorized_operations=False, endpoint_type=2)
    answer = await client.ask(asked)
    assert (answer.error_code, answer.endpoint_type, answer.cluster_id) == (0, 2, CLUSTER_ID)
    assert answer.controller_id == NODE_ID
    assert [(one.broker_id, one.host, one.port) for one in answer.brokers] == [(NODE_ID, HOST, PORT)]


@pytest.mark.parametrize(
    ("wanted", "code"),
    [(1, ErrorCode.MISMATCHED_ENDPOINT_TYPE), (3, ErrorCode.UNSUPPORTED_ENDPOINT_TYPE)],
)
async def test_describe_cluster_refuses_other_endpoint_types(client: Connection, wanted: int, code: int) -> None:
    asked = DescribeClusterRequest(include_cluster_authorized_operations=False, endpoint_type=wanted)
    answer = await client.ask(asked)
    assert answer.error_code == code
    if code == ErrorCode.MISMATCHED_ENDPOINT_TYPE:
        assert answer.error_message == (
            "The request was sent to an endpoint of type CONTROLLER, but we wanted an endpoint of type BROKER"
        )


async def test_describe_quorum_shows_observers_and_listeners(site: Site, client: Connection) -> None:
    await fetch(client, site.image.end_offset, 1)
    topics = [
        DescribeQuorumRequestTopicData(
            topic_name="__cluster_metadata", partitions=[DescribeQuorumRequestPartitionData(partition_index=0)]
        )
    ]
    answer = await client.ask(DescribeQuorumRequest(topics=topics))
    partition = answer.topics[0].partitions[0]
    assert [(one.replica_id, one.log_end_offset) for one in partition.observers] == [(7, site.image.end_offset)]
    (node,) = answer.nodes
    assert (node.node_id, [(one.name, one.port) for one in node.listeners]) == (NODE_ID, [("CONTROLLER", PORT)])


# -- Envelope


PRINCIPAL = encode_value(DefaultPrincipalData(type="User", name="alice", token_authenticated=False), 0)


def wrapped(request: object, version: int, **more: Any) -> EnvelopeRequest:
    frame = b"".join(encode_request_frame(request, version, correlation_id=77, client_id="tool"))  # type: ignore[arg-type]
    return EnvelopeRequest(
        request_data=more.get("data", frame[4:]),
        request_principal=more.get("principal", PRINCIPAL),
        client_host_address=more.get("address", bytes(4)),
    )


async def test_a_forwarded_request_is_answered_in_its_own_version(site: Site, client: Connection) -> None:
    await site.register(client, 1)
    for version in (2, 7):
        answer = await client.ask(wrapped(creation(f"v{version}", {0: [1]}), version))
        assert isinstance(answer, EnvelopeResponse)
        assert answer.error_code == 0
        assert answer.response_data is not None
        correlation_id, inner = decode_response(CreateTopicsResponse, version, answer.response_data)
        assert correlation_id == 77
        assert (inner.topics[0].name, inner.topics[0].error_code) == (f"v{version}", 0)
    assert list(site.image.topics_by_name) == ["v2", "v7"]


async def test_a_failed_forwarded_request_keeps_the_error_inside(site: Site, client: Connection) -> None:
    answer = await client.ask(wrapped(creation("a", {0: [9]}), 7))
    assert answer.error_code == 0
    _, inner = decode_response(CreateTopicsResponse, 7, answer.response_data)
    assert inner.topics[0].error_code == ErrorCode.INVALID_REPLICA_ASSIGNMENT


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ({"address": bytes(5)}, ErrorCode.INVALID_REQUEST),
        ({"principal": None}, ErrorCode.PRINCIPAL_DESERIALIZATION_FAILURE),
        ({"principal": b"\0\x09"}, ErrorCode.PRINCIPAL_DESERIALIZATION_FAILURE),
        ({"data": b"\0"}, ErrorCode.INVALID_REQUEST),
        ({"data": bytes.fromhex("0013 0007 0000004d ffff 00")}, ErrorCode.INVALID_REQUEST),
        ({"data": bytes.fromhex("0013 0008 0000004d ffff 00")}, ErrorCode.UNSUPPORTED_VERSION),
        ({"data": bytes.fromhex("003a 0000 0000004d ffff 00")}, ErrorCode.INVALID_REQUEST),
    ],
)
async def test_an_envelope_that_cannot_be_opened_fails_alone(
    client: Connection, more: dict[str, Any], code: ErrorCode
) -> None:
    answer = await client.ask(wrapped(creation("a", {}), 7, **more))
    assert (answer.error_code, answer.response_data) == (code, None)
    assert (await client.ask(DescribeClusterRequest(include_cluster_authorized_operations=False))).endpoint_type == 1


async def test_what_brokers_ask_for_themselves_is_not_forwarded(site: Site, client: Connection) -> None:
    answer = await client.ask(wrapped(registration(1), 4))
    assert answer.error_code == ErrorCode.INVALID_REQUEST
    assert not site.image.brokers
    assert not FORWARDABLE & {1, 56, 58, 59, 62, 63, 67, 70, 73}


async def test_no_other_process_is_the_controllers_own_broker(site: Site, client: Connection) -> None:
    await site.register(client, NODE_ID)
    assert site.controller.sessions.own_id is None
    assert site.image.controllers[NODE_ID].incarnation_id == UUID(int=1), "registered by the controller itself"
