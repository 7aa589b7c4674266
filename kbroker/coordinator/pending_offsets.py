"""Offsets that were committed in open transactions.

The offsets of a transaction become visible together when its commit marker arrives, and are dropped by its abort
marker. A tombstone also drops pending offsets: the group or the topic is gone. A group is open until the markers of all
transactions that have committed an offset of it, even if tombstones have dropped these offsets; it does not expire
before.

An index answers questions about one group without a search through all open transactions.

Source: OffsetMetadataManager of Apache Kafka 4.3.1.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")
Place = tuple[str, int]
"""Topic and partition."""


@dataclass(slots=True, eq=False)
class _OpenGroup:
    """The producers with an open transaction in a group, and those that have an offset of a place."""

    producers: set[int] = field(default_factory=set)
    places: dict[Place, set[int]] = field(default_factory=dict)


class PendingOffsets(Generic[T]):
    """The offsets of open transactions, by producer id, group, topic and partition."""

    __slots__ = ("_by_producer", "_open")

    def __init__(self) -> None:
        self._by_producer: dict[int, dict[str, dict[Place, T]]] = {}
        self._open: dict[str, _OpenGroup] = {}

    def put(self, producer_id: int, group_id: str, topic: str, partition: int, committed: T) -> None:
        """Add an offset to the producer's transaction; it replaces an earlier one of the same place."""
        place = topic, partition
        self._by_producer.setdefault(producer_id, {}).setdefault(group_id, {})[place] = committed
        group = self._open.setdefault(group_id, _OpenGroup())
        group.producers.add(producer_id)
        group.places.setdefault(place, set()).add(producer_id)

    def remove(self, group_id: str, topic: str, partition: int) -> None:
        """Drop the offsets of a partition in all open transactions."""
        group = self._open.get(group_id)
        if group is not None:
            for producer_id in group.places.pop((topic, partition), ()):
                del self._by_producer[producer_id][group_id][topic, partition]

    def end(self, producer_id: int) -> Iterator[tuple[str, str, int, T]]:
        """End the producer's transaction. Yields its offsets with their groups, topics and partitions; the caller must
        take all of them.
        """
        for group_id, offsets in self._by_producer.pop(producer_id, {}).items():
            group = self._open[group_id]
            group.producers.remove(producer_id)
            if not group.producers:
                del self._open[group_id]
            for place, committed in offsets.items():
                producers = group.places[place]
                producers.remove(producer_id)
                if not producers:
                    del group.places[place]
                yield group_id, *place, committed

    def has_open(self, group_id: str) -> bool:
        """Whether an open transaction has committed an offset of the group."""
        return group_id in self._open

    def places(self, group_id: str) -> Collection[Place]:
        """The topics and partitions of a group with offsets in open transactions."""
        group = self._open.get(group_id)
        return () if group is None else group.places

    def __iter__(self) -> Iterator[tuple[str, str, int, T]]:
        """All offsets with their groups, topics and partitions."""
        for groups in self._by_producer.values():
            for group_id, offsets in groups.items():
                for place, committed in offsets.items():
                    yield group_id, *place, committed
