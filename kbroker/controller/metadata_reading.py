"""What a node that follows the metadata log gets: records, a snapshot to start from, or where the logs diverge.

The node sends its end offset and the epoch of its last record. If the log has the end of that epoch at or after this
offset, both logs are equal up to the offset, and the node can continue. If the log starts after the offset, or the
epoch is older than the oldest snapshot, the node needs the newest snapshot. Otherwise it truncates its log to the end
of the largest epoch that both have.

Blocking.

Source: KIP-595, KIP-630; ReplicatedLog.validateOffsetAndEpoch of Apache Kafka.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from kbroker.controller.metadata_log import MetadataLog
from kbroker.controller.snapshots import SnapshotId
from kbroker.storage.files import FileRange, OpenFile
from wire.errors import ErrorCode, KafkaError


class EpochEnd(NamedTuple):
    """The end of an epoch, exclusive."""

    epoch: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class FetchedMetadata:
    """The result of a fetch: at most one of records, snapshot and diverging."""

    high_watermark: int
    records: FileRange | None = None
    snapshot: SnapshotId | None = None
    diverging: EpochEnd | None = None

    @property
    def is_empty(self) -> bool:
        """Whether the node has everything."""
        return self.records is None and self.snapshot is None and self.diverging is None


def read_metadata(log: MetadataLog, offset: int, epoch: int, *, max_bytes: int, end_offset: int) -> FetchedMetadata:
    """The answer to a node whose log ends at this offset with this epoch. Committed records end at `end_offset`.

    Errors  KAFKA_STORAGE_ERROR
    """
    obstacle = _obstacle(log, offset, epoch)
    if obstacle is None:
        try:
            found = log.read(offset, max_bytes=max_bytes, end_offset=end_offset)
        except KafkaError as error:
            if error.code is not ErrorCode.OFFSET_OUT_OF_RANGE:
                raise
            obstacle = _obstacle(log, offset, epoch)  # the start of the log was deleted at this moment
            if obstacle is None:
                raise
        else:
            return FetchedMetadata(end_offset, records=found)
    if isinstance(obstacle, SnapshotId):
        return FetchedMetadata(end_offset, snapshot=obstacle)
    return FetchedMetadata(end_offset, diverging=obstacle)


def _obstacle(log: MetadataLog, offset: int, epoch: int) -> SnapshotId | EpochEnd | None:
    snapshot_ids = log.snapshot_ids
    if snapshot_ids:
        oldest, newest, start = snapshot_ids[0], snapshot_ids[-1], log.log_start_offset
        # An empty log needs more time for the records than for the snapshot.
        if offset == 0 or offset < start or epoch < oldest.epoch or (offset == start and epoch != oldest.epoch):
            return newest
    elif offset == 0:
        return None
    end = EpochEnd(*log.end_of_epoch(epoch))
    return end if end.epoch != epoch or end.end_offset < offset else None


def read_snapshot_part(log: MetadataLog, snapshot: SnapshotId, position: int, max_bytes: int) -> tuple[int, FileRange]:
    """The size of a snapshot file, and at most max_bytes of it from a position on.

    Errors  SNAPSHOT_NOT_FOUND, POSITION_OUT_OF_RANGE, KAFKA_STORAGE_ERROR
    """
    if snapshot not in log.snapshot_ids:
        raise KafkaError(ErrorCode.SNAPSHOT_NOT_FOUND)
    try:
        file, size = log.open_snapshot(snapshot)
    except FileNotFoundError as error:  # deleted at this moment
        raise KafkaError(ErrorCode.SNAPSHOT_NOT_FOUND) from error
    if not 0 <= position < size:
        raise KafkaError(ErrorCode.POSITION_OUT_OF_RANGE)
    return size, FileRange(OpenFile(file), position, max(0, min(max_bytes, size - position)))
