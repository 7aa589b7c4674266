"""Shared helpers of the storage tests: batches, logs in a directory, and a disk with injected failures."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kbroker.runtime.disk import RealDisk, RealFile
from kbroker.runtime.ports import Buffer, Disk
from kbroker.storage.log import Log
from kbroker.storage.log_config import LogConfig
from kbroker.storage.plans import AppendPlan
from wire.record_batch import Record, RecordBatch, batches, build_batch


def batch(count: int = 1, *, timestamp: int = 1_000, size: int = 100, **header: Any) -> bytearray:
    """A batch of `count` records, each with a value of `size` bytes; timestamps ascend by one."""
    records = [Record(-1, timestamp + number, b"key", b"v" * size) for number in range(count)]
    return bytearray(build_batch(records, **header))


def open_log(directory: Path | str, *, disk: Disk | None = None, config: LogConfig | None = None, **given: Any) -> Log:
    given = {"clean_shutdown": False, "topic": "orders", "partition": 0, **given}
    return Log(str(directory), disk=disk or RealDisk(), config=config or LogConfig(), **given)


def fill(log: Log, count: int, *, leader_epoch: int = 0, first: int | None = None, size: int = 100) -> None:
    """Append single records; the record at offset i has the timestamp 1,000 + i."""
    begin = log.log_end_offset if first is None else first
    for number in range(begin, begin + count):
        log.append(batch(timestamp=1_000 + number, size=size), leader_epoch=leader_epoch, timestamp_ms=1_000 + number)


def append_as_follower(log: Log, data: Buffer) -> AppendPlan:
    """Append batches that already have the leader's offsets and epochs."""
    plan = log.plan_append_as_follower(data, timestamp_ms=0)
    assert plan is not None
    log.write(plan)
    log.commit(plan)
    return plan


def read_all(log: Log, *, max_bytes: int = 4_000) -> list[RecordBatch]:
    """Every batch of the local log, read like a consumer."""
    found: list[RecordBatch] = []
    offset = log.local_log_start_offset
    while offset < log.log_end_offset:
        got = list(batches(log.read(offset, max_bytes=max_bytes).read()))
        assert got, f"nothing at offset {offset} of {log!r}"
        assert all(one.crc_is_valid() for one in got)
        found += got
        offset = got[-1].next_offset
    return found


def offsets(log: Log) -> list[int]:
    return [one.base_offset for one in read_all(log)]


class FailingDisk(RealDisk):
    """The real disk, but `times` operations `kind` fail, starting with the `nth` (1 is the next one).

    A failing write writes half of its bytes, as a full disk does.
    """

    def __init__(self) -> None:
        self._kind = ""
        self._countdown = 0
        self._times = 0
        self._errno = errno.EIO
        self.done: list[str] = []

    def fail(self, kind: str, *, nth: int = 1, times: int = 1, error: int = errno.EIO) -> None:
        self._kind, self._countdown, self._times, self._errno = kind, nth, times, error

    def note(self, kind: str, path: str, before: Callable[[], None] = lambda: None) -> None:
        self.done.append(f"{kind} {Path(path).name}")
        if kind == self._kind:
            self._countdown -= 1
            if self._countdown <= 0 < self._times:
                self._times -= 1
                before()
                raise OSError(self._errno, os.strerror(self._errno), path)

    def open(self, path: str, *, create: bool = False, writable: bool = True) -> RealFile:
        self.note("open", path)
        return FailingFile(self, super().open(path, create=create, writable=writable))

    def rename(self, old: str, new: str) -> None:
        self.note("rename", new)
        super().rename(old, new)

    def unlink(self, path: str) -> None:
        self.note("unlink", path)
        super().unlink(path)

    def sync_directory(self, path: str) -> None:
        self.note("sync_directory", path)
        super().sync_directory(path)


class FailingFile(RealFile):
    def __init__(self, disk: FailingDisk, file: RealFile) -> None:
        super().__init__(file.path, os.dup(file.fileno()))
        file.close()
        self.disk = disk

    def pread(self, size: int, position: int) -> bytes:
        self.disk.note("pread", self.path)
        return super().pread(size, position)

    def pwrite(self, data: Buffer, position: int) -> None:
        half = memoryview(data)[: len(data) // 2]
        self.disk.note("pwrite", self.path, before=lambda: RealFile.pwrite(self, half, position))
        super().pwrite(data, position)

    def truncate(self, size: int) -> None:
        self.disk.note("truncate", self.path)
        super().truncate(size)

    def sync(self) -> None:
        self.disk.note("sync", self.path)
        super().sync()
