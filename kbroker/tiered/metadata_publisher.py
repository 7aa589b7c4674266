"""Writes changes of the tier's metadata to one partition of `__remote_log_metadata`.

One task takes the queued changes, rejects invalid ones, and appends the rest as one batch. A sender returns when the
follower has read its change back, so that queries see it. The queue orders the changes of a partition; no lock is held
while anything waits.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final

import trio

from kbroker.runtime.event_log import get_logger
from kbroker.runtime.net_ports import Env
from kbroker.tiered.api import RemoteLogSegmentId, RemoteStorageError, RetriableRemoteStorageError
from kbroker.tiered.lifecycle import MetadataEvent
from kbroker.tiered.metadata_follower import FollowedPartition
from kbroker.tiered.metadata_topic import encode_event
from kbroker.tiered.ports import MetadataTopic
from wire.errors import KafkaError

MAX_BATCH_BYTES: Final = 256 << 10

logger = get_logger(__name__)


@dataclass(slots=True, eq=False)
class Change:
    """One event until it is stored and read back, or has failed."""

    event: MetadataEvent
    value: bytes
    done: trio.Event = field(default_factory=trio.Event)
    error: Exception | None = None
    is_abandoned: bool = False

    def finish(self, error: Exception | None = None) -> None:
        self.error = error
        self.done.set()


class MetadataPublisher:
    """See the module's docstring.

    Units  wait_ms limits the time to store a change, and again the time to read it back
    """

    def __init__(
        self,
        env: Env,
        topic: MetadataTopic,
        followed: FollowedPartition,
        *,
        wait_ms: int,
        retry_ms: int,
        progress: trio.lowlevel.ParkingLot,
    ) -> None:
        self._env = env
        self._topic = topic
        self._followed = followed
        self._wait_ms = wait_ms
        self._retry_ms = retry_ms
        self._progress = progress
        self._queue: deque[Change] = deque()
        self._in_flight: list[Change] = []
        self._wanted = trio.lowlevel.ParkingLot()
        self._ended = ""

    async def publish(self, event: MetadataEvent) -> None:
        """Return once the event is stored and was read back.

        If the caller is cancelled, the outcome is unknown.
        Errors  RemoteResourceNotFound and ValueError for an invalid event; RetriableRemoteStorageError
        """
        if self._ended:
            raise RetriableRemoteStorageError(self._ended)
        change = Change(event, encode_event(event))
        self._queue.append(change)
        self._wanted.unpark_all()
        try:
            await change.done.wait()
        finally:
            change.is_abandoned = True
        if change.error is not None:
            raise change.error

    def end(self, why: str) -> None:
        """Fail all current and future changes."""
        self._ended = why
        for change in (*self._in_flight, *self._queue):
            change.finish(RetriableRemoteStorageError(why))
        self._queue.clear()
        self._in_flight = []

    async def run(self) -> None:
        """Store queued changes until cancelled."""
        while True:
            while not self._queue:
                await self._wanted.park()
            self._in_flight = self._take()
            if self._in_flight:
                error = await self._store([change.value for change in self._in_flight])
                for change in self._in_flight:
                    change.finish(error)
                self._in_flight = []

    def _take(self) -> list[Change]:
        """The changes of the next batch: only valid ones, and at most one per segment."""
        taken: list[Change] = []
        subjects: set[RemoteLogSegmentId] = set()
        size = 0
        while self._queue and size < MAX_BATCH_BYTES:
            change = self._queue[0]
            event, subject = change.event, change.event.remote_log_segment_id
            if subject in subjects:
                break  # its validity is known once the previous change is read back
            self._queue.popleft()
            if change.is_abandoned:
                continue
            try:
                self._followed.cache(subject.topic_id_partition).check(event)
            except (RemoteStorageError, ValueError) as error:
                change.finish(error)
                continue
            subjects.add(subject)
            taken.append(change)
            size += len(change.value)
        return taken

    async def _store(self, values: list[bytes]) -> RetriableRemoteStorageError | None:
        index = self._followed.index
        deadline_ms = self._env.now_ms() + self._wait_ms
        while True:
            try:
                last_offset = await self._topic.append(index, values) + len(values) - 1
                break
            except KafkaError as error:
                if not error.code.retriable or self._env.now_ms() >= deadline_ms:
                    logger.warning("cannot write the tier's metadata", partition=index, why=error.message)
                    return RetriableRemoteStorageError(f"the tier's metadata cannot be written: {error.message}")
                await self._env.sleep_ms(self._retry_ms)
        with trio.move_on_after(self._wait_ms / 1000):
            while self._followed.position <= last_offset:
                await self._progress.park()
            return None
        return RetriableRemoteStorageError(
            f"a change of the tier's metadata was written at offset {last_offset} of partition {index}, but not read "
            f"back within {self._wait_ms} ms"
        )
