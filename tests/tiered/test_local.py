"""The directory plug-in: `kbroker.tiered.local`."""

from __future__ import annotations

import errno
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from threading import Thread

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kbroker.storage.checkpoint import TEMPORARY_SUFFIX
from kbroker.testing.disk import Fault, Operation, SimulatedDisk
from kbroker.testing.disk_nodes import FileNode, Loss
from kbroker.testing.remote_segments import partition_named, write_segment
from kbroker.testing.remote_storage import RemoteStorageConformance, read_all
from kbroker.tiered.api import (
    IndexType,
    RemoteResourceNotFound,
    RemoteStorageError,
    RetriableRemoteStorageError,
)
from kbroker.tiered.layout import KINDS, MANIFEST, SEGMENT, Manifest, object_name
from kbroker.tiered.local import LocalRemoteStorage
from tests.tiered.directories import CONFIGS, ROOT, changed, files, is_whole, new_disk, on, path_of, written


class TestConformance(RemoteStorageConformance):
    def make_manager(self, directory: Path) -> LocalRemoteStorage:
        manager = LocalRemoteStorage()
        manager.configure({"dir": str(directory)})
        return manager


# --- names and manifest ---------------------------------------------------------------------------------------------


def test_names_are_readable_and_complete() -> None:
    disk = new_disk()
    segment = written(disk)
    on(disk).copy_log_segment_data(segment.metadata, segment.data)
    partition = segment.metadata.remote_log_segment_id.topic_id_partition
    stem = object_name(segment.metadata, "")
    assert stem.startswith("orders-")
    assert f"/{partition.partition}/00000000000000000042-" in stem
    kinds = ["index", "leader-epoch-checkpoint", "log", "manifest.json", "snapshot", "timeindex", "txnindex"]
    assert files(disk) == [f"{ROOT}/{stem}{kind}" for kind in kinds]


def test_the_manifest_suffices_to_adopt_the_directory() -> None:
    disk = new_disk()
    segment = written(disk)
    on(disk).copy_log_segment_data(segment.metadata, segment.data)
    file = disk.open(path_of(segment, MANIFEST))
    manifest = Manifest.parse(file.pread(file.size(), 0))
    assert manifest.metadata == segment.finished
    assert manifest.cluster_id == CONFIGS["cluster.id"]
    sizes = {SEGMENT: len(segment.log)} | {kind.value: len(segment.indexes[kind]) for kind in IndexType}
    assert {kind: stored.size for kind, stored in manifest.files.items()} == sizes


@settings(max_examples=150, deadline=None)
@given(st.text(max_size=300) | st.text("./\\%\0~ -_", max_size=300))
def test_no_topic_name_leads_out_of_the_directory(topic: str) -> None:
    disk = new_disk()
    segment = write_segment("/log", disk=disk, batches=1, partition=partition_named(topic))
    before = disk.image()
    manager = on(disk)
    manager.copy_log_segment_data(segment.metadata, segment.data)
    after = disk.image()
    made = set(after) - set(before)
    assert all(path == ROOT or path.startswith(f"{ROOT}/") for path in made)
    assert all(len(part.encode()) <= 255 for path in made for part in path.split("/"))
    assert not [path for path in made if "/../" in path or "/./" in path or "\0" in path]
    assert {path: after[path] for path in before} == before
    assert read_all(manager.fetch_log_segment(segment.finished, 0)) == segment.log
    listed = [stored.segment_id for stored in manager.list_objects()]
    assert set(listed) == {segment.metadata.remote_log_segment_id.id}
    manager.delete_log_segment_data(segment.finished)
    assert disk.image() == before | {ROOT: None}


def test_a_hostile_name_stays_inside_on_the_real_disk(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    manager = LocalRemoteStorage()
    manager.configure({"dir": str(tmp_path / "tier")})
    for topic in ("../../../escaped", "/escaped", "..", ".", "", "a/b", "\udcff"):
        segment = write_segment(str(tmp_path / "log"), batches=1, partition=partition_named(topic))
        manager.copy_log_segment_data(segment.metadata, segment.data)
        assert read_all(manager.fetch_log_segment(segment.finished, 0)) == segment.log
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log", "tier"]


# --- settings -------------------------------------------------------------------------------------------------------


def test_the_default_tier_is_a_sibling_of_the_data_directory() -> None:
    disk = new_disk()
    manager = LocalRemoteStorage(disk)
    manager.configure({"log.dir": "/somewhere/data/"})
    segment = written(disk)
    manager.copy_log_segment_data(segment.metadata, segment.data)
    assert disk.list("/somewhere") == ["data-tier"]


@pytest.mark.parametrize(
    ("configs", "said"),
    [
        ({}, "rsm.config.dir, the directory of the tier, is missing"),
        ({"dir": "", "log.dir": ""}, "is missing"),
        ({"dir": "/data", "log.dir": "/data/"}, "is in the data directory"),
        ({"dir": "/data/x/../orders-0", "log.dir": "/data"}, "is in the data directory"),
        ({"dir": "/tier", "dri": "/tier"}, "rsm.config.dri is not a setting"),
    ],
)
def test_invalid_settings_are_refused(configs: dict[str, str], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        LocalRemoteStorage(SimulatedDisk()).configure(configs)


def test_the_tier_may_be_inside_a_data_volume() -> None:
    LocalRemoteStorage(SimulatedDisk()).configure({"dir": "/data/tier", "log.dir": "/data"})


def test_a_configured_manager_has_not_touched_the_disk() -> None:
    disk = SimulatedDisk()
    disk.dead = True
    on(disk).close()


# --- damage and errors ----------------------------------------------------------------------------------------------


class LyingDisk(SimulatedDisk):
    """Changes a byte of the data written to files with this name."""

    lies_in = ""

    def _write(self, node: FileNode, path: str, position: int, data: bytes) -> None:
        if self.lies_in and self.lies_in in path and data:
            data = data[:-1] + bytes([data[-1] ^ 1])
        super()._write(node, path, position, data)


@pytest.mark.parametrize("kind", [".log", ".index", ".timeindex", ".snapshot", ".leader-epoch", ".txnindex", ".json"])
def test_a_copy_that_differs_from_its_source_fails(kind: str) -> None:
    disk = LyingDisk()
    segment = written(new_disk(disk))
    disk.lies_in = kind
    with pytest.raises(RemoteStorageError, match="does not hold what was written"):
        on(disk).copy_log_segment_data(segment.metadata, segment.data)
    assert files(disk) == []
    disk.lies_in = ""
    on(disk).copy_log_segment_data(segment.metadata, segment.data)
    assert is_whole(on(disk), segment)


def test_a_segment_with_a_wrong_size_is_not_copied() -> None:
    disk = new_disk()
    segment = written(disk)
    for size in (len(segment.log) - 1, len(segment.log) + 1):
        with pytest.raises(RemoteStorageError, match="bytes, not"):
            on(disk).copy_log_segment_data(replace(segment.metadata, segment_size_in_bytes=size), segment.data)
    assert files(disk) == []


def test_a_full_disk_is_retriable_and_leaves_nothing() -> None:
    """M12: with every amount of free space that is too small."""
    disk = new_disk()
    segment = written(disk)
    used = sum(len(data or b"") for data in disk.image().values())
    needed = len(segment.log) + sum(map(len, segment.indexes.values()))
    before = disk.image()
    for room in [*range(0, needed, 997), *range(len(segment.log) - 3, len(segment.log) + 3), needed - 1, needed + 5]:
        disk.capacity_bytes = used + room
        with pytest.raises(RetriableRemoteStorageError):
            on(disk).copy_log_segment_data(segment.metadata, segment.data)
        assert disk.image() == before | {ROOT: None}
    disk.heal()
    on(disk).copy_log_segment_data(segment.metadata, segment.data)
    assert is_whole(on(disk), segment)


class DiskOfNoSize(SimulatedDisk):
    """Some user-space file systems report no size."""

    def free_bytes(self, path: str) -> int:
        return 0

    def total_bytes(self, path: str) -> int:
        return 0


def test_a_file_system_without_a_size_is_not_full() -> None:
    disk = DiskOfNoSize()
    segment = written(new_disk(disk))
    on(disk).copy_log_segment_data(segment.metadata, segment.data)
    assert is_whole(on(disk), segment)


def test_a_copy_without_space_is_not_started() -> None:
    disk = new_disk()
    segment = written(disk)
    manager = on(disk)
    disk.capacity_bytes = sum(len(data or b"") for data in disk.image().values()) + len(segment.log) - 1
    writes: list[Operation] = []
    disk.observer = lambda operation: writes.append(operation) if operation.name == "write" else None
    with pytest.raises(RetriableRemoteStorageError, match="no room"):
        manager.copy_log_segment_data(segment.metadata, segment.data)
    assert writes == []


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC, errno.EROFS])
def test_a_failed_copy_leaves_nothing(error: int) -> None:
    disk = new_disk()
    segment = written(disk)
    counted = disk.crash(Loss.PROCESS_DEATH)
    on(counted).copy_log_segment_data(segment.metadata, segment.data)
    assert counted.operations > 30
    for number in range(counted.operations):
        failing = disk.crash(Loss.PROCESS_DEATH)
        failing.inject(Fault(error, number=number))
        manager = on(failing)
        with pytest.raises(RemoteStorageError) as refused:
            manager.copy_log_segment_data(segment.metadata, segment.data)
        assert isinstance(refused.value, RetriableRemoteStorageError) == (error == errno.ENOSPC), number
        assert files(failing) == []
        manager.copy_log_segment_data(segment.metadata, segment.data)
        assert is_whole(manager, segment)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (errno.EIO, RemoteStorageError),
        (errno.EACCES, RemoteStorageError),
        (errno.EMFILE, RetriableRemoteStorageError),
        (errno.ESTALE, RetriableRemoteStorageError),
        (errno.ENOENT, RemoteResourceNotFound),
    ],
)
def test_disk_errors_are_classified(error: int, kind: type[RemoteStorageError]) -> None:
    disk = new_disk()
    segment = written(disk)
    manager = on(disk)
    manager.copy_log_segment_data(segment.metadata, segment.data)
    disk.inject(Fault(error, name="open", path=f"{ROOT}/*", times=-1))
    with pytest.raises(RemoteStorageError) as refused:
        manager.fetch_log_segment(segment.finished, 0)
    assert type(refused.value) is kind
    with pytest.raises(RemoteStorageError) as refused:
        manager.fetch_index(segment.finished, IndexType.OFFSET)
    assert type(refused.value) is kind


def test_a_disk_error_within_a_stream_is_a_tier_error() -> None:
    disk = new_disk()
    segment = written(disk)
    manager = on(disk)
    manager.copy_log_segment_data(segment.metadata, segment.data)
    with manager.fetch_log_segment(segment.finished, 0) as stream:
        assert stream.read(100) == segment.log[:100]
        disk.inject(Fault(errno.EIO, name="read", path="*.log"))
        with pytest.raises(RemoteStorageError):
            stream.read(100)
        assert stream.read() == segment.log[100:]


def test_m5_reading_a_truncated_segment_fails() -> None:
    disk = new_disk()
    segment = written(disk)
    manager = on(disk)
    manager.copy_log_segment_data(segment.metadata, segment.data)
    changed(disk, path_of(segment, SEGMENT), lambda old: old[:-10])
    assert read_all(manager.fetch_log_segment(segment.finished, 5, 500)) == segment.log[5:501]
    with pytest.raises(RemoteStorageError, match="ends at"):
        read_all(manager.fetch_log_segment(segment.finished, 0))


def test_m13_a_damaged_index_fails_but_a_damaged_manifest_does_not() -> None:
    disk = new_disk()
    segment = written(disk)
    manager = on(disk)
    manager.copy_log_segment_data(segment.metadata, segment.data)
    changed(disk, path_of(segment, "timeindex"), lambda old: old[:-1] + b"\x55")
    with pytest.raises(RemoteStorageError, match="damaged"):
        manager.fetch_index(segment.finished, IndexType.TIMESTAMP)
    changed(disk, path_of(segment, "timeindex"), lambda _: segment.indexes[IndexType.TIMESTAMP])
    for damage in (lambda old: old[:50], lambda _: b"", lambda _: b"[]", lambda _: b"\xff" * 40):
        changed(disk, path_of(segment, MANIFEST), damage)
        assert is_whole(manager, segment)
    disk.unlink(path_of(segment, MANIFEST))
    assert is_whole(manager, segment)


def test_an_unmounted_directory_does_not_mean_missing_segments() -> None:
    disk = new_disk()
    segment = written(disk)
    with pytest.raises(RetriableRemoteStorageError, match="mounted"):
        on(disk).fetch_log_segment(segment.finished, 0)
    disk.make_directory(ROOT)
    with pytest.raises(RemoteResourceNotFound):
        on(disk).fetch_log_segment(segment.finished, 0)


def test_an_unmounted_directory_accepts_no_deletion_and_no_copy() -> None:
    """A deletion that finds nothing would leave orphans; a copy would be hidden by a later mount."""
    disk = new_disk()
    first, second = written(disk), written(disk, start_offset=900)
    on(disk).copy_log_segment_data(first.metadata, first.data)
    manager = on(disk)
    assert is_whole(manager, first)
    disk.rename(ROOT, f"{ROOT}.away")
    with pytest.raises(RetriableRemoteStorageError, match=r"deleting .* mounted"):
        manager.delete_log_segment_data(first.finished)
    with pytest.raises(RetriableRemoteStorageError, match=r"copying .* mounted"):
        manager.copy_log_segment_data(second.metadata, second.data)
    assert not disk.exists(ROOT)
    disk.rename(f"{ROOT}.away", ROOT)
    manager.copy_log_segment_data(second.metadata, second.data)
    assert is_whole(manager, second)
    manager.delete_log_segment_data(first.finished)
    assert not disk.exists(path_of(first, SEGMENT))


# --- several at once, and lists -------------------------------------------------------------------------------------


def test_an_open_stream_survives_a_deletion() -> None:
    disk = new_disk()
    segment = written(disk)
    manager = on(disk)
    manager.copy_log_segment_data(segment.metadata, segment.data)
    with manager.fetch_log_segment(segment.finished, 0) as stream:
        first = stream.read(100)
        manager.delete_log_segment_data(segment.finished)
        assert first + stream.read() == segment.log


def test_a_segment_copied_by_two_threads_is_complete(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    manager = LocalRemoteStorage()
    manager.configure({"dir": str(tmp_path / "tier")})
    segment = write_segment(str(tmp_path / "log"), batches=30, value_bytes=30_000)
    with ThreadPoolExecutor(4) as threads:
        for done in [threads.submit(manager.copy_log_segment_data, segment.metadata, segment.data) for _ in range(12)]:
            done.result()
    assert read_all(manager.fetch_log_segment(segment.finished, 0)) == segment.log
    assert len(list(manager.list_objects())) == 6


def test_deleting_the_last_segment_removes_the_directories() -> None:
    disk = new_disk()
    manager = on(disk)
    first, second = written(disk, start_offset=0), written(disk)
    for segment in (first, second):
        manager.copy_log_segment_data(segment.metadata, segment.data)
    manager.delete_log_segment_data(first.finished)
    assert len(disk.list(ROOT)) == 1
    manager.delete_log_segment_data(second.finished)
    assert disk.list(ROOT) == []
    manager.copy_log_segment_data(first.metadata, first.data)
    assert is_whole(on(disk.crash(Loss.ONLY_SYNCED)), first)


class DiskWithALateOne(SimulatedDisk):
    """A worker of a dead broker still renames files, each one when its name has just become free."""

    is_there = False

    def unlink(self, path: str) -> None:
        try:
            super().unlink(path)
        finally:
            if self.is_there:
                with suppress(FileNotFoundError):
                    self.rename(path + TEMPORARY_SUFFIX, path)


def test_m8_a_late_rename_leaves_nothing_after_a_deletion() -> None:
    disk = DiskWithALateOne()
    segment = written(new_disk(disk))
    on(disk).copy_log_segment_data(segment.metadata, segment.data)
    for kind in KINDS:
        disk.rename(path_of(segment, kind), path_of(segment, kind) + TEMPORARY_SUFFIX)
    disk.is_there = True
    on(disk).delete_log_segment_data(segment.metadata)
    assert files(disk) == []


def test_a_listing_includes_foreign_files() -> None:
    disk = new_disk()
    manager = on(disk)
    assert list(manager.list_objects()) == []
    segment = written(disk)
    manager.copy_log_segment_data(segment.metadata, segment.data)
    disk.open(path_of(segment, SEGMENT) + ".tmp", create=True).pwrite(b"half", 0)
    disk.open(f"{ROOT}/notes.txt", create=True).pwrite(b"hello", 0)
    listed = {stored.name: stored for stored in manager.list_objects()}
    foreign = listed["notes.txt"]
    assert (foreign.topic_id, foreign.segment_id, foreign.size) == (None, None, 5)
    half = listed[object_name(segment.metadata, SEGMENT) + ".tmp"]
    assert (half.is_auxiliary, half.index_type, half.size) == (True, None, 4)
    assert half.segment_id == segment.metadata.remote_log_segment_id.id
    assert listed[object_name(segment.metadata, MANIFEST)].is_auxiliary
    assert not listed[object_name(segment.metadata, SEGMENT)].is_auxiliary


def test_an_unreadable_listing_is_an_error() -> None:
    disk = new_disk()
    manager = on(disk)
    segment = written(disk)
    manager.copy_log_segment_data(segment.metadata, segment.data)
    disk.inject(Fault(errno.EIO, name="list", path=f"{ROOT}/orders*"))
    with pytest.raises(RemoteStorageError):
        list(manager.list_objects())


def test_two_probes_at_once_do_not_disturb_each_other() -> None:
    errors: list[Exception] = []

    def probe() -> None:
        try:
            manager.check_writes()
        except RemoteStorageError as error:
            errors.append(error)

    class Slow(SimulatedDisk):
        """A second probe begins before the first one has removed its file."""

        def unlink(self, path: str) -> None:
            if not others:
                others.append(Thread(target=probe))
                others[0].start()
                others[0].join(0.1)
            super().unlink(path)

    others: list[Thread] = []
    disk = new_disk(Slow())
    disk.make_directory(ROOT)
    manager = on(disk)
    probe()
    others[0].join()
    assert errors == []
    assert files(disk) == []
