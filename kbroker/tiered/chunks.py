"""One piece of a remote segment, and the answers that have parts of it: what `kbroker.tiered.chunk_cache` keeps.

An answer is sent out of the chunks themselves, so it holds their memory until it has left or is given up: they are lent
to it. How long that takes is up to a client, so there is a bound; beyond it answers get copies, as they do of what is
small, since a loan holds the whole chunk. A loan ends when nobody refers to what was lent any more, which nobody can
forget to say.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final, NamedTuple
from uuid import UUID

import trio

from kbroker.runtime.ports import Buffer
from kbroker.tiered.api import RemoteLogSegmentMetadata, RemoteStorageError
from kbroker.tiered.chunk_memory import room_for, watched

_LENT_PART: Final = 8
"""What is smaller than this part of its chunk is copied."""


class ChunkKey(NamedTuple):
    """A chunk by its segment's id and its number; the size is part of it, since a setting decides about it."""

    segment_id: UUID
    number: int
    chunk_bytes: int


class Chunk:
    """One chunk, wanted or there.

    Note  users have it in use or wait for it; loans are the parts of it that answers have; is_unread: it was read
          ahead, at since_ms, and nobody has asked for it yet; memory is what it is read into, as long as its bytes are
          counted
    """

    __slots__ = (
        "data",
        "error",
        "is_unread",
        "key",
        "loans",
        "memory",
        "ready",
        "room",
        "segment",
        "since_ms",
        "size",
        "users",
    )

    def __init__(self, key: ChunkKey, segment: RemoteLogSegmentMetadata) -> None:
        start = key.number * key.chunk_bytes
        self.key = key
        self.segment = segment
        self.size = min(key.chunk_bytes, segment.segment_size_in_bytes - start)
        assert self.size > 0, f"a segment of {segment.segment_size_in_bytes} bytes has no chunk {key.number}"
        self.room = room_for(self.size, key.chunk_bytes)
        self.users = self.loans = 0
        self.is_unread = False
        self.since_ms = 0
        self.memory: memoryview | None = None
        self.data: memoryview | None = None
        self.error: RemoteStorageError | None = None
        self.ready = trio.Event()

    @property
    def waits_for_memory(self) -> bool:
        return self.memory is None and not self.ready.is_set()

    @property
    def is_in_use(self) -> bool:
        return self.users > 0 or self.loans > 0


class Loans:
    """See the module's text.

    Units  lent_bytes are those of the chunks of which an answer has a part
    Note   on_end is called when a loan has ended: in any thread, and in the middle of anything, since a collector of
           garbage may end it. So it counts only when it is taken back
    """

    __slots__ = ("_ended", "_on_end", "lent_bytes")

    def __init__(self, on_end: Callable[[], object]) -> None:
        self._on_end = on_end
        self._ended: deque[Chunk] = deque()
        self.lent_bytes = 0

    def __bool__(self) -> bool:
        """Whether any has ended that was not taken back."""
        return bool(self._ended)

    def lend(self, chunks: Iterable[Chunk], pieces: Sequence[Buffer], *, max_bytes: int) -> list[Buffer]:
        """The bytes of `pieces`, to be kept for any time: parts of these chunks are lent or copied, all others are
        given as they are. Afterwards the chunks that are lent have max_bytes at most.
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
        """Count what has ended; the chunks that are not lent any more."""
        free = []
        while self._ended:
            chunk = self._ended.popleft()
            chunk.loans -= 1
            if not chunk.loans:
                self.lent_bytes -= chunk.room
                free.append(chunk)
        return free
