"""Administration other than topics and settings: directories, elections, features, producers, access control."""

import errno
from typing import Any

import pytest

from kbroker.client.streaming import ConnectionClosed
from kbroker.handlers import discover
from kbroker.node import NodeFailed
from kbroker.testing.disk import Fault
from kbroker.testing.memory_node import Client, MemoryBroker, memory_broker
from tests.handlers.asking import ONE, batch, create_topic, fill, new_producer, produce
from wire.errors import ErrorCode
from wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from wire.messages.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from wire.messages.api_versions import ApiVersionsRequest
from wire.messages.create_acls import AclCreation, CreateAclsRequest
from wire.messages.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from wire.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from wire.messages.describe_acls import DescribeAclsRequest
from wire.messages.describe_cluster import DescribeClusterRequest
from wire.messages.describe_log_dirs import DescribableLogDirTopic, DescribeLogDirsRequest, DescribeLogDirsResult
from wire.messages.describe_producers import DescribeProducersRequest, TopicRequest
from wire.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from wire.messages.list_partition_reassignments import ListPartitionReassignmentsRequest
from wire.messages.metadata import MetadataRequest
from wire.messages.unregister_broker import UnregisterBrokerRequest
from wire.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest


async def directory(client: Client, *, version: int = 5, **partitions: list[int]) -> DescribeLogDirsResult:
    """The description of the only directory, with the given partitions or all."""
    topics = [DescribableLogDirTopic(topic=name, partitions=indexes) for name, indexes in partitions.items()]
    answer = await client.ask(DescribeLogDirsRequest(topics=topics or None), version=version)
    (found,) = answer.results
    assert isinstance(found, DescribeLogDirsResult)
    return found


@pytest.mark.parametrize("version", range(1, 6))
async def test_a_directory_lists_its_partitions_with_their_sizes(client: Client, version: int) -> None:
    await create_topic(client, "a", partitions=2)
    await create_topic(client, "b")
    await fill(client, "a", 3, partition=1)
    found = await directory(client, version=version)
    assert (found.error_code, found.log_dir) == (0, "/data")
    sizes = {
        (topic.name, one.partition_index): one.partition_size for topic in found.topics for one in topic.partitions
    }
    assert sizes == {("a", 0): 0, ("a", 1): 3 * ONE, ("b", 0): 0}
    assert not any(one.offset_lag or one.is_future_key for topic in found.topics for one in topic.partitions)
    assert (found.total_bytes >= found.usable_bytes > 0) == (version >= 4)
    some = await directory(client, version=version, a=[1, 9], absent=[0])
    assert [(topic.name, [one.partition_index for one in topic.partitions]) for topic in some.topics] == [("a", [1])]


@pytest.mark.parametrize("version", [1, 2])
async def test_a_replica_can_only_be_moved_to_its_own_directory(client: Client, version: int) -> None:
    await create_topic(client, "a", partitions=2)

    def wanted(path: str, topic: str, *partitions: int) -> AlterReplicaLogDir:
        return AlterReplicaLogDir(path=path, topics=[AlterReplicaLogDirTopic(name=topic, partitions=list(partitions))])

    request = AlterReplicaLogDirsRequest(
        dirs=[wanted("/data", "a", 0, 1, 7), wanted("/data", "absent", 0), wanted("/elsewhere", "a", 1)]
    )
    answer = await client.ask(request, version=version)
    codes = {
        (topic.topic_name, one.partition_index): one.error_code for topic in answer.results for one in topic.partitions
    }
    assert codes == {
        ("a", 0): ErrorCode.NONE,
        ("a", 1): ErrorCode.LOG_DIR_NOT_FOUND,
        ("a", 7): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ("absent", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }


async def test_a_directory_has_the_space_of_its_disk() -> None:
    async with memory_broker(settings={"kbroker.min.free.bytes": 0}) as broker:
        broker.disk.capacity_bytes = 10_000_000
        client = await broker.connect()
        await create_topic(client, "t")
        before = await directory(client)
        assert before.total_bytes == 10_000_000
        await produce(client, "t", batch(b"x" * 500_000))
        after = await directory(client)
        assert before.usable_bytes - after.usable_bytes >= 500_000


async def test_d8_a_directory_that_has_failed_is_described_as_offline() -> None:
    with pytest.RaisesGroup(NodeFailed, flatten_subgroups=True):
        async with memory_broker() as broker:
            client = await broker.connect()
            await create_topic(client, "t")
            broker.disk.inject(Fault(errno.EIO, name="write", path="*/t-0/*.log"))
            assert (await produce(client, "t", batch(b"v"))).error_code == ErrorCode.KAFKA_STORAGE_ERROR
            found = await directory(client)
            assert (found.error_code, found.topics) == (ErrorCode.KAFKA_STORAGE_ERROR, [])


@pytest.mark.parametrize("version", range(3))
async def test_a_single_broker_needs_no_election(client: Client, version: int) -> None:
    await create_topic(client, "t")
    asked = [TopicPartitions(topic="t", partitions=[0, 1])]
    answer = await client.ask(ElectLeadersRequest(topic_partitions=asked), version=version)
    (result,) = answer.replica_election_results
    codes = [one.error_code for one in result.partition_result]
    assert codes == [ErrorCode.ELECTION_NOT_NEEDED, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    everything = await client.ask(ElectLeadersRequest(topic_partitions=None), version=version)
    assert [(one.topic, one.partition_result) for one in everything.replica_election_results] == [("t", [])]


async def test_replicas_cannot_be_reassigned_and_no_reassignment_is_listed(client: Client) -> None:
    await create_topic(client, "t")
    for replicas, code in (([1], 0), ([1, 2], ErrorCode.INVALID_REPLICA_ASSIGNMENT)):
        partition = ReassignablePartition(partition_index=0, replicas=replicas)
        request = AlterPartitionReassignmentsRequest(topics=[ReassignableTopic(name="t", partitions=[partition])])
        answer = await client.ask(request)
        assert answer.responses[0].partitions[0].error_code == code
    assert (await client.ask(ListPartitionReassignmentsRequest(topics=None))).topics == []


async def test_the_producers_of_a_partition_are_described(client: Client) -> None:
    await create_topic(client, "t")
    producer = await new_producer(client)
    for sequence in range(2):
        records = batch(b"v", producer_id=producer, producer_epoch=3, base_sequence=sequence)
        assert (await produce(client, "t", records)).error_code == 0
    await produce(client, "t", batch(b"of nobody"))
    asked = [TopicRequest(name="t", partition_indexes=[0, 9]), TopicRequest(name="absent", partition_indexes=[0])]
    answer = await client.ask(DescribeProducersRequest(topics=asked))
    known, gone = answer.topics[0].partitions
    (one,) = known.active_producers
    assert (one.producer_id, one.producer_epoch, one.last_sequence) == (producer, 3, 1)
    assert (one.coordinator_epoch, one.current_txn_start_offset) == (-1, -1)
    assert gone.error_code == answer.topics[1].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_the_only_broker_cannot_be_unregistered(client: Client) -> None:
    answer = await client.ask(UnregisterBrokerRequest(broker_id=1))
    assert (answer.error_code, bool(answer.error_message)) == (ErrorCode.INVALID_REQUEST, True)
    absent = await client.ask(UnregisterBrokerRequest(broker_id=77))
    assert absent.error_code == ErrorCode.BROKER_ID_NOT_REGISTERED
    assert [
        one.broker_id
        for one in (await client.ask(DescribeClusterRequest(include_cluster_authorized_operations=False))).brokers
    ] == [1]


@pytest.mark.parametrize("version", range(3))
async def test_an_unimplemented_feature_cannot_be_raised(client: Client, version: int) -> None:
    update = FeatureUpdateKey(feature="metadata.version", max_version_level=31)
    answer = await client.ask(UpdateFeaturesRequest(feature_updates=[update]), version=version)
    assert answer.error_code == ErrorCode.INVALID_UPDATE_VERSION
    assert "only supports versions 7-30" in answer.error_message
    versions = await client.ask(ApiVersionsRequest(client_software_name="t", client_software_version="1"))
    levels = {one.name: one.max_version_level for one in versions.finalized_features}
    assert levels == {"metadata.version": 21, "group.version": 1}


async def test_a_lowered_feature_is_advertised_and_survives_a_restart() -> None:
    async with memory_broker() as broker:
        client = await broker.connect()
        update = FeatureUpdateKey(feature="metadata.version", max_version_level=20, upgrade_type=2)
        assert (await client.ask(UpdateFeaturesRequest(feature_updates=[update]))).error_code == 0
    async with memory_broker(broker.disk) as broker:
        client = await broker.connect()
        versions = await client.ask(ApiVersionsRequest(client_software_name="t", client_software_version="1"))
        levels = {one.name: one.max_version_level for one in versions.finalized_features}
        assert levels == {"metadata.version": 20, "group.version": 1}


@pytest.mark.parametrize("version", [1, 2, 3])
async def test_access_control_is_disabled_without_an_authorizer(client: Client, version: int) -> None:
    kinds: dict[str, Any] = {"operation": 3, "permission_type": 3}
    names: dict[str, Any] = {
        "principal_filter": None,
        "host_filter": None,
        "resource_name_filter": None,
        "resource_type_filter": 2,
    }
    described = await client.ask(DescribeAclsRequest(**names, **kinds), version=version)
    entry = AclCreation(resource_type=2, resource_name="t", principal="User:x", host="*", **kinds)
    created = await client.ask(CreateAclsRequest(creations=[entry]), version=version)
    deleted = await client.ask(DeleteAclsRequest(filters=[DeleteAclsFilter(**names, **kinds)]), version=version)
    codes = [described.error_code, created.results[0].error_code, deleted.filter_results[0].error_code]
    assert codes == [ErrorCode.SECURITY_DISABLED] * 3


async def test_access_control_of_an_unknown_kind_closes_the_connection(broker: MemoryBroker) -> None:
    names: dict[str, Any] = {"principal_filter": None, "host_filter": None, "resource_name_filter": None}
    names["resource_type_filter"] = 2
    kinds: dict[str, Any] = {"operation": 0, "permission_type": 3}
    for request in (
        DescribeAclsRequest(**names, **kinds),
        DeleteAclsRequest(filters=[DeleteAclsFilter(**names, **kinds)]),
        CreateAclsRequest(creations=[AclCreation(resource_type=2, resource_name="t", principal="", host="", **kinds)]),
    ):
        client = await broker.connect()
        with pytest.raises(ConnectionClosed):
            await client.ask(request)


@pytest.mark.parametrize("version", range(4))
async def test_partitions_are_added_with_the_requested_assignment_or_refused(client: Client, version: int) -> None:
    await create_topic(client, "t")

    async def grow(count: int, assignments: list[list[int]] | None, *, validate: bool = False) -> int:
        chosen = None if assignments is None else [CreatePartitionsAssignment(broker_ids=one) for one in assignments]
        topics = [CreatePartitionsTopic(name="t", count=count, assignments=chosen)]
        request = CreatePartitionsRequest(topics=topics, timeout_ms=1000, validate_only=validate)
        return int((await client.ask(request, version=version)).results[0].error_code)

    async def count() -> int:
        return len((await client.ask(MetadataRequest(topics=None), version=12)).topics[0].partitions)

    assert await grow(3, [[1], [1]], validate=True) == 0
    assert await grow(3, [[1]]) == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert await grow(2, [[7]]) == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert await grow(1, None, validate=True) == ErrorCode.INVALID_PARTITIONS
    assert await count() == 1
    assert await grow(3, [[1], [1]]) == 0
    assert await count() == 3
    assert (await produce(client, "t", batch(b"v"), partition=2)).error_code == 0


def test_apis_that_one_broker_cannot_serve_are_not_advertised() -> None:
    """Changes of user credentials and delegation tokens are not implemented."""
    assert not {38, 39, 40, 41} & set(discover())
