"""The tasks of each tiered partition: one copies closed segments, one deletes expired segments.

The two tasks never wait for each other. A failed round is repeated after a back-off that doubles up to the normal
interval. Temporary failures of the store are logged once per outage. Every round updates the lag (see RemotePartition),
even a failed one.

Source  RLMCopyTask, RLMExpirationTask, RLMFollowerTask of Apache Kafka 4.3.1
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

import trio

from kbroker.runtime.event_log import get_logger
from kbroker.runtime.retrying import BackOff
from kbroker.storage.segment import Segment
from kbroker.tiered import attaching, expiring
from kbroker.tiered.api import (
    FINISHED,
    RemoteLogSegmentId,
    RemoteStorageError,
    RetriableRemoteStorageError,
    TopicIdPartition,
)
from kbroker.tiered.calls import plugin_errors
from kbroker.tiered.copying import CustomMetadataTooLarge, copy_segment, expect_room, find_unfinished, tidy
from kbroker.tiered.partition import NOTHING
from kbroker.tiered.plan import CopyCandidate, plan_copies
from kbroker.tiered.ports import PartitionReader
from kbroker.tiered.tools import Held, new_remote
from wire.errors import KafkaError

if TYPE_CHECKING:
    from kbroker.tiered.manager import RemoteLogManager

logger = get_logger(__name__)

BACKOFF_MS: Final = 500
FOLLOWERS_WAIT: Final = 2
"""The intervals that a follower leaves to the leader of a removed topic, before it deletes what is left in the tier."""


class PartitionTasks:
    """The two tasks of one tiered partition.

    Shape  config is the log's config in the last round; ended is set when both tasks have ended
    Note   led: whether this broker led the partition at the last change of the metadata. `is_leader` is False for every
           removed partition
    """

    def __init__(self, manager: RemoteLogManager, partition: PartitionReader) -> None:
        self.manager = manager
        self.held = Held(partition, partition.remote or new_remote(partition))
        self.config = partition.log.config
        self.led = partition.is_leader
        self.scope = trio.CancelScope()
        self.ended = trio.Event()
        self._wanted = [trio.Event(), trio.Event()]
        self._rolled_for = NOTHING
        self._beginning = trio.Lock()
        self._errors = ["", ""]
        self._is_start_known = False
        self._is_given_up = False

    def wake(self) -> None:
        """Make both tasks start a round now."""
        for event in self._wanted:
            event.set()

    async def run(self) -> None:
        """Copy and expire until `scope` is cancelled."""
        with self.scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._keep, 0, self._copy_round)
                nursery.start_soon(self._keep, 1, self._expire_round)
        if not self.led:  # the first copies may be newer than the last round
            with suppress(RemoteStorageError):
                await self._register_follower()

    async def _keep(self, number: int, do_round: Callable[[], Awaitable[None]]) -> None:
        back_off = BackOff(BACKOFF_MS)
        while True:
            interval_ms = delay_ms = self.manager.tools.settings.remote_log_manager_task_interval_ms
            wanted = self._wanted[number] = trio.Event()
            async with self.manager.turns:
                await trio.lowlevel.checkpoint()
            try:
                await do_round()
            except (RemoteStorageError, KafkaError) as error:
                if isinstance(error, CustomMetadataTooLarge):
                    # Every other segment would fail the same way: stop copying until the next start or leadership.
                    self._is_given_up = True
                delay_ms = back_off.next_ms(interval_ms)
                self._report_error(number, error)
            else:
                back_off.reset()
                self.manager.outage.ended((self.held.partition.key, number))
                if not self._is_given_up:
                    self._note_error(number, "")
            if number == 0:
                self.held.note_lag()
            with trio.move_on_after(delay_ms / 1000):
                await wanted.wait()

    def _report_error(self, number: int, error: RemoteStorageError | KafkaError) -> None:
        """Record an error, and log it unless it equals the previous one."""
        message, partition, outage = str(error), self.held.partition, self.manager.outage
        who = partition.key, number
        if isinstance(error, RetriableRemoteStorageError):
            outage.failed(who, topic=partition.topic, partition=partition.index, error=message)
        elif isinstance(error, RemoteStorageError):
            outage.ended(who)
        if message == self._errors[number]:
            return
        self._note_error(number, message)
        write = logger.info if isinstance(error, RetriableRemoteStorageError) else logger.warning
        write("tier operation failed; will retry", topic=partition.topic, partition=partition.index, error=message)

    def _note_error(self, number: int, message: str) -> None:
        self._errors[number] = message
        self.held.remote.last_error = self._errors[0] or self._errors[1]

    async def _begin_round(self) -> bool:
        """Wait until the tier's metadata of the partition are read. Returns whether this broker leads the partition."""
        tools, held = self.manager.tools, self.held
        partition = held.partition
        self.config = partition.log.config
        held.remote.copies = self.config.is_copied_to_tier
        held.note_lag()
        with trio.move_on_after(tools.settings.remote_log_manager_task_interval_ms / 1000) as patience:
            with plugin_errors("wait_until_ready"):
                await tools.metadata.wait_until_ready(held.remote.topic_id_partition)
        if patience.cancelled_caught:
            raise RetriableRemoteStorageError("the tier's metadata of the partition are not read yet")
        if partition.log.is_closed:
            return False
        if held.make_out(tools.metadata):
            self._is_given_up = self._is_start_known = False
            find_unfinished(tools, held)
            tools.partitions.wake(partition.key)
        named = held.remote.topic_id_partition
        if not partition.is_leader:
            await self._register_follower()
            return False
        async with self._beginning:
            if not self._is_start_known:
                if not await attaching.complete(tools, held):
                    return False
                is_new = not self.manager.may_have_remote_part(named)
                # Before the topic was tiered, the first segment's name gave the log start offset. Now it does not.
                await expiring.find_log_start(tools, held, is_new=is_new)
                await self.manager.register(named)
                self._is_start_known = True
        return True

    async def _register_follower(self) -> None:
        """Register the partition if the tier has segments of it: if its topic is removed and the leader dies, this
        broker deletes them. Errors: RetriableRemoteStorageError.
        """
        named = self.held.remote.topic_id_partition
        if any(one.state is FINISHED for one in self.manager.tools.metadata.list_remote_log_segments(named)):
            await self.manager.register(named)

    # Copying

    async def _copy_round(self) -> None:
        leads = await self._begin_round()
        tools, held = self.manager.tools, self.held
        copies = leads and held.remote.copies and not self._is_given_up
        await tidy(tools, held, self._next_candidate() if copies else None)
        if not copies:
            return
        await self._roll_if_asked()
        while (candidate := self._next_candidate()) is not None:
            with self._counting_failures():
                await expect_room(tools, held, candidate.segment.size)
            await self._wait_for_quota(candidate.segment.size)
            async with self.manager.copiers:
                await tidy(tools, held, candidate)
                with self._counting_failures():
                    await copy_segment(tools, held, candidate)

    @contextmanager
    def _counting_failures(self) -> Iterator[None]:
        """Count a failed copy. Kafka counts only failures that it does not expect to end by themselves; with it, the
        counter stays at 0 while the store is down.
        """
        try:
            yield
        except (RemoteStorageError, KafkaError):
            self.held.remote.counters.copy_errors += 1
            raise

    def _next_candidate(self) -> CopyCandidate[Segment] | None:
        partition, remote = self.held.partition, self.held.remote
        log, stable = partition.log, partition.last_stable_offset
        self.held.correct(self.manager.tools.metadata)
        self.held.note_lag()
        highest = remote.highest_offset_in_remote_storage
        if log.is_closed or stable is None or highest is None or not log.config.is_copied_to_tier:
            return None
        from_offset = max(highest + 1, log.log_start_offset)
        found = plan_copies(tuple(log.segments), from_offset=from_offset, last_stable_offset=stable)
        return found[0] if found else None

    async def _roll_if_asked(self) -> None:
        """Roll the active segment if it may hold records that are older than the requested flush time."""
        log, tools = self.held.partition.log, self.manager.tools
        asked_ms = log.config.kbroker_remote_flush_timestamp_ms
        if asked_ms <= self._rolled_for or asked_ms > tools.env.timestamp_ms():
            return
        async with tools.partitions.locked(log):
            if not log.is_closed and await tools.env.run_blocking(log.may_hold_earlier_than, asked_ms):
                timestamp_ms = tools.env.timestamp_ms()
                await tools.env.run_blocking(lambda: log.roll(timestamp_ms=timestamp_ms))
        self._rolled_for = asked_ms

    async def _wait_for_quota(self, size: int) -> None:
        """Wait for a turn until the copy quota allows another copy, and charge it."""
        quota, remote = self.manager.copy_quota, self.held.remote
        remote.waits_for_quota = not quota.is_unlimited
        try:
            async with self.manager.copy_turn:
                await quota.admit(size, self.manager.env)
        finally:
            remote.waits_for_quota = False

    # Expiring

    async def _expire_round(self) -> None:
        if not await self._begin_round():
            return
        async with self.manager.expirers:
            await expiring.expire(self.manager.tools, self.held)


async def delete_partition(manager: RemoteLogManager, gone: TopicIdPartition, *, led: bool) -> bool:
    """Delete all data of a partition in the tier, because its topic was removed or is no longer tiered. Returns when
    everything is deleted. False if the reason is gone before that: the topic is tiered again (its leader deletes what
    is left of the old data as expired, and the tier may have new data), or another broker leads the partition.

    If the log stays, its log_start_offset rises to the local log's start before anything is deleted. If the topic was
    removed and this broker did not lead the partition, it first waits FOLLOWERS_WAIT intervals for the leader to do it.
    """
    back_off, last_error = BackOff(BACKOFF_MS), ""
    may_wait = not led
    stuck: set[RemoteLogSegmentId] = set()
    while manager.has_to_go(gone):
        tools = manager.tools
        try:
            partition = tools.partitions.find_partition((gone.topic, gone.partition))
            if partition is not None and partition.topic_id == gone.topic_id:
                await expiring.raise_log_start(tools, partition, None)
            if may_wait:
                may_wait = False
                await tools.env.sleep_ms(FOLLOWERS_WAIT * tools.settings.remote_log_manager_task_interval_ms)
                continue
            await _delete_all(manager, gone, stuck)
            with plugin_errors("on_stop_partitions"):
                await tools.metadata.on_stop_partitions([gone])
        except (RemoteStorageError, KafkaError) as error:
            if isinstance(error, RetriableRemoteStorageError):
                manager.outage.failed(gone, topic=gone.topic, partition=gone.partition, error=error)
            elif isinstance(error, RemoteStorageError):
                manager.outage.ended(gone)
            if str(error) != last_error:
                last_error = str(error)
                logger.info(
                    "a partition cannot be deleted from the tier yet",
                    topic=gone.topic,
                    partition=gone.partition,
                    error=error,
                )
            await tools.env.sleep_ms(back_off.next_ms(tools.settings.remote_log_manager_task_interval_ms))
        else:
            manager.outage.ended(gone)
            if not manager.has_to_go(gone):
                break
            logger.info("a partition was deleted from the tier", topic=gone.topic, partition=gone.partition)
            return True
    return False


async def _delete_all(manager: RemoteLogManager, gone: TopicIdPartition, stuck: set[RemoteLogSegmentId]) -> None:
    """Delete the segments of a partition, with as many threads as allowed, in turns with the expiry of others."""
    tools = manager.tools
    with plugin_errors("following the metadata"):
        await tools.metadata.on_partition_leadership_changes([gone], [])
        await tools.metadata.wait_until_ready(gone)
    if not manager.has_to_go(gone):
        return
    known = tools.metadata.list_remote_log_segments(gone)
    left = deque(sorted(known, key=lambda one: (one.remote_log_segment_id in stuck, one.start_offset)))
    failures: list[RemoteStorageError] = []

    async def delete_some() -> None:
        while left and not any(isinstance(one, RetriableRemoteStorageError) for one in failures):
            async with manager.expirers:
                if not left or not manager.has_to_go(gone):
                    return
                try:
                    await expiring.delete_segments(tools, manager.retired, [left.popleft()], stuck=stuck)
                except RemoteStorageError as error:
                    failures.append(error)

    async with trio.open_nursery() as nursery:
        for _ in range(min(len(left), math.ceil(manager.expirers.total_tokens))):
            nursery.start_soon(delete_some)
    if failures:
        raise failures[-1]
