"""Share groups and streams groups, which this broker does not serve.

In a cluster with brokers of Apache Kafka, a partition may contain such groups when this broker becomes its leader.
Their records and offsets stay as they are for the next leader. Each request for such a group is refused, so that no
group of another kind with the same id is stored in the same partition: Kafka's coordinator could not load the
partition then.

Source: GroupMetadataManager and OffsetMetadataManager of Apache Kafka 4.3.1, for requests of the wrong kind.
"""

from __future__ import annotations

from typing import Any, Final

from wire.errors import ErrorCode, KafkaError, Malformed
from wire.messages.heartbeat import HeartbeatRequest
from wire.messages.join_group import JoinGroupRequest
from wire.messages.leave_group import LeaveGroupRequest
from wire.messages.offset_commit import OffsetCommitRequest
from wire.messages.sync_group import SyncGroupRequest
from wire.messages.txn_offset_commit import TxnOffsetCommitRequest

FIRST_VERSION_WITH_GROUP_ID_NOT_FOUND: Final = 9
"""Of OffsetCommit."""

_KINDS: Final = {11: "share", 17: "streams"}
"""The record types that say that a group exists. A key is the type and the group id."""

_CODES: Final = {
    JoinGroupRequest: ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
    SyncGroupRequest: ErrorCode.UNKNOWN_MEMBER_ID,
    HeartbeatRequest: ErrorCode.UNKNOWN_MEMBER_ID,
    LeaveGroupRequest: ErrorCode.UNKNOWN_MEMBER_ID,
    TxnOffsetCommitRequest: ErrorCode.ILLEGAL_GENERATION,
}
"""The codes by request; GROUP_ID_NOT_FOUND for the others."""


class UnservedGroups(dict[str, str]):
    """The groups of other kinds: group id to kind."""

    __slots__ = ()

    def replay(self, key: bytes, value: bytes | None) -> str | None:
        """Apply a record of any type. Returns the id of a group that exists now. Errors: Malformed."""
        kind = _KINDS.get(int.from_bytes(key[:2], "big", signed=True))
        if kind is None:
            return None
        group_id = _text(key[2:])
        if value is None:
            self.pop(group_id, None)
            return None
        self[group_id] = kind
        return group_id

    def refuse(self, group_id: str, request: Any = None, api_version: int = 0) -> None:
        """Raise the error for a request, if the group is not served."""
        kind = self.get(group_id)
        if kind is None:
            return
        code = _CODES.get(type(request), ErrorCode.GROUP_ID_NOT_FOUND)
        if type(request) is OffsetCommitRequest and api_version < FIRST_VERSION_WITH_GROUP_ID_NOT_FOUND:
            code = ErrorCode.ILLEGAL_GENERATION
        raise KafkaError(code, f"{group_id} is a {kind} group, which this broker does not serve")


def _text(body: bytes) -> str:
    length = int.from_bytes(body[:2], "big", signed=True)
    if length < 0 or len(body) < 2 + length:
        raise Malformed("a group id is cut short")
    try:
        return body[2 : 2 + length].decode()
    except UnicodeDecodeError as error:
        raise Malformed(f"a group id is not UTF-8: {error}") from error
