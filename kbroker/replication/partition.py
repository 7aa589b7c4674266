"""Reads from one partition on this broker.

Theory of operation: appends and reads are refused in the same order as in Apache Kafka, so that clients recover the
same way: not the leader, a fenced or unknown leader epoch, an offset out of range. partition_state.py has the role.

Source: KIP-101, KIP-227, KIP-320, KIP-392, KIP-405; `Partition.readRecords` of Apache Kafka 4.3.1.
"""

from __future__ import annotations

from kbroker.replication.partition_reads import NO_EPOCH, EpochEnd, Fetcher, PartitionRead, ReadsTo
from kbroker.replication.partition_state import PartitionState
from kbroker.storage.reading import Place
from wire.errors import ErrorCode, KafkaError


class Partition(PartitionState):
    """One partition on this broker.

    Errors  NOT_LEADER_OR_FOLLOWER, FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH, OFFSET_OUT_OF_RANGE,
            KAFKA_STORAGE_ERROR
    """

    __slots__ = ()

    # Offsets

    def readable_end(self, reads_to: ReadsTo = ReadsTo.HIGH_WATERMARK) -> int:
        """The offset up to which a client of the leader may read."""
        return self._end_for(reads_to, self.leading().high_watermark)

    def readable_end_for(self, fetcher: Fetcher) -> int:
        """The offset up to which a fetcher may read from this replica."""
        return self._end_for(fetcher.reads_to, self._high_watermark_for(fetcher))

    def _end_for(self, reads_to: ReadsTo, high_watermark: int) -> int:
        if reads_to is ReadsTo.HIGH_WATERMARK:
            return high_watermark
        if reads_to is ReadsTo.LOG_END_OFFSET:
            return self.log.log_end_offset
        return self._last_stable_offset(high_watermark)

    @property
    def last_stable_offset(self) -> int | None:
        """The offset below which every transaction is completed; None if this broker is not the leader."""
        return None if self.progress is None else self._last_stable_offset(self.progress.high_watermark)

    def _last_stable_offset(self, high_watermark: int) -> int:
        """The offset below which every transaction is completed; never below the start of the log, from which
        DeleteRecords may have removed the begin of an open transaction.
        """
        unstable = self.log.producers.first_unstable_offset
        if unstable is None or unstable >= high_watermark:
            return high_watermark
        return min(max(unstable, self.log.log_start_offset), high_watermark)

    def end_of_epoch(self, leader_epoch: int) -> EpochEnd | None:
        """The end of leader_epoch in this log (KIP-101, KIP-279); None if it is unknown."""
        found_epoch, end_offset = self.log.leader_epochs.end_offset_for(leader_epoch, self.log.log_end_offset)
        return None if found_epoch == NO_EPOCH else EpochEnd(found_epoch, end_offset)

    # Reading

    def read(
        self,
        *,
        fetch_offset: int,
        max_bytes: int,
        fetcher: Fetcher,
        current_leader_epoch: int = NO_EPOCH,
        last_fetched_epoch: int = NO_EPOCH,
        at_least_one_batch: bool = True,
    ) -> PartitionRead:
        """Read whole batches from the one that holds fetch_offset: at most max_bytes, or one with at_least_one_batch.

        For an offset that is only in the tier nothing is read; the result says so.
        Errors  those of `leading`, OFFSET_OUT_OF_RANGE
        Source  KIP-227, KIP-320, KIP-595 (diverging epochs)
        """
        found = self.look_up(
            fetch_offset,
            fetcher=fetcher,
            current_leader_epoch=current_leader_epoch,
            last_fetched_epoch=last_fetched_epoch,
        )
        if found.diverging is not None:
            return found
        end = found.readable_end
        if fetch_offset < end:
            try:
                piece = self.log.read(
                    fetch_offset, max_bytes=max_bytes, end_offset=end, at_least_one_batch=at_least_one_batch
                )
            except KafkaError:
                # Retention may have just removed the segment. Successful reads need no such check.
                if not self.is_remote(fetch_offset):
                    raise
                found.is_remote = True
                return found
            found.records, found.size, found.place = piece.records, piece.size, piece.place
            if piece.size and fetcher.reads_to is ReadsTo.LAST_STABLE_OFFSET:
                next_offset = end if piece.next_offset < 0 else piece.next_offset
                found.aborted = self.log.aborted_between(fetch_offset, next_offset)
        else:
            found.place = self.log.place_of(fetch_offset)
        return found

    def is_unchanged_since(self, read: PartitionRead, fetcher: Fetcher) -> bool:
        """Whether `look_up` would return the offsets of an earlier read again."""
        log, high_watermark = self.log, self.known_high_watermark
        return (
            high_watermark == read.high_watermark
            and self.leader_epoch == read.leader_epoch
            and log.log_start_offset == read.log_start_offset
            and log.state.failure is None
            and self.serves(fetcher)
            and self._end_for(fetcher.reads_to, high_watermark) == read.readable_end
        )

    def look_up(
        self, fetch_offset: int, *, fetcher: Fetcher, current_leader_epoch: int, last_fetched_epoch: int
    ) -> PartitionRead:
        """What a Fetch of this offset finds, without its records. Pure.

        Errors  those of `leading`, OFFSET_OUT_OF_RANGE
        """
        high_watermark = self._high_watermark_for(fetcher, current_leader_epoch)
        if fetcher.is_follower:
            self._check_follower(fetcher.replica_id, current_leader_epoch)
        log = self.log
        last_stable_offset = self._last_stable_offset(high_watermark)
        end = self._end_for(fetcher.reads_to, high_watermark)
        found = PartitionRead(high_watermark, last_stable_offset, log.log_start_offset, self.leader_epoch, end)
        if last_fetched_epoch != NO_EPOCH:
            found.diverging = self._divergence(last_fetched_epoch, fetch_offset)
            if found.diverging is not None:
                return found
        if not log.log_start_offset <= fetch_offset <= log.log_end_offset:
            raise self._out_of_range(fetch_offset)
        return found

    def is_remote(self, offset: int) -> bool:
        """Whether an offset must be read from the tier, because the local log starts after it.

        Also true while a tiered topic has no tier: OFFSET_OUT_OF_RANGE would make consumers skip the records.
        """
        log = self.log
        return log.log_start_offset <= offset < log.local_log_start_offset and (
            self.remote is not None or log.config.remote_storage_enable
        )

    def _check_follower(self, replica_id: int, current_leader_epoch: int) -> None:
        if replica_id not in self.replicas or replica_id == self.broker_id:
            without_epoch = current_leader_epoch == NO_EPOCH
            code = ErrorCode.NOT_LEADER_OR_FOLLOWER if without_epoch else ErrorCode.UNKNOWN_LEADER_EPOCH
            raise KafkaError(code, f"{replica_id=} is not a follower of {self.name}")

    def _divergence(self, last_fetched_epoch: int, fetch_offset: int) -> EpochEnd | None:
        """Where the fetcher's history diverges from this log, if it does so before fetch_offset."""
        epoch_end = self.end_of_epoch(last_fetched_epoch)
        if epoch_end is None:
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, f"unknown {last_fetched_epoch=}")
        if fetch_offset < self.log.log_start_offset:
            raise self._out_of_range(fetch_offset)
        diverges = epoch_end.leader_epoch < last_fetched_epoch or epoch_end.end_offset < fetch_offset
        return epoch_end if diverges else None

    def _out_of_range(self, fetch_offset: int) -> KafkaError:
        bounds = f"{self.log.log_start_offset}..{self.log.log_end_offset}"
        return KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, f"{fetch_offset=} is outside {bounds} of {self.name}")

    def bytes_between(self, fetch_offset: int, end: int, place: Place | None) -> int | None:
        """Bytes from a fetch offset, which was at `place` when it was read, up to `end`. Pure.

        None if a segment ends between them: an answer ends with its segment, so waiting cannot add records. Also None
        if a position is not known in memory.
        """
        if fetch_offset >= end:
            return 0
        first, last = self.log.place_of(fetch_offset) or place, self.log.place_of(end)
        return last[1] - first[1] if first is not None and last is not None and first[0] == last[0] else None
