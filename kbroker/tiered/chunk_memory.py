"""Reusable memory for chunks.

Every chunk has a buffer with its own memory mapping, and a new chunk reuses a free buffer. Fresh memory costs a page
fault and zeroing for each page, which is more than copying the data, and allocations of many sizes fragment the heap.
The last chunk of a segment may have any size. So buffers have the full chunk size, or half of it, or a quarter, and so
on, and a chunk may leave a part of its buffer unused.

A buffer is reused only after the last view of it, or of a part of it, is gone. References decide this, not explicit
releases. So a slow answer, an abandoned thread, or an error that holds a frame never sees other bytes than its own.

Bound  free buffers are kept up to the limit given to `keep`; all other memory is in use
Note   `take` and the end of a view may happen in any thread
"""

from __future__ import annotations

import ctypes
import mmap
import weakref
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final

_SMALLEST: Final = 64 << 10
"""Buffers of this size are not halved for smaller chunks: pages that are never touched take no memory."""


def room_for(size: int, chunk_bytes: int) -> int:
    """The memory of a chunk of `size` bytes if full chunks have `chunk_bytes`: less than twice its size."""
    return _kept_room(size, chunk_bytes) or size


def _kept_room(size: int, chunk_bytes: int) -> int | None:
    """The size of the reusable buffers for chunks of this size, or None."""
    room = chunk_bytes
    while room > _SMALLEST and room // 2 >= size:
        room //= 2
    return room if size <= room < 2 * size else None


def watched(memory: mmap.mmap | memoryview, on_end: Callable[[], object]) -> memoryview:
    """A view of all of `memory`. on_end is called once when the last reference to it or to any part of it is gone, in
    the thread that dropped it.
    """
    exporter = (ctypes.c_ubyte * len(memory)).from_buffer(memory)
    weakref.finalize(exporter, on_end).atexit = False
    return memoryview(exporter).cast("B")


def _mapped(size: int) -> mmap.mmap:
    return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


class ChunkMemory:
    """See the module's docstring."""

    __slots__ = ("_free", "chunk_bytes")

    def __init__(self, chunk_bytes: int) -> None:
        self.resize(chunk_bytes)

    def resize(self, chunk_bytes: int) -> None:
        """Set the size of full chunks."""
        self.chunk_bytes = chunk_bytes
        # By size; most recently used at the end, because they may still be in the processor's cache.
        self._free: dict[int, deque[mmap.mmap]] = {}

    @property
    def free_bytes(self) -> int:
        """The bytes of free buffers."""
        return sum(room * len(buffers) for room, buffers in tuple(self._free.items()))

    def take(self, size: int) -> memoryview:
        """A buffer of `size` bytes with undefined content."""
        room = _kept_room(size, self.chunk_bytes)
        if room is None:
            return memoryview(_mapped(size) if size >= _SMALLEST else bytearray(size))
        free = self._free.setdefault(room, deque())
        try:
            buffer = free.pop()
        except IndexError:
            buffer = _mapped(room)
        return watched(buffer, partial(free.append, buffer))[:size]

    def keep(self, max_bytes: int) -> None:
        """Return free buffers to the operating system until at most `max_bytes` are left."""
        excess = self.free_bytes - max_bytes
        for room, buffers in tuple(self._free.items()):
            while buffers and excess > 0:
                buffers.popleft()
                excess -= room
