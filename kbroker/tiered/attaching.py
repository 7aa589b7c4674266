"""Gives the log of an attached partition the state at the end of the attached segments.

`kbroker tier attach` creates a topic, and then records segments that another cluster has stored as finished remote
segments of the topic's partitions. Their custom metadata name the objects (see `layout.AttachedObjects`). The topic's
setting kbroker.attached.end.offsets says where each partition ends; the records of the last segment are written last.

Until the log of a partition reaches that end, its leader refuses to append. Once the metadata have the last segment,
the leader starts its empty log there, with the leader epochs that were stored with the segment. Followers then start in
the same way, as after any leader that has deleted its local segments (`auxiliary_state.py`).

Producers are not taken over, because another cluster gave them their ids. Transactions that are open at the end are
aborted: no coordinator knows them.
"""

from __future__ import annotations

from typing import Final

from kbroker.runtime.event_log import get_logger
from kbroker.runtime.retrying import BackOff
from kbroker.storage.control_records import marker_batch
from kbroker.storage.housekeeping import flush_log
from kbroker.tiered.api import FINISHED, RemoteLogSegmentMetadata
from kbroker.tiered.auxiliary_state import state_after
from kbroker.tiered.plan import Lineage, lowest_remote_offset
from kbroker.tiered.tools import Held, TierTools

POLL_MS: Final = 50
MAX_POLL_MS: Final = 1_000
LATE_MS: Final = 60_000

logger = get_logger(__name__)


async def complete(tools: TierTools, held: Held) -> bool:
    """Complete the log of a partition that this broker leads; immediately True if it is not attached, or complete.
    False if the log was closed or the leadership ended.

    Errors  RemoteStorageError, KafkaError; the caller retries
    """
    partition, log = held.partition, held.partition.log
    end = log.config.attached_end(partition.index)
    leader_epoch = partition.leader_epoch
    back_off = BackOff(POLL_MS)

    def is_current() -> bool:
        return partition.is_leader and partition.leader_epoch == leader_epoch and not log.is_closed

    if not end or (log.log_end_offset >= end and _first_open(held, end) is None):
        return True
    began_ms, is_late = tools.env.now_ms(), False
    while log.log_end_offset < end and (last := _last_segment(tools, held, end)) is None:
        await tools.env.sleep_ms(back_off.next_ms(MAX_POLL_MS))
        if not is_late and tools.env.now_ms() - began_ms >= LATE_MS:
            is_late = True
            logger.warning(
                "an attached partition waits for the metadata of its last segment; if `kbroker tier attach` was "
                "interrupted, delete the topic and attach it again",
                topic=partition.topic,
                partition=partition.index,
                end_offset=end,
            )
        if not is_current():
            return False
    state = None
    if log.log_end_offset < end:
        assert last is not None
        state = await tools.delete_threads.run_blocking(state_after, tools.storage, last)
        known = tools.metadata.list_remote_log_segments(held.remote.topic_id_partition)
        lowest = lowest_remote_offset(known, Lineage(state.leader_epochs, log_end_offset=end))
    async with tools.partitions.locked(log):  # no other append comes before the markers
        if not is_current():
            return False
        if state is not None:
            async with tools.partitions.kept(log):
                await tools.env.run_blocking(
                    lambda: log.truncate_fully_and_start_at(
                        end, log_start_offset=lowest, epochs=state.leader_epochs, producers=state.producers
                    )
                )
            log.is_log_start_known = True
            log.assign_epoch(leader_epoch)
        aborted = await _abort_transactions(tools, held, end)
        partition.on_append()
    plan = log.plan_flush()
    if plan is not None:
        await flush_log(tools.env, tools.partitions, log, plan)
    held.remote.highest_offset_in_remote_storage = None  # it was computed for an empty log
    held.make_out(tools.metadata)
    tools.partitions.wake(partition.key)
    logger.info(
        "attached a partition",
        topic=partition.topic,
        partition=partition.index,
        log_start_offset=log.log_start_offset,
        end_offset=end,
        aborted_transactions=aborted,
        leader_epoch=leader_epoch,
    )
    return True


def _last_segment(tools: TierTools, held: Held, end: int) -> RemoteLogSegmentMetadata | None:
    """The segment that the attached part ends with; None until the metadata have it, and so all others."""
    known = tools.metadata.list_remote_log_segments(held.remote.topic_id_partition)
    return next((one for one in known if one.state is FINISHED and one.end_offset + 1 == end), None)


def _first_open(held: Held, end: int) -> int | None:
    """The producer of a transaction that was open at the end of the attached part, and still is."""
    producers = held.partition.log.producers.producers
    return next((each for each, one in producers.items() if 0 <= one.current_txn_first_offset < end), None)


async def _abort_transactions(tools: TierTools, held: Held, end: int) -> int:
    """Append an abort marker for each transaction that was open at the end; returns how many there were."""
    partition, log, count = held.partition, held.partition.log, 0
    while (producer_id := _first_open(held, end)) is not None:
        timestamp_ms = tools.env.timestamp_ms()
        batch = marker_batch(producer_id, 0, is_commit=False, coordinator_epoch=0, timestamp_ms=timestamp_ms)
        plan = log.plan_marker(
            batch, leader_epoch=partition.leader_epoch, timestamp_ms=timestamp_ms, transaction_version=0
        )
        await tools.env.run_blocking(log.write, plan)
        log.commit(plan)
        count += 1
    return count
