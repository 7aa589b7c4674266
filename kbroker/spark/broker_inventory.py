"""Topics, offsets and segments as reported by a broker. See `inventory`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from uuid import UUID

from kbroker.spark.catalogue_following import CatalogueFollower
from kbroker.spark.client import EARLIEST, LATEST, BrokerClient, Topic
from kbroker.spark.inventory import Bounds, chosen
from kbroker.spark.options import Subscription
from kbroker.spark.plan import PartitionState
from kbroker.spark.positions import Partition
from kbroker.tiered.api import RemoteLogSegmentMetadata, TopicIdPartition


class BrokerInventory:
    """An Inventory that asks a broker. `has_store` says whether segments are read from their store."""

    has_broker = True

    def __init__(self, client: BrokerClient, *, has_store: bool) -> None:
        self.client = client
        self._catalogue = CatalogueFollower(client) if has_store else None
        self._topics: dict[str, Topic] = {}

    def topics(self, subscription: Subscription) -> dict[str, tuple[UUID, list[int]]]:
        existing = self.client.topics(subscription.names)
        self._topics = existing
        if subscription.names is None:
            existing = {name: topic for name, topic in existing.items() if not topic.is_internal}
        found = chosen(subscription, {name: list(topic.leaders) for name, topic in existing.items()})
        return {name: (existing[name].id, partitions) for name, partitions in found.items()}

    def bounds(self, partitions: Sequence[Partition]) -> dict[Partition, Bounds]:
        # Ask for the ends first: then records that are deleted in between cannot appear to be before the start.
        ends = self.client.offsets(dict.fromkeys(partitions, LATEST))
        starts = self.client.offsets(dict.fromkeys(partitions, EARLIEST))
        return {each: Bounds(starts[each].offset, max(ends[each].offset, starts[each].offset)) for each in partitions}

    def offsets_at(self, timestamps_ms: Mapping[Partition, int]) -> dict[Partition, int | None]:
        found = self.client.offsets(timestamps_ms)
        return {each: None if answer.offset < 0 else answer.offset for each, answer in found.items()}

    def states(self, partitions: Sequence[Partition], bounds: Mapping[Partition, Bounds]) -> list[PartitionState]:
        segments: dict[tuple[UUID, int], list[RemoteLogSegmentMetadata]] = {}
        if self._catalogue is not None and partitions:
            for segment in self._catalogue.read().segments.values():
                found = segment.remote_log_segment_id.topic_id_partition
                segments.setdefault((found.topic_id, found.partition), []).append(segment)
        tiered = [each for each in partitions if (self._topics[each[0]].id, each[1]) in segments]
        epochs = self.client.epochs({each: bounds[each].log_start_offset for each in tiered}) if tiered else {}
        states = []
        for each in partitions:
            topic_id = self._topics[each[0]].id
            states.append(
                PartitionState(
                    TopicIdPartition(topic_id, *each),
                    log_start_offset=bounds[each].log_start_offset,
                    end_offset=bounds[each].end_offset,
                    leader_epochs=tuple(epochs.get(each, ())),
                    segments=tuple(segments.get((topic_id, each[1]), ())),
                    has_broker=True,
                )
            )
        return states
