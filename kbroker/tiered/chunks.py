"""One chunk of a remote segment, and its loans to answers, for `kbroker.tiered.chunk_cache`.

Answers are sent directly from the chunks, so an answer holds the memory of its chunks until it is sent or abandoned:
they are lent to it. The client determines how long that takes, so loans have a limit. Beyond the limit answers get
copies, and so do small parts, because a loan holds the whole chunk. A loan ends when the last reference to the lent
bytes is gone, so a missing release is impossible.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple
from uuid import UUID

import trio

from kbroker.runtime.ports import Buffer
from kbroker.tiered.api import RemoteLogSegmentMetadata, RemoteStorageError
from kbroker.tiered.chunk_memory import room_for, watched

_LENT_PART: Final = 8
"""A part that is smaller than this fraction (1/8) of its chunk is copied."""


class ChunkKey(NamedTuple):
    """A chunk by its segment's id and its number. The size is included because a setting can change it."""

    segment_id: UUID
    number: int
    chunk_bytes: int


@dataclass(slots=True, eq=False)
class Chunk:
    """One chunk, requested or in memory.

    Note  users use it or wait for it; loans counts the parts that answers hold; is_unread: it was read ahead, at
          since_ms, and has not been requested yet; memory is its buffer, set as long as it counts in used_bytes
    """

    key: ChunkKey
    segment: RemoteLogSegmentMetadata
    size: int = field(init=False)
    room: int = field(init=False)
    users: int = 0
    loans: int = 0
    is_unread: bool = False
    since_ms: int = 0
    memory: memoryview | None = None
    data: memoryview | None = None
    error: RemoteStorageError | None = None
    ready: trio.Event = field(default_factory=trio.Event)

    def __post_init__(self) -> None:
        start, whole = self.key.number * self.key.chunk_bytes, self.segment.segment_size_in_bytes
        assert start < whole, f"a segment of {whole} bytes has no chunk {self.key.number}"
        self.size = min(self.key.chunk_bytes, whole - start)
        self.room = room_for(self.size, self.key.chunk_bytes)

    @property
    def waits_for_memory(self) -> bool:
        return self.memory is None and not self.ready.is_set()

    @property
    def is_in_use(self) -> bool:
        return self.users > 0 or self.loans > 0


class Loans:
    """See the module's docstring.

    Units  lent_bytes is the memory of chunks that are lent to an answer
    Note   on_end is called when a loan has ended, in any thread and at any point, because the garbage collector may end
           it. So an ended loan counts only once `take_back` has processed it
    """

    __slots__ = ("_ended", "_on_end", "lent_bytes")

    def __init__(self, on_end: Callable[[], object]) -> None:
        self._on_end = on_end
        self._ended: deque[Chunk] = deque()
        self.lent_bytes = 0

    def lend(self, chunks: Iterable[Chunk], pieces: Sequence[Buffer], *, max_bytes: int) -> list[Buffer]:
        """The bytes of `pieces`, valid for any time. Parts of the given chunks are lent or copied, other pieces are
        returned unchanged. The lent chunks take at most max_bytes.
        """
        owners = {id(chunk.data.obj): chunk for chunk in chunks if chunk.data is not None}
        given: list[Buffer] = []
        copied: bytearray | None = None
        for piece in pieces:
            owner = owners.get(id(piece.obj)) if isinstance(piece, memoryview) else None
            given_piece = piece if owner is None else self._lent(owner, memoryview(piece), max_bytes)
            if given_piece is not None:
                given.append(given_piece)
                copied = None
            elif copied is None:
                given.append(copied := bytearray(piece))
            else:
                copied += piece
        return given

    def _lent(self, chunk: Chunk, piece: memoryview, max_bytes: int) -> memoryview | None:
        if len(piece) * _LENT_PART < chunk.size:
            return None
        if not chunk.loans:
            if self.lent_bytes + chunk.room > max_bytes:
                return None
            self.lent_bytes += chunk.room
        chunk.loans += 1
        return watched(piece, partial(self._end, chunk))

    def _end(self, chunk: Chunk) -> None:
        self._ended.append(chunk)
        self._on_end()

    def take_back(self) -> list[Chunk]:
        """Process ended loans; returns the chunks that are no longer lent."""
        free = []
        while self._ended:
            chunk = self._ended.popleft()
            chunk.loans -= 1
            if not chunk.loans:
                self.lent_bytes -= chunk.room
                free.append(chunk)
        return free
