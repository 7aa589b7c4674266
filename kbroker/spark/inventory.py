"""What can be read: topics, the bounds of their partitions, and their segments in the tier.

There are two sources. A broker knows the bounds of the logs, their leader epochs and, from `__remote_log_metadata`, the
segments in the tier. Without a broker, the store is the only source: each segment has a manifest, and the newest
segment of a partition has the leader epochs up to its end, which is then the end of the partition.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple, Protocol
from uuid import UUID

from kbroker.spark.errors import TopicRecreated, unknown_topic
from kbroker.spark.options import Subscription
from kbroker.spark.plan import PartitionState
from kbroker.spark.positions import Partition
from kbroker.spark.stores import StoreOptions, open_store
from wire.types import ZERO_UUID, uuid_to_text


class Bounds(NamedTuple):
    """The bounds of a partition. Units: end_offset is exclusive."""

    log_start_offset: int
    end_offset: int


class Inventory(Protocol):
    """The questions of the planner. Errors: KbrokerSourceError."""

    has_broker: bool

    def topics(self, subscription: Subscription) -> dict[str, tuple[UUID, list[int]]]:
        """The subscribed topics, each with its id and partitions."""
        ...

    def bounds(self, partitions: Sequence[Partition]) -> dict[Partition, Bounds]: ...

    def offsets_at(self, timestamps_ms: Mapping[Partition, int]) -> dict[Partition, int | None]:
        """For each partition the first offset whose record is at or after the time, None if there is none."""
        ...

    def states(self, partitions: Sequence[Partition], bounds: Mapping[Partition, Bounds]) -> list[PartitionState]:
        """What the planner needs to know of the partitions, in their order."""
        ...


def chosen(subscription: Subscription, existing: Mapping[str, Sequence[int]]) -> dict[str, list[int]]:
    """The subscribed partitions among the existing ones. Errors: UnknownTopic."""
    names = subscription.names
    if names is None:
        return {topic: sorted(partitions) for topic, partitions in existing.items() if subscription.matches(topic)}
    for name in names:
        if name not in existing:
            raise unknown_topic(name)
    if not subscription.partitions:
        return {name: sorted(existing[name]) for name in names}
    found: dict[str, list[int]] = {}
    for name, index in subscription.partitions:
        if index not in existing[name]:
            raise unknown_topic(name, index)
        found.setdefault(name, []).append(index)
    return found


def open_inventory(client: Mapping[str, Any] | None, store: StoreOptions | None, stack: ExitStack) -> Inventory:
    """The broker's inventory, or the store's if no broker is named; `stack` closes what this opens.
    Errors: KbrokerSourceError.
    """
    if client is not None:
        from kbroker.spark.broker_inventory import BrokerInventory  # noqa: PLC0415  (only imported if it is needed)
        from kbroker.spark.client import BrokerClient  # noqa: PLC0415

        return BrokerInventory(stack.enter_context(BrokerClient(client)), has_store=store is not None)
    from kbroker.spark.store_inventory import StoreInventory  # noqa: PLC0415

    assert store is not None, "options name a broker or a store"
    return StoreInventory(open_store(store))


def same_topics(known: Mapping[str, UUID], found: Iterable[tuple[str, UUID]]) -> None:
    """Errors: TopicRecreated for a topic whose id differs from the known one."""
    for topic, topic_id in found:
        before = known.get(topic, topic_id)
        if before != topic_id and ZERO_UUID not in (before, topic_id):
            raise TopicRecreated(
                f"the topic was deleted and created again: its id is {uuid_to_text(topic_id)}, it was"
                f" {uuid_to_text(before)}",
                remedy="start again with another checkpoint; the records of the deleted topic are gone",
                at=topic,
            )
