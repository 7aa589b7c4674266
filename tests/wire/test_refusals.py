from wire.errors import ErrorCode
from wire.messages.alter_client_quotas import AlterClientQuotasRequest, AlterClientQuotasRequestEntryData, OpData
from wire.messages.create_acls import AclCreation, AclCreationResult, CreateAclsRequest, CreateAclsResponse
from wire.messages.describe_client_quotas import EntityData
from wire.messages.describe_quorum import DescribeQuorumRequest
from wire.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
    TopicPartitions,
)
from wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
    ListOffsetsTopicResponse,
)
from wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    ListPartitionReassignmentsTopics,
)
from wire.refusals import refused

CODE = ErrorCode.INVALID_REQUEST


def test_a_result_has_the_name_and_index_of_its_request() -> None:
    asked = ListOffsetsPartition(partition_index=3, current_leader_epoch=7, timestamp=55)
    request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name="a", partitions=[asked])])
    result = ListOffsetsPartitionResponse(partition_index=3, error_code=CODE)
    assert refused(request, CODE) == ListOffsetsResponse(
        topics=[ListOffsetsTopicResponse(name="a", partitions=[result])]
    )


def test_an_index_that_was_asked_for_becomes_a_result() -> None:
    request = ElectLeadersRequest(topic_partitions=[TopicPartitions(topic="a", partitions=[4])], timeout_ms=9)
    result = PartitionResult(partition_id=4, error_code=CODE, error_message="why")
    assert refused(request, CODE, "why") == ElectLeadersResponse(
        error_code=CODE, replica_election_results=[ReplicaElectionResult(topic="a", partition_result=[result])]
    )
    assert refused(ElectLeadersRequest(topic_partitions=None, timeout_ms=9), CODE) == ElectLeadersResponse(
        error_code=CODE, replica_election_results=[]
    )


def test_results_without_a_name_are_as_many_as_asked() -> None:
    entry = AclCreation(
        resource_type=2, resource_name="t", principal="User:x", host="*", operation=3, permission_type=3
    )
    result = AclCreationResult(error_code=CODE, error_message="why")
    assert refused(CreateAclsRequest(creations=[entry, entry]), CODE, "why") == CreateAclsResponse(
        results=[result, result]
    )


def test_a_result_has_the_entity_of_its_request() -> None:
    asked = [EntityData(entity_type="user", entity_name=name) for name in ("u", None)]
    op = OpData(key="request_percentage", value=1.0, remove=False)
    request = AlterClientQuotasRequest(
        entries=[AlterClientQuotasRequestEntryData(entity=asked, ops=[op])], validate_only=False
    )
    (result,) = refused(request, CODE).entries
    assert result.error_code == CODE
    assert [(one.entity_type, one.entity_name) for one in result.entity] == [("user", "u"), ("user", None)]


def test_a_response_without_a_text_has_no_empty_one() -> None:
    # Java's clients show an empty text as it is, and their own one without any.
    assert refused(DescribeQuorumRequest(topics=[]), CODE).error_message is None


def test_a_response_with_a_code_at_the_top_mirrors_nothing() -> None:
    topic = ListPartitionReassignmentsTopics(name="a", partition_indexes=[1])
    request = ListPartitionReassignmentsRequest(topics=[topic], timeout_ms=9)
    assert refused(request, CODE, in_each_result=False) == ListPartitionReassignmentsResponse(
        error_code=CODE, error_message=None, topics=[]
    )
    beat = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
    assert refused(beat, CODE, in_each_result=False) == HeartbeatResponse(error_code=CODE)
