"""Error responses for whole requests: not the coordinator, still loading, or an append failed.

Source: the getErrorResponse of each request, and GroupCoordinatorService, of Apache Kafka 4.3.1.
"""

from __future__ import annotations

from typing import Any, Final

from wire.errors import ErrorCode
from wire.messages.delete_groups import DeletableGroupResult, DeleteGroupsRequest, DeleteGroupsResponse
from wire.messages.describe_groups import DescribedGroup, DescribeGroupsRequest, DescribeGroupsResponse
from wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from wire.messages.join_group import JoinGroupRequest, JoinGroupResponse
from wire.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse
from wire.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from wire.messages.offset_delete import OffsetDeleteRequest, OffsetDeleteResponse
from wire.messages.sync_group import SyncGroupRequest, SyncGroupResponse

PROTOCOL_NAME_IS_NULLABLE: Final = 7  # JoinGroup's version


def join_error(code: ErrorCode, member_id: str = "") -> JoinGroupResponse:
    """A JoinGroup response with an error."""
    return JoinGroupResponse(error_code=code, protocol_name=None, leader="", member_id=member_id, members=[])


def in_version(response: JoinGroupResponse, api_version: int) -> JoinGroupResponse:
    """Adapt the response to the version: before v7 the protocol name cannot be null and is empty instead."""
    if api_version < PROTOCOL_NAME_IS_NULLABLE and response.protocol_name is None:
        response.protocol_name = ""
    return response


def sync_error(code: ErrorCode) -> SyncGroupResponse:
    """A SyncGroup response with an error."""
    return SyncGroupResponse(error_code=code, assignment=b"")


def response_code(code: ErrorCode) -> ErrorCode:
    """The error code that a client gets when a record of its group cannot be appended for this reason."""
    return _RESPONSE_CODES.get(code, code)


_RESPONSE_CODES: Final = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.INVALID_FETCH_SIZE: ErrorCode.UNKNOWN_SERVER_ERROR,
}


def refuse(request: Any, code: ErrorCode, api_version: int) -> Any:
    """A response with `code` for every part of the request. Supports all group requests but OffsetFetch."""
    if isinstance(request, JoinGroupRequest):
        return in_version(join_error(code), api_version)
    if isinstance(request, SyncGroupRequest):
        return sync_error(code)
    if isinstance(request, HeartbeatRequest):
        # The member cannot be checked while its group is loading; accept the heartbeat.
        loading = code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        return HeartbeatResponse(error_code=ErrorCode.NONE if loading else code)
    if isinstance(request, OffsetCommitRequest):
        return refuse_offset_commit(request, code)
    if isinstance(request, DeleteGroupsRequest):
        return DeleteGroupsResponse(
            results=[DeletableGroupResult(group_id=name, error_code=code) for name in request.groups_names]
        )
    if isinstance(request, DescribeGroupsRequest):
        return DescribeGroupsResponse(groups=[refuse_described(name, code) for name in request.groups])
    if isinstance(request, ListGroupsRequest):
        return ListGroupsResponse(error_code=code, groups=[])
    if isinstance(request, OffsetDeleteRequest):
        return OffsetDeleteResponse(error_code=code, topics=[])
    assert isinstance(request, LeaveGroupRequest), f"{type(request).__name__} is not about groups"
    return LeaveGroupResponse(error_code=code)


def refuse_offset_commit(request: OffsetCommitRequest, code: ErrorCode) -> OffsetCommitResponse:
    """An OffsetCommit response with the code for each partition."""
    return OffsetCommitResponse(
        topics=[
            OffsetCommitResponseTopic(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=[
                    OffsetCommitResponsePartition(partition_index=partition.partition_index, error_code=code)
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def refuse_described(group_id: str, code: ErrorCode) -> DescribedGroup:
    """A described group that has only an error code."""
    return DescribedGroup(
        error_code=code, group_id=group_id, group_state="", protocol_type="", protocol_data="", members=[]
    )
