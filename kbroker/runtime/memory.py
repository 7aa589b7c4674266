"""Tunes the C library's allocator and Python's cycle collector for a broker.

A large request is received into a buffer of about a megabyte. By default glibc returns such buffers to the kernel when
they are freed. Touching fresh pages for the next buffer costs more than receiving into it (0.2-0.5 ms per MiB, several
times that on virtual machines). So glibc is configured to keep some freed memory and to reuse its pages. It would keep
memory in an arena for each thread, where other threads cannot reuse it; with one arena for all threads, a cold read
takes a fifth less CPU time, and the process is about 60 MiB smaller. Other C libraries are not changed.

Python's collector scans all objects that may be part of a cycle whenever their number has grown by a quarter. In a
broker with 5,000 partitions this takes 100 ms, in which no client is served. It finds nothing, because reference counts
free the broker's objects. So once a full collection has become expensive, the objects that it scanned are exempt from
later collections.

Source: mallopt(3); gc.freeze of CPython
"""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable
from typing import Any, Final

KEPT_BYTES = 16 << 20
"""The freed memory that is kept at the end of the heap; a broker's resident size grows by at most this."""

EXPENSIVE_NS: Final = 10_000_000
"""About the duration of a full collection of 100,000 objects."""

_OLDEST_GENERATION: Final = 2
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8
_LARGEST_MMAP_THRESHOLD = 32 << 20


def keep_freed_memory() -> bool:
    """Configure the C library to reuse freed buffers; return whether it supports this."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    wanted = {
        _M_MMAP_THRESHOLD: _LARGEST_MMAP_THRESHOLD,
        _M_TRIM_THRESHOLD: KEPT_BYTES,
        _M_ARENA_MAX: 1,  # Python allocates small objects itself, so threads hardly contend for the arena
    }
    return all(mallopt(parameter, value) for parameter, value in wanted.items())


def spare_lasting_objects(now_ns: Callable[[], int]) -> Callable[[], None]:
    """From now on, freeze the objects that survive an expensive full collection; return a function that stops this.

    A frozen object is still freed when its reference count becomes zero. A frozen object in a garbage cycle is never
    freed; but the next freeze happens only after 100,000 new objects.
    """
    began_ns = 0

    def notice(phase: str, info: dict[str, Any]) -> None:
        nonlocal began_ns
        if info["generation"] != _OLDEST_GENERATION:
            return
        if phase == "start":
            began_ns = now_ns()
        elif now_ns() - began_ns >= EXPENSIVE_NS:
            gc.freeze()

    gc.callbacks.append(notice)
    return lambda: gc.callbacks.remove(notice)
