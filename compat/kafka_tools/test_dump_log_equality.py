"""`kbroker dump-log` prints exactly the lines of Kafka's DumpLogSegments for the same files.

With KBROKER_COMPAT_BROKER=kafka the files are Kafka's own. Its complaint about the first offset of each later segment,
on stderr, is a defect of 4.3.1 that kbroker does not repeat.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as Position
from kafka import KafkaConsumer
from kafka.admin import KafkaAdminClient
from kafka.structs import OffsetAndMetadata, TopicPartition

from compat.brokers import KbrokerProcess
from compat.clients import confluent, kafka_python
from compat.clients.joining import join, join_confluent
from compat.clients.samples import START_MS, Sample, samples
from compat.conftest import KafkaTool
from compat.kafka import KafkaNode
from compat.kafka_tools.test_files import StartBroker, create


def fill(broker: KbrokerProcess | KafkaNode) -> None:
    """A partition with all codecs and kinds of records, and one of several segments with non-empty indexes."""
    create(broker, "equal", partitions=2, segment_bytes="1048576", retention_ms="-1")
    create(broker, "appended", message_timestamp_type="LogAppendTime")
    for seed, codec in enumerate(("none", "gzip", "snappy", "lz4", "zstd")):
        part = samples(40, seed=seed, null_headers=False)
        confluent.produce(broker.bootstrap_servers, "equal", 0, part, codec, idempotent=True)
        # Clients send a batch uncompressed if compression would make it larger.
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
    """Kafka's tool with the encoding of the records; Java takes it from the locale."""
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    return kafka_tool


def our_lines(*words: str) -> tuple[int, list[str]]:
    done = subprocess.run(
        [sys.executable, "-m", "kbroker", "dump-log", *words], capture_output=True, text=True, check=False, timeout=60
    )
    assert "Traceback" not in done.stderr
    return done.returncode, done.stdout.split("\n")


def compare(kafka_lines: KafkaTool, files: list[Path], *flags: str, status: int = 0) -> list[str]:
    """Assert that both tools print the same; returns the lines."""
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


def coordinate(broker: KbrokerProcess | KafkaNode) -> None:
    """Every kind of record of classic groups in the log: members, offsets with metadata, and deletions."""
    create(broker, "read", partitions=3)
    servers = broker.bootstrap_servers
    with closing(KafkaConsumer(bootstrap_servers=servers, group_id="simple")) as simple:
        simple.commit({TopicPartition("read", 0): OffsetAndMetadata(5, 'noted \u00e9 "so"', 0)})
    for name, settings in (
        ("plain", {"client_id": "one"}),
        ("static", {"group_instance_id": "first", "session_timeout_ms": 10_000}),
    ):
        with closing(KafkaConsumer(bootstrap_servers=servers, group_id=name, **settings)) as member:
            join(member, "read", 3)
            member.commit({TopicPartition("read", index): OffsetAndMetadata(index, "", -1) for index in range(3)})
    with closing(KafkaAdminClient(bootstrap_servers=servers)) as admin:
        admin.delete_group_offsets("plain", [TopicPartition("read", 1)])
        admin.delete_groups(["simple"])


def coordinate_newly(servers: str) -> None:
    """Features of Apache Kafka only: a group of the new protocol, and transactions."""
    member = Consumer(
        {"bootstrap.servers": servers, "group.id": "new", "group.protocol": "consumer", "auto.offset.reset": "earliest"}
    )
    try:
        join_confluent(member, "read", 3)
        member.commit(asynchronous=False, offsets=[Position("read", index, index + 1) for index in range(3)])
    finally:
        member.close()
    for number, ends in enumerate(("commit_transaction", "abort_transaction")):
        producer = Producer({"bootstrap.servers": servers, "transactional.id": f"transaction-{number}"})
        producer.init_transactions(20)
        producer.begin_transaction()
        producer.produce("read", b"value", partition=number)
        producer.flush(20)
        getattr(producer, ends)(20)


@pytest.fixture(scope="module")
def coordinated(start_broker: StartBroker) -> Path:
    """The directory of a broker that coordinated classic groups."""
    broker = start_broker("offsets.topic.num.partitions=2")
    coordinate(broker)
    assert broker.stop() in {0, 143}
    assert broker.log_directory is not None
    return broker.log_directory


@pytest.fixture(scope="module")
def coordinated_by_kafka(kafka_libraries: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of Apache Kafka with default settings, with groups of both protocols and transactions."""
    assert kafka_libraries.is_dir()
    node = KafkaNode(tmp_path_factory.mktemp("coordinated"), release="4.3")
    node.start()
    try:
        coordinate(node)
        coordinate_newly(node.bootstrap_servers)
    finally:
        node.stop()
    assert node.log_directory is not None
    return node.log_directory


def test_group_records_are_dumped_as_kafka_does(kafka_lines: KafkaTool, coordinated: Path) -> None:
    files = [path for path in coordinated.glob("__consumer_offsets-*/*.log") if path.stat().st_size]
    lines = compare(kafka_lines, files, "--offsets-decoder")
    text = "\n".join(lines)
    for part in ('"groupInstanceId":"first"', '"subscription":{"topics":["read"]', "payload: <DELETE>", '"offset":5'):
        assert part in text


def test_group_records_of_kafkas_are_dumped_as_kafka_does(kafka_lines: KafkaTool, coordinated_by_kafka: Path) -> None:
    files = [path for path in coordinated_by_kafka.glob("__consumer_offsets-*/*.log") if path.stat().st_size]
    lines = compare(kafka_lines, files, "--offsets-decoder")
    types = {line.partition('key: {"type":"')[2].partition('"')[0] for line in lines}
    assert types >= {"1", "2", "3", "5", "6", "7", "8"}
    skipped = compare(kafka_lines, files, "--offsets-decoder", "--skip-record-metadata")
    assert len(skipped) == len(lines)


def test_transaction_records_of_kafkas_are_dumped_as_kafka_does(
    kafka_lines: KafkaTool, coordinated_by_kafka: Path
) -> None:
    files = [path for path in coordinated_by_kafka.glob("__transaction_state-*/*.log") if path.stat().st_size]
    lines = compare(kafka_lines, files, "--transaction-log-decoder")
    assert any('"transactionalId":"transaction-1"' in line for line in lines)
    marked = [path for path in coordinated_by_kafka.glob("read-*/*.log") if path.stat().st_size]
    text = "\n".join(compare(kafka_lines, marked, "--deep-iteration"))
    assert "endTxnMarker: COMMIT" in text
    assert "endTxnMarker: ABORT" in text
    compare(kafka_lines, list(coordinated_by_kafka.glob("read-*/*.txnindex")))


def test_a_log_without_group_records_is_reported_as_kafka_does(
    kafka_lines: KafkaTool, coordinated_by_kafka: Path
) -> None:
    files = [path for path in coordinated_by_kafka.glob("__transaction_state-*/*.log") if path.stat().st_size][:1]
    words = ["--files", str(files[0]), "--offsets-decoder"]
    code, ours = our_lines(*words)
    theirs = kafka_lines("DumpLogSegments", *words).stdout.split("\n")
    assert len(ours) == len(theirs)
    assert code == 1


def test_kafkas_own_directory_passes_verification(coordinated_by_kafka: Path) -> None:
    words = [sys.executable, "-m", "kbroker", "verify", "--data-dir", str(coordinated_by_kafka)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (0, "")
