"""The assignor `uniform` for members that subscribe to different topics.

Each member keeps the partitions of the topics that it still subscribes to. The others go to the least loaded
subscribers, topic by topic. Then partitions move from the most to the least loaded subscribers of each topic, until
nothing improves or 16 rounds are over.

Source: UniformHeterogeneousAssignmentBuilder of Apache Kafka 4.3.1.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final
from uuid import UUID

from kbroker.coordinator.consumer.assignors import Assignment, Subscribed

MAX_ROUNDS: Final = 16
NOBODY: Final = -1


def balance(subscribed: Subscribed) -> dict[str, Assignment]:
    """The new target assignment. Members without any subscribed topic in the group get nothing."""
    state = _State(subscribed)
    if not state.subscribers:
        return {}
    state.assign_unassigned()
    state.balance()
    return dict(zip(subscribed.members, state.assigned, strict=True))


class _State:
    """Members are numbers, in the order of the group.

    Shape   sizes counts the partitions of each member; owners maps topics to the member of each partition
    """

    def __init__(self, subscribed: Subscribed) -> None:
        self.counts = subscribed.partition_counts
        self.sizes = [0] * len(subscribed.members)
        self.assigned: list[Assignment] = [{} for _ in subscribed.members]
        self.subscribers: dict[UUID, list[int]] = {}
        for number, member in enumerate(subscribed.members.values()):
            for topic_id in member.topics:
                self.subscribers.setdefault(topic_id, []).append(number)
        self.owners = {topic_id: [NOBODY] * self.counts[topic_id] for topic_id in self.subscribers}
        for number, member in enumerate(subscribed.members.values()):
            topics = frozenset(member.topics)
            for topic_id, partitions in member.target.items():
                if topic_id in topics:
                    self._keep(number, topic_id, partitions)

    def _keep(self, number: int, topic_id: UUID, partitions: Iterable[int]) -> None:
        owners = self.owners[topic_id]
        kept = {partition for partition in partitions if partition < len(owners)}
        if kept:
            self.assigned[number][topic_id] = kept
            self.sizes[number] += len(kept)
            for partition in kept:
                owners[partition] = number

    def _sorted(self, topics: Iterable[UUID]) -> list[UUID]:
        """Topics with the most partitions for each subscriber first, then those with the fewest subscribers."""

        def key(topic_id: UUID) -> tuple[float, int, int, int]:
            count = len(self.subscribers[topic_id])
            return -(self.counts[topic_id] / count), count, *_signed_halves(topic_id)

        return sorted(topics, key=key)

    def assign_unassigned(self) -> None:
        """Give each partition without an owner to the least loaded subscriber of its topic."""
        free = {
            topic_id: [partition for partition, owner in enumerate(owners) if owner == NOBODY]
            for topic_id, owners in self.owners.items()
        }
        for topic_id in self._sorted(topic_id for topic_id, partitions in free.items() if partitions):
            levels = _Levels(self.sizes, self.subscribers[topic_id])
            for partition in free[topic_id]:
                self._assign(topic_id, partition, levels.next_least_loaded())

    def balance(self) -> None:
        """Move partitions until a whole round over the topics moves none."""
        topics = self._sorted(topic_id for topic_id, members in self.subscribers.items() if len(members) > 1)
        last_moved: int | None = None
        for _ in range(MAX_ROUNDS if topics else 0):
            for index, topic_id in enumerate(topics):
                if index == last_moved:
                    return
                if self._balance_topic(topic_id) or last_moved is None:
                    last_moved = index

    def _balance_topic(self, topic_id: UUID) -> bool:
        """Move partitions of one topic from the most to the least loaded subscribers. True if any was moved."""
        levels = _Levels(self.sizes, self.subscribers[topic_id])
        if levels.imbalance <= 1:
            return False
        of_member: dict[int, list[int]] = {}
        for partition, owner in enumerate(self.owners[topic_id]):
            of_member.setdefault(owner, []).append(partition)
        has_moved = False
        while not levels.are_balanced():
            giver = levels.next_most_loaded()
            while giver != NOBODY and not of_member.get(giver):
                levels.exclude_most_loaded()
                giver = levels.next_most_loaded()
            if giver == NOBODY:
                break
            partition = of_member[giver].pop()
            taker = levels.next_least_loaded()
            if levels.are_balanced():
                break
            self._assign(topic_id, partition, taker)
            has_moved = True
        return has_moved

    def _assign(self, topic_id: UUID, partition: int, number: int) -> None:
        owners = self.owners[topic_id]
        if (old := owners[partition]) != NOBODY:
            mine = self.assigned[old][topic_id]
            mine.discard(partition)
            if not mine:
                del self.assigned[old][topic_id]
            self.sizes[old] -= 1
        self.assigned[number].setdefault(topic_id, set()).add(partition)
        owners[partition] = number
        self.sizes[number] += 1


def _signed_halves(topic_id: UUID) -> tuple[int, int]:
    """Java compares ids as two signed longs."""
    high, low = topic_id.int >> 64, topic_id.int & (1 << 64) - 1
    return high - ((high >> 63) << 64), low - ((low >> 63) << 64)


class _Levels:
    """The subscribers of a topic, sorted by their number of partitions: a growing range of the least loaded ones, and
    one of the most loaded ones. All members of a range have the same number of partitions.

    Shape   the least loaded range is [0, least_end), the most loaded one [most_start, most_end); the members behind
            most_end have no partition to give. sizes changes while the ranges are used
    """

    def __init__(self, sizes: list[int], members: Sequence[int]) -> None:
        self.sizes = sizes
        self.members = sorted(members, key=lambda number: (sizes[number], number))
        lowest, highest = sizes[self.members[0]], sizes[self.members[-1]]
        self.imbalance = highest - lowest
        self.least_end, self.least_level, self.next_least = 0, lowest - 1, 0
        self.most_start = self.most_end = len(self.members)
        self.most_level, self.next_most = highest + 1, len(self.members) - 1

    def are_balanced(self) -> bool:
        """Whether the two ranges differ by one partition at most."""
        return self.most_level - self.least_level <= 1

    def next_least_loaded(self) -> int:
        """The next member to get a partition. The caller gives it one."""
        if self.next_least >= self.least_end:
            self.least_level += 1
            while self.least_end < len(self.members) and self._size(self.least_end) == self.least_level:
                self.least_end += 1
            self.next_least = 0
        self.next_least += 1
        return self.members[self.next_least - 1]

    def next_most_loaded(self) -> int:
        """The next member to give a partition up, or NOBODY."""
        if self.next_most < self.most_start:
            if self.most_end <= self.most_start and self.most_start > 0:
                self.most_level = self._size(self.most_start - 1)  # all members of the range were excluded
            else:
                self.most_level -= 1
            while self.most_start > 0 and self._size(self.most_start - 1) == self.most_level:
                self.most_start -= 1
            self.next_most = self.most_end - 1
        if self.next_most < 0:
            return NOBODY
        self.next_most -= 1
        return self.members[self.next_most + 1]

    def exclude_most_loaded(self) -> None:
        """Take the member that next_most_loaded returned out of the range: it has no partition of the topic."""
        members, place = self.members, self.next_most + 1
        members[place], members[self.most_end - 1] = members[self.most_end - 1], members[place]
        self.most_end -= 1

    def _size(self, place: int) -> int:
        return self.sizes[self.members[place]]
