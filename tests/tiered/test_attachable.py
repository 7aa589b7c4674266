"""What `kbroker tier attach` finds in a store, whole and damaged, and what it reports."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest

from kbroker.testing.disk import SimulatedDisk
from kbroker.testing.remote_segments import START_MS, WrittenSegment, partition_named, write_segment
from kbroker.tiered.api import RemoteLogSegmentMetadata, RemoteStorageError
from kbroker.tiered.attachable import AttachablePartition, Until, attachable_partitions, stored_topics
from kbroker.tiered.layout import MANIFEST, AttachedObjects, object_name
from kbroker.tiered.local import LocalRemoteStorage
from kbroker.tiered.plan import clipped_epochs
from tests.tiered.directories import changed, new_disk, on, path_of

Epochs = tuple[tuple[int, int], ...]


ALL = Until()


ALL = Until()


class Store:
    """A directory tier on a simulated disk, with segments of 30 records in 10 batches each."""

    def __init__(self) -> None:
        self.disk: SimulatedDisk = new_disk()
        self.storage: LocalRemoteStorage = on(self.disk)
        self.segments: list[WrittenSegment] = []

    def add(
        self, start_offset: int, *, history: Epochs = ((0, 0),), batches: int = 10, incarnation: int = 1
    ) -> WrittenSegment:
        segment = write_segment(
            "/log",
            disk=self.disk,
            batches=batches,
            start_offset=start_offset,
            leader_epochs=clipped_epochs(history, start_offset, start_offset + 3 * batches),
            history=history,
            interval_bytes=500,
            start_ms=START_MS + start_offset,
            partition=partition_named(incarnation=incarnation),
        )
        self.storage.copy_log_segment_data(segment.metadata, segment.data)
        self.segments.append(segment)
        return segment

    def found(self, *, until: Until = ALL, is_partial: bool = False) -> AttachablePartition:
        topics = stored_topics(self.storage, name="orders").values()
        (partition,) = attachable_partitions(self.storage, topics, until={None: until}, is_partial=is_partial)
        return partition

    def damage(self, number: int, kind: str, change: Callable[[bytes], bytes] | None) -> None:
        """Change an object, or remove it."""
        path = path_of(self.segments[number], kind)
        if change is None:
            self.disk.unlink(path)
        else:
            changed(self.disk, path, change)


@pytest.fixture
def store() -> Store:
    found = Store()
    for start in (0, 30, 60):
        found.add(start)
    return found


def bounds(partition: AttachablePartition) -> tuple[int, int, int]:
    return partition.start_offset, partition.end_offset, len(partition.segments)


def problems(partition: AttachablePartition) -> list[str]:
    return [issue.text for issue in partition.issues if not issue.is_note]


def notes(partition: AttachablePartition) -> list[str]:
    return [issue.text for issue in partition.issues if issue.is_note]


def test_a_whole_store_has_no_issues(store: Store) -> None:
    found = store.found()
    assert (bounds(found), found.issues) == ((0, 90, 3), [])


@pytest.mark.parametrize("kind", ["log", "index", "timeindex", "snapshot", "leader-epoch-checkpoint"])
@pytest.mark.parametrize("is_cut", [True, False])
def test_a_missing_or_truncated_object_is_a_problem(store: Store, kind: str, is_cut: bool) -> None:
    store.damage(1, kind, (lambda data: data[:-1]) if is_cut else None)
    found = store.found()
    assert [kind in text for text in problems(found)] == [False, True]  # the gap, and why
    assert bounds(store.found(is_partial=True)) == (60, 90, 1)


def test_a_missing_segment_is_a_gap(store: Store) -> None:
    store.storage.delete_log_segment_data(store.segments[1].metadata)
    assert problems(store.found()) == ["the offsets 30 to 59 are missing"]
    assert bounds(store.found(is_partial=True)) == (60, 90, 1)
    before = store.found(until=Until(offset=30))
    assert (bounds(before), before.issues) == ((0, 30, 1), [])
    assert problems(store.found(until=Until(offset=61))) == ["the offsets 30 to 59 are missing"]


def test_a_stray_object_of_a_far_partition_costs_nothing(store: Store) -> None:
    path = path_of(store.segments[0], "log").replace("/0/", "/9999999999/")
    store.disk.make_directory(path.rpartition("/")[0])
    store.disk.open(path, create=True).close()
    found = store.found()  # one partition
    assert (bounds(found), len(problems(found))) == ((0, 90, 3), 1)
    assert "9999999999" in problems(found)[0]


@pytest.mark.parametrize("field", ["end_offset", "max_timestamp_ms", "event_timestamp_ms"])
def test_impossible_values_in_a_manifest_are_a_problem(store: Store, field: str) -> None:
    store.damage(2, MANIFEST, lambda data: json.dumps({**json.loads(data), field: 1 << 64}).encode())
    found = store.found()
    assert (bounds(found), len(problems(found))) == ((0, 60, 2), 1)
    assert "impossible values" in problems(found)[0]


def test_a_huge_manifest_is_not_read(store: Store) -> None:
    store.damage(2, MANIFEST, lambda data: data + b" " * (4 << 20))
    assert "its manifest has 4" in problems(store.found())[0]


def test_an_epoch_near_the_end_of_its_range_is_a_problem() -> None:
    store = Store()
    store.add(0, history=(((1 << 31) - 2, 0),))
    assert "its last leader epoch is 2147483646" in problems(store.found())[0]


def test_a_copy_that_was_not_finished_is_a_note(store: Store) -> None:
    store.add(90)
    store.damage(3, MANIFEST, None)
    found = store.found()
    assert (bounds(found), problems(found)) == ((0, 90, 3), [])
    assert "was not finished" in notes(found)[0]


def test_the_beginning_of_a_segment_of_an_older_history_is_kept() -> None:
    """As after an unclean election, or if the topic was attached up to an offset and then written to."""
    store = Store()
    store.add(0)
    history = ((0, 0), (1, 15))
    store.add(15, history=history, incarnation=2)
    found = store.found()
    assert (bounds(found), problems(found)) == ((0, 45, 2), [])
    first = found.segments[0]
    assert (first.start_offset, first.end_offset, first.segment_leader_epochs) == (0, 14, ((0, 0),))
    objects = AttachedObjects.of(first)
    assert objects is not None
    whole = store.segments[0].metadata
    assert (objects.stem, objects.size_bytes) == (object_name(whole, "log")[:-4], whole.segment_size_in_bytes)
    assert first.segment_size_in_bytes < whole.segment_size_in_bytes
    cut = store.found(until=Until(offset=7))  # within what was cut already
    assert bounds(cut) == (0, 6, 1)
    objects = AttachedObjects.of(cut.segments[0])
    assert objects is not None
    assert objects.size_bytes == whole.segment_size_in_bytes


def test_a_segment_of_another_history_only_is_a_note() -> None:
    store = Store()
    store.add(0, history=((0, 0),))
    store.add(15, history=((1, 0),), incarnation=2)
    found = store.found()
    assert (bounds(found), problems(found)) == ((15, 45, 1), [])
    assert "another history" in notes(found)[0]


def test_a_half_copy_beside_a_whole_one_is_a_note(store: Store) -> None:
    store.add(60)
    store.damage(3, "log", None)
    found = store.found()
    assert (bounds(found), problems(found)) == ((0, 90, 3), [])
    assert "its log is missing" in notes(found)[0]


def test_an_unknown_version_of_the_layout_is_a_problem(store: Store) -> None:
    store.damage(2, MANIFEST, lambda data: json.dumps({**json.loads(data), "version": 9}).encode())
    found = store.found()
    assert bounds(found) == (0, 60, 2)
    assert "version 9" in problems(found)[0]


def test_garbage_instead_of_checkpoints_is_a_problem(store: Store) -> None:
    store.damage(2, "leader-epoch-checkpoint", lambda data: b"x" * len(data))
    found = store.found()
    assert "cannot be used" in problems(found)[0]
    assert bounds(store.found(is_partial=True)) == (0, 60, 2)


def test_the_history_of_the_newest_leader_is_chosen(store: Store) -> None:
    """An unclean election: the next leader had not got the last segment, and wrote others."""
    store.add(60, history=((0, 0), (2, 60)))
    store.add(90, history=((0, 0), (2, 60)))
    found = store.found()
    assert (bounds(found), found.leader_epoch, problems(found)) == ((0, 120, 4), 2, [])
    assert notes(found) == ["the segment 60-89 belongs to another history of the partition and is left out"]


def test_overlaps_of_two_leaders_are_notes(store: Store) -> None:
    store.add(75)
    store.add(33, batches=5)
    found = store.found()
    assert (bounds(found), problems(found)) == ((0, 105, 4), [])
    assert len(notes(found)) == 2


def test_topics_of_one_name_are_told_apart(store: Store) -> None:
    store.add(0, incarnation=2)
    found = stored_topics(store.storage, name="orders")
    assert sorted(len(topic.segments) for topic in found.values()) == [1, 3]


@pytest.mark.parametrize(("offset", "end", "count"), [(29, 27, 1), (30, 30, 1), (31, 30, 1), (33, 33, 2), (500, 90, 3)])
def test_the_end_is_that_of_a_batch(store: Store, offset: int, end: int, count: int) -> None:
    found = store.found(until=Until(offset=offset))
    assert (bounds(found), found.issues) == ((0, end, count), [])
    assert found.segments[-1].end_offset == end - 1


def test_an_end_before_everything_leaves_nothing(store: Store) -> None:
    found = store.found(until=Until(timestamp_ms=0))
    assert (bounds(found), len(notes(found))) == ((0, 0, 0), 1)


def test_a_store_of_another_topic_has_nothing(store: Store) -> None:
    assert stored_topics(store.storage, name="other") == {}


@pytest.mark.parametrize(
    "stem",
    [
        "../../etc/passwd",
        "a/0/00000000000000000042-Pu5u8wLPTpiyKGBvGcRVHA",
        "a 1",
        "",
        "../x-kS2mDpo7RkS0cUkCAYyBDA/3",
    ],
)
def test_no_name_of_an_attached_segment_leads_out_of_the_store(store: Store, stem: str) -> None:
    hostile: RemoteLogSegmentMetadata = replace(
        store.segments[0].finished, custom_metadata=AttachedObjects(stem, 1).to_bytes()
    )
    with pytest.raises(RemoteStorageError, match="cannot be used"):
        object_name(hostile, "log")
    with pytest.raises(RemoteStorageError):
        store.storage.delete_log_segment_data(hostile)
