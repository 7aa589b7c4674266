from __future__ import annotations

import os
import threading
from pathlib import Path

from kbroker.runtime.disk import RealDisk
from kbroker.storage.files import FilePool, FileRange


def make(directory: Path, count: int) -> list[str]:
    paths = [str(directory / f"file-{number}") for number in range(count)]
    for path in paths:
        Path(path).write_bytes(os.path.basename(path).encode())
    return paths


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_a_file_is_opened_once_while_it_is_held(tmp_path: Path) -> None:
    (path,) = make(tmp_path, 1)
    pool = FilePool(RealDisk())
    assert pool.open(path) is pool.open(path)


def test_the_pool_stays_within_its_limit(tmp_path: Path) -> None:
    paths = make(tmp_path, 50)
    before = descriptors()
    pool = FilePool(RealDisk(), 8)
    for path in paths * 3:
        assert pool.open(path).file.pread(100, 0) == os.path.basename(path).encode()
        assert len(pool) <= 8
    assert descriptors() - before <= 8
    pool.close()
    assert descriptors() == before


def test_a_file_in_use_outlives_another_that_is_not(tmp_path: Path) -> None:
    paths = make(tmp_path, 30)
    pool = FilePool(RealDisk(), 4)
    hot = pool.open(paths[0])
    for path in paths[1:]:
        pool.open(path)
        assert pool.open(paths[0]) is hot


def test_a_range_keeps_its_file_open(tmp_path: Path) -> None:
    (path,) = make(tmp_path, 1)
    before = descriptors()
    pool = FilePool(RealDisk())
    piece = FileRange(pool.open(path), 2, 3)
    pool.forget(path)
    os.unlink(path)
    assert piece.read() == b"le-"
    assert os.pread(piece.fileno(), 3, piece.position) == b"le-"
    assert descriptors() == before + 1
    del piece
    assert descriptors() == before


def test_a_forgotten_path_is_opened_again(tmp_path: Path) -> None:
    (path,) = make(tmp_path, 1)
    pool = FilePool(RealDisk(), 2)
    for number in range(1_000):
        pool.forget(path)
        os.unlink(path)
        Path(path).write_text(str(number))
        assert pool.open(path).file.pread(10, 0) == str(number).encode()
    assert len(pool._ring) < 200, "names of forgotten files do not accumulate"


def test_forgetting_a_directory_keeps_other_directories(tmp_path: Path) -> None:
    pool = FilePool(RealDisk())
    for name in ("a", "ab"):
        (tmp_path / name).mkdir()
        pool.open(make(tmp_path / name, 1)[0])
    pool.forget_directory(str(tmp_path / "a"))
    assert len(pool) == 1


def test_threads_may_open_and_forget_concurrently(tmp_path: Path) -> None:
    paths = make(tmp_path, 20)
    pool = FilePool(RealDisk(), 5)
    wrong: list[object] = []

    def use(seed: int) -> None:
        try:
            for number in range(1_500):
                path = paths[(number * seed) % len(paths)]
                if pool.open(path).file.pread(100, 0) != os.path.basename(path).encode():
                    wrong.append(path)
                if number % 7 == 0:
                    pool.forget(path)
        except (OSError, RuntimeError) as error:
            wrong.append(error)

    threads = [threading.Thread(target=use, args=(seed,)) for seed in (1, 3, 7, 11)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert len(pool) <= 9
