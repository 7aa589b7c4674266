"""Apply stored records of consumer groups: while a shard is loaded, and after each append.

Records may arrive in any order and without the ones that they depend on, because compaction and tools remove records;
they are then applied as far as they fit.

Source: the replay methods of GroupMetadataManager of Apache Kafka 4.3.1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from kbroker.coordinator.consumer.group import NO_TARGET_EPOCH, ConsumerGroup, ResolvedRegex, as_partitions
from kbroker.coordinator.consumer.member import LEAVE_EPOCH, NO_EPOCHS, STABLE, ConsumerMember
from kbroker.coordinator.consumer.records import ConsumerRecord
from wire.stored import groups as stored


def replay(group: ConsumerGroup, record: ConsumerRecord) -> bool:
    """Apply one record to its group. False if the group no longer exists."""
    _REPLAYS[type(record.key_message)](group, record.key_message, record.value_message)
    is_deleted = type(record.key_message) is stored.ConsumerGroupMetadataKey and record.value_message is None
    return not is_deleted


def _metadata(group: ConsumerGroup, _key: Any, value: stored.ConsumerGroupMetadataValue | None) -> None:
    if value is not None:
        group.group_epoch, group.metadata_hash = value.epoch, value.metadata_hash


def _partition_metadata(group: ConsumerGroup, _key: Any, value: Any | None) -> None:
    group.has_partition_metadata = value is not None


def _member(
    group: ConsumerGroup,
    key: stored.ConsumerGroupMemberMetadataKey,
    value: stored.ConsumerGroupMemberMetadataValue | None,
) -> None:
    known = group.members.get(key.member_id)
    if value is not None:
        group.update_member((known or ConsumerMember(key.member_id)).with_metadata(value))
    elif known is not None:
        group.remove_member(key.member_id)


def _assignment(
    group: ConsumerGroup,
    key: stored.ConsumerGroupCurrentMemberAssignmentKey,
    value: stored.ConsumerGroupCurrentMemberAssignmentValue | None,
) -> None:
    known = group.members.get(key.member_id)
    if value is not None:
        group.update_member((known or ConsumerMember(key.member_id)).with_assignment(value))
    elif known is not None:
        left = known.at_epoch(LEAVE_EPOCH, STABLE, NO_EPOCHS, NO_EPOCHS)
        group.update_member(left._replace(previous_member_epoch=LEAVE_EPOCH))


def _target(
    group: ConsumerGroup,
    key: stored.ConsumerGroupTargetAssignmentMemberKey,
    value: stored.ConsumerGroupTargetAssignmentMemberValue | None,
) -> None:
    if value is None:
        group.target.pop(key.member_id, None)
    else:
        group.target[key.member_id] = as_partitions(value.topic_partitions)


def _target_epoch(
    group: ConsumerGroup, _key: Any, value: stored.ConsumerGroupTargetAssignmentMetadataValue | None
) -> None:
    group.assignment_epoch = NO_TARGET_EPOCH if value is None else value.assignment_epoch
    group.assignment_timestamp_ms = 0 if value is None else value.assignment_timestamp


def _regex(
    group: ConsumerGroup,
    key: stored.ConsumerGroupRegularExpressionKey,
    value: stored.ConsumerGroupRegularExpressionValue | None,
) -> None:
    resolved = None if value is None else ResolvedRegex(frozenset(value.topics), value.version, value.timestamp)
    group.resolve(key.regular_expression, resolved)


_REPLAYS: Final[dict[type, Callable[[ConsumerGroup, Any, Any], None]]] = {
    stored.ConsumerGroupMetadataKey: _metadata,
    stored.ConsumerGroupPartitionMetadataKey: _partition_metadata,
    stored.ConsumerGroupMemberMetadataKey: _member,
    stored.ConsumerGroupCurrentMemberAssignmentKey: _assignment,
    stored.ConsumerGroupTargetAssignmentMemberKey: _target,
    stored.ConsumerGroupTargetAssignmentMetadataKey: _target_epoch,
    stored.ConsumerGroupRegularExpressionKey: _regex,
}
