"""Read a closed segment completely and compare it with its indexes.

The check needs only files and returns its findings, so it can run in another process: see `kbroker.runtime.worker`.
`kbroker.storage.sealing` decides what to do about the findings.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from kbroker.runtime.ports import Disk
from kbroker.storage.batches import scan_headers
from kbroker.storage.checkpoint import read_file
from kbroker.storage.index import OFFSET_ENTRY, TIME_ENTRY
from kbroker.storage.segment import INDEX_SUFFIX, TIME_INDEX_SUFFIX, Segment

CHUNK_BYTES: Final = 32 << 10
"""Reads this small let the event loop run about every millisecond, even if all batches are small."""


class Findings(NamedTuple):
    """The result of reading a segment.

    Units  good_bytes is the start of the first batch that is damaged or misplaced, or the end; file_bytes is the size
           of the file
    Shape  leader_epochs is (leader_epoch, start_offset) according to the batches
    """

    good_bytes: int
    file_bytes: int
    leader_epochs: tuple[tuple[int, int], ...]
    indexes_are_right: bool


def read_through(segment: Segment, next_offset: int, leader_epochs: list[tuple[int, int]]) -> Findings:
    """Check the batches of a segment and compare its indexes with it, entry by entry. Errors: OSError.

    `next_offset` is where the next segment begins; `leader_epochs` are (leader_epoch, start_offset) of the log.
    """
    disk = segment.files.disk
    time_index = _read(disk, segment.path(TIME_INDEX_SUFFIX))
    file = disk.open(segment.log_path, writable=False)
    try:
        file_bytes = file.size()
        matched, wanted = 0, _time_entry(time_index, 0)
        epoch, expected_offset = 0, segment.base_offset
        found: list[tuple[int, int]] = []
        # The entries that `Segment.note_batch` would add to the indexes.
        offsets, times = bytearray(), bytearray()
        good_bytes = last_indexed = latest_offset = 0
        latest = indexed = -1
        for position, header in scan_headers(file, 0, segment.size, chunk_bytes=CHUNK_BYTES, checks_crc=True):
            base_offset, last_offset = header.base_offset, header.base_offset + header.last_offset_delta
            if base_offset < expected_offset or last_offset >= next_offset:
                break
            expected_offset = last_offset + 1
            while epoch + 1 < len(leader_epochs) and leader_epochs[epoch + 1][1] <= base_offset:
                epoch += 1
            known = leader_epochs[epoch] if leader_epochs else None
            if known is not None and known[1] <= base_offset and known[0] != header.partition_leader_epoch:
                break  # the CRC does not cover this field
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
    # A close adds the largest timestamp so far to the time index, so that index may have additional entries.
    indexes_are_right = (
        _read(disk, segment.path(INDEX_SUFFIX)) == offsets
        and matched == len(time_index)
        and _has_all(time_index, times)
    )
    return Findings(good_bytes, file_bytes, tuple(found), indexes_are_right)


def _read(disk: Disk, path: str) -> bytes:
    """All bytes of an index file; empty if it is missing."""
    try:
        return read_file(disk, path)
    except FileNotFoundError:
        return b""


def _time_entry(data: bytes, position: int) -> tuple[int, int] | None:
    return TIME_ENTRY.unpack_from(data, position) if position + TIME_ENTRY.size <= len(data) else None


def _has_all(data: bytes, due: bytes | bytearray) -> bool:
    """Whether a time index has all required entries in order. Works on bytes, because there may be a million."""
    found = TIME_ENTRY.iter_unpack(data)
    return all(one in found for one in TIME_ENTRY.iter_unpack(due))
