"""Error responses for whole requests: not the coordinator, still loading, or an append failed.

Source: the getErrorResponse of each request, and GroupCoordinatorService, of Apache Kafka 4.3.1.
"""

from __future__ import annotations

from typing import Any, Final

from wire.errors import ErrorCode
from wire.messages.delete_groups import DeleteGroupsRequest
from wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from wire.messages.join_group import JoinGroupRequest, JoinGroupResponse
from wire.messages.offset_commit import OffsetCommitRequest
from wire.messages.sync_group import SyncGroupResponse
from wire.messages.txn_offset_commit import TxnOffsetCommitRequest
from wire.refusals import refused

_CODE_IN_EACH_RESULT: Final = (DeleteGroupsRequest, OffsetCommitRequest, TxnOffsetCommitRequest)
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
    # The transaction coordinator does not answer; transactional clients do not expect the code.
    ErrorCode.NETWORK_EXCEPTION: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.INVALID_FETCH_SIZE: ErrorCode.UNKNOWN_SERVER_ERROR,
}


def refuse(request: Any, code: ErrorCode, api_version: int, message: str = "") -> Any:
    """A response with `code` for the whole request, or for each of its parts if it has no code for the whole. The
    message is used if the response has a field for it.
    """
    if isinstance(request, JoinGroupRequest):
        return in_version(join_error(code), api_version)
    if isinstance(request, HeartbeatRequest) and code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
        return HeartbeatResponse()  # the member cannot be checked while its group is loading
    return refused(request, code, message or None, in_each_result=type(request) in _CODE_IN_EACH_RESULT)
