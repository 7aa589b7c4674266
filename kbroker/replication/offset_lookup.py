"""ListOffsets: find the offset for a timestamp, or for a negative timestamp that names a special offset.

    -1  latest             high_watermark, or last_stable_offset for read_committed; log_end_offset for a replica
    -2  earliest           log_start_offset, the tier included
    -3  max timestamp      the first record with the largest timestamp
    -4  earliest local     local_log_start_offset
    -5  latest tiered      highest offset in the tier; -1 if it is empty
    -6  earliest pending   the first offset that is not in the tier yet; -1 for a topic without a tier

Except for -1, -2 and -4, an offset at or after the end that the client may read counts as not found, which is -1
without an error.

Source: KIP-79, KIP-734, KIP-405, KIP-1005, KIP-1023, and the answers of Apache Kafka 4.3.1.
"""

from __future__ import annotations

from typing import NamedTuple

from kbroker.replication.partition import Partition
from kbroker.replication.partition_reads import CONSUMER, NO_EPOCH, ReadsTo
from wire.errors import ErrorCode, KafkaError

LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3
EARLIEST_LOCAL = -4
LATEST_TIERED = -5
EARLIEST_PENDING_UPLOAD = -6

DEBUGGING = -2
"""The replica id of a tool; a follower answers it too, with its own log end offset and what it knows of the tier."""

FIRST_VERSION = {
    LATEST: 1,
    EARLIEST: 1,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}
FIRST_VERSION_WITH_OFFSET_NOT_AVAILABLE = 5


class OffsetFound(NamedTuple):
    """The result; -1 in all three fields means "no such record"."""

    offset: int = -1
    timestamp: int = -1
    leader_epoch: int = NO_EPOCH


NOT_FOUND = OffsetFound()


class OffsetAsked(NamedTuple):
    """One query: timestamp in ms of wall time or one of the names above, the request's version, and the client."""

    timestamp: int
    version: int
    replica_id: int = CONSUMER
    read_committed: bool = False
    current_leader_epoch: int = NO_EPOCH

    @property
    def reads_to(self) -> ReadsTo:
        """The end up to which the client may read; only consumers are limited."""
        if self.replica_id != CONSUMER:
            return ReadsTo.LOG_END_OFFSET
        return ReadsTo.LAST_STABLE_OFFSET if self.read_committed else ReadsTo.HIGH_WATERMARK

    @property
    def reads_the_log(self) -> bool:
        """Whether the answer requires reading the log's files."""
        return self.timestamp >= 0 or self.timestamp == MAX_TIMESTAMP

    @property
    def names_the_tier(self) -> bool:
        """Whether the answer is an offset at the end of the tier."""
        return self.timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD)


def refuse_unknown_name(asked: OffsetAsked) -> None:
    """Refuse a negative timestamp that has no meaning in the request's version, for any partition.

    Errors  UNSUPPORTED_VERSION
    """
    if asked.timestamp < 0 and asked.version < FIRST_VERSION.get(asked.timestamp, asked.version + 1):
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"timestamp {asked.timestamp} in version {asked.version}")


def look_up(partition: Partition, asked: OffsetAsked, remote: OffsetFound | None = None) -> OffsetFound:
    """Answer one query; `remote` is what the tier found for a timestamp.

    Errors  those of Partition.leading, OFFSET_NOT_AVAILABLE and LEADER_NOT_AVAILABLE (a new leader has not reached its
            own epoch yet), KAFKA_STORAGE_ERROR
    """
    log = partition.log
    if asked.replica_id == DEBUGGING and asked.timestamp in (LATEST, LATEST_TIERED) and partition.is_follower:
        partition.check_epoch(asked.current_leader_epoch)
        if asked.timestamp == LATEST_TIERED:
            return _end_of_tier(partition, LATEST_TIERED) or NOT_FOUND
        return OffsetFound(log.log_end_offset, -1, partition.leader_epoch)
    progress = partition.leading(asked.current_leader_epoch)
    end = partition.readable_end(asked.reads_to)
    is_behind = asked.replica_id == CONSUMER and progress.high_watermark < progress.epoch_start_offset
    if asked.timestamp == LATEST:
        if is_behind:
            raise _not_available(asked)
        return OffsetFound(end, -1, partition.leader_epoch)
    if asked.timestamp == EARLIEST:
        return _with_epoch_of(partition, log.log_start_offset)
    if asked.timestamp == EARLIEST_LOCAL:
        return _with_epoch_of(partition, log.local_log_start_offset)
    found: OffsetFound | None
    if asked.names_the_tier:
        found = _end_of_tier(partition, asked.timestamp)
    elif asked.timestamp == MAX_TIMESTAMP:
        found = _later(remote, log.max_timestamp())
    else:
        # Records that are only in the tier come before all local ones.
        found = remote or _found(log.offset_for_timestamp(asked.timestamp))
    if found is not None and found.offset < end:
        return found
    if is_behind:
        raise _not_available(asked)
    return NOT_FOUND


def _end_of_tier(partition: Partition, name: int) -> OffsetFound | None:
    """The last offset in the tier, or the first offset that is not in the tier yet.

    Errors  KAFKA_STORAGE_ERROR while the contents of the tier are unknown
    """
    remote = partition.remote
    if remote is None:
        return None
    highest = remote.highest_offset_in_remote_storage
    if highest is None:
        raise KafkaError(
            ErrorCode.KAFKA_STORAGE_ERROR, f"the contents of the tier are not known yet for {partition.name}"
        )
    if name == EARLIEST_PENDING_UPLOAD:
        return _with_epoch_of(partition, max(highest + 1, partition.log.log_start_offset))
    return _with_epoch_of(partition, highest) if highest >= 0 else None


def _found(local: tuple[int, int, int] | None) -> OffsetFound | None:
    return None if local is None else OffsetFound(*local)


def _later(remote: OffsetFound | None, local: tuple[int, int, int] | None) -> OffsetFound | None:
    """The later of two records; if their timestamps are equal, the one in the tier (KAFKA-17552)."""
    found = _found(local)
    if remote is None or found is None:
        return remote or found
    return found if found.timestamp > remote.timestamp else remote


def _with_epoch_of(partition: Partition, offset: int) -> OffsetFound:
    return OffsetFound(offset, -1, partition.log.leader_epochs.epoch_for_offset(offset))


def _not_available(asked: OffsetAsked) -> KafkaError:
    can_say_so = asked.version >= FIRST_VERSION_WITH_OFFSET_NOT_AVAILABLE
    code = ErrorCode.OFFSET_NOT_AVAILABLE if can_say_so else ErrorCode.LEADER_NOT_AVAILABLE
    return KafkaError(code, "the leader has not reached its own epoch yet")
