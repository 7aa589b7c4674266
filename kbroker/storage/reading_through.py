"""Reading a closed segment from its first byte to its last, and its indexes beside it.

It needs nothing but files and says what it found, so that it can be done by another process: see
`kbroker.runtime.worker`. What follows from it is decided by `kbroker.storage.sealing`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from kbroker.runtime.ports import Disk
from kbroker.storage.batches import scan_valid_batches
from kbroker.storage.checkpoint import read_file
from kbroker.storage.index import OFFSET_ENTRY, TIME_ENTRY

CHUNK_BYTES: Final = 32 << 10
"""Reading so much at once lets the event loop run about every millisecond even where all batches are small."""


@dataclass(frozen=True, slots=True)
class ClosedSegment:
    """What a closed segment should be.

    Shape  log, offset_index and time_index are paths; leader_epochs are (leader_epoch, start_offset) of its log
    Units  size in bytes; next_offset is where the next segment begins; interval_bytes is index.interval.bytes
    """

    log: str
    offset_index: str
    time_index: str
    base_offset: int
    next_offset: int
    size: int
    interval_bytes: int
    leader_epochs: tuple[tuple[int, int], ...]


class Findings(NamedTuple):
    """What a segment is.

    Units  good_bytes is where the first batch begins that is damaged or does not belong there, or the end; file_bytes
           is the size of the file
    Shape  leader_epochs is (leader_epoch, start_offset) as the batches tell it
    """

    good_bytes: int
    file_bytes: int
    leader_epochs: tuple[tuple[int, int], ...]
    indexes_are_right: bool


def read_through(disk: Disk, segment: ClosedSegment) -> Findings:
    """Compare a segment with itself, and its indexes with it, entry by entry. Errors: OSError."""
    time_index = _read(disk, segment.time_index)
    file = disk.open(segment.log, writable=False)
    try:
        file_bytes = file.size()
        matched, wanted = 0, _time_entry(time_index, 0)
        epochs, epoch = segment.leader_epochs, 0
        found: list[tuple[int, int]] = []
        # What the indexes are to say by the rule of `Segment.note_batch`.
        offsets, times = bytearray(), bytearray()
        good_bytes = last_indexed = latest_offset = 0
        latest = indexed = -1
        for position, header in scan_valid_batches(file, segment.size, chunk_bytes=CHUNK_BYTES):
            base_offset, last_offset = header.base_offset, header.base_offset + header.last_offset_delta
            if base_offset < segment.base_offset or last_offset >= segment.next_offset:
                break
            while epoch + 1 < len(epochs) and epochs[epoch + 1][1] <= base_offset:
                epoch += 1
            if epochs and epochs[epoch][1] <= base_offset and epochs[epoch][0] != header.partition_leader_epoch:
                break  # no CRC is over this field
            if not found or found[-1][0] != header.partition_leader_epoch:
                found.append((header.partition_leader_epoch, base_offset if found else segment.base_offset))
            if header.max_timestamp > latest:
                latest, latest_offset = header.max_timestamp, last_offset - segment.base_offset
            if position - last_indexed > segment.interval_bytes:
                offsets += OFFSET_ENTRY.pack(last_offset - segment.base_offset, position)
                if latest > indexed:
                    times += TIME_ENTRY.pack(latest, latest_offset)
                    indexed = latest
                last_indexed = position
            good_bytes = position + header.size
            if wanted == (latest, latest_offset):
                matched += TIME_ENTRY.size
                wanted = _time_entry(time_index, matched)
    finally:
        file.close()
    if latest > indexed:
        times += TIME_ENTRY.pack(latest, latest_offset)
    # A stop writes the largest timestamp so far into the time index, so that may have more entries than are due.
    indexes_are_right = (
        _read(disk, segment.offset_index) == offsets and matched == len(time_index) and _has_all(time_index, times)
    )
    return Findings(good_bytes, file_bytes, tuple(found), indexes_are_right)


def _read(disk: Disk, path: str) -> bytes:
    """What an index file holds, to its last byte; nothing where it is missing."""
    try:
        return read_file(disk, path)
    except FileNotFoundError:
        return b""


def _time_entry(data: bytes, position: int) -> tuple[int, int] | None:
    return TIME_ENTRY.unpack_from(data, position) if position + TIME_ENTRY.size <= len(data) else None


def _has_all(data: bytes, due: bytes | bytearray) -> bool:
    """Whether a time index has all entries that are due, in their order. As bytes: there may be a million of them."""
    found = TIME_ENTRY.iter_unpack(data)
    return all(one in found for one in TIME_ENTRY.iter_unpack(due))
