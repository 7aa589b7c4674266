"""Reads the records that the tier has not got: by Fetch, from the broker that leads the partition.

What a piece promises is a range of offsets, so it does not matter whether the broker has them in its log or in the tier
by now. The same checks are made as of an object's bytes, and it is only the end of the range that ends the reading:
an answer without records is asked for again for a while, and then it is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

import pyarrow as pa

from kbroker.spark.client import EARLIEST, LATEST, OFFSET_OUT_OF_RANGE, BrokerClient
from kbroker.spark.columns import COLUMNS, RowsBuilder
from kbroker.spark.errors import (
    BrokerUnavailable,
    DamagedObject,
    KbrokerSourceError,
    OffsetsOutOfRange,
    RecordsExpired,
    TopicRecreated,
    unknown_topic,
)
from kbroker.spark.pieces import TailPiece
from kbroker.spark.segment_reading import is_visible
from wire.record_batch import Batches, RecordBatch, batches
from wire.types import ZERO_UUID, uuid_to_text

EMPTY_ANSWERS: Final = 60  # each of them has waited for records


def read_tail(
    client: BrokerClient,
    piece: TailPiece,
    columns: Sequence[str] = COLUMNS,
    *,
    chunk_bytes: int,
    visible: Callable[[RecordBatch], bool] = is_visible,
) -> Iterator[pa.RecordBatch]:
    """The rows of a piece, in the order of their offsets. What an error names as its offset is of no row yet.

    Errors  TopicRecreated, UnknownTopic, RecordsExpired, OffsetsOutOfRange, BrokerUnavailable, DamagedObject
    """
    partition = piece.topic, piece.partition
    _check_topic(client, piece)
    rows = RowsBuilder(
        *partition,
        columns,
        start_offset=piece.start_offset,
        end_offset=piece.end_offset,
        error_at=lambda kind, what, offset: _damaged(piece, offset, what, kind),
        rows_bytes=chunk_bytes,
    )
    offset, empty = piece.start_offset, 0
    while offset < piece.end_offset:
        fetched = client.fetch(piece.topic_id, partition, offset, max_bytes=chunk_bytes)
        if fetched.error_code:
            yield from rows.take()
            raise _why_not(client, piece, offset, fetched.error_code)
        before = offset
        found = batches(fetched.records)
        for batch in found:
            if batch.base_offset >= piece.end_offset:
                offset = piece.end_offset
                break
            if batch.next_offset <= offset:
                continue
            if not batch.crc_is_valid():
                yield from rows.take()
                raise _damaged(piece, batch.base_offset, "its CRC is wrong")
            if visible(batch):
                rows.add(batch)
            offset = batch.next_offset
            if rows.is_full:
                yield from rows.take()
        if offset > before:
            empty = 0
            continue
        _check_answer(piece, found, offset)
        empty += 1
        if fetched.high_watermark < piece.end_offset or empty >= EMPTY_ANSWERS:
            yield from rows.take()
            raise _no_records(piece, offset, fetched.high_watermark)
    yield from rows.take()


def _check_topic(client: BrokerClient, piece: TailPiece) -> None:
    """Errors: TopicRecreated, UnknownTopic."""
    topic = client.topics([piece.topic]).get(piece.topic)
    if topic is None:
        raise unknown_topic(piece.topic)
    if topic.id != piece.topic_id and ZERO_UUID not in (topic.id, piece.topic_id):
        raise TopicRecreated(
            f"the topic was deleted and created again since the job was planned: its id is {uuid_to_text(topic.id)},"
            f" and was {uuid_to_text(piece.topic_id)}",
            remedy="start the job again; the records of the deleted topic are gone",
            topic=piece.topic,
            partition=piece.partition,
            offset=piece.start_offset,
        )
    if piece.partition not in topic.leaders:
        raise unknown_topic(piece.topic, piece.partition)


def _why_not(client: BrokerClient, piece: TailPiece, offset: int, code: int) -> KbrokerSourceError:
    """What it means that a broker refuses an offset that it had when the job was planned."""
    _check_topic(client, piece)
    partition = piece.topic, piece.partition
    start = client.offsets({partition: EARLIEST})[partition].offset
    if start > offset:
        return expired(piece.topic, piece.partition, offset, log_start_offset=start)
    if code != OFFSET_OUT_OF_RANGE:
        return BrokerUnavailable(
            "the broker that leads the partition changed", remedy="start the job again", topic=piece.topic,
            partition=piece.partition, offset=offset,
        )  # fmt: skip
    return _no_records(piece, offset, client.offsets({partition: LATEST})[partition].offset)


def expired(topic: str, partition: int, offset: int, *, log_start_offset: int) -> RecordsExpired:
    """What to say of records that were deleted while a job ran."""
    return RecordsExpired(
        f"the records up to offset {log_start_offset - 1} were deleted while the job ran, by retention or by"
        " DeleteRecords",
        remedy="start the job again with what is left, or keep records longer (retention.ms, retention.bytes);"
        " failOnDataLoss=false leaves them out",
        topic=topic,
        partition=partition,
        offset=offset,
    )


def _no_records(piece: TailPiece, offset: int, high_watermark: int) -> KbrokerSourceError:
    if high_watermark < piece.end_offset:
        return OffsetsOutOfRange(
            f"the log ends at offset {high_watermark} now, and had {piece.end_offset - 1} when the job was planned:"
            " a leader was elected that had not got it",
            remedy="start the job again; what was lost is lost (see unclean.leader.election.enable)",
            topic=piece.topic,
            partition=piece.partition,
            offset=offset,
        )
    return BrokerUnavailable(
        "the broker sends no records, though it has some",
        remedy="see the broker's log, and start the job again",
        topic=piece.topic,
        partition=piece.partition,
        offset=offset,
    )


def _check_answer(piece: TailPiece, found: Batches, offset: int) -> None:
    """Errors: DamagedObject for bytes that are no batch; a batch that is only cut off is none."""
    if found.error is not None and len(found.buffer) - found.position >= 61:
        raise _damaged(piece, offset, str(found.error))


def _damaged(
    piece: TailPiece, offset: int, what: str, kind: type[KbrokerSourceError] = DamagedObject
) -> KbrokerSourceError:
    return kind(
        f"the broker sent a batch that cannot be read: {what}",
        remedy="run kbroker verify on its data directory, and kbroker tier scrub",
        topic=piece.topic,
        partition=piece.partition,
        offset=offset,
    )
