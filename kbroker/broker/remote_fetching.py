"""The part of a Fetch that is read from the tier.

All partitions are read at once, each within its share of the byte budget. The answer is sent when all reads have
finished, or after `remote.fetch.max.wait.ms`, which is independent of the client's max_wait_ms. Unfinished reads
continue into the cache, where the client's next request finds them. As soon as min_bytes are available, from the local
log or from the tier, the client's max_wait_ms is the limit.

Records from the tier stay in memory until the client has taken them, which has no time limit. So each part takes its
share of the memory for answers (`kbroker.runtime.budget`). If that is exhausted, the answer is the one batch that a
Fetch always returns.

A partition whose tier cannot be read gets KAFKA_STORAGE_ERROR, which clients retry immediately. So an answer with
nothing but this error is delayed until the wait is over.

Source  KAFKA-15776 (separate timeout), KAFKA-14915 (several partitions), KAFKA-15931 (I/O is never interrupted),
        KAFKA-19599 (hold the request)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import trio

from kbroker.replication.fetching import FetchRound, RemotePart
from kbroker.runtime.net_ports import Env
from wire.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from kbroker.tiered.remote_read import RemoteReader


class Room(Protocol):
    """Memory for the reply in progress; it is released when the reply has been sent."""

    def share(self, wanted: int) -> int:
        """Take up to `wanted` bytes, perhaps none, for a reply that can be shorter; return how many."""
        ...

    def take(self, size: int) -> None:
        """Take `size` more bytes; a negative size gives bytes back."""
        ...


class Waiting(Protocol):
    """How a request of a client waits; see `kbroker.handlers.Context.waiting`."""

    def waiting(self, scope: trio.CancelScope) -> AbstractContextManager[None]: ...


class Client(Waiting, Protocol):
    """A waiting client with the memory for its answer; see `kbroker.handlers.Context`."""

    @property
    def room(self) -> Room: ...


async def read_remote(
    fetch: FetchRound, reader: RemoteReader | None, env: Env, client: Client, *, max_wait_ms: int, remote_wait_ms: int
) -> bool:
    """Read the remote parts of a Fetch. Without a reader they fail. Returns whether the Fetch was answered because
    remote_wait_ms had passed.
    """
    parts = _Parts(fetch, reader, env, client.room)
    began = trio.current_time()
    with trio.CancelScope(deadline=began + remote_wait_ms / 1000) as scope, client.waiting(scope):
        await parts.read(scope, enough_at=began + max_wait_ms / 1000)
        if parts.are_out_of_reach:
            await trio.sleep_forever()
    is_expired = scope.cancelled_caught and trio.current_time() >= began + remote_wait_ms / 1000
    parts.end()
    if not fetch.size and len(fetch.remote) < len(fetch.answers):
        await env.run_blocking(fetch.read_without_remote)
    fetch.refuse_retired()
    return is_expired


class _Parts:
    """The parts of one Fetch that are read from the tier."""

    def __init__(self, fetch: FetchRound, reader: RemoteReader | None, env: Env, room: Room) -> None:
        self._room = room
        self._fetch = fetch
        self._reader = reader
        self._env = env

    async def read(self, scope: trio.CancelScope, *, enough_at: float) -> None:
        """Read all parts at once; `scope` ends at `enough_at` if there is enough to answer by then."""
        if len(self._fetch.remote) == 1:
            self._hurry(scope, enough_at)
            await self._read(self._fetch.remote[0])
            return
        async with trio.open_nursery() as nursery:
            for part in self._fetch.remote:
                nursery.start_soon(self._read_and_hurry, part, scope, enough_at)
            self._hurry(scope, enough_at)

    async def _read_and_hurry(self, part: RemotePart, scope: trio.CancelScope, enough_at: float) -> None:
        await self._read(part)
        self._hurry(scope, enough_at)

    def _hurry(self, scope: trio.CancelScope, enough_at: float) -> None:
        if self._fetch.size and self._fetch.has_enough:
            scope.deadline = min(scope.deadline, enough_at)

    async def _read(self, part: RemotePart) -> None:
        fetch, asked = self._fetch, part.answer.asked
        if self._reader is None:
            part.answer.fail(KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "the tier is not running"))
            return
        taken = self._room.share(part.max_bytes)
        size = 0
        try:
            found = await self._reader.read(
                part.partition,
                asked.fetch_offset,
                max_bytes=taken,
                at_least_one_batch=part.at_least_one_batch,
                read_committed=fetch.reads_committed,
            )
            size = found.size
        except KafkaError as error:
            part.answer.fail(error)
            return
        finally:
            self._room.take(size - taken)
        if found.size:
            fetch.take_remote(part, found.records, found.size, found.aborted)
        elif found.next_offset > asked.fetch_offset:
            await self._env.run_blocking(fetch.read_on, part, found.next_offset)

    @property
    def are_out_of_reach(self) -> bool:
        """Whether the answer would have nothing but errors that the tier cannot be read."""
        return not self._fetch.size and all(
            part.answer.error_code is ErrorCode.KAFKA_STORAGE_ERROR for part in self._fetch.remote
        )

    def end(self) -> None:
        """Answer unfinished parts: with no records, or with an error if the tier's content is unknown (KAFKA-15181)."""
        for part in self._fetch.remote:
            is_ready = self._reader is not None and self._reader.is_ready(part.partition)
            if part.answer.error is None and not part.answer.size and not is_ready:
                why = f"the tier's metadata of {part.partition.name} are not read yet"
                part.answer.fail(KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, why))
