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
* What is read ahead takes half of the memory at most, as long as nobody has used it. What nobody comes for does not
  count after a while: else the consumers that have gone would leave none of it to those who read on.
* Answers are sent out of the chunks themselves: a chunk is lent to them, and stays as if it were in use until they have
  left or are given up. Slow clients hold half of the memory that way at most; beyond that they are sent copies, as is
  what is small: so the other half goes round, however slow they are.

Bound   `kbroker.remote.chunk.cache.bytes`, what is lent and what is kept for the next chunk included; beyond it at most
        one chunk for each reader that has begun a batch, and the copies (`kbroker.queued.max.response.bytes`);
        `remote.log.reader.max.pending.tasks` chunks may wait for memory
Source  Aiven-Open/tiered-storage-for-apache-kafka (#297: one chunk after the other; #483: work thrown away; 017a8ae8: a
        hit that was not complete), redpanda#7193 (chunks evicted under their readers)
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Final

import trio

from kbroker.config.settings import MB
from kbroker.config.tier import TierSettings
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
from kbroker.tiered.chunk_reader import ChunkReader
from kbroker.tiered.chunks import Chunk, ChunkKey, Loans
from kbroker.tiered.quota import ByteQuota

LONGEST_PAUSE_MS: Final = 1_000
UNREAD_MS: Final = 10_000
"""Who reads on asks for what was read ahead within this time, or is too slow to wait for the store."""


def chunk_bytes_of(settings: TierSettings) -> int:
    """`kbroker.remote.chunk.bytes`, by the store unless somebody has set it: a directory costs little for each chunk,
    so whoever seeks waits for a small one; a request costs an object store and its client the same for any size.
    """
    if settings.kbroker_remote_chunk_bytes > 0:
        return settings.kbroker_remote_chunk_bytes
    return 1 * MB if settings.is_directory else 4 * MB


class ChunkCache:
    """See the module's text.

    Units  used_bytes are those that the chunks take that are there or are being read; unread_bytes those read ahead
           and not used yet. hits, misses and read_ahead count chunks, read_bytes what the store gave; reading are the
           reads that are under way, of which max_reads have a thread
    """

    def __init__(self, env: Env, settings: TierSettings, *, storage: RemoteStorageManager, quota: ByteQuota) -> None:
        self._env = env
        self._storage = storage
        self._threads = env.threads(settings.remote_log_reader_threads)
        self._nursery: trio.Nursery | None = None
        self._chunks: OrderedDict[ChunkKey, Chunk] = OrderedDict()  # those used last at the end
        self._waiting: deque[Chunk] = deque()  # for memory
        self._quota = quota
        self._memory = ChunkMemory(chunk_bytes_of(settings))
        self._loans = Loans(self._on_loan_end)
        self._token: trio.lowlevel.TrioToken | None = None
        self.used_bytes = self.unread_bytes = 0
        self.hits = self.misses = self.read_ahead = self.read_bytes = self.reading = 0
        self._take(settings)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Read what is wanted, for ever. While this does not run nothing is read."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            self._token = trio.lowlevel.current_trio_token()
            task_status.started()
            try:
                await trio.sleep_forever()
            finally:
                self._nursery = None

    def reconfigure(self, settings: TierSettings) -> None:
        """Take over changed settings. Chunks of another size are forgotten in time, as nobody uses them."""
        self._threads.resize(settings.remote_log_reader_threads)
        self._take(settings)
        self._memory.resize(self.chunk_bytes)
        self._make_room(0)
        self._memory.keep(self.max_bytes - self.used_bytes)
        self._start_waiting()

    def _take(self, settings: TierSettings) -> None:
        self.chunk_bytes = chunk_bytes_of(settings)
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
        has_room = not self._waiting and self._make_room(chunk.room)
        if not has_room and len(self._waiting) >= self._max_waiting:
            raise RetriableRemoteStorageError(f"{len(self._waiting)} reads of the tier wait for memory already")
        if has_room:
            self._reserve(chunk)
        self.misses += 1
        self._chunks[key] = chunk
        if has_room:
            self._start([chunk])
        else:
            self._waiting.append(chunk)
            if self._loans:
                self._start_waiting()
        return chunk

    def knows(self, segment: RemoteLogSegmentMetadata, number: int) -> bool:
        """Whether a chunk is there or will be."""
        return ChunkKey(segment.remote_log_segment_id.id, number, self.chunk_bytes) in self._chunks

    @property
    def most_ahead(self) -> int:
        """How many chunks may be read ahead at a time, for all readers together."""
        return self.max_bytes // 2 // self.chunk_bytes

    def make_room_ahead(self, count: int) -> bool:
        """Whether so many more may be; what nobody came for does not count from then on."""
        if self._waiting:
            return False
        most_bytes = self.max_bytes // 2 - count * self.chunk_bytes
        if self.unread_bytes > most_bytes:
            long_ago_ms = self._env.now_ms() - UNREAD_MS
            for chunk in self._chunks.values():
                if chunk.is_unread and chunk.since_ms < long_ago_ms:
                    self._note_read(chunk)
        return self.unread_bytes <= most_bytes

    def want_ahead(self, segment: RemoteLogSegmentMetadata, numbers: range) -> bool:
        """Have chunks read by one read that may be asked for next, none of which is known yet; False if there is no
        memory for all of them now.
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
            self._start(started)
        return len(started) == len(numbers)

    def hurry(self, chunk: Chunk) -> None:
        """Read a chunk now, whether or not there is memory."""
        if chunk.waits_for_memory:
            self._waiting.remove(chunk)
            self._start([chunk])

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
        self._take_back()
        if chunk.is_in_use:
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

    def lend(self, chunks: Iterable[Chunk], pieces: Sequence[Buffer]) -> list[Buffer]:
        """See ChunkReader.lend."""
        self._take_back()
        return self._loans.lend(chunks, pieces, max_bytes=self.max_bytes // 2)

    @property
    def lent_bytes(self) -> int:
        """Of the chunks of which an answer has a part."""
        self._take_back()
        return self._loans.lent_bytes

    def _on_loan_end(self) -> None:
        # In any thread. Who begins to wait for memory looks for loans that have ended after that, so none is missed.
        if self._waiting and self._token is not None:
            with suppress(trio.RunFinishedError):
                self._token.run_sync_soon(self._start_waiting, idempotent=True)

    def _take_back(self) -> None:
        for chunk in self._loans.take_back():
            if not chunk.users and self._chunks.get(chunk.key) is not chunk:
                self._free(chunk)

    def _make_room(self, size: int) -> bool:
        """Forget what was used longest ago until `size` fits; whether it does."""
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
        # One chunk is always read: through a cache that is smaller, or was before it lent that much, nothing could be
        # read else.
        return excess <= 0 or self.used_bytes <= self._loans.lent_bytes

    def _free(self, chunk: Chunk) -> None:
        if chunk.memory is not None:
            chunk.memory = chunk.data = None
            self.used_bytes -= chunk.room

    def _note_read(self, chunk: Chunk) -> None:
        if chunk.is_unread:
            chunk.is_unread = False
            self.unread_bytes -= chunk.room

    def _start_waiting(self) -> None:
        self._take_back()
        if self._nursery is None:
            # All at once: one after the other each would be failed by the one before, deeper and deeper.
            waiting, self._waiting = self._waiting, deque()
            for chunk in waiting:
                self._fail(chunk, RetriableRemoteStorageError("the tier is not read now"))
        while self._waiting and self._make_room(self._waiting[0].room):
            self._start([self._waiting.popleft()])

    # Reading

    def _reserve(self, chunk: Chunk) -> None:
        """Errors: RetriableRemoteStorageError (the system has no memory)."""
        try:
            chunk.memory = self._memory.take(chunk.size)
        except (OSError, MemoryError) as error:
            raise RetriableRemoteStorageError(f"there is no memory for {chunk.size} bytes: {error}") from error
        self.used_bytes += chunk.room
        self._memory.keep(max(0, self.max_bytes - self.used_bytes))

    def _start(self, chunks: list[Chunk]) -> None:
        """Read neighbours."""
        for chunk in chunks:
            if chunk.memory is None:
                try:
                    self._reserve(chunk)
                except RetriableRemoteStorageError as error:
                    self._give_up(chunk, error)
                    return
        if self._nursery is not None:
            self._nursery.start_soon(self._read, chunks)
            return
        for chunk in chunks:
            self._fail(chunk, RetriableRemoteStorageError("the tier is not read now"))

    async def _read(self, chunks: list[Chunk]) -> None:
        now_ms = began_ms = self._env.now_ms()
        memory = [chunk.memory for chunk in chunks if chunk.memory is not None]
        arrived: list[Chunk] = []
        try:
            while pause_ms := self._quota.wait_ms(now_ms):
                await self._env.sleep_ms(min(pause_ms, LONGEST_PAUSE_MS))  # the rate may be changed meanwhile
                now_ms = self._env.now_ms()
            self._quota.take(sum(map(len, memory)), now_ms=now_ms, since_ms=began_ms)
            self.reading += 1
            try:
                first = chunks[0]
                start = first.key.number * first.key.chunk_bytes
                on_filled = partial(self._on_filled, chunks, arrived)
                await self._threads.run_blocking(read_whole, self._storage, first.segment, start, memory, on_filled)
            finally:
                self.reading -= 1
        except RemoteStorageError as error:
            self._end(chunks, arrived, error)
        except trio.Cancelled:
            self._end(chunks, arrived, RetriableRemoteStorageError("the tier is not read now"))
            raise
        else:
            for chunk in chunks:
                self._have(chunk)
            if self.used_bytes > self.max_bytes or self._waiting:
                self._make_room(0)
                self._start_waiting()

    def _on_filled(self, chunks: list[Chunk], arrived: list[Chunk], at: int) -> None:
        # In a thread. Of the last one is heard by the end of the whole.
        arrived.append(chunks[at])
        if at + 1 < len(chunks) and self._token is not None:
            with suppress(trio.RunFinishedError):
                self._token.run_sync_soon(self._have, chunks[at])

    def _have(self, chunk: Chunk) -> None:
        if not chunk.ready.is_set():
            chunk.data = chunk.memory
            self.read_bytes += chunk.size
            chunk.ready.set()

    def _end(self, chunks: list[Chunk], arrived: list[Chunk], error: RemoteStorageError) -> None:
        """Fail those that have not come."""
        for chunk in tuple(arrived):
            self._have(chunk)
        for chunk in chunks:
            if not chunk.ready.is_set():
                self._fail(chunk, error)

    def _fail(self, chunk: Chunk, error: RemoteStorageError) -> None:
        self._give_up(chunk, error)
        self._start_waiting()

    def _give_up(self, chunk: Chunk, error: RemoteStorageError) -> None:
        chunk.error = without_frames(error)
        self._note_read(chunk)
        if self._chunks.get(chunk.key) is chunk:
            del self._chunks[chunk.key]
        self._free(chunk)
        chunk.ready.set()
