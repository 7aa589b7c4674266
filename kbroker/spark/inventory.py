"""What there is to be read: topics, where their partitions begin and end, and what of them is in the tier.

Two can tell. A broker knows the ends of the logs, their leader epochs and, by `__remote_log_metadata`, the segments of
the tier. With no broker the store is asked alone: each segment has a manifest beside it, and the newest segment of a
partition has the leader epochs up to its end, which is where the partition then ends.
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
    """Where a partition lies. Units: end_offset is exclusive."""

    log_start_offset: int
    end_offset: int


class Inventory(Protocol):
    """What a plan asks. Errors: KbrokerSourceError."""

    has_broker: bool

    def topics(self, subscription: Subscription) -> dict[str, tuple[UUID, list[int]]]:
        """The topics that are meant, each with its id and partitions."""
        ...

    def bounds(self, partitions: Sequence[Partition]) -> dict[Partition, Bounds]: ...

    def offsets_at(self, timestamps_ms: Mapping[Partition, int]) -> dict[Partition, int | None]:
        """In each partition the first offset whose record is at least that late; None where there is none."""
        ...

    def states(self, partitions: Sequence[Partition], bounds: Mapping[Partition, Bounds]) -> list[PartitionState]:
        """All that a plan needs of the partitions, in their order."""
        ...


def chosen(subscription: Subscription, there: Mapping[str, Sequence[int]]) -> dict[str, list[int]]:
    """The partitions that are meant, of those that there are. Errors: UnknownTopic."""
    names = subscription.names
    if names is None:
        return {topic: sorted(partitions) for topic, partitions in there.items() if subscription.matches(topic)}
    for name in names:
        if name not in there:
            raise unknown_topic(name)
    if not subscription.partitions:
        return {name: sorted(there[name]) for name in names}
    found: dict[str, list[int]] = {}
    for name, index in subscription.partitions:
        if index not in there[name]:
            raise unknown_topic(name, index)
        found.setdefault(name, []).append(index)
    return found


def open_inventory(client: Mapping[str, Any] | None, store: StoreOptions | None, stack: ExitStack) -> Inventory:
    """By the broker if there is one, else by the store; `stack` closes what was opened. Errors: KbrokerSourceError."""
    if client is not None:
        from kbroker.spark.broker_inventory import BrokerInventory  # noqa: PLC0415  (a client is not always needed)
        from kbroker.spark.client import BrokerClient  # noqa: PLC0415

        return BrokerInventory(stack.enter_context(BrokerClient(client)), has_store=store is not None)
    from kbroker.spark.store_inventory import StoreInventory  # noqa: PLC0415

    assert store is not None, "options name a broker or a store"
    return StoreInventory(open_store(store))


def same_topics(known: Mapping[str, UUID], found: Iterable[tuple[str, UUID]]) -> None:
    """Errors: TopicRecreated for a topic whose id is not the one that was known before."""
    for topic, topic_id in found:
        before = known.get(topic, topic_id)
        if before != topic_id and ZERO_UUID not in (before, topic_id):
            raise TopicRecreated(
                f"the topic was deleted and created again: its id is {uuid_to_text(topic_id)}, and was"
                f" {uuid_to_text(before)}",
                remedy="start again with another checkpoint; the records of the deleted topic are gone",
                topic=topic,
            )
