"""`kbroker tier scrub`: compare what the store holds with what the metadata say.

The metadata are read, then the store is listed, then the metadata are read again: what only looks wrong because
something moved meanwhile is not told. A list may be stale, so that what it lacks is asked for by name before it is
called missing.

Findings are objects that are missing, that have another size than was copied, or that nothing refers to (orphans); with
--deep also whatever is wrong inside of a segment. Notes are what the broker is about to settle by itself: copies and
deletions under way.

Nothing is deleted without --delete-orphans, and with it only what the metadata themselves call deleted: an object that
they never knew may belong to another cluster, or to one whose metadata are lost.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, cast
from uuid import UUID

from kbroker.cli import CommandFailed
from kbroker.cli._tier_deep import check_segment
from kbroker.cli._tier_ls import warn
from kbroker.cli._tier_sources import choose, open_source
from kbroker.cli._tier_store import open_store
from kbroker.runtime.env import RealEnv
from kbroker.tiered.api import (
    IndexType,
    ListingRemoteStorageManager,
    RemoteLogSegmentMetadata,
    RemoteResourceNotFound,
    RemoteStorageError,
    RemoteStorageManager,
    StoredObject,
)
from kbroker.tiered.catalogue import (
    DELETED,
    FINISHED,
    Catalogue,
    Partition,
    id_text,
    name_of,
    partition_of,
)
from kbroker.tiered.layout import SEGMENT, kind_of
from wire.types import uuid_to_text

EXIT_FOUND: Final = 3
ALWAYS_THERE: Final = (
    SEGMENT,
    *(kind_of(each) for each in IndexType if each is not IndexType.TRANSACTION),
)
"""What every copy has; a transaction index only where there were transactions."""


class Report:
    """Prints what is found, a line or an object each."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self.findings: Counter[str] = Counter()
        self.notes = 0

    def finding(self, problem: str, text: str, segment: RemoteLogSegmentMetadata | None = None, name: str = "") -> None:
        """Something is wrong; `problem` is its sort in a word."""
        self.findings[problem] += 1
        self._print("finding", problem, text, segment, name)

    def note(self, problem: str, text: str, segment: RemoteLogSegmentMetadata | None = None, name: str = "") -> None:
        """Something is under way."""
        self.notes += 1
        self._print("note", problem, text, segment, name)

    def _print(self, kind: str, problem: str, text: str, segment: RemoteLogSegmentMetadata | None, name: str) -> None:
        if self._as_json:
            told = {"kind": kind, "problem": problem, "text": text, "object": name or None}
            if segment is not None:
                topic, partition = partition_of(segment)
                told |= {"topic": topic, "partition": str(partition), "segment_id": id_text(segment)}
            print(json.dumps(told))
            return
        subject = name if segment is None else name_of(segment)
        print(f"{subject}: {'note: ' if kind == 'note' else ''}{text}")


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


def scrub(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    """Compare; the exit code."""
    with open_store(parser, options) as storage, open_source(options) as source:
        if not hasattr(storage, "list_objects"):
            raise CommandFailed("this storage manager cannot list what it holds")
        before = source.catalogue()
        warn(before)
        wanted = choose(source, options.topic, also=map(partition_of, before.of(None)))
        if options.delete_orphans and (before.unreadable or not before.is_whole):
            raise CommandFailed("nothing is deleted by metadata that cannot all be read")
        now_ms = RealEnv().timestamp_ms()
        try:
            listed = Listed.of(cast(ListingRemoteStorageManager, storage).list_objects())
        except OSError as error:
            raise CommandFailed(f"the store cannot be listed: {error}") from error
        after = source.catalogue()
        check = _Scrub(storage, listed, Report(as_json=options.format == "json"))
        check.compare(before, after, wanted)
        check.find_orphans(after, wanted, older_than_ms=now_ms - options.min_age_ms)
        if options.deep:
            check.read(_finished_in_both(before, after, wanted))
        if options.delete_orphans:
            check.delete_orphans()
    return check.summarize(options.format)


def _finished_in_both(
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


class _Scrub:
    def __init__(self, storage: RemoteStorageManager, listed: Listed, report: Report) -> None:
        self._storage = storage
        self._listed = listed
        self._report = report
        self._damaged: set[UUID] = set()
        self._orphans: list[RemoteLogSegmentMetadata] = []
        self._segments = self._bytes = self._deleted = 0

    # --- names and sizes ---

    def compare(self, before: Catalogue, after: Catalogue, wanted: Sequence[Partition] | None) -> None:
        """Look for missing objects and wrong sizes."""
        for segment in _finished_in_both(before, after, wanted):
            self._segments += 1
            self._bytes += segment.segment_size_in_bytes
            held = self._listed.objects.get(segment.remote_log_segment_id.id, {})
            for kind in ALWAYS_THERE:
                if kind not in held and not self._is_there(segment, kind):
                    self._damaged.add(segment.remote_log_segment_id.id)
                    self._report.finding("missing", f"the {kind} is missing", segment)
            found = held.get(SEGMENT)
            if found is not None and found.size != segment.segment_size_in_bytes:
                self._damaged.add(segment.remote_log_segment_id.id)
                text = f"the {SEGMENT} has {found.size} bytes instead of {segment.segment_size_in_bytes}"
                self._report.finding("size", text, segment, found.name)
        for segment in after.of(wanted):
            if segment.state not in {FINISHED, DELETED}:
                self._report.note("unfinished", f"is in the state {segment.state.name}", segment)

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
        self._report.note("stale-list", f"the {kind} is there, though it is not listed", segment)
        return True

    def find_orphans(self, known: Catalogue, wanted: Sequence[Partition] | None, *, older_than_ms: int) -> None:
        """Look for objects of segments that are deleted or unknown. Nothing is known of whose topic the unknown are, so
        that they are told only where all topics are meant.
        """
        for segment_id, objects in sorted(self._listed.objects.items()):
            segment = known.segments.get(segment_id)
            if segment is None:
                if wanted is None:
                    self._tell_unknown(segment_id, objects, older_than_ms)
            elif segment.state is DELETED and (wanted is None or partition_of(segment) in wanted):
                if all(each.modified_ms <= older_than_ms for each in objects.values()):
                    self._orphans.append(segment)
                    for each in objects.values():
                        text = f"is left of a segment that was deleted ({each.size} bytes)"
                        self._report.finding("orphan", text, segment, each.name)
                else:
                    self._report.note("young", "is deleted, but its objects are young", segment)
        if wanted is None:
            for each in self._listed.unnamed:
                self._report.finding("foreign", "has a name that no segment's object has", name=each.name)

    def _tell_unknown(self, segment_id: UUID, objects: dict[str, StoredObject], older_than_ms: int) -> None:
        for each in objects.values():
            if each.modified_ms <= older_than_ms:
                text = f"is of the segment {uuid_to_text(segment_id)}, of which the metadata know nothing"
                self._report.finding("unknown", f"{text} ({each.size} bytes)", name=each.name)
            else:
                self._report.note("young", "is of no segment that is known, but young", name=each.name)

    # --- inside ---

    def read(self, segments: Sequence[RemoteLogSegmentMetadata]) -> None:
        """Read what is whole so far."""
        for segment in segments:
            if segment.remote_log_segment_id.id in self._damaged:
                continue
            try:
                for name, text in check_segment(self._storage, segment):
                    self._report.finding("damage", text, segment, name)
            except (RemoteStorageError, OSError) as error:
                self._report.finding("unreadable", f"cannot be read: {error}", segment)

    # --- deleting ---

    def delete_orphans(self) -> None:
        """Delete what is left of deleted segments."""
        for segment in self._orphans:
            self._storage.delete_log_segment_data(segment)
            self._deleted += 1

    def summarize(self, how: str) -> int:
        """Say what was looked at; the exit code."""
        found = self._report.findings
        if how == "json":
            counts = {"segments": self._segments, "bytes": self._bytes, "objects": self._listed.count}
            fields = {"kind": "summary", "findings": found.total(), "notes": self._report.notes, **counts}
            print(json.dumps({**fields, "problems": dict(found), "deleted_segments": self._deleted}))
        else:
            sys.stdout.flush()
            told = ", ".join(f"{count} {problem}" for problem, count in sorted(found.items())) or "nothing found"
            where = f"{self._segments} segments with {self._bytes} bytes against {self._listed.count} objects"
            deleted = f"; {self._deleted} orphans deleted" if self._deleted else ""
            print(f"kbroker tier: {told}, {self._report.notes} notes; {where}{deleted}", file=sys.stderr)
        return EXIT_FOUND if found else 0
