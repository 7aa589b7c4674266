"""Snapshots of the metadata log: what they replace, damage to them, and their retention."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kbroker.config.metadata import MetadataSettings
from kbroker.controller.metadata_log import DIRECTORY
from kbroker.controller.snapshots import SnapshotId, read_snapshot, snapshot_ids, write_snapshot
from kbroker.metadata.errors import UnusableMetadata
from kbroker.runtime.disk import RealDisk
from tests.controller.metadata_node import NOW, Node, empty_disk, flip, log_files, topic_record


def test_a_snapshot_replaces_the_log_before_it(start: Callable[..., Node]) -> None:
    node = start()
    node.append(topic_record(1))
    snapshot = node.snapshot()
    assert snapshot == SnapshotId(node.image.end_offset, 1)
    node.append(topic_record(2))
    again = start()
    assert again.loaded == node.image
    assert again.log.snapshot_ids == [snapshot]
    first, second = log_files(again)
    assert int(second.stem) == snapshot.end_offset, "a snapshot starts a new segment"
    first.unlink()
    assert start().log.snapshot_ids == [snapshot]


def test_c5_the_previous_snapshot_replaces_a_damaged_one(start: Callable[..., Node]) -> None:
    node = start()
    node.append(topic_record(1))
    older = node.snapshot()
    node.append(topic_record(2))
    newer = node.snapshot()
    node.append(topic_record(3))
    path = Path(node.root, DIRECTORY, newer.file_name)
    flip(path, path.stat().st_size // 2)
    again = start()
    assert again.loaded == node.image
    assert again.log.snapshot_ids == [older]
    assert any("using the previous snapshot" in report for report in again.reports)
    assert start().log.snapshot_ids == [older]


@pytest.mark.parametrize("keep", [0, 40, 83, 200])
def test_c5_a_snapshot_without_a_footer_is_ignored(start: Callable[..., Node], keep: int) -> None:
    node = start()
    node.append(*[topic_record(number) for number in range(5)])
    path = Path(node.root, DIRECTORY, node.snapshot().file_name)
    path.write_bytes(path.read_bytes()[:keep])
    again = start()
    assert again.loaded == node.image
    assert again.log.snapshot_ids == []


def test_c5_unfinished_snapshots_are_removed(start: Callable[..., Node]) -> None:
    node = start()
    directory = Path(node.root, DIRECTORY)
    (directory / f"{SnapshotId(9, 1).file_name}.part").write_bytes(b"x")
    (directory / f"{SnapshotId(9, 1).file_name}.deleted").write_bytes(b"x")
    start()
    assert not list(directory.glob("*.checkpoint*"))


def test_c5_a_log_without_its_start_needs_a_snapshot(start: Callable[..., Node]) -> None:
    node = start()
    node.append(topic_record(1))
    snapshot = node.snapshot()
    node.append(topic_record(2))
    log_files(node)[0].unlink()
    Path(node.root, DIRECTORY, snapshot.file_name).unlink()
    with pytest.raises(UnusableMetadata, match="no complete snapshot reaches it"):
        start()


def test_old_snapshots_and_their_log_are_deleted_by_size(start: Callable[..., Node]) -> None:
    node = start(config=MetadataSettings(metadata_max_retention_bytes=3_000))
    for number in range(12):
        node.append(topic_record(number, padding=200))
        node.snapshot()
    assert 1 <= len(node.log.snapshot_ids) < 12
    assert node.log.log_start_offset == node.log.snapshot_ids[0].end_offset > 0
    assert start().loaded == node.image


def test_old_snapshots_are_deleted_by_age_except_the_newest(start: Callable[..., Node]) -> None:
    node = start(config=MetadataSettings(metadata_max_retention_ms=1_000))
    for number in range(3):
        node.append(topic_record(number))
        node.snapshot()
    far = RealDisk().modified_ms(str(log_files(node)[0])) + 1_000_000
    node.log.clean(timestamp_ms=far, now_ms=0)
    assert node.log.snapshot_ids == [SnapshotId(node.image.end_offset, 1)]
    assert start().loaded == node.image


def test_a_snapshot_is_due_by_new_bytes_or_by_time(start: Callable[..., Node]) -> None:
    config = MetadataSettings(
        metadata_log_max_record_bytes_between_snapshots=2_000, metadata_log_max_snapshot_interval_ms=5_000
    )
    node = start(config=config)
    assert not node.log.snapshot_is_due(now_ms=0)
    assert node.log.snapshot_is_due(now_ms=5_000)
    node.log.note_snapshot(now_ms=5_000)
    assert not node.log.snapshot_is_due(now_ms=50_000), "no new records"
    node.append(topic_record(1, padding=2_000))
    assert node.log.snapshot_is_due(now_ms=5_001)


def test_snapshot_file_names_are_those_of_kafka() -> None:
    name = "00000000000000000307-0000000004.checkpoint"
    assert SnapshotId(307, 4).file_name == name
    assert snapshot_ids([name, "00000000000000000000-0000000000.checkpoint", "x.checkpoint", name + ".part"]) == [
        SnapshotId(307, 4)
    ]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 5_000), max_size=60))
def test_a_snapshot_of_any_size_can_be_read_back(paddings: list[int]) -> None:
    disk = empty_disk()
    contents = [topic_record(number, padding) for number, padding in enumerate(paddings)]
    write_snapshot(
        disk,
        "/data/00000000000000000009-0000000001.checkpoint",
        contents,
        metadata_version=21,
        epoch=1,
        last_contained_log_timestamp=0,
        timestamp_ms=NOW,
    )
    assert read_snapshot(disk, "/data/00000000000000000009-0000000001.checkpoint") == contents
