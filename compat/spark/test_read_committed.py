"""`kafka.isolation.level=read_committed` in both sources: batches and streams return no records of aborted transactions
from the tier, across its end and from the local log, and stop at the last stable offset.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest
from confluent_kafka import Message, Producer
from pyspark.sql import DataFrame, SparkSession

from compat.clients.transactional import PATIENCE_S
from compat.spark.rows import kafka_rows, kafka_stream
from compat.spark.source import Sink, Source, offsets_by_partition
from compat.tiered.site import EARLIEST_LOCAL, ONLY_THE_ACTIVE_ONE, Site, Sites

PARTITIONS = 2
# Apache Kafka accepts no smaller segments.
SEGMENT_BYTES = 1 << 20
VALUE = bytes(60_000)
COMMITTED = {"kafka.isolation.level": "read_committed"}
SOURCES = ("kafka", "kbroker")


class Written(NamedTuple):
    """One record. Shape: transaction is None for a record outside of transactions."""

    partition: int
    offset: int
    transaction: int | None


class History:
    """Writes transactions of several producers to one topic, and knows where each record is.

    Shape  ended maps transactions to whether they committed
    """

    def __init__(self, site: Site, topic: str) -> None:
        self.site, self.topic = site, topic
        self.written: list[Written] = []
        self.ended: dict[int, bool] = {}
        self._began = 0
        self._producers: dict[str | None, Producer] = {}

    def _producer(self, name: str | None) -> Producer:
        if name not in self._producers:
            settings = {"bootstrap.servers": self.site.address, "enable.idempotence": True, "linger.ms": 0}
            if name is not None:
                settings["transactional.id"] = f"{self.topic}-{name}"
            self._producers[name] = Producer(settings)
            if name is not None:
                self._producers[name].init_transactions(PATIENCE_S)
        return self._producers[name]

    def begin(self, name: str) -> int:
        """Begin a transaction of a producer. Returns its number."""
        self._producer(name).begin_transaction()
        self._began += 1
        return self._began

    def send(self, name: str | None, transaction: int | None, *, count: int = 1, value: bytes = VALUE) -> None:
        """Write `count` records to each partition."""
        producer = self._producer(name)

        def arrived(error: object, message: Message) -> None:
            assert error is None, error
            place = message.partition(), message.offset()
            assert place[0] is not None and place[1] is not None  # noqa: PT018  (both are known without an error)
            self.written.append(Written(place[0], place[1], transaction))

        for number in range(count * PARTITIONS):
            producer.produce(self.topic, value, partition=number % PARTITIONS, on_delivery=arrived)
        assert producer.flush(PATIENCE_S) == 0

    def end(self, name: str, transaction: int, *, commit: bool) -> None:
        """Commit or abort the transaction of a producer."""
        producer = self._producer(name)
        (producer.commit_transaction if commit else producer.abort_transaction)(PATIENCE_S)
        self.ended[transaction] = commit

    def run(self, name: str, *, commit: bool, count: int = 1, value: bytes = VALUE) -> None:
        """A whole transaction."""
        transaction = self.begin(name)
        self.send(name, transaction, count=count, value=value)
        self.end(name, transaction, commit=commit)

    def offsets(self, *, committed: bool, ends: dict[int, int] | None = None) -> dict[int, list[int]]:
        """The offsets by partition of all records, or of those that a read_committed reader gets: not aborted, and
        before the first record of an open transaction. Shape: ends are offsets before which the records are.
        """
        limits = dict(ends or dict.fromkeys(range(PARTITIONS), 1 << 62))
        for one in self.written:
            if committed and one.transaction is not None and one.transaction not in self.ended:
                limits[one.partition] = min(limits[one.partition], one.offset)
        return {
            partition: sorted(
                one.offset
                for one in self.written
                if one.partition == partition and one.offset < limits[partition]
                and not (committed and self.ended.get(one.transaction or 0) is False)
            )
            for partition in range(PARTITIONS)
        }  # fmt: skip


@pytest.fixture(scope="module")
def history(tiered_site: Site, new_topic_name: Callable[[str], str]) -> Iterator[History]:
    """Transactions in several segments, all but the active one only in the tier.

    One aborted transaction extends over two segments of the tier, and one over its end. At the end is one of each kind.
    """
    site, topic = tiered_site, new_topic_name("committed")
    config = {"remote.storage.enable": "true", "segment.bytes": str(SEGMENT_BYTES), "retention.ms": "-1"}
    site.create(topic, {**config, **ONLY_THE_ACTIVE_ONE}, partitions=PARTITIONS)
    made = History(site, topic)
    long = made.begin("long")
    made.send("long", long)
    for number in range(14):
        made.run(f"short-{number % 2}", commit=number % 3 > 0, count=2)
        made.send(None, None)
        if number == 8:
            made.end("long", long, commit=False)
            late = made.begin("long")
            made.send("long", late)
    made.end("long", late, commit=False)
    for partition in range(PARTITIONS):
        Sites([site]).expect(lambda site, at=partition: len(site.local_segments(topic, at)), 1)
        _, start, _, _ = site.offset(topic, EARLIEST_LOCAL, partition=partition)
        assert any(
            one.partition == partition and one.offset < start and one.transaction == late for one in made.written
        ), "the tier has no aborted record"
    made.run("short-0", commit=False, value=b"aborted")
    made.run("short-1", commit=True, value=b"committed")
    yield made
    site.delete_topic(topic)


@pytest.fixture
def open_transaction(history: History) -> Iterator[int]:
    """A transaction with a record in each partition, after which another producer has committed a record."""
    transaction = history.begin("open")
    history.send("open", transaction, value=b"open")
    history.run("short-1", commit=True, value=b"after an open one")
    yield transaction
    if transaction not in history.ended:
        history.end("open", transaction, commit=False)


def of_kbroker(site: Site) -> Source:
    """The options of `format("kbroker")`: with the tier, if the broker is a kbroker."""
    return Source(site, {"rsm.config.dir": str(site.tier_directory)} if site.name == "kbroker" else {})


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.usefixtures("open_transaction")
def test_a_batch_read_has_committed_records_only(spark: SparkSession, history: History, source: str) -> None:
    def rows(**options: str) -> DataFrame:
        if source == "kafka":
            return kafka_rows(spark, history.site.address, history.topic, **options)
        return of_kbroker(history.site).rows(spark, history.topic, **options)

    committed = history.offsets(committed=True)
    assert offsets_by_partition(rows(**COMMITTED)) == committed
    everything = offsets_by_partition(rows())
    assert everything == history.offsets(committed=False)
    assert all(len(everything[partition]) > len(committed[partition]) + 10 for partition in range(PARTITIONS))


@pytest.mark.parametrize("source", SOURCES)
def test_a_stream_has_committed_records_only(
    spark: SparkSession, history: History, open_transaction: int, sink: Sink, source: str
) -> None:
    """It ends before an open transaction, and continues after it when it is started again."""

    def stream() -> DataFrame:
        options = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "50", **COMMITTED}
        if source == "kafka":
            return kafka_stream(spark, history.site.address, history.topic, **options)
        return of_kbroker(history.site).stream(spark, history.topic, **options)

    assert len(sink.run(stream())) > 1
    assert sink.offsets() == history.offsets(committed=True)
    history.end("open", open_transaction, commit=True)
    history.run("short-0", commit=False, value=b"aborted")
    assert sum(sink.run(stream())) == 2 * PARTITIONS
    assert sink.offsets() == history.offsets(committed=True)


def test_the_store_alone_has_committed_records_only(spark: SparkSession, history: History) -> None:
    if history.site.name != "kbroker":
        pytest.skip("the tier has another layout")
    found = offsets_by_partition(of_kbroker(history.site).stored_rows(spark, history.topic, **COMMITTED))
    ends = {partition: offsets[-1] + 1 for partition, offsets in found.items()}
    assert found == history.offsets(committed=True, ends=ends)
    assert all(offsets[-1] > SEGMENT_BYTES // len(VALUE) for offsets in found.values()), "only the first segment"
