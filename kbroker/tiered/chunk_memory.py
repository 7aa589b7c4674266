"""Memory for chunks, used again and again.

Every chunk lies in a buffer that is mapped by itself, and a new one takes the buffer of one that has gone: fresh memory
costs a page fault and zeros for each of its pages, which is more than copying them costs, and pieces of many sizes
leave holes that the C library gives to nobody. The last chunk of a segment may have any size, so buffers are of the
full size, or half of it, or a quarter, and so on, and some have room to spare.

Whoever looks at a buffer keeps it: it can be taken again only when the last view of it, or of any part of it, is gone.
That is not a matter of anybody's bookkeeping but of references, so an answer that is slow to leave, a thread that was
given up or an error that holds a frame can never see other bytes than it was given.

Bound  what nobody looks at is kept as far as `keep` allows; all other memory is in use
Note   `take` and what ends a view may come from any thread
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
"""No piece of this size is cut in halves for what is smaller: pages that nobody touches take no memory."""


def room_for(size: int, chunk_bytes: int) -> int:
    """How much memory a chunk of `size` bytes takes, where full ones have `chunk_bytes`: less than twice its size."""
    return _kept_room(size, chunk_bytes) or size


def _kept_room(size: int, chunk_bytes: int) -> int | None:
    """The size of the buffers that are kept for chunks of this size, if any are."""
    room = chunk_bytes
    while room > _SMALLEST and room // 2 >= size:
        room //= 2
    return room if size <= room < 2 * size else None


def watched(memory: mmap.mmap | memoryview, on_end: Callable[[], object]) -> memoryview:
    """A view of all of `memory`; on_end is called once when neither it nor any part of it is looked at any more, in the
    thread where that happens.
    """
    exporter = (ctypes.c_ubyte * len(memory)).from_buffer(memory)
    weakref.finalize(exporter, on_end).atexit = False
    return memoryview(exporter).cast("B")


def _mapped(size: int) -> mmap.mmap:
    return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


class ChunkMemory:
    """See the module's text."""

    __slots__ = ("_free", "chunk_bytes")

    def __init__(self, chunk_bytes: int) -> None:
        self.resize(chunk_bytes)

    def resize(self, chunk_bytes: int) -> None:
        """Full chunks have this size from now on."""
        self.chunk_bytes = chunk_bytes
        # By their size; those used last at the end, since they may be in the processor's cache still.
        self._free: dict[int, deque[mmap.mmap]] = {}

    @property
    def free_bytes(self) -> int:
        """What nobody looks at and is kept."""
        return sum(room * len(buffers) for room, buffers in tuple(self._free.items()))

    def take(self, size: int) -> memoryview:
        """Memory of `size` bytes, with anything in it."""
        room = _kept_room(size, self.chunk_bytes)
        if room is None:
            return memoryview(_mapped(size) if size >= _SMALLEST else bytearray(size))
        free = self._free.setdefault(room, deque())
        try:
            buffer = free.pop()
        except IndexError:
            buffer = _mapped(room)
        return watched(buffer, partial(_give_back, buffer, free))[:size]

    def keep(self, max_bytes: int) -> None:
        """Give what nobody looks at back to the system, as far as it is more than so many bytes."""
        excess = self.free_bytes - max_bytes
        for room, buffers in tuple(self._free.items()):
            while buffers and excess > 0:
                buffers.popleft()
                excess -= room


def _give_back(buffer: mmap.mmap, free: deque[mmap.mmap]) -> None:
    free.append(buffer)
