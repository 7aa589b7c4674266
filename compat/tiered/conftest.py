"""Apache Kafka with its directory tier, and the broker under test with its own."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from compat.brokers import KbrokerProcess
from compat.conftest import missing
from compat.kafka import KafkaNode
from compat.tiered.minio_fixtures import make_manager, manager, minio_server, prefix, proxy, write
from compat.tiered.site import HURRIED, Site, Sites

__all__ = ["make_manager", "manager", "minio_server", "prefix", "proxy", "write"]


@pytest.fixture(scope="package")
def sites(kafka_libraries: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sites]:
    """Both brokers, started. With KBROKER_COMPAT_BROKER=kafka both are Apache Kafka: is a scenario told rightly?"""
    assert kafka_libraries.is_dir()
    if os.environ.get("KBROKER_BOOTSTRAP_SERVERS"):
        missing("these scenarios start and stop their brokers and read their files: an external one will not do")
    started = [_kafka(tmp_path_factory.mktemp("tiered-kafka"))]
    is_kafka = os.environ.get("KBROKER_COMPAT_BROKER") == "kafka"
    started.append((_kafka if is_kafka else _kbroker)(tmp_path_factory.mktemp("tiered-broker")))
    try:
        for site in started:
            site.broker.start()
        yield Sites(started)
    finally:
        for site in started:
            site.broker.kill()


def _kafka(directory: Path) -> Site:
    tier = directory / "tier"
    return Site(KafkaNode(directory, overrides=HURRIED, tier=tier), tier)


def _kbroker(directory: Path) -> Site:
    tier = directory / "tier"
    overrides = [f"{key}={value}" for key, value in HURRIED.items()]
    return Site(KbrokerProcess(directory, overrides=overrides, tier=tier), tier)


@pytest.fixture
def name(new_topic_name: Callable[[str], str], request: pytest.FixtureRequest) -> str:
    """A name for the topic of one test."""
    return new_topic_name(request.node.originalname.removeprefix("test_")[:60])
