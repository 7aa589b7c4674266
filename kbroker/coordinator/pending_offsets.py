"""Offsets that were committed in open transactions.

The offsets of a transaction become visible when its commit marker arrives, and are dropped by its abort marker. A
tombstone also drops pending offsets: the group or the topic is gone. A group is open until the end of all transactions
that have committed an offset of it, even if tombstones have dropped these offsets; it does not expire before.

An ended transaction may be drained in several steps. Offsets that are not drained yet are still pending, as those of
open transactions.

An index answers questions about one group without a search through all transactions.

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
class Transaction(Generic[T]):
    """The pending offsets of one transaction, by group and place."""

    offsets: dict[str, dict[Place, T]] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class _OpenGroup(Generic[T]):
    """The transactions in a group, and for each place those that have an offset of it."""

    transactions: dict[Transaction[T], None] = field(default_factory=dict)  # in order, so that runs can be repeated
    places: dict[Place, set[Transaction[T]]] = field(default_factory=dict)


class PendingOffsets(Generic[T]):
    """The offsets of transactions that are open, by producer id, or not drained yet."""

    __slots__ = ("_by_producer", "_open")

    def __init__(self) -> None:
        self._by_producer: dict[int, Transaction[T]] = {}
        self._open: dict[str, _OpenGroup[T]] = {}

    def put(self, producer_id: int, group_id: str, topic: str, partition: int, committed: T) -> None:
        """Add an offset to the producer's transaction; it replaces an earlier one of the same place."""
        place = topic, partition
        transaction = self._by_producer.setdefault(producer_id, Transaction())
        transaction.offsets.setdefault(group_id, {})[place] = committed
        group = self._open.setdefault(group_id, _OpenGroup())
        group.transactions[transaction] = None
        group.places.setdefault(place, set()).add(transaction)

    def remove(self, group_id: str, topic: str, partition: int) -> None:
        """Drop the offsets of a partition in all transactions."""
        group = self._open.get(group_id)
        if group is not None:
            for transaction in group.places.pop((topic, partition), ()):
                del transaction.offsets[group_id][topic, partition]

    def end(self, producer_id: int) -> Transaction[T] | None:
        """End the producer's transaction, and return it; None if it has committed no offset."""
        return self._by_producer.pop(producer_id, None)

    def drain(self, ended: Transaction[T]) -> Iterator[tuple[str, str, int, T]]:
        """Take the offsets from an ended transaction, with their groups, topics and partitions."""
        while ended.offsets:
            group_id, offsets = next(iter(ended.offsets.items()))
            group = self._open[group_id]
            while offsets:
                place, committed = offsets.popitem()
                holders = group.places[place]
                holders.remove(ended)
                if not holders:
                    del group.places[place]
                yield group_id, *place, committed
            del ended.offsets[group_id]
            del group.transactions[ended]
            if not group.transactions:
                del self._open[group_id]

    def has_open(self, group_id: str) -> bool:
        """Whether a transaction has committed an offset of the group."""
        return group_id in self._open

    def places(self, group_id: str) -> Collection[Place]:
        """The topics and partitions of a group with pending offsets."""
        group = self._open.get(group_id)
        return () if group is None else group.places

    def __iter__(self) -> Iterator[tuple[str, str, int, T]]:
        """All pending offsets with their groups, topics and partitions."""
        for group_id, group in self._open.items():
            for transaction in group.transactions:
                for place, committed in transaction.offsets[group_id].items():
                    yield group_id, *place, committed
