"""Crashes of the directory plug-in at each of its operations: `kbroker.tiered.local`."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import replace

import pytest

from kbroker.testing.disk import Fault, Operation, SimulatedDisk
from kbroker.testing.disk_nodes import Loss
from kbroker.tiered.api import RemoteStorageError
from kbroker.tiered.layout import MANIFEST, Manifest, object_name
from tests.tiered.directories import files, is_gone, is_whole, new_disk, on, path_of, written


def at_each_operation(disk: SimulatedDisk, losses: list[Loss], work: Callable[[], object]) -> list[SimulatedDisk]:
    """The disks after a crash before each operation of some work, and in the middle of writes."""
    found: list[SimulatedDisk] = []

    def crash(operation: Operation) -> None:
        for loss in losses:
            found.append(disk.crash(loss, seed=operation.number))
            if operation.name == "write":
                found.append(disk.crash(loss, seed=operation.number, during=operation))

    disk.observer = crash
    work()
    disk.observer = None
    return found


def test_m8_a_finished_copy_survives_a_power_loss() -> None:
    disk = new_disk()
    manager = on(disk)
    segments = [written(disk, start_offset=start) for start in (0, 500)]
    for segment in segments:
        manager.copy_log_segment_data(segment.metadata, segment.data)
    for loss in Loss:
        assert all(is_whole(on(disk.crash(loss)), segment) for segment in segments)


@pytest.mark.parametrize("loss", list(Loss))
def test_m8_after_a_crash_in_a_copy_manifests_are_valid(loss: Loss) -> None:
    disk = new_disk()
    manager = on(disk)
    before, segment = written(disk, start_offset=0), written(disk)
    manager.copy_log_segment_data(before.metadata, before.data)
    survivors = at_each_operation(disk, [loss], lambda: manager.copy_log_segment_data(segment.metadata, segment.data))
    manifests = 0
    for survivor in survivors:
        if survivor.exists(path_of(segment, MANIFEST)):
            manifests += 1
            assert is_whole(on(survivor), segment)
        assert is_whole(on(survivor), before)
        again = survivor.crash(Loss.PROCESS_DEATH)
        on(again).copy_log_segment_data(segment.metadata, segment.data)
        assert is_whole(on(again.crash(Loss.ONLY_SYNCED)), segment)
        on(survivor).delete_log_segment_data(segment.finished)
        for later in (survivor, survivor.crash(Loss.ONLY_SYNCED)):
            assert [path for path in files(later) if object_name(segment.metadata, "") in path] == []
            assert is_whole(on(later), before)
    assert len(survivors) > 40
    assert manifests or loss is not Loss.PROCESS_DEATH


@pytest.mark.parametrize("loss", list(Loss))
def test_m8_after_a_crash_in_an_undo_manifests_are_valid(loss: Loss) -> None:
    """The last sync fails after all files were renamed; the undo of the renames is interrupted at each operation."""
    counted = new_disk()
    segment, syncs = written(counted), 0

    def count(operation: Operation) -> None:
        nonlocal syncs
        syncs += operation.name == "sync_directory"

    counted.observer = count
    on(counted).copy_log_segment_data(segment.metadata, segment.data)

    disk = new_disk()
    segment = written(disk)
    disk.inject(Fault(errno.EIO, name="sync_directory", skip=syncs - 1, times=1))

    def copy() -> None:
        with pytest.raises(RemoteStorageError):
            on(disk).copy_log_segment_data(segment.metadata, segment.data)

    survivors = at_each_operation(disk, [loss], copy)
    assert not disk.exists(path_of(segment, MANIFEST))
    manifests = 0
    for survivor in survivors:
        if survivor.exists(path_of(segment, MANIFEST)):
            manifests += 1
            assert is_whole(on(survivor), segment)
    assert manifests or loss is not Loss.PROCESS_DEATH


@pytest.mark.parametrize("loss", list(Loss))
def test_m8_a_deletion_completes_an_interrupted_one(loss: Loss) -> None:
    disk = new_disk()
    manager = on(disk)
    kept, segment = written(disk, start_offset=0), written(disk)
    for copied in (kept, segment):
        manager.copy_log_segment_data(copied.metadata, copied.data)
    survivors = at_each_operation(disk, [loss], lambda: manager.delete_log_segment_data(segment.finished))
    assert len(survivors) > 7
    for survivor in survivors:
        if loss is Loss.PROCESS_DEATH and survivor.exists(path_of(segment, MANIFEST)):
            assert is_whole(on(survivor), segment)
        on(survivor).delete_log_segment_data(segment.finished)
        for later in (survivor, survivor.crash(Loss.ONLY_SYNCED)):
            assert is_gone(on(later), segment.finished)
            assert is_whole(on(later), kept)


@pytest.mark.parametrize("loss", list(Loss))
def test_m7_a_crash_in_a_repeated_copy_leaves_no_wrong_manifest(loss: Loss) -> None:
    disk = new_disk()
    manager = on(disk)
    segment = written(disk)
    other = written(disk, batches=20)
    other = replace(
        other,
        metadata=replace(other.metadata, remote_log_segment_id=segment.metadata.remote_log_segment_id),
    )
    manager.copy_log_segment_data(segment.metadata, segment.data)
    survivors = at_each_operation(disk, [loss], lambda: manager.copy_log_segment_data(other.metadata, other.data))
    assert is_whole(manager, other)
    for survivor in survivors:
        if survivor.exists(path_of(segment, MANIFEST)):
            file = survivor.open(path_of(segment, MANIFEST))
            stored = Manifest.parse(file.pread(file.size(), 0)).metadata
            assert is_whole(on(survivor), other if stored == other.finished else segment)
