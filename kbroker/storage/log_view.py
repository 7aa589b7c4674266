"""The readable half of a log: its start and end offsets, and look-ups of batches by offset and by timestamp.

`kbroker.storage.log.Log` writes. Reads may run in threads while one writer appends; reading.py explains
why that is safe.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from operator import attrgetter
from typing import Final

from kbroker.runtime.ports import Disk
from kbroker.storage.files import FileRange
from kbroker.storage.index import CorruptIndex
from kbroker.storage.log_files import LogFiles
from kbroker.storage.plans import DirectoryState
from kbroker.storage.reading import (
    LogSlice,
    Place,
    RecentReads,
    Tail,
    border_before,
    end_of,
    first_at_or_after,
    latest,
)
from kbroker.storage.segments import SegmentList
from kbroker.storage.transaction_index import AbortedTransaction
from wire.errors import ErrorCode, KafkaError, Malformed

_first_offset: Final = attrgetter("first_offset")


class LogView:
    """The first base class of `Log`, which sets its fields.

    Units      offsets count records
    Invariant  log_start_offset <= log_end_offset
    Invariant  local_log_start_offset is the start of the local segments and never below log_start_offset
    Errors     KafkaError KAFKA_STORAGE_ERROR from everything that touches the disk, with the OSError as its cause
    """

    directory: str
    topic: str
    partition: int
    files: LogFiles
    disk: Disk
    state: DirectoryState
    segments: SegmentList
    log_start_offset: int
    local_log_start_offset: int
    log_end_offset: int
    tail: Tail
    recent_reads: RecentReads

    def __repr__(self) -> str:
        return f"<Log {self.topic}-{self.partition}, offsets {self.log_start_offset}-{self.log_end_offset}>"

    @property
    def size(self) -> int:
        """Bytes of all local segments."""
        return self.segments.size

    # --- read ---------------------------------------------------------------------------------------------------------

    def read(
        self, offset: int, *, max_bytes: int, end_offset: int | None = None, at_least_one_batch: bool = True
    ) -> LogSlice:
        """Whole batches, starting with the one that holds `offset`: at most `max_bytes`, none that ends after
        `end_offset`.

        With `at_least_one_batch` the first batch is returned even if it is larger than `max_bytes`. The result ends at
        the end of a segment at the latest. May run in a thread: reads far behind the tail open files and read indexes.
        Errors  OFFSET_OUT_OF_RANGE below local_log_start_offset or above log_end_offset
        """
        tail = self.tail
        if tail.start_offset <= offset:
            log_end_offset = tail.ends[-1] if tail.ends else tail.start_offset
            if offset <= log_end_offset:
                end = log_end_offset if end_offset is None else end_offset
                try:
                    return tail.read(offset, max_bytes, end, at_least_one_batch)
                except OSError as error:
                    raise self.storage_error(error) from error
        elif offset >= self.local_log_start_offset:
            with self.disk_errors():
                end = self.log_end_offset if end_offset is None else end_offset
                return self._read_by_index(tail, offset, max_bytes, end, at_least_one_batch)
        raise KafkaError(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"{self!r} has local offsets from {self.local_log_start_offset}, not {offset}",
        )

    def _read_by_index(
        self, tail: Tail, offset: int, max_bytes: int, end_offset: int, at_least_one_batch: bool
    ) -> LogSlice:
        """Read what is not in `tail`: where a recent read ended, or where the indexes say."""
        place = self.recent_reads.pop(offset, None)
        following = self.segments.from_offset(offset)
        if place is None or place[0] not in following:
            for segment in following:
                found = segment.find(offset) if segment.size else None
                if found is not None:
                    place = segment, found[0]
                    break
            else:
                # No batch at or after the offset: it is the end of the log.
                return LogSlice(None, (following[-1].base_offset, following[-1].size))
        segment, start = place
        if segment is tail.segment and end_offset >= tail.start_offset:
            stop, next_offset = tail.place_of(end_offset), end_offset
        else:
            stop, next_offset = end_of(segment, following, end_offset)
        if stop - start > max_bytes:
            stop, next_offset = border_before(segment, start, start + max_bytes, stop, at_least_one_batch)
        if stop <= start:
            return LogSlice(None, (segment.base_offset, start))
        if stop < segment.size and next_offset > offset:
            self.recent_reads.note(next_offset, segment, stop)
        records = FileRange(segment.open(), start, stop - start)
        return LogSlice(records, (segment.base_offset, start), stop - start, next_offset)

    def knows_place_of(self, offset: int) -> bool:
        """Whether a read from `offset` may run in the event loop, because it is at the tail or continues a recent read.
        Any other read uses the indexes, which may have to come from the disk.
        """
        return offset >= self.tail.start_offset or offset in self.recent_reads

    def aborted_between(self, first_offset: int, end_offset: int) -> tuple[AbortedTransaction, ...]:
        """The aborted transactions with records in [first_offset, end_offset), by first offset, as far as the local
        segments from `first_offset` on hold their markers. Blocking if `aborted_may_block`.
        """
        found: list[AbortedTransaction] = []
        with self.disk_errors():
            for segment in self.segments.from_offset(first_offset):
                some, is_decided = segment.aborted_between(first_offset, end_offset)
                found += some
                if is_decided:
                    break
        if len(found) > 1:
            found.sort(key=_first_offset)
        return tuple(found)

    def aborted_may_block(self, offset: int) -> bool:
        """Whether `aborted_between` from this offset reads the disk."""
        return any(segment.transaction_index.may_block(offset) for segment in self.segments.from_offset(offset))

    def place_of(self, offset: int) -> Place | None:
        """Where the batch with `offset` is, or will be if it is the next one; None if only the indexes know."""
        tail = self.tail
        return (tail.segment.base_offset, tail.place_of(offset)) if offset >= tail.start_offset else None

    def offset_for_timestamp(self, timestamp: int) -> tuple[int, int, int] | None:
        """(offset, timestamp, leader_epoch) of the first local record at or after `timestamp`, or None. Blocking."""
        with self.disk_errors():
            return first_at_or_after(self.segments, timestamp, self.local_log_start_offset)

    def max_timestamp(self) -> tuple[int, int, int] | None:
        """(offset, timestamp, leader_epoch) of the first local record with the largest timestamp. Blocking."""
        with self.disk_errors():
            return latest(self.segments)

    def restart_reading(self) -> None:
        """Reset the tail and the recent reads after the log was loaded or truncated."""
        active = self.segments.active
        for segment in self.segments:
            segment.is_active = segment is active
        self.recent_reads = RecentReads()
        self.tail = Tail(active, self.log_end_offset, active.size)

    # --- errors -------------------------------------------------------------------------------------------------------

    @contextmanager
    def disk_errors(self) -> Iterator[None]:
        """Turn errors of the disk into the KafkaErrors that clients receive."""
        try:
            yield
        except OSError as error:
            raise self.storage_error(error) from error
        except Malformed as error:
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"{self!r}: {error}") from error
        except CorruptIndex as error:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{self!r}: {error}") from error

    def storage_error(self, error: OSError) -> KafkaError:
        self.state.note(error)
        return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{self.topic}-{self.partition} in {self.directory}: {error}")

    def offline_error(self) -> KafkaError:
        failure = self.state.failure
        reason = "has too little space left" if failure is None else f"is offline: {failure}"
        return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{self.topic}-{self.partition}: its log directory {reason}")
