"""What an audit compares the store with: a broker's metadata and logs, or only the store's own manifests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final
from urllib.parse import unquote

from kbroker.spark.broker_inventory import BrokerInventory
from kbroker.spark.client import EARLIEST_LOCAL, BrokerClient
from kbroker.spark.metadata_fetching import CatalogueFollower
from kbroker.spark.options import Subscription
from kbroker.spark.plan import PartitionState
from kbroker.spark.store_inventory import StoreInventory
from kbroker.tiered.api import RemoteLogSegmentMetadata, RemoteStorageManager, TopicIdPartition
from kbroker.tiered.catalogue import Catalogue
from kbroker.tiered.layout import parse_object_name

EVERYTHING: Final = Subscription(pattern=".*")


class BrokerSite:
    """The metadata and logs of a broker. Errors: KbrokerSourceError."""

    def __init__(self, client: BrokerClient, servers: str) -> None:
        self._client = client
        self._follower = CatalogueFollower(client)
        self.name = f"the broker at {servers}"

    def catalogue(self) -> Catalogue:
        """A copy of the current metadata."""
        return self._follower.read_on()

    def damaged_manifests(self) -> dict[str, str]:
        """None: with a broker the audit does not use manifests."""
        return {}

    def topics(self) -> set[str]:
        return set(self._client.topics())

    def local_starts(self, topics: Sequence[str] | None) -> dict[TopicIdPartition, int]:
        """The local log start offsets of partitions that have a leader."""
        there = [each for each in self._client.topics(topics).values() if not each.is_internal]
        led = {
            (topic.name, index): TopicIdPartition(topic.id, topic.name, index)
            for topic in there
            for index, leader in topic.leaders.items()
            if leader >= 0
        }
        found = self._client.offsets(dict.fromkeys(led, EARLIEST_LOCAL))
        return {led[partition]: each.offset for partition, each in found.items()}

    def states(
        self,
        segments: Mapping[TopicIdPartition, Sequence[RemoteLogSegmentMetadata]],
        others: Iterable[TopicIdPartition],
    ) -> list[PartitionState]:
        """The states of the partitions that still exist, with or without segments."""
        asked = dict.fromkeys([*segments, *others])
        there = self._client.topics({each.topic for each in asked})
        alive = [
            each for each in asked
            if (topic := there.get(each.topic)) and topic.id == each.topic_id and each.partition in topic.leaders
        ]  # fmt: skip
        inventory = BrokerInventory(self._client, has_store=False)
        return inventory.states_of(alive, inventory.bounds([each[1:] for each in alive]), segments)


class StoreSite:
    """Only the manifests say which segments exist; nothing says which should exist. Errors: KbrokerSourceError."""

    name = "the store alone"

    def __init__(self, storage: RemoteStorageManager) -> None:
        self._inventory = StoreInventory(storage, skips_damaged=True)

    def catalogue(self) -> Catalogue:
        """The current metadata."""
        return self._inventory.catalogue(EVERYTHING)

    def damaged_manifests(self) -> dict[str, str]:
        """The manifests that the last `catalogue` skipped, with the cause."""
        return dict(self._inventory.damaged)

    def topics(self) -> set[str]:
        there = self._inventory.extent(EVERYTHING).ids.keys()
        named = filter(None, map(parse_object_name, self._inventory.damaged))
        return there | {unquote(each.topic, errors="surrogatepass") for each in named}

    def local_starts(self, topics: Sequence[str] | None) -> dict[TopicIdPartition, int]:
        """Unknown without a broker."""
        del topics
        return {}

    def states(
        self,
        segments: Mapping[TopicIdPartition, Sequence[RemoteLogSegmentMetadata]],
        others: Iterable[TopicIdPartition],
    ) -> list[PartitionState]:
        """The states as of the last `catalogue`."""
        del others
        return self._inventory.states([(each.topic, each.partition) for each in segments], {})
