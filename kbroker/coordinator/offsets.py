"""Committed offsets of all groups of a shard.

They are kept beside the groups and not in them, as their records are: a group may go and come while its offsets stay.
Offsets that were committed in a transaction wait, by producer id, until the transaction's marker tells what became of
them.

Source: OffsetMetadataManager of Apache Kafka 4.3.1.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from uuid import UUID

from kbroker.coordinator.records import NO_EXPIRY
from wire.stored.groups import OffsetCommitKey, OffsetCommitValue
from wire.types import ZERO_UUID


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """One committed offset.

    Units   offset and record_offset count records, the latter in `__consumer_offsets` (-1: not told); timestamps are
            wall time in ms; expire_timestamp_ms -1 where the group's rules decide; topic_id all zero where not known
    """

    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp_ms: int
    expire_timestamp_ms: int = NO_EXPIRY
    topic_id: UUID = ZERO_UUID
    record_offset: int = -1

    def is_of(self, topic_id: UUID) -> bool:
        """Whether it was committed for this topic, and not for an earlier one of its name; unknown ids fit."""
        return self.topic_id == topic_id or ZERO_UUID in (self.topic_id, topic_id)


PartitionOffsets = dict[int, CommittedOffset]
TopicOffsets = dict[str, PartitionOffsets]


class Offsets:
    """Offsets by group, topic and partition. A group without any is not in the table."""

    __slots__ = ("_by_group", "_pending", "count")

    def __init__(self) -> None:
        self._by_group: dict[str, TopicOffsets] = {}
        self._pending: dict[int, dict[tuple[str, str, int], CommittedOffset]] = {}
        self.count = 0

    def of_group(self, group_id: str) -> TopicOffsets:
        """All offsets of a group; not to be changed."""
        return self._by_group.get(group_id, {})

    def find(self, group_id: str, topic: str, partition: int) -> CommittedOffset | None:
        """One offset, None if none is committed."""
        return self._by_group.get(group_id, {}).get(topic, {}).get(partition)

    def replay(
        self, key: OffsetCommitKey, value: OffsetCommitValue | None, *, record_offset: int, producer_id: int
    ) -> None:
        """Take a record over; value None is a tombstone, producer_id -1 what stands in no transaction."""
        if value is None:
            self._remove(key.group, key.topic, key.partition)
            for pending in self._pending.values():
                pending.pop((key.group, key.topic, key.partition), None)
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
            self._pending.setdefault(producer_id, {})[key.group, key.topic, key.partition] = committed

    def replay_marker(self, producer_id: int, *, committed: bool) -> None:
        """End a transaction. Of a plain and a transactional commit, the one that was written later counts."""
        for (group_id, topic, partition), offset in self._pending.pop(producer_id, {}).items():
            if not committed:
                continue
            known = self.find(group_id, topic, partition)
            if known is None or offset.record_offset > known.record_offset:
                self._put(group_id, topic, partition, offset)

    def is_pending(self, group_id: str, topic: str, partition: int) -> bool:
        """Whether an open transaction has committed an offset here."""
        return any((group_id, topic, partition) in pending for pending in self._pending.values())

    def pending_of(self, group_id: str) -> Iterator[tuple[str, int]]:
        """Topics and partitions of a group with commits in open transactions; some may come twice."""
        for of_group, topic, partition, _ in self.pending():
            if of_group == group_id:
                yield topic, partition

    def pending(self) -> Iterator[tuple[str, str, int, CommittedOffset]]:
        """All commits in open transactions, with their groups, topics and partitions."""
        for pending in self._pending.values():
            for (group_id, topic, partition), committed in pending.items():
                yield group_id, topic, partition, committed

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
