"""Reads the batches of an offset range with Fetch requests to the partition's leader.

It does not matter whether the broker has them in its local log or in the tier. Batches are checked like the bytes of an
object. Reading ends only at the end of the range: an answer without records is retried, and after EMPTY_ANSWERS of them
it is an error.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from kbroker.spark.client import (
    EARLIEST,
    FETCH_BYTES,
    LATEST,
    BrokerClient,
    Topic,
)
from kbroker.spark.errors import (
    BrokerUnavailable,
    DamagedObject,
    KbrokerSourceError,
    OffsetsOutOfRange,
    expired,
    same_topics,
    unknown_topic,
)
from kbroker.spark.pieces import Piece, TailPiece
from wire.batch_header import HEADER_SIZE
from wire.errors import ErrorCode
from wire.record_batch import RecordBatch, batches

EMPTY_ANSWERS: Final = 60  # the broker waits for records before each of them


def fetch_batches(client: BrokerClient, piece: TailPiece, *, max_bytes: int = FETCH_BYTES) -> Iterator[RecordBatch]:
    """The batches with the offsets of a piece, in order; the first and the last may extend beyond the piece. If this
    raises, everything below the error's offset has been yielded. With is_committed_only batches of aborted transactions
    are left out.

    Errors  TopicRecreated, UnknownTopic, RecordsExpired, OffsetsOutOfRange, BrokerUnavailable, DamagedObject
    """
    offset, empty = piece.start_offset, 0
    while offset < piece.end_offset:
        fetched = client.fetch(
            piece.topic_id,
            piece.topic_partition,
            offset,
            max_bytes=max_bytes,
            is_committed_only=piece.is_committed_only,
        )
        if fetched.error_code:
            raise why_not(client, piece, offset, fetched.error_code)
        before = offset
        found = batches(fetched.records)
        aborted, ignored = sorted(fetched.aborted, reverse=True), set[int]()
        for batch in found:
            if batch.base_offset >= piece.end_offset:
                return
            while aborted and aborted[-1][0] <= batch.last_offset:
                ignored.add(aborted.pop()[1])
            if batch.is_control and batch.producer_id in ignored:
                ignored.discard(batch.producer_id)  # a marker of this producer ends its aborted transaction
            if batch.next_offset <= offset:
                continue
            if not batch.crc_is_valid():
                raise damaged(piece, offset, "its CRC is wrong")
            if not (batch.is_transactional and batch.producer_id in ignored):
                yield batch
            offset = batch.next_offset
        if offset > before:
            empty = 0
            continue
        if found.error is not None and len(found.buffer) - found.position >= HEADER_SIZE:
            # Bytes that are not a batch, or a batch that fits into no answer.
            raise damaged(piece, offset, str(found.error))
        empty += 1
        if empty >= EMPTY_ANSWERS:
            raise no_records(piece, offset)
        if fetched.high_watermark < piece.end_offset:
            check_end(client, piece, offset)


def check_topic(client: BrokerClient, piece: TailPiece) -> Topic:
    """The topic, checked to be the one that was planned. Errors: TopicRecreated, UnknownTopic."""
    topic = client.topics([piece.topic]).get(piece.topic)
    if topic is None:
        raise unknown_topic(piece.topic)
    same_topics({piece.topic: piece.topic_id}, [(piece.topic, topic.id)])
    if piece.partition not in topic.leaders:
        raise unknown_topic(piece.topic, piece.partition)
    return topic


def why_not(client: BrokerClient, piece: TailPiece, offset: int, code: int) -> KbrokerSourceError:
    """The error for a broker that refuses an offset which it had when the job was planned."""
    if code == ErrorCode.CORRUPT_MESSAGE:
        return damaged(piece, offset, "it is damaged on the broker's disk")
    check_topic(client, piece)
    start = offset_now(client, piece, EARLIEST)
    if start > offset:
        return expired(piece.topic_partition, offset, log_start_offset=start)
    if code != ErrorCode.OFFSET_OUT_OF_RANGE:
        return BrokerUnavailable(
            "the broker that leads the partition changed",
            remedy="start the job again",
            at=piece.topic_partition,
            offset=offset,
        )
    check_end(client, piece, offset)
    return no_records(piece, offset)


def offset_now(client: BrokerClient, piece: Piece, timestamp: int) -> int:
    """The current log start or end offset of a piece's partition."""
    return client.offsets({piece.topic_partition: timestamp})[piece.topic_partition].offset


def check_end(client: BrokerClient, piece: TailPiece, offset: int) -> None:
    """Check that the log has not become shorter. Errors: OffsetsOutOfRange.

    A new leader that does not know its followers' positions yet returns an error to ListOffsets, which is retried,
    while its Fetch answers have a high watermark that is too low. So this asks ListOffsets.
    """
    end = offset_now(client, piece, LATEST)
    if end < piece.end_offset:
        raise OffsetsOutOfRange(
            f"the log ends at offset {end} now, but had offset {piece.end_offset - 1} when the job was planned:"
            " the elected leader did not have it",
            remedy="start the job again; the lost records cannot be recovered (see unclean.leader.election.enable)",
            at=piece.topic_partition,
            offset=offset,
        )


def no_records(piece: TailPiece, offset: int) -> BrokerUnavailable:
    return BrokerUnavailable(
        "the broker sends no records, although it has some",
        remedy="check the broker's log, and start the job again",
        at=piece.topic_partition,
        offset=offset,
    )


def damaged(
    piece: TailPiece, offset: int, what: str, kind: type[KbrokerSourceError] = DamagedObject
) -> KbrokerSourceError:
    """The error for an unreadable batch that a broker sent."""
    return kind(
        f"the broker sent a batch that cannot be read: {what}",
        remedy="run kbroker verify on its data directory, and kbroker tier scrub",
        at=piece.topic_partition,
        offset=offset,
    )
