from __future__ import annotations

import errno
import os
import resource
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from kbroker.runtime.disk import RealDisk, raise_descriptor_limit


def test_a_file_is_read_and_written_at_positions(tmp_path: Path) -> None:
    file = RealDisk().open(str(tmp_path / "file"), create=True)
    file.pwrite(b"world", 6)
    file.pwrite(memoryview(b"hello "), 0)
    assert file.pread(5, 6) == b"world"
    assert file.pread(100, 9) == b"ld"
    assert file.pread(10, 50) == b""
    assert file.size() == 11
    file.truncate(5)
    assert file.pread(100, 0) == b"hello"
    file.sync()
    file.close()
    file.close()


def test_create_does_not_change_an_existing_file(tmp_path: Path) -> None:
    disk = RealDisk()
    path = str(tmp_path / "file")
    with pytest.raises(FileNotFoundError):
        disk.open(path)
    disk.open(path, create=True).pwrite(b"x", 0)
    assert disk.open(path, create=True, writable=True).size() == 1
    with pytest.raises(OSError, match="Bad file descriptor"):
        disk.open(path, writable=False).pwrite(b"y", 0)
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600


def test_a_file_closes_itself_with_its_last_reference(tmp_path: Path) -> None:
    file = RealDisk().open(str(tmp_path / "file"), create=True)
    descriptor = file.fileno()
    other = file
    del file
    os.fstat(descriptor)
    del other
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


def test_short_writes_continue_until_the_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = RealDisk().open(str(tmp_path / "file"), create=True)
    pwrite = os.pwrite
    left = [4, 3, 0]

    def short(descriptor: int, data: bytes, position: int) -> int:
        allowed = left.pop(0)
        if not allowed:
            raise OSError(errno.ENOSPC, "No space left on device")
        return pwrite(descriptor, bytes(data[:allowed]), position)

    monkeypatch.setattr(os, "pwrite", short)
    with pytest.raises(OSError, match="No space"):
        file.pwrite(b"0123456789", 0)
    monkeypatch.undo()
    assert file.pread(20, 0) == b"0123456"


def test_directories_are_created_listed_and_removed(tmp_path: Path) -> None:
    disk = RealDisk()
    path = str(tmp_path / "directory")
    assert not disk.exists(path)
    disk.make_directory(path)
    with pytest.raises(FileExistsError):
        disk.make_directory(path)
    for name in ("b", "a", "c"):
        disk.open(f"{path}/{name}", create=True)
    assert disk.list(path) == ["a", "b", "c"]
    disk.rename(f"{path}/a", f"{path}/b")
    assert disk.list(path) == ["b", "c"]
    with pytest.raises(OSError, match="not empty"):
        disk.remove_directory(path)
    for name in ("b", "c"):
        disk.unlink(f"{path}/{name}")
    disk.sync_directory(path)
    disk.remove_directory(path)
    assert not disk.exists(path)
    assert disk.free_bytes(str(tmp_path)) > 0


def test_size_and_age_of_a_file_are_known_by_name(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    os.utime(path, ns=(0, 1_234_567_000_000))
    assert RealDisk().size(str(path)) == 5
    assert RealDisk().modified_ms(str(path)) == 1_234_567


def test_d12_a_lock_excludes_this_process_and_others_until_closed(tmp_path: Path) -> None:
    path = str(tmp_path / ".lock")
    disk = RealDisk()
    held = disk.lock(path)
    with pytest.raises(BlockingIOError):
        disk.lock(path)
    other = "import sys; from kbroker.runtime.disk import RealDisk; RealDisk().lock(sys.argv[1])"
    run = subprocess.run([sys.executable, "-c", other, path], capture_output=True, check=False, text=True)
    assert "BlockingIOError" in run.stderr
    held.close()
    assert subprocess.run([sys.executable, "-c", other, path], check=False).returncode == 0
    disk.lock(path).close()


def test_d13_the_open_file_limit_is_raised_to_the_maximum() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
        raise_descriptor_limit()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_allocate_also_fills_the_holes_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()
    os.truncate(path, 1 << 20)
    assert path.stat().st_blocks == 0
    RealDisk().allocate(str(path), 1 << 20)
    assert path.stat().st_blocks * 512 >= 1 << 20
    RealDisk().allocate(str(tmp_path / "new"), 4096)
    assert (tmp_path / "new").read_bytes() == bytes(4096)


def test_paths_on_one_file_system_have_one_device(tmp_path: Path) -> None:
    disk = RealDisk()
    assert disk.device(str(tmp_path)) == disk.device(str(tmp_path.parent))
    assert disk.device(str(tmp_path)) != disk.device("/proc")
