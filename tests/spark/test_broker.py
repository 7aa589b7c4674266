"""What a job learns from a broker: the epochs of a log that begins inside a segment, and a damaged metadata topic."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest

from kbroker.spark.broker_inventory import BrokerInventory
from kbroker.spark.client import EARLIEST, BrokerClient, EpochEnd, Topic
from kbroker.spark.errors import BrokerUnavailable, KbrokerSourceError, UnknownTopic
from kbroker.spark.fetching import fetch_batches
from kbroker.spark.metadata_fetching import CatalogueFollower
from kbroker.spark.options import Subscription
from kbroker.spark.pieces import SegmentPiece, TailPiece
from kbroker.spark.plan import tile
from kbroker.spark.positions import Partition
from kbroker.spark.reading import read_tail
from kbroker.spark.segment_reading import read_segment
from kbroker.tiered.api import STARTED
from kbroker.tiered.catalogue import METADATA_TOPIC, Catalogue
from kbroker.tiered.local import LocalRemoteStorage
from kbroker.tiered.metadata_topic import encode_event
from tests.spark.segments import rows_of
from wire.batch_header import HEADER_SIZE
from wire.record_batch import RecordBatch, batches, set_max_timestamp

with warnings.catch_warnings():
    # The client reads its schemas with a function that is deprecated in Python 3.11.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka import KafkaProducer, TopicPartition
    from kafka.admin import KafkaAdminClient

    from kbroker.cli import main
    from tests.cli.tiered import NOTHING_LOCAL, RECORDS, TIERED, Served, Site, TieredBroker, fill

Damage = Callable[[bytearray, RecordBatch], None]

TOPIC = "orders"
LOG_START = 700  # inside the first segment


class Counting(BrokerClient):
    """Counts requests for epochs."""

    asked = 0

    def epoch_ends(self, epochs: Mapping[Partition, int]) -> dict[Partition, EpochEnd]:
        self.asked += 1
        return super().epoch_ends(epochs)


@contextmanager
def connected(served: Served) -> Iterator[Counting]:
    with Counting({"bootstrap_servers": [served.address]}) as client:
        assert isinstance(client, Counting)
        yield client


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    """A tiered topic with two elections before its first record."""
    made = Site(tmp_path_factory.mktemp("broker") / "data")
    with TieredBroker(made) as served, closing(KafkaAdminClient(bootstrap_servers=served.address)) as admin:
        admin.create_topics({TOPIC: {"num_partitions": 1, "replication_factor": 1, "configs": TIERED}})
    with TieredBroker(made):
        pass
    with TieredBroker(made) as served:
        fill(served, TOPIC)
        assert main(["tier", "flush", "-b", served.address, "--topic", TOPIC, "--format", "json"]) == 0
        with closing(KafkaAdminClient(bootstrap_servers=served.address)) as admin:
            admin.delete_records({TopicPartition(TOPIC, 0): LOG_START})
    return made


def test_epochs_older_than_the_log_start_are_not_requested(
    site: Site,
) -> None:
    with TieredBroker(site) as served, connected(served) as client:
        inventory = BrokerInventory(client, has_store=True)
        bounds = inventory.extent(Subscription(topics=(TOPIC,))).bounds
        (state,) = inventory.states([(TOPIC, 0)], bounds)
        assert state.log_start_offset == LOG_START
        assert state.leader_epochs[0][0] > 1
        first, *_ = tile(state, LOG_START, state.end_offset)
        assert isinstance(first, SegmentPiece)
        assert first.segment.start_offset == 0
        assert client.asked <= len(state.leader_epochs) + 1


def test_a_leader_that_left_the_cluster_is_looked_up_again(site: Site) -> None:
    with TieredBroker(site) as served, connected(served) as client:
        client.cluster.leaders[TOPIC, 0] = 77
        assert client.offsets({(TOPIC, 0): EARLIEST})[TOPIC, 0].offset == LOG_START
        with pytest.raises(UnknownTopic, match="no such topic"):
            BrokerInventory(client, has_store=False).extent(Subscription(topics=("no topic: it has blanks",)))


# --- a damaged metadata topic -----------------------------------------------------------------------------------------


def flip(at: int) -> Damage:
    """Flip a bit of a batch; negative positions count from its end."""

    def damage(data: bytearray, batch: RecordBatch) -> None:
        data[batch.position + at % batch.size] ^= 1

    return damage


def zeros(data: bytearray, batch: RecordBatch) -> None:
    data[batch.position : batch.position + batch.size] = bytes(batch.size)


def undecodable(data: bytearray, batch: RecordBatch) -> None:
    """Damage the first record, but keep the checksum valid."""
    data[batch.position + HEADER_SIZE] ^= 1
    set_max_timestamp(data, batch.position, max_timestamp=batch.max_timestamp, is_log_append_time=False)


DAMAGE = {
    "crc": flip(-1), "format": flip(16), "longer": flip(8), "shorter": flip(11), "offset": flip(0), "zeros": zeros,
    "undecodable": undecodable,
}  # fmt: skip


def metadata_log(site: Site) -> Path:
    (log,) = (path for path in site.data.glob(f"{METADATA_TOPIC}-*/*.log") if path.stat().st_size)
    return log


def rot(log: Path, number: int, damage: Damage) -> RecordBatch:
    """Damage one batch of a log, even of a running broker. Returns the original batch."""
    data = bytearray(log.read_bytes())
    batch = list(batches(bytes(data)))[number]
    damage(data, batch)
    with log.open("r+b") as file:
        file.write(data)
    return batch


@pytest.fixture(scope="module")
def running(site: Site, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with TieredBroker(site.copy(tmp_path_factory.mktemp("rotting"))) as served:
        yield served


@pytest.fixture
def rotting(running: Served) -> Iterator[Served]:
    """A broker whose metadata topic tests may damage."""
    log = metadata_log(running.site)
    kept = log.read_bytes()
    yield running
    with log.open("r+b") as file:
        file.write(kept)


def logged(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The log lines of the source; the client library's warnings about a slow machine are excluded."""
    return [record.getMessage() for record in caplog.records if record.name == "kbroker.spark"]


@pytest.mark.parametrize("number", [1, -1], ids=["middle", "last"])
@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_m10_a_damaged_metadata_batch_is_skipped_counted_and_logged(
    rotting: Served, caplog: pytest.LogCaptureFixture, damage: Damage, number: int
) -> None:
    with connected(rotting) as client:
        whole = CatalogueFollower(client).read()
        assert (whole.unreadable, whole.strays, logged(caplog)) == (0, 0, [])
        log = metadata_log(rotting.site)
        batch = rot(log, number, damage)
        follower = CatalogueFollower(client)
        assert follower.read().unreadable == 1
        (line,) = logged(caplog)
        assert line.startswith(f"1 records of {log.parent.name} cannot be read and are skipped, the first at offset")
        assert f" offset {batch.base_offset}: " in line
        found = follower.read()
        # Each of them recorded that a copy is finished.
        assert (found.unreadable, len(logged(caplog)), found.strays) == (1, 1, 0)
        assert found.segments.keys() == whole.segments.keys()
        changed = [segment for id_, segment in found.segments.items() if segment != whole.segments[id_]]
        assert [segment.state for segment in changed] == [STARTED]


class Forgetful(BrokerClient):
    """A client that can hide all topics of its broker."""

    is_empty = False

    def topics(self, names: Iterable[str] | None = None) -> dict[str, Topic]:
        return {} if self.is_empty else super().topics(names)


def test_a_deleted_metadata_topic_is_not_an_empty_tier(rotting: Served) -> None:
    with Forgetful({"bootstrap_servers": [rotting.address]}) as client:
        follower = CatalogueFollower(client)
        client.is_empty = True
        assert follower.read_on() == Catalogue(), "a topic that never existed is no error"
        client.is_empty = False
        assert follower.read_on() == follower.read_on() != Catalogue()
        client.is_empty = True
        with pytest.raises(KbrokerSourceError, match="was deleted while it was read"):
            follower.read_on()


def test_m10_events_after_a_damaged_head_are_read(site: Site, tmp_path: Path) -> None:
    """The broker finds no batch for the offset of the damaged first batch, and for some offsets after it."""
    copy = site.copy(tmp_path)
    # Without a second look at the tier the broker does not delete these unfinished copies.
    seldom = ("--override", "remote.log.manager.task.interval.ms=3600000")
    with TieredBroker(copy, *seldom) as served, connected(served) as client:
        log = metadata_log(copy)
        known = sum(batch.record_count for batch in batches(log.read_bytes()))
        (segment, *_) = CatalogueFollower(client).read().of(None)
        ids = [UUID(int=number) for number in range(2 * known + 1)]
        partition = int(log.parent.name.rpartition("-")[2])
        with closing(KafkaProducer(bootstrap_servers=served.address)) as producer:
            for one in ids:
                segment_id = segment.remote_log_segment_id._replace(id=one)
                event = encode_event(replace(segment, remote_log_segment_id=segment_id, state=STARTED))
                producer.send(METADATA_TOPIC, event, partition=partition).get(20)
        written = sum(batch.record_count for batch in batches(log.read_bytes()))  # the broker may have added an event
        rot(log, 0, zeros)
        found = CatalogueFollower(client).read()
        assert ids[-1] in found.segments
        assert found.segments.keys() <= set(ids)
        assert len(found.segments) + found.unreadable == written >= known + len(ids)


def test_m10_records_of_an_unknown_segment_are_fetched(rotting: Served) -> None:
    with connected(rotting) as client:
        rot(metadata_log(rotting.site), 1, DAMAGE["crc"])
        inventory = BrokerInventory(client, has_store=True)
        extent = inventory.extent(Subscription(topics=(TOPIC,)))
        (state,) = inventory.states([(TOPIC, 0)], extent.bounds)
        pieces = tile(state, LOG_START, state.end_offset)
        assert [type(piece) for piece in pieces[:2]] == [TailPiece, SegmentPiece]
        storage = LocalRemoteStorage()
        storage.configure({"dir": str(rotting.site.tier)})
        found: list[int] = []
        for piece in pieces:
            if isinstance(piece, TailPiece):
                rows = read_tail(client, piece, ("offset",), chunk_bytes=1 << 20)
            else:
                assert isinstance(piece, SegmentPiece)
                rows = read_segment(storage, piece, ("offset",))
            found += [offset for (offset,) in rows_of(rows)]
        assert found == list(range(LOG_START, state.end_offset))


def test_m10_records_of_a_forgotten_segment_are_an_error(site: Site, tmp_path: Path) -> None:
    """The broker skipped the same record, and its log begins after the segment."""
    copy = site.copy(tmp_path)
    with TieredBroker(copy) as served:
        assert main(["config", "--alter", "-b", served.address, "--topic", TOPIC, "--add-config", NOTHING_LOCAL]) == 0
        served.until(
            "copied segments leave the disk", lambda: served.state()[TOPIC, 0]["local_log_start_offset"] == RECORDS
        )
    for snapshot in copy.data.glob(f"{METADATA_TOPIC}-*/*snapshot*"):
        snapshot.unlink()
    rot(metadata_log(copy), 1, DAMAGE["crc"])
    with TieredBroker(copy) as served, BrokerClient({"bootstrap_servers": [served.address]}, wait_ms=500) as client:
        inventory = BrokerInventory(client, has_store=True)
        extent = inventory.extent(Subscription(topics=(TOPIC,)))
        (state,) = inventory.states([(TOPIC, 0)], extent.bounds)
        first, *_ = tile(state, LOG_START, state.end_offset)
        assert isinstance(first, TailPiece)
        assert first.start_offset == LOG_START
        with pytest.raises(BrokerUnavailable, match=f"{TOPIC}-0"):
            list(fetch_batches(client, first))
