"""Who reads a partition, up to which offset, and what a read returns.

A follower reads up to the log end offset, a consumer up to the high watermark or the last stable offset.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

from kbroker.runtime.net_ports import Pieces
from kbroker.runtime.ports import Buffer
from kbroker.storage.files import FileRange
from kbroker.storage.reading import Place
from kbroker.storage.transaction_index import AbortedTransaction

NO_EPOCH: Final = -1
CONSUMER: Final = -1
FUTURE_REPLICA: Final = -3


class EpochEnd(NamedTuple):
    """The end of a leader epoch: the largest epoch not above the requested one, and the first offset after it."""

    leader_epoch: int
    end_offset: int


class ReadsTo(Enum):
    """The end up to which a fetcher may read."""

    HIGH_WATERMARK = 0
    LAST_STABLE_OFFSET = 1
    LOG_END_OFFSET = 2


class Fetcher:
    """The sender of a Fetch: a consumer, or a replica with its id and epoch.

    Note  is_stale: the replica's epoch is older than that of the live broker with its id
    Note  is_replica: a follower, or a replica that moves between directories; the tier serves neither of them
    Note  may_read_follower: a consumer that may read from any replica (KIP-392)
    """

    __slots__ = (
        "is_follower", "is_replica", "is_stale", "may_read_follower", "reads_to", "replica_epoch", "replica_id",
    )  # fmt: skip

    def __init__(
        self,
        replica_id: int = CONSUMER,
        *,
        replica_epoch: int = NO_EPOCH,
        read_committed: bool = False,
        is_stale: bool = False,
        may_read_follower: bool = False,
    ) -> None:
        self.replica_id = replica_id
        self.replica_epoch = replica_epoch
        self.is_follower = replica_id >= 0
        self.is_stale = is_stale
        self.may_read_follower = may_read_follower
        self.is_replica = self.is_follower or replica_id == FUTURE_REPLICA
        if self.is_replica:
            self.reads_to = ReadsTo.LOG_END_OFFSET
        elif read_committed:
            self.reads_to = ReadsTo.LAST_STABLE_OFFSET
        else:
            self.reads_to = ReadsTo.HIGH_WATERMARK


@dataclass(slots=True, eq=False)
class PartitionRead:
    """The result of a Fetch of one partition. Offsets are taken before the records are read, so they are never ahead.

    Units  offsets count records; size is in bytes
    """

    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    leader_epoch: int
    readable_end: int
    """The offset up to which this fetcher may read; it waits for records from here on."""
    records: FileRange | Buffer | Pieces | None = None
    size: int = 0
    place: Place | None = None
    """The place of the batch with the fetch offset, if it is known."""
    diverging: EpochEnd | None = None
    aborted: tuple[AbortedTransaction, ...] = ()
    """The aborted transactions among the records, by first_offset, wherever the records are from."""
    is_remote: bool = False
    """The offset is only in the tier; the records must be read from there."""
