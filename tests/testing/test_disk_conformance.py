"""The simulated disk and the real one behave the same: one suite for both."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import pytest

from kbroker.runtime.disk import RealDisk
from kbroker.runtime.ports import Disk, File
from kbroker.testing.disk import SimulatedDisk


def simulated(_: Path) -> tuple[Disk, str]:
    disk = SimulatedDisk()
    disk.make_directory("/data")
    return disk, "/data"


def real(directory: Path) -> tuple[Disk, str]:
    return RealDisk(), str(directory)


@pytest.fixture(params=[simulated, real])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Disk, str]:
    make: Callable[[Path], tuple[Disk, str]] = request.param
    return make(tmp_path)


def written(disk: Disk, path: str, data: bytes) -> File:
    file = disk.open(path, create=True)
    file.pwrite(data, 0)
    return file


def content(disk: Disk, path: str) -> bytes:
    file = disk.open(path, writable=False)
    try:
        return file.pread(1 << 20, 0)
    finally:
        file.close()


def test_a_created_file_is_empty_and_listed(place: tuple[Disk, str]) -> None:
    disk, base = place
    disk.open(f"{base}/b", create=True).close()
    disk.open(f"{base}/a", create=True).close()
    assert disk.list(base) == ["a", "b"]
    assert disk.exists(f"{base}/a")
    assert disk.size(f"{base}/a") == 0


def test_a_buffer_is_filled_up_to_the_end_of_file(place: tuple[Disk, str]) -> None:
    disk, base = place
    file = written(disk, f"{base}/a", bytes(range(200)))
    buffer = bytearray(b"x" * 80)
    assert file.pread_into(memoryview(buffer), 50) == 80
    assert buffer == bytes(range(50, 130))
    assert file.pread_into(memoryview(buffer), 190) == 10
    assert buffer == bytes(range(190, 200)) + bytes(range(60, 130))
    assert file.pread_into(memoryview(buffer), 200) == 0


def test_data_in_write_back_can_be_read_and_synced(place: tuple[Disk, str]) -> None:
    disk, base = place
    file = written(disk, f"{base}/a", bytes(100_000))
    file.begin_write_back(0, 100_000)
    file.pwrite(b"later", 50_000)
    file.begin_write_back(0, 0)
    assert file.pread(7, 49_999) == b"\0later\0"
    file.sync()
    assert file.size() == 100_000


def test_create_leaves_an_existing_file_unchanged(place: tuple[Disk, str]) -> None:
    disk, base = place
    written(disk, f"{base}/a", b"kept").close()
    disk.open(f"{base}/a", create=True).close()
    assert content(disk, f"{base}/a") == b"kept"


def test_open_without_create_needs_the_file(place: tuple[Disk, str]) -> None:
    disk, base = place
    with pytest.raises(FileNotFoundError):
        disk.open(f"{base}/missing")
    with pytest.raises(FileNotFoundError):
        disk.open(f"{base}/missing/file", create=True)


def test_reads_are_short_only_at_the_end_of_file(place: tuple[Disk, str]) -> None:
    disk, base = place
    file = written(disk, f"{base}/a", b"0123456789")
    assert file.pread(4, 3) == b"3456"
    assert file.pread(100, 8) == b"89"
    assert file.pread(4, 10) == b""
    assert file.pread(4, 99) == b""
    file.close()


def test_writes_beyond_the_end_leave_zeros(place: tuple[Disk, str]) -> None:
    disk, base = place
    file = written(disk, f"{base}/a", b"abc")
    file.pwrite(memoryview(b"xyz"), 5)
    file.pwrite(bytearray(b"B"), 1)
    assert file.size() == 8
    assert file.pread(100, 0) == b"aBc\0\0xyz"
    file.close()


def test_truncate_cuts_and_grows(place: tuple[Disk, str]) -> None:
    disk, base = place
    file = written(disk, f"{base}/a", b"abcdef")
    file.truncate(2)
    assert file.size() == 2
    file.truncate(4)
    assert file.pread(100, 0) == b"ab\0\0"
    file.close()


def test_rename_replaces_a_file_and_keeps_open_files(place: tuple[Disk, str]) -> None:
    disk, base = place
    file = written(disk, f"{base}/a", b"new")
    written(disk, f"{base}/b", b"old").close()
    disk.rename(f"{base}/a", f"{base}/b")
    assert not disk.exists(f"{base}/a")
    assert content(disk, f"{base}/b") == b"new"
    file.pwrite(b"N", 0)
    assert file.path == f"{base}/a"
    assert content(disk, f"{base}/b") == b"New"
    file.close()


def test_a_directory_is_renamed_with_its_contents(place: tuple[Disk, str]) -> None:
    disk, base = place
    disk.make_directory(f"{base}/t-0")
    written(disk, f"{base}/t-0/a", b"1").close()
    disk.rename(f"{base}/t-0", f"{base}/t-0-delete")
    assert disk.list(base) == ["t-0-delete"]
    assert content(disk, f"{base}/t-0-delete/a") == b"1"


def test_an_unlinked_open_file_can_still_be_read(place: tuple[Disk, str]) -> None:
    disk, base = place
    file = written(disk, f"{base}/a", b"still here")
    disk.unlink(f"{base}/a")
    assert not disk.exists(f"{base}/a")
    assert file.pread(100, 0) == b"still here"
    file.sync()
    file.close()


def test_errors_have_the_kernels_class(place: tuple[Disk, str]) -> None:
    disk, base = place
    disk.make_directory(f"{base}/full")
    disk.make_directory(f"{base}/empty")
    written(disk, f"{base}/full/file", b"").close()
    expected: list[tuple[type[OSError], Callable[[], object]]] = [
        (FileExistsError, lambda: disk.make_directory(f"{base}/full")),
        (FileNotFoundError, lambda: disk.make_directory(f"{base}/no/where")),
        (OSError, lambda: disk.remove_directory(f"{base}/full")),
        (FileNotFoundError, lambda: disk.remove_directory(f"{base}/missing")),
        (NotADirectoryError, lambda: disk.remove_directory(f"{base}/full/file")),
        (FileNotFoundError, lambda: disk.unlink(f"{base}/missing")),
        (IsADirectoryError, lambda: disk.unlink(f"{base}/full")),
        (FileNotFoundError, lambda: disk.rename(f"{base}/missing", f"{base}/b")),
        (IsADirectoryError, lambda: disk.rename(f"{base}/full/file", f"{base}/empty")),
        (NotADirectoryError, lambda: disk.rename(f"{base}/empty", f"{base}/full/file")),
        (OSError, lambda: disk.rename(f"{base}/empty", f"{base}/full")),
        (FileNotFoundError, lambda: disk.list(f"{base}/missing")),
        (NotADirectoryError, lambda: disk.list(f"{base}/full/file")),
        (FileNotFoundError, lambda: disk.size(f"{base}/missing")),
        (FileNotFoundError, lambda: disk.modified_ms(f"{base}/missing")),
        (FileNotFoundError, lambda: disk.sync_directory(f"{base}/missing")),
        (NotADirectoryError, lambda: disk.exists(f"{base}/full/file/below")),
        (IsADirectoryError, lambda: disk.open(f"{base}/full")),
    ]
    for number, (error, attempt) in enumerate(expected):
        with pytest.raises(error) as raised:
            attempt()
        # The last two refusals for a non-empty directory may be ENOTEMPTY or EEXIST; all others have one errno.
        assert raised.value.errno is not None, f"attempt {number}"
    assert disk.list(base) == ["empty", "full"]
    assert disk.list(f"{base}/full") == ["file"]


def test_a_file_opened_for_reading_cannot_be_changed(place: tuple[Disk, str]) -> None:
    disk, base = place
    written(disk, f"{base}/a", b"abc").close()
    file = disk.open(f"{base}/a", writable=False)
    with pytest.raises(OSError):
        file.pwrite(b"x", 0)
    with pytest.raises(OSError):
        file.truncate(0)
    file.close()
    assert content(disk, f"{base}/a") == b"abc"


def test_close_may_be_repeated_and_ends_all_use(place: tuple[Disk, str]) -> None:
    disk, base = place
    file = written(disk, f"{base}/a", b"abc")
    file.close()
    file.close()
    with pytest.raises(OSError):
        file.pread(1, 0)
    with pytest.raises(OSError):
        file.pwrite(b"x", 0)
    with pytest.raises(OSError):
        file.size()


def test_d12_a_lock_is_refused_until_it_is_closed(place: tuple[Disk, str]) -> None:
    disk, base = place
    held = disk.lock(f"{base}/.lock")
    with pytest.raises(BlockingIOError):
        disk.lock(f"{base}/.lock")
    held.close()
    disk.lock(f"{base}/.lock").close()
    assert disk.list(base) == [".lock"]


def test_there_is_free_space(place: tuple[Disk, str]) -> None:
    disk, base = place
    assert disk.free_bytes(base) > 0


def test_only_the_real_disk_has_descriptors(place: tuple[Disk, str]) -> None:
    disk, base = place
    file = written(disk, f"{base}/a", b"abc")
    if isinstance(disk, RealDisk):
        assert file.fileno() >= 0
    else:
        with pytest.raises(io.UnsupportedOperation):
            file.fileno()
        assert issubclass(io.UnsupportedOperation, OSError)
    file.close()
