"""`kbroker dump-log` prints the lines of Kafka's DumpLogSegments, to the letter, for the same files.

With KBROKER_COMPAT_BROKER=kafka the files are Kafka's own. Its complaint about the first offset of each later segment,
on stderr, is a defect of 4.3.1 that is not repeated here.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from compat.brokers import KbrokerProcess
from compat.clients import confluent, kafka_python
from compat.clients.samples import START_MS, Sample, samples
from compat.conftest import KafkaTool
from compat.kafka import KafkaNode
from compat.kafka_tools.test_files import StartBroker, create


def fill(broker: KbrokerProcess | KafkaNode) -> None:
    """A partition of all codecs and kinds of records, and one of several segments with indexes that hold entries."""
    create(broker, "equal", partitions=2, segment_bytes="1048576", retention_ms="-1")
    create(broker, "appended", message_timestamp_type="LogAppendTime")
    for seed, codec in enumerate(("none", "gzip", "snappy", "lz4", "zstd")):
        part = samples(40, seed=seed, null_headers=False)
        confluent.produce(broker.bootstrap_servers, "equal", 0, part, codec, idempotent=True)
        # Clients send a batch as it is when compression would make it larger.
        even = [Sample(b"key", b"even " * 50, START_MS + number) for number in range(50)]
        kafka_python.produce(broker.bootstrap_servers, "appended", 0, even, codec, idempotent=False)
    long = [Sample(b"k%d" % number, b"%d-" % number + b"z" * 1000, START_MS + number) for number in range(2200)]
    options = {"batch.num.messages": 5}
    confluent.produce(broker.bootstrap_servers, "equal", 1, long, "none", idempotent=True, **options)


@pytest.fixture(scope="module")
def data(start_broker: StartBroker) -> Path:
    """The log directory of a broker that was stopped cleanly."""
    broker = start_broker()
    fill(broker)
    assert broker.stop() in {0, 143}
    assert broker.log_directory is not None
    return broker.log_directory


@pytest.fixture
def kafka_lines(kafka_tool: KafkaTool, monkeypatch: pytest.MonkeyPatch) -> KafkaTool:
    """Kafka's tool with the encoding that records have; Java takes it from the locale."""
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    return kafka_tool


def our_lines(*words: str) -> tuple[int, list[str]]:
    done = subprocess.run(
        [sys.executable, "-m", "kbroker", "dump-log", *words], capture_output=True, text=True, check=False, timeout=60
    )
    assert "Traceback" not in done.stderr
    return done.returncode, done.stdout.split("\n")


def compare(kafka_lines: KafkaTool, files: list[Path], *flags: str, status: int = 0) -> list[str]:
    """Assert that both tools print the same; the lines."""
    assert files
    words = ["--files", ",".join(map(str, sorted(files))), *flags]
    theirs = kafka_lines("DumpLogSegments", *words).stdout.split("\n")
    code, ours = our_lines(*words)
    assert ours == theirs
    assert code == status
    return ours


LOG_FLAGS = [
    [],
    ["--deep-iteration"],
    ["--print-data-log"],
    ["--print-data-log", "--skip-record-metadata"],
    ["--max-bytes", "5000"],
]


@pytest.mark.parametrize("flags", LOG_FLAGS, ids=" ".join)
def test_logs_are_dumped_as_kafka_does(kafka_lines: KafkaTool, data: Path, flags: list[str]) -> None:
    lines = compare(kafka_lines, [*data.glob("equal-*/*.log"), *data.glob("appended-0/*.log")], *flags)
    assert len([line for line in lines if line.startswith("Dumping")]) >= 5
    codecs = {line.partition(" compresscodec: ")[2].partition(" ")[0] for line in lines}
    assert "--max-bytes" in flags or codecs >= {"none", "gzip", "snappy", "lz4", "zstd"}


@pytest.mark.parametrize("flags", [[], ["--verify-index-only"], ["--index-sanity-check"]], ids=" ".join)
@pytest.mark.parametrize("kind", ["index", "timeindex"])
def test_indexes_are_dumped_as_kafka_does(kafka_lines: KafkaTool, data: Path, kind: str, flags: list[str]) -> None:
    lines = compare(kafka_lines, list(data.glob(f"*/*.{kind}")), *flags)
    assert flags or len(lines) > 50


def test_producer_snapshots_are_dumped_as_kafka_does(kafka_lines: KafkaTool, data: Path) -> None:
    lines = compare(kafka_lines, list(data.glob("equal-*/*.snapshot")))
    assert any(line.startswith("producerId: ") for line in lines)


def test_the_metadata_log_is_dumped_as_kafka_does(kafka_lines: KafkaTool, data: Path) -> None:
    files = [*data.glob("__cluster_metadata-0/*.log"), *data.glob("__cluster_metadata-0/*.checkpoint")]
    lines = compare(kafka_lines, [*files, *data.glob("bootstrap.checkpoint")], "--cluster-metadata-decoder")
    assert any('"type":"PARTITION_RECORD"' in line for line in lines)


@pytest.mark.parametrize("cut", [1, 40, 700])
def test_a_cut_log_is_dumped_as_kafka_does(kafka_lines: KafkaTool, data: Path, tmp_path: Path, cut: int) -> None:
    path = tmp_path / "00000000000000000000.log"
    shutil.copy(data / "equal-0" / path.name, path)
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - cut)
    lines = compare(kafka_lines, [path], "--print-data-log", status=1)
    assert lines[-2].startswith("Found ")
