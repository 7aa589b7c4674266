"""Topics, offsets and segments from a store's manifests, without a broker. See `inventory`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Final, cast
from uuid import UUID

from kbroker.spark.committed import decided_end
from kbroker.spark.errors import KbrokerSourceError, StoreUnavailable, TopicRecreated, UnknownTopic, store_unavailable
from kbroker.spark.inventory import Bounds, Extent, by_partition, chosen
from kbroker.spark.options import Subscription
from kbroker.spark.plan import PartitionState, usable_segments
from kbroker.spark.positions import Partition
from kbroker.spark.remote_times import first_at_or_after
from kbroker.storage.leader_epoch import parse_epochs
from kbroker.tiered.api import (
    DescribedRemoteStorageManager,
    IndexType,
    RemoteLogSegmentMetadata,
    RemoteResourceNotFound,
    RemoteStorageError,
    RemoteStorageManager,
    TopicIdPartition,
)
from kbroker.tiered.catalogue import Catalogue
from kbroker.tiered.layout import MANIFEST, Manifest, parse_object_name, topic_in_names
from wire.types import uuid_to_text

THREADS: Final = 16
MANIFEST_REMEDY: Final = "restore it, or name a broker (kafka.bootstrap.servers), which does not need it"


class StoreInventory:
    """An Inventory from the manifests of a store. Each call of `extent` looks up what exists now.

    A damaged manifest is an error, because nothing else describes its segment. With `skips_damaged` it is skipped, and
    `damaged` maps its name to the cause.
    """

    def __init__(
        self, storage: RemoteStorageManager, *, skips_damaged: bool = False, is_committed_only: bool = False
    ) -> None:
        if not hasattr(storage, "list_objects") or not hasattr(storage, "read_manifest"):
            raise KbrokerSourceError(
                f"{storage!r} cannot list its objects", remedy="name a broker: kafka.bootstrap.servers"
            )
        self._storage = cast(DescribedRemoteStorageManager, storage)
        self._skips_damaged = skips_damaged
        self._is_committed_only = is_committed_only
        self.damaged: dict[str, str] = {}
        self._manifests: dict[str, RemoteLogSegmentMetadata] = {}
        self._states: dict[Partition, PartitionState] = {}
        self._ends: dict[Partition, int] = {}  # where reading ends, which may be within a segment

    def extent(self, subscription: Subscription) -> Extent:
        try:
            self._read(subscription)
        except RemoteStorageError as error:
            raise store_unavailable(self._storage, error) from error
        by_topic: dict[str, dict[UUID, list[RemoteLogSegmentMetadata]]] = {}
        for segment in self._manifests.values():
            found = segment.remote_log_segment_id.topic_id_partition
            if subscription.matches(found.topic):
                by_topic.setdefault(found.topic, {}).setdefault(found.topic_id, []).append(segment)
        self._states = {}
        for topic, incarnations in by_topic.items():
            segments = by_partition(incarnations[self._newest(topic, incarnations)])
            self._states |= {each[1:]: self._state(each, segments[each]) for each in segments}
        states = {each: self._states[each] for each in chosen(subscription, self._states.keys())}
        ids = {topic: state.id.topic_id for (topic, _), state in states.items()}
        bounds = {
            each: Bounds(state.log_start_offset, max(state.log_start_offset, self._ends[each]))
            for each, state in states.items()
        }
        return Extent(ids, bounds)

    def catalogue(self, subscription: Subscription) -> Catalogue:
        """The segments of the subscribed topics."""
        found = Catalogue()
        for each in self.extent(subscription).bounds:
            found.segments |= {one.remote_log_segment_id.id: one for one in self._states[each].segments}
        return found

    def _read(self, subscription: Subscription) -> None:
        """Read new manifests, and forget deleted ones. A listing may be outdated, so manifests that are missing in it
        are requested by name. Errors: UnknownTopic for an empty store.
        """
        # Object names may contain a truncated topic name; the manifest has the full name and the topic's id.
        names = None if subscription.names is None else {topic_in_names(name) for name in subscription.names}
        listed = []
        is_empty = True
        for stored in self._storage.list_objects():
            is_empty = False
            parsed = parse_object_name(stored.name) if stored.is_auxiliary else None
            if parsed is not None and parsed.kind == MANIFEST and (names is None or parsed.topic in names):
                listed.append(stored.name)
        if is_empty:
            # A misspelt directory or prefix also looks like an empty store.
            raise UnknownTopic(
                f"{self._storage!r} is empty",
                remedy="check that rsm.config.* names the broker's tier, and that segments have been copied into it",
            )
        asked = sorted(self._manifests.keys() ^ set(listed) | self.damaged.keys())
        self.damaged = {}
        with ThreadPoolExecutor(THREADS, thread_name_prefix="kbroker-spark") as threads:
            for name, found in zip(asked, threads.map(self._manifest, asked), strict=True):
                if found is not None:
                    self._manifests[name] = found
                else:
                    self._manifests.pop(name, None)

    def _manifest(self, name: str) -> RemoteLogSegmentMetadata | None:
        try:
            data = self._storage.read_manifest(name)
        except RemoteResourceNotFound:
            return None  # deleted after it was listed; the segment is being deleted too
        except RemoteStorageError as error:
            raise _unreadable(name, error) from error
        try:
            return Manifest.parse_named(data, name).metadata
        except RemoteStorageError as error:
            if not self._skips_damaged:
                raise _unreadable(name, error) from error
            self.damaged[name] = str(error)
            return None

    def _newest(self, topic: str, incarnations: Mapping[UUID, Sequence[RemoteLogSegmentMetadata]]) -> UUID:
        """The topic of this name that was created last; the store may still have segments of earlier ones."""
        if len(incarnations) == 1:
            return next(iter(incarnations))
        spans = sorted(
            (min(one.event_timestamp_ms for one in found), max(one.event_timestamp_ms for one in found), topic_id)
            for topic_id, found in incarnations.items()
        )
        if max(latest for _, latest, _ in spans[:-1]) >= spans[-1][0]:
            # Their times overlap, so they were not created one after the other: two clusters share the store.
            ids = ", ".join(uuid_to_text(topic_id) for _, _, topic_id in spans)
            raise TopicRecreated(
                f"the store has several topics of this name, with the ids {ids}",
                remedy="name the broker of the topic to read (kafka.bootstrap.servers)",
                at=topic,
            )
        return spans[-1][2]

    def _state(self, id_: TopicIdPartition, segments: Sequence[RemoteLogSegmentMetadata]) -> PartitionState:
        newest = max(
            segments, key=lambda one: (one.segment_leader_epochs[-1][0], one.end_offset, one.event_timestamp_ms)
        )
        try:
            epochs = parse_epochs(self._storage.fetch_index(newest, IndexType.LEADER_EPOCH).decode())
            end = newest.end_offset + 1
            self._ends[id_[1:]] = decided_end(self._storage, newest) if self._is_committed_only else end
        except (RemoteStorageError, ValueError) as error:
            raise store_unavailable(self._storage, error, (id_.topic, id_.partition), newest.start_offset) from error
        state = PartitionState(id_, 0, end, tuple(epochs), tuple(segments), has_broker=False)
        usable = usable_segments(state)
        start = min((one.start_offset for one in usable), default=newest.start_offset)
        # The checkpoint does not say which history the offsets below its first entry belong to: exclude them.
        start = max(start, epochs[0][1]) if epochs else start
        return replace(state, log_start_offset=start)

    def offsets_at(self, timestamps_ms: Mapping[Partition, int]) -> dict[Partition, int | None]:
        found: dict[Partition, int | None] = {}
        for partition, timestamp_ms in timestamps_ms.items():
            state = self._states[partition]
            try:
                found[partition] = first_at_or_after(self._storage, state, timestamp_ms)
            except RemoteStorageError as error:
                raise store_unavailable(self._storage, error, partition) from error
        return found

    def states(self, partitions: Sequence[Partition], bounds: Mapping[Partition, Bounds]) -> list[PartitionState]:
        del bounds
        return [self._states[each] for each in partitions]


def _unreadable(name: str, error: RemoteStorageError) -> StoreUnavailable:
    return StoreUnavailable(f"a manifest cannot be read: {error}", remedy=MANIFEST_REMEDY, object_name=name)
