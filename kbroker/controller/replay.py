"""Read the metadata log: check every batch after the snapshot, and judge damage.

The rules for damage rest on one invariant: **the writer syncs each batch before it writes the next one.** So at most
one batch, the last, can be incomplete, and it was never acknowledged. Damage at the very end is such a torn tail and is
truncated (C3, D1). Damage before a complete batch, in a segment that is not the last, or after a clean shutdown means
that a committed batch is lost: the process stops. An observer's log is a copy of the controllers', which is not synced
batch by batch: damage only ends it, and the observer fetches the rest again.

Blocking, through the disk.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from kbroker.metadata.errors import UnusableMetadata
from kbroker.runtime.ports import Disk, File
from wire.batch_header import EPOCH_AND_MAGIC, HEADER_SIZE, MAGIC, POSITIONS
from wire.errors import Malformed
from wire.record_batch import RecordBatch

_WINDOW_BYTES: Final = 4 << 20
_EPOCH_POSITION: Final = POSITIONS["partition_leader_epoch"]
_MAX_EPOCHS_SOUGHT: Final = 1_000


class LogSegment(NamedTuple):
    """One segment file of the metadata log."""

    base_offset: int
    path: str


class LogEnd(NamedTuple):
    """The end of the valid log. torn_at is the path and position to truncate at, None if the log is undamaged."""

    end_offset: int
    epoch: int
    timestamp_ms: int
    torn_at: tuple[str, int] | None


class Replay:
    """Iterate over the valid batches of a log that reach beyond start_offset; afterwards `end` is the end of the log.

    Raises UnusableMetadata for damage that is not a torn tail. highest_epoch is the newest epoch that this voter knows
    (quorum-state).
    """

    def __init__(
        self,
        disk: Disk,
        segments: Sequence[LogSegment],
        *,
        start_offset: int,
        highest_epoch: int,
        clean_shutdown: bool,
        is_observer: bool = False,
    ) -> None:
        self._disk = disk
        self._segments = _needed(segments, start_offset)
        self._start_offset = start_offset
        self._highest_epoch = highest_epoch
        self._clean_shutdown = clean_shutdown
        self._is_observer = is_observer
        first = self._segments[0].base_offset if self._segments else start_offset
        self.end = LogEnd(first, 0, -1, None)
        self.size = 0  # bytes of the batches that were yielded

    def __iter__(self) -> Iterator[RecordBatch]:
        for position, segment in enumerate(self._segments):
            if segment.base_offset != self.end.end_offset:
                raise UnusableMetadata(f"{segment.path} does not follow offset {self.end.end_offset}")
            file = self._disk.open(segment.path, writable=False)
            try:
                yield from self._batches(file, is_last=position == len(self._segments) - 1)
            finally:
                file.close()
            if self.end.torn_at is not None:
                return

    def _batches(self, file: File, *, is_last: bool) -> Iterator[RecordBatch]:
        size = file.size()
        window, start = b"", 0
        position = 0
        while position < size:
            batch = _batch_at(window, position - start)
            if batch is None or not batch.is_whole:
                # The window ends inside this batch: read again from its start, for as many bytes as its header says.
                needed = max(_WINDOW_BYTES, HEADER_SIZE if batch is None else batch.size)
                window, start = file.pread(min(needed, size - position), position), position
                batch = _batch_at(window, 0)
            if batch is None or not batch.is_whole or not self._is_next(batch):
                self._judge_damage(file, position, size, is_last=is_last)
                return
            self.end = LogEnd(batch.next_offset, batch.partition_leader_epoch, batch.max_timestamp, None)
            if batch.next_offset > self._start_offset:
                self.size += batch.size
                yield batch
            position += batch.size

    def _is_next(self, batch: RecordBatch) -> bool:
        return batch.base_offset == self.end.end_offset and batch.crc_is_valid()

    def _judge_damage(self, file: File, position: int, size: int, *, is_last: bool) -> None:
        if self._is_observer:
            self.end = self.end._replace(torn_at=(file.path, position))
            return
        where = f"{file.path} is damaged at byte {position}, offset {self.end.end_offset}"
        if not is_last:
            raise UnusableMetadata(f"{where}, which is not the last segment: a committed batch is lost")
        if self._clean_shutdown:
            raise UnusableMetadata(f"{where}, after a clean shutdown: a committed batch is lost")
        if self._has_later_batch(file.pread(size - position, position)):
            raise UnusableMetadata(f"{where}, before a complete batch: a committed batch is lost")
        self.end = self.end._replace(torn_at=(file.path, position))

    def _has_later_batch(self, data: bytes) -> bool:
        """Whether a valid later batch starts anywhere after the first byte.

        The search looks for the magic byte after every epoch that this voter may have known, and checks the CRC of each
        match.
        """
        latest = max(self._highest_epoch, self.end.epoch)
        for epoch in range(max(self.end.epoch, latest - _MAX_EPOCHS_SOUGHT), latest + 1):
            pattern = EPOCH_AND_MAGIC.pack(epoch, MAGIC)
            found = data.find(pattern, _EPOCH_POSITION + 1)
            while found >= 0:
                batch = _batch_at(data, found - _EPOCH_POSITION)
                if (
                    batch is not None
                    and batch.base_offset > self.end.end_offset
                    and batch.is_whole
                    and batch.crc_is_valid()
                ):
                    return True
                found = data.find(pattern, found + 1)
        return False


def _needed(segments: Sequence[LogSegment], start_offset: int) -> list[LogSegment]:
    """The segment that contains start_offset, and all later ones."""
    later = [segment for segment in segments if segment.base_offset > start_offset]
    earlier = [segment for segment in segments if segment.base_offset <= start_offset]
    return [*earlier[-1:], *later]


def _batch_at(data: bytes, position: int) -> RecordBatch | None:
    try:
        return RecordBatch(data, position)
    except Malformed:
        return None
