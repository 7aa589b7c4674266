"""The in-memory state of one partition of `__remote_log_metadata`, as this broker follows it.

A single task reads the log and changes the state. Queries run between its steps; waiters park until its next step. The
task waits for nothing but the log, so its waiters cannot block it (in Kafka the two could deadlock: KAFKA-17766).

The task keeps all events of the log, even of user partitions that this broker does not hold. So a newly held partition
needs no reading. The memory is limited by the number of segments in the tier, a few hundred bytes each.

A partition is ready when everything is read that was in the log when the broker started to hold it. The log may follow
a leader, and reading begins when it is in sync, so it has everything that was committed. A log that was replaced, or
truncated below the read position, is read again from its start; until then nothing is ready.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

import trio

from kbroker.runtime.event_log import get_logger
from kbroker.runtime.net_ports import Env
from kbroker.storage.log import Log
from kbroker.tiered import metadata_snapshot
from kbroker.tiered.api import TopicIdPartition
from kbroker.tiered.lifecycle import MetadataEvent, RemoteLogMetadataCache
from kbroker.tiered.metadata_reading import read_new, read_on
from kbroker.tiered.metadata_snapshot import Caches, Snapshot
from kbroker.tiered.metadata_topic import Events
from kbroker.tiered.ports import MetadataTopic
from wire.errors import KafkaError

SLICE_BYTES: Final = 64 << 10
"""The events of one slice are applied in one step: about 500 events, a few milliseconds."""

MIN_EVENTS_BETWEEN_SNAPSHOTS: Final = 500
"""The minimum number of events between two snapshots. With more segments than this, the number of segments counts
instead. Writing a snapshot then costs less than reading the events did."""

MISSING_MS: Final = 30_000
"""A new topic has its replicas much earlier."""

NO_BATCH: Final = (-1, 0)

logger = get_logger(__name__)


@dataclass(slots=True)
class MetadataCounters:
    """Counts over all partitions of the topic since the broker started."""

    events_read: int = 0
    skipped_records: int = 0
    dropped_events: int = 0


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
        self._retry_ms = retry_ms
        self._progress = progress
        self._on_lost = on_lost
        self._log: Log | None = None
        self._last_batch = NO_BATCH
        self._events_since_snapshot = 0
        self._snapshot_position = 0
        self._writing = trio.Lock()  # serializes the snapshots of the follower and of close
        self._targets: dict[TopicIdPartition, int] = {}

    # --- held partitions ----------------------------------------------------------------------------------------------

    def hold(self, partition: TopicIdPartition) -> None:
        """Hold a user partition; it is ready once everything in the log at this time is read."""
        self._targets.setdefault(partition, 0 if self._log is None else self._log.log_end_offset)

    def let_go(self, partition: TopicIdPartition) -> None:
        """Stop holding a user partition; its cache is dropped if it has no segments."""
        self._targets.pop(partition, None)
        if not self.cache(partition).segments:
            self.caches.pop(partition, None)

    @property
    def holds_nothing(self) -> bool:
        return not self._targets

    def is_ready(self, partition: TopicIdPartition) -> bool:
        if self._log is None or partition not in self._targets:
            return False
        # The log may have been truncated below the target.
        return self.position >= min(self._targets[partition], self._log.log_end_offset)

    def cache(self, partition: TopicIdPartition) -> RemoteLogMetadataCache:
        """The cache of a user partition; an empty one if it is unknown."""
        return self.caches.get(partition) or RemoteLogMetadataCache()

    # --- following ----------------------------------------------------------------------------------------------------

    async def follow(self) -> None:
        """Read the log and new records until cancelled."""
        while True:
            try:
                found = await self._find_log()
                if found is not self._log or found.log_end_offset < self.position:
                    if not self._topic.is_in_sync(self.index):
                        await self._env.sleep_ms(self._retry_ms)
                        continue
                    await self._begin(found)
                await self._read_on(found)
            except KafkaError as error:
                logger.warning("cannot read the tier's metadata", partition=self.index, why=error.message)
                await self._env.sleep_ms(10 * self._retry_ms)

    async def _find_log(self) -> Log:
        missing_since_ms, is_reported = self._env.now_ms(), False
        while (found := self._topic.log(self.index)) is None:
            self._on_lost()
            await self._env.sleep_ms(self._retry_ms)
            if not is_reported and self._env.now_ms() - missing_since_ms >= MISSING_MS:
                is_reported = True
                logger.warning(
                    "this broker has no replica of a partition of __remote_log_metadata; tiered partitions wait for it",
                    partition=self.index,
                )
        return found

    async def _begin(self, found: Log) -> None:
        """Start to read a log: from a matching snapshot, or from its start."""
        if self._log is not None:
            logger.warning("the log of the tier's metadata was replaced or truncated", partition=self.index)
        self._log = None
        self.caches, self.position, self._last_batch = {}, 0, NO_BATCH
        loaded = await self._env.run_blocking(self._load, found)
        if loaded is not None:
            snapshot, self.caches = loaded
            self.position, self._last_batch = snapshot.position, snapshot.last_batch
        self._snapshot_position, self._events_since_snapshot = self.position, 0
        self._log = found
        self._targets = dict.fromkeys(self._targets, found.log_end_offset)
        self._progress.unpark_all()

    def _load(self, found: Log) -> tuple[Snapshot, Caches] | None:
        try:
            snapshot = metadata_snapshot.read(self._env.disk, found, self.partition_count)
            return snapshot, snapshot.restore()
        except FileNotFoundError:
            return None
        except (metadata_snapshot.Unusable, OSError) as error:
            logger.warning("a snapshot of the tier's metadata cannot be used", partition=self.index, why=error)
            return None

    async def _read_on(self, found: Log) -> None:
        """Apply the next slice, or wait for new records."""
        topic, position = self._topic, self.position
        end_offset = topic.high_watermark(self.index)
        if end_offset <= position:
            await topic.wait_beyond(self.index, position)
            if topic.high_watermark(self.index) <= position:
                await self._env.sleep_ms(self._retry_ms)  # the partition is no longer on this broker
            return
        count = self.partition_count
        events = read_new(found, position, end_offset=end_offset, partition_count=count)
        if events is None:
            read = partial(read_on, end_offset=end_offset, max_bytes=SLICE_BYTES, partition_count=count)
            events = await self._env.run_blocking(read, found, position)
        if topic.log(self.index) is not found or found.log_end_offset < events.next_offset:
            return
        if events.next_offset == position:
            await self._env.sleep_ms(self._retry_ms)  # the rest of a batch is not committed yet
            return
        self._take_in(events)
        self._progress.unpark_all()
        if self._events_since_snapshot > max(MIN_EVENTS_BETWEEN_SNAPSHOTS, self.segment_count):
            await self.write_snapshot()

    def _take_in(self, events: Events) -> None:
        dropped: list[str] = []
        for offset, event in events.events:
            why = self._replay(event)
            if why is not None:
                dropped.append(f"offset {offset}: {why}")
        self.position = events.next_offset
        self._last_batch = events.last_batch or self._last_batch
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
            if self._log is not None and self.position != self._snapshot_position:
                await self._write_snapshot(self._log)

    async def _write_snapshot(self, found: Log) -> None:
        # A partition that has no segments and is not held belongs to a deleted topic, so it is left out.
        kept = {key: cache for key, cache in self.caches.items() if key in self._targets or cache.segments}
        self._events_since_snapshot = 0
        snapshot = Snapshot.of(kept, self.position, self._last_batch)
        try:
            await self._env.run_blocking(metadata_snapshot.write, self._env.disk, found, self.partition_count, snapshot)
            self._snapshot_position = snapshot.position
        except OSError as error:
            logger.warning("cannot write a snapshot of the tier's metadata", partition=self.index, why=error)
