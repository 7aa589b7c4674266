"""`format("kbroker")` and `load` read the same records as stock clients, from both tiers and with every option."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import IntegerType, StructType

from compat.clients.samples import CODECS, START_MS
from compat.spark.rows import Records, by_partition, consumed, kafka_rows, numbered, written
from compat.spark.source import Source, fails, read
from compat.tiered.site import EARLIEST_LOCAL, ONLY_THE_ACTIVE_ONE, Sites
from kbroker.spark import load, register
from kbroker.spark.errors import InvalidOption

COUNT = 2_000
PARTITIONS = len(CODECS)


@dataclass(frozen=True)
class Filled:
    """A topic with a partition for each codec. The local log has only the last segments."""

    source: Source
    topic: str
    records: Records

    def chosen(self, spark: SparkSession, schema: str | StructType) -> DataFrame:
        """The columns that a schema selects."""
        named = {**self.source.broker, **self.source.store, "subscribe": self.topic}
        return self.source.read(spark, named, schema=schema)


@pytest.fixture(scope="module")
def written_once(source: Source, new_topic_name: Callable[[str], str]) -> Filled:
    topic = new_topic_name("source")
    settings = {"remote.storage.enable": "true", "segment.bytes": "130000", "retention.ms": "-1"}
    source.site.create(topic, {**settings, **ONLY_THE_ACTIVE_ONE}, partitions=PARTITIONS)
    written(source.site.address, topic, partitions=PARTITIONS, count=COUNT)
    for partition in range(PARTITIONS):
        Sites([source.site]).expect(lambda site, at=partition: len(site.local_segments(topic, at)), 1)
        assert source.site.offset(topic, EARLIEST_LOCAL, partition=partition)[1] > 0, (
            "some records must be only in the tier"
        )
    return Filled(source, topic, consumed(source.site.address, topic, PARTITIONS))


@pytest.fixture(params=["format", "load"])
def filled(written_once: Filled, request: pytest.FixtureRequest) -> Filled:
    """A source for each of the two ways to read."""
    return replace(written_once, source=replace(written_once.source, loads=request.param == "load"))


def test_rows_equal_the_records_of_kafka_python(spark: SparkSession, filled: Filled) -> None:
    assert by_partition(filled.source.rows(spark, filled.topic)) == numbered(filled.records)


def test_columns_and_values_equal_those_of_the_stock_connector(spark: SparkSession, filled: Filled) -> None:
    ours, theirs = (
        filled.source.rows(spark, filled.topic),
        kafka_rows(spark, filled.source.site.address, filled.topic),
    )
    assert [(field.name, field.dataType) for field in ours.schema] == [
        (field.name, field.dataType) for field in theirs.schema
    ]
    assert ours.exceptAll(theirs).count() == theirs.exceptAll(ours).count() == 0


def test_without_a_store_the_broker_returns_all_records(spark: SparkSession, filled: Filled) -> None:
    frame = filled.source.read(spark, {**filled.source.broker, "subscribe": filled.topic})
    assert by_partition(frame) == numbered(filled.records)


def test_the_store_alone_has_all_up_to_the_active_segments(spark: SparkSession, filled: Filled) -> None:
    expected = {}
    for partition, records in numbered(filled.records).items():
        (active,) = filled.source.site.local_segments(filled.topic, partition)
        expected[partition] = {offset: record for offset, record in records.items() if offset < active}
    assert by_partition(filled.source.stored_rows(spark, filled.topic)) == expected


def offsets(number: int) -> str:
    return json.dumps({"TOPIC": {str(partition): number for partition in range(PARTITIONS)}})


@pytest.mark.parametrize(
    "options",
    [
        {"startingOffsets": offsets(300), "endingOffsets": offsets(1_000)},
        {"startingOffsets": '{"TOPIC": {"0": -2, "1": 0, "2": 2000, "3": 17, "4": -2}}', "endingOffsets": offsets(-1)},
        {"startingTimestamp": START_MS + 3_005, "endingTimestamp": START_MS + 9_000},
        {
            "startingOffsetsByTimestamp": offsets(START_MS + 5_000),
            "endingOffsetsByTimestamp": offsets(START_MS + 10_000),
        },
        {"startingTimestamp": START_MS + 99_999_999, "startingOffsetsByTimestampStrategy": "latest"},
    ],
    ids=["offsets", "ends", "time", "times", "no-match"],
)
def test_ranges_equal_those_of_the_stock_connector(
    spark: SparkSession, filled: Filled, options: dict[str, object]
) -> None:
    wanted = {name: str(value).replace("TOPIC", filled.topic) for name, value in options.items()}
    found = by_partition(filled.source.rows(spark, filled.topic, **wanted))
    assert found == by_partition(kafka_rows(spark, filled.source.site.address, filled.topic, **wanted))
    assert bool(found) == ("startingOffsetsByTimestampStrategy" not in wanted)


def test_a_range_of_time_is_found_in_the_store(spark: SparkSession, filled: Filled) -> None:
    times = {"startingTimestamp": START_MS + 3_005, "endingTimestamp": START_MS + 4_000}
    found = by_partition(filled.source.stored_rows(spark, filled.topic, **times))
    assert found == by_partition(filled.source.rows(spark, filled.topic, **times))
    assert sum(map(len, found.values())) > 100


def test_partitions_are_chosen_by_pattern_and_by_assignment(spark: SparkSession, filled: Filled) -> None:
    by_pattern = {**filled.source.broker, **filled.source.store, "subscribePattern": f"{filled.topic[:-1]}.|none.*"}
    assert filled.source.read(spark, by_pattern).count() == COUNT * PARTITIONS
    assigned = json.dumps({filled.topic: [1, 3]})
    frame = filled.source.read(spark, {**filled.source.broker, **filled.source.store, "assign": assigned})
    assert by_partition(frame) == {partition: dict(enumerate(filled.records[partition])) for partition in (1, 3)}


@pytest.mark.parametrize(
    ("options", "least"), [({"minPartitions": 23}, 23), ({"maxRecordsPerPartition": 500}, COUNT * PARTITIONS // 500)]
)
def test_a_read_split_for_many_cores_has_the_same_rows(
    spark: SparkSession, filled: Filled, options: dict[str, object], least: int
) -> None:
    frame = filled.source.rows(spark, filled.topic, **options)
    assert frame.rdd.getNumPartitions() >= least
    assert by_partition(frame) == numbered(filled.records)


def test_a_users_schema_selects_columns(spark: SparkSession, filled: Filled) -> None:
    frame = filled.chosen(spark, "offset BIGINT NOT NULL, value BINARY")
    assert frame.columns == ["offset", "value"]
    every = [each for part in filled.records.values() for each in part]
    (row,) = frame.selectExpr("sum(offset) AS offsets", "sum(length(value)) AS bytes").collect()
    assert (row.offsets, row.bytes) == (
        PARTITIONS * sum(range(COUNT)),
        sum(len(each.value) for each in every if each.value is not None),
    )


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ("offest BIGINT", ("column offest", "did you mean offset?")),
        ("value STRING", ("value as string", "use binary")),
        ("offset BIGINT NOT NULL, value BINARY NOT NULL", ("NOT NULL for the column value, which may be null",)),
        ("headers ARRAY<STRUCT<key: STRING, value: BINARY NOT NULL>>", ("NOT NULL for the column headers",)),
    ],
)
def test_a_schema_that_does_not_fit_is_refused(
    spark: SparkSession, filled: Filled, schema: str, said: tuple[str, ...]
) -> None:
    with fails(*said):
        filled.chosen(spark, schema).count()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"startingOffset": "earliest"}, ("no option", "did you mean startingOffsets?")),
        ({"startingOffsets": "latest"}, ("would read nothing",)),
        ({"startingOffsets": '{"TOPIC": {"0": 0}}'}, ("does not name TOPIC-1, TOPIC-2",)),
        ({"startingOffsets": offsets(2_001)}, ("TOPIC-0 at offset 2001", "the topic has the offsets 0 to 1999")),
        ({"endingOffsets": offsets(9_999)}, ("TOPIC-0 at offset 9999", "the topic has the offsets 0 to 1999")),
        ({"startingTimestamp": START_MS + 99_999_999}, ("TOPIC-0", "no record is at or after", "Strategy=latest")),
        ({"startingOffsets": offsets(9), "endingOffsets": offsets(8)}, ("startingOffsets is 9", "endingOffsets is 8")),
        ({"kafka__bootstrap__servers": "127.0.0.1:1"}, ("no broker answers at 127.0.0.1:1",)),
        ({"rsm__config__no": "1"}, ("rsm.config.no is not a setting",)),
    ],
)
def test_an_unreadable_range_fails_before_the_first_row(
    spark: SparkSession, filled: Filled, options: dict[str, object], said: tuple[str, ...]
) -> None:
    wanted = {name: str(value).replace("TOPIC", filled.topic) for name, value in options.items()}
    with fails(*(word.replace("TOPIC", filled.topic) for word in said)):
        filled.source.rows(spark, filled.topic, **wanted).count()


def test_missing_offsets_are_skipped_if_loss_is_allowed(spark: SparkSession, filled: Filled) -> None:
    wanted = offsets(9_999).replace("TOPIC", filled.topic)
    frame = filled.source.rows(spark, filled.topic, endingOffsets=wanted, failOnDataLoss="false")
    assert by_partition(frame) == numbered(filled.records)


@pytest.mark.parametrize("by", ["broker", "store"])
def test_an_unknown_topic_is_an_error(spark: SparkSession, source: Source, by: str) -> None:
    named = source.broker if by == "broker" else source.store
    with fails("no-such-topic: there is no such topic"):
        read(spark, {**named, "subscribe": "no-such-topic"}, {}).count()


def test_a_schema_without_a_column_is_refused(spark: SparkSession, filled: Filled) -> None:
    with fails("the schema has no column"):
        filled.chosen(spark, StructType([])).count()


def test_loading_fixes_the_offsets(spark: SparkSession, source: Source, new_topic_name: Callable[[str], str]) -> None:
    topic = new_topic_name("settled")
    source.site.create(topic, {"retention.ms": "-1"}, partitions=1)
    named = {**source.broker, **source.store, "subscribe": topic}
    empty = load(spark, named)
    first = len(written(source.site.address, topic, partitions=1, count=3)[0])
    some = load(spark, named)
    second = len(written(source.site.address, topic, partitions=1, count=4)[0])
    assert (empty.count(), some.count(), load(spark, named).count()) == (0, first, first + second)
    assert empty.schema == some.schema == spark.read.format("kbroker").options(**named).load().schema


def test_a_type_without_columns_is_refused(spark: SparkSession, written_once: Filled) -> None:
    named = {**written_once.source.broker, "subscribe": written_once.topic}
    for schema in ("INT", "ARRAY<BINARY>", IntegerType()):
        with pytest.raises(InvalidOption, match="is a type, not columns"):
            load(spark, named, schema)


def test_registering_the_sources_again_does_no_harm(spark: SparkSession, written_once: Filled) -> None:
    register(spark)
    register(spark)
    assert written_once.source.rows(spark, written_once.topic).count() == COUNT * PARTITIONS
