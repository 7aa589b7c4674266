"""Recover many logs, in this process or in worker processes.

`recover_log` is a function of a disk and of plain values, so that a worker process can call it
(`kbroker.runtime.worker`). It returns the loaded log, including producers and epochs. `RecoveredLog.take` replaces the
worker's files with those of this process. So a log from a worker is opened without reading it again, and is the same
as a log that was recovered in this process.

A log with little data after its recovery point is recovered when it is opened, because a worker would take longer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from kbroker.runtime.ports import Disk
from kbroker.storage.files import FilePool
from kbroker.storage.loader import LoadedLog, Loader, offset_of
from kbroker.storage.log_config import LogConfig
from kbroker.storage.log_files import LogFiles, ignore
from kbroker.storage.segment import LOG_SUFFIX

if TYPE_CHECKING:
    from kbroker.storage.checkpoint import TopicPartition
    from kbroker.storage.log_directory import LogDirectory

LARGE_BYTES: Final = 512 << 10


class LogToRecover(NamedTuple):
    """The input of one log's recovery.

    Units  size is the bytes to read
    """

    directory: str
    config: LogConfig
    recovery_point: int
    log_start_offset: int
    timestamp_ms: int
    size: int
    cleaned_offset: int = 0


class RecoveredLog(NamedTuple):
    """The result of one log's recovery: the log or its error, and the reports."""

    outcome: LoadedLog | OSError
    reports: tuple[str, ...]

    def take(self, pool: FilePool, report: Callable[[str], None]) -> LoadedLog:
        """The log, changed to use another pool. Errors: OSError."""
        for message in self.reports:
            report(message)
        if isinstance(self.outcome, OSError):
            raise self.outcome
        self.outcome.files.use(pool, report)
        return self.outcome


def recover_log(disk: Disk, log: LogToRecover) -> RecoveredLog:
    """Recover a log. Blocking."""
    reports: list[str] = []
    files = LogFiles(log.directory, pool=FilePool(disk), report=reports.append)
    outcome: LoadedLog | OSError
    try:
        outcome = Loader(files, log.config).load(
            clean_shutdown=False,
            recovery_point=log.recovery_point,
            log_start_offset=log.log_start_offset,
            timestamp_ms=log.timestamp_ms,
            cleaned_offset=log.cleaned_offset,
        )
    except OSError as error:
        outcome = error
    finally:
        files.pool.close()
    files.report = ignore  # the list of the reports is not sent twice
    return RecoveredLog(outcome, tuple(reports))


def find_logs_to_recover(
    directory: LogDirectory, wanted: Mapping[TopicPartition, LogConfig], *, timestamp_ms: int
) -> dict[TopicPartition, LogToRecover]:
    """Which of the wanted logs have to be recovered. Blocking.

    A log whose files cannot be listed is left out; `LogDirectory.open_log` handles it.
    """
    found: dict[TopicPartition, LogToRecover] = {}
    if directory.was_clean:
        return found
    for key, config in wanted.items():
        path, recovery_point = directory.log_path(*key), directory.checkpoints.recovery_points.get(key, 0)
        with suppress(OSError):
            size = _unflushed_bytes(directory.disk, path, recovery_point)
            start = directory.checkpoints.log_starts.get(key, 0)
            cleaned = directory.checkpoints.cleaned_offsets.get(key, 0)
            found[key] = LogToRecover(path, config, recovery_point, start, timestamp_ms, size, cleaned)
    return found


def _unflushed_bytes(disk: Disk, path: str, recovery_point: int) -> int:
    """The size of the segments that may hold data after the recovery point."""
    return sum(map(disk.size, unflushed_segments(disk, path, recovery_point)))


def unflushed_segments(disk: Disk, path: str, recovery_point: int) -> list[str]:
    """The paths of the segments that may hold data after the recovery point. Errors: OSError."""
    found = []
    for name in reversed(disk.list(path)):
        base_offset = offset_of(name, LOG_SUFFIX)
        if base_offset is not None:
            found.append(f"{path}/{name}")
            if base_offset <= recovery_point:
                break
    return found


def worth_a_worker(logs: Mapping[TopicPartition, LogToRecover]) -> list[tuple[TopicPartition, LogToRecover]]:
    """The large logs, the largest first, so that no worker begins one when the others are done."""
    large = [(key, log) for key, log in logs.items() if log.size >= LARGE_BYTES]
    return sorted(large, key=lambda one: one[1].size, reverse=True)
