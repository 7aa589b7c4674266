"""Expiry of offsets and groups.

    simple consumers (no protocol type)   an offset expires `offsets.retention.minutes` after its commit
    an empty group                        all its offsets expire that long after the group became empty
    a stable group of consumers           an offset expires that long after its commit, unless a member reads its topic
    a group of KIP-848                    an offset expires that long after its commit, unless a member reads its topic
    any other                             nothing expires

An offset that was committed with its own retention (OffsetCommit v2-4) expires after that time, under the same
conditions. A group without members is deleted with its last offset. While a transaction is open, neither the group
nor the offsets that the transaction will replace expire. Offsets of deleted topics are deleted immediately.

Times are wall time, because they are stored and compared after restarts. Expiry pauses after the wall clock jumps ahead
(`kbroker.runtime.cautious_clock`).

Source: OffsetMetadataManager.cleanupExpiredOffsets of Apache Kafka 4.3.1; KIP-211, KIP-496.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import chain
from uuid import UUID

from kbroker.coordinator.consumer.group import ConsumerGroup
from kbroker.coordinator.consumer.records import ConsumerRecord, group_tombstones
from kbroker.coordinator.context import AnyGroup, Context
from kbroker.coordinator.group import EMPTY, STABLE
from kbroker.coordinator.offsets import CommittedOffset
from kbroker.coordinator.records import NO_EXPIRY, GroupRecord, group_tombstone, offset_tombstone

MINUTE_MS = 60_000


def expire(context: Context) -> None:
    """Write tombstones for expired offsets, and for empty groups whose last offset expired."""
    for group in list(context.groups.values()):
        if _expire_offsets(context, group) and group.is_empty:
            context.records += tombstones(group)


def tombstones(group: AnyGroup) -> Iterable[GroupRecord | ConsumerRecord]:
    """The records that delete a group without members."""
    return group_tombstones(group) if isinstance(group, ConsumerGroup) else [group_tombstone(group.group_id)]


def _expire_offsets(context: Context, group: AnyGroup) -> bool:
    """Write tombstones for the group's expired offsets. True if no offset of the group remains."""
    group_id, offsets = group.group_id, context.offsets
    known = offsets.of_group(group_id)
    if not known:
        return not offsets.pending.has_open(group_id)
    if not _may_expire(group):
        return False
    all_expired, pending = True, offsets.pending.places(group_id)
    for topic, partitions in known.items():
        if group.is_subscribed_to(topic):
            all_expired = False
            continue
        for partition, committed in partitions.items():
            if _is_expired(context, group, committed) and (topic, partition) not in pending:
                context.records.append(offset_tombstone(group_id, topic, partition))
                context.counts.offset_expirations += 1
            else:
                all_expired = False
    return all_expired and not offsets.pending.has_open(group_id)


def _may_expire(group: AnyGroup) -> bool:
    if isinstance(group, ConsumerGroup):
        return True
    if group.protocol_type is None or group.state is EMPTY:
        return True
    return group.state is STABLE and group.uses_consumer_protocol() and group.subscribed_topics is not None


def _is_expired(context: Context, group: AnyGroup, committed: CommittedOffset) -> bool:
    if committed.expire_timestamp_ms != NO_EXPIRY:
        return context.aging_timestamp_ms >= committed.expire_timestamp_ms
    base_ms = committed.commit_timestamp_ms
    if isinstance(group, ConsumerGroup):
        pass  # as with simple consumers, also while the group is empty
    elif group.protocol_type is not None and group.state is EMPTY and group.state_timestamp_ms is not None:
        base_ms = group.state_timestamp_ms
    return context.aging_timestamp_ms - base_ms >= context.settings.offsets_retention_minutes * MINUTE_MS


def forget_topics(context: Context, gone: Collection[tuple[UUID, str]]) -> None:
    """Write tombstones for all offsets with these topic ids and names. Offsets of a newer topic with the same name
    remain.
    """
    for group_id, topic, partition, committed in chain(context.offsets.committed(), context.offsets.pending):
        if (committed.topic_id, topic) in gone:
            context.records.append(offset_tombstone(group_id, topic, partition))
