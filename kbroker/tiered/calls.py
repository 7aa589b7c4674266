"""Calls of a storage plug-in, whoever wrote it.

A plug-in should raise nothing but RemoteStorageError. One that raises something else has failed all the same, and must
not end the tasks of other partitions; so it is the one place where everything is caught.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from kbroker.tiered.api import RemoteStorageError


@contextmanager
def plugin_errors(what: str) -> Iterator[None]:
    """Make whatever a plug-in raises a RemoteStorageError."""
    try:
        yield
    except RemoteStorageError:
        raise
    except Exception as error:  # a plug-in is not ours
        raise RemoteStorageError(f"{what}: {type(error).__name__}: {error}") from error
