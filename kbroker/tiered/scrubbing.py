"""What of a store is not as the metadata say: objects that are missing, of another size, or that nothing refers to.

The metadata are read, then the store is listed, then the metadata are read again, and once more when something was
found: what only looks wrong because something moved meanwhile is not told. A list may be stale, so that what it lacks
is asked for by name before it is called missing, and what it has too much before it is called an orphan.

Findings are what is wrong; notes are what the broker is about to settle by itself: copies and deletions under way.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, cast
from uuid import UUID

from kbroker.tiered.api import (
    DescribedRemoteStorageManager,
    IndexType,
    RemoteLogSegmentMetadata,
    RemoteObjectDamaged,
    RemoteResourceNotFound,
    RemoteStorageError,
    RemoteStorageManager,
    RetriableRemoteStorageError,
    StoredObject,
)
from kbroker.tiered.catalogue import DELETED, DELETING, FINISHED, Catalogue, Partition, id_text, name_of, partition_of
from kbroker.tiered.layout import MANIFEST, SEGMENT, Manifest, kind_of, object_name
from kbroker.tiered.scrubbing_inside import check_segment
from wire.types import uuid_to_text

ALWAYS_THERE: Final = (
    SEGMENT,
    *(kind_of(each) for each in IndexType if each is not IndexType.TRANSACTION),
)
"""What every copy has; a transaction index only where there were transactions."""


class Finding(NamedTuple):
    """Something that is wrong, or (a note) under way.

    Shape  problem is its sort in a word; name is an object's, or empty; segment None where none is concerned
    """

    problem: str
    text: str
    segment: RemoteLogSegmentMetadata | None = None
    name: str = ""
    is_note: bool = False

    def line(self) -> str:
        """For people."""
        subject = self.name if self.segment is None else name_of(self.segment)
        return f"{subject}: {'note: ' if self.is_note else ''}{self.text}"

    def as_json(self) -> dict[str, Any]:
        """For machines."""
        kind = "note" if self.is_note else "finding"
        told = {"kind": kind, "problem": self.problem, "text": self.text, "object": self.name or None}
        if self.segment is not None:
            topic, partition = partition_of(self.segment)
            told |= {"topic": topic, "partition": str(partition), "segment_id": id_text(self.segment)}
        return told


@dataclass(slots=True)
class Listed:
    """What the store holds: by segment and kind, and what has a name that says nothing."""

    objects: dict[UUID, dict[str, StoredObject]] = field(default_factory=lambda: defaultdict(dict))
    unnamed: list[StoredObject] = field(default_factory=list)
    count: int = 0
    size: int = 0

    @classmethod
    def of(cls, objects: Iterable[StoredObject]) -> Listed:
        listed = cls()
        for each in objects:
            listed.count += 1
            listed.size += each.size
            if each.segment_id is None:
                listed.unnamed.append(each)
                continue
            # What is no file of the segment may be called as it likes, and there may be several.
            kind = each.name.rpartition("/")[2] if each.is_auxiliary else kind_of(each.index_type)
            listed.objects[each.segment_id][kind] = each
        return listed


def finished_in_both(
    before: Catalogue, after: Catalogue, wanted: Sequence[Partition] | None
) -> list[RemoteLogSegmentMetadata]:
    """What was there to be listed the whole time."""
    return [
        each
        for each in after.of(wanted)
        if each.state is FINISHED
        and (known := before.segments.get(each.remote_log_segment_id.id)) is not None
        and known.state is FINISHED
    ]


def is_deleted_meanwhile(finding: Finding, now: Catalogue) -> bool:
    """Whether it is of a segment that was finished when it was looked at, and that by now is being deleted, or has gone
    from the metadata: these are told before the first object goes, so that nobody knows whether it was wrong before.
    """
    segment = finding.segment
    if finding.is_note or segment is None or segment.state is not FINISHED:
        return False
    known = now.segments.get(segment.remote_log_segment_id.id)
    return known is None or known.state in {DELETING, DELETED}


class Scrub:
    """One comparison of a store with the metadata.

    Shape   segments and bytes are what `compare` looked at, orphans what `find_orphans` found that may be deleted
    Errors  RetriableRemoteStorageError from a store that neither lists nor gives anything
    """

    def __init__(self, storage: RemoteStorageManager, listed: Listed) -> None:
        self._storage = storage
        self._listed = listed
        self._damaged: set[UUID] = set()
        self.orphans: list[RemoteLogSegmentMetadata] = []
        self.segments = self.bytes = 0

    def compare(self, before: Catalogue, after: Catalogue, wanted: Sequence[Partition] | None) -> Iterator[Finding]:
        """Look for missing objects and wrong sizes."""
        for segment in finished_in_both(before, after, wanted):
            self.segments += 1
            self.bytes += segment.segment_size_in_bytes
            held = self._listed.objects.get(segment.remote_log_segment_id.id, {})
            for kind in ALWAYS_THERE:
                if kind in held:
                    continue
                wrong = self._ask_for(segment, kind)
                if wrong is None:
                    yield Finding("stale-list", f"the {kind} is there, though it is not listed", segment, is_note=True)
                else:
                    self._damaged.add(segment.remote_log_segment_id.id)
                    yield wrong
            found = held.get(SEGMENT)
            if found is not None and found.size != segment.segment_size_in_bytes:
                self._damaged.add(segment.remote_log_segment_id.id)
                text = f"the {SEGMENT} has {found.size} bytes instead of {segment.segment_size_in_bytes}"
                yield Finding("size", text, segment, found.name)
        for segment in after.of(wanted):
            if segment.state not in {FINISHED, DELETED}:
                yield Finding("unfinished", f"is in the state {segment.state.name}", segment, is_note=True)

    def _ask_for(self, segment: RemoteLogSegmentMetadata, kind: str) -> Finding | None:
        """Ask for what the list does not have, since a list may be old; what is wrong with it."""
        try:
            if kind == SEGMENT:
                # The last byte, which a log that was cut does not have.
                last = segment.segment_size_in_bytes - 1
                with self._storage.fetch_log_segment(segment, last, last) as stream:
                    if not stream.read(1):
                        raise RemoteObjectDamaged(f"it ends before byte {last}")
            else:
                self._storage.fetch_index(segment, IndexType(kind))
        except RemoteResourceNotFound:
            return Finding("missing", f"the {kind} is missing", segment)
        except RemoteObjectDamaged as error:
            return Finding("size", f"the {kind} has another size: {error}", segment)
        except (RemoteStorageError, OSError) as error:
            is_passing = isinstance(error, RetriableRemoteStorageError)
            if is_passing and not self._listed.count:
                raise  # nothing is listed, nothing given: it is the store that is not there
            # As `read_inside` tells it: a store that says no to an index for good knows that it is another one.
            problem = "unreadable" if is_passing or kind == SEGMENT else "damage"
            return Finding(problem, f"the {kind} cannot be read: {error}", segment)
        return None

    def find_orphans(
        self, before: Catalogue, after: Catalogue, wanted: Sequence[Partition] | None, *, older_than_ms: int
    ) -> Iterator[Finding]:
        """Look for objects of segments that were deleted, or unknown, already when the store was listed. Nothing is
        known of whose topic the unknown are, so that they are told only where all topics are meant.
        """
        for segment_id, objects in sorted(self._listed.objects.items()):
            segment, earlier = after.segments.get(segment_id), before.segments.get(segment_id)
            if segment is None:
                if wanted is None and earlier is None:
                    yield from _unknown(segment_id, objects, older_than_ms)
            elif earlier is None or earlier.state is not DELETED:
                continue  # its objects are those of a segment, or they went while they were listed
            elif wanted is None or partition_of(segment) in wanted:
                yield from self._left_of(segment, objects.values(), older_than_ms)
        if wanted is None:
            for each in self._listed.unnamed:
                yield Finding("foreign", "has a name that no segment's object has", name=each.name)

    def _left_of(
        self, segment: RemoteLogSegmentMetadata, objects: Iterable[StoredObject], older_than_ms: int
    ) -> Iterator[Finding]:
        """Of a segment that was deleted."""
        there = []
        for each in objects:
            if self._is_there(segment, each):
                there.append(each)
            else:
                text = "is listed, though it is not there any more"
                yield Finding("stale-list", text, segment, each.name, is_note=True)
        if any(each.modified_ms > older_than_ms for each in there):
            yield Finding("young", "is deleted, but its objects are young", segment, is_note=True)
        elif there:
            self.orphans.append(segment)
            for each in there:
                text = f"is left of a segment that was deleted ({each.size} bytes)"
                yield Finding("orphan", text, segment, each.name)

    def _is_there(self, segment: RemoteLogSegmentMetadata, listed: StoredObject) -> bool:
        """Ask by name, as far as there is a way to; whatever else is wrong with it, it is there."""
        try:
            if not listed.is_auxiliary and listed.index_type is not None:
                self._storage.fetch_index(segment, listed.index_type)
            elif not listed.is_auxiliary:
                with self._storage.fetch_log_segment(segment, 0, 0) as stream:
                    stream.read(1)
            elif listed.name == object_name(segment, MANIFEST) and hasattr(self._storage, "read_manifest"):
                cast(DescribedRemoteStorageManager, self._storage).read_manifest(listed.name)
        except RemoteResourceNotFound:
            return False
        except (RemoteStorageError, OSError):
            return True
        return True

    def whole(self, segments: Iterable[RemoteLogSegmentMetadata]) -> list[RemoteLogSegmentMetadata]:
        """Those in which `compare` found nothing wrong, so that they can be read."""
        return [each for each in segments if each.remote_log_segment_id.id not in self._damaged]


def _unknown(segment_id: UUID, objects: dict[str, StoredObject], older_than_ms: int) -> Iterator[Finding]:
    for each in objects.values():
        if each.modified_ms <= older_than_ms:
            text = f"is of the segment {uuid_to_text(segment_id)}, of which the metadata know nothing"
            yield Finding("unknown", f"{text} ({each.size} bytes)", name=each.name)
        else:
            yield Finding("young", "is of no segment that is known, but young", name=each.name, is_note=True)


def read_inside(storage: RemoteStorageManager, segment: RemoteLogSegmentMetadata) -> Iterator[Finding]:
    """Read a segment and its indexes, and its manifest where the store has one: without it the segment can be read all
    the same, but not be adopted.
    """
    for check in (check_segment, _check_manifest):
        try:
            for name, text in check(storage, segment):
                yield Finding("damage", text, segment, name)
        except (RemoteStorageError, OSError) as error:
            yield Finding("unreadable", f"cannot be read: {error}", segment)
            return


def _check_manifest(storage: RemoteStorageManager, segment: RemoteLogSegmentMetadata) -> Iterator[tuple[str, str]]:
    if not hasattr(storage, "read_manifest"):
        return
    name = object_name(segment, MANIFEST)
    try:
        data = cast(DescribedRemoteStorageManager, storage).read_manifest(name)
    except RemoteResourceNotFound:
        return
    try:
        told = Manifest.parse_named(data, name).metadata
    except RemoteStorageError as error:
        yield name, f"the {MANIFEST} is damaged: {error}"
        return
    for what in ("end_offset", "segment_size_in_bytes", "segment_leader_epochs"):
        if getattr(told, what) != getattr(segment, what):
            text = f"has {what} {getattr(told, what)}, the metadata say {getattr(segment, what)}"
            yield name, f"the {MANIFEST} {text}"
