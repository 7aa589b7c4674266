"""A snapshot of the state of one partition of `__remote_log_metadata`, which shortens the reading at a restart.

Shape   a checksum (CRC-32C of the rest), a header, and for each user partition a header and its segments, each as
        Kafka's framed record 3, preceded by its length
Bound   the file is valid for one topic id, partition and partition count, and for a position in the log, identified by
        the batch before it. If the log lost that batch, or ends below that position, it was truncated. The file is then
        unusable, and the log is read from its start.

The file is in the partition's directory and is deleted with it. If it is missing or damaged, the restart only takes
longer.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from crc32c import crc32c

from kbroker.runtime.ports import Disk
from kbroker.storage.checkpoint import read_file, write_atomically
from kbroker.storage.log import Log
from kbroker.tiered.api import RemoteLogSegmentMetadata, RemotePartitionDeleteState, TopicIdPartition
from kbroker.tiered.lifecycle import RemoteLogMetadataCache, from_snapshot_record, to_snapshot_record
from wire.errors import ErrorCode, KafkaError, Malformed
from wire.record_batch import batches
from wire.stored.frame import decode_record, encode_record
from wire.stored.tiered import RemoteLogSegmentMetadataSnapshotRecord

FILE_NAME: Final = "remote_log_snapshot"
_VERSION: Final = 1
_CRC: Final = struct.Struct(">I")
_HEADER: Final = struct.Struct(">H16siiqqIi")  # version, topic id, partition, count, position, last batch, caches
_PARTITION: Final = struct.Struct(">16sHibii")  # topic id, length of name, partition, delete state, epochs, segments
_EPOCH: Final = struct.Struct(">iq")
_LENGTH: Final = struct.Struct(">I")
_NO_STATE: Final = -1
_TYPES: Final = {3: RemoteLogSegmentMetadataSnapshotRecord}


UserPartition = tuple[UUID, int]


class Unusable(Exception):
    """The snapshot cannot be used; the text says why."""


@dataclass(slots=True)
class CacheContents:
    """A consistent view of one cache. The segments are immutable, so a thread may write them."""

    partition: TopicIdPartition
    delete_state: RemotePartitionDeleteState | None
    highest_offsets: Mapping[int, int]
    segments: Sequence[RemoteLogSegmentMetadata]


@dataclass(slots=True)
class Snapshot:
    """The caches before `position` of the log; the last batch before it is (base_offset, crc)."""

    partition_count: int
    position: int
    last_batch: tuple[int, int]
    caches: list[CacheContents]

    def restore(self) -> dict[UserPartition, RemoteLogMetadataCache]:
        """The caches by topic id and partition."""
        return {
            (one.partition.topic_id, one.partition.partition): RemoteLogMetadataCache.restore(
                one.partition, one.segments, highest_offsets=one.highest_offsets, delete_state=one.delete_state
            )
            for one in self.caches
        }


def contents(caches: Iterable[RemoteLogMetadataCache]) -> list[CacheContents]:
    """The current content of these caches."""
    return [
        CacheContents(cache.partition, cache.delete_state, cache.highest_offsets, cache.list_remote_log_segments())
        for cache in caches
    ]


def write(disk: Disk, log: Log, snapshot: Snapshot) -> None:
    """Replace the snapshot in the directory of this log. Blocking. Errors: OSError."""
    write_atomically(disk, f"{log.directory}/{FILE_NAME}", encode(log, snapshot))


def read(disk: Disk, log: Log, *, partition_count: int) -> Snapshot:
    """The snapshot, if it fits this log. Blocking. Errors: Unusable, OSError (FileNotFoundError if there is none)."""
    data = read_file(disk, f"{log.directory}/{FILE_NAME}")
    try:
        snapshot = decode(data, log, partition_count)
    except (Malformed, ValueError, IndexError, struct.error) as error:
        raise Unusable(f"it is damaged: {error}") from error
    if snapshot.position > log.log_end_offset:
        raise Unusable(f"it was taken at offset {snapshot.position}, but the log ends at {log.log_end_offset}")
    base_offset, crc = snapshot.last_batch
    if base_offset >= log.local_log_start_offset and crc != _crc_at(log, base_offset):
        raise Unusable(f"the log has another batch at offset {base_offset}")
    return snapshot


def _crc_at(log: Log, offset: int) -> int | None:
    try:
        data = log.read(offset, max_bytes=1).read()
    except KafkaError as error:
        if error.code is ErrorCode.KAFKA_STORAGE_ERROR:
            raise
        return None
    return next((batch.crc for batch in batches(data) if batch.base_offset == offset), None)


def _topic_id(log: Log) -> UUID:
    assert log.topic_id is not None
    return log.topic_id


# --- bytes ------------------------------------------------------------------------------------------------------------


def encode(log: Log, snapshot: Snapshot) -> bytes:
    """The bytes of the file."""
    count, position, caches = snapshot.partition_count, snapshot.position, snapshot.caches
    topic_id = _topic_id(log).bytes
    body = bytearray(
        _HEADER.pack(_VERSION, topic_id, log.partition, count, position, *snapshot.last_batch, len(caches))
    )
    for cache in caches:
        name = cache.partition.topic.encode()
        body += _PARTITION.pack(
            cache.partition.topic_id.bytes,
            len(name),
            cache.partition.partition,
            _NO_STATE if cache.delete_state is None else cache.delete_state,
            len(cache.highest_offsets),
            len(cache.segments),
        )
        body += name
        for epoch, highest in cache.highest_offsets.items():
            body += _EPOCH.pack(epoch, highest)
        for segment in cache.segments:
            record = encode_record(to_snapshot_record(segment), 0)
            body += _LENGTH.pack(len(record)) + record
    return _CRC.pack(crc32c(body)) + body


def decode(data: bytes, log: Log, partition_count: int) -> Snapshot:
    """The reverse. Errors: Unusable; Malformed, ValueError or struct.error for a damaged file."""
    body = memoryview(data)[_CRC.size :]
    if len(data) < _CRC.size + _HEADER.size or crc32c(body) != _CRC.unpack_from(data)[0]:
        raise Malformed("the checksum is wrong")
    version, of_topic, of_partition, of_count, position, base_offset, crc, count = _HEADER.unpack_from(body)
    if version != _VERSION:
        raise Unusable(f"it has version {version}")
    if (of_topic, of_partition, of_count) != (_topic_id(log).bytes, log.partition, partition_count):
        raise Unusable("it is of another topic, partition, or number of partitions")
    caches: list[CacheContents] = []
    at = _HEADER.size
    for _ in range(count):
        cache, at = _decode_cache(body, at)
        caches.append(cache)
    return Snapshot(partition_count, position, (base_offset, crc), caches)


def _decode_cache(body: memoryview, at: int) -> tuple[CacheContents, int]:
    topic_id, name_length, index, delete_state, epoch_count, segment_count = _PARTITION.unpack_from(body, at)
    at += _PARTITION.size
    partition = TopicIdPartition(UUID(bytes=topic_id), bytes(body[at : at + name_length]).decode(), index)
    at += name_length
    highest_offsets = dict(_EPOCH.iter_unpack(body[at : at + epoch_count * _EPOCH.size]))
    at += epoch_count * _EPOCH.size
    segments = []
    for _ in range(segment_count):
        end = at + _LENGTH.size + _LENGTH.unpack_from(body, at)[0]
        record, _ = decode_record(body[at + _LENGTH.size : end], _TYPES)
        segments.append(from_snapshot_record(partition, record))
        at = end
    state = None if delete_state == _NO_STATE else RemotePartitionDeleteState(delete_state)
    return CacheContents(partition, state, highest_offsets, segments), at
