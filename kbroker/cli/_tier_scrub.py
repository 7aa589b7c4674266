"""`kbroker tier scrub`: compare the store with the metadata.

`kbroker.tiered.scrubbing` does the comparison; with --deep, scrub also reads every segment. Before it reports a problem
of a segment, it reads the metadata up to their end, because a running broker may have deleted the segment.

Scrub deletes only with --delete-orphans, and only objects of segments that are deleted in the metadata. An object of an
unknown segment may belong to another cluster, or to one whose metadata is lost.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterable
from typing import cast
from uuid import UUID

from kbroker.cli import EXIT_FOUND, CommandFailed
from kbroker.cli._say import note, say, say_json
from kbroker.cli._tier_ls import warn
from kbroker.cli._tier_sources import Source, choose, open_source
from kbroker.cli._tier_store import open_store
from kbroker.runtime.clocks import RealClocks
from kbroker.tiered.api import ListingRemoteStorageManager
from kbroker.tiered.catalogue import Catalogue, partition_of
from kbroker.tiered.scrubbing import Finding, Listed, Scrub, is_deleted_meanwhile, read_inside


class Report:
    """Prints each finding as a line or a JSON object.

    Shape  deleted_meanwhile are segments with suppressed findings, because the broker deleted them during the check
    """

    def __init__(self, source: Source, *, as_json: bool) -> None:
        self._source: Source | None = source
        self._as_json = as_json
        self.findings: Counter[str] = Counter()
        self.notes = 0
        self.deleted_meanwhile: set[UUID] = set()

    def tell(self, found: Iterable[Finding]) -> None:
        """Print the findings that are still valid by the current metadata."""
        known = list(found)
        now = None if all(each.is_note for each in known) else self._catalogue()
        for each in known:
            if now is not None and each.segment is not None and is_deleted_meanwhile(each, now):
                self.deleted_meanwhile.add(each.segment.remote_log_segment_id.id)
                continue
            if each.is_note:
                self.notes += 1
            else:
                self.findings[each.problem] += 1
            if self._as_json:
                say_json(each.as_json())
            else:
                say(each.line())

    def _catalogue(self) -> Catalogue | None:
        """The current catalogue; None after a first failure to read it, so that findings are still reported."""
        if self._source is None:
            return None
        try:
            return self._source.catalogue()
        except CommandFailed as error:
            self._source = None
            doubt = "some findings may be of segments that the broker deleted during the check"
            note(f"kbroker tier: {doubt}: {error}")
            return None


def scrub(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    """Compare store and metadata; return the exit code."""
    deleted = 0
    with open_store(parser, options) as storage, open_source(options) as source:
        report = Report(source, as_json=options.format == "json")
        if not hasattr(storage, "list_objects"):
            raise CommandFailed("this storage manager cannot list its objects")
        before = source.catalogue()
        warn(before)
        wanted = choose(source, options.topic, also=map(partition_of, before.of(None)))
        if options.delete_orphans and (before.unreadable or not before.is_whole):
            raise CommandFailed("refusing to delete: not all of the metadata can be read")
        now_ms = RealClocks().timestamp_ms()
        try:
            listed = Listed.of(cast(ListingRemoteStorageManager, storage).list_objects())
        except OSError as error:
            raise CommandFailed(f"the store cannot be listed: {error}") from error
        after = source.catalogue()
        check = Scrub(storage, listed)
        report.tell(check.compare(before, after, wanted))
        report.tell(check.find_orphans(before, after, wanted, older_than_ms=now_ms - options.min_age_ms))
        if options.deep:
            for segment in check.whole:
                report.tell(read_inside(storage, segment))
        if options.delete_orphans:
            for segment in check.orphans:
                storage.delete_log_segment_data(segment)
                deleted += 1
    _summarize(report, check, listed, deleted, is_json=options.format == "json")
    return EXIT_FOUND if report.findings else 0


def _summarize(report: Report, check: Scrub, listed: Listed, deleted: int, *, is_json: bool) -> None:
    """Print the summary."""
    found = report.findings
    if is_json:
        counts = {"segments": check.segments, "bytes": check.bytes, "objects": listed.count}
        fields = {"kind": "summary", "findings": found.total(), "notes": report.notes, **counts}
        gone = {"deleted_segments": deleted, "deleted_meanwhile": len(report.deleted_meanwhile)}
        say_json({**fields, "problems": dict(found), **gone})
        return
    verdict = ", ".join(f"{count} {problem}" for problem, count in sorted(found.items())) or "nothing found"
    where = f"{check.segments} segments with {check.bytes} bytes against {listed.count} objects"
    more = f"; {deleted} orphans deleted" if deleted else ""
    if report.deleted_meanwhile:
        more += f"; {len(report.deleted_meanwhile)} segments were deleted during the check"
    note(f"kbroker tier: {verdict}, {report.notes} notes; {where}{more}")
