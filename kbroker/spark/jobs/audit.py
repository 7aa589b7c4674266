"""`kbroker spark audit`: the tier's deep scrub, in parallel over all segments.

The checks are those of `kbroker tier scrub --deep` (`kbroker.tiered.scrubbing`). The driver compares names and sizes
and looks for orphans; each Spark task reads a few segments. In addition, the segments of each partition must form one
history without gaps (`coverage`).

The metadata comes from a broker's `__remote_log_metadata`, or without a broker from the manifests in the store.

Segments come and go during an audit, which may take hours. So the order of requests matters. The audit asks for the
local log start offsets before it reads the metadata, so that the metadata has everything that left the local log. It
asks for the log start offsets after that, so that offsets missing in the metadata have expired. A finding about a
segment counts only if the deletion of the segment has not begun in the meantime.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast
from uuid import UUID

from kbroker.runtime.env import RealEnv
from kbroker.spark.client import BrokerClient
from kbroker.spark.errors import InvalidOption, KbrokerSourceError, store_unavailable, unknown_topic
from kbroker.spark.inventory import by_partition
from kbroker.spark.jobs.audit_report import AuditReport, PartitionView, SegmentView
from kbroker.spark.jobs.audit_sites import BrokerSite, StoreSite
from kbroker.spark.jobs.coverage import check_coverage
from kbroker.spark.options import SourceOptions
from kbroker.spark.plan import PartitionState, usable_segments
from kbroker.spark.store_inventory import MANIFEST_REMEDY
from kbroker.spark.stores import StoreOptions, open_store
from kbroker.storage.index import TIME_ENTRY
from kbroker.tiered.api import (
    DELETED,
    FINISHED,
    IndexType,
    ListingRemoteStorageManager,
    RemoteLogSegmentMetadata,
    RemoteStorageError,
    RemoteStorageManager,
    TopicIdPartition,
)
from kbroker.tiered.catalogue import Catalogue, id_text, partition_of
from kbroker.tiered.layout import parse_object_name, topic_in_names
from kbroker.tiered.scrubbing import Finding, Listed, Scrub, is_deleted_meanwhile, read_inside
from wire.types import uuid_to_text

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HOUR_MS: Final = 3_600_000
TASK_BYTES: Final = 128 << 20
TASK_SEGMENTS: Final = 8

Site: TypeAlias = BrokerSite | StoreSite


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

    `deep` reads every segment; unreferenced objects younger than `min_age_ms` are ignored.
    Errors  KbrokerSourceError
    """
    asked = SourceOptions.parse({**options, "subscribePattern": ".*"})
    if asked.store is None:
        raise InvalidOption("no store is named", remedy="set the store's rsm.config.* as in the broker's settings")
    storage, tell = open_store(asked.store), progress or (lambda _text: None)
    with _site(asked.client, storage) as site:
        report = AuditReport(site.name, repr(storage), RealEnv().timestamp_ms(), deep)
        tell("reading the metadata")
        before, damaged_before = site.catalogue(), site.damaged_manifests()
        wanted = _wanted(site, before, topics)
        local_starts = site.local_starts(topics)
        tell("listing the store")
        listed = _listed(storage)
        after = site.catalogue()
        damaged = {name: why for name, why in site.damaged_manifests().items() if name in damaged_before}
        check = Scrub(storage, listed)
        tell("comparing")
        try:
            _take(report, check.compare(before, after, wanted))
            orphans = check.find_orphans(before, after, wanted, older_than_ms=report.timestamp_ms - min_age_ms)
            _take(report, _without_manifest(orphans, damaged, topics))
        except RemoteStorageError as error:
            raise store_unavailable(storage, error) from error
        segments = by_partition(each for each in after.of(wanted) if each.state is not DELETED)
        states = site.states(segments, local_starts)
        for state in states:
            # The local log start offset of a partition that was created during the audit is not known.
            if state.id in local_starts or not state.has_broker:
                _take(report, check_coverage(state, local_starts.get(state.id)))
        if deep:
            whole = check.whole
            report.read_segments, report.read_bytes = len(whole), sum(each.segment_size_in_bytes for each in whole)
            tell(f"reading {len(whole)} segments")
            _take(report, _read_all(spark, asked.store, whole))
        _forget_deleted(report, site)
    report.segments, report.bytes = check.segments, check.bytes
    report.objects, report.object_bytes = listed.count, listed.size
    report.warnings += after.warnings()
    _describe(report, storage, segments, {state.id: state for state in states}, local_starts)
    return report


@contextmanager
def _site(client: Mapping[str, Any] | None, storage: RemoteStorageManager) -> Iterator[Site]:
    if client is None:
        yield StoreSite(storage)
        return
    with BrokerClient(client) as connection:
        yield BrokerSite(connection, ",".join(client["bootstrap_servers"]))


def _forget_deleted(report: AuditReport, site: Site) -> None:
    """Drop findings about segments whose deletion has begun."""
    if not report.findings:
        return
    try:
        now = site.catalogue()
    except KbrokerSourceError as error:
        report.warnings.append(f"some findings may be about segments that were deleted during the audit: {error}")
        return
    found, report.findings = report.findings, []
    gone: set[UUID] = set()
    for each in found:
        if each.segment is not None and is_deleted_meanwhile(each, now):
            gone.add(each.segment.remote_log_segment_id.id)
        else:
            report.findings.append(each)
    report.deleted_meanwhile = len(gone)


def _without_manifest(
    found: Iterable[Finding], damaged: Mapping[str, str], topics: Sequence[str] | None
) -> Iterator[Finding]:
    """Replaces the orphans that result from damaged manifests by findings about the manifests."""
    segment_ids: set[UUID] = set()
    names = None if topics is None else {topic_in_names(topic) for topic in topics}
    for name, why in sorted(damaged.items()):
        parsed = parse_object_name(name)
        assert parsed is not None, "only names of manifests are in `damaged`"
        segment_ids.add(parsed.segment_id)
        if names is None or parsed.topic in names:
            text = f"cannot be read: {why}; its segment is not audited. Remedy: {MANIFEST_REMEDY}"
            yield Finding("damage", text, name=name)
    for each in found:
        parsed = parse_object_name(each.name) if each.segment is None else None
        if parsed is None or parsed.segment_id not in segment_ids:
            yield each


def _take(report: AuditReport, found: Iterable[Finding]) -> None:
    for each in found:
        (report.notes if each.is_note else report.findings).append(each)


def _listed(storage: RemoteStorageManager) -> Listed:
    if not hasattr(storage, "list_objects"):
        raise KbrokerSourceError(f"{storage!r} cannot list its objects", remedy="use a storage manager that can")
    try:
        return Listed.of(cast(ListingRemoteStorageManager, storage).list_objects())
    except (RemoteStorageError, OSError) as error:
        raise store_unavailable(storage, error) from error


def _wanted(site: Site, catalogue: Catalogue, topics: Sequence[str] | None) -> list[tuple[str, int]] | None:
    if topics is None:
        return None
    there = {partition_of(each) for each in catalogue.of(None)}
    known = {topic for topic, _ in there} | site.topics()
    for topic in topics:
        if topic not in known:
            raise unknown_topic(topic)
    return sorted(each for each in there if each[0] in topics)


# --- reading, in parallel ---------------------------------------------------------------------------------------------


def groups_of(segments: Sequence[RemoteLogSegmentMetadata]) -> list[list[RemoteLogSegmentMetadata]]:
    """The segments of each task: several small ones, or one large one."""
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


# --- the report -------------------------------------------------------------------------------------------------------


def _first_timestamp(storage: RemoteStorageManager, segment: RemoteLogSegmentMetadata) -> int | None:
    """Only for a chart; the scrub reports problems of the index."""
    try:
        data = storage.fetch_index(segment, IndexType.TIMESTAMP)
    except (RemoteStorageError, OSError):
        return None
    return int(TIME_ENTRY.unpack_from(data)[0]) if len(data) >= TIME_ENTRY.size else None


def _describe(
    report: AuditReport,
    storage: RemoteStorageManager,
    segments: Mapping[TopicIdPartition, Sequence[RemoteLogSegmentMetadata]],
    states: Mapping[TopicIdPartition, PartitionState],
    local_starts: Mapping[TopicIdPartition, int],
) -> None:
    problems: dict[UUID, list[str]] = {}
    for each in report.findings:
        if each.segment is not None:
            problems.setdefault(each.segment.remote_log_segment_id.id, []).append(each.text)
    for id_ in sorted(segments, key=lambda each: each[1:]):
        state = states.get(id_)
        used = {each.remote_log_segment_id.id for each in usable_segments(state)} if state else set()
        report.partitions.append(
            PartitionView(
                id_.topic,
                uuid_to_text(id_.topic_id),
                id_.partition,
                exists=state is not None,
                log_start_offset=state.log_start_offset if state else None,
                local_log_start_offset=local_starts.get(id_) if state else None,
                end_offset=state.end_offset if state and state.has_broker else None,
                first_timestamp_ms=_first_timestamp(storage, segments[id_][0]),
                segments=tuple(
                    SegmentView(
                        id_text(each), each.start_offset, each.end_offset, each.segment_size_in_bytes,
                        each.max_timestamp_ms, each.event_timestamp_ms, each.state.name,
                        each.state is FINISHED and each.remote_log_segment_id.id in used,
                        tuple(problems.get(each.remote_log_segment_id.id, ())),
                    )
                    for each in segments[id_]
                ),
            )
        )  # fmt: skip
