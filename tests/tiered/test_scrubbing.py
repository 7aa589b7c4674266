"""Findings of a scrub while copies and deletions run between its reads of the metadata and of the store."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from kbroker.testing.remote_segments import partition_named, write_segment
from kbroker.tiered.api import (
    DELETED,
    DELETING,
    FINISHED,
    STARTED,
    IndexType,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
    RetriableRemoteStorageError,
    StoredObject,
)
from kbroker.tiered.catalogue import Catalogue
from kbroker.tiered.layout import object_name
from kbroker.tiered.local import LocalRemoteStorage
from kbroker.tiered.scrubbing import Finding, Listed, Scrub, is_deleted_meanwhile

NEVER_YOUNG_MS = 1 << 62


class Store(LocalRemoteStorage):
    """A directory tier with one segment. Shape: unlisted is missing in its list, refused cannot be read now."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self.configure({"dir": str(directory / "tier")})
        logs = directory / "logs"
        logs.mkdir()
        made = write_segment(str(logs), partition=partition_named("orders"), batches=5)
        self.segment = made.metadata
        self.copy_log_segment_data(made.metadata, made.data)
        self.unlisted: frozenset[str] = frozenset()
        self.refused: IndexType | None = None

    def list_objects(self) -> Iterator[StoredObject]:
        return (each for each in super().list_objects() if each.name not in self.unlisted)

    def fetch_index(self, metadata: RemoteLogSegmentMetadata, index_type: IndexType) -> bytes:
        if index_type is self.refused:
            raise RetriableRemoteStorageError("not now")
        return super().fetch_index(metadata, index_type)

    def known(self, state: RemoteLogSegmentState | None) -> Catalogue:
        """The metadata with the segment in a given state, or without it."""
        found = Catalogue()
        if state is not None:
            found.segments[self.segment.remote_log_segment_id.id] = replace(self.segment, state=state)
        return found


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path)


def scrub(
    store: Store,
    listed: Listed,
    before: RemoteLogSegmentState | None,
    after: RemoteLogSegmentState | None,
    *,
    older_than_ms: int = NEVER_YOUNG_MS,
) -> list[Finding]:
    """Findings and notes; the metadata change between the given states during the listing."""
    first, second = store.known(before), store.known(after)
    check = Scrub(store, listed)
    found = [*check.compare(first, second, None)]
    return [*found, *check.find_orphans(first, second, None, older_than_ms=older_than_ms)]


def problems(found: list[Finding]) -> list[str]:
    return [each.problem for each in found if not each.is_note]


@pytest.mark.parametrize("is_half", [False, True])
@pytest.mark.parametrize(
    ("before", "after"),
    [
        (None, STARTED),
        (None, FINISHED),
        (STARTED, STARTED),
        (STARTED, FINISHED),
        (STARTED, DELETING),
        (STARTED, DELETED),
        (FINISHED, DELETING),
        (FINISHED, DELETED),
        (DELETING, DELETED),
        (FINISHED, None),
    ],
)
def test_concurrent_copies_and_deletions_are_no_findings(
    store: Store, before: RemoteLogSegmentState | None, after: RemoteLogSegmentState | None, is_half: bool
) -> None:
    """A copy starts, finishes or is given up, or a deletion starts or finishes; None: no manifest. The list has
    all of the segment's objects, or half of them.
    """
    objects = list(store.list_objects())
    listed = Listed.of(objects[:3] if is_half else objects)
    if after in {DELETED, None}:
        store.delete_log_segment_data(store.segment)
    assert problems(scrub(store, listed, before, after)) == []


@pytest.mark.parametrize("is_gone", [False, True])
def test_only_existing_objects_of_a_deleted_segment_are_orphans(store: Store, is_gone: bool) -> None:
    listed = Listed.of(store.list_objects())
    if is_gone:
        store.delete_log_segment_data(store.segment)
    found = scrub(store, listed, DELETED, DELETED)
    assert [each.problem for each in found] == ["stale-list" if is_gone else "orphan"] * listed.count
    assert all(each.is_note is is_gone for each in found)


def test_recent_objects_of_a_deleted_segment_are_a_note(store: Store) -> None:
    (note,) = scrub(store, Listed.of(store.list_objects()), DELETED, DELETED, older_than_ms=0)
    assert (note.problem, note.is_note) == ("young", True)


def test_an_unlisted_and_refused_index_is_unreadable(store: Store) -> None:
    store.unlisted = frozenset({object_name(store.segment, "index")})
    store.refused = IndexType.OFFSET
    (found,) = scrub(store, Listed.of(store.list_objects()), FINISHED, FINISHED)
    assert (found.problem, found.text) == ("unreadable", "the index cannot be read: not now")


def test_a_store_that_returns_nothing_is_unavailable(store: Store) -> None:
    store.refused = IndexType.OFFSET
    with pytest.raises(RetriableRemoteStorageError, match="not now"):
        scrub(store, Listed(), FINISHED, FINISHED)


@pytest.mark.parametrize(
    ("now", "is_deleted"), [(STARTED, False), (FINISHED, False), (DELETING, True), (DELETED, True), (None, True)]
)
def test_findings_of_segments_being_deleted_are_dropped(
    store: Store, now: RemoteLogSegmentState | None, is_deleted: bool
) -> None:
    finding = Finding("missing", "the log is missing", replace(store.segment, state=FINISHED))
    assert is_deleted_meanwhile(finding, store.known(now)) is is_deleted
    assert not is_deleted_meanwhile(finding._replace(is_note=True), store.known(now))
    orphan = Finding("orphan", "is left", replace(store.segment, state=DELETED))
    assert not is_deleted_meanwhile(orphan, store.known(now))
