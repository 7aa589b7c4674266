"""Apache Kafka with its directory tier, and the broker under test with its own."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from compat.kafka.libraries import Unavailable
from compat.tiered.minio_fixtures import make_manager, manager, minio_server, prefix, proxy, write
from compat.tiered.site import Site, Sites

__all__ = ["make_manager", "manager", "minio_server", "prefix", "proxy", "write"]


@pytest.fixture(scope="package")
def sites(kafka_libraries: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sites]:
    """Both brokers, started. With KBROKER_COMPAT_BROKER=kafka both are Apache Kafka, to verify the scenarios."""
    assert kafka_libraries.is_dir()
    if os.environ.get("KBROKER_BOOTSTRAP_SERVERS"):
        raise Unavailable(
            "these scenarios start and stop their brokers and read their files, so an external broker does not work"
        )
    is_kafka = os.environ.get("KBROKER_COMPAT_BROKER") == "kafka"
    started = [
        Site.in_directory(tmp_path_factory.mktemp("tiered-kafka"), is_kafka=True),
        Site.in_directory(tmp_path_factory.mktemp("tiered-broker"), is_kafka=is_kafka),
    ]
    try:
        for site in started:
            site.broker.start()
        yield Sites(started)
    finally:
        for site in started:
            site.broker.kill()


@pytest.fixture
def name(new_topic_name: Callable[[str], str], request: pytest.FixtureRequest) -> str:
    """A name for the topic of one test."""
    return new_topic_name(request.node.originalname.removeprefix("test_")[:60])
