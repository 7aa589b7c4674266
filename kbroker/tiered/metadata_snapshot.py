"""A snapshot of the state of one partition of `__remote_log_metadata`, which shortens the reading at a restart.

Shape   a checksum (CRC-32C of the rest); a header as JSON; the segments as records of the topic. The header and each
        record are preceded by their length (int32)
Bound   the file is valid for one topic id, partition and partition count, and for a position in the log, identified by
        the batch before it. If the log lost that batch, or ends below that position, it was truncated. The file is then
        unusable, and the log is read from its start.

The file is in the partition's directory and is deleted with it. If it is missing or damaged, the restart only takes
longer.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final, Self, cast
from uuid import UUID

from kbroker.runtime.ports import Disk
from kbroker.storage.checkpoint import read_file, write_atomically
from kbroker.storage.log import Log
from kbroker.tiered.api import RemoteLogSegmentMetadata, TopicIdPartition
from kbroker.tiered.lifecycle import RemoteLogMetadataCache
from kbroker.tiered.metadata_topic import decode_event, encode_event
from wire.crc32c import crc32c
from wire.errors import ErrorCode, KafkaError
from wire.record_batch import batches

FILE_NAME: Final = "remote_log_snapshot"
_VERSION: Final = 2
_INT: Final = struct.Struct(">I")

Caches = dict[TopicIdPartition, RemoteLogMetadataCache]


class Unusable(Exception):
    """The snapshot cannot be used; the text says why."""


@dataclass(slots=True)
class Snapshot:
    """The caches before `position` of the log. It shares no mutable state with them, so a thread may write it.

    Shape  last_batch is (base_offset, crc) of the last batch before `position`; highest_offsets has each partition that
           has a cache
    """

    position: int
    last_batch: tuple[int, int]
    highest_offsets: Mapping[TopicIdPartition, Sequence[tuple[int, int]]]
    segments: Sequence[RemoteLogSegmentMetadata]

    @classmethod
    def of(cls, caches: Caches, position: int, last_batch: tuple[int, int]) -> Self:
        highest_offsets = {partition: cache.highest_offsets for partition, cache in caches.items()}
        segments = list(chain.from_iterable(cache.segments.values() for cache in caches.values()))
        return cls(position, last_batch, highest_offsets, segments)

    def restore(self) -> Caches:
        caches = {partition: RemoteLogMetadataCache(highest) for partition, highest in self.highest_offsets.items()}
        for one in self.segments:
            caches[one.remote_log_segment_id.topic_id_partition].put(one)
        return caches


def write(disk: Disk, log: Log, partition_count: int, snapshot: Snapshot) -> None:
    """Replace the snapshot in the directory of this log. Blocking. Errors: OSError."""
    header = {
        "of": _identity(log, partition_count),
        "position": snapshot.position,
        "last_batch": snapshot.last_batch,
        "highest_offsets": [
            (str(partition.topic_id), partition.topic, partition.partition, highest)
            for partition, highest in snapshot.highest_offsets.items()
        ],
    }
    parts = (json.dumps(header).encode(), *map(encode_event, snapshot.segments))
    body = b"".join(_INT.pack(len(part)) + part for part in parts)
    write_atomically(disk, f"{log.directory}/{FILE_NAME}", _INT.pack(crc32c(body)) + body)


def read(disk: Disk, log: Log, partition_count: int) -> Snapshot:
    """The snapshot, if it fits this log. Blocking. Errors: Unusable, OSError (FileNotFoundError if there is none)."""
    data = memoryview(read_file(disk, f"{log.directory}/{FILE_NAME}"))
    if len(data) < _INT.size or crc32c(data[_INT.size :]) != _INT.unpack_from(data)[0]:
        raise Unusable("it is damaged: the checksum is wrong")
    parts = _parts(data[_INT.size :])
    try:
        header = json.loads(bytes(next(parts, b"")))
    except ValueError as error:
        raise Unusable(f"it has another format: {error}") from error
    if header["of"] != _identity(log, partition_count):
        raise Unusable("it is of another version, topic, partition, or number of partitions")
    position, (base_offset, crc) = header["position"], header["last_batch"]
    if position > log.log_end_offset:
        raise Unusable(f"it was taken at offset {position}, but the log ends at {log.log_end_offset}")
    if base_offset >= log.local_log_start_offset and crc != _crc_at(log, base_offset):
        raise Unusable(f"the log has another batch at offset {base_offset}")
    highest_offsets = {
        TopicIdPartition(UUID(topic_id), topic, index): highest
        for topic_id, topic, index, highest in header["highest_offsets"]
    }
    segments = [cast(RemoteLogSegmentMetadata, decode_event(part)) for part in parts]
    return Snapshot(position, (base_offset, crc), highest_offsets, segments)


def _identity(log: Log, partition_count: int) -> list[object]:
    return [_VERSION, str(log.topic_id), log.partition, partition_count]


def _parts(body: memoryview) -> Iterator[memoryview]:
    at = 0
    while at < len(body):
        end = at + _INT.size + _INT.unpack_from(body, at)[0]
        yield body[at + _INT.size : end]
        at = end


def _crc_at(log: Log, offset: int) -> int | None:
    try:
        data = log.read(offset, max_bytes=1).read()
    except KafkaError as error:
        if error.code is ErrorCode.KAFKA_STORAGE_ERROR:
            raise
        return None
    return next((batch.crc for batch in batches(data) if batch.base_offset == offset), None)
