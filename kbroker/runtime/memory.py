"""What the C library does with memory that was freed, and what Python's collector of cycles looks at.

A large request is received into a buffer of about a megabyte. By default glibc gives such buffers back to the kernel
when they are freed, and touching fresh pages for the next one costs more than receiving into it (0.2-0.5 ms a MiB, on
virtual machines several times that). Told to keep some, it hands out the same pages again. It would keep them for each
thread apart: what one thread read from the tier and another let go of would be missing to both. With one arena for all,
a cold read takes a fifth less of the processor, and the process stays some 60 MiB smaller. Another C library stays as
it is.

Python's collector goes through all objects that may be part of a cycle whenever their number has grown by a quarter. In
a broker of 5,000 partitions that takes 100 ms, during which no client is served, and it finds nothing, because the
broker's objects are freed by their reference counts. So once a full collection has become expensive, the objects that
it looked at are exempt from later ones.

Source: mallopt(3); gc.freeze of CPython
"""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable
from typing import Any, Final

KEPT_BYTES = 16 << 20
"""How much freed memory at the end of the heap is kept; the most that a broker's resident size may grow by."""

EXPENSIVE_NS: Final = 10_000_000
"""A full collection of about 100,000 objects."""

_OLDEST_GENERATION: Final = 2
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8
_LARGEST_MMAP_THRESHOLD = 32 << 20


def keep_freed_memory() -> bool:
    """Have freed buffers used again; whether the C library knows how."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    wanted = {
        _M_MMAP_THRESHOLD: _LARGEST_MMAP_THRESHOLD,
        _M_TRIM_THRESHOLD: KEPT_BYTES,
        _M_ARENA_MAX: 1,  # small objects are not malloc's but Python's: there is nothing for threads to contend for
    }
    return all(mallopt(parameter, value) for parameter, value in wanted.items())


def spare_lasting_objects(now_ns: Callable[[], int]) -> Callable[[], None]:
    """From now on, freeze what an expensive full collection leaves; the function that ends this.

    A frozen object is freed as ever when nothing refers to it. If it has become part of a cycle, it stays; but it takes
    100,000 new objects until there is another freeze.
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
