"""Copies one segment to the tier.

    STARTED     its metadata is durable before the first byte is sent, so the leftovers of a crash can be found
    the bytes   the broker checks them first (see kbroker/storage/sealing.py), the storage manager while sending
    FINISHED    once this is durable, the segment may be read from the tier, or deleted locally

What happens if a copy does not get to its end:

- The broker crashes: an orphan in state STARTED is left. After the restart `tidy` deletes it, whether or not the broker
  still leads the partition.
- The broker loses its leadership: it deletes the copy.
- The store fails permanently: the broker deletes the copy at once. If that fails too, expiry retries the deletion until
  it succeeds. The next attempt gets a new id.
- The store is full or down: the broker retries the copy under the same id, so a long outage costs only one STARTED
  record. Nothing is deleted between such attempts, so a delayed deletion in the store cannot hit a later attempt, and a
  delayed write stores the same bytes. If the segment is no longer a candidate, `tidy` deletes its partial copy. If the
  store can report its free space, the broker asks before it writes STARTED.
- All bytes are stored, but the FINISHED record fails: it may have been written, and followers may rely on it. So the
  broker repeats the record and deletes nothing, as long as the partition's tasks run. Tasks that start later find the
  copy in the metadata: if it is FINISHED they keep it, otherwise `tidy` deletes it.

Source  RLMCopyTask.copyLogSegment of Apache Kafka 4.3.1; KAFKA-17428, KAFKA-19981
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from kbroker.runtime.event_log import get_logger
from kbroker.storage.housekeeping import flush_log
from kbroker.storage.leader_epoch import LeaderEpochs, format_epochs
from kbroker.storage.log import Log
from kbroker.storage.sealing import SealedSegment, seal
from kbroker.storage.segment import Segment
from kbroker.tiered import expiring
from kbroker.tiered.api import (
    DELETING,
    FINISHED,
    STARTED,
    IndexType,
    LogSegmentData,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteStorageError,
    RetriableRemoteStorageError,
)
from kbroker.tiered.calls import plugin_errors
from kbroker.tiered.plan import CopyCandidate
from kbroker.tiered.tools import Held, TierTools
from wire.errors import KafkaError

logger = get_logger(__name__)


class CustomMetadataTooLarge(RemoteStorageError):
    """The storage manager returned more than remote.log.metadata.custom.metadata.max.bytes. The partition is not copied
    any more.
    """


async def copy_segment(tools: TierTools, held: Held, candidate: CopyCandidate[Segment]) -> None:
    """Copy a closed segment; afterwards highest_offset_in_remote_storage is its end.

    Once STARTED is written, only the deadline of `tools.finishing` cancels the copy.
    Errors  RemoteStorageError (the partial copy is or will be deleted), RetriableRemoteStorageError, KafkaError (the
            local log cannot be read, or is damaged)
    """
    log, remote, leader_epoch = held.partition.log, held.remote, held.partition.leader_epoch
    sealed = await _sealed(tools, log, candidate)
    if sealed is None:
        return
    epochs = LeaderEpochs(one for one in log.leader_epochs.entries if one[1] < sealed.next_offset)
    epochs.complete_start(sealed.leader_epochs)
    attempt = held.attempt
    metadata = RemoteLogSegmentMetadata(
        remote_log_segment_id=RemoteLogSegmentId(remote.topic_id_partition, tools.env.new_uuid()),
        start_offset=sealed.base_offset,
        end_offset=sealed.next_offset - 1,
        max_timestamp_ms=sealed.max_timestamp_ms,
        broker_id=tools.broker_id,
        event_timestamp_ms=tools.env.timestamp_ms(),
        segment_leader_epochs=sealed.leader_epochs,
        segment_size_in_bytes=sealed.size,
        txn_index_empty=sealed.transaction_index is None,
    )
    if attempt is not None:
        repeated = replace(
            metadata,
            remote_log_segment_id=attempt.remote_log_segment_id,
            event_timestamp_ms=attempt.event_timestamp_ms,
        )
        if repeated != attempt:
            held.attempt = None
            await tidy(tools, held, candidate)
        else:
            metadata = attempt
    data = LogSegmentData(
        log_segment=sealed.log,
        offset_index=sealed.offset_index,
        time_index=sealed.time_index,
        transaction_index=sealed.transaction_index,
        producer_snapshot_index=sealed.producer_snapshot,
        leader_epoch_index=format_epochs(epochs.entries).encode(),
    )
    with tools.finishing():
        await _copy(tools, held, metadata, data, leader_epoch)
    await tools.env.sleep_ms(0)  # a checkpoint: a cancellation during the shielded copy takes effect here


async def _sealed(tools: TierTools, log: Log, candidate: CopyCandidate[Segment]) -> SealedSegment | None:
    """The segment, durable and checked; None if it was deleted in between.

    It must be durable locally first. Otherwise a power loss could remove records from the log that the tier has, and
    the log would continue with other records at these offsets.
    """
    segment, next_offset = candidate
    try:
        plan = None if log.recovery_point >= next_offset else log.plan_flush(below_active=True)
        if plan is not None:
            await flush_log(tools.env, tools.partitions, log, plan)
        async with tools.partitions.kept(log):
            if log.is_closed or segment.is_gone:
                return None
            return await tools.copy_threads.run_blocking(
                lambda: seal(log, segment, next_offset=next_offset, run=tools.run)
            )
    except KafkaError:
        if log.is_closed or segment.is_gone:
            return None
        raise


async def _copy(
    tools: TierTools, held: Held, metadata: RemoteLogSegmentMetadata, data: LogSegmentData, leader_epoch: int
) -> None:
    counters = held.remote.counters
    if metadata is not held.attempt:
        if not _leads(held, leader_epoch):
            return None
        held.unfinished.add(metadata.remote_log_segment_id)
        with plugin_errors("add_remote_log_segment_metadata"):
            await tools.metadata.add_remote_log_segment_metadata(metadata)
    held.attempt = None
    if not _leads(held, leader_epoch):
        return await _clean_up(tools, held, metadata)
    counters.copy_requests += 1
    try:
        custom_metadata = await tools.copy_threads.run_blocking(_copy_data, tools, metadata, data)
        limit = tools.settings.remote_log_metadata_custom_metadata_max_bytes
        if custom_metadata is not None and len(custom_metadata) > limit:
            metadata = replace(metadata, custom_metadata=custom_metadata)
            raise CustomMetadataTooLarge(f"{len(custom_metadata)} bytes of custom metadata, {limit} are allowed")
    except RetriableRemoteStorageError:
        held.attempt = metadata
        raise
    except RemoteStorageError as error:
        with suppress(RetriableRemoteStorageError):
            await _clean_up(tools, held, metadata, error)
        raise
    if not _leads(held, leader_epoch):
        return await _clean_up(tools, held, metadata)
    held.stored = metadata, custom_metadata
    return await _finish(tools, held)


def _leads(held: Held, leader_epoch: int) -> bool:
    """Whether this broker still leads the partition in the epoch in which a copy began."""
    return held.partition.is_leader and held.partition.leader_epoch == leader_epoch


async def _finish(tools: TierTools, held: Held) -> None:
    """Record that the stored copy is finished. It is repeated until it is known to be recorded, or until another broker
    has deleted the copy.

    Errors  RemoteStorageError
    """
    assert held.stored is not None
    metadata, custom_metadata = held.stored
    try:
        await tools.record(metadata, FINISHED, custom_metadata)
    except RetriableRemoteStorageError:
        raise
    except RemoteStorageError as error:
        known = tools.metadata.list_remote_log_segments(held.remote.topic_id_partition)
        states = {one.remote_log_segment_id: one.state for one in known}
        if states.get(metadata.remote_log_segment_id, DELETING) is not DELETING:
            raise  # a plug-in may have failed after it recorded the state
        # The leader gave the copy up for lost, perhaps before all objects were stored.
        failure = error
        try:
            await tools.delete_threads.run_blocking(expiring.delete_data, tools, metadata)
        except RetriableRemoteStorageError:
            raise
        except RemoteStorageError as other:
            failure = other
        held.stored = None
        held.unfinished.discard(metadata.remote_log_segment_id)
        raise failure from None
    held.stored = None
    held.unfinished.discard(metadata.remote_log_segment_id)
    held.remote.counters.copy_bytes += metadata.segment_size_in_bytes
    if held.remote.highest_offset_in_remote_storage is not None and held.partition.is_leader:
        held.note_copied(metadata.end_offset)


def _copy_data(tools: TierTools, metadata: RemoteLogSegmentMetadata, data: LogSegmentData) -> bytes | None:
    with plugin_errors("copy_log_segment_data"):
        return tools.storage.copy_log_segment_data(metadata, data)


async def _clean_up(
    tools: TierTools, held: Held, metadata: RemoteLogSegmentMetadata, why: RemoteStorageError | None = None
) -> None:
    """Delete a partial copy. Errors: RetriableRemoteStorageError; after other errors expiry retries."""
    try:
        await expiring.delete_segment(tools, held.remote.counters, metadata)
    except RetriableRemoteStorageError:
        raise
    except RemoteStorageError as error:
        logger.info(
            "cannot delete the leftovers of a failed copy; will retry",
            topic=held.partition.topic,
            partition=held.partition.index,
            segment=metadata.remote_log_segment_id.id,
            why=why,
            error=error,
        )
    held.unfinished.discard(metadata.remote_log_segment_id)


async def expect_room(tools: TierTools, held: Held, size_in_bytes: int) -> None:
    """Check whether the store has room for a segment, before the segment is read and sent.

    Errors  RetriableRemoteStorageError while it has no space, or does not answer
    """
    expect = getattr(tools.storage, "expect_room", None)
    if expect is not None:
        with plugin_errors("expect_room"):
            await tools.copy_threads.run_blocking(expect, size_in_bytes)
    elif held.attempt is not None:
        await tools.copy_threads.run_blocking(_expect_answer, tools, held.attempt)


def _expect_answer(tools: TierTools, attempt: RemoteLogSegmentMetadata) -> None:
    try:
        with plugin_errors("fetch_index"):
            tools.storage.fetch_index(attempt, IndexType.LEADER_EPOCH)
    except RetriableRemoteStorageError:
        raise
    except RemoteStorageError:
        pass  # most likely the index does not exist yet; the store has answered


def find_unfinished(tools: TierTools, held: Held) -> None:
    """Find the unfinished copies of an earlier process of this broker in the metadata."""
    known = tools.metadata.list_remote_log_segments(held.remote.topic_id_partition)
    held.unfinished |= {
        one.remote_log_segment_id for one in known if one.state is STARTED and one.broker_id == tools.broker_id
    }


async def tidy(tools: TierTools, held: Held, candidate: CopyCandidate[Segment] | None) -> None:
    """Delete the partial copies of this broker before another copy starts, and finish a stored one.

    `attempt` is kept while its segment is the next candidate.
    Errors  RetriableRemoteStorageError: nothing is copied while leftovers cannot be deleted; as _finish
    """
    if held.stored is not None:
        await _finish(tools, held)
    if not held.unfinished:
        return
    known = tools.metadata.list_remote_log_segments(held.remote.topic_id_partition)
    left = [one for one in known if one.remote_log_segment_id in held.unfinished]
    held.unfinished = {one.remote_log_segment_id for one in left}
    attempt = held.attempt
    is_wanted = attempt is not None and candidate is not None and candidate.segment.base_offset == attempt.start_offset
    if not is_wanted or attempt not in left:
        held.attempt = None
    for one in left:
        if one == held.attempt:
            continue
        if one.state is FINISHED:
            # The copy was finished, but the broker got no confirmation.
            held.unfinished.discard(one.remote_log_segment_id)
            if held.partition.is_leader:
                held.note_copied(one.end_offset)
        else:
            await _clean_up(tools, held, one)
