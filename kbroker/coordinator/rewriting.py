"""The live state of a shard as records, in pieces, to be written anew at the end of its log.

Each piece is what is true at the moment when it is taken, and the caller appends it before anything else is decided.
Changes between two pieces go to the log as always. So whoever reads from the first piece on finds for each key either
its last change, or a piece that repeats it, and never a value that was followed by another before: what is deleted
after its piece has its tombstone behind it, and what is deleted before has no piece.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from kbroker.coordinator.led import LedPartition
from kbroker.coordinator.offsets import CommittedOffset
from kbroker.coordinator.records import OffsetRecord
from wire.stored.groups import OffsetCommitKey, OffsetCommitValue

RECORDS_IN_PIECE: Final = 250
RECORD_OVERHEAD_BYTES: Final = 12
MOST_OVERHEAD_BYTES: Final = 128
BATCH_OVERHEAD_BYTES: Final = 128
PIECE_BYTES: Final = 128 * 1024


class StoredBytes(NamedTuple):
    """A record as it was stored before."""

    key: bytes
    value: bytes | None


Piece = list[StoredBytes | OffsetRecord]


def live_pieces(led: LedPartition) -> Iterator[Piece]:
    """The stored record of each group, then the offsets of all groups; each piece fits into one batch."""
    most_bytes = min(PIECE_BYTES, led.partition.log.config.max_message_bytes - BATCH_OVERHEAD_BYTES)
    piece: Piece = []
    piece_bytes = 0
    for key in list(led.group_records):
        value = led.group_records.get(key)
        if piece and (len(piece) >= RECORDS_IN_PIECE or piece_bytes + _most_bytes_of_stored(key, value) > most_bytes):
            yield piece
            piece, piece_bytes = [], 0
            value = led.group_records.get(key)  # which may be another by now
        if value is not None:
            piece.append(StoredBytes(key, value))
            piece_bytes += _most_bytes_of_stored(key, value)
    # A piece holds no values from before a yield: what is here is complete before offsets are looked at.
    if piece:
        yield piece
    yield from _offsets(led, most_bytes)


def _offsets(led: LedPartition, most_bytes: int) -> Iterator[Piece]:
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
            found = led.shard.offsets_of(group_id).get(topic, {}).get(partition)  # which may be another by now
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
    """No fewer bytes than the record takes, without encoding it: a character has at most four."""
    return 4 * (len(group_id) + len(topic) + len(found.metadata)) + MOST_OVERHEAD_BYTES


def _places(led: LedPartition) -> Iterator[tuple[str, str, int]]:
    """Where offsets are committed. What comes to a group after it was listed is in the log already."""
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
    """About as many bytes as the piece takes in the log, without compression."""
    return sum(len(record.key) + len(record.value or b"") + RECORD_OVERHEAD_BYTES for record in piece)
