"""`kafka.isolation.level=read_committed`: aborted records are dropped, from the tier, over its end, from a broker."""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from uuid import UUID

import pytest

from kbroker.spark.client import LATEST, BrokerClient
from kbroker.spark.errors import InvalidOption
from kbroker.spark.options import SourceOptions
from kbroker.spark.pieces import SegmentPiece, TailPiece
from kbroker.spark.planning import batch_tasks
from kbroker.spark.reading import read_piece
from wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from wire.messages.write_txn_markers import WritableTxnMarker, WritableTxnMarkerTopic, WriteTxnMarkersRequest
from wire.record_batch import Record, build_batch

with warnings.catch_warnings():
    # The client reads its schemas with a function that is deprecated in Python 3.11.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.admin import KafkaAdminClient

    from kbroker.cli import main
    from tests.cli.tiered import NOTHING_LOCAL, TIERED, Served, Site, TieredBroker

TOPIC = "orders"
LOCAL = NOTHING_LOCAL.split("=", maxsplit=1)


class History:
    """Transactions of a few producers, written without a coordinator.

    Shape  written are (offset, producer id, transaction) of each record; ended maps transactions to whether they
           committed; first are the first offsets of the open ones
    """

    def __init__(self, served: Served, seed: int) -> None:
        self._client = BrokerClient({"bootstrap_servers": [served.address]})
        self._rng = random.Random(seed)
        self.written: list[tuple[int, int]] = []
        self.ended: dict[int, bool] = {0: True}
        self._sequences = dict.fromkeys(range(10, 14), 0)
        self._open: dict[int, tuple[int, int]] = {}  # transaction and first offset, by producer
        self._transactions = 0

    def close(self) -> None:
        self._client.close()

    def run(self, steps: int, *, but: int = -1) -> None:
        """Random steps of all producers but one."""
        for _ in range(steps):
            producer_id = self._rng.choice([one for one in self._sequences if one != but])
            if producer_id in self._open and self._rng.random() < 0.3:
                self.end(producer_id, commit=self._rng.random() < 0.5)
            elif self._rng.random() < 0.1:
                self.write(None)
            else:
                self.write(producer_id)

    def write(self, producer_id: int | None) -> int:
        records = [Record(timestamp=1_000, value=b"v" * 300) for _ in range(self._rng.randint(1, 4))]
        sequence = -1 if producer_id is None else self._sequences[producer_id]
        batch = build_batch(
            records,
            producer_id=-1 if producer_id is None else producer_id,
            producer_epoch=-1 if producer_id is None else 0,
            base_sequence=sequence,
            is_transactional=producer_id is not None,
        )
        data = [PartitionProduceData(index=0, records=batch)]
        request = ProduceRequest(
            transactional_id="x", acks=-1, timeout_ms=10_000,
            topic_data=[TopicProduceData(name=TOPIC, partition_data=data)],
        )  # fmt: skip
        answer = self._client.cluster.ask(request, 1, at_most=9).responses[0].partition_responses[0]
        assert answer.error_code == 0, answer
        transaction = 0
        if producer_id is not None:
            self._sequences[producer_id] += len(records)
            if producer_id not in self._open:
                self._transactions += 1
                self._open[producer_id] = self._transactions, answer.base_offset
            transaction = self._open[producer_id][0]
        self.written += [(answer.base_offset + number, transaction) for number in range(len(records))]
        return int(answer.base_offset)

    def end(self, producer_id: int, *, commit: bool) -> None:
        topics = [WritableTxnMarkerTopic(name=TOPIC, partition_indexes=[0])]
        marker = WritableTxnMarker(
            producer_id=producer_id, producer_epoch=0, transaction_result=commit, topics=topics, coordinator_epoch=0
        )
        answer = self._client.cluster.ask(WriteTxnMarkersRequest(markers=[marker]), 1, at_most=1)
        assert answer.markers[0].topics[0].partitions[0].error_code == 0
        self.ended[self._open.pop(producer_id)[0]] = commit

    def end_all(self) -> None:
        self.end_others(-1)

    def end_others(self, producer_id: int) -> None:
        """End all transactions but that of one producer."""
        for one in list(self._open):
            if one != producer_id:
                self.end(one, commit=False)

    @property
    def stable_end(self) -> int:
        return int(self._client.offsets({(TOPIC, 0): LATEST}, is_committed_only=True)[TOPIC, 0].offset)

    def committed(self, end: int) -> list[int]:
        return [offset for offset, transaction in self.written if offset < end and self.ended.get(transaction, False)]

    @property
    def first_open(self) -> int:
        return min((first for _, first in self._open.values()), default=1 << 62)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    site = Site(tmp_path_factory.mktemp("committed") / "data")
    with TieredBroker(site, "--override", "transaction.partition.verification.enable=false") as served:
        yield served


@pytest.fixture(scope="module")
def history(served: Served) -> Iterator[History]:
    """Segments in the tier and gone locally, then more: aborted transactions extend over the end of the tier."""
    with closing(KafkaAdminClient(bootstrap_servers=served.address)) as admin:
        configs = {**TIERED, LOCAL[0]: LOCAL[1], "segment.bytes": "20000"}
        admin.create_topics({TOPIC: {"num_partitions": 1, "replication_factor": 1, "configs": configs}})
    with closing(History(served, seed=5)) as made:
        made.run(700)
        made.end_all()
        assert main(["tier", "flush", "-b", served.address, "--topic", TOPIC, "--format", "json"]) == 0
        made.write(None)
        begin = made.write(10)  # in the middle of a segment
        made.run(60, but=10)
        made.end_others(10)
        made.end(10, commit=False)  # the marker is in the active segment, its records are copied
        made.run(8)
        highest = "highest_offset_in_remote_storage"
        served.until("the copy", lambda: served.state()[TOPIC, 0]["remote"][highest] > begin)
        yield made


def options_of(served: Served, *, broker: bool = True, store: bool = True, **more: str) -> SourceOptions:
    given = {"subscribe": TOPIC, "kafka.isolation.level": "read_committed", **more}
    if broker:
        given["kafka.bootstrap.servers"] = served.address
    if store:
        given["rsm.config.dir"] = str(served.site.tier)
        given["remote.log.storage.manager.class.name"] = "directory"
    return SourceOptions.parse(given).for_batch()


def offsets_read(options: SourceOptions) -> tuple[list[int], set[type]]:
    """The offsets of the rows, and the kinds of the pieces."""
    tasks = batch_tasks(options)
    rows = [
        offset
        for task in tasks
        for piece in task
        for made in read_piece(options, piece, ("offset",))
        for offset in made.column("offset").to_pylist()
    ]
    return rows, {type(piece) for task in tasks for piece in task}


def test_the_tier_and_the_broker_agree_on_committed_records(served: Served, history: History) -> None:
    end = history.stable_end
    assert end == min(history.first_open, history.written[-1][0] + 2) or end <= history.first_open
    expected = history.committed(end)
    assert 0 < len(expected) < len(history.written)
    mixed, kinds = offsets_read(options_of(served))
    assert kinds == {SegmentPiece, TailPiece}
    assert mixed == expected
    fetched, kinds = offsets_read(options_of(served, store=False))
    assert kinds == {TailPiece}
    assert fetched == expected
    small, _ = offsets_read(options_of(served, maxRecordsPerPartition="50"))
    assert small == expected


def test_the_store_alone_reads_only_decided_transactions(served: Served, history: History) -> None:
    rows, kinds = offsets_read(options_of(served, broker=False))
    assert kinds == {SegmentPiece}
    assert rows == history.committed(rows[-1] + 1)
    uncommitted, _ = offsets_read(options_of(served, broker=False, **{"kafka.isolation.level": "read_uncommitted"}))
    assert uncommitted == [offset for offset, _ in history.written if offset <= uncommitted[-1]]
    assert rows[-1] < uncommitted[-1]


def test_a_piece_that_lost_its_segment_stays_committed(served: Served, history: History) -> None:
    options = options_of(served)
    expected = history.committed(history.stable_end)
    piece = next(one for task in batch_tasks(options) for one in task if isinstance(one, SegmentPiece) and one.aborted)
    gone = replace(piece.segment, remote_log_segment_id=piece.segment.remote_log_segment_id._replace(id=UUID(int=1)))
    rows = [
        offset
        for made in read_piece(options, replace(piece, segment=gone), ("offset",))
        for offset in made.column("offset").to_pylist()
    ]
    assert rows == [offset for offset in expected if piece.start_offset <= offset < piece.end_offset]


def test_the_isolation_level_is_kafkas() -> None:
    given = {"subscribe": "t", "kafka.bootstrap.servers": "h:1"}
    assert not SourceOptions.parse(given).is_committed_only
    assert SourceOptions.parse({**given, "kafka.Isolation.Level": "READ_COMMITTED"}).is_committed_only
    with pytest.raises(InvalidOption, match="isolation"):
        SourceOptions.parse({**given, "kafka.isolation.level": "serializable"})
