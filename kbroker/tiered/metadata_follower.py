"""The in-memory state of one partition of `__remote_log_metadata`, as this broker follows it.

One task reads the partition from its leader and changes the state. Queries run between its steps; waiters park until
its next step. The task waits for nothing but the log, so its waiters cannot block it (in Kafka the two could deadlock:
KAFKA-17766). A second task asks the leader where the partition ends when a user partition is newly held.

The task keeps all events of the log, even of user partitions that this broker does not hold. So a newly held partition
needs no reading. The memory is limited by the number of segments in the tier, a few hundred bytes each.

A user partition is ready when everything is read that was committed when the broker started to hold it. If the topic
was created again, or an unclean election truncated the log below the read position, the log is read again from its
start; until then nothing is ready.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Final
from uuid import UUID

import trio

from kbroker.runtime.event_log import get_logger
from kbroker.runtime.net_ports import Env
from kbroker.tiered import metadata_snapshot
from kbroker.tiered.api import TopicIdPartition
from kbroker.tiered.lifecycle import MetadataEvent, RemoteLogMetadataCache
from kbroker.tiered.metadata_snapshot import Caches, Snapshot, Source
from kbroker.tiered.metadata_topic import NO_EPOCH, Events
from kbroker.tiered.ports import MetadataTopic
from wire.errors import ErrorCode, KafkaError

MIN_EVENTS_BETWEEN_SNAPSHOTS: Final = 500
"""The minimum number of events between two snapshots. With more segments than this, the number of segments counts
instead. Writing a snapshot then costs less than reading the events did."""

REPORT_MS: Final = 30_000
"""A new leader is elected much earlier."""

NO_BATCH: Final = (-1, 0)

logger = get_logger(__name__)


@dataclass(slots=True)
class MetadataCounters:
    """Counts over all partitions of the topic since the broker started."""

    events_read: int = 0
    skipped_records: int = 0
    dropped_events: int = 0


class _Attempts:
    """The attempts of one task to do `what`. It pauses after a failure, and logs repeated failures once."""

    def __init__(self, env: Env, index: int, retry_ms: int, what: str) -> None:
        self._env = env
        self._index = index
        self._retry_ms = retry_ms
        self._what = what
        self._failing_since_ms: int | None = None
        self._is_reported = False

    async def make(self, step: Callable[[], Awaitable[None]]) -> None:
        """Make an attempt; after a KafkaError, pause."""
        try:
            await step()
        except KafkaError as error:
            self._note_failure(error)
            await self._env.sleep_ms(self._retry_ms)
        else:
            if self._is_reported:
                logger.info(f"can {self._what} again", partition=self._index)
            self._failing_since_ms, self._is_reported = None, False

    def _note_failure(self, error: KafkaError) -> None:
        """Log an error once: immediately if the log is damaged or its disk fails, later if it may have no leader."""
        now_ms = self._env.now_ms()
        if self._failing_since_ms is None:
            self._failing_since_ms = now_ms
        is_due = error.code is ErrorCode.KAFKA_STORAGE_ERROR or now_ms - self._failing_since_ms >= REPORT_MS
        if is_due and not self._is_reported:
            self._is_reported = True
            why = error.message or error.code.name
            logger.warning(f"cannot {self._what}; will retry", partition=self._index, why=why)


class FollowedPartition:
    """See the module's docstring.

    Shape   index is the partition's number; caches are by user partition
    Units   position is the offset of the next event to apply
    Note    of counters, events_read are events from the log and not from a snapshot, skipped_records are unreadable,
            and dropped_events are invalid
    """

    def __init__(
        self,
        env: Env,
        topic: MetadataTopic,
        index: int,
        *,
        partition_count: int,
        retry_ms: int,
        counters: MetadataCounters,
        progress: trio.lowlevel.ParkingLot,
        on_lost: Callable[[], None],
    ) -> None:
        self.index = index
        self.partition_count = partition_count
        self.position = 0
        self.caches: Caches = {}
        self.counters = counters
        self._env = env
        self._topic = topic
        self._reader = topic.reader(index)
        self._progress = progress
        self._on_lost = on_lost
        self._topic_id: UUID | None = None
        self._asked: set[TopicIdPartition] = set()  # held without a break since the end of the log was asked for
        self._last_batch = NO_BATCH
        self._leader_epoch = NO_EPOCH
        self._events_since_snapshot = 0
        self._snapshot_position = 0
        self._writing = trio.Lock()  # serializes the snapshots of the follower and of close
        self._targets: dict[TopicIdPartition, int | None] = {}
        self._held_more = trio.lowlevel.ParkingLot()
        self._reading = _Attempts(env, index, retry_ms, "read the tier's metadata")
        self._asking = _Attempts(env, index, retry_ms, "find the end of the tier's metadata")

    # --- held partitions ----------------------------------------------------------------------------------------------

    def hold(self, partition: TopicIdPartition) -> None:
        """Hold a user partition; it is ready once everything committed in the log at this time is read."""
        self._targets.setdefault(partition, None)
        self._held_more.unpark_all()

    def let_go(self, partition: TopicIdPartition) -> None:
        """Stop holding a user partition; its cache is dropped if it has no segments."""
        self._targets.pop(partition, None)
        self._asked.discard(partition)
        if not self.cache(partition).segments:
            self.caches.pop(partition, None)

    @property
    def holds_nothing(self) -> bool:
        return not self._targets

    def is_ready(self, partition: TopicIdPartition) -> bool:
        target = self._targets.get(partition)
        return self._topic_id is not None and target is not None and self.position >= target

    def cache(self, partition: TopicIdPartition) -> RemoteLogMetadataCache:
        """The cache of a user partition; an empty one if it is unknown."""
        return self.caches.get(partition) or RemoteLogMetadataCache()

    # --- following ----------------------------------------------------------------------------------------------------

    async def follow(self) -> None:
        """Read the log and new records until cancelled."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._find_ends)
                while True:
                    await self._reading.make(self._follow_on)
        finally:
            self._reader.close()

    async def _follow_on(self) -> None:
        topic_id = self._topic.topic_id
        if topic_id is None:
            self._on_lost()
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "there is no __remote_log_metadata")
        if topic_id != self._topic_id:
            if self._topic_id is not None:
                logger.warning("the topic of the tier's metadata was created again", partition=self.index)
            self._start_over()
            await self._load_snapshot(Source(topic_id, self.index, self.partition_count))
            self._topic_id = topic_id
            self._held_more.unpark_all()
            self._progress.unpark_all()
        await self._read_on()

    def _start_over(self) -> None:
        self._topic_id = None
        self.caches, self.position, self._last_batch, self._leader_epoch = {}, 0, NO_BATCH, NO_EPOCH
        self._snapshot_position = self._events_since_snapshot = 0
        self._asked.clear()
        self._targets = dict.fromkeys(self._targets)
        self._held_more.unpark_all()

    async def _load_snapshot(self, source: Source) -> None:
        """Continue where a snapshot was taken, if there is one that fits the log. Errors: KafkaError."""
        directory = self._reader.directory
        if directory is None:
            return
        try:
            snapshot, caches = await self._env.run_blocking(self._load, directory, source)
            base_offset, crc = snapshot.last_batch
            if base_offset >= 0 and not await self._has_batch(base_offset, crc):
                raise metadata_snapshot.Unusable(f"the log does not have its batch at offset {base_offset}")
        except FileNotFoundError:
            return
        except (metadata_snapshot.Unusable, OSError) as error:
            logger.warning("a snapshot of the tier's metadata cannot be used", partition=self.index, why=error)
            return
        self.caches, self.position = caches, snapshot.position
        self._last_batch, self._leader_epoch = snapshot.last_batch, snapshot.leader_epoch
        self._snapshot_position = self.position

    async def _has_batch(self, base_offset: int, crc: int) -> bool:
        # A new leader raises KafkaError until it has committed the batches of earlier leaders.
        end_offset = await self._reader.end_offset()
        return base_offset < end_offset and await self._reader.has_batch(base_offset, crc)

    def _load(self, directory: str, source: Source) -> tuple[Snapshot, Caches]:
        snapshot = metadata_snapshot.read(self._env.disk, directory, source)
        return snapshot, snapshot.restore()

    async def _read_on(self) -> None:
        """Apply the next slice, if new records come in time."""
        count, topic_id = self.partition_count, self._topic_id
        events = await self._reader.read(self.position, self._leader_epoch, partition_count=count)
        if self._topic.topic_id != topic_id:
            return
        if events is None:
            logger.warning("the log of the tier's metadata was truncated; reading it again", partition=self.index)
            self._start_over()
            self._topic_id = topic_id
            self._progress.unpark_all()
        elif events.next_offset > self.position:
            self._take_in(events)
            self._progress.unpark_all()
            if self._events_since_snapshot > max(MIN_EVENTS_BETWEEN_SNAPSHOTS, self.segment_count):
                await self.write_snapshot()

    async def _find_ends(self) -> None:
        """Find out how far to read until newly held partitions are ready."""
        while True:
            new = [partition for partition, target in self._targets.items() if target is None]
            if new and self._topic_id is not None:
                await self._asking.make(partial(self._find_end, new))
            else:
                await self._held_more.park()

    async def _find_end(self, new: list[TopicIdPartition]) -> None:
        self._asked = set(new)
        end_offset = await self._reader.end_offset()
        self._targets.update((one, end_offset) for one in new if one in self._asked)
        self._progress.unpark_all()

    def _take_in(self, events: Events) -> None:
        dropped: list[str] = []
        for offset, event in events.events:
            why = self._replay(event)
            if why is not None:
                dropped.append(f"offset {offset}: {why}")
        self.position = events.next_offset
        if events.last_batch is not None:
            self._last_batch, self._leader_epoch = events.last_batch, events.leader_epoch
        self.counters.events_read += len(events.events)
        self._events_since_snapshot += len(events.events)
        if dropped:
            self.counters.dropped_events += len(dropped)
            logger.warning(
                "events of the tier's metadata were dropped", partition=self.index, count=len(dropped), why=dropped[0]
            )
        if events.skipped:
            count = sum(each[1] for each in events.skipped)
            offset, _, why = events.skipped[0]
            self.counters.skipped_records += count
            logger.warning(
                "records of the tier's metadata were skipped",
                partition=self.index, offset=offset, count=count, why=why,
            )  # fmt: skip

    def _replay(self, event: MetadataEvent) -> str | None:
        partition = event.remote_log_segment_id.topic_id_partition
        cache = self.cache(partition)
        why = cache.replay(event)
        if why is None:
            self.caches[partition] = cache
        return why

    # --- snapshot -----------------------------------------------------------------------------------------------------

    @property
    def segment_count(self) -> int:
        return sum(len(cache.segments) for cache in self.caches.values())

    async def write_snapshot(self) -> None:
        """Write a snapshot unless the file is current. A failure is only logged: it costs just a longer restart."""
        async with self._writing:
            directory, topic_id = self._reader.directory, self._topic_id
            if directory is not None and topic_id is not None and self.position != self._snapshot_position:
                await self._write_snapshot(directory, Source(topic_id, self.index, self.partition_count))

    async def _write_snapshot(self, directory: str, source: Source) -> None:
        # A partition that has no segments and is not held belongs to a deleted topic, so it is left out.
        kept = {key: cache for key, cache in self.caches.items() if key in self._targets or cache.segments}
        self._events_since_snapshot = 0
        snapshot = Snapshot.of(kept, self.position, self._last_batch, self._leader_epoch)
        try:
            await self._env.run_blocking(metadata_snapshot.write, self._env.disk, directory, source, snapshot)
            self._snapshot_position = snapshot.position
        except OSError as error:
            logger.warning("cannot write a snapshot of the tier's metadata", partition=self.index, why=error)
