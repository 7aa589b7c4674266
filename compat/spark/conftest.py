"""One Spark session for all tests, with the stock connector's jars; and topics with records.

PySpark has its own environment (`make test-spark`). Without PySpark, pytest collects nothing in this folder.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from compat.clients.conftest import new_topic
from compat.kafka.libraries import java
from compat.tiered.site import Site

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from compat.spark.source import Sink, Source

__all__ = ["new_topic"]

collect_ignore_glob = [] if importlib.util.find_spec("pyspark") else ["test_*.py"]


def pytest_report_header() -> list[str]:
    """Report that PySpark is missing."""
    return ["compat/spark: no PySpark here, `make test-spark` has it"] if collect_ignore_glob else []


@pytest.fixture(scope="session")
def event_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of Spark's event log, which the history server reads."""
    return tmp_path_factory.mktemp("events")


@pytest.fixture(scope="session")
def spark(event_log: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The session. Without Java or Maven the tests are skipped, except in CI, where they fail."""
    from compat.spark.session import start_session  # noqa: PLC0415  PySpark is not everywhere

    java()
    logged = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": event_log.as_uri(),
        "spark.eventLog.compress": "false",
    }
    session = start_session(tmp_path_factory.mktemp("spark"), logged)
    yield session
    session.stop()


@pytest.fixture(scope="session")
def tiered_site(kafka_libraries: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """The broker under test, with a tier in a directory. Its tier tasks run five times a second."""
    assert kafka_libraries.is_dir()  # the schemas of its requests
    is_kafka = os.environ.get("KBROKER_COMPAT_BROKER") == "kafka"
    site = Site.in_directory(tmp_path_factory.mktemp("tiered"), is_kafka=is_kafka)
    site.broker.start()
    yield site
    site.broker.kill()


@pytest.fixture(scope="module")
def source(kafka_libraries: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Source]:
    """kbroker with a tier in a directory, for one module, whose tests may change it."""
    from compat.spark.source import started  # noqa: PLC0415  PySpark is not everywhere

    assert kafka_libraries.is_dir()  # the schemas of its requests
    with started(tmp_path_factory.mktemp("source")) as made:
        yield made


@pytest.fixture
def sink(spark: SparkSession, tmp_path: Path) -> Sink:
    """A directory in which a test starts and restarts one stream."""
    from compat.spark.source import Sink  # noqa: PLC0415  PySpark is not everywhere

    return Sink(spark, tmp_path)
