"""fsync, and what its failure means.

After a failed fsync the kernel may call the lost pages clean, so that a second one succeeds although the bytes are
gone. Nobody can know what is on the disk then, but by starting again and reading it. So a failed sync is an error of
its own, and it is always fatal to the log directory; of the others some pass by themselves, such as a full disk.

Source  "Can Applications Recover from fsync Failures?", USENIX ATC 2020
"""

from __future__ import annotations

import errno
from typing import Final

from kbroker.runtime.ports import Disk, File

_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
_PASSING: Final = _FULL | frozenset(
    {
        errno.EFBIG,
        errno.EMFILE,
        errno.ENFILE,
        errno.ENOMEM,
        errno.ENOENT,  # somebody else, or a deletion meanwhile: the file is gone, the disk is not
    }
)


class SyncFailed(OSError):
    """An fsync of a file or directory failed; the cause has the error."""


def sync(file: File) -> None:
    try:
        file.sync()
    except OSError as error:
        raise SyncFailed(error.errno, error.strerror, file.path) from error


def sync_names(disk: Disk, directory: str) -> None:
    try:
        disk.sync_directory(directory)
    except OSError as error:
        raise SyncFailed(error.errno, error.strerror, directory) from error


def is_fatal(error: OSError) -> bool:
    """Whether nothing may be written to this directory any more."""
    return isinstance(error, SyncFailed) or error.errno not in _PASSING


def lacks_space(error: BaseException | None) -> bool:
    """Whether this, or the disk's error that caused it, says that a disk or quota is full, which harms nothing."""
    if error is not None and not isinstance(error, OSError):
        error = error.__cause__
    return isinstance(error, OSError) and not isinstance(error, SyncFailed) and error.errno in _FULL
