"""Topics, offsets and segments as reported by a broker. See `inventory`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from uuid import UUID

from kbroker.spark.client import EARLIEST, LATEST, BrokerClient
from kbroker.spark.inventory import Bounds, Extent, by_partition, chosen
from kbroker.spark.metadata_fetching import CatalogueFollower
from kbroker.spark.options import Subscription
from kbroker.spark.plan import PartitionState
from kbroker.spark.positions import Partition
from kbroker.tiered.api import RemoteLogSegmentMetadata, TopicIdPartition


class BrokerInventory:
    """An Inventory that asks a broker. `has_store` says whether segments are read from their store."""

    def __init__(self, client: BrokerClient, *, has_store: bool, is_committed_only: bool = False) -> None:
        self.client = client
        self._is_committed_only = is_committed_only
        self._catalogue = CatalogueFollower(client) if has_store else None
        self._ids: dict[str, UUID] = {}

    def extent(self, subscription: Subscription) -> Extent:
        topics = self.client.topics(subscription.names)
        existing = {
            (name, index)
            for name, topic in topics.items()
            for index in topic.leaders
            if not (topic.is_internal and subscription.pattern)
        }
        partitions = chosen(subscription, existing)
        self._ids = {name: topics[name].id for name, _ in partitions}
        return Extent(self._ids, self.bounds(partitions))

    def bounds(self, partitions: Sequence[Partition]) -> dict[Partition, Bounds]:
        """The current bounds of partitions, in their order."""
        # Ask for the ends first: then records that are deleted in between cannot appear to be before the start.
        ends = self.client.offsets(dict.fromkeys(partitions, LATEST), is_committed_only=self._is_committed_only)
        starts = self.client.offsets(dict.fromkeys(partitions, EARLIEST))
        return {each: Bounds(starts[each].offset, max(ends[each].offset, starts[each].offset)) for each in partitions}

    def offsets_at(self, timestamps_ms: Mapping[Partition, int]) -> dict[Partition, int | None]:
        found = self.client.offsets(timestamps_ms)
        return {each: None if answer.offset < 0 else answer.offset for each, answer in found.items()}

    def states(self, partitions: Sequence[Partition], bounds: Mapping[Partition, Bounds]) -> list[PartitionState]:
        known = () if self._catalogue is None or not partitions else self._catalogue.read().segments.values()
        ids = [TopicIdPartition(self._ids[topic], topic, index) for topic, index in partitions]
        return self.states_of(ids, bounds, by_partition(known))

    def states_of(
        self,
        ids: Sequence[TopicIdPartition],
        bounds: Mapping[Partition, Bounds],
        segments: Mapping[TopicIdPartition, Sequence[RemoteLogSegmentMetadata]],
    ) -> list[PartitionState]:
        """The states of partitions with these segments."""
        tiered = {each[1:]: bounds[each[1:]].log_start_offset for each in ids if each in segments}
        epochs = self.client.epochs(tiered) if tiered else {}
        return [
            PartitionState(
                each,
                *bounds[each[1:]],
                leader_epochs=tuple(epochs.get(each[1:], ())),
                segments=tuple(segments.get(each, ())),
                has_broker=True,
            )
            for each in ids
        ]
