"""Memory for chunks, used again and again.

Every chunk of the full size lies in a buffer of that size, mapped by itself. A new chunk takes the buffer of one that
has gone: fresh memory costs a page fault and zeros for each of its pages, and pieces of many sizes leave holes that the
C library gives to nobody.

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

_MAPPED_BYTES = 64 << 10


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
    """See the module's text.

    Units  free_bytes is what nobody looks at and is kept
    """

    __slots__ = ("_free", "chunk_bytes")

    def __init__(self, chunk_bytes: int) -> None:
        self.chunk_bytes = chunk_bytes
        self._free: deque[mmap.mmap] = deque()  # those used last at the end

    def resize(self, chunk_bytes: int) -> None:
        """Chunks are of another size from now on."""
        if chunk_bytes != self.chunk_bytes:
            self.chunk_bytes = chunk_bytes
            self._free.clear()

    @property
    def free_bytes(self) -> int:
        return len(self._free) * self.chunk_bytes

    def take(self, size: int) -> memoryview:
        """Memory of `size` bytes, with anything in it."""
        if size != self.chunk_bytes:  # the last of a segment: of any size, and so no use for others
            return memoryview(_mapped(size) if size >= _MAPPED_BYTES else bytearray(size))
        try:
            buffer = self._free.pop()
        except IndexError:
            buffer = _mapped(size)
        return watched(buffer, partial(self._give_back, buffer))

    def keep(self, max_bytes: int) -> None:
        """Give what nobody looks at back to the system, as far as it is more than so many bytes."""
        while self._free and self.free_bytes > max_bytes:
            self._free.popleft()

    def _give_back(self, buffer: mmap.mmap) -> None:
        if len(buffer) == self.chunk_bytes:
            self._free.append(buffer)
