"""Two controllers for the tests that compare their answers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from compat.cluster import KAFKA, KBROKER, ProcessCluster
from compat.cluster.two_controllers import NO_REPLICAS, Side, Two, is_active
from compat.kafka import libraries
from compat.waiting import until


@pytest.fixture(scope="module")
def addresses(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    libraries()
    clusters = [
        ProcessCluster(tmp_path_factory.mktemp(kind), controllers=[kind], brokers=[], settings=NO_REPLICAS)
        for kind in (KAFKA, KBROKER)
    ]
    with clusters[0], clusters[1]:
        found = [cluster.controllers[100].address for cluster in clusters]
        for cluster in clusters:
            cluster.controllers[100].start()
        for address in found:
            until(lambda: is_active(address), each_s=0.1, patience_s=60)  # noqa: B023  (called here)
        yield found


@pytest.fixture
def two(addresses: list[str]) -> Iterator[Two]:
    """Both controllers with the brokers 1, 2 and 3, none of them registered before."""
    pair = Two([Side(address) for address in addresses])
    for broker in (1, 2, 3, 4, 5):
        pair.same("UnregisterBroker", 0, {"BrokerId": broker})
    yield pair
    for side in pair.sides:
        side.connection.close()
