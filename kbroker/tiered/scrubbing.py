"""What of a store is not as the metadata say: objects that are missing, of another size, or that nothing refers to.

The metadata are read, then the store is listed, then the metadata are read again: what only looks wrong because
something moved meanwhile is not told. A list may be stale, so that what it lacks is asked for by name before it is
called missing.

Findings are what is wrong; notes are what the broker is about to settle by itself: copies and deletions under way.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple
from uuid import UUID

from kbroker.tiered.api import (
    IndexType,
    RemoteLogSegmentMetadata,
    RemoteResourceNotFound,
    RemoteStorageError,
    RemoteStorageManager,
    StoredObject,
)
from kbroker.tiered.catalogue import DELETED, FINISHED, Catalogue, Partition, id_text, name_of, partition_of
from kbroker.tiered.layout import SEGMENT, kind_of
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


class Scrub:
    """One comparison of a store with the metadata.

    Shape   segments and bytes are what `compare` looked at, orphans what `find_orphans` found that may be deleted
    Errors  RemoteStorageError, OSError from the store
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
                if self._is_there(segment, kind):
                    yield Finding("stale-list", f"the {kind} is there, though it is not listed", segment, is_note=True)
                else:
                    self._damaged.add(segment.remote_log_segment_id.id)
                    yield Finding("missing", f"the {kind} is missing", segment)
            found = held.get(SEGMENT)
            if found is not None and found.size != segment.segment_size_in_bytes:
                self._damaged.add(segment.remote_log_segment_id.id)
                text = f"the {SEGMENT} has {found.size} bytes instead of {segment.segment_size_in_bytes}"
                yield Finding("size", text, segment, found.name)
        for segment in after.of(wanted):
            if segment.state not in {FINISHED, DELETED}:
                yield Finding("unfinished", f"is in the state {segment.state.name}", segment, is_note=True)

    def _is_there(self, segment: RemoteLogSegmentMetadata, kind: str) -> bool:
        """Ask for what the list does not have: a list may be old."""
        try:
            if kind == SEGMENT:
                with self._storage.fetch_log_segment(segment, 0, 0) as stream:
                    stream.read(1)
            else:
                self._storage.fetch_index(segment, IndexType(kind))
        except RemoteResourceNotFound:
            return False
        return True

    def find_orphans(
        self, known: Catalogue, wanted: Sequence[Partition] | None, *, older_than_ms: int
    ) -> Iterator[Finding]:
        """Look for objects of segments that are deleted or unknown. Nothing is known of whose topic the unknown are, so
        that they are told only where all topics are meant.
        """
        for segment_id, objects in sorted(self._listed.objects.items()):
            segment = known.segments.get(segment_id)
            if segment is None:
                if wanted is None:
                    yield from _unknown(segment_id, objects, older_than_ms)
            elif segment.state is DELETED and (wanted is None or partition_of(segment) in wanted):
                if all(each.modified_ms <= older_than_ms for each in objects.values()):
                    self.orphans.append(segment)
                    for each in objects.values():
                        text = f"is left of a segment that was deleted ({each.size} bytes)"
                        yield Finding("orphan", text, segment, each.name)
                else:
                    yield Finding("young", "is deleted, but its objects are young", segment, is_note=True)
        if wanted is None:
            for each in self._listed.unnamed:
                yield Finding("foreign", "has a name that no segment's object has", name=each.name)

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
    """Read a segment and its indexes."""
    try:
        for name, text in check_segment(storage, segment):
            yield Finding("damage", text, segment, name)
    except (RemoteStorageError, OSError) as error:
        yield Finding("unreadable", f"cannot be read: {error}", segment)
