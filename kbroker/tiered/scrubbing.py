"""Compares a store with the tier's metadata: objects that are missing, have a wrong size, or are orphaned.

The metadata is read, then the store is listed, then the metadata is read again, and once more if there are findings:
differences that a concurrent change explains are not reported. A listing may be stale. So objects that are not listed
are requested by name before they count as missing, and surplus objects before they count as orphans.

Findings are defects; notes are operations in progress that the broker will complete: copies and deletions.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, cast
from uuid import UUID

from kbroker.tiered.api import (
    DELETED,
    DELETING,
    FINISHED,
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
from kbroker.tiered.catalogue import Catalogue, Partition, id_text, name_of, partition_of
from kbroker.tiered.layout import (
    MANIFEST,
    SEGMENT,
    AttachedObjects,
    Manifest,
    kind_of,
    object_name,
    stored_id,
    stored_size,
)
from kbroker.tiered.scrubbing_inside import check_segment
from wire.types import uuid_to_text

ALWAYS_THERE: Final = (
    SEGMENT,
    *(kind_of(each) for each in IndexType if each is not IndexType.TRANSACTION),
)
"""The objects of every copy; only segments with aborted transactions have a transaction index."""


class Finding(NamedTuple):
    """A defect, or (a note) an operation in progress.

    Shape  problem is its category; name is the object's name or empty; segment is None if no segment is concerned
    """

    problem: str
    text: str
    segment: RemoteLogSegmentMetadata | None = None
    name: str = ""
    is_note: bool = False

    def line(self) -> str:
        """The text output."""
        subject = self.name if self.segment is None else name_of(self.segment)
        return f"{subject}: {'note: ' if self.is_note else ''}{self.text}"

    def as_json(self) -> dict[str, Any]:
        """The JSON output."""
        kind = "note" if self.is_note else "finding"
        document = {"kind": kind, "problem": self.problem, "text": self.text, "object": self.name or None}
        if self.segment is not None:
            topic, partition = partition_of(self.segment)
            document |= {"topic": topic, "partition": str(partition), "segment_id": id_text(self.segment)}
        return document


@dataclass(slots=True)
class Listed:
    """The objects of the store by segment and kind, and the objects whose names are not recognized."""

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
            # Auxiliary objects may have any name, and there may be several.
            kind = each.name.rpartition("/")[2] if each.is_auxiliary else kind_of(each.index_type)
            listed.objects[each.segment_id][kind] = each
        return listed


def is_deleted_meanwhile(finding: Finding, now: Catalogue) -> bool:
    """Whether the segment of a finding was deleted or is being deleted by now. The metadata record a deletion before
    the first object is removed, so such a finding is not conclusive.
    """
    segment = finding.segment
    if finding.is_note or segment is None or segment.state is not FINISHED:
        return False
    known = now.segments.get(segment.remote_log_segment_id.id)
    return known is None or known.state in {DELETING, DELETED}


class Scrub:
    """One comparison of a store with the metadata.

    Shape   segments and bytes are the totals that `compare` checked; whole are the segments without defects, which can
            be read; orphans are the deletable segments of `find_orphans`
    Errors  RetriableRemoteStorageError if the store neither lists nor returns anything
    """

    def __init__(self, storage: RemoteStorageManager, listed: Listed) -> None:
        self._storage = storage
        self._listed = listed
        self.whole: list[RemoteLogSegmentMetadata] = []
        self.orphans: list[RemoteLogSegmentMetadata] = []
        self.segments = self.bytes = 0

    def compare(self, before: Catalogue, after: Catalogue, wanted: Sequence[Partition] | None) -> Iterator[Finding]:
        """Find missing objects and wrong sizes of the segments that were finished during the whole listing."""
        segments = after.of(wanted)
        for segment in segments:
            known = before.segments.get(segment.remote_log_segment_id.id)
            if segment.state is FINISHED and known is not None and known.state is FINISHED:
                self.segments += 1
                self.bytes += segment.segment_size_in_bytes
                found = list(self._compare(segment))
                if all(each.is_note for each in found):
                    self.whole.append(segment)
                yield from found
        for segment in segments:
            if segment.state not in {FINISHED, DELETED}:
                yield Finding("unfinished", f"is in the state {segment.state.name}", segment, is_note=True)

    def _compare(self, segment: RemoteLogSegmentMetadata) -> Iterator[Finding]:
        held = self._listed.objects.get(stored_id(segment), {})
        for kind in ALWAYS_THERE:
            if kind not in held:
                yield self._ask_for(segment, kind)
        found = held.get(SEGMENT)
        if found is not None and found.size != stored_size(segment):
            text = f"the {SEGMENT} has {found.size} bytes instead of {stored_size(segment)}"
            yield Finding("size", text, segment, found.name)

    def _ask_for(self, segment: RemoteLogSegmentMetadata, kind: str) -> Finding:
        """Request an object that is not listed, because a listing may be stale."""
        try:
            # Of the log the last byte, which a truncated one does not have.
            index_type = None if kind == SEGMENT else IndexType(kind)
            self._request(segment, index_type, segment.segment_size_in_bytes - 1)
        except RemoteResourceNotFound:
            return Finding("missing", f"the {kind} is missing", segment)
        except RemoteObjectDamaged as error:
            return Finding("size", f"the {kind} has another size: {error}", segment)
        except (RemoteStorageError, OSError) as error:
            is_passing = isinstance(error, RetriableRemoteStorageError)
            if is_passing and not self._listed.count:
                raise  # nothing listed and nothing returned: the store is unavailable
            # As in `read_inside`: a store that permanently refuses an index knows that it is a wrong one.
            problem = "unreadable" if is_passing or kind == SEGMENT else "damage"
            return Finding(problem, f"the {kind} cannot be read: {error}", segment)
        return Finding("stale-list", f"the {kind} exists, but is not listed", segment, is_note=True)

    def find_orphans(
        self, before: Catalogue, after: Catalogue, wanted: Sequence[Partition] | None, *, older_than_ms: int
    ) -> Iterator[Finding]:
        """Find objects of segments that were already deleted or unknown when the store was listed. The topic of unknown
        segments cannot be determined, so they are reported only if all topics are checked.
        """
        attached = {stored_id(one) for one in after.segments.values() if AttachedObjects.of(one) is not None}
        for segment_id, objects in sorted(self._listed.objects.items()):
            if segment_id in attached:
                continue  # they belong to another cluster, even if the topic here is deleted
            segment, earlier = after.segments.get(segment_id), before.segments.get(segment_id)
            if segment is None:
                if wanted is None and earlier is None:
                    yield from _unknown(segment_id, objects, older_than_ms)
            elif earlier is None or earlier.state is not DELETED:
                continue  # the segment exists, or was deleted during the listing
            elif wanted is None or partition_of(segment) in wanted:
                yield from self._left_of(segment, objects.values(), older_than_ms)
        if wanted is None:
            for each in self._listed.unnamed:
                yield Finding("foreign", "its name is not the name of a segment's object", name=each.name)

    def _left_of(
        self, segment: RemoteLogSegmentMetadata, objects: Iterable[StoredObject], older_than_ms: int
    ) -> Iterator[Finding]:
        """The leftovers of a deleted segment."""
        there = []
        for each in objects:
            if self._is_there(segment, each):
                there.append(each)
            else:
                text = "is listed, but does not exist any more"
                yield Finding("stale-list", text, segment, each.name, is_note=True)
        if any(each.modified_ms > older_than_ms for each in there):
            yield Finding("young", "is deleted, but its objects are recent", segment, is_note=True)
        elif there:
            self.orphans.append(segment)
            for each in there:
                text = f"is an orphan of a deleted segment ({each.size} bytes)"
                yield Finding("orphan", text, segment, each.name)

    def _is_there(self, segment: RemoteLogSegmentMetadata, listed: StoredObject) -> bool:
        """Request the object by name, if possible; any error but RemoteResourceNotFound means that it exists."""
        try:
            if not listed.is_auxiliary:
                self._request(segment, listed.index_type, 0)
            elif listed.name == object_name(segment, MANIFEST) and hasattr(self._storage, "read_manifest"):
                cast(DescribedRemoteStorageManager, self._storage).read_manifest(listed.name)
        except RemoteResourceNotFound:
            return False
        except (RemoteStorageError, OSError):
            return True
        return True

    def _request(self, segment: RemoteLogSegmentMetadata, index_type: IndexType | None, position: int) -> None:
        """Request an index, or one byte of the log."""
        if index_type is not None:
            self._storage.fetch_index(segment, index_type)
            return
        with self._storage.fetch_log_segment(segment, position, position) as stream:
            if not stream.read(1):
                raise RemoteObjectDamaged(f"it ends before byte {position}")


def _unknown(segment_id: UUID, objects: dict[str, StoredObject], older_than_ms: int) -> Iterator[Finding]:
    for each in objects.values():
        if each.modified_ms <= older_than_ms:
            text = f"belongs to segment {uuid_to_text(segment_id)}, which the metadata do not have"
            yield Finding("unknown", f"{text} ({each.size} bytes)", name=each.name)
        else:
            yield Finding("young", "belongs to no known segment, but is recent", name=each.name, is_note=True)


def read_inside(storage: RemoteStorageManager, segment: RemoteLogSegmentMetadata) -> Iterator[Finding]:
    """Read a segment with its indexes, and its manifest if the store has one: a segment without a manifest is readable,
    but cannot be adopted. Of an attached segment, this reads the segment that it was made of.
    """
    if AttachedObjects.of(segment) is not None:
        name = object_name(segment, MANIFEST)
        try:
            data = cast(DescribedRemoteStorageManager, storage).read_manifest(name)
            segment = Manifest.parse_named(data, name).metadata
        except RemoteStorageError as error:
            yield Finding("damage", f"the {MANIFEST} cannot be used: {error}", segment, name)
            return
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
        described = Manifest.parse_named(data, name).metadata
    except RemoteStorageError as error:
        yield name, f"the {MANIFEST} is damaged: {error}"
        return
    for what in ("end_offset", "segment_size_in_bytes", "segment_leader_epochs"):
        if getattr(described, what) != getattr(segment, what):
            text = f"has {what} {getattr(described, what)}, the metadata say {getattr(segment, what)}"
            yield name, f"the {MANIFEST} {text}"
