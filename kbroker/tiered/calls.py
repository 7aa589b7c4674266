"""Calls of a storage plug-in, whoever wrote it.

A plug-in should raise nothing but RemoteStorageError. One that raises something else has failed all the same, and must
not end the tasks of other partitions; so it is the one place where everything is caught.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from typing import BinaryIO, Final

from kbroker.tiered.api import RemoteLogSegmentMetadata, RemoteStorageError, RemoteStorageManager
from kbroker.tiered.streams import FillsMemory

_ATTEMPTS: Final = 2
_FILLED: Final = memoryview(b"")


@contextmanager
def plugin_errors(what: str) -> Iterator[None]:
    """Make whatever a plug-in raises a RemoteStorageError."""
    try:
        yield
    except RemoteStorageError:
        raise
    except Exception as error:  # a plug-in is not ours
        raise RemoteStorageError(f"{what}: {type(error).__name__}: {error}") from error


def read_whole(
    storage: RemoteStorageManager,
    segment: RemoteLogSegmentMetadata,
    start: int,
    into: list[memoryview],
    on_filled: Callable[[int], object],
) -> None:
    """Fill places one after the other with the bytes of a segment from `start` on, by one request; on_filled is told
    the number of each, and `into` has an empty one instead from then on: whoever got the bytes alone decides how long
    their memory is taken. What ends early is asked for once more.

    Errors  RemoteStorageError
    """
    at, end = 0, start + sum(map(len, into))
    ends: list[int] = []
    while len(ends) < _ATTEMPTS:
        with plugin_errors("fetch_log_segment"), closing(storage.fetch_log_segment(segment, start, end - 1)) as stream:
            fill = stream.fill if isinstance(stream, FillsMemory) else partial(_read_into, stream)
            while (got := _filled(fill, into[at])) == len(into[at]):
                into[at] = _FILLED
                on_filled(at)
                start, at = start + got, at + 1
                if at == len(into):
                    return
        ends.append(got)
    size = len(into[at])
    raise RemoteStorageError(f"{segment.remote_log_segment_id}: {size} bytes from {start} on ended after {ends}")


def _filled(fill: Callable[[memoryview], int], into: memoryview) -> int:
    """How many bytes came before the stream has ended, or the place was full."""
    got = 0
    while got < len(into) and (received := fill(into[got:])):
        got += received
    return got


def _read_into(stream: BinaryIO, into: memoryview) -> int:
    data = stream.read(len(into))
    into[: len(data)] = data
    return len(data)
