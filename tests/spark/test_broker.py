"""What a broker tells a job: the history of a log that begins inside of a segment, and a metadata topic that rotted."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from kbroker.spark.broker_inventory import BrokerInventory
from kbroker.spark.catalogue_following import CatalogueFollower
from kbroker.spark.client import EARLIEST, BrokerClient, EpochEnd
from kbroker.spark.errors import DamagedObject, UnknownTopic
from kbroker.spark.options import Subscription
from kbroker.spark.pieces import SegmentPiece
from kbroker.spark.plan import tile
from kbroker.spark.positions import Partition
from kbroker.tiered.catalogue import METADATA_TOPIC
from wire.record_batch import batches

with warnings.catch_warnings():
    # The client reads its schemas by a function that Python 3.11 calls deprecated: that is not our warning.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka import TopicPartition
    from kafka.admin import KafkaAdminClient

    from kbroker.cli import main
    from tests.cli.tiered import TIERED, Served, Site, TieredBroker, fill

TOPIC = "orders"
LOG_START = 700  # inside of the first segment


class Counting(BrokerClient):
    """Counts the questions for epochs, and may remember a leader that is no broker of the cluster any more."""

    asked = 0
    gone: int | None = None

    def _leader(self, partition: Partition) -> int:
        leader, self.gone = self.gone, None
        return super()._leader(partition) if leader is None else leader

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
    """A topic in the tier whose leader was elected twice before its first record."""
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


def test_a_segment_in_which_the_log_begins_is_read_from_the_tier_and_older_epochs_are_not_asked_for(
    site: Site,
) -> None:
    with TieredBroker(site) as served, connected(served) as client:
        inventory = BrokerInventory(client, has_store=True)
        inventory.topics(Subscription(topics=(TOPIC,)))
        bounds = inventory.bounds([(TOPIC, 0)])
        (state,) = inventory.states([(TOPIC, 0)], bounds)
        assert state.log_start_offset == LOG_START
        assert state.leader_epochs[0][0] > 1
        first, *_ = tile(state, LOG_START, state.end_offset)
        assert isinstance(first, SegmentPiece)
        assert first.segment.start_offset == 0
        assert client.asked <= len(state.leader_epochs) + 1


def test_a_leader_that_has_left_the_cluster_is_looked_up_anew(site: Site) -> None:
    with TieredBroker(site) as served, connected(served) as client:
        client.gone = 77
        assert client.offsets({(TOPIC, 0): EARLIEST})[TOPIC, 0].offset == LOG_START
        with pytest.raises(UnknownTopic, match="no such topic"):
            BrokerInventory(client, has_store=False).topics(Subscription(topics=("no topic: it has blanks",)))


def test_a_damaged_batch_of_the_metadata_topic_is_an_error(site: Site, tmp_path: Path) -> None:
    copy = site.copy(tmp_path)
    (log,) = (path for path in copy.data.glob(f"{METADATA_TOPIC}-*/*.log") if path.stat().st_size)
    data = bytearray(log.read_bytes())
    second = list(batches(bytes(data)))[1]
    data[second.position + second.size - 1] ^= 1
    log.write_bytes(data)
    with (
        TieredBroker(copy) as served,
        connected(served) as client,
        pytest.raises(DamagedObject, match=f"{METADATA_TOPIC}-.* at offset {second.base_offset}: .* its CRC is wrong"),
    ):
        CatalogueFollower(client).read()
