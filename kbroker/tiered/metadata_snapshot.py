"""A snapshot of the state of one partition of `__remote_log_metadata`, which shortens the reading at a restart.

Shape   a checksum (CRC-32C of the rest); a header as JSON; the segments as records of the topic. The header and each
        record are preceded by their length (int32)
Bound   the file is valid for one topic id, partition and partition count, and for a position in the log, identified by
        the batch before it and its leader epoch. If the log lost that batch, it was truncated. The caller then reads
        the log from its start.

The file is in the directory of this broker's replica and is deleted with it. If it is missing or damaged, or this
broker has no replica, the restart only takes longer.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final, NamedTuple, Self, cast
from uuid import UUID

from kbroker.runtime.ports import Disk
from kbroker.storage.checkpoint import read_file, write_atomically
from kbroker.tiered.api import RemoteLogSegmentMetadata, TopicIdPartition
from kbroker.tiered.lifecycle import RemoteLogMetadataCache
from kbroker.tiered.metadata_topic import decode_event, encode_event
from wire.crc32c import crc32c

FILE_NAME: Final = "remote_log_snapshot"
_VERSION: Final = 3
_INT: Final = struct.Struct(">I")

Caches = dict[TopicIdPartition, RemoteLogMetadataCache]


class Source(NamedTuple):
    """The log that a snapshot is of."""

    topic_id: UUID
    partition: int
    partition_count: int

    @property
    def identity(self) -> list[object]:
        return [_VERSION, str(self.topic_id), self.partition, self.partition_count]


class Unusable(Exception):
    """The snapshot cannot be used; the text says why."""


@dataclass(slots=True)
class Snapshot:
    """The caches before `position` of the log. It shares no mutable state with them, so a thread may write it.

    Shape  last_batch is (base_offset, crc) of the last batch before `position`, leader_epoch its epoch; highest_offsets
           has each partition that has a cache
    """

    position: int
    last_batch: tuple[int, int]
    leader_epoch: int
    highest_offsets: Mapping[TopicIdPartition, Sequence[tuple[int, int]]]
    segments: Sequence[RemoteLogSegmentMetadata]

    @classmethod
    def of(cls, caches: Caches, position: int, last_batch: tuple[int, int], leader_epoch: int) -> Self:
        highest_offsets = {partition: cache.highest_offsets for partition, cache in caches.items()}
        segments = list(chain.from_iterable(cache.segments.values() for cache in caches.values()))
        return cls(position, last_batch, leader_epoch, highest_offsets, segments)

    def restore(self) -> Caches:
        caches = {partition: RemoteLogMetadataCache(highest) for partition, highest in self.highest_offsets.items()}
        for one in self.segments:
            caches[one.remote_log_segment_id.topic_id_partition].put(one)
        return caches


def write(disk: Disk, directory: str, source: Source, snapshot: Snapshot) -> None:
    """Replace the snapshot in this directory. Blocking. Errors: OSError."""
    header = {
        "of": source.identity,
        "position": snapshot.position,
        "last_batch": snapshot.last_batch,
        "leader_epoch": snapshot.leader_epoch,
        "highest_offsets": [
            (str(partition.topic_id), partition.topic, partition.partition, highest)
            for partition, highest in snapshot.highest_offsets.items()
        ],
    }
    parts = (json.dumps(header).encode(), *map(encode_event, snapshot.segments))
    body = b"".join(_INT.pack(len(part)) + part for part in parts)
    write_atomically(disk, f"{directory}/{FILE_NAME}", _INT.pack(crc32c(body)) + body)


def read(disk: Disk, directory: str, source: Source) -> Snapshot:
    """The snapshot, if it is of this source. Blocking. Errors: Unusable, OSError (FileNotFoundError for none)."""
    data = memoryview(read_file(disk, f"{directory}/{FILE_NAME}"))
    if len(data) < _INT.size or crc32c(data[_INT.size :]) != _INT.unpack_from(data)[0]:
        raise Unusable("it is damaged: the checksum is wrong")
    parts = _parts(data[_INT.size :])
    try:
        header = json.loads(bytes(next(parts, b"")))
    except ValueError as error:
        raise Unusable(f"it has another format: {error}") from error
    if header["of"] != source.identity:
        raise Unusable("it is of another version, topic, partition, or number of partitions")
    base_offset, crc = header["last_batch"]
    highest_offsets = {
        TopicIdPartition(UUID(topic_id), topic, index): highest
        for topic_id, topic, index, highest in header["highest_offsets"]
    }
    segments = [cast(RemoteLogSegmentMetadata, decode_event(part)) for part in parts]
    return Snapshot(header["position"], (base_offset, crc), header["leader_epoch"], highest_offsets, segments)


def _parts(body: memoryview) -> Iterator[memoryview]:
    at = 0
    while at < len(body):
        end = at + _INT.size + _INT.unpack_from(body, at)[0]
        yield body[at + _INT.size : end]
        at = end
