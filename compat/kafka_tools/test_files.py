"""Kafka's DumpLogSegments reads every file of the broker, and each broker reads the other's segments."""

from __future__ import annotations

import base64
import json
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from compat.brokers import WITHOUT_RETENTION, KbrokerProcess
from compat.clients import confluent, kafka_python
from compat.clients.samples import START_MS, Sample, samples
from compat.conftest import KafkaTool
from compat.kafka import KafkaNode
from compat.oracle.conftest import await_leaders
from compat.oracle.raw import connected

AnyBroker = KbrokerProcess | KafkaNode
StartBroker = Callable[..., AnyBroker]
# DumpLogSegments reports errors only with these words; its status is 0 anyway.
COMPLAINTS = re.compile(r"isvalid: false|mismatch|not found in|Non-consecutive|Error|Exception|corrupt", re.IGNORECASE)


SMALL_BATCHES = {"batch.num.messages": 5}


@dataclass
class Stopped:
    """A cleanly stopped broker, and the records that it had received."""

    directory: Path
    topic: str
    topic_id: bytes
    records: dict[int, list[Sample]]


def create(broker: AnyBroker, name: str, *, partitions: int = 1, **configs: str) -> bytes:
    settings = [{"Name": key.replace("_", "."), "Value": value} for key, value in configs.items()]
    topic = {"Name": name, "NumPartitions": partitions, "ReplicationFactor": 1, "Configs": settings}
    with connected(broker.bootstrap_servers) as connection:
        answer = connection.call("CreateTopics", 7, {"Topics": [topic], "timeoutMs": 30_000})
    assert answer["Topics"][0]["ErrorCode"] == 0, answer
    await_leaders(broker.bootstrap_servers, name, partitions)
    topic_id = answer["Topics"][0]["TopicId"]
    assert isinstance(topic_id, bytes)
    return topic_id


@pytest.fixture(scope="module")
def stopped(start_broker: StartBroker) -> Stopped:
    """Two partitions: 0 over several segments, idempotent, uncompressed; 1 with all kinds of records and zstd."""
    broker = start_broker()
    topic_id = create(broker, "dumped", partitions=2, segment_bytes="1048576", retention_ms="-1")
    long = [Sample(b"%d" % number, b"%d-" % number + b"x" * 1000, START_MS + number) for number in range(2500)]
    confluent.produce(broker.bootstrap_servers, "dumped", 0, long, "none", idempotent=True, **SMALL_BATCHES)
    odd = samples(60, seed=5, null_headers=False)
    kafka_python.produce(broker.bootstrap_servers, "dumped", 1, odd, "zstd", idempotent=False)
    assert broker.stop() in {0, 143}
    assert broker.log_directory is not None
    return Stopped(broker.log_directory, "dumped", topic_id, {0: long, 1: odd})


def dump(kafka_tool: KafkaTool, files: list[Path], *flags: str) -> str:
    assert files
    done = kafka_tool("DumpLogSegments", "--files", ",".join(map(str, sorted(files))), *flags)
    # 4.3.1 reports a gap at the first offset of every segment but the first, in its own files as well.
    said = re.sub(r"Non-consecutive offsets in \S+\n  -1 is followed by \d+\n", "", done.stdout + done.stderr)
    complaint = COMPLAINTS.search(said)
    if complaint is not None:
        said = said[max(complaint.start() - 30, 0) : complaint.end() + 300]
        pytest.fail(f"DumpLogSegments complains: {said}")
    return done.stdout


def fields_of(line: str) -> dict[str, str]:
    return dict(re.findall(r"(\w+): (\S*)", line))


def batches_of(text: str) -> Iterator[dict[str, str]]:
    for line in text.splitlines():
        if line.startswith("baseOffset:"):
            yield fields_of(line)


def test_every_record_is_dumped_as_it_was_sent(kafka_tool: KafkaTool, stopped: Stopped) -> None:
    files = sorted((stopped.directory / "dumped-0").glob("*.log"))
    assert len(files) >= 3
    text = dump(kafka_tool, files, "--deep-iteration", "--print-data-log")
    pattern = (
        r"^\| offset: (\d+) CreateTime: (\d+) keySize: \d+ valueSize: \d+ sequence: (\d+) "
        r"headerKeys: \[\] key: (\d+) payload: (.*)$"
    )
    found = [tuple(map(str.encode, groups)) for groups in re.findall(pattern, text, re.MULTILINE)]
    assert found == [
        (b"%d" % number, b"%d" % record.timestamp_ms, b"%d" % number, record.key, record.value)
        for number, record in enumerate(stopped.records[0])
    ]
    expected = end = 0
    for batch in batches_of(text):
        position = int(batch["position"])
        assert int(batch["baseOffset"]) == expected
        expected = int(batch["lastOffset"]) + 1
        assert batch["isvalid"] == "true"
        assert position in {0, end}
        end = position + int(batch["size"])


def test_unusual_records_are_dumped_as_they_were_sent(kafka_tool: KafkaTool, stopped: Stopped) -> None:
    text = dump(kafka_tool, list((stopped.directory / "dumped-1").glob("*.log")), "--deep-iteration")
    rows = [fields_of(line) for line in text.splitlines() if line.startswith("| offset:")]
    assert [
        (int(row["offset"]), int(row["CreateTime"]), int(row["keySize"]), int(row["valueSize"])) for row in rows
    ] == [
        (
            number,
            record.timestamp_ms,
            -1 if record.key is None else len(record.key),
            -1 if record.value is None else len(record.value),
        )
        for number, record in enumerate(stopped.records[1])
    ]
    # kafka-python sends a batch uncompressed if compression would make it larger.
    assert "zstd" in {batch["compresscodec"] for batch in batches_of(text)} <= {"zstd", "none"}


def test_every_index_is_valid_and_points_at_batches(kafka_tool: KafkaTool, stopped: Stopped) -> None:
    partitions = [stopped.directory / f"dumped-{index}" for index in (0, 1)]
    indexes = [file for each in partitions for file in (*each.glob("*.index"), *each.glob("*.timeindex"))]
    assert len(indexes) >= 8
    checked = kafka_tool("DumpLogSegments", "--files", ",".join(map(str, indexes)), "--index-sanity-check").stdout
    assert len(re.findall(r"passed sanity check|is empty", checked)) == len(indexes), checked
    assert checked.count("is empty") <= 4
    dump(kafka_tool, indexes, "--verify-index-only")
    logs = dump(kafka_tool, list(partitions[0].glob("*.log")))
    dumped = dump(kafka_tool, list(partitions[0].glob("*.index")) + list(partitions[0].glob("*.timeindex")))
    batches = list(batches_of(logs))
    places = {(batch["lastOffset"], batch["position"]) for batch in batches}
    entries = re.findall(r"^offset: (\d+) position: (\d+)$", dumped, re.MULTILINE)
    assert len(entries) > 50
    assert [entry for entry in entries if entry not in places and entry[1] != "0"] == []
    times = re.findall(r"^timestamp: (\d+) offset: (\d+)$", dumped, re.MULTILINE)
    assert len(times) > 50
    assert [(int(time), int(offset)) for time, offset in times if int(time) != START_MS + int(offset)] == []


def test_producer_snapshots_have_the_last_sequence(kafka_tool: KafkaTool, stopped: Stopped) -> None:
    snapshots = sorted((stopped.directory / "dumped-0").glob("*.snapshot"))
    text = dump(kafka_tool, snapshots)
    parts = text.split("Dumping ")[1:]
    assert len(parts) == len(snapshots) >= 3
    for file, part in zip(snapshots, parts, strict=True):
        rows = [fields_of(line) for line in part.splitlines() if line.startswith("producerId:")]
        end = int(file.stem)
        assert len(rows) == min(end // 5, 5), "one for each remembered batch of five records"
        for number, row in enumerate(reversed(rows)):
            assert (row["producerEpoch"], row["coordinatorEpoch"]) == ("0", "-1")
            assert int(row["lastSequence"]) == int(row["lastOffset"]) == end - 5 * number - 1
    assert int(snapshots[-1].stem) == len(stopped.records[0])


def payloads(text: str) -> list[dict[str, Any]]:
    return [json.loads(payload) for payload in re.findall(r"payload: (\{.*\})$", text, re.MULTILINE)]


def test_the_metadata_log_and_its_snapshots_are_decoded(kafka_tool: KafkaTool, stopped: Stopped) -> None:
    directory = stopped.directory / "__cluster_metadata-0"
    logs = list(directory.glob("*.log"))
    text = dump(kafka_tool, logs, "--cluster-metadata-decoder")
    records = payloads(text)
    by_type: dict[str, list[dict[str, Any]]] = {}
    snapshots = [*directory.glob("*.checkpoint"), *stopped.directory.glob("bootstrap.checkpoint")]
    for snapshot in snapshots:
        records += payloads(dump(kafka_tool, [snapshot], "--cluster-metadata-decoder"))
    for record in records:
        by_type.setdefault(record["type"], []).append(record["data"])
    topic = next(data for data in by_type["TOPIC_RECORD"] if data["name"] == "dumped")
    text_id = base64.urlsafe_b64encode(stopped.topic_id).decode().rstrip("=")
    assert topic["topicId"] == text_id
    mine = [data for data in by_type["PARTITION_RECORD"] if data["topicId"] == text_id]
    assert sorted(data["partitionId"] for data in mine) == [0, 1]
    assert all(data["replicas"] == data["isr"] == [data["leader"]] for data in mine)
    settings = {data["name"]: data["value"] for data in by_type["CONFIG_RECORD"] if data["resourceName"] == "dumped"}
    assert settings == {"segment.bytes": "1048576", "retention.ms": "-1"}
    levels = {data["name"]: data["featureLevel"] for data in by_type["FEATURE_LEVEL_RECORD"]}
    assert levels["metadata.version"] >= 21
    assert by_type["REGISTER_BROKER_RECORD"]
    assert by_type["PRODUCER_IDS_RECORD"]


def give_away(source: Path, broker: AnyBroker, partition: str) -> None:
    """Replace another stopped broker's segments with those of a stopped broker; the topic keeps its id."""
    assert broker.log_directory is not None
    target = broker.log_directory / partition
    for file in target.iterdir():
        if file.name != "partition.metadata":
            file.unlink()
    for file in source.iterdir():
        if file.name != "partition.metadata":
            shutil.copy(file, target)


def fill(broker: AnyBroker) -> tuple[list[Sample], list[Sample]]:
    """A partition with all codecs and one of several segments, by an idempotent producer."""
    create(broker, "moved", partitions=2, segment_bytes="1048576", retention_ms="-1")
    mixed: list[Sample] = []
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        part = samples(40, seed=len(mixed), null_headers=False)
        confluent.produce(broker.bootstrap_servers, "moved", 0, part, codec, idempotent=True)
        mixed += part
    long = [Sample(b"k", b"%d-" % number + b"y" * 1000, START_MS + number) for number in range(2200)]
    confluent.produce(broker.bootstrap_servers, "moved", 1, long, "none", idempotent=True, **SMALL_BATCHES)
    return mixed, long


@pytest.fixture
def another_kafka(kafka_libraries: Path, tmp_path: Path) -> Iterator[KafkaNode]:
    """A node of Apache Kafka for one test, which stops and starts it."""
    assert kafka_libraries.is_dir()
    node = KafkaNode(tmp_path / "kafka", overrides=WITHOUT_RETENTION)
    node.start()
    yield node
    node.discard()


@pytest.mark.parametrize("direction", ["the broker reads what Kafka wrote", "Kafka reads what the broker wrote"])
def test_segments_move_between_brokers(start_broker: StartBroker, another_kafka: KafkaNode, direction: str) -> None:
    ours = start_broker()
    writer, reader = (another_kafka, ours) if direction.endswith("Kafka wrote") else (ours, another_kafka)
    try:
        mixed, long = fill(writer)
        create(reader, "moved", partitions=2, segment_bytes="1048576", retention_ms="-1")
        writer.stop()
        reader.stop()
        for partition in ("moved-0", "moved-1"):
            assert writer.log_directory is not None
            give_away(writer.log_directory / partition, reader, partition)
        reader.start()
        found = kafka_python.consume(reader.bootstrap_servers, "moved", {0: len(mixed), 1: len(long)})
        assert found == {0: mixed, 1: long}
        more = samples(20, seed=99, null_headers=False)
        # Each cluster numbers its producers itself: a number assigned here may be used in the log from the other one.
        confluent.produce(reader.bootstrap_servers, "moved", 0, more, "zstd", idempotent=False)
        found = kafka_python.consume(reader.bootstrap_servers, "moved", {0: len(mixed) + len(more)})
        assert found[0] == mixed + more
    finally:
        ours.stop()
