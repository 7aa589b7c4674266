"""The leases of queries on a real broker."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from kbroker.client.cluster import Cluster
from kbroker.client.leases import leases
from kbroker.runtime.clocks import RealClocks
from kbroker.spark.leasing import REPLACED_AFTER_MS, HeldOffsets
from kbroker.spark.options import SourceOptions
from kbroker.spark.planning import batch_tasks
from tests.broker_process import BrokerProcess
from wire.messages.create_topics import CreatableTopic, CreateTopicsRequest


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with (
        BrokerProcess(tmp_path / "data", "--profile", "test") as started,
        Cluster({"bootstrap_servers": [f"{started.host}:{started.port}"]}) as client,
    ):
        topic = CreatableTopic(name="t", num_partitions=2, replication_factor=1, assignments=[], configs=[])
        client.ask(CreateTopicsRequest(topics=[topic], timeout_ms=10_000))
        yield client


def options(cluster: Cluster, **more: str) -> SourceOptions:
    return SourceOptions.parse({"subscribe": "t", "kafka.bootstrap.servers": cluster.servers, **more})


def test_a_batch_query_takes_a_lease(cluster: Cluster) -> None:
    batch_tasks(options(cluster).for_batch())
    (lease,) = leases(cluster, "t")
    assert lease.offsets == {0: 0, 1: 0}
    assert lease.expires_ms - lease.created_ms == 600_000
    batch_tasks(options(cluster, lease="0").for_batch())
    assert leases(cluster, "t") == [lease]


def test_a_stream_has_one_lease_and_gives_it_back(cluster: Cluster) -> None:
    held = HeldOffsets(options(cluster, lease="30s").for_streaming())
    for offset, begin in ((5, 5), (5, 5), (9, 5), (4, 4), (7, 4)):
        held.hold({("t", 0): offset})
        (lease,) = leases(cluster, "t")
        assert lease.offsets == {0: begin}, "it is replaced only if it does not hold enough"
    held.hold({("t", 0): 7, ("t", 1): 0})
    (lease,) = leases(cluster, "t")
    assert lease.offsets == {0: 7, 1: 0}
    held.give_back()
    assert leases(cluster, "t") == []


class LateClocks(RealClocks):
    """Clocks that the test sets forward."""

    late_ms = 0

    def timestamp_ms(self) -> int:  # type: ignore[override]
        return RealClocks.timestamp_ms() + self.late_ms


@pytest.mark.parametrize(("ttl", "pause_ms"), [("1h", REPLACED_AFTER_MS), ("30s", 15_000)])
def test_a_stream_replaces_its_lease_in_time(cluster: Cluster, ttl: str, pause_ms: int) -> None:
    clocks = LateClocks()
    held = HeldOffsets(options(cluster, lease=ttl).for_streaming(), clocks=clocks)
    held.hold({("t", 0): 5})
    held.hold({("t", 0): 9})
    (lease,) = leases(cluster, "t")
    assert lease.offsets == {0: 5}
    clocks.late_ms = pause_ms
    held.hold({("t", 0): 9})
    (lease,) = leases(cluster, "t")
    assert lease.offsets == {0: 9}


def test_a_query_reads_without_a_lease_if_it_gets_none(cluster: Cluster) -> None:
    held = HeldOffsets(replace(options(cluster), lease_ms=1_000))
    held.hold({("missing", 0): 0})
    held.give_back()
    assert leases(cluster, "t") == []


def test_a_refused_stream_does_not_ask_again(cluster: Cluster) -> None:
    """Apache Kafka refuses the setting; a stream would ask it with every batch."""
    held = HeldOffsets(options(cluster).for_streaming())
    held.hold({("t", 0): -1})  # INVALID_CONFIG
    held.hold({("t", 0): 0})
    assert leases(cluster, "t") == []
