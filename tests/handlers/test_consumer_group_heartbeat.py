"""ConsumerGroupHeartbeat and ConsumerGroupDescribe over a connection, and the feature that enables them."""

from __future__ import annotations

import pytest
import trio

from kbroker.coordinator.consumer.targets import INLINE_ELEMENTS
from kbroker.metadata.image import BROKER_RESOURCE
from kbroker.testing.memory_node import Client
from tests.coordinator.consumer.test_migrating import assignment
from tests.coordinator.world import subscription
from tests.handlers.asking import create_topic
from tests.handlers.groups import find
from wire.errors import ErrorCode
from wire.messages.api_versions import ApiVersionsRequest
from wire.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse
from wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from wire.messages.find_coordinator import FindCoordinatorRequest
from wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from wire.messages.list_groups import ListGroupsRequest
from wire.messages.offset_commit import OffsetCommitRequest, OffsetCommitRequestPartition, OffsetCommitRequestTopic
from wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchRequestTopic
from wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from wire.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest

SAFE_DOWNGRADE = 2


async def join(client: Client, *, version: int = 1, member_id: str = "m") -> ConsumerGroupHeartbeatResponse:
    request = ConsumerGroupHeartbeatRequest(
        group_id="g",
        member_id=member_id,
        member_epoch=0,
        rebalance_timeout_ms=30_000,
        subscribed_topic_names=["t"],
        topic_partitions=[],
    )
    answer: ConsumerGroupHeartbeatResponse = await client.ask(request, version=version)
    return answer


async def create(client: Client, *, partitions: int = 2) -> None:
    topic = CreatableTopic(name="t", num_partitions=partitions, replication_factor=1, assignments=[], configs=[])
    await client.ask(CreateTopicsRequest(topics=[topic], timeout_ms=60_000))
    await client.ask(FindCoordinatorRequest(coordinator_keys=["g"], key_type=0))


@pytest.mark.parametrize("version", [0, 1])
async def test_a_member_joins_and_is_described(client: Client, version: int) -> None:
    await create(client)
    answer = await join(client, version=version)
    assert (answer.error_code, answer.member_id, answer.heartbeat_interval_ms) == (0, "m", 5000)
    assert [one.partitions for one in answer.assignment.topic_partitions] == [[0, 1]]
    described = await client.ask(
        ConsumerGroupDescribeRequest(group_ids=["g", "none"], include_authorized_operations=True), version=version
    )
    group, missing = described.groups
    assert (group.group_state, group.group_epoch, group.assignor_name) == ("Stable", answer.member_epoch, "uniform")
    assert [one.topic_name for one in group.members[0].assignment.topic_partitions] == ["t"]
    assert group.authorized_operations > 0
    assert (missing.error_code, missing.error_message) == (ErrorCode.GROUP_ID_NOT_FOUND, "Group none not found.")
    listed = await client.ask(ListGroupsRequest(states_filter=["stable"], types_filter=["consumer"]))
    assert [(one.group_id, one.group_type) for one in listed.groups] == [("g", "consumer")]


async def test_a_member_of_a_large_group_gets_its_assignment_at_once(client: Client) -> None:
    await create(client, partitions=INLINE_ELEMENTS)
    answer = await join(client)
    assert [one.partitions for one in answer.assignment.topic_partitions] == [list(range(INLINE_ELEMENTS))]


async def test_offsets_need_the_member_epoch(client: Client) -> None:
    await create(client)
    epoch = (await join(client)).member_epoch
    partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=7, committed_metadata="")
    for wrong, code in ((0, ErrorCode.NONE), (1, ErrorCode.STALE_MEMBER_EPOCH)):
        commit = OffsetCommitRequest(
            group_id="g",
            member_id="m",
            generation_id_or_member_epoch=epoch + wrong,
            topics=[OffsetCommitRequestTopic(name="t", partitions=[partition])],
        )
        answer = await client.ask(commit, version=9)
        assert answer.topics[0].partitions[0].error_code == code
        asked = OffsetFetchRequestGroup(
            group_id="g",
            member_id="m",
            member_epoch=epoch + wrong,
            topics=[OffsetFetchRequestTopic(name="t", partition_indexes=[0])],
        )
        fetched = (await client.ask(OffsetFetchRequest(groups=[asked]), version=9)).groups[0]
        assert fetched.error_code == code
        assert bool(fetched.topics) is not bool(wrong)


async def test_without_the_feature_members_get_a_final_error(client: Client) -> None:
    lower = FeatureUpdateKey(feature="group.version", max_version_level=0, upgrade_type=SAFE_DOWNGRADE)
    assert (await client.ask(UpdateFeaturesRequest(feature_updates=[lower]))).error_code == ErrorCode.NONE
    assert (await join(client)).error_code == ErrorCode.UNSUPPORTED_VERSION
    described = await client.ask(ConsumerGroupDescribeRequest(group_ids=["g"], include_authorized_operations=False))
    assert [one.error_code for one in described.groups] == [ErrorCode.UNSUPPORTED_VERSION]
    versions = await client.ask(ApiVersionsRequest(client_software_name="a", client_software_version="1"))
    assert {68, 69} <= {one.api_key for one in versions.api_keys}


async def test_the_assignment_interval_changes_while_the_broker_runs(client: Client) -> None:
    await create(client)
    await join(client)
    for interval_ms, is_assigned in (("15000", False), ("0", True)):
        config = AlterableConfig(name="group.consumer.assignment.interval.ms", config_operation=0, value=interval_ms)
        resource = AlterConfigsResource(resource_type=BROKER_RESOURCE, resource_name="", configs=[config])
        await client.ask(IncrementalAlterConfigsRequest(resources=[resource], validate_only=False))
        epoch = (await join(client, member_id=f"m{interval_ms}")).member_epoch
        described = await client.ask(ConsumerGroupDescribeRequest(group_ids=["g"], include_authorized_operations=False))
        assert (described.groups[0].group_epoch == described.groups[0].assignment_epoch == epoch) == is_assigned


@pytest.mark.parametrize("indexes", [(0, 4_000), (0, 0)], ids=["unknown", "twice"])
async def test_a_wrong_assignment_of_a_classic_leader_does_no_harm(indexes: tuple[int, ...], client: Client) -> None:
    await create_topic(client, "orders")
    await find(client, "g")
    joining = JoinGroupRequest(
        group_id="g",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        member_id="",
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=subscription("orders"))],
    )
    joined = await client.ask(joining, version=3)
    given = SyncGroupRequestAssignment(member_id=joined.member_id, assignment=assignment(*indexes))
    syncing = SyncGroupRequest(
        group_id="g", generation_id=joined.generation_id, member_id=joined.member_id, assignments=[given]
    )
    assert (await client.ask(syncing, version=3)).error_code == ErrorCode.NONE
    entering = ConsumerGroupHeartbeatRequest(
        group_id="g",
        member_id="new",
        member_epoch=0,
        rebalance_timeout_ms=30_000,
        subscribed_topic_names=["orders"],
        topic_partitions=[],
    )
    assert (await client.ask(entering, version=1)).error_code == ErrorCode.NONE
    await trio.sleep(60)
    assert await find(client, "g") == 1, "the coordinator still works"
