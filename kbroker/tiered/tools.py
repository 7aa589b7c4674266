"""The shared tools of all tier operations: the two managers, the partitions, threads and the clock."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from kbroker.config.tier_settings import TierSettings
from kbroker.runtime.cautious_clock import CautiousClock
from kbroker.runtime.net_ports import Env, Threads
from kbroker.runtime.ports import Runner
from kbroker.tiered.api import (
    RemoteLogMetadataManager,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
    RemoteStorageManager,
    TopicIdPartition,
)
from kbroker.tiered.calls import plugin_errors
from kbroker.tiered.index_cache import RemoteIndexCache
from kbroker.tiered.partition import NOTHING, RemotePartition
from kbroker.tiered.plan import Lineage, copy_lag, covered_end, highest_remote_offset
from kbroker.tiered.ports import PartitionReader, PartitionWriter


@dataclass(slots=True)
class TierTools:
    """See the module's docstring.

    Shape  copy_threads, delete_threads and follower_threads are separate threads for calls of the storage manager: none
           waits for the others, and appends wait for none
    Shape  run executes CPU-bound work of those threads, perhaps in another process
    Shape  clock is the wall clock for deletions; finishing shields an operation from cancellation until the tier stops
    """

    env: Env
    settings: TierSettings
    storage: RemoteStorageManager
    metadata: RemoteLogMetadataManager
    indexes: RemoteIndexCache
    partitions: PartitionWriter
    broker_id: int
    copy_threads: Threads
    run: Runner
    delete_threads: Threads
    follower_threads: Threads
    clock: CautiousClock
    finishing: Callable[[], AbstractContextManager[object]]

    async def record(
        self, metadata: RemoteLogSegmentMetadata, state: RemoteLogSegmentState, custom_metadata: bytes | None
    ) -> None:
        """Record a later state of a segment. Errors: RemoteStorageError, as update_remote_log_segment_metadata."""
        update = RemoteLogSegmentMetadataUpdate(
            remote_log_segment_id=metadata.remote_log_segment_id,
            event_timestamp_ms=self.env.timestamp_ms(),
            state=state,
            broker_id=self.broker_id,
            custom_metadata=custom_metadata,
        )
        with plugin_errors("update_remote_log_segment_metadata"):
            await self.metadata.update_remote_log_segment_metadata(update)


@dataclass(slots=True, eq=False)
class Held:
    """A tiered partition on this broker, with the state of the tier's tasks.

    Shape  leader_epoch is the epoch in which `remote` was computed
    Shape  unfinished are the copy in progress and failed copies of this broker, whose data must be deleted before
           another copy starts
    Shape  attempt is the unfinished copy that is retried under its own id, so that a store that is full for a long time
           costs no further records
    Shape  stored is a copy of which all objects are stored, with its custom metadata, until its FINISHED record is
           known to be written or refused; it is lost when the partition's tasks end
    Note   stuck are remote segments whose last deletion failed: other segments are deleted first
    """

    partition: PartitionReader
    remote: RemotePartition
    leader_epoch: int = -1
    unfinished: set[RemoteLogSegmentId] = field(default_factory=set)
    attempt: RemoteLogSegmentMetadata | None = None
    stored: tuple[RemoteLogSegmentMetadata, bytes | None] | None = None
    stuck: set[RemoteLogSegmentId] = field(default_factory=set)

    def note_copied(self, end_offset: int) -> None:
        """Record that the tier has everything up to this offset."""
        remote = self.remote
        remote.highest_offset_in_remote_storage = max(end_offset, remote.highest_offset_in_remote_storage or NOTHING)
        self.note_lag()

    def note_lag(self) -> None:
        """Compute the copy lag from the current segments; 0 if copying is disabled."""
        if not self.remote.copies:
            self.remote.copy_lag_bytes = self.remote.copy_lag_segments = 0
            return
        log, highest = self.partition.log, self.remote.highest_offset_in_remote_storage
        from_offset = max((NOTHING if highest is None else highest) + 1, log.log_start_offset)
        lag = copy_lag(tuple(log.segments), from_offset=from_offset)
        self.remote.copy_lag_bytes, self.remote.copy_lag_segments = lag

    def make_out(self, metadata: RemoteLogMetadataManager) -> bool:
        """Compute from the metadata, which must have been read, what the tier has of the log. A leader does it once per
        epoch, because it makes the copies itself, and again if the metadata say something else; a follower does it each
        time. Returns whether the leader epoch has changed.
        """
        partition, remote = self.partition, self.remote
        is_new = remote.highest_offset_in_remote_storage is None or self.leader_epoch != partition.leader_epoch
        if is_new:
            self.attempt = None  # another broker may have deleted it
        if not is_new and partition.is_leader and not self._is_refuted_by(metadata):
            return False
        self._compute(metadata)
        self.leader_epoch = partition.leader_epoch
        return is_new

    def correct(self, metadata: RemoteLogMetadataManager) -> None:
        """As `make_out`, within a leader epoch."""
        if self.remote.highest_offset_in_remote_storage is not None and self._is_refuted_by(metadata):
            self._compute(metadata)

    def _compute(self, metadata: RemoteLogMetadataManager) -> None:
        remote, log = self.remote, self.partition.log
        entries = log.leader_epochs.entries
        highest = highest_remote_offset(
            lambda epoch: metadata.highest_offset_for_epoch(remote.topic_id_partition, epoch),
            entries,
            log_end_offset=log.log_end_offset,
        )
        if highest >= log.local_log_start_offset:
            # A copied segment may have been deleted in the tier while it is still local: after the topic left the tier
            # and was tiered again. Local segments may be deleted only if the tier really has them.
            lineage = Lineage(entries, log_end_offset=log.log_end_offset)
            known = metadata.list_remote_log_segments(remote.topic_id_partition)
            highest = min(highest, covered_end(known, lineage, start=log.local_log_start_offset))
        remote.highest_offset_in_remote_storage = highest
        self.note_lag()

    def _is_refuted_by(self, metadata: RemoteLogMetadataManager) -> bool:
        """Whether the tier lacks the first local record although it is said to have it, or has the record after the
        last one that it is said to have.

        Changes of the leader before may become known late. After an unclean election it may have deleted what the log
        of the new leader still has.
        """
        log, highest = self.partition.log, self.remote.highest_offset_in_remote_storage
        assert highest is not None, "it was computed for this epoch"

        def has(offset: int) -> bool:
            epoch, named = log.leader_epochs.epoch_for_offset(offset), self.remote.topic_id_partition
            return epoch >= 0 and metadata.remote_log_segment_metadata(named, epoch, offset) is not None

        start = log.local_log_start_offset
        if highest >= start and not has(start):
            return True
        return start <= highest + 1 < log.log_end_offset and has(highest + 1)


def id_of(partition: PartitionReader) -> TopicIdPartition:
    """The tier's identity of a partition."""
    return TopicIdPartition(partition.topic_id, partition.topic, partition.index)


def new_remote(partition: PartitionReader) -> RemotePartition:
    """The state of a partition before its metadata was read."""
    return RemotePartition(id_of(partition), copies=partition.log.config.is_copied_to_tier)
