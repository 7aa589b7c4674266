"""The records of groups in `__consumer_offsets`: keys and values in the versions that Apache Kafka 4.3.1 writes.

A key starts with its record type, a value with its version. All versions can be read; offset keys of Kafka 0.8 are
converted to the current ones. Other types belong to consumer groups (consumer/records.py), or to share and streams
groups, which this coordinator does not serve: it ignores their records.

Source: GroupCoordinatorRecordHelpers, GroupCoordinatorRecordSerde.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from wire.codec import decode
from wire.errors import Malformed
from wire.stored.frame import decode_value, encode_key, encode_value
from wire.stored.groups import (
    GroupMetadataKey,
    GroupMetadataValue,
    LegacyOffsetCommitKey,
    LegacyOffsetCommitValue,
    OffsetCommitKey,
    OffsetCommitValue,
)

OFFSET_COMMIT_VALUE_VERSION: Final = 4
EXPIRING_OFFSET_COMMIT_VALUE_VERSION: Final = 1  # the only version with an expiry time
GROUP_METADATA_VALUE_VERSION: Final = 3
NO_EXPIRY: Final = -1

Key = OffsetCommitKey | GroupMetadataKey
Value = OffsetCommitValue | GroupMetadataValue


class OffsetRecord(NamedTuple):
    """A committed offset, or its tombstone if value_message is None."""

    key_message: OffsetCommitKey
    value_message: OffsetCommitValue | None

    @property
    def key(self) -> bytes:
        """The key as bytes, encoded at each call."""
        return encode_key(self.key_message)

    @property
    def value(self) -> bytes | None:
        """The value as bytes, None for a tombstone; encoded at each call."""
        message = self.value_message
        if message is None:
            return None
        if message.expire_timestamp != NO_EXPIRY:
            return encode_value(message, EXPIRING_OFFSET_COMMIT_VALUE_VERSION)
        return encode_value(message, OFFSET_COMMIT_VALUE_VERSION)


class GroupRecord(NamedTuple):
    """A group at the end of a rebalance, or its tombstone if value_message is None."""

    key_message: GroupMetadataKey
    value_message: GroupMetadataValue | None

    @property
    def key(self) -> bytes:
        """The key as bytes, encoded at each call."""
        return encode_key(self.key_message)

    @property
    def value(self) -> bytes | None:
        """The value as bytes, None for a tombstone; encoded at each call."""
        message = self.value_message
        return None if message is None else encode_value(message, GROUP_METADATA_VALUE_VERSION)


StoredRecord = OffsetRecord | GroupRecord


def offset_tombstone(group_id: str, topic: str, partition: int) -> OffsetRecord:
    """The tombstone of one committed offset."""
    return OffsetRecord(OffsetCommitKey(group=group_id, topic=topic, partition=partition), None)


def group_tombstone(group_id: str) -> GroupRecord:
    """The tombstone of a group; its offsets need their own tombstones."""
    return GroupRecord(GroupMetadataKey(group=group_id), None)


def decode_record(key: bytes, value: bytes | None) -> StoredRecord | None:
    """Decode a record; None if its type does not belong to classic groups.

    Errors: Malformed if the bytes do not decode.
    """
    if len(key) < 2:
        raise Malformed(f"a key of {len(key)} bytes is too short for a record type")
    record_type, body = int.from_bytes(key[:2], "big", signed=True), memoryview(key)[2:]
    if record_type == 1:
        offset_key = decode(OffsetCommitKey, 0, body)
        return OffsetRecord(offset_key, None if value is None else decode_value(OffsetCommitValue, value))
    if record_type == 2:
        group_key = decode(GroupMetadataKey, 0, body)
        return GroupRecord(group_key, None if value is None else _checked(decode_value(GroupMetadataValue, value)))
    if record_type == 0:
        return _from_legacy(body, value)
    return None


def _checked(group: GroupMetadataValue) -> GroupMetadataValue:
    """The group, if its members are consistent. Raises Malformed."""
    instances = [member.group_instance_id for member in group.members if member.group_instance_id is not None]
    if len({member.member_id for member in group.members}) < len(group.members) or len(set(instances)) < len(instances):
        raise Malformed("a group contains a member twice")
    if group.members and group.protocol is None:
        raise Malformed("a group has members but no protocol")
    return group


def _from_legacy(body: memoryview, value: bytes | None) -> OffsetRecord:
    """An offset commit with a key of version 0. Its values have the same versions as those of key version 1."""
    legacy = decode(LegacyOffsetCommitKey, 0, body)
    key = OffsetCommitKey(group=legacy.group, topic=legacy.topic, partition=legacy.partition)
    if value is None:
        return OffsetRecord(key, None)
    committed = decode_value(LegacyOffsetCommitValue, value)
    return OffsetRecord(
        key,
        OffsetCommitValue(
            offset=committed.offset, metadata=committed.metadata, commit_timestamp=committed.commit_timestamp
        ),
    )
