"""The events of `__remote_log_metadata`, by Fetch, also where a batch or a record of it cannot be read.

Any client may write to the topic, and disks rot. What cannot be read is skipped, counted and told, as the broker itself
does (`kbroker.tiered.metadata_reading`), by the same functions. It can cost a job what it knows of a segment, never
records: their offsets are still planned, and are then fetched from the broker or are an error.

Here the log is seen only as far as the broker gives it. It gives its bytes as they lie, but cannot always find an
offset behind a damaged header. So what lies behind damage is looked for in the same answer, and where an answer has
nothing, later offsets are asked for, each twice as far away: that may cost as much again as the damage did, and comes
to its end whatever the offsets pretend to be.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Final

from kbroker.spark.client import CORRUPT_MESSAGE, FETCH_WAIT_MS, BrokerClient
from kbroker.spark.fetching import EMPTY_ANSWERS, check_end, no_records, why_not
from kbroker.spark.pieces import TailPiece
from kbroker.storage.valid_batches import valid_batches
from kbroker.tiered.metadata_topic import Events, read_events

DOUBTFUL_ANSWERS: Final = 4
"""So many answers without a byte, each of which has waited for records, are no accident any more."""

logger = logging.getLogger("kbroker.spark")


def fetch_events(client: BrokerClient, piece: TailPiece, *, partition_count: int) -> Iterator[Events]:
    """The events of a piece of the metadata topic, and what was skipped of it: together all of its offsets.

    Errors  TopicRecreated, UnknownTopic, RecordsExpired, OffsetsOutOfRange, BrokerUnavailable
    """
    offset = asked = piece.start_offset
    empty = 0
    while offset < piece.end_offset:
        fetched = client.fetch(
            piece.topic_id, (piece.topic, piece.partition), asked, wait_ms=FETCH_WAIT_MS if asked == offset else 0
        )
        if fetched.error_code not in (0, CORRUPT_MESSAGE):
            raise why_not(client, piece, asked, fetched.error_code)
        # A whole batch may reach beyond the piece, but none beyond what is committed.
        found = events_in(
            fetched.records, offset, end_offset=max(piece.end_offset, fetched.high_watermark),
            partition=piece.partition, partition_count=partition_count,
        )  # fmt: skip
        if found.next_offset == offset:
            empty = 0 if fetched.records or fetched.error_code else empty + 1
            if asked == offset and empty > 0:
                if fetched.high_watermark < piece.end_offset:  # perhaps of a leader that does not know it yet
                    check_end(client, piece, offset)
                    if empty >= EMPTY_ANSWERS:
                        raise no_records(piece, offset)
                    continue
                if empty < DOUBTFUL_ANSWERS:
                    continue
            asked = offset + max(1, 2 * (asked - offset))
            if asked < piece.end_offset:
                continue
            found.skip_to(piece.end_offset, "damaged")
        found = _within(found, piece.end_offset)
        yield found
        offset = asked = found.next_offset
        empty = 0


def events_in(data: bytes, offset: int, *, end_offset: int, partition: int, partition_count: int) -> Events:
    """The events in [offset, end_offset) of bytes of the topic's log, whatever lies between its batches. Behind the
    last batch that is whole nothing is told: the bytes may only be cut off there.
    """
    found = Events(offset)
    for position, batch in valid_batches(lambda size, at: data[at : at + size], len(data)):
        # The checksum does not cover the base offset.
        if batch.next_offset <= found.next_offset or not batch.base_offset < batch.next_offset <= end_offset:
            continue
        found.skip_to(batch.base_offset, "damaged")
        more = read_events(
            memoryview(data)[position:], found.next_offset, end_offset=end_offset, partition=partition,
            partition_count=partition_count,
        )  # fmt: skip
        found.events += more.events
        found.skipped += more.skipped
        found.next_offset = more.next_offset
    return found


def _within(found: Events, end_offset: int) -> Events:
    """What of it lies below `end_offset`."""
    if found.next_offset <= end_offset:
        return found
    events = [each for each in found.events if each[0] < end_offset]
    skipped = [(at, min(count, end_offset - at), why) for at, count, why in found.skipped if at < end_offset]
    return Events(end_offset, events, skipped)


def tell_skipped(piece: TailPiece, found: Events) -> None:
    """Say in the job's log what of the events cannot be read."""
    if found.skipped:
        offset, _, why = found.skipped[0]
        count = sum(each[1] for each in found.skipped)
        logger.warning(
            "%d records of %s-%d cannot be read and are skipped, the first at offset %d: %s",
            count, piece.topic, piece.partition, offset, why,
        )  # fmt: skip
