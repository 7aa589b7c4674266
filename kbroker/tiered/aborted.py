"""What was aborted of a range of records in the tier, by the tier's own transaction indexes.

Records and the list of what was aborted of them come from one source: where both tiers hold a record, its marker is
looked for where the record was read. A marker may lie in any later segment, so the search goes on until an index says
that all transactions of the range were decided. Segments without an index are left out by their metadata.

Source  KIP-405, KIP-1058; KAFKA-16780, KAFKA-17801, redpanda#7819
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from kbroker.tiered.api import RemoteLogMetadataManager, RemoteLogSegmentMetadata
from kbroker.tiered.indexes import AbortedTransaction, RemoteIndexes
from kbroker.tiered.ports import PartitionReader


async def aborted_between(
    metadata: RemoteLogMetadataManager,
    indexes_of: Callable[[RemoteLogSegmentMetadata], Awaitable[RemoteIndexes]],
    partition: PartitionReader,
    first_offset: int,
    end_offset: int,
) -> tuple[AbortedTransaction, ...]:
    """The aborted transactions with records in [first_offset, end_offset), by their first_offset.

    Errors  RemoteStorageError
    """
    remote, log = partition.remote, partition.log
    if remote is None:
        return ()
    found: set[AbortedTransaction] = set()
    at = first_offset
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
            break
        at = min(segment.end_offset + 1, epoch_end)
    return tuple(sorted(found, key=lambda one: one.first_offset))
