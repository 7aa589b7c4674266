"""Fetches the tier's metadata, the events of `__remote_log_metadata`, and skips what cannot be read.

Any client may write to the topic, and disks fail. Unreadable records are skipped, counted and logged by the functions
that the broker uses (`kbroker.tiered.metadata_reading`). This may cost a job its knowledge of a segment, but never
records: their offsets are still planned, and are fetched from the broker or are an error.

The log is only visible as far as the broker sends it. The broker sends bytes as they are stored, but may not find an
offset after a damaged header. So the reader looks for the next valid batch in the same answer. If there is none, it
asks for later offsets, doubling the distance each time. That costs at most as much again as the damage, and it always
ends, whatever the offsets claim.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Final

from kbroker.spark.client import EARLIEST, FETCH_WAIT_MS, LATEST, BrokerClient, Topic
from kbroker.spark.errors import KbrokerSourceError
from kbroker.spark.fetching import EMPTY_ANSWERS, check_end, no_records, why_not
from kbroker.spark.pieces import TailPiece
from kbroker.spark.positions import Partition
from kbroker.storage.valid_batches import valid_batches
from kbroker.tiered.catalogue import METADATA_TOPIC, Catalogue
from kbroker.tiered.metadata_topic import Events, read_events
from wire.errors import ErrorCode

DOUBTFUL_ANSWERS: Final = 4
"""After this many empty answers, for each of which the broker waited, the offset counts as damaged."""

logger = logging.getLogger("kbroker.spark")


def fetch_events(client: BrokerClient, piece: TailPiece, *, partition_count: int) -> Iterator[Events]:
    """The events of a piece of the metadata topic, and what was skipped; together they cover all offsets of the piece.

    Errors  TopicRecreated, UnknownTopic, RecordsExpired, OffsetsOutOfRange, BrokerUnavailable
    """
    offset = asked = piece.start_offset
    empty = 0
    while offset < piece.end_offset:
        fetched = client.fetch(
            piece.topic_id, piece.topic_partition, asked, wait_ms=FETCH_WAIT_MS if asked == offset else 0
        )
        if fetched.error_code not in (0, ErrorCode.CORRUPT_MESSAGE):
            raise why_not(client, piece, asked, fetched.error_code)
        # A batch may extend beyond the piece, but not beyond the high watermark.
        found = events_in(
            fetched.records, offset, end_offset=max(piece.end_offset, fetched.high_watermark),
            partition=piece.partition, partition_count=partition_count,
        )  # fmt: skip
        if found.next_offset == offset:
            empty = 0 if fetched.records or fetched.error_code else empty + 1
            if asked == offset and empty > 0:
                if fetched.high_watermark < piece.end_offset:  # maybe a new leader that does not know it yet
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
    """The events in [offset, end_offset) of bytes of the topic's log, which may have damage between batches. Nothing is
    reported after the last complete batch: the bytes may just be cut off there.
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
    """The part of `found` below `end_offset`."""
    if found.next_offset <= end_offset:
        return found
    events = [each for each in found.events if each[0] < end_offset]
    skipped = [(at, min(count, end_offset - at), why) for at, count, why in found.skipped if at < end_offset]
    return Events(end_offset, events, skipped)


def tell_skipped(piece: TailPiece, found: Events) -> None:
    """Log what was skipped."""
    if found.skipped:
        offset, _, why = found.skipped[0]
        count = sum(each[1] for each in found.skipped)
        logger.warning(
            "%d records of %s-%d cannot be read and are skipped, the first at offset %d: %s",
            count, piece.topic, piece.partition, offset, why,
        )  # fmt: skip


class CatalogueFollower:
    """The contents of `__remote_log_metadata`. Each `read` continues where the previous one stopped.

    Records that cannot be read are counted, and logged unless `is_quiet`.
    """

    def __init__(self, client: BrokerClient, *, is_quiet: bool = False) -> None:
        self._client = client
        self._is_quiet = is_quiet
        self._topic: Topic | None = None
        self._next: dict[Partition, int] = {}
        self._found = Catalogue()

    def read(self) -> Catalogue:
        """The metadata up to the topic's current end; empty if the topic does not exist. Errors: KbrokerSourceError."""
        topic = self._client.topics([METADATA_TOPIC]).get(METADATA_TOPIC)
        if topic is None or self._topic is None or topic.id != self._topic.id:
            self._next, self._found = {}, Catalogue()
        self._topic = topic
        if topic is None:
            return self._found
        partitions = [(METADATA_TOPIC, index) for index in topic.leaders]
        ends = self._client.offsets(dict.fromkeys(partitions, LATEST))
        if behind := [each for each in partitions if self._next.get(each, 0) < ends[each].offset]:
            starts = self._client.offsets(dict.fromkeys(behind, EARLIEST))
            for partition in behind:
                start = starts[partition].offset
                if start > self._next.get(partition, 0):
                    self._found.is_whole = False
                self._read(topic, partition, max(start, self._next.get(partition, 0)), ends[partition].offset)
        return self._found

    def read_on(self) -> Catalogue:
        """Like `read`, but returns a copy, and fails if the topic was deleted or created again since the last `read`:
        otherwise all segments would seem to be deleted. Errors: KbrokerSourceError.
        """
        before = self._topic
        found = self.read().copy()
        if before is not None and (self._topic is None or self._topic.id != before.id):
            raise KbrokerSourceError(f"{METADATA_TOPIC} was deleted while it was read", remedy="start again")
        return found

    def _read(self, topic: Topic, partition: Partition, offset: int, end: int) -> None:
        piece = TailPiece(METADATA_TOPIC, topic.id, partition[1], offset, end)
        self._next[partition] = offset
        for found in fetch_events(self._client, piece, partition_count=len(topic.leaders)):
            # Updated after each answer, so that a retry after an error counts nothing twice.
            self._next[partition] = found.next_offset
            if not self._is_quiet:
                tell_skipped(piece, found)
            self._found.unreadable += sum(count for _, count, _ in found.skipped)
            for _, event in found.events:
                self._found.replay_event(event)
