"""Finds out what a store holds of a topic whose cluster is gone, and what of it fits together.

A segment is described by its manifest. It is usable if every object that the manifest names is there with its size. The
history of a partition is that of its newest usable segment, whose leader epoch checkpoint was stored with it. Segments
of other histories, and segments that lie within others, are left out.

An issue is a problem if the store should hold something that cannot be read; attaching is then refused unless the user
asks for the newest part of each partition that has no gap. It is a note if leaving it out loses nothing that was ever
completely in the tier: unfinished copies, overlaps, other histories.

Nothing is written to the store.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple, cast
from uuid import UUID

from kbroker.config.topic import MAX_ATTACHED_EPOCH
from kbroker.storage.batch_reader import BatchReader
from kbroker.tiered.api import (
    FINISHED,
    STARTED,
    DescribedRemoteStorageManager,
    IndexType,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteResourceNotFound,
    RemoteStorageError,
    RemoteStorageManager,
    RetriableRemoteStorageError,
    TopicIdPartition,
)
from kbroker.tiered.auxiliary_state import AuxiliaryState, state_after
from kbroker.tiered.calls import plugin_errors
from kbroker.tiered.layout import (
    MANIFEST,
    SEGMENT,
    AttachedObjects,
    Manifest,
    ObjectName,
    kind_of,
    object_stem,
    parse_object_name,
    stored_size,
    topic_in_names,
)
from kbroker.tiered.lifecycle import MetadataEvent
from kbroker.tiered.metadata_topic import encode_event
from kbroker.tiered.plan import Lineage, clipped_epochs
from kbroker.tiered.scrubbing import ALWAYS_THERE
from kbroker.tiered.segment_files import RemoteFile

THREADS: Final = 16
NO_BROKER: Final = -1
MAX_INT64: Final = (1 << 63) - 1
MOST_PARTITIONS: Final = 10_000
"""As many as a controller creates at once. A stray object may name any partition."""
MAX_MANIFEST_BYTES: Final = 4 << 20


class Broken(NamedTuple):
    """A segment that cannot be used. Shape: is_unfinished: its copy never ended, or its deletion began."""

    name: ObjectName
    why: str
    is_unfinished: bool


class Issue(NamedTuple):
    """Something that does not fit together."""

    partition: int
    text: str
    is_note: bool


@dataclass(slots=True)
class StoredTopic:
    """A topic in the store; `name` is the truncated one of object names if no manifest can be read."""

    topic_id: UUID
    name: str
    segments: list[RemoteLogSegmentMetadata] = field(default_factory=list)
    broken: list[Broken] = field(default_factory=list)


class Until(NamedTuple):
    """Where the attached part of a partition ends at the latest: an offset, and the time of the first later record."""

    offset: int = MAX_INT64
    timestamp_ms: int | None = None


@dataclass(slots=True)
class AttachablePartition:
    """The usable part of a partition.

    Shape   segments ascend in start and end. The last one may be a part of a segment;
            open are the transactions that are open at its end, as producer id and first offset
    Units   end_offset is exclusive
    """

    index: int
    segments: list[RemoteLogSegmentMetadata] = field(default_factory=list)
    open: tuple[tuple[int, int], ...] = ()
    start_offset: int = 0
    end_offset: int = 0
    leader_epoch: int = -1
    issues: list[Issue] = field(default_factory=list)

    def note(self, text: str) -> None:
        self.issues.append(Issue(self.index, text, is_note=True))

    def problem(self, text: str) -> None:
        self.issues.append(Issue(self.index, text, is_note=False))


def stored_topics(
    storage: RemoteStorageManager, *, name: str | None = None, topic_ids: Iterable[UUID] = ()
) -> dict[UUID, StoredTopic]:
    """The topics of the store, or those with this name or with these ids.

    Errors  RemoteStorageError if the store does not answer
    """
    described, ids = cast(DescribedRemoteStorageManager, storage), frozenset(topic_ids)
    wanted = None if name is None else topic_in_names(name)
    sizes: dict[str, dict[str, int]] = {}
    for stored in described.list_objects():
        parsed = parse_object_name(stored.name)
        if parsed is None or (ids and parsed.topic_id not in ids) or (not ids and wanted not in (None, parsed.topic)):
            continue
        sizes.setdefault(stored.name[: -len(parsed.kind)], {})[parsed.kind] = stored.size
    found: dict[UUID, StoredTopic] = {}
    with ThreadPoolExecutor(THREADS, thread_name_prefix="kbroker-attach") as threads:
        for stem, one in zip(sizes, threads.map(lambda each: _examined(described, *each), sizes.items()), strict=True):
            parsed = parse_object_name(f"{stem}{SEGMENT}")
            assert parsed is not None
            topic = found.setdefault(parsed.topic_id, StoredTopic(parsed.topic_id, parsed.topic))
            if isinstance(one, RemoteLogSegmentMetadata):
                topic.segments.append(one)
                topic.name = one.remote_log_segment_id.topic_id_partition.topic
            else:
                topic.broken.append(Broken(parsed, *one))
    if name is not None and not ids:  # names of objects may be truncated
        found = {each: topic for each, topic in found.items() if topic.name in (name, wanted)}
    return found


def _examined(
    storage: DescribedRemoteStorageManager, stem: str, sizes: Mapping[str, int]
) -> RemoteLogSegmentMetadata | tuple[str, bool]:
    """The metadata of a usable segment, or why it is not usable, and whether it is unfinished."""
    name = f"{stem}{MANIFEST}"
    if MANIFEST not in sizes:
        return "it has no manifest: its copy was not finished, or its deletion began", True
    if sizes[MANIFEST] > MAX_MANIFEST_BYTES:
        return f"its manifest has {sizes[MANIFEST]} bytes", False
    try:
        manifest = Manifest.parse_named(storage.read_manifest(name), name)
        encode_event(replace(manifest.metadata, state=STARTED))
    except struct.error as error:
        return f"its manifest has impossible values: {error}", False
    except RemoteResourceNotFound:
        return "its manifest was deleted during the search", True
    except RetriableRemoteStorageError:
        raise
    except RemoteStorageError as error:
        return f"its manifest cannot be used: {error}", False
    metadata = manifest.metadata
    expected = {kind: file.size for kind, file in manifest.files.items()}
    needed = [*ALWAYS_THERE, *([] if metadata.txn_index_empty else [kind_of(IndexType.TRANSACTION)])]
    for kind in (*needed, *expected):
        if kind not in expected or kind not in sizes:
            return f"its {kind} is missing", False
        if sizes[kind] != expected[kind]:
            return f"its {kind} has {sizes[kind]} bytes instead of {expected[kind]}", False
    if expected[SEGMENT] != metadata.segment_size_in_bytes:
        return (
            f"its manifest gives its size as {metadata.segment_size_in_bytes} and as {expected[SEGMENT]} bytes",
            False,
        )
    return metadata


def attachable_partitions(
    storage: RemoteStorageManager, topics: Iterable[StoredTopic], *, until: Mapping[int | None, Until], is_partial: bool
) -> list[AttachablePartition]:
    """The partitions of one topic, which may be stored under several ids because it was attached before.

    `until` has the ends of partitions; that of None is for all others. With `is_partial` only the newest part of a
    partition that has no gap is used. Errors: RetriableRemoteStorageError.
    """
    segments: dict[int, list[RemoteLogSegmentMetadata]] = {}
    broken: dict[int, list[Broken]] = {}
    for topic in topics:
        for one in topic.segments:
            segments.setdefault(one.remote_log_segment_id.topic_id_partition.partition, []).append(one)
        for other in topic.broken:
            broken.setdefault(other.name.partition, []).append(other)
    indexes = segments.keys() | broken.keys()
    found = []
    for index in range(max((each for each in indexes if each < MOST_PARTITIONS), default=0) + 1 if indexes else 0):
        partition, end = AttachablePartition(index), until.get(index, until.get(None, Until()))
        unusable = [one for one in broken.get(index, ()) if one.name.start_offset < end.offset]
        _choose(storage, partition, segments.get(index, []), unusable, end.offset, is_partial=is_partial)
        if partition.segments:
            try:
                _cut(storage, partition, end)
            except RetriableRemoteStorageError:
                raise
            except RemoteStorageError as error:
                partition.problem(str(error))
        found.append(partition)
    if left_out := [each for each in indexes if each >= MOST_PARTITIONS]:
        found[0].problem(
            f"the partitions from {min(left_out)} on are left out: at most {MOST_PARTITIONS} can be attached"
        )
    return found


def _choose(
    storage: RemoteStorageManager,
    partition: AttachablePartition,
    segments: list[RemoteLogSegmentMetadata],
    broken: list[Broken],
    end_offset: int,
    *,
    is_partial: bool,
) -> None:
    """Choose the segments of the newest history that begin before `end_offset`, and report everything else."""
    left = sorted(segments, key=lambda one: (one.segment_leader_epochs[-1][0], one.end_offset, one.event_timestamp_ms))
    state: AuxiliaryState | None = None
    while left and state is None:
        try:
            state = state_after(storage, left[-1])
            if not state.leader_epochs:
                raise RemoteStorageError("its leader epoch checkpoint is empty")
            if state.leader_epochs[-1][0] > MAX_ATTACHED_EPOCH:
                raise RemoteStorageError(f"its last leader epoch is {state.leader_epochs[-1][0]}")
        except RetriableRemoteStorageError:
            raise
        except RemoteStorageError as error:
            state = None
            partition.problem(f"{_range(left[-1])} cannot be used: {error}")
            left.pop()
    if state is None:
        if not broken:
            partition.note("nothing of it is in the store")
        _report_broken(partition, broken)
        return
    epochs = state.leader_epochs
    lineage = Lineage(epochs, log_end_offset=state.next_offset)
    part: list[RemoteLogSegmentMetadata] = []
    all_parts: list[RemoteLogSegmentMetadata] = []
    wanted = [one for one in left if one.start_offset < end_offset]
    for one in sorted(wanted, key=lambda one: (one.start_offset, -one.end_offset)):
        reached = part[-1].end_offset + 1 if part else one.start_offset
        if one not in lineage:  # its beginning may be the only copy of records that both histories have
            shared = _shared_part(storage, partition, one, part, lineage)
            if shared is None or shared.end_offset < reached:
                partition.note(f"{_range(one)} belongs to another history of the partition and is left out")
                continue
            partition.note(f"{_range(one)} belongs to another history from {shared.end_offset + 1} on and is cut there")
            one = shared  # noqa: PLW2901
        if one.end_offset < epochs[0][1]:
            partition.note(f"{_range(one)} lies before the log start offset and is left out")
            continue
        if one.end_offset < reached:
            partition.note(f"{_range(one)} lies within another segment and is left out")
            continue
        if one.start_offset > reached:
            partition.problem(f"the offsets {reached} to {one.start_offset - 1} are missing")
            part = []
        elif one.start_offset < reached:
            partition.note(f"{_range(one)} overlaps the segment before it")
        part.append(one)
        all_parts.append(one)
    partition.segments = part if is_partial else all_parts
    _report_broken(partition, broken)
    partition.leader_epoch = epochs[-1][0]
    if partition.segments:
        partition.start_offset = max(partition.segments[0].start_offset, epochs[0][1])


def _shared_part(
    storage: RemoteStorageManager,
    partition: AttachablePartition,
    segment: RemoteLogSegmentMetadata,
    before: Sequence[RemoteLogSegmentMetadata],
    lineage: Lineage,
) -> RemoteLogSegmentMetadata | None:
    """The first records of a segment, as a smaller one, up to where it leaves the newest history. None if it has no
    record of that history at its beginning. Errors: RetriableRemoteStorageError; others are reported.
    """
    end = lineage.shared_end(segment)
    if end is None:
        return None
    try:
        found = _part_before(storage, segment, before, Until(end))
    except RetriableRemoteStorageError:
        raise
    except RemoteStorageError as error:
        partition.problem(str(error))
        return None
    if found is None or not found[0].segment_size_in_bytes:
        return None
    part, opened = found
    objects = AttachedObjects(object_stem(segment), stored_size(segment), opened)
    return replace(part, custom_metadata=objects.to_bytes())


def _report_broken(partition: AttachablePartition, broken: Iterable[Broken]) -> None:
    for one in sorted(broken, key=lambda one: one.name.start_offset):
        offset = one.name.start_offset
        has_copy = any(each.start_offset <= offset <= each.end_offset for each in partition.segments)
        text = f"the segment at offset {offset} is left out: {one.why}"
        if one.is_unfinished or has_copy:
            partition.note(text)
        else:
            partition.problem(text)


def _range(segment: RemoteLogSegmentMetadata) -> str:
    return f"the segment {segment.start_offset}-{segment.end_offset}"


def _cut(storage: RemoteStorageManager, partition: AttachablePartition, until: Until) -> None:
    """Leave out what lies behind `until`, and find the transactions that are open at the end."""
    segments, partition.segments = partition.segments, []
    partition.end_offset = partition.start_offset
    for one in segments:
        is_late = until.timestamp_ms is not None and one.max_timestamp_ms >= until.timestamp_ms
        if one.end_offset >= until.offset or is_late:
            found = _part_before(storage, one, partition.segments, until)
            if found is not None:
                part, partition.open = found
                if part.segment_size_in_bytes and part.end_offset >= partition.end_offset:
                    partition.segments.append(part)
                    partition.end_offset = part.end_offset + 1
                break
        partition.segments.append(one)
        partition.end_offset = one.end_offset + 1
    else:
        partition.open = _open_after(storage, partition.segments)
    if not partition.segments:
        partition.note("nothing of it lies before the end that was asked for")
        partition.start_offset = partition.end_offset = 0
    elif partition.open:
        partition.note(f"{len(partition.open)} transactions are open at its end and will be aborted")


def _open_after(
    storage: RemoteStorageManager, segments: Sequence[RemoteLogSegmentMetadata]
) -> tuple[tuple[int, int], ...]:
    """The open transactions after these segments, by the producer snapshot of the last one."""
    if not segments:
        return ()
    entries = state_after(storage, segments[-1]).producers
    return tuple((one.producer_id, at) for one in entries if (at := one.current_txn_first_offset) >= 0)


def _part_before(
    storage: RemoteStorageManager,
    segment: RemoteLogSegmentMetadata,
    before: Sequence[RemoteLogSegmentMetadata],
    until: Until,
) -> tuple[RemoteLogSegmentMetadata, tuple[tuple[int, int], ...]] | None:
    """The batches of a segment before the first one that `until` excludes, as the metadata of a smaller segment, and
    the transactions that are open after them; None for the whole segment. Reads the segment up to there.

    Errors  RemoteStorageError
    """
    opened, floor = dict(_open_after(storage, before)), before[-1].end_offset + 1 if before else 0
    end, size, max_timestamp_ms = segment.start_offset, 0, -1
    reader = BatchReader(RemoteFile(storage, segment, str(segment.remote_log_segment_id.id)))
    with plugin_errors("fetch_log_segment"):
        for batch in reader:
            # Markers have the time of the coordinator; it says nothing about the records.
            is_late = until.timestamp_ms is not None and batch.max_timestamp >= until.timestamp_ms
            if batch.last_offset >= until.offset or (is_late and not batch.is_control):
                break
            end, size = batch.next_offset, size + batch.size
            max_timestamp_ms = max(max_timestamp_ms, batch.max_timestamp)
            if batch.base_offset < floor:
                continue  # it is in the segment before, too
            if batch.is_control:
                opened.pop(batch.producer_id, None)
            elif batch.is_transactional:
                opened.setdefault(batch.producer_id, batch.base_offset)
        else:
            if reader.error is not None:
                raise RemoteStorageError(f"{_range(segment)} is damaged at byte {reader.position}: {reader.error}")
            return None
    part = replace(
        segment,
        end_offset=end - 1,
        max_timestamp_ms=max_timestamp_ms,
        segment_leader_epochs=clipped_epochs(segment.segment_leader_epochs, segment.start_offset, end),
        segment_size_in_bytes=size,
        custom_metadata=AttachedObjects(object_stem(segment), stored_size(segment)).to_bytes(),
    )
    return part, tuple(opened.items())


def events(partition: AttachablePartition, named: TopicIdPartition, ids: Iterator[UUID]) -> Iterator[MetadataEvent]:
    """The records that make the segments those of another topic's partition, in the order in which they are written."""
    for one in partition.segments:
        is_last = one is partition.segments[-1]
        objects = AttachedObjects(object_stem(one), stored_size(one), partition.open if is_last else ())
        segment_id, custom_metadata = RemoteLogSegmentId(named, next(ids)), objects.to_bytes()
        yield replace(
            one,
            remote_log_segment_id=segment_id,
            state=STARTED,
            custom_metadata=custom_metadata,
            broker_id=NO_BROKER,
        )
        yield RemoteLogSegmentMetadataUpdate(
            segment_id, one.event_timestamp_ms, FINISHED, NO_BROKER, custom_metadata=custom_metadata
        )
