"""fsync and the handling of its failures.

After a failed fsync the kernel may mark the lost pages clean, so that a second fsync succeeds although the data is
lost. So a failed sync has its own error class and is always fatal to the log directory, and the next start writes the
data again (rewriting.py). Other errors, such as a full disk, may be temporary.

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
        errno.ENOENT,  # the file was deleted by a concurrent deletion or by somebody else; the disk works
    }
)


class SyncFailed(OSError):
    """An fsync of a file or directory failed; the cause has the original error."""


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
    """Whether the log directory must go offline because of this error."""
    return isinstance(error, SyncFailed) or error.errno not in _PASSING


def lacks_space(error: BaseException | None) -> bool:
    """Whether the error, or the disk error that caused it, means a full disk or quota, which damages nothing."""
    if error is not None and not isinstance(error, OSError):
        error = error.__cause__ or error.__context__  # compiled code sets only the context
    return isinstance(error, OSError) and not isinstance(error, SyncFailed) and error.errno in _FULL
