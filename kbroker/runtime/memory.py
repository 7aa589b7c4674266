"""What the C library does with memory that was freed.

A large request is received into a buffer of about a megabyte. By default glibc gives such buffers back to the kernel
when they are freed, and touching fresh pages for the next one costs more than receiving into it (0.2-0.5 ms a MiB, on
virtual machines several times that). Told to keep some, it hands out the same pages again. It would keep them for each
thread apart: what one thread read from the tier and another let go of would be missing to both. With one arena for all,
a cold read takes a fifth less of the processor, and the process stays some 60 MiB smaller. Another C library stays as
it is.

Source: mallopt(3)
"""

from __future__ import annotations

import ctypes

KEPT_BYTES = 16 << 20
"""How much freed memory at the end of the heap is kept; the most that a broker's resident size may grow by."""

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
