"""Deletes segments from the tier.

    log_start_offset   rises first and is made durable; waiters are woken: no reader is sent to a segment being deleted
    in-sync replicas   must have reached it too: the next leader would otherwise look for what was deleted
    DELETE_STARTED     is durable, so the deletion will be finished in any case
    the objects        may be gone already: deleting is repeated until it succeeds once
    DELETE_FINISHED    nothing of the segment is left

A segment that cannot be deleted does not block others: it is retried in the next round, after them. If the store does
not answer at all, the round ends after a few attempts.

Source  RLMExpirationTask of Apache Kafka 4.3.1; KAFKA-15352, KAFKA-16511, KAFKA-17428
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

from kbroker.runtime.event_log import get_logger
from kbroker.storage.retention import local_limits
from kbroker.tiered.api import (
    DELETED,
    DELETING,
    FINISHED,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
    RemoteResourceNotFound,
    RemoteStorageError,
    RetriableRemoteStorageError,
)
from kbroker.tiered.calls import plugin_errors
from kbroker.tiered.layout import is_attached
from kbroker.tiered.partition import NOTHING, TierCounters
from kbroker.tiered.plan import (
    DoomedSegment,
    ExpiryPlan,
    ExpiryReason,
    Lineage,
    local_only_bytes,
    lowest_remote_offset,
    plan_expiry,
)
from kbroker.tiered.ports import PartitionReader
from kbroker.tiered.tools import Held, TierTools

logger = get_logger(__name__)

HORIZON_MS: Final = 3_600_000
"""An unfinished copy that another broker started this long ago is considered abandoned."""

INLINE_SEGMENTS: Final = 500

PATIENCE: Final = 3
"""The round ends after this many consecutive deletions that the store did not answer."""


async def plan_expiry_of(tools: TierTools, held: Held) -> ExpiryPlan:
    """The segments to delete now; also updates the sizes of `held.remote`."""
    partition, remote = held.partition, held.remote
    log, config = partition.log, partition.log.config
    highest = remote.highest_offset_in_remote_storage
    timestamp_ms = tools.clock.timestamp_ms()
    began_ms = tools.env.now_ms()

    def is_abandoned(one: RemoteLogSegmentMetadata) -> bool:
        return one.broker_id == tools.broker_id or timestamp_ms - one.event_timestamp_ms > HORIZON_MS

    known = tools.metadata.list_remote_log_segments(remote.topic_id_partition)
    decide = partial(
        plan_expiry,
        known,
        Lineage(log.leader_epochs.entries, log_end_offset=log.log_end_offset),
        log_start_offset=log.log_start_offset,
        local_bytes=local_only_bytes(tuple(log.segments), highest_remote=NOTHING if highest is None else highest),
        retention_ms=config.retention_ms if config.is_deleting else -1,
        retention_bytes=config.retention_bytes if config.is_deleting else -1,
        timestamp_ms=timestamp_ms,
        copying=frozenset(held.unfinished),  # of the same time as `known`: a copy may end while a thread decides
        is_abandoned=is_abandoned,
        leased_from=config.held_from(partition.index, timestamp_ms),
    )
    # This takes tens of milliseconds for ten thousand segments: too long for the event loop.
    plan = decide() if len(known) < INLINE_SEGMENTS else await tools.env.run_blocking(decide)
    remote.remote_size_bytes, remote.remote_segments = plan.size_bytes, plan.segments
    remote.delete_lag_bytes, remote.delete_lag_segments = plan.lag
    remote.size_computation_ms = tools.env.now_ms() - began_ms
    remote.retention_percent = _percent(plan.retained_bytes, config.retention_bytes)
    remote.local_retention_percent = _percent(log.size, local_limits(config, is_copied=True).bytes)
    return plan


def _percent(size: int, limit: int) -> int:
    """Rounded down as in Kafka; 0 for a limit of 0 or less."""
    return size * 100 // limit if limit > 0 else 0


async def expire(tools: TierTools, held: Held) -> None:
    """Run one round for a partition that this broker leads.

    Errors  KafkaError (log_start_offset could not be made durable: nothing is deleted), RemoteStorageError (the last
            one; all other segments were deleted)
    """
    plan = await plan_expiry_of(tools, held)
    if not plan.doomed:
        return
    if plan.log_start_offset is not None:
        await raise_log_start(tools, held.partition, plan.log_start_offset)
    elif any(one.reason in (ExpiryReason.LOG_START, ExpiryReason.EPOCHS) for one in plan.doomed):
        # Something else raised it; make it durable, so that a crash does not reset it.
        await tools.partitions.write_log_starts()
    doomed = [one for one in plan.doomed if _may_go(one, held)]
    expired = [one for one in doomed if one.metadata.state is FINISHED]
    if expired:
        logger.info(
            "segments will be deleted from the tier",
            topic=held.partition.topic,
            partition=held.partition.index,
            segments=len(expired),
            bytes=sum(one.metadata.segment_size_in_bytes for one in expired),
            reasons=", ".join(dict.fromkeys(one.reason for one in expired)),
        )
    remote = held.remote

    def note_deleted(one: RemoteLogSegmentMetadata) -> None:
        remote.delete_lag_bytes = max(0, remote.delete_lag_bytes - one.segment_size_in_bytes)
        remote.delete_lag_segments = max(0, remote.delete_lag_segments - 1)

    segments = [one.metadata for one in doomed]
    await delete_segments(tools, remote.counters, segments, stuck=held.stuck, on_deleted=note_deleted)


def _may_go(one: DoomedSegment, held: Held) -> bool:
    """Whether no reader can reach the segment, here or on the next leader. The log start offset may not pass the high
    watermark, and followers learn it with their next Fetch.
    """
    return one.metadata.state is not FINISHED or one.metadata.end_offset < held.partition.common_log_start_offset


async def raise_log_start(tools: TierTools, partition: PartitionReader, offset: int | None) -> None:
    """Raise the log start offset to at least `offset`, or to the local log's start, durably, and mark it as known.

    Errors  KAFKA_STORAGE_ERROR
    """
    log = partition.log
    async with tools.partitions.locked(log):
        if not log.is_closed:
            log.raise_log_start_offset(
                log.local_log_start_offset if offset is None else min(offset, partition.known_high_watermark)
            )
            log.is_log_start_known = True
    await tools.partitions.write_log_starts()
    tools.partitions.wake(partition.key)


async def find_log_start(tools: TierTools, held: Held, *, is_new: bool) -> None:
    """Determine the log start offset and make it durable.

    If it was not stored, because its checkpoint was lost, the log starts where its data in the tier start. A log that
    `is_new` in the tier starts at its local log: it was loaded as a tiered log after its topic became tiered, and
    cannot know that nothing of it is in the tier yet. For any other log the stored offset stays valid, whatever the
    tier's metadata says: expiry raises the log start offset before it deletes, so a gap is a loss and not expiry.
    Errors  KAFKA_STORAGE_ERROR
    """
    log = held.partition.log
    _tell_of_loss(tools, held)
    start = log.log_start_offset
    if start < log.local_log_start_offset:
        await _restore_epochs(tools, held)
        lineage = Lineage(log.leader_epochs.entries, log_end_offset=log.log_end_offset)
        known = tools.metadata.list_remote_log_segments(held.remote.topic_id_partition)
        lowest = lowest_remote_offset(known, lineage)
        highest = held.remote.highest_offset_in_remote_storage
        if lowest is None and (is_new or (highest != NOTHING and not log.is_log_start_known)):
            # The tier had nothing yet, or its data were deleted, for example when the topic left the tier.
            start = log.local_log_start_offset
        elif lowest is not None and not log.is_log_start_known:
            start = max(start, min(lowest, log.local_log_start_offset))
        elif lowest is None or lowest > start:
            # Readers of the missing part get an error.
            logger.error(
                "the tier's metadata lack segments that the partition should have",
                topic=held.partition.topic,
                partition=held.partition.index,
                log_start_offset=start,
                known_from=log.local_log_start_offset if lowest is None else lowest,
            )
    if start > log.log_start_offset or log.persisted_log_start_offset != log.log_start_offset:
        await raise_log_start(tools, held.partition, start)


def _tell_of_loss(tools: TierTools, held: Held) -> None:
    """Log an error if the log ends before the tier does: segments are made durable locally before they are copied."""
    known = tools.metadata.list_remote_log_segments(held.remote.topic_id_partition)
    last = max((one.end_offset for one in known if one.state is FINISHED), default=NOTHING)
    if last >= held.partition.log.log_end_offset:
        logger.error(
            "a log has lost records that the tier has; their offsets will be reused",
            topic=held.partition.topic,
            partition=held.partition.index,
            log_end_offset=held.partition.log.log_end_offset,
            tier_ends_at=last,
        )


async def _restore_epochs(tools: TierTools, held: Held) -> None:
    """Restore missing leader epochs from the metadata of remote segments if the log's own file of them was lost.
    Without them the remote segments would not be in the lineage.
    """
    log = held.partition.log
    first = log.leader_epochs.entries[:1]
    if first and first[0][1] <= log.log_start_offset:
        return
    known = tools.metadata.list_remote_log_segments(held.remote.topic_id_partition)
    finished = sorted((one for one in known if one.state is FINISHED), key=lambda one: one.start_offset)
    older = dict(entry for one in reversed(finished) for entry in reversed(one.segment_leader_epochs))
    if not first or not older:
        return
    async with tools.partitions.locked(log):
        if not log.is_closed:
            log.leader_epochs.complete_start(sorted(older.items()))
            # The highest remote offset was computed without them.
            held.remote.highest_offset_in_remote_storage = None
            held.make_out(tools.metadata)
            logger.warning(
                "leader epochs were restored from the tier", topic=held.partition.topic, partition=held.partition.index
            )


async def delete_segments(
    tools: TierTools,
    counters: TierCounters,
    doomed: Sequence[RemoteLogSegmentMetadata],
    *,
    stuck: set[RemoteLogSegmentId],
    on_deleted: Callable[[RemoteLogSegmentMetadata], None] = lambda _: None,
) -> None:
    """Delete segments one by one; those that are `stuck`, because the last attempt failed, come last.

    Errors  RemoteStorageError, the last one; all other segments were deleted
    """
    failure: RemoteStorageError | None = None
    unanswered = 0
    for one in sorted(doomed, key=lambda one: one.remote_log_segment_id in stuck):
        try:
            await delete_segment(tools, counters, one)
        except RemoteStorageError as error:
            failure = error
            stuck.add(one.remote_log_segment_id)
            unanswered = unanswered + 1 if isinstance(error, RetriableRemoteStorageError) else 0
            if unanswered == PATIENCE:
                break
        else:
            unanswered = 0
            stuck.discard(one.remote_log_segment_id)
            on_deleted(one)
    if failure is not None:
        raise failure


async def delete_segment(tools: TierTools, counters: TierCounters, metadata: RemoteLogSegmentMetadata) -> None:
    """Delete one segment. Errors: RemoteStorageError; the caller has to retry."""
    if metadata.state is not DELETING:
        await _update(tools, metadata, DELETING)
    counters.delete_requests += 1
    try:
        await tools.delete_threads.run_blocking(delete_data, tools, metadata)
    except RemoteStorageError as error:
        if not isinstance(error, RetriableRemoteStorageError):
            counters.delete_errors += 1
        raise
    await _update(tools, metadata, DELETED)


def delete_data(tools: TierTools, metadata: RemoteLogSegmentMetadata) -> None:
    """Delete the objects of a segment, unless they are attached. Blocking. Errors: RemoteStorageError."""
    tools.indexes.remove(metadata.remote_log_segment_id.id)
    if is_attached(metadata):
        return
    with plugin_errors("delete_log_segment_data"):
        tools.storage.delete_log_segment_data(metadata)


async def _update(tools: TierTools, metadata: RemoteLogSegmentMetadata, state: RemoteLogSegmentState) -> None:
    with suppress(RemoteResourceNotFound):  # another task or broker deleted the segment
        await tools.record(metadata, state, metadata.custom_metadata)
