"""Pieces of remote segments in memory.

A segment is read in chunks of `kbroker.remote.chunk.bytes`, which are kept until the memory is needed for others. All
that is decided here is decided in the event loop; only the reading itself runs in threads.

* A chunk that many want is read once, and all of them wait for it (single flight).
* A chunk is read to its end even when everybody who wanted it has gone: a consumer that waited
  `remote.fetch.max.wait.ms` in vain finds it there when it asks again. So a slow store makes a slow consumer, never one
  that stands still.
* Only what came whole is a chunk. What failed is told to those who wait and forgotten: the next one asks the store.
* A chunk in use stays, so that readers cannot make each other read the same again and again. Who needs one more chunk
  for a batch that it has begun gets it even when there is no memory left: else two readers could wait for each other.
* What is read ahead takes half of the memory at most, as long as nobody has used it.

Bound   `kbroker.remote.chunk.cache.bytes`, and beyond it at most one chunk for each reader that has begun a batch;
        `remote.log.reader.max.pending.tasks` chunks may wait for memory
Source  Aiven-Open/tiered-storage-for-apache-kafka (#297: one chunk after the other; #483: work thrown away; 017a8ae8: a
        hit that was not complete), redpanda#7193 (chunks evicted under their readers)
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing, contextmanager, suppress
from typing import Final, NamedTuple
from uuid import UUID

import trio

from kbroker.config.tier import TierSettings
from kbroker.runtime.net_ports import Env
from kbroker.tiered.api import (
    RemoteLogSegmentMetadata,
    RemoteStorageError,
    RemoteStorageManager,
    RetriableRemoteStorageError,
)
from kbroker.tiered.calls import plugin_errors
from kbroker.tiered.quota import ByteQuota

_ATTEMPTS: Final = 2
LONGEST_PAUSE_MS: Final = 1_000


class ChunkKey(NamedTuple):
    """A chunk by its segment's id and its number; the size is part of it, since a setting decides about it."""

    segment_id: UUID
    number: int
    chunk_bytes: int


class Chunk:
    """One chunk, wanted or there.

    Note  users have it in use or wait for it; is_unread: it was read ahead, and nobody has asked for it yet;
          has_memory: its bytes are counted
    """

    __slots__ = ("data", "error", "has_memory", "is_unread", "key", "ready", "segment", "size", "users")

    def __init__(self, key: ChunkKey, segment: RemoteLogSegmentMetadata) -> None:
        start = key.number * key.chunk_bytes
        self.key = key
        self.segment = segment
        self.size = min(key.chunk_bytes, segment.segment_size_in_bytes - start)
        assert self.size > 0, f"a segment of {segment.segment_size_in_bytes} bytes has no chunk {key.number}"
        self.users = 0
        self.is_unread = self.has_memory = False
        self.data: memoryview | None = None
        self.error: RemoteStorageError | None = None
        self.ready = trio.Event()

    @property
    def waits_for_memory(self) -> bool:
        return not self.has_memory and not self.ready.is_set()


class ChunkReader:
    """The chunks of one segment that one reader has in use; see `ChunkCache.reader`."""

    __slots__ = ("_cache", "_held", "_segment", "chunk_bytes")

    def __init__(self, cache: ChunkCache, segment: RemoteLogSegmentMetadata) -> None:
        self.chunk_bytes = cache.chunk_bytes
        self._cache = cache
        self._segment = segment
        self._held: dict[int, Chunk] = {}

    def want(self, number: int, *, is_needed: bool = False) -> Chunk:
        """A chunk, which is read from now on if it is not there. With `is_needed` it does not wait for memory.

        Errors  RetriableRemoteStorageError (too many wait already)
        """
        chunk = self._held.get(number)
        if chunk is None:
            chunk = self._cache.want(ChunkKey(self._segment.remote_log_segment_id.id, number, self.chunk_bytes), self)
            chunk.users += 1
            self._held[number] = chunk
        if is_needed:
            self._cache.hurry(chunk)
        return chunk

    def want_all(self, numbers: range) -> None:
        """Have chunks read side by side: the first one, and as many of the others as memory allows.

        Whoever has to wait for memory holds none: else two readers could have what the other one waits for.
        Errors  RetriableRemoteStorageError (too many wait already)
        """
        if self.want(numbers[0]).waits_for_memory:
            return
        with suppress(RetriableRemoteStorageError):
            for number in numbers[1:]:
                self.want(number)

    def at_hand(self, number: int) -> memoryview | None:
        """A chunk that is wanted already, if it is there."""
        chunk = self._held.get(number)
        return None if chunk is None else chunk.data

    @property
    def segment(self) -> RemoteLogSegmentMetadata:
        return self._segment

    async def get(self, number: int, *, is_needed: bool = False) -> memoryview:
        """A chunk, once it is there. Errors: RemoteStorageError."""
        chunk = self.want(number, is_needed=is_needed)
        if chunk.data is None:
            await chunk.ready.wait()
            if chunk.error is not None:
                self._release(number)
                raise chunk.error.with_traceback(None)
        assert chunk.data is not None
        return chunk.data

    def drop(self, number: int) -> None:
        """What a chunk holds is not what was stored: have it read anew by whoever wants it next."""
        chunk = self._held.get(number)
        if chunk is not None:
            self._cache.drop(chunk)
            self._release(number)

    def release(self) -> None:
        """Have nothing in use any more."""
        for number in tuple(self._held):
            self._release(number)

    def _release(self, number: int) -> None:
        chunk = self._held.pop(number)
        chunk.users -= 1
        self._cache.on_release(chunk)


class ChunkCache:
    """See the module's text.

    Units  used_bytes are those of the chunks that are there or are being read; unread_bytes those that were read ahead
           and not used yet. hits, misses and read_ahead count chunks, read_bytes what the store gave; reading are the
           chunks that are read now, of which max_reads have a thread
    """

    def __init__(self, env: Env, settings: TierSettings, *, storage: RemoteStorageManager, quota: ByteQuota) -> None:
        self._env = env
        self._storage = storage
        self._threads = env.threads(settings.remote_log_reader_threads)
        self._nursery: trio.Nursery | None = None
        self._chunks: OrderedDict[ChunkKey, Chunk] = OrderedDict()  # those used last at the end
        self._waiting: deque[Chunk] = deque()  # for memory
        self._quota = quota
        self.used_bytes = self.unread_bytes = 0
        self.hits = self.misses = self.read_ahead = self.read_bytes = self.reading = 0
        self._take(settings)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Read what is wanted, for ever. While this does not run nothing is read."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            task_status.started()
            try:
                await trio.sleep_forever()
            finally:
                self._nursery = None

    def reconfigure(self, settings: TierSettings) -> None:
        """Take over changed settings. Chunks of another size are forgotten in time, as nobody uses them."""
        self._threads.resize(settings.remote_log_reader_threads)
        self._take(settings)
        self._make_room(0)
        self._start_waiting()

    def _take(self, settings: TierSettings) -> None:
        self.chunk_bytes = settings.kbroker_remote_chunk_bytes
        self.max_bytes = settings.kbroker_remote_chunk_cache_bytes
        self.max_reads = settings.remote_log_reader_threads
        self._max_waiting = settings.remote_log_reader_max_pending_tasks

    @property
    def waiting(self) -> int:
        """How many chunks wait for memory."""
        return len(self._waiting)

    # For readers

    @contextmanager
    def reader(self, segment: RemoteLogSegmentMetadata) -> Iterator[ChunkReader]:
        """What is read within the block stays in memory until its end."""
        chunks = ChunkReader(self, segment)
        try:
            yield chunks
        finally:
            chunks.release()

    def has(self, segment: RemoteLogSegmentMetadata, number: int) -> bool:
        """Whether a chunk is there."""
        chunk = self._chunks.get(ChunkKey(segment.remote_log_segment_id.id, number, self.chunk_bytes))
        return chunk is not None and chunk.data is not None

    def want(self, key: ChunkKey, reader: ChunkReader) -> Chunk:
        """See ChunkReader.want."""
        chunk = self._chunks.get(key)
        if chunk is not None:
            self.hits += 1
            self._note_read(chunk)
            self._chunks.move_to_end(key)
            return chunk
        chunk = Chunk(key, reader.segment)
        has_room = not self._waiting and self._make_room(chunk.size)
        if not has_room and len(self._waiting) >= self._max_waiting:
            raise RetriableRemoteStorageError(f"{len(self._waiting)} reads of the tier wait for memory already")
        self.misses += 1
        self._chunks[key] = chunk
        if has_room:
            self._start(chunk)
        else:
            self._waiting.append(chunk)
        return chunk

    def want_ahead(self, segment: RemoteLogSegmentMetadata, number: int) -> bool:
        """Have a chunk read that may be asked for next; False if there is no memory for it now."""
        key = ChunkKey(segment.remote_log_segment_id.id, number, self.chunk_bytes)
        if key in self._chunks:
            return True
        chunk = Chunk(key, segment)
        if self._waiting or self.unread_bytes + chunk.size > self.max_bytes // 2 or not self._make_room(chunk.size):
            return False
        self.read_ahead += 1
        self._chunks[key] = chunk
        chunk.is_unread = True
        self.unread_bytes += chunk.size
        self._start(chunk)
        return True

    def hurry(self, chunk: Chunk) -> None:
        """Read a chunk now, whether or not there is memory."""
        if chunk.waits_for_memory:
            self._waiting.remove(chunk)
            self._start(chunk)

    def drop(self, chunk: Chunk) -> None:
        """Forget a chunk, though it is in use; its memory is free when nobody uses it any more."""
        if chunk.data is not None and self._chunks.get(chunk.key) is chunk:
            self._note_read(chunk)
            del self._chunks[chunk.key]

    def pass_over(self, segment: RemoteLogSegmentMetadata, number: int) -> None:
        """A reader has come to the end of a chunk: it is the first to go."""
        key = ChunkKey(segment.remote_log_segment_id.id, number, self.chunk_bytes)
        if key in self._chunks:
            self._chunks.move_to_end(key, last=False)

    def on_release(self, chunk: Chunk) -> None:
        """Somebody does not use a chunk any more."""
        if chunk.users:
            return
        if self._chunks.get(chunk.key) is not chunk:
            self._free(chunk)
        elif self.used_bytes > self.max_bytes:
            self._make_room(0)
        self._start_waiting()

    def start_soon(self, function: Callable[[], Awaitable[object]]) -> None:
        """Have something done that goes on when whoever wanted it has gone.

        Errors  RetriableRemoteStorageError when nothing is read any more
        """
        if self._nursery is None:
            raise RetriableRemoteStorageError("the tier is not read now")
        self._nursery.start_soon(function)

    # Memory

    def _make_room(self, size: int) -> bool:
        """Forget what was used longest ago until `size` fits; whether it does."""
        excess = self.used_bytes + size - self.max_bytes
        if excess > 0:
            doomed = []
            for chunk in self._chunks.values():
                if excess <= 0:
                    break
                if not chunk.users and chunk.data is not None:
                    doomed.append(chunk)
                    excess -= chunk.size
            for chunk in doomed:
                self._note_read(chunk)
                del self._chunks[chunk.key]
                self._free(chunk)
        # One chunk is always read: through a cache that is smaller nothing could be read else.
        return excess <= 0 or not self.used_bytes

    def _free(self, chunk: Chunk) -> None:
        if chunk.has_memory:
            chunk.has_memory = False
            self.used_bytes -= chunk.size

    def _note_read(self, chunk: Chunk) -> None:
        if chunk.is_unread:
            chunk.is_unread = False
            self.unread_bytes -= chunk.size

    def _start_waiting(self) -> None:
        if self._nursery is None:
            # All at once: one after the other each would be failed by the one before, deeper and deeper.
            waiting, self._waiting = self._waiting, deque()
            for chunk in waiting:
                self._fail(chunk, RetriableRemoteStorageError("the tier is not read now"))
        while self._waiting and self._make_room(self._waiting[0].size):
            self._start(self._waiting.popleft())

    # Reading

    def _start(self, chunk: Chunk) -> None:
        chunk.has_memory = True
        self.used_bytes += chunk.size
        if self._nursery is None:
            self._fail(chunk, RetriableRemoteStorageError("the tier is not read now"))
        else:
            self._nursery.start_soon(self._read, chunk)

    async def _read(self, chunk: Chunk) -> None:
        now_ms = began_ms = self._env.now_ms()
        try:
            while pause_ms := self._quota.wait_ms(now_ms):
                await self._env.sleep_ms(min(pause_ms, LONGEST_PAUSE_MS))  # the rate may be changed meanwhile
                now_ms = self._env.now_ms()
            self._quota.take(chunk.size, now_ms=now_ms, since_ms=began_ms)
            self.reading += 1
            try:
                chunk.data = await self._threads.run_blocking(_read_whole, self._storage, chunk)
            finally:
                self.reading -= 1
        except RemoteStorageError as error:
            self._fail(chunk, error)
        except trio.Cancelled:
            self._fail(chunk, RetriableRemoteStorageError("the tier is not read now"))
            raise
        else:
            self.read_bytes += chunk.size
            chunk.ready.set()
            if self.used_bytes > self.max_bytes or self._waiting:
                self._make_room(0)
                self._start_waiting()

    def _fail(self, chunk: Chunk, error: RemoteStorageError) -> None:
        chunk.error = error
        self._note_read(chunk)
        if self._chunks.get(chunk.key) is chunk:
            del self._chunks[chunk.key]
        self._free(chunk)
        chunk.ready.set()
        self._start_waiting()


def _read_whole(storage: RemoteStorageManager, chunk: Chunk) -> memoryview:
    """Read a chunk; one that ends early once more. Runs in a thread. Errors: RemoteStorageError."""
    start = chunk.key.number * chunk.key.chunk_bytes
    ends: list[int] = []
    while len(ends) < _ATTEMPTS:
        with (
            plugin_errors("fetch_log_segment"),
            closing(storage.fetch_log_segment(chunk.segment, start, start + chunk.size - 1)) as stream,
        ):
            data = stream.read(chunk.size)
            if len(data) == chunk.size:
                return memoryview(data)
            joined = bytearray(data)
            while data and len(joined) < chunk.size:
                data = stream.read(chunk.size - len(joined))
                joined += data
            if len(joined) == chunk.size:
                return memoryview(joined)
            ends.append(len(joined))
    segment_id = chunk.segment.remote_log_segment_id
    raise RemoteStorageError(f"{segment_id}: {chunk.size} bytes from {start} on ended after {ends}")
