"""Committed offsets of all groups of a shard.

They are stored separately from the groups, as their records are: a group can be removed and created again while its
offsets remain. Offsets that were committed in a transaction are pending until the transaction's marker arrives
(pending_offsets.py).

Source: OffsetMetadataManager of Apache Kafka 4.3.1.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import Final, NamedTuple
from uuid import UUID

from kbroker.coordinator.pending_offsets import PendingOffsets
from kbroker.coordinator.records import NO_EXPIRY
from wire.stored.groups import OffsetCommitKey, OffsetCommitValue
from wire.types import ZERO_UUID

OFFSETS_AT_ONCE: Final = 500
"""A transaction with more offsets takes effect in steps, so that it does not block the event loop."""


class CommittedOffset(NamedTuple):
    """One committed offset.

    Units   offset and record_offset count records, the latter in `__consumer_offsets` (-1: unknown); timestamps are
            wall time in ms; expire_timestamp_ms is -1 if the broker's retention applies; topic_id is all zero if
            unknown
    """

    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp_ms: int
    expire_timestamp_ms: int = NO_EXPIRY
    topic_id: UUID = ZERO_UUID
    record_offset: int = -1

    def is_of(self, topic_id: UUID) -> bool:
        """Whether it was committed for this topic, not for an earlier topic of the same name. Unknown ids match."""
        return self.topic_id == topic_id or ZERO_UUID in (self.topic_id, topic_id)


PartitionOffsets = dict[int, CommittedOffset]
TopicOffsets = dict[str, PartitionOffsets]


class Offsets:
    """Offsets by group, topic and partition. Groups without offsets have no entry; pending ones are not included."""

    __slots__ = ("_by_group", "_ended", "count", "pending")

    def __init__(self) -> None:
        self._by_group: dict[str, TopicOffsets] = {}
        self.pending: PendingOffsets[CommittedOffset] = PendingOffsets()
        self._ended: deque[tuple[Iterator[tuple[str, str, int, CommittedOffset]], bool]] = deque()
        self.count = 0

    def of_group(self, group_id: str) -> TopicOffsets:
        """All offsets of a group. Read-only."""
        return self._by_group.get(group_id, {})

    def find(self, group_id: str, topic: str, partition: int) -> CommittedOffset | None:
        """One offset; None if none is committed."""
        return self._by_group.get(group_id, {}).get(topic, {}).get(partition)

    def replay(
        self, key: OffsetCommitKey, value: OffsetCommitValue | None, *, record_offset: int, producer_id: int
    ) -> None:
        """Apply a record. value None is a tombstone; producer_id -1 means outside of a transaction."""
        if value is None:
            self._remove(key.group, key.topic, key.partition)
            self.pending.remove(key.group, key.topic, key.partition)
            return
        committed = CommittedOffset(
            value.offset,
            value.leader_epoch,
            value.metadata,
            value.commit_timestamp,
            value.expire_timestamp,
            value.topic_id,
            record_offset,
        )
        if producer_id < 0:
            self._put(key.group, key.topic, key.partition, committed)
        else:
            self.pending.put(producer_id, key.group, key.topic, key.partition, committed)

    def replay_marker(self, producer_id: int, *, committed: bool) -> None:
        """End a transaction. Its first offsets take effect at once, the others at the next calls of `settle`."""
        ended = self.pending.end(producer_id)
        if ended is not None:
            self._ended.append((self.pending.drain(ended), committed))
            self.settle()

    def settle(self) -> None:
        """Let the next offsets of ended transactions take effect. If an offset was committed both inside and outside of
        a transaction, the later record wins.
        """
        left = OFFSETS_AT_ONCE
        while self._ended and left:
            drained, committed = self._ended[0]
            for group_id, topic, partition, offset in islice(drained, left):
                left -= 1
                known = self.find(group_id, topic, partition)
                if committed and (known is None or offset.record_offset > known.record_offset):
                    self._put(group_id, topic, partition, offset)
            if left:
                self._ended.popleft()

    @property
    def is_settled(self) -> bool:
        """Whether no offset of an ended transaction is pending."""
        return not self._ended

    def committed(self) -> Iterator[tuple[str, str, int, CommittedOffset]]:
        """All committed offsets, with their groups, topics and partitions."""
        for group_id, topics in self._by_group.items():
            for topic, partitions in topics.items():
                for partition, committed in partitions.items():
                    yield group_id, topic, partition, committed

    def _put(self, group_id: str, topic: str, partition: int, committed: CommittedOffset) -> None:
        topics = self._by_group.get(group_id)
        if topics is None:
            topics = self._by_group[group_id] = {}
        partitions = topics.get(topic)
        if partitions is None:
            partitions = topics[topic] = {}
        if partition not in partitions:
            self.count += 1
        partitions[partition] = committed

    def _remove(self, group_id: str, topic: str, partition: int) -> None:
        topics = self._by_group.get(group_id, {})
        partitions = topics.get(topic, {})
        if partitions.pop(partition, None) is None:
            return
        self.count -= 1
        if not partitions:
            del topics[topic]
        if not topics:
            del self._by_group[group_id]
