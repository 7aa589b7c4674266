"""What a follower has to know of records that only the tier has: their leader epochs and their producers.

A follower cannot copy records from the leader that the leader has deleted locally. It starts after the remote segment
that ends where the leader's local log begins. The segment was stored together with the leader epochs and the producer
state at its end; with these the follower continues as if it had copied everything before.

Source  KIP-405; TierStateMachine of Apache Kafka 4.3.1
"""

from __future__ import annotations

from typing import Final, NamedTuple

from kbroker.storage.leader_epoch import LeaderEpochs, parse_epochs
from kbroker.storage.producer_state import ProducerEntry, parse_snapshot
from kbroker.tiered.api import (
    IndexType,
    RemoteLogSegmentMetadata,
    RemoteStorageError,
    RemoteStorageManager,
    RetriableRemoteStorageError,
)
from kbroker.tiered.calls import plugin_errors
from kbroker.tiered.layout import AttachedObjects
from kbroker.tiered.ports import PartitionReader
from kbroker.tiered.tools import TierTools, id_of

MAX_INDEX_BYTES: Final = 64 << 20
"""A snapshot of 100,000 producers, kbroker's limit, has 23 MB."""


class AuxiliaryState(NamedTuple):
    """The state at the end of a remote segment; the first local record has the offset next_offset."""

    next_offset: int
    leader_epochs: list[tuple[int, int]]
    producers: list[ProducerEntry]


async def auxiliary_state(
    tools: TierTools, partition: PartitionReader, leader_epoch: int, offset: int
) -> AuxiliaryState:
    """The state after the remote segment that contains `offset` as written in `leader_epoch`.

    Errors  RemoteStorageError; RetriableRemoteStorageError while the metadata of the segment are not known here
    """
    named = id_of(partition)
    with plugin_errors("remote_log_segment_metadata"):
        if not tools.metadata.is_ready(named):
            raise RetriableRemoteStorageError("the tier's metadata of the partition are not read yet")
        segment = tools.metadata.remote_log_segment_metadata(named, leader_epoch, offset)
    if segment is None:
        raise RetriableRemoteStorageError(f"the tier's metadata have no segment with {offset=} of {leader_epoch=} yet")
    found = await tools.follower_threads.run_blocking(state_after, tools.storage, segment)
    epochs = LeaderEpochs(found.leader_epochs)
    if epochs.epoch_for_offset(offset) != leader_epoch:
        raise RemoteStorageError(
            f"{segment.remote_log_segment_id}: {leader_epoch=} at {offset=} is not in {epochs.entries}"
        )
    return found


def state_after(storage: RemoteStorageManager, segment: RemoteLogSegmentMetadata) -> AuxiliaryState:
    """The state at the end of a segment. Blocking. Errors: RemoteStorageError."""
    end_offset = segment.end_offset + 1
    attached = AttachedObjects.of(segment)
    try:
        epochs = parse_epochs(_index(storage, segment, IndexType.LEADER_EPOCH).decode())
        if attached is None:
            producers = parse_snapshot(_index(storage, segment, IndexType.PRODUCER_SNAPSHOT))
        else:
            # The ids are those of another cluster: here they belong to other producers. Only open transactions matter,
            # in the first epoch of these ids, so that the markers that abort them do not fence the others.
            producers = [ProducerEntry(one, producer_epoch=0, current_txn_first_offset=at) for one, at in attached.open]
    except ValueError as error:
        raise RemoteStorageError(f"{segment.remote_log_segment_id}: {error}") from error
    for entry in producers:
        entry.heard_ms = segment.event_timestamp_ms  # the copy began after the last batch had arrived
    return AuxiliaryState(end_offset, [one for one in epochs if one[1] < end_offset], producers)


def _index(storage: RemoteStorageManager, segment: RemoteLogSegmentMetadata, index_type: IndexType) -> bytes:
    with plugin_errors("fetch_index"):
        data = storage.fetch_index(segment, index_type)
    if len(data) > MAX_INDEX_BYTES:
        raise RemoteStorageError(f"{segment.remote_log_segment_id}: {index_type.name} has {len(data)} bytes")
    return data
