"""The live state of a shard as records, in pieces that the caller appends to the end of its log.

Each piece is current when it is taken, and the caller appends it before the next decision. Changes between two pieces
are appended as usual. So a reader that starts at the first piece finds, for each key, its newest value last: a key that
is deleted after its piece has its tombstone behind the piece, and a key that is deleted before has no piece.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from kbroker.coordinator.common.led import LedPartition
from kbroker.coordinator.offsets import CommittedOffset
from kbroker.coordinator.records import OffsetRecord
from kbroker.coordinator.shard import GroupShard
from wire.stored.groups import OffsetCommitKey, OffsetCommitValue

RECORDS_IN_PIECE: Final = 250
RECORD_OVERHEAD_BYTES: Final = 12
MOST_OVERHEAD_BYTES: Final = 128
BATCH_OVERHEAD_BYTES: Final = 128
PIECE_BYTES: Final = 128 * 1024


class StoredBytes(NamedTuple):
    """A stored record, as key and value bytes."""

    key: bytes
    value: bytes | None


Piece = list[StoredBytes | OffsetRecord]


def live_pieces(led: LedPartition[GroupShard]) -> Iterator[Piece]:
    """The stored record of each group, then the offsets of all groups. Each piece fits into one batch."""
    most_bytes = min(PIECE_BYTES, led.partition.log.config.max_message_bytes - BATCH_OVERHEAD_BYTES)
    piece: Piece = []
    piece_bytes = 0
    for key in list(led.shard.group_records):
        value = led.shard.group_records.get(key)
        if piece and (len(piece) >= RECORDS_IN_PIECE or piece_bytes + _most_bytes_of_stored(key, value) > most_bytes):
            yield piece
            piece, piece_bytes = [], 0
            value = led.shard.group_records.get(key)  # may have changed during the yield
        if value is not None:
            piece.append(StoredBytes(key, value))
            piece_bytes += _most_bytes_of_stored(key, value)
    # A piece must not hold values from before a yield, so this one ends before the offsets start.
    if piece:
        yield piece
    yield from _offsets(led, most_bytes)


def _offsets(led: LedPartition[GroupShard], most_bytes: int) -> Iterator[Piece]:
    piece: Piece = []
    piece_bytes = 0
    for group_id, topic, partition in _places(led):
        found = led.shard.offsets_of(group_id).get(topic, {}).get(partition)
        if found is None:
            continue
        record_bytes = _most_bytes_of_offset(group_id, topic, found)
        if piece and (len(piece) >= RECORDS_IN_PIECE or piece_bytes + record_bytes > most_bytes):
            yield piece
            piece, piece_bytes = [], 0
            found = led.shard.offsets_of(group_id).get(topic, {}).get(partition)  # may have changed
            if found is None:
                continue
            record_bytes = _most_bytes_of_offset(group_id, topic, found)
        piece.append(_offset_record(group_id, topic, partition, found))
        piece_bytes += record_bytes
    if piece:
        yield piece


def _most_bytes_of_stored(key: bytes, value: bytes | None) -> int:
    return len(key) + len(value or b"") + MOST_OVERHEAD_BYTES


def _most_bytes_of_offset(group_id: str, topic: str, found: CommittedOffset) -> int:
    """An upper bound of the record's size without encoding it: a character has at most four bytes."""
    return 4 * (len(group_id) + len(topic) + len(found.metadata)) + MOST_OVERHEAD_BYTES


def _places(led: LedPartition[GroupShard]) -> Iterator[tuple[str, str, int]]:
    """The group, topic and partition of every committed offset. Offsets added after a group is listed are already in
    the log.
    """
    for group_id in led.shard.group_ids():
        of_group = led.shard.offsets_of(group_id)
        for topic, partition in [(topic, partition) for topic, found in of_group.items() for partition in found]:
            yield group_id, topic, partition


def _offset_record(group_id: str, topic: str, partition: int, found: CommittedOffset) -> OffsetRecord:
    return OffsetRecord(
        OffsetCommitKey(group=group_id, topic=topic, partition=partition),
        OffsetCommitValue(
            offset=found.offset,
            leader_epoch=found.leader_epoch,
            metadata=found.metadata,
            commit_timestamp=found.commit_timestamp_ms,
            expire_timestamp=found.expire_timestamp_ms,
            topic_id=found.topic_id,
        ),
    )


def size_of(piece: Piece) -> int:
    """The approximate uncompressed size of a piece in the log."""
    return sum(len(record.key) + len(record.value or b"") + RECORD_OVERHEAD_BYTES for record in piece)
