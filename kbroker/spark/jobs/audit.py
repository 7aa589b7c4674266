"""`kbroker spark audit`: the tier's deep scrub, in parallel over every segment.

What is compared, and how, is what `kbroker tier scrub --deep` does (`kbroker.tiered.scrubbing`). The driver compares
names and sizes and looks for orphans; each Spark task reads a few segments. Besides, the segments of each partition
have to be one history without a hole (`coverage`).

The metadata are those of a broker's `__remote_log_metadata`; with no broker, those in the store's manifests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, cast
from uuid import UUID

from kbroker.runtime.env import RealEnv
from kbroker.spark.broker_inventory import BrokerInventory
from kbroker.spark.catalogue_following import CatalogueFollower
from kbroker.spark.client import EARLIEST_LOCAL, kept_client
from kbroker.spark.errors import InvalidOption, KbrokerSourceError, StoreUnavailable, unknown_topic
from kbroker.spark.jobs.audit_report import AuditReport, PartitionView, SegmentView
from kbroker.spark.jobs.coverage import check_coverage, with_segments
from kbroker.spark.options import SourceOptions, Subscription
from kbroker.spark.plan import PartitionState, usable_segments
from kbroker.spark.store_inventory import StoreInventory
from kbroker.spark.stores import StoreOptions, open_store
from kbroker.storage.index import TIME_ENTRY
from kbroker.tiered.api import (
    IndexType,
    ListingRemoteStorageManager,
    RemoteLogSegmentMetadata,
    RemoteStorageError,
    RemoteStorageManager,
    TopicIdPartition,
)
from kbroker.tiered.catalogue import DELETED, FINISHED, Catalogue, id_text, partition_of
from kbroker.tiered.scrubbing import Finding, Listed, Scrub, finished_in_both, read_inside
from wire.types import uuid_to_text

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HOUR_MS: Final = 3_600_000
TASK_BYTES: Final = 128 << 20
TASK_SEGMENTS: Final = 8


def audit(
    spark: SparkSession,
    *,
    options: Mapping[str, str],
    topics: Sequence[str] | None = None,
    deep: bool = True,
    min_age_ms: int = HOUR_MS,
    progress: Callable[[str], None] | None = None,
) -> AuditReport:
    """Audit all topics, or some. `options` are those of `format("kbroker")` that name a broker and the store.

    `deep` reads every segment; younger objects than `min_age_ms` that nothing refers to are left alone.
    Errors  KbrokerSourceError
    """
    asked = SourceOptions.parse({**options, "subscribePattern": ".*"})
    if asked.store is None:
        raise InvalidOption("no store is named", remedy="set the store's rsm.config.* as in the broker's settings")
    storage = open_store(asked.store)
    tell = progress or (lambda _text: None)
    env = RealEnv()
    site = _BrokerSite(asked.client) if asked.client is not None else _StoreSite(storage)
    report = AuditReport(site.name, repr(storage), env.timestamp_ms(), deep)
    tell("reading the metadata")
    before = site.catalogue()
    wanted = _wanted(site, before, topics)
    tell("listing the store")
    listed = _listed(storage)
    after = site.catalogue()
    check = Scrub(storage, listed)
    tell("comparing")
    try:
        _take(report, check.compare(before, after, wanted))
        _take(report, check.find_orphans(after, wanted, older_than_ms=report.timestamp_ms - min_age_ms))
    except RemoteStorageError as error:
        raise _unavailable(storage, error) from error
    views = site.partitions(after, wanted)
    for state, local_start in views:
        _take(report, check_coverage(state, local_start))
    if deep:
        whole = check.whole(finished_in_both(before, after, wanted))
        report.read_segments, report.read_bytes = len(whole), sum(each.segment_size_in_bytes for each in whole)
        tell(f"reading {len(whole)} segments")
        _take(report, _read_all(spark, asked.store, whole))
    _describe(report, storage, check, listed, after, wanted=wanted, views=views)
    return report


def _take(report: AuditReport, found: Iterable[Finding]) -> None:
    for each in found:
        (report.notes if each.is_note else report.findings).append(each)


def _listed(storage: RemoteStorageManager) -> Listed:
    if not hasattr(storage, "list_objects"):
        raise KbrokerSourceError(f"{storage!r} cannot list what it holds", remedy="use a manager that can")
    try:
        return Listed.of(cast(ListingRemoteStorageManager, storage).list_objects())
    except (RemoteStorageError, OSError) as error:
        raise _unavailable(storage, error) from error


def _unavailable(storage: RemoteStorageManager, error: Exception) -> StoreUnavailable:
    return StoreUnavailable(
        f"{storage!r} cannot be read: {error}",
        remedy="see that the store answers and that its keys allow to list and read it",
    )


# --- reading, in parallel ---------------------------------------------------------------------------------------------


def groups_of(segments: Sequence[RemoteLogSegmentMetadata]) -> list[list[RemoteLogSegmentMetadata]]:
    """What one task reads each: a few segments, or a large one."""
    groups: list[list[RemoteLogSegmentMetadata]] = []
    size = 0
    for segment in segments:
        if not groups or len(groups[-1]) == TASK_SEGMENTS or size + segment.segment_size_in_bytes > TASK_BYTES:
            groups.append([])
            size = 0
        groups[-1].append(segment)
        size += segment.segment_size_in_bytes
    return groups


def _read_all(
    spark: SparkSession, store: StoreOptions, segments: Sequence[RemoteLogSegmentMetadata]
) -> list[Finding]:  # fmt: skip
    groups = groups_of(segments)
    if not groups:
        return []

    def read(parts: Iterator[list[RemoteLogSegmentMetadata]]) -> Iterator[Finding]:
        storage = open_store(store)
        for part in parts:
            for segment in part:
                yield from read_inside(storage, segment)

    found: list[Finding] = spark.sparkContext.parallelize(groups, len(groups)).mapPartitions(read).collect()
    return found


# --- where the metadata are -------------------------------------------------------------------------------------------


class _BrokerSite:
    def __init__(self, client: Mapping[str, Any]) -> None:
        self._settings = client
        self.name = f"the broker at {','.join(client['bootstrap_servers'])}"

    def catalogue(self) -> Catalogue:
        with kept_client(self._settings) as client:
            return CatalogueFollower(client).read()

    def topics(self) -> set[str]:
        with kept_client(self._settings) as client:
            return set(client.topics())

    def partitions(
        self, catalogue: Catalogue, wanted: Sequence[tuple[str, int]] | None
    ) -> list[tuple[PartitionState, int | None]]:
        segments = _by_partition(catalogue, wanted)
        with kept_client(self._settings) as client:
            there = client.topics({each.topic for each in segments})
            alive = [
                each for each in segments
                if (topic := there.get(each.topic)) and topic.id == each.topic_id and each.partition in topic.leaders
            ]  # fmt: skip
            keys = [(each.topic, each.partition) for each in alive]
            inventory = BrokerInventory(client, has_store=True)
            inventory.topics(Subscription(partitions=tuple(keys)))
            states = inventory.states(keys, inventory.bounds(keys)) if keys else []
            local = client.offsets(dict.fromkeys(keys, EARLIEST_LOCAL)) if keys else {}
        return [
            (with_segments(state, segments[each]), local[each.topic, each.partition].offset)
            for each, state in zip(alive, states, strict=True)
        ]


class _StoreSite:
    """Manifests say what is there; nobody says what should be."""

    name = "the store alone"

    def __init__(self, storage: RemoteStorageManager) -> None:
        self._inventory = StoreInventory(storage)
        self._storage = storage

    def catalogue(self) -> Catalogue:
        partitions = self._all()
        found = Catalogue()
        for state in self._inventory.states(partitions, {}):
            for segment in state.segments:
                found.segments[segment.remote_log_segment_id.id] = segment
        return found

    def topics(self) -> set[str]:
        return {topic for topic, _ in self._all()}

    def _all(self) -> list[tuple[str, int]]:
        found = self._inventory.topics(Subscription(pattern=".*"))
        return [(topic, index) for topic, (_, indexes) in found.items() for index in indexes]

    def partitions(
        self, catalogue: Catalogue, wanted: Sequence[tuple[str, int]] | None
    ) -> list[tuple[PartitionState, int | None]]:
        keys = [(each.topic, each.partition) for each in _by_partition(catalogue, wanted)]
        return [(state, None) for state in self._inventory.states(keys, {})]


def _by_partition(
    catalogue: Catalogue, wanted: Sequence[tuple[str, int]] | None
) -> dict[TopicIdPartition, list[RemoteLogSegmentMetadata]]:
    found: dict[TopicIdPartition, list[RemoteLogSegmentMetadata]] = {}
    for each in catalogue.of(wanted):
        if each.state is not DELETED:
            found.setdefault(each.remote_log_segment_id.topic_id_partition, []).append(each)
    return found


def _wanted(
    site: _BrokerSite | _StoreSite, catalogue: Catalogue, topics: Sequence[str] | None
) -> list[tuple[str, int]] | None:
    if topics is None:
        return None
    there = {partition_of(each) for each in catalogue.of(None)}
    known = {topic for topic, _ in there} | site.topics()
    for topic in topics:
        if topic not in known:
            raise unknown_topic(topic)
    return sorted(each for each in there if each[0] in topics)


# --- the report -------------------------------------------------------------------------------------------------------


def _first_timestamp(storage: RemoteStorageManager, segment: RemoteLogSegmentMetadata) -> int | None:
    """For a picture alone: what is wrong with the index is told elsewhere."""
    try:
        data = storage.fetch_index(segment, IndexType.TIMESTAMP)
    except (RemoteStorageError, OSError):
        return None
    return int(TIME_ENTRY.unpack_from(data)[0]) if len(data) >= TIME_ENTRY.size else None


def _describe(
    report: AuditReport,
    storage: RemoteStorageManager,
    check: Scrub,
    listed: Listed,
    catalogue: Catalogue,
    *,
    wanted: Sequence[tuple[str, int]] | None,
    views: Sequence[tuple[PartitionState, int | None]],
) -> None:
    report.segments, report.bytes = check.segments, check.bytes
    report.objects, report.object_bytes = listed.count, listed.size
    if catalogue.unreadable:
        report.warnings.append(f"{catalogue.unreadable} records of the metadata topic cannot be read")
    if catalogue.strays:
        report.warnings.append(f"{catalogue.strays} records of the metadata topic do not follow from those before")
    if not catalogue.is_whole:
        report.warnings.append("the beginning of the metadata topic is gone: there may be more segments")
    problems: dict[UUID, list[str]] = {}
    for each in report.findings:
        if each.segment is not None:
            problems.setdefault(each.segment.remote_log_segment_id.id, []).append(each.text)
    known = {state.id: (state, local) for state, local in views}
    for id_, segments in sorted(_by_partition(catalogue, wanted).items(), key=lambda item: item[0][1:]):
        state, local = known.get(id_, (None, None))
        used = {each.remote_log_segment_id.id for each in usable_segments(state)} if state is not None else set()
        is_live = state is not None and state.has_broker
        report.partitions.append(
            PartitionView(
                id_.topic,
                uuid_to_text(id_.topic_id),
                id_.partition,
                exists=state is not None,
                log_start_offset=None if state is None else state.log_start_offset,
                local_log_start_offset=local,
                end_offset=state.end_offset if state is not None and is_live else None,
                first_timestamp_ms=_first_timestamp(storage, segments[0]),
                segments=tuple(
                    SegmentView(
                        id_text(each), each.start_offset, each.end_offset, each.segment_size_in_bytes,
                        each.max_timestamp_ms, each.event_timestamp_ms, each.state.name,
                        each.state is FINISHED and each.remote_log_segment_id.id in used,
                        tuple(problems.get(each.remote_log_segment_id.id, ())),
                    )
                    for each in segments
                ),
            )
        )  # fmt: skip
