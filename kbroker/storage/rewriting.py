"""Write the data again that a failed log directory may hold only in the page cache.

After a failed fsync the kernel may mark pages clean that are not on the disk (see durable.py). The next process reads
them from the cache and finds valid batches, but no later fsync would write them, and a loss of power would lose them
silently. So a log directory that fails gets a marker, `kbroker.failed`. The next start writes everything after the
recovery points again, syncs it, and only then removes the marker and reads the logs. The marker needs no sync: a loss
of power that takes the marker takes the cached pages too.

Small files need nothing: they are replaced as a whole after a sync of their own, or their readers detect damage.
Recovery rebuilds the indexes after the recovery points.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final

from kbroker.runtime.ports import Disk
from kbroker.storage.checkpoint import TopicPartition
from kbroker.storage.directory_names import CLEAN_SHUTDOWN, FAILED, PARTITION
from kbroker.storage.durable import sync, sync_names
from kbroker.storage.recovering import unflushed_segments

_CHUNK_BYTES: Final = 1 << 20


def marking(
    disk: Disk, directory: str, on_failure: Callable[[OSError], None] | None = None
) -> Callable[[OSError], None]:
    """What to call when the log directory fails: makes the marker if the disk allows it, then calls on_failure."""

    def fail(error: OSError) -> None:
        with suppress(OSError):
            disk.open(f"{directory}/{FAILED}", create=True).close()
        if on_failure is not None:
            on_failure(error)

    return fail


def write_again(disk: Disk, directory: str, recovery_points: Mapping[TopicPartition, int]) -> None:
    """Make all logs of a marked directory durable, and remove the marker. The shutdown counts as unclean.

    Blocking. The metadata log has no recovery point and is written from its start. Repeatable after a crash.
    Errors  OSError
    """
    for name in disk.list(directory):
        match = PARTITION.fullmatch(name)
        if match is not None:
            path = f"{directory}/{name}"
            for segment in unflushed_segments(disk, path, recovery_points.get((match[1], int(match[2])), 0)):
                _write_file_again(disk, segment)
            sync_names(disk, path)
    for name in (CLEAN_SHUTDOWN, FAILED):
        with suppress(FileNotFoundError):
            disk.unlink(f"{directory}/{name}")
        sync_names(disk, directory)


def _write_file_again(disk: Disk, path: str) -> None:
    file = disk.open(path)
    try:
        size = file.size()
        file.truncate(size)  # a truncation may have been lost too
        for position in range(0, size, _CHUNK_BYTES):
            file.pwrite(file.pread(_CHUNK_BYTES, position), position)
        sync(file)
    finally:
        file.close()
