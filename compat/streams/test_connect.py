"""Connect's workers with a file as source and a file as sink.

The distributed worker keeps connectors, offsets and states in compacted topics, and with
`exactly.once.source.support` it writes records and offsets in transactions. It is killed with `kill -9` and started
again. The standalone worker keeps its offsets in a file.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from compat.brokers import Broker, free_port
from compat.clients import filling
from compat.features import raise_features
from compat.keyed import PATIENCE_S, read
from compat.main_job import input_lines, source_file
from compat.streams.programs import Program, java_program
from compat.waiting import until

LINES = 2_000
INTERNAL = {"config.storage": "configs", "offset.storage": "offsets", "status.storage": "states"}
STRINGS = "org.apache.kafka.connect.storage.StringConverter"


@pytest.fixture(scope="module")
def broker(start_broker: Callable[..., Broker]) -> Broker:
    """A broker with the newest transactions."""
    started = start_broker("log.cleaner.backoff.ms=500")
    raise_features(started.bootstrap_servers, {"transaction.version": 2})
    return started


@pytest.fixture
def servers(broker: Broker) -> str:
    return broker.bootstrap_servers


@pytest.fixture
def lines() -> list[bytes]:
    return [line.strip() for line in input_lines(source_file(), LINES)][:LINES]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Program]]:
    """`start("ConnectStandalone", worker, connector...)`: a worker with these properties; killed at the end."""
    made: list[Program] = []

    def start(main_class: str, *properties: dict[str, str]) -> Program:
        files = []
        for number, each in enumerate(properties):
            files.append(tmp_path / f"{main_class}-{number}.properties")
            files[-1].write_text("".join(f"{key}={value}\n" for key, value in each.items()))
        program = java_program(
            tmp_path / f"{main_class}.txt", f"org.apache.kafka.connect.cli.{main_class}", *map(str, files)
        )
        made.append(program)
        program.start()
        return program

    yield start
    for each in made:
        each.kill()
        print(each.log_tail())  # pytest shows it if the test fails


def worker(servers: str, port: int, **more: str) -> dict[str, str]:
    """The properties of a worker; underscores stand for dots."""
    return {
        "bootstrap.servers": servers,
        "key.converter": STRINGS,
        "value.converter": STRINGS,
        "offset.flush.interval.ms": "500",
        "consumer.session.timeout.ms": "6000",  # of the sink's group, which waits for a killed worker
        "listeners": f"http://127.0.0.1:{port}",
        "plugin.discovery": "service_load",
        **{name.replace("_", "."): value for name, value in more.items()},
    }


def connectors(topic: str, directory: Path) -> dict[str, dict[str, str]]:
    """The configurations of a source and a sink."""
    files = "org.apache.kafka.connect.file.FileStream"
    return {
        "source": {
            "connector.class": f"{files}SourceConnector", "file": str(directory / "in.txt"), "topic": topic,
            "batch.size": "50", "tasks.max": "1",
        },
        "sink": {
            "connector.class": f"{files}SinkConnector", "file": str(directory / "out.txt"), "topics": topic,
            "tasks.max": "1",
        },
    }  # fmt: skip


def written(directory: Path) -> list[bytes]:
    """The complete lines of the sink's file."""
    out = directory / "out.txt"
    return out.read_bytes().rpartition(b"\n")[0].splitlines() if out.exists() else []


def test_the_standalone_worker_copies_a_file(
    servers: str,
    tmp_path: Path,
    lines: list[bytes],
    start: Callable[..., Program],
    new_topic_name: Callable[[str], str],
) -> None:
    topic = filling.create(servers, new_topic_name("standalone"))
    (tmp_path / "in.txt").write_bytes(b"\n".join(lines) + b"\n")
    own = worker(servers, free_port(), offset_storage_file_filename=str(tmp_path / "offsets"))
    named = [{"name": name, **each} for name, each in connectors(topic, tmp_path).items()]
    program = start("ConnectStandalone", own, *named)

    def complete() -> bool:
        program.check()
        return len(written(tmp_path)) >= len(lines)

    until(complete, each_s=0.1, patience_s=PATIENCE_S)
    assert written(tmp_path) == lines


def put(port: int, name: str, properties: dict[str, str]) -> bool:
    """Create or keep a connector; whether the worker was ready to."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/connectors/{name}/config",
        data=json.dumps(properties).encode(),
        headers={"Content-Type": "application/json"},
        method="PUT",
    )
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return bool(answer.status in {200, 201})
    except OSError:
        return False


def test_a_killed_distributed_worker_reads_its_source_exactly_once(
    servers: str,
    tmp_path: Path,
    lines: list[bytes],
    start: Callable[..., Program],
    new_topic_name: Callable[[str], str],
) -> None:
    topic, group, port = filling.create(servers, new_topic_name("distributed")), new_topic_name("connect"), free_port()
    (tmp_path / "in.txt").write_bytes(b"\n".join(lines[: LINES // 2]) + b"\n")
    own = worker(
        servers, port, group_id=group, exactly_once_source_support="enabled", session_timeout_ms="6000",
        heartbeat_interval_ms="1000", scheduled_rebalance_max_delay_ms="0",
    )  # fmt: skip
    for setting, name in INTERNAL.items():
        own |= {f"{setting}.topic": f"{group}-{name}", f"{setting}.replication.factor": "1"}
    own |= {"offset.storage.partitions": "3", "status.storage.partitions": "1"}
    program = start("ConnectDistributed", own)

    def sees(expected: list[bytes]) -> Callable[[], bool]:
        def complete() -> bool:
            program.check()
            return set(expected) <= set(written(tmp_path))

        return complete

    for name, properties in connectors(topic, tmp_path).items():
        until(lambda: put(port, name, properties), each_s=0.2, patience_s=PATIENCE_S)  # noqa: B023  (called here)
    until(sees(lines[: LINES // 4]), each_s=0.05, patience_s=PATIENCE_S)
    program.kill()
    with (tmp_path / "in.txt").open("ab") as more:
        more.write(b"\n".join(lines[LINES // 2 :]) + b"\n")
    program.start()
    until(sees(lines), each_s=0.1, patience_s=PATIENCE_S)
    assert [value for _, value in read(servers, topic, 1)[0]] == lines
    described: Any = AdminClient({"bootstrap.servers": servers})
    resources = [ConfigResource(ResourceType.TOPIC, f"{group}-{name}") for name in INTERNAL.values()]
    for found in described.describe_configs(resources).values():
        assert found.result(PATIENCE_S)["cleanup.policy"].value == "compact"
