"""The part of a Fetch that lies in the tier.

All its partitions are read at once, each within its share of the byte budget. The answer leaves when all have come, or
when `remote.fetch.max.wait.ms` is over, which has nothing to do with the wait that the client asks for: whatever has
not come by then is read on into the cache, and is there when the client asks again. As soon as there are min_bytes,
from the local log or from the tier, the client's own wait is the limit: nothing is held back for longer than the client
said that it would wait for less.

Records from the tier lie in memory until the client has taken them, for as long as it likes. So each part takes its
share of the memory for answers (`kbroker.runtime.budget`): where that runs short, an answer is the one batch that
Fetch always owes.

A tier that cannot be read is answered KAFKA_STORAGE_ERROR, which clients try again at once: so an answer of nothing but
that is held until the wait is over.

Source  KAFKA-15776 (a time-out of its own), KAFKA-14915 (several partitions), KAFKA-15931 (I/O is never interrupted),
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
    """Memory for the answer; see `kbroker.handlers.Room`."""

    def share(self, wanted: int) -> int: ...
    def take(self, size: int) -> None: ...


class Waiting(Protocol):
    """How a request of a client waits; see `kbroker.handlers.Context.waiting`."""

    def waiting(self, scope: trio.CancelScope) -> AbstractContextManager[None]: ...


class Client(Waiting, Protocol):
    """The same, and what its answer may hold; see `kbroker.handlers.Context`."""

    @property
    def room(self) -> Room: ...


async def read_remote(
    fetch: FetchRound, reader: RemoteReader | None, env: Env, client: Client, *, max_wait_ms: int, remote_wait_ms: int
) -> bool:
    """Read what a Fetch left to be read from the tier; without a reader there is none. Whether it was answered because
    remote_wait_ms were over.
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
        """Read all of them at once; `scope` is to end at `enough_at` when there is enough to answer."""
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
            fetch.fail_remote(part, KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "there is no tier now"))
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
            fetch.fail_remote(part, error)
            return
        finally:
            self._room.take(size - taken)
        if found.size:
            fetch.take_remote(part, found.records, found.size, found.aborted)
        elif found.next_offset > asked.fetch_offset:
            await self._env.run_blocking(fetch.read_on, part, found.next_offset)

    @property
    def are_out_of_reach(self) -> bool:
        """Whether there is nothing to answer but that the tier cannot be read."""
        return not self._fetch.size and all(
            part.answer.error_code is ErrorCode.KAFKA_STORAGE_ERROR for part in self._fetch.remote
        )

    def end(self) -> None:
        """Answer what has not come: nothing, or that it is not known yet what there is (KAFKA-15181)."""
        for part in self._fetch.remote:
            is_ready = self._reader is not None and self._reader.is_ready(part.partition)
            if part.answer.error is None and not part.answer.size and not is_ready:
                why = f"it is not known yet what the tier holds of {part.partition.name}"
                self._fetch.fail_remote(part, KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, why))
