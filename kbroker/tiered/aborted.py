"""Finds the aborted transactions of a range of records in the tier, from the tier's transaction indexes.

A marker may be in any later segment, so the search continues until an index shows that all transactions of the range
are decided: first in the tier, then in the local segments after it. The metadata tell which segments of the tier have
no transaction index; they are skipped. If both tiers hold a segment, one of the two indexes is enough.

Source  KIP-405, KIP-1058; KAFKA-16780, KAFKA-17801, redpanda#7819
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from kbroker.runtime.net_ports import Env
from kbroker.storage.transaction_index import AbortedTransaction
from kbroker.tiered.api import RemoteLogMetadataManager, RemoteLogSegmentMetadata
from kbroker.tiered.indexes import RemoteIndexes
from kbroker.tiered.ports import PartitionReader


async def aborted_between(
    metadata: RemoteLogMetadataManager,
    indexes_of: Callable[[RemoteLogSegmentMetadata], Awaitable[RemoteIndexes]],
    partition: PartitionReader,
    first_offset: int,
    end_offset: int,
    *,
    env: Env,
) -> tuple[AbortedTransaction, ...]:
    """The aborted transactions with records in [first_offset, end_offset), sorted by first_offset.

    Errors  RemoteStorageError; KAFKA_STORAGE_ERROR from the local segments
    """
    remote, log = partition.remote, partition.log
    if remote is None:
        return ()
    found: set[AbortedTransaction] = set()
    at = first_offset
    while True:
        while at < log.local_log_start_offset:
            epoch = log.leader_epochs.epoch_for_offset(at)
            _, epoch_end = log.leader_epochs.end_offset_for(epoch, log.log_end_offset)
            if epoch_end <= at:
                break
            segment = metadata.next_segment_with_txn_index(remote.topic_id_partition, epoch, at)
            if segment is None or segment.start_offset >= epoch_end:
                at = epoch_end
                continue
            is_decided = False
            for one in (await indexes_of(segment)).aborted_transactions():
                if one.last_offset >= first_offset and one.first_offset < end_offset:
                    found.add(one)
                is_decided = is_decided or one.last_stable_offset >= end_offset
            if is_decided:
                return _in_order(found)
            at = min(segment.end_offset + 1, epoch_end)
        local_start = log.local_log_start_offset
        found.update(await env.run_blocking(log.aborted_between, first_offset, end_offset))
        if log.local_log_start_offset == local_start:
            return _in_order(found)
        # Retention has removed segments since; their markers are in the tier.


def _in_order(found: set[AbortedTransaction]) -> tuple[AbortedTransaction, ...]:
    return tuple(sorted(found, key=lambda one: one.first_offset))
