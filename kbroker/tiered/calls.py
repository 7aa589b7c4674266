"""Calls of storage plug-ins.

A plug-in should raise only RemoteStorageError. Any other exception is a failure as well, and must not end the tasks of
other partitions. So this is the one place that catches everything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from typing import BinaryIO, Final

from kbroker.tiered.api import RemoteLogSegmentMetadata, RemoteStorageError, RemoteStorageManager

_ATTEMPTS: Final = 2
_FILLED: Final = memoryview(b"")


@contextmanager
def plugin_errors(what: str) -> Iterator[None]:
    """Convert any exception of a plug-in to a RemoteStorageError."""
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
    """Fill the buffers of `into` in order with the bytes of a segment from `start` on, with one request.

    After each filled buffer, `into` has an empty one in its place and on_filled gets the buffer's number. The receiver
    of the bytes alone then decides how long their memory stays in use. A stream that ends early is requested again
    once.

    Errors  RemoteStorageError
    """
    at, end = 0, start + sum(map(len, into))
    ends: list[int] = []
    while len(ends) < _ATTEMPTS:
        with plugin_errors("fetch_log_segment"), closing(storage.fetch_log_segment(segment, start, end - 1)) as stream:
            while (got := fill(stream, into[at])) == len(into[at]):
                into[at] = _FILLED
                on_filled(at)
                start, at = start + got, at + 1
                if at == len(into):
                    return
        ends.append(got)
    size = len(into[at])
    raise RemoteStorageError(f"{segment.remote_log_segment_id}: {size} bytes from {start} on ended after {ends}")


def fill(stream: BinaryIO, into: memoryview) -> int:
    """Read until the buffer is full or the stream ends; return the number of bytes. Streams of the io module read into
    the buffer, without bytes objects in between.
    """
    readinto: Callable[[memoryview], int | None] = getattr(stream, "readinto", None) or partial(_read_into, stream)
    got = 0
    while got < len(into) and (received := readinto(into[got:])):
        got += received
    return got


def _read_into(stream: BinaryIO, into: memoryview) -> int:
    data = stream.read(len(into))
    into[: len(data)] = data
    return len(data)
