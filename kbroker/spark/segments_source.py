"""`format("kbroker-segments")`: the segments of the tier as rows.

A batch query returns one row for each segment in the metadata, in its latest state, including deleted ones. A streaming
query returns one row for each event of `__remote_log_metadata`, with its position in that topic. The first event of a
segment has all columns; later events have only the id and the new state, and null in the other columns.

Options are those of `format("kbroker")` except for the positions of records. Without a subscription all topics are
included. A batch query needs no broker: it can use the manifests in the store.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import UUID

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    IntegerType,
    LongType,
    StringType,
    StructType,
    TimestampType,
)

from kbroker.spark.client import EARLIEST, LATEST, kept_client
from kbroker.spark.errors import InvalidOption, OffsetsOutOfRange, RecordsExpired, same_topics, unknown_topic
from kbroker.spark.fetching import check_topic, offset_now
from kbroker.spark.metadata_fetching import CatalogueFollower, fetch_events, tell_skipped
from kbroker.spark.options import SourceOptions, Subscription, subscriptions_in
from kbroker.spark.pieces import TailPiece
from kbroker.spark.positions import Edge
from kbroker.spark.schema import struct_of
from kbroker.spark.store_inventory import StoreInventory
from kbroker.spark.stores import open_store
from kbroker.spark.worker import settle
from kbroker.tiered.api import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
)
from kbroker.tiered.catalogue import METADATA_TOPIC, Catalogue, id_text, partition_of
from kbroker.tiered.lifecycle import MetadataEvent
from wire.types import uuid_from_text, uuid_to_text

SCHEMA: Final = struct_of(
    topic=StringType(),
    topic_id=StringType(),
    partition=IntegerType(),
    segment_id=StringType(),
    start_offset=LongType(),
    end_offset=LongType(),
    leader_epochs=ArrayType(struct_of(leader_epoch=IntegerType(), start_offset=LongType())),
    state=StringType(),
    size_bytes=LongType(),
    max_timestamp=TimestampType(),
    event_timestamp=TimestampType(),
    broker_id=IntegerType(),
    custom_metadata=BinaryType(),
    txn_index_empty=BooleanType(),
    metadata_partition=IntegerType(),
    metadata_offset=LongType(),
)
TOPIC_ID: Final = "topic id"

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

SegmentRow = tuple[Any, ...]


def options_of(options: Mapping[str, str]) -> SourceOptions:
    """Errors: InvalidOption."""
    everything = {} if subscriptions_in(options) else {"subscribePattern": ".*"}
    return SourceOptions.parse({**options, **everything})


def refuse_other(schema: StructType) -> None:
    """Errors: InvalidOption if the user gives another schema."""
    if schema.simpleString() != SCHEMA.simpleString():
        raise InvalidOption("the columns of segments cannot be chosen by a schema", remedy="select them afterwards")


# --- a batch ----------------------------------------------------------------------------------------------------------


def read_catalogue(options: SourceOptions) -> Catalogue:
    """The tier's metadata, from the broker if one is named, else from the store. Errors: KbrokerSourceError."""
    if options.client is not None:
        with kept_client(options.client) as client:
            return CatalogueFollower(client).read()
    assert options.store is not None, "options name a broker or a store"
    return StoreInventory(open_store(options.store)).catalogue(options.subscription)


def chosen_segments(options: SourceOptions, catalogue: Catalogue) -> list[RemoteLogSegmentMetadata]:
    """The segments of the subscribed topics. Errors: UnknownTopic for a named topic that does not exist."""
    subscription = options.subscription
    found = [each for each in catalogue.of(None) if subscription.has(*partition_of(each))]
    there = {each.remote_log_segment_id.topic_id_partition.topic for each in found}
    for name in subscription.names or ():
        if name not in there and not _exists(options, name):
            raise unknown_topic(name)
    return found


def _exists(options: SourceOptions, name: str) -> bool:
    if options.client is None:
        return False
    with kept_client(options.client) as client:
        return name in client.topics([name])


class SegmentsReader(DataSourceReader):
    """A batch query. One task reads the metadata."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = options_of(options)
        if self._options.starting is not None or self._options.ending is not None:
            raise InvalidOption(
                "options for the position of records have no meaning for segments",
                remedy="remove startingOffsets, endingOffsets and similar options, and filter the rows",
            )

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(0)]

    def read(self, partition: InputPartition | None) -> Iterator[SegmentRow]:
        del partition
        settle()
        return map(segment_row, chosen_segments(self._options, read_catalogue(self._options)))


def segment_row(segment: RemoteLogSegmentMetadata) -> SegmentRow:
    """The row of a segment."""
    topic_id, topic, partition = segment.remote_log_segment_id.topic_id_partition
    return (
        topic, uuid_to_text(topic_id), partition, id_text(segment), segment.start_offset, segment.end_offset,
        list(segment.segment_leader_epochs), segment.state.name, segment.segment_size_in_bytes,
        _time(segment.max_timestamp_ms), _time(segment.event_timestamp_ms), segment.broker_id,
        segment.custom_metadata, segment.txn_index_empty, None, None,
    )  # fmt: skip


def _time(timestamp_ms: int) -> datetime | None:
    """None for a missing time, or one that Spark cannot represent."""
    try:
        return _EPOCH + timedelta(milliseconds=timestamp_ms) if timestamp_ms >= 0 else None
    except OverflowError:
        return None


# --- a stream ---------------------------------------------------------------------------------------------------------


class SegmentsStreamReader(DataSourceStreamReader):
    """The events of the metadata topic, from its beginning, or from now on with startingOffsets=latest.

    Shape  an offset is {"topic id": ..., "0": n, ...} with the next offset of each partition of the metadata topic
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        found = options_of(options)
        if found.client is None:
            raise InvalidOption("a stream of segments needs a broker", remedy="set kafka.bootstrap.servers")
        if not isinstance(found.starting, Edge | None) or found.ending is not None:
            raise InvalidOption(
                "a stream of segments cannot begin at an offset or a time, and cannot have an end",
                remedy="set startingOffsets to earliest or latest, and remove the other options",
            )
        self._options = found
        self._client_settings = found.client

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  (PySpark's names)
        return self._at(LATEST if self._options.starting is Edge.LATEST else EARLIEST)

    def latestOffset(self) -> dict[str, Any]:  # noqa: N802
        return self._at(LATEST)

    def _at(self, spec: int) -> dict[str, Any]:
        with kept_client(self._client_settings) as client:
            topic = client.topics([METADATA_TOPIC]).get(METADATA_TOPIC)
            if topic is None:
                raise unknown_topic(METADATA_TOPIC)
            offsets = client.offsets({(METADATA_TOPIC, index): spec for index in topic.leaders})
        return {TOPIC_ID: uuid_to_text(topic.id)} | {str(at): each.offset for (_, at), each in sorted(offsets.items())}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """One for each partition of the metadata topic that has new events."""
        (begins, known), (ends, topic_id) = _read(start), _read(end)
        same_topics({METADATA_TOPIC: known}, [(METADATA_TOPIC, topic_id)])
        pieces = [TailPiece(METADATA_TOPIC, topic_id, at, begins.get(at, 0), to) for at, to in ends.items()]
        for piece in pieces:
            if piece.start_offset > piece.end_offset:
                raise OffsetsOutOfRange(
                    f"the log ends at offset {piece.end_offset} now, but the stream has read up to"
                    f" {piece.start_offset}: the broker lost events",
                    remedy="start again with another checkpoint", at=piece.topic_partition,
                    offset=piece.start_offset,
                )  # fmt: skip
        return [InputPartition(piece) for piece in pieces if piece.start_offset < piece.end_offset]

    def read(self, partition: InputPartition) -> Iterator[SegmentRow]:
        settle()
        piece: TailPiece = partition.value
        with kept_client(self._client_settings) as client:
            topic = check_topic(client, piece)
            first = offset_now(client, piece, EARLIEST)
            if first > piece.start_offset:
                raise RecordsExpired(
                    f"the events up to offset {first - 1} have been deleted",
                    remedy="start again with another checkpoint",
                    at=piece.topic_partition,
                    offset=piece.start_offset,
                )
            for found in fetch_events(client, piece, partition_count=len(topic.leaders)):
                tell_skipped(piece, found)
                for offset, event in found.events:
                    row = event_row(event, self._options.subscription, piece.partition, offset)
                    if row is not None:
                        yield row

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing to do: Spark's checkpoint stores the offsets."""


def _read(offsets: Mapping[str, Any]) -> tuple[dict[int, int], UUID]:
    """A stream's position by partition, and the topic's id. Errors: InvalidOption."""
    try:
        topic_id = uuid_from_text(offsets[TOPIC_ID])
        return {int(at): int(offset) for at, offset in offsets.items() if at != TOPIC_ID}, topic_id
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise InvalidOption(
            f"the offsets of the checkpoint are not from this source: {error!r}", remedy="use another checkpoint"
        ) from error


def event_row(event: MetadataEvent, subscription: Subscription, partition: int, offset: int) -> SegmentRow | None:
    """The row of an event; None for events of other partitions."""
    id_ = event.remote_log_segment_id.topic_id_partition
    if not subscription.has(id_.topic, id_.partition):
        return None
    if isinstance(event, RemoteLogSegmentMetadata):
        return (*segment_row(event)[:-2], partition, offset)
    return (
        id_.topic, uuid_to_text(id_.topic_id), id_.partition, uuid_to_text(event.remote_log_segment_id.id),
        None, None, None, RemoteLogSegmentState(event.state).name, None, None, _time(event.event_timestamp_ms),
        event.broker_id, event.custom_metadata, None, partition, offset,
    )  # fmt: skip
