"""One batch read and one batch write by Spark's stock connector: every record, key, header and timestamp.

Half a gigabyte is fetched for it, so it runs in CI, and elsewhere where it is asked for (`KBROKER_SPARK=1`).
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaConsumer, TopicPartition

from compat.brokers import Broker, in_ci
from compat.clients import kafka_python
from compat.clients.conftest import new_topic
from compat.clients.samples import Sample, samples
from compat.kafka import Unavailable
from compat.kafka.libraries import cache_directory, executable, java

__all__ = ["new_topic"]
_HERE = Path(__file__).parent
REQUIREMENTS = _HERE.parents[1] / "requirements" / "spark.txt"


@dataclass(frozen=True)
class Spark:
    """PySpark's interpreter and the connector's jars."""

    python: Path
    jars: list[str]


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Unavailable(f"{command[0]} failed: {(done.stdout + done.stderr)[-1000:]}")


def installed() -> Spark:
    """Make the environment and fetch the jars, once. A stamp says that it is whole.

    Errors: Unavailable when there is no Java or no Maven, or something cannot be fetched.
    """
    java()
    maven = executable("mvn", hint="install Maven")
    target = cache_directory() / "spark-4.0.0"
    python, jars, stamp = target / "venv" / "bin" / "python", target / "jars", target / "whole"
    if not stamp.exists() or stamp.read_text() != REQUIREMENTS.read_text():
        _run(sys.executable, "-m", "venv", "--clear", str(target / "venv"))
        _run(str(python), "-m", "pip", "install", "--quiet", "--require-hashes", "-r", str(REQUIREMENTS))
        _run(
            *(maven, "-q", "-B", "-f", str(_HERE / "pom.xml")),
            *("dependency:copy-dependencies", f"-DoutputDirectory={jars}"),
        )
        stamp.write_text(REQUIREMENTS.read_text())
    return Spark(python, sorted(str(jar) for jar in jars.glob("*.jar")))


@pytest.fixture(scope="module")
def spark() -> Spark:
    if in_ci():
        return installed()
    if os.environ.get("KBROKER_SPARK", "") not in {"1", "true", "yes"}:
        pytest.skip("KBROKER_SPARK=1 fetches PySpark (half a gigabyte) and runs this")
    try:
        return installed()
    except Unavailable as error:
        pytest.skip(str(error))


def raw(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


def sample(row: dict[str, Any]) -> Sample:
    """A row that Spark told, as a record."""
    headers = tuple((name, raw(value)) for name, value in row["headers"])
    return Sample(raw(row["key"]), raw(row["value"]), row["time"], headers)


def test_spark_reads_a_batch_and_writes_a_batch(broker: Broker, spark: Spark, new_topic: Any) -> None:
    servers, partitions = broker.bootstrap_servers, 3
    source = new_topic("spark", partitions=partitions, retention_ms="-1")
    target = new_topic("spark", partitions=partitions)
    written: dict[int, list[Sample]] = {}
    for partition, codec in enumerate(("zstd", "none", "lz4")):
        written[partition] = samples(300, seed=partition, null_headers=False)
        kafka_python.produce(servers, source, partition, written[partition], codec, idempotent=True)
    job = {"servers": servers, "jars": spark.jars, "source": source, "target": target}
    done = subprocess.run(
        [str(spark.python), str(_HERE / "job.py"), json.dumps(job)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    rows = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("ROWS ")).removeprefix("ROWS "))
    assert {row["topic"] for row in rows} == {source}
    for partition, records in written.items():
        found = sorted((row for row in rows if row["partition"] == partition), key=lambda row: row["offset"])
        assert [row["offset"] for row in found] == list(range(len(records)))
        assert [sample(row) for row in found] == records
    consumer = KafkaConsumer(bootstrap_servers=servers, group_id=None)
    places = consumer.end_offsets([TopicPartition(target, partition) for partition in range(partitions)])
    consumer.close()
    ends = {place.partition: end for place, end in places.items()}
    assert sum(ends.values()) == len(rows)
    copied = kafka_python.consume(servers, target, ends)
    sent = Counter((each.key, each.value, each.headers) for part in written.values() for each in part)
    assert Counter((each.key, each.value, each.headers) for part in copied.values() for each in part) == sent
