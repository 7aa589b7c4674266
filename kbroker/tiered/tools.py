"""What every step of the tier works with: the two managers, the partitions, threads and the clock."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol
from uuid import UUID

from kbroker.config.tier import TierSettings
from kbroker.runtime.cautious_clock import CautiousClock
from kbroker.runtime.net_ports import Env, Threads
from kbroker.runtime.worker import Runner
from kbroker.tiered.api import (
    RemoteLogMetadataManager,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteStorageManager,
    TopicIdPartition,
)
from kbroker.tiered.partition import NOTHING, RemotePartition
from kbroker.tiered.plan import Lineage, copy_lag, covered_end, highest_remote_offset
from kbroker.tiered.ports import PartitionReader, PartitionWriter


class Indexes(Protocol):
    """What is kept here of the indexes of remote segments."""

    def remove(self, segment_id: UUID) -> None:
        """Forget those of a segment that is being deleted. Blocking."""
        ...


class Finishing(Protocol):
    """Gives what must not be cut off halfway the time it needs, until the tier is stopped."""

    def __call__(self) -> AbstractContextManager[object]: ...


@dataclass(slots=True)
class TierTools:
    """See the module's text.

    Shape  copy_threads and delete_threads are threads for calls of the storage manager: neither waits for the other,
           nor appends for either
    Shape  run does in those threads what takes the processor, perhaps in another process
    Shape  clock is the wall clock for what destroys
    """

    env: Env
    settings: TierSettings
    storage: RemoteStorageManager
    metadata: RemoteLogMetadataManager
    indexes: Indexes
    partitions: PartitionWriter
    broker_id: int
    copy_threads: Threads
    run: Runner
    delete_threads: Threads
    clock: CautiousClock
    finishing: Finishing


@dataclass(slots=True, eq=False)
class Held:
    """A tiered partition that this broker holds, with what the tier's tasks know of it.

    Shape  copying are the segments that are being copied now (at most one); leader_epoch is the one in which `remote`
           was made out
    Shape  unfinished are copies of this broker that ended halfway: what is there of them has to go before another one
           begins; is_unfinished_known says whether those of earlier processes are among them
    Shape  attempt is the unfinished copy that is repeated under its own id, so that a store that is full for long costs
           no records
    Note   stuck are remote segments whose deletion failed last time: others have their turn first
    """

    partition: PartitionReader
    remote: RemotePartition
    leader_epoch: int = -1
    is_unfinished_known: bool = False
    copying: set[RemoteLogSegmentId] = field(default_factory=set)
    unfinished: set[RemoteLogSegmentId] = field(default_factory=set)
    attempt: RemoteLogSegmentMetadata | None = None
    stuck: set[RemoteLogSegmentId] = field(default_factory=set)

    def note_copied(self, end_offset: int) -> None:
        """The tier has everything up to this offset."""
        remote = self.remote
        remote.highest_offset_in_remote_storage = max(end_offset, remote.highest_offset_in_remote_storage or NOTHING)
        self.note_lag()

    def note_lag(self) -> None:
        """Find out what copying is behind, from what is there now; nothing where nothing is to be copied."""
        if not self.remote.copies:
            self.remote.copy_lag_bytes = self.remote.copy_lag_segments = 0
            return
        log, highest = self.partition.log, self.remote.highest_offset_in_remote_storage
        from_offset = max((NOTHING if highest is None else highest) + 1, log.log_start_offset)
        lag = copy_lag(tuple(log.segments), from_offset=from_offset)
        self.remote.copy_lag_bytes, self.remote.copy_lag_segments = lag

    def make_out(self, metadata: RemoteLogMetadataManager) -> bool:
        """Learn from the metadata, which has been read, what the tier has of the log: a leader once in each epoch,
        since it knows what it copies, any other each time. Whether the leader epoch is another one than last time.
        """
        partition, remote = self.partition, self.remote
        is_new = remote.highest_offset_in_remote_storage is None or self.leader_epoch != partition.leader_epoch
        if is_new:
            self.attempt = None  # another broker may have deleted it
        if not is_new and partition.is_leader:
            return False
        log = partition.log
        entries = log.leader_epochs.entries
        highest = highest_remote_offset(
            lambda epoch: metadata.highest_offset_for_epoch(remote.topic_id_partition, epoch),
            entries,
            log_end_offset=log.log_end_offset,
        )
        if highest >= log.local_log_start_offset:
            # What was once copied may have been deleted there, though it is still here: after the topic left the tier
            # and came back. Local segments may go only where the tier really has them.
            lineage = Lineage(entries, log_end_offset=log.log_end_offset)
            known = metadata.list_remote_log_segments(remote.topic_id_partition)
            highest = min(highest, covered_end(known, lineage, start=log.local_log_start_offset))
        remote.highest_offset_in_remote_storage = highest
        self.leader_epoch = partition.leader_epoch
        self.note_lag()
        return is_new


def id_of(partition: PartitionReader) -> TopicIdPartition:
    """The partition as the tier names it."""
    return TopicIdPartition(partition.topic_id, partition.topic, partition.index)


def new_remote(partition: PartitionReader) -> RemotePartition:
    """What is known of a partition before its metadata has been read."""
    return RemotePartition(id_of(partition), copies=partition.log.config.is_copied_to_tier)
