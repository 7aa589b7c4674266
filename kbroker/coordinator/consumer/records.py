"""The stored records of consumer groups, in the versions that Apache Kafka 4.3.1 writes: all are version 0.

Source: GroupCoordinatorRecordHelpers of Apache Kafka 4.3.1.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from kbroker.coordinator.consumer.group import ConsumerGroup, ResolvedRegex
from kbroker.coordinator.consumer.member import ConsumerMember, Partitions, stored_epochs
from wire.codec import decode
from wire.stored.frame import decode_value, encode_key, encode_value
from wire.stored.groups import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupPartitionMetadataKey,
    ConsumerGroupPartitionMetadataValue,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
    TopicPartition,
)

_VERSION: Final = 0

_TYPES: Final[dict[int, tuple[type, type]]] = {
    3: (ConsumerGroupMetadataKey, ConsumerGroupMetadataValue),
    4: (ConsumerGroupPartitionMetadataKey, ConsumerGroupPartitionMetadataValue),
    5: (ConsumerGroupMemberMetadataKey, ConsumerGroupMemberMetadataValue),
    6: (ConsumerGroupTargetAssignmentMetadataKey, ConsumerGroupTargetAssignmentMetadataValue),
    7: (ConsumerGroupTargetAssignmentMemberKey, ConsumerGroupTargetAssignmentMemberValue),
    8: (ConsumerGroupCurrentMemberAssignmentKey, ConsumerGroupCurrentMemberAssignmentValue),
    16: (ConsumerGroupRegularExpressionKey, ConsumerGroupRegularExpressionValue),
}


class ConsumerRecord:
    """A record of a consumer group; a tombstone if value_message is None.

    Shape  key and value are encoded once: the thread that computes a large assignment does it
    """

    __slots__ = ("_key", "_value", "key_message", "value_message")

    def __init__(self, key_message: Any, value_message: Any | None) -> None:
        self.key_message = key_message
        self.value_message = value_message
        self._key: bytes | None = None
        self._value: bytes | None = None

    def __repr__(self) -> str:
        return f"ConsumerRecord({self.key_message}, {self.value_message})"

    @property
    def key(self) -> bytes:
        """The key as bytes."""
        if self._key is None:
            self._key = encode_key(self.key_message)
        return self._key

    @property
    def value(self) -> bytes | None:
        """The value as bytes, None for a tombstone."""
        if self._value is None and self.value_message is not None:
            self._value = encode_value(self.value_message, _VERSION)
        return self._value


def decode_consumer_record(key: bytes, value: bytes | None) -> ConsumerRecord | None:
    """Decode a record; None if its type does not belong to consumer groups. Errors: Malformed."""
    types = _TYPES.get(int.from_bytes(key[:2], "big", signed=True))
    if types is None:
        return None
    key_class, value_class = types
    decoded: Any = decode(key_class, 0, memoryview(key)[2:])
    return ConsumerRecord(decoded, None if value is None else decode_value(value_class, value))


def epoch_record(group_id: str, epoch: int, metadata_hash: int) -> ConsumerRecord:
    """The group epoch, and the hash of the subscribed topics."""
    value = ConsumerGroupMetadataValue(epoch=epoch, metadata_hash=metadata_hash)
    return ConsumerRecord(ConsumerGroupMetadataKey(group_id=group_id), value)


def member_record(group_id: str, member: ConsumerMember) -> ConsumerRecord:
    """What a member reported about itself."""
    key = ConsumerGroupMemberMetadataKey(group_id=group_id, member_id=member.member_id)
    value = ConsumerGroupMemberMetadataValue(
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=sorted(member.subscribed_topic_names),
        subscribed_topic_regex=member.subscribed_topic_regex,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        server_assignor=member.server_assignor,
        classic_member_metadata=member.classic,
    )
    return ConsumerRecord(key, value)


def target_record(group_id: str, member_id: str, partitions: Partitions) -> ConsumerRecord:
    """A member's target assignment."""
    key = ConsumerGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id)
    topics = [TopicPartition(topic_id=topic_id, partitions=sorted(of)) for topic_id, of in partitions.items()]
    return ConsumerRecord(key, ConsumerGroupTargetAssignmentMemberValue(topic_partitions=topics))


def target_epoch_record(group_id: str, epoch: int, timestamp_ms: int) -> ConsumerRecord:
    """The epoch of the target assignment, and when it was computed."""
    key = ConsumerGroupTargetAssignmentMetadataKey(group_id=group_id)
    value = ConsumerGroupTargetAssignmentMetadataValue(assignment_epoch=epoch, assignment_timestamp=timestamp_ms)
    return ConsumerRecord(key, value)


def assignment_record(group_id: str, member: ConsumerMember) -> ConsumerRecord:
    """A member's epochs, and the partitions that it may use."""
    key = ConsumerGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member.member_id)
    value = ConsumerGroupCurrentMemberAssignmentValue(
        member_epoch=member.member_epoch,
        previous_member_epoch=member.previous_member_epoch,
        state=member.state,
        assigned_partitions=stored_epochs(member.assigned),
        partitions_pending_revocation=stored_epochs(member.pending_revocation),
    )
    return ConsumerRecord(key, value)


def regex_record(group_id: str, regex: str, resolved: ResolvedRegex | None) -> ConsumerRecord:
    """The topics of a regular expression, or its tombstone."""
    key = ConsumerGroupRegularExpressionKey(group_id=group_id, regular_expression=regex)
    if resolved is None:
        return ConsumerRecord(key, None)
    value = ConsumerGroupRegularExpressionValue(
        topics=sorted(resolved.topics), version=resolved.version, timestamp=resolved.timestamp_ms
    )
    return ConsumerRecord(key, value)


def partition_metadata_tombstone(group_id: str) -> ConsumerRecord:
    """Removes the topic metadata that Kafka before 4.1 stored; the hash in the epoch record replaces it."""
    return ConsumerRecord(ConsumerGroupPartitionMetadataKey(group_id=group_id), None)


def member_tombstones(group_id: str, member_id: str) -> Iterator[ConsumerRecord]:
    """Remove a member."""
    for key in (
        ConsumerGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member_id),
        ConsumerGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id),
        ConsumerGroupMemberMetadataKey(group_id=group_id, member_id=member_id),
    ):
        yield ConsumerRecord(key, None)


def group_tombstones(group: ConsumerGroup, renamed: dict[str, str] | None = None) -> Iterator[ConsumerRecord]:
    """Remove a group with its members; `renamed` maps members to ids that earlier records of the batch gave them."""
    group_id = group.group_id
    member_ids = [(renamed or {}).get(member_id, member_id) for member_id in group.members]
    for key_class in (ConsumerGroupCurrentMemberAssignmentKey, ConsumerGroupTargetAssignmentMemberKey):
        for member_id in member_ids:
            yield ConsumerRecord(key_class(group_id=group_id, member_id=member_id), None)
    yield ConsumerRecord(ConsumerGroupTargetAssignmentMetadataKey(group_id=group_id), None)
    for member_id in member_ids:
        yield ConsumerRecord(ConsumerGroupMemberMetadataKey(group_id=group_id, member_id=member_id), None)
    for regex in group.resolved:
        yield regex_record(group_id, regex, None)
    yield partition_metadata_tombstone(group_id)
    yield ConsumerRecord(ConsumerGroupMetadataKey(group_id=group_id), None)
