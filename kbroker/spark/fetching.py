"""The batches of a range of offsets, by one Fetch after the other from the broker that leads the partition.

It does not matter whether the broker has them in its log or in the tier by now. The same checks are made as of an
object's bytes, and it is only the end of the range that ends the reading: an answer without records is asked for again
for a while, and then it is an error.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from kbroker.spark.client import (
    CORRUPT_MESSAGE,
    EARLIEST,
    FETCH_BYTES,
    LATEST,
    OFFSET_OUT_OF_RANGE,
    BrokerClient,
    Topic,
)
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
from wire.record_batch import HEADER_SIZE, Batches, RecordBatch, batches
from wire.types import ZERO_UUID, uuid_to_text

EMPTY_ANSWERS: Final = 60  # each of them has waited for records


def fetch_batches(client: BrokerClient, piece: TailPiece, *, max_bytes: int = FETCH_BYTES) -> Iterator[RecordBatch]:
    """The batches that have the offsets of a piece, in their order; the first and the last may reach beyond it. All
    that is below the offset that an error names has been given.

    Errors  TopicRecreated, UnknownTopic, RecordsExpired, OffsetsOutOfRange, BrokerUnavailable, DamagedObject
    """
    offset, empty = piece.start_offset, 0
    while offset < piece.end_offset:
        fetched = client.fetch(piece.topic_id, (piece.topic, piece.partition), offset, max_bytes=max_bytes)
        if fetched.error_code:
            raise why_not(client, piece, offset, fetched.error_code)
        before = offset
        found = batches(fetched.records)
        for batch in found:
            if batch.base_offset >= piece.end_offset:
                return
            if batch.next_offset <= offset:
                continue
            if not batch.crc_is_valid():
                raise damaged(piece, offset, "its CRC is wrong")
            yield batch
            offset = batch.next_offset
        if offset > before:
            empty = 0
            continue
        _check_answer(piece, found, offset)
        empty += 1
        if empty >= EMPTY_ANSWERS:
            raise no_records(piece, offset)
        if fetched.high_watermark < piece.end_offset:
            check_end(client, piece, offset)


def check_topic(client: BrokerClient, piece: TailPiece) -> Topic:
    """The topic, which still is the one that was planned. Errors: TopicRecreated, UnknownTopic."""
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
    return topic


def why_not(client: BrokerClient, piece: TailPiece, offset: int, code: int) -> KbrokerSourceError:
    """What it means that a broker refuses an offset that it had when the job was planned."""
    if code == CORRUPT_MESSAGE:
        return damaged(piece, offset, "it is damaged on the broker's disk")
    check_topic(client, piece)
    partition = piece.topic, piece.partition
    start = client.offsets({partition: EARLIEST})[partition].offset
    if start > offset:
        return expired(piece.topic, piece.partition, offset, log_start_offset=start)
    if code != OFFSET_OUT_OF_RANGE:
        return BrokerUnavailable(
            "the broker that leads the partition changed", remedy="start the job again", topic=piece.topic,
            partition=piece.partition, offset=offset,
        )  # fmt: skip
    check_end(client, piece, offset)
    return no_records(piece, offset)


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


def check_end(client: BrokerClient, piece: TailPiece, offset: int) -> None:
    """Errors: OffsetsOutOfRange if the log is shorter than it was. A new leader that does not know yet how far its
    followers are says so to ListOffsets, which is asked again, while its Fetch tells a high watermark that is too low.
    """
    partition = piece.topic, piece.partition
    end = client.offsets({partition: LATEST})[partition].offset
    if end < piece.end_offset:
        raise OffsetsOutOfRange(
            f"the log ends at offset {end} now, and had {piece.end_offset - 1} when the job was planned:"
            " a leader was elected that had not got it",
            remedy="start the job again; what was lost is lost (see unclean.leader.election.enable)",
            topic=piece.topic,
            partition=piece.partition,
            offset=offset,
        )


def no_records(piece: TailPiece, offset: int) -> BrokerUnavailable:
    return BrokerUnavailable(
        "the broker sends no records, though it has some",
        remedy="see the broker's log, and start the job again",
        topic=piece.topic,
        partition=piece.partition,
        offset=offset,
    )


def _check_answer(piece: TailPiece, found: Batches, offset: int) -> None:
    """Errors: DamagedObject for bytes that are no batch, and for a batch that no answer is large enough for."""
    if found.error is not None and len(found.buffer) - found.position >= HEADER_SIZE:
        raise damaged(piece, offset, str(found.error))


def damaged(
    piece: TailPiece, offset: int, what: str, kind: type[KbrokerSourceError] = DamagedObject
) -> KbrokerSourceError:
    """What to say of a batch that a broker sent and that is none."""
    return kind(
        f"the broker sent a batch that cannot be read: {what}",
        remedy="run kbroker verify on its data directory, and kbroker tier scrub",
        topic=piece.topic,
        partition=piece.partition,
        offset=offset,
    )
