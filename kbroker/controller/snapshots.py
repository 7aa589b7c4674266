"""Snapshot files of the metadata log: ``<20-digit end offset>-<10-digit epoch>.checkpoint``.

The end offset is exclusive: the file holds the state after every record below it; the last of these records has that
epoch. The batches are a header control record at offset 0 (in a dynamic quorum followed by the quorum's version and
voters), the records, and a footer. A file without the footer is ignored. The file is written as ``.checkpoint.part``,
synced and renamed, and then the directory is synced, so that a file without ``.part`` is complete unless the disk
damaged it.

``bootstrap.checkpoint`` in the root of the log directory has the same format; the format step writes it, and an empty
log starts with its records.

Source: KIP-630; Kafka's Snapshots, RecordsSnapshotWriter, BootstrapDirectory.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import NamedTuple

from kbroker.controller import records
from kbroker.metadata.image import Record
from kbroker.runtime.ports import Disk
from kbroker.storage.checkpoint import read_file
from wire.errors import Malformed
from wire.record_batch import RecordBatch

BOOTSTRAP_FILE = "bootstrap.checkpoint"
SUFFIX = ".checkpoint"
PART_SUFFIX = ".checkpoint.part"
DELETED_SUFFIX = ".checkpoint.deleted"

_NAME = re.compile(r"(\d{20})-(\d{10})\.checkpoint")
_BATCH_BYTES = 1 << 20


class SnapshotId(NamedTuple):
    """A snapshot's end offset (exclusive) and the epoch of its last record. Sorted in log order."""

    end_offset: int
    epoch: int

    @property
    def file_name(self) -> str:
        """The file's name."""
        return f"{self.end_offset:020d}-{self.epoch:010d}{SUFFIX}"


def snapshot_ids(names: Iterable[str]) -> list[SnapshotId]:
    """The snapshots among a directory's names, oldest first. Excludes 0-0, which only dynamic quorums have."""
    found = [SnapshotId(int(match[1]), int(match[2])) for name in names if (match := _NAME.fullmatch(name))]
    return sorted(snapshot for snapshot in found if snapshot.end_offset > 0)


def write_snapshot(
    disk: Disk,
    path: str,
    contents: Iterable[Record],
    *,
    metadata_version: int,
    epoch: int,
    last_contained_log_timestamp: int,
    timestamp_ms: int,
    quorum: Sequence[Record] = (),
) -> None:
    """Write a snapshot file atomically and durably; `quorum` are its control records. Blocking. OSError."""
    part = path.removesuffix(SUFFIX) + PART_SUFFIX
    file = disk.open(part, create=True)
    try:
        file.truncate(0)
        data = records.snapshot_header_batch(
            last_contained_log_timestamp=last_contained_log_timestamp,
            epoch=epoch,
            timestamp_ms=timestamp_ms,
            quorum=quorum,
        )
        file.pwrite(data, 0)
        position, offset = len(data), 1 + len(quorum)
        encoded = (records.encode_value(record, metadata_version) for record in contents)
        for values in records.split(encoded, _BATCH_BYTES):
            data = records.data_batch(values, base_offset=offset, epoch=epoch, timestamp_ms=timestamp_ms)
            file.pwrite(data, position)
            position, offset = position + len(data), offset + len(values)
        data = records.snapshot_footer_batch(base_offset=offset, epoch=epoch, timestamp_ms=timestamp_ms)
        file.pwrite(data, position)
        file.sync()
    except OSError:
        with suppress(OSError):
            disk.unlink(part)  # free the space on a full disk
        raise
    finally:
        file.close()
    disk.rename(part, path)
    disk.sync_directory(path.rpartition("/")[0])


def read_snapshot(disk: Disk, path: str) -> list[Record]:
    """The records of a snapshot file. Raises Malformed if it is damaged or incomplete, UnusableMetadata for an unknown
    record. Blocking.
    """
    data = read_file(disk, path)
    found: list[Record] = []
    whole = opened = False
    position = 0
    while position < len(data):
        batch = RecordBatch(data, position)
        if whole or not batch.is_whole or not batch.crc_is_valid():
            raise Malformed(f"{path} is damaged at byte {position}")
        kind = records.control_type(batch)
        if kind == records.SNAPSHOT_HEADER and not opened:
            opened = True
            found += records.batch_records(batch)
        elif not opened:
            raise Malformed(f"{path} does not start with a snapshot header")
        elif kind == records.SNAPSHOT_FOOTER:
            whole = True
        else:
            found += records.batch_records(batch)
        position += batch.size
    if not whole:
        raise Malformed(f"{path} has no footer")
    return found
