"""A memory cache for pieces of remote segments.

A segment is read in chunks of `kbroker.remote.chunk.bytes`, which are kept until their memory is needed for others. All
decisions are made in the event loop; only the reads run in threads.

* A chunk that several readers want is read once, and all of them wait for it (single flight).
* A read is always completed, even if all its readers have gone. A consumer whose request ended after
  `remote.fetch.max.wait.ms` finds the chunk there when it retries. So a slow store slows consumers down, but does not
  block them.
* Only a complete chunk is cached. Waiting readers get the error of a failed read; the next reader asks the store again.
* A chunk in use is not evicted, so readers cannot make each other read the same chunk repeatedly. A reader that needs
  another chunk for a batch that it has started gets it even beyond the memory limit; otherwise two readers could block
  each other.
* Unused chunks that were read ahead take at most half of the memory. They stop counting against that half after a
  while; otherwise disconnected consumers would block the read-ahead of others.
* Answers are sent directly from the chunks: a chunk is lent to them, and counts as in use until they are sent or
  abandoned. Loans take at most half of the memory; beyond it, and for small parts, answers get copies. So slow clients
  cannot block the other half.

Bound   `kbroker.remote.chunk.cache.bytes`, including lent chunks and free buffers; beyond it at most one chunk for each
        reader that has started a batch, and the copies (`kbroker.queued.max.response.bytes`);
        `remote.log.reader.max.pending.tasks` chunks may wait for memory
Source  Aiven-Open/tiered-storage-for-apache-kafka (#297: sequential chunk reads; #483: discarded work; 017a8ae8:
        incomplete hits), redpanda#7193 (chunks evicted under their readers)
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

import trio

from kbroker.config.settings import MB
from kbroker.config.tier_settings import TierSettings
from kbroker.runtime.frames import without_frames
from kbroker.runtime.net_ports import Env
from kbroker.runtime.ports import Buffer
from kbroker.tiered.api import (
    RemoteLogSegmentMetadata,
    RemoteStorageError,
    RemoteStorageManager,
    RetriableRemoteStorageError,
)
from kbroker.tiered.calls import read_whole
from kbroker.tiered.chunk_memory import ChunkMemory
from kbroker.tiered.chunks import Chunk, ChunkKey, Loans
from kbroker.tiered.quota import ByteQuota

_NOT_RUNNING: Final = "the tier's reader is not running"
UNREAD_MS: Final = 10_000
"""A sequential consumer asks for chunks that were read ahead within this time."""


def chunk_bytes_of(settings: TierSettings) -> int:
    """`kbroker.remote.chunk.bytes`; the default depends on the store. A directory has little cost per read, so small
    chunks make seeks faster. A request to an object store costs the same for any size.
    """
    if settings.kbroker_remote_chunk_bytes > 0:
        return settings.kbroker_remote_chunk_bytes
    return 1 * MB if settings.is_directory else 4 * MB


class ChunkCache:
    """See the module's docstring.

    Units  used_bytes is the memory of chunks that are cached or being read; unread_bytes that of chunks read ahead and
           not used yet. hits, misses and read_ahead count chunks, read_bytes the bytes from the store; reading is the
           number of running reads, of which max_reads have a thread
    """

    def __init__(self, env: Env, settings: TierSettings, *, storage: RemoteStorageManager, quota: ByteQuota) -> None:
        self._env = env
        self._storage = storage
        self._threads = env.threads(settings.remote_log_reader_threads)
        self._nursery: trio.Nursery | None = None
        self._chunks: OrderedDict[ChunkKey, Chunk] = OrderedDict()  # least recently used first
        self._waiting: deque[Chunk] = deque()  # for memory
        self._quota = quota
        self._memory = ChunkMemory(chunk_bytes_of(settings))
        self._loans = Loans(self._on_loan_end)
        self._token: trio.lowlevel.TrioToken | None = None
        self.used_bytes = self.unread_bytes = 0
        self.hits = self.misses = self.read_ahead = self.read_bytes = self.reading = 0
        self._take(settings)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run reads until cancelled. Nothing is read while this does not run."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            self._token = trio.lowlevel.current_trio_token()
            task_status.started()
            try:
                await trio.sleep_forever()
            finally:
                self._nursery = None
                self._settle()

    def reconfigure(self, settings: TierSettings) -> None:
        """Apply changed settings. Chunks of another size are no longer used and get evicted."""
        self._threads.resize(settings.remote_log_reader_threads)
        self._take(settings)
        self._memory.resize(self.chunk_bytes)
        self._settle()
        self._memory.keep(self.max_bytes - self.used_bytes)

    def _take(self, settings: TierSettings) -> None:
        self.chunk_bytes = chunk_bytes_of(settings)
        self.max_bytes = settings.kbroker_remote_chunk_cache_bytes
        self.max_reads = settings.remote_log_reader_threads
        self._max_waiting = settings.remote_log_reader_max_pending_tasks

    @property
    def waiting(self) -> int:
        """The number of chunks that wait for memory."""
        return len(self._waiting)

    # For ChunkReader and read_ahead

    def has(self, segment: RemoteLogSegmentMetadata, number: int) -> bool:
        """Whether a chunk is in memory."""
        chunk = self._chunks.get(ChunkKey(segment.remote_log_segment_id.id, number, self.chunk_bytes))
        return chunk is not None and chunk.data is not None

    def want(self, segment: RemoteLogSegmentMetadata, number: int, chunk_bytes: int) -> Chunk:
        """See ChunkReader.want."""
        key = ChunkKey(segment.remote_log_segment_id.id, number, chunk_bytes)
        chunk = self._chunks.get(key)
        if chunk is not None:
            self.hits += 1
            self._note_read(chunk)
            self._chunks.move_to_end(key)
            return chunk
        if self._nursery is None:
            raise RetriableRemoteStorageError(_NOT_RUNNING)
        if len(self._waiting) >= self._max_waiting:
            raise RetriableRemoteStorageError(f"{len(self._waiting)} reads of the tier wait for memory already")
        self.misses += 1
        chunk = self._chunks[key] = Chunk(key, segment)
        self._waiting.append(chunk)
        self._settle()
        return chunk

    def knows(self, segment: RemoteLogSegmentMetadata, number: int) -> bool:
        """Whether a chunk is in memory or requested."""
        return ChunkKey(segment.remote_log_segment_id.id, number, self.chunk_bytes) in self._chunks

    @property
    def most_ahead(self) -> int:
        """The maximum number of chunks read ahead at a time, over all readers."""
        return self.max_bytes // 2 // self.chunk_bytes

    def make_room_ahead(self, count: int) -> bool:
        """Whether `count` more chunks may be read ahead. Chunks that stayed unused too long stop counting."""
        if self._waiting or self._nursery is None:
            return False
        most_bytes = self.max_bytes // 2 - count * self.chunk_bytes
        if self.unread_bytes > most_bytes:
            long_ago_ms = self._env.now_ms() - UNREAD_MS
            for chunk in self._chunks.values():
                if chunk.is_unread and chunk.since_ms < long_ago_ms:
                    self._note_read(chunk)
        return self.unread_bytes <= most_bytes

    def want_ahead(self, segment: RemoteLogSegmentMetadata, numbers: range) -> bool:
        """Read adjacent chunks ahead with one read; none of them may be known yet. False if there is not enough memory
        for all of them.
        """
        started: list[Chunk] = []
        for number in numbers:
            chunk = Chunk(ChunkKey(segment.remote_log_segment_id.id, number, self.chunk_bytes), segment)
            if self._waiting or self.unread_bytes + chunk.room > self.max_bytes // 2 or not self._make_room(chunk.room):
                break
            try:
                self._reserve(chunk)
            except RetriableRemoteStorageError:
                break
            self.read_ahead += 1
            self._chunks[chunk.key] = chunk
            chunk.is_unread, chunk.since_ms = True, self._env.now_ms()
            self.unread_bytes += chunk.room
            started.append(chunk)
        if started:
            self.start_soon(partial(self._read, started))
        return len(started) == len(numbers)

    def hurry(self, chunk: Chunk) -> None:
        """Read a chunk now, even without free memory."""
        if chunk.waits_for_memory:
            self._waiting.remove(chunk)
            self._start_one(chunk)

    def drop(self, chunk: Chunk) -> None:
        """Remove a chunk from the cache although it is in use; its memory is freed when the last user releases it."""
        if chunk.data is not None and self._chunks.get(chunk.key) is chunk:
            self._note_read(chunk)
            del self._chunks[chunk.key]

    def pass_over(self, segment: RemoteLogSegmentMetadata, number: int) -> None:
        """Make a chunk the first to evict: a reader has passed its end."""
        key = ChunkKey(segment.remote_log_segment_id.id, number, self.chunk_bytes)
        if key in self._chunks:
            self._chunks.move_to_end(key, last=False)

    def on_release(self, chunk: Chunk) -> None:
        """Process the release of a chunk by one user."""
        self._take_back()
        if not chunk.is_in_use and self._chunks.get(chunk.key) is not chunk:
            self._free(chunk)
        self._settle()

    def start_soon(self, function: Callable[[], Awaitable[object]]) -> None:
        """Run a function as a task that continues even if its requester has gone.

        Errors  RetriableRemoteStorageError if `run` has ended
        """
        if self._nursery is None:
            raise RetriableRemoteStorageError(_NOT_RUNNING)
        self._nursery.start_soon(function)

    # Memory

    def lend(self, chunks: Iterable[Chunk], pieces: Sequence[Buffer]) -> list[Buffer]:
        """See ChunkReader.lend."""
        self._take_back()
        return self._loans.lend(chunks, pieces, max_bytes=self.max_bytes // 2)

    @property
    def lent_bytes(self) -> int:
        """The memory of chunks that are lent to answers."""
        self._take_back()
        return self._loans.lent_bytes

    def _on_loan_end(self) -> None:
        # Runs in any thread. A chunk that starts to wait checks for ended loans afterwards, so no wake-up is lost.
        if self._waiting and self._token is not None:
            with suppress(trio.RunFinishedError):
                self._token.run_sync_soon(self._settle, idempotent=True)

    def _take_back(self) -> None:
        for chunk in self._loans.take_back():
            if not chunk.users and self._chunks.get(chunk.key) is not chunk:
                self._free(chunk)

    def _make_room(self, size: int) -> bool:
        """Evict the least recently used chunks until `size` fits; whether it fits."""
        self._take_back()
        excess = self.used_bytes + size - self.max_bytes
        if excess > 0:
            doomed = []
            for chunk in self._chunks.values():
                if excess <= 0:
                    break
                if not chunk.is_in_use and chunk.data is not None:
                    doomed.append(chunk)
                    excess -= chunk.room
            for chunk in doomed:
                self._note_read(chunk)
                del self._chunks[chunk.key]
                self._free(chunk)
        # One chunk may always be read; otherwise a cache that is too small, or has lent its memory, would block all
        # reads.
        return excess <= 0 or self.used_bytes <= self._loans.lent_bytes

    def _free(self, chunk: Chunk) -> None:
        if chunk.memory is not None:
            chunk.memory = chunk.data = None
            self.used_bytes -= chunk.room

    def _note_read(self, chunk: Chunk) -> None:
        if chunk.is_unread:
            chunk.is_unread = False
            self.unread_bytes -= chunk.room

    def _settle(self) -> None:
        """Evict what exceeds the limit, and start the waiting reads that have room; all fail if `run` has ended."""
        self._make_room(0)
        while self._waiting and self._nursery is None:
            self._give_up(self._waiting.popleft(), RetriableRemoteStorageError(_NOT_RUNNING))
        while self._waiting and self._make_room(self._waiting[0].room):
            self._start_one(self._waiting.popleft())

    # Reading

    def _reserve(self, chunk: Chunk) -> None:
        """Errors: RetriableRemoteStorageError (the system has no memory)."""
        try:
            chunk.memory = self._memory.take(chunk.size)
        except (OSError, MemoryError) as error:
            raise RetriableRemoteStorageError(f"there is no memory for {chunk.size} bytes: {error}") from error
        self.used_bytes += chunk.room
        self._memory.keep(max(0, self.max_bytes - self.used_bytes))

    def _start_one(self, chunk: Chunk) -> None:
        """Read a chunk, whatever the limit."""
        try:
            self._reserve(chunk)
            self.start_soon(partial(self._read, [chunk]))
        except RetriableRemoteStorageError as error:
            self._give_up(chunk, error)

    async def _read(self, chunks: list[Chunk]) -> None:
        """Read adjacent chunks."""
        memory = [chunk.memory for chunk in chunks if chunk.memory is not None]
        arrived: list[Chunk] = []
        failure: RemoteStorageError = RetriableRemoteStorageError(_NOT_RUNNING)
        try:
            await self._quota.admit(sum(map(len, memory)), self._env)
            self.reading += 1
            try:
                first = chunks[0]
                start = first.key.number * first.key.chunk_bytes
                on_filled = partial(self._on_filled, chunks, arrived)
                await self._threads.run_blocking(read_whole, self._storage, first.segment, start, memory, on_filled)
            finally:
                self.reading -= 1
        except RemoteStorageError as error:
            failure = error
        finally:
            for chunk in chunks:
                if chunk in arrived:
                    self._have(chunk)
                else:
                    self._give_up(chunk, failure)
            self._settle()

    def _on_filled(self, chunks: list[Chunk], arrived: list[Chunk], at: int) -> None:
        # Runs in a thread. `_read` reports the last chunk.
        arrived.append(chunks[at])
        if at + 1 < len(chunks) and self._token is not None:
            with suppress(trio.RunFinishedError):
                self._token.run_sync_soon(self._have, chunks[at])

    def _have(self, chunk: Chunk) -> None:
        if not chunk.ready.is_set():
            chunk.data = chunk.memory
            self.read_bytes += chunk.size
            chunk.ready.set()

    def _give_up(self, chunk: Chunk, error: RemoteStorageError) -> None:
        chunk.error = without_frames(error)
        self._note_read(chunk)
        if self._chunks.get(chunk.key) is chunk:
            del self._chunks[chunk.key]
        self._free(chunk)
        chunk.ready.set()
