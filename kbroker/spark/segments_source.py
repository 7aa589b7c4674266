"""`format("kbroker-segments")`: what is in the tier, as rows.

A batch query has a row for each segment that the metadata know, in its last state, deleted ones included. A streaming
query has a row for each event of `__remote_log_metadata` as it comes, with its place in that topic: the first event of
a segment tells all of it, later ones its id and the new state, so that other columns are null.

Options are those of `format("kbroker")`; without a subscription all topics are meant. A batch needs no broker: then the
manifests in the store tell what is there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime
from typing import Any, Final

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from kbroker.spark.catalogue_following import CatalogueFollower
from kbroker.spark.client import EARLIEST, LATEST, BrokerClient, Topic, explain
from kbroker.spark.errors import BrokerUnavailable, InvalidOption, RecordsExpired, TopicRecreated, unknown_topic
from kbroker.spark.options import SourceOptions, Subscription
from kbroker.spark.positions import Edge
from kbroker.spark.store_inventory import StoreInventory
from kbroker.spark.stores import open_store
from kbroker.tiered.api import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
    RemotePartitionDeleteMetadata,
)
from kbroker.tiered.catalogue import METADATA_TOPIC, Catalogue, id_text
from kbroker.tiered.metadata_topic import decode_event
from wire.errors import Malformed
from wire.record_batch import batches
from wire.types import uuid_to_text

NAME: Final = "kbroker-segments"
_EPOCHS: Final = ArrayType(
    StructType([StructField("leader_epoch", IntegerType()), StructField("start_offset", LongType())])
)
SCHEMA: Final = StructType(
    [
        StructField("topic", StringType()),
        StructField("topic_id", StringType()),
        StructField("partition", IntegerType()),
        StructField("segment_id", StringType()),
        StructField("start_offset", LongType()),
        StructField("end_offset", LongType()),
        StructField("leader_epochs", _EPOCHS),
        StructField("state", StringType()),
        StructField("size_bytes", LongType()),
        StructField("max_timestamp", TimestampType()),
        StructField("event_timestamp", TimestampType()),
        StructField("broker_id", IntegerType()),
        StructField("custom_metadata", BinaryType()),
        StructField("txn_index_empty", BooleanType()),
        StructField("metadata_partition", IntegerType()),
        StructField("metadata_offset", LongType()),
    ]
)
TOPIC_ID: Final = "topic id"
SUBSCRIPTIONS: Final = ("subscribe", "subscribepattern", "assign")
NO_BROKER: Final = "a stream of segments needs a broker"

SegmentRow = tuple[Any, ...]


def options_of(options: Mapping[str, str]) -> SourceOptions:
    """Errors: InvalidOption."""
    if any(name.lower() in SUBSCRIPTIONS for name in options):
        return SourceOptions.parse(options)
    return SourceOptions.parse({**options, "subscribePattern": ".*"})


class SegmentsDataSource(DataSource):
    """See the module's text."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        options_of(self.options)
        return SCHEMA

    def reader(self, schema: StructType) -> SegmentsReader:
        _refuse_other(schema)
        return SegmentsReader(self.options)

    def streamReader(self, schema: StructType) -> SegmentsStreamReader:  # noqa: N802  (PySpark's name)
        _refuse_other(schema)
        return SegmentsStreamReader(self.options)


def _refuse_other(schema: StructType) -> None:
    if schema.simpleString() != SCHEMA.simpleString():
        raise InvalidOption("the columns of segments cannot be chosen by a schema", remedy="select them afterwards")


# --- a batch ----------------------------------------------------------------------------------------------------------


def read_catalogue(options: SourceOptions) -> Catalogue:
    """What is known of the tier: by the broker if there is one, else by the store. Errors: KbrokerSourceError."""
    if options.client is not None:
        with closing(BrokerClient(options.client)) as client:
            return CatalogueFollower(client).read()
    assert options.store is not None, "options name a broker or a store"
    inventory = StoreInventory(open_store(options.store))
    topics = inventory.topics(Subscription(pattern=".*"))
    found = Catalogue()
    for state in inventory.states([(topic, at) for topic, (_, indexes) in topics.items() for at in indexes], {}):
        found.segments |= {each.remote_log_segment_id.id: each for each in state.segments}
    return found


def chosen_segments(options: SourceOptions, catalogue: Catalogue) -> list[RemoteLogSegmentMetadata]:
    """The segments of the topics that are meant. Errors: UnknownTopic for one of which nothing is known."""
    subscription = options.subscription
    found = []
    for each in catalogue.of(None):
        partition = each.remote_log_segment_id.topic_id_partition
        if subscription.matches(partition.topic) and (
            not subscription.partitions or (partition.topic, partition.partition) in subscription.partitions
        ):
            found.append(each)
    there = {each.remote_log_segment_id.topic_id_partition.topic for each in found}
    for name in subscription.names or ():
        if name not in there and not _exists(options, name):
            raise unknown_topic(name)
    return found


def _exists(options: SourceOptions, name: str) -> bool:
    if options.client is None:
        return False
    with closing(BrokerClient(options.client)) as client:
        return name in client.topics([name])


class SegmentsReader(DataSourceReader):
    """A batch query: the catalogue is read by one task."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = dict(options)

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(0)]

    def read(self, partition: InputPartition | None) -> Iterator[SegmentRow]:
        del partition
        options = options_of(self._options)
        return map(segment_row, chosen_segments(options, read_catalogue(options)))


def segment_row(segment: RemoteLogSegmentMetadata) -> SegmentRow:
    """A segment with all that is known of it."""
    topic_id, topic, partition = segment.remote_log_segment_id.topic_id_partition
    return (
        topic, uuid_to_text(topic_id), partition, id_text(segment), segment.start_offset, segment.end_offset,
        list(segment.segment_leader_epochs), segment.state.name, segment.segment_size_in_bytes,
        _time(segment.max_timestamp_ms), _time(segment.event_timestamp_ms), segment.broker_id,
        segment.custom_metadata, segment.txn_index_empty, None, None,
    )  # fmt: skip


def _time(timestamp_ms: int) -> datetime | None:
    """None where there is none, or none that Spark could hold."""
    try:
        return datetime.fromtimestamp(timestamp_ms / 1000, UTC) if timestamp_ms >= 0 else None
    except (OverflowError, ValueError, OSError):
        return None


# --- a stream ---------------------------------------------------------------------------------------------------------


class SegmentsStreamReader(DataSourceStreamReader):
    """The events of the metadata topic, from its beginning on, or from now on with startingOffsets=latest.

    Shape  an offset is {"topic id": ..., "0": n, ...} with the next offset of each partition of the metadata topic
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        found = options_of(options)
        if found.client is None:
            raise InvalidOption(NO_BROKER, remedy="set kafka.bootstrap.servers")
        if found.starting not in {None, Edge.EARLIEST, Edge.LATEST}:
            raise InvalidOption("startingOffsets of segments is neither earliest nor latest", remedy="set one of them")
        self._options = found
        self._client_settings = found.client

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  (PySpark's names)
        return self._at(LATEST if self._options.starting is Edge.LATEST else EARLIEST)

    def latestOffset(self) -> dict[str, Any]:  # noqa: N802
        return self._at(LATEST)

    def _at(self, spec: int) -> dict[str, Any]:
        with closing(BrokerClient(self._client_settings)) as client:
            topic = _metadata_topic(client)
            offsets = client.offsets({(METADATA_TOPIC, index): spec for index in topic.leaders})
        return {TOPIC_ID: uuid_to_text(topic.id)} | {str(at): each.offset for (_, at), each in sorted(offsets.items())}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        if start[TOPIC_ID] != end[TOPIC_ID]:
            raise TopicRecreated(
                f"the topic was deleted and created again: its id is {end[TOPIC_ID]}, and was {start[TOPIC_ID]}",
                remedy="start again with another checkpoint",
                topic=METADATA_TOPIC,
            )
        ranges = [(int(at), start.get(at, 0), to) for at, to in end.items() if at != TOPIC_ID]
        return [InputPartition(each) for each in ranges if each[1] < each[2]]

    def read(self, partition: InputPartition) -> Iterator[SegmentRow]:
        index, start, end = partition.value
        with closing(BrokerClient(self._client_settings)) as client:
            for offset, value in _values(client, index, start, end):
                row = event_row(value, self._options.subscription, index, offset)
                if row is not None:
                    yield row

    def commit(self, end: dict[str, Any]) -> None:
        """The checkpoint knows, and nobody else need."""


def _metadata_topic(client: BrokerClient) -> Topic:
    topic = client.topics([METADATA_TOPIC]).get(METADATA_TOPIC)
    if topic is None:
        raise unknown_topic(METADATA_TOPIC)
    return topic


def _values(client: BrokerClient, index: int, start: int, end: int) -> Iterator[tuple[int, bytes]]:
    topic = _metadata_topic(client)
    partition, at = (METADATA_TOPIC, index), start
    first = client.offsets({partition: EARLIEST})[partition].offset
    if first > start:
        raise RecordsExpired(
            f"the events up to offset {first - 1} have been deleted",
            remedy="start again with another checkpoint", topic=METADATA_TOPIC, partition=index, offset=start,
        )  # fmt: skip
    while at < end:
        fetched = client.fetch(topic.id, partition, at)
        if fetched.error_code:
            raise BrokerUnavailable(
                f"the events cannot be read: {explain(fetched.error_code)}", remedy="start the query again",
                topic=METADATA_TOPIC, partition=index, offset=at,
            )  # fmt: skip
        for batch in batches(fetched.records):
            for record in () if batch.is_control else batch.records():
                if at <= record.offset < end and record.value is not None:
                    yield record.offset, record.value
            at = batch.next_offset


def event_row(value: bytes, subscription: Subscription, partition: int, offset: int) -> SegmentRow | None:
    """An event; None for one of another topic, of a whole partition, or that cannot be read, as the broker does."""
    try:
        event = decode_event(value)
    except Malformed:
        return None
    if isinstance(event, RemotePartitionDeleteMetadata):
        return None
    id_ = event.remote_log_segment_id.topic_id_partition
    if not subscription.matches(id_.topic):
        return None
    if isinstance(event, RemoteLogSegmentMetadata):
        return (*segment_row(event)[:-2], partition, offset)
    return (*_update_row(event), partition, offset)


def _update_row(event: RemoteLogSegmentMetadataUpdate) -> SegmentRow:
    topic_id, topic, partition = event.remote_log_segment_id.topic_id_partition
    return (
        topic, uuid_to_text(topic_id), partition, uuid_to_text(event.remote_log_segment_id.id), None, None, None,
        RemoteLogSegmentState(event.state).name, None, None, _time(event.event_timestamp_ms), event.broker_id,
        event.custom_metadata, None,
    )  # fmt: skip
