"""The image's scripts, run as Docker and as Testcontainers' modules run them, without Docker.

The start scripts below are those that the modules write into a container; only the place of the files is another one.
"""

from __future__ import annotations

import os
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from textwrap import dedent

import pytest

from kbroker.client.blocking import Connection
from tests.broker_process import connect
from tests.image.testcontainers import DOTNET_APACHE, DOTNET_CONFLUENT, GO, NODE, NODE_ZOOKEEPER, RUST
from wire.messages.metadata import MetadataRequest

ROOT = Path(__file__).parents[2]
START_SECONDS, STOP_SECONDS = 30, 10
FIRST_CLUSTER_ID, OTHER_CLUSTER_ID = "4L6g3nShT-eMCtK--X86sw", "MDEyMzQ1Njc4OTAxMjM0NQ=="


class Container:
    """A directory that stands for the root of the image's file system."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.kafka = path / "etc" / "kafka" / "docker"
        self.confluent = path / "etc" / "confluent" / "docker"
        for place in (self.kafka, self.confluent):
            shutil.copytree(ROOT / "docker" / "kafka", place)
        commands, self.scripts = path / "bin", path / "opt" / "kafka" / "bin"
        commands.mkdir()
        self.scripts.mkdir(parents=True)
        tool = self.scripts / "kafka-tool"
        python = f"{sys.executable} {ROOT}/docker/kafka_tools"
        start = (ROOT / "docker" / "kafka-tool").read_text()
        tool.write_text(start.replace("/opt/kbroker/bin/python /opt/kafka/libs/kafka_tools", python))
        tool.chmod(0o755)
        command = commands / "kbroker"
        command.write_text(f'#!/bin/sh\nexec {sys.executable} -m kbroker "$@"\n')
        command.chmod(0o755)
        self.mounted = path / "mnt"
        self.mounted.mkdir()
        self.environment = {
            "PATH": f"{commands}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "KAFKA_LOG_DIRS": str(path / "data"),
            "KBROKER_READY_FILE": str(path / "ready"),
            "KBROKER_MOUNTED_CONFIG_DIR": str(self.mounted),
        }
        subprocess.run([ROOT / "docker" / "link-tools", self.scripts, commands], env=self.environment, check=True)

    def moved(self, script: str) -> str:
        """A start script that finds the image's files here."""
        return script.replace("/etc/confluent/docker", str(self.confluent)).replace(
            "/etc/kafka/docker", str(self.kafka)
        )

    @contextmanager
    def running(self, *command: str | Path, **variables: str) -> Iterator[Running]:
        """Run a command with these variables, for as long as the block takes."""
        process = subprocess.Popen(
            [str(word) for word in command],
            env=self.environment | variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            yield Running(process, self.path / "ready")
        finally:
            # A start script that does not exec leaves the broker to its process group.
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()

    def health(self) -> subprocess.CompletedProcess[str]:
        """The image's health check."""
        return subprocess.run(
            [self.kafka / "health"], env=self.environment, capture_output=True, text=True, check=False
        )


class Running:
    """A command that runs, and what it has written to its log."""

    def __init__(self, process: subprocess.Popen[bytes], ready: Path) -> None:
        self.process = process
        self.log = ""
        self._ready = ready

    def wait_for(self, pattern: str) -> str:
        """Wait for a line in the log, as the modules do; the log."""
        deadline = time.monotonic() + START_SECONDS
        while not re.search(pattern, self.log):
            assert self._read(deadline - time.monotonic()), f"{pattern!r} is not in the log:\n{self.log}"
        return self.log

    def wait(self) -> int:
        """Wait for the end of the process; its exit code."""
        deadline = time.monotonic() + STOP_SECONDS
        while self._read(deadline - time.monotonic()):
            pass
        return self.process.wait(timeout=STOP_SECONDS)

    def _read(self, seconds: float) -> bool:
        """Read more of the log; False at its end, or when nothing came in time."""
        assert self.process.stdout is not None
        readable, _, _ = select.select([self.process.stdout], [], [], max(0, seconds))
        data = os.read(self.process.stdout.fileno(), 65536) if readable else b""
        self.log += data.decode()
        return bool(data)

    def client(self) -> Connection:
        host, _, port = self._ready.read_text().strip().rpartition(":")
        return connect(host, int(port))

    def stop(self) -> int:
        """Tell it to stop; its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.wait()


@pytest.fixture
def container(tmp_path: Path) -> Container:
    return Container(tmp_path)


def metadata_of(running: Running) -> tuple[str | None, list[tuple[str, int]]]:
    """The cluster's id and the addresses that a client of the first listener gets."""
    with running.client() as client:
        answer = client.ask(MetadataRequest(topics=[]), version=9)
    return answer.cluster_id, [(broker.host, broker.port) for broker in answer.brokers]


READY = "kbroker ready on "
LOOPBACK = {"KAFKA_LISTENERS": "PLAINTEXT://127.0.0.1:0"}


def test_the_command_is_the_broker_and_stops_cleanly_on_sigterm(container: Container) -> None:
    with container.running(container.kafka / "run", **LOOPBACK) as running:
        log = running.wait_for(READY)
        assert running.stop() == 0
        assert "stopped" in running.log
    for awaited in (
        r".*Transitioning from RECOVERY to RUNNING.*",
        r".*\[KafkaServer id=\d+\] started.*",
        r".*Kafka Server started.*",
    ):
        assert re.search(awaited, log)


def test_the_health_check_asks_where_the_broker_answers(container: Container) -> None:
    with container.running(container.kafka / "run", **LOOPBACK) as running:
        running.wait_for(READY)
        healthy = container.health()
        assert (healthy.returncode, healthy.stdout[:8]) == (0, "healthy:"), healthy
        running.stop()
        assert container.health().returncode == 1


def test_arguments_override_the_environment_which_overrides_the_mounted_file(container: Container) -> None:
    (container.mounted / "server.properties").write_text(
        "num.partitions=3\nlog.retention.ms=7\nqueued.max.requests=9\n"
    )
    variables = {"KAFKA_NUM_PARTITIONS": "4", "KAFKA_LOG_RETENTION_MS": "8", "KAFKA_NUM_PARTITION": "1", **LOOPBACK}
    with container.running(container.kafka / "run", "KAFKA_NUM_PARTITIONS=5", **variables) as running:
        log = running.wait_for(READY)
    assert "setting name=num.partitions value=5" in log
    assert "setting name=log.retention.ms value=8" in log
    assert "setting name=offsets.topic.replication.factor value=1" in log
    assert "KAFKA_NUM_PARTITION is ignored: Unknown setting num.partition; did you mean num.partitions?" in log
    assert "queued.max.requests=9 has no effect" in log


def test_an_unreadable_mounted_file_is_one_clear_error(container: Container) -> None:
    (container.mounted / "server.properties").mkdir()
    with container.running(container.kafka / "run", **LOOPBACK) as running:
        assert running.wait() == 1
        assert f"cannot read {container.mounted}/server.properties: Is a directory" in running.log
        assert "Traceback" not in running.log


def test_an_argument_that_is_no_variable_is_a_usage_error(container: Container) -> None:
    with container.running(container.kafka / "run", "--help") as running:
        assert running.wait() == 2
        assert "--help is not of the form NAME=value" in running.log


def test_the_cluster_has_the_id_that_it_was_given_first(container: Container) -> None:
    for asked in (FIRST_CLUSTER_ID, OTHER_CLUSTER_ID):
        with container.running(container.kafka / "run", CLUSTER_ID=asked, **LOOPBACK) as running:
            log = running.wait_for(READY)
            assert metadata_of(running)[0] == FIRST_CLUSTER_ID
            assert running.stop() == 0
    assert "the data directory has another cluster id; keeping it" in log


def test_listeners_follow_from_the_advertised_ones(container: Container) -> None:
    with container.running(
        container.kafka / "run", KAFKA_ADVERTISED_LISTENERS="PLAINTEXT://broker.example:0"
    ) as running:
        running.wait_for(READY)
        ((host, _port),) = metadata_of(running)[1]
    assert host == "broker.example"


def test_the_environment_sets_level_and_format_of_the_log(container: Container) -> None:
    variables = {"KAFKA_LOG4J_ROOT_LOGLEVEL": "ERROR", "KBROKER_LOG_FORMAT": "json", "KAFKA_NUM_PARTITION": "1"}
    with container.running(container.kafka / "run", **variables, **LOOPBACK) as running:
        log = running.wait_for("Kafka Server started")
    assert "setting" not in log
    assert "ignored" not in log


def test_a_bad_setting_is_one_clear_line(container: Container) -> None:
    with container.running(container.kafka / "run", KAFKA_LISTENERS="SSL://:0") as running:
        assert running.wait() == 1
        assert "listener SSL: TLS requires a certificate" in running.log
        assert "Traceback" not in running.log


# Testcontainers for Java: the module for apache/kafka, and that for confluentinc/cp-kafka

JAVA_VARIABLES = {
    "CLUSTER_ID": FIRST_CLUSTER_ID,
    "KAFKA_LISTENERS": "PLAINTEXT://127.0.0.1:0,BROKER://127.0.0.1:0,CONTROLLER://127.0.0.1:0",
    "KAFKA_LISTENER_SECURITY_PROTOCOL_MAP": "BROKER:PLAINTEXT,PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "KAFKA_INTER_BROKER_LISTENER_NAME": "BROKER",
    "KAFKA_PROCESS_ROLES": "broker,controller",
    "KAFKA_CONTROLLER_LISTENER_NAMES": "CONTROLLER",
    "KAFKA_NODE_ID": "1",
    "KAFKA_OFFSETS_TOPIC_REPLICATION_FACTOR": "1",
    "KAFKA_OFFSETS_TOPIC_NUM_PARTITIONS": "1",
    "KAFKA_TRANSACTION_STATE_LOG_REPLICATION_FACTOR": "1",
    "KAFKA_TRANSACTION_STATE_LOG_MIN_ISR": "1",
    "KAFKA_LOG_FLUSH_INTERVAL_MESSAGES": str(2**63 - 1),
    "KAFKA_GROUP_INITIAL_REBALANCE_DELAY_MS": "0",
}

WITHOUT_CONTROLLER = {
    "CLUSTER_ID": "",
    "KAFKA_PROCESS_ROLES": "",
    "KAFKA_CONTROLLER_LISTENER_NAMES": "",
    "KAFKA_NODE_ID": "",
    "KAFKA_LISTENERS": "PLAINTEXT://127.0.0.1:0,BROKER://127.0.0.1:0",
    "KAFKA_LISTENER_SECURITY_PROTOCOL_MAP": "BROKER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
}
"""How a module for a broker with ZooKeeper differs; "" removes a variable."""


@pytest.mark.parametrize("place", ["kafka", "confluent"])
def test_the_modules_for_java_start_it(container: Container, place: str) -> None:
    script = container.path / "testcontainers_start.sh"
    wait = f"while [ ! -f {script} ]; do sleep 0.1; done; {script}"
    with container.running("sh", "-c", wait, **JAVA_VARIABLES) as running:
        starting = container.path / "starting"
        starting.write_text(
            container.moved(
                "#!/bin/bash\n"
                "export KAFKA_ADVERTISED_LISTENERS=PLAINTEXT://localhost:32768,BROKER://6f2c1e0d:9093\n"
                f"/etc/{place}/docker/run \n"
            )
        )
        starting.chmod(0o777)
        starting.rename(script)
        running.wait_for(".*Transitioning from RECOVERY to RUNNING.*")
        assert metadata_of(running) == (FIRST_CLUSTER_ID, [("localhost", 32768)])


# Testcontainers for Go, and for .NET with its two kinds of images


@pytest.mark.parametrize(
    "script",
    [GO, DOTNET_CONFLUENT, DOTNET_APACHE],
    ids=["go", "dotnet-confluent", "dotnet-apache"],
)
@pytest.mark.parametrize("is_writable", [True, False])
def test_the_modules_for_go_and_dotnet_start_it(container: Container, script: str, is_writable: bool) -> None:
    if not is_writable:  # as in the image, where not even errors of the script may end it
        for name in ("configure", "ensure"):
            script = script.replace(f"/etc/confluent/docker/{name}\necho", f"/none/{name}\necho")
            script = script.replace(f"> /etc/confluent/docker/{name}", f"> /none/{name}")
    starting = container.path / "testcontainers.sh"
    starting.write_text(container.moved(script))
    with container.running("sh", "-c", f"cd {container.path}; bash {starting}", **JAVA_VARIABLES) as running:
        running.wait_for(r".*Transitioning from RECOVERY to RUNNING.*")
        running.wait_for(r"\[KafkaServer id=\d+\] started")
        assert metadata_of(running)[1] == [("localhost", 32770)]


# Testcontainers for Node and for Rust. Node's module waits for the image's health check, Rust's for a line of the log.


@pytest.mark.parametrize(
    ("script", "changes"),
    [
        (NODE, {"KAFKA_BROKER_ID": "1", "KAFKA_CONTROLLER_QUORUM_VOTERS": "1@localhost:9094"}),
        (NODE_ZOOKEEPER, {"KAFKA_BROKER_ID": "1", "KAFKA_ZOOKEEPER_CONNECT": "localhost:2181", **WITHOUT_CONTROLLER}),
        (RUST, {"KAFKA_BROKER_ID": "1", "KAFKA_CONTROLLER_QUORUM_VOTERS": "1@localhost:9094", "KAFKA_NODE_ID": ""}),
    ],
    ids=["node", "node-zookeeper", "rust"],
)
def test_the_modules_for_node_and_rust_start_it(container: Container, script: str, changes: dict[str, str]) -> None:
    variables = {name: value for name, value in (JAVA_VARIABLES | changes).items() if value}
    start = container.path / "testcontainers_start.sh"
    wait = f"cd {container.path}; while [ ! -f {start} ]; do sleep 0.1; done; {start} 2>/dev/null"
    with container.running("bash", "-c", wait, **variables) as running:
        starting = container.path / "starting"
        starting.write_text(container.moved(script))
        starting.chmod(0o777)
        starting.rename(start)
        running.wait_for("Kafka Server started")
        assert metadata_of(running)[1] == [("localhost", 32770)]
        assert container.health().returncode == 0


# Testcontainers for Python


@pytest.mark.parametrize("in_kraft_mode", [True, False])
def test_the_module_for_python_starts_it(container: Container, in_kraft_mode: bool) -> None:
    variables = {
        "KAFKA_LISTENERS": "PLAINTEXT://127.0.0.1:0,BROKER://127.0.0.1:0",
        "KAFKA_LISTENER_SECURITY_PROTOCOL_MAP": "BROKER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
        "KAFKA_INTER_BROKER_LISTENER_NAME": "BROKER",
        "KAFKA_BROKER_ID": "1",
        "KAFKA_OFFSETS_TOPIC_REPLICATION_FACTOR": "1",
        "KAFKA_OFFSETS_TOPIC_NUM_PARTITIONS": "1",
        "KAFKA_LOG_FLUSH_INTERVAL_MESSAGES": "10000000",
        "KAFKA_GROUP_INITIAL_REBALANCE_DELAY_MS": "0",
    }
    boot, awaited = (
        """
        echo 'clientPort=2181' > zookeeper.properties
        echo 'dataDir=/var/lib/zookeeper/data' >> zookeeper.properties
        zookeeper-server-start zookeeper.properties &
        export KAFKA_ZOOKEEPER_CONNECT='localhost:2181'
        """,
        r".*\[KafkaServer id=\d+\] started.*",
    )
    if in_kraft_mode:
        variables |= {
            "CLUSTER_ID": OTHER_CLUSTER_ID,
            "KAFKA_NODE_ID": "1",
            "KAFKA_LISTENER_SECURITY_PROTOCOL_MAP": "BROKER:PLAINTEXT,PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "KAFKA_LISTENERS": "PLAINTEXT://127.0.0.1:0,BROKER://127.0.0.1:0,CONTROLLER://0.0.0.0:9094",
            "KAFKA_PROCESS_ROLES": "broker,controller",
            "KAFKA_CONTROLLER_QUORUM_VOTERS": "1@localhost:9094",
            "KAFKA_CONTROLLER_LISTENER_NAMES": "CONTROLLER",
        }
        boot, awaited = (
            f"""
        sed -i '/KAFKA_ZOOKEEPER_CONNECT/d' /etc/confluent/docker/configure
        echo 'kafka-storage format --ignore-formatted -t {OTHER_CLUSTER_ID} -c /etc/kafka/kafka.properties' \
>> /etc/confluent/docker/configure
        """,
            r".*Kafka Server started.*",
        )
    script = container.path / "tc-start.sh"
    wait = f"cd {container.path}; while [ ! -f {script} ]; do sleep 0.1; done; sh {script}"
    with container.running("sh", "-c", wait, **variables) as running:
        starting = container.path / "starting"
        starting.write_text(
            container.moved(
                "#!/bin/bash\n"
                + dedent(boot)
                + dedent(
                    """
                    export KAFKA_ADVERTISED_LISTENERS=PLAINTEXT://localhost:32769,BROKER://$(echo 172.17.0.2):9092
                    . /etc/confluent/docker/bash-config
                    /etc/confluent/docker/configure
                    /etc/confluent/docker/launch
                    """
                )
            )
        )
        starting.rename(script)
        log = running.wait_for(awaited)
        cluster_id, addresses = metadata_of(running)
    assert addresses == [("localhost", 32769)]
    if in_kraft_mode:
        assert cluster_id == OTHER_CLUSTER_ID
        assert "kbroker formats a new data directory when it starts" in log
    else:
        assert "KAFKA_ZOOKEEPER_CONNECT is ignored" in log


def test_the_base_is_pinned_to_what_the_registry_says(tmp_path: Path) -> None:
    shutil.copy(ROOT / "Dockerfile", tmp_path)
    digest = "sha256:" + "0123456789abcdef" * 4
    registry = tmp_path / "skopeo"
    command = [str(ROOT / "docker" / "pin-base")]
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    for said, code in [(digest, 0), (digest, 0), ("sha256:short", 1), ("", 1)]:
        registry.write_text(f"#!/bin/sh\ncase \"$4\" in docker://*:*[!0-9a-f@]*) echo '{said}' ;; esac\n")
        registry.chmod(0o755)
        done = subprocess.run(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, check=False)
        assert done.returncode == code, done.stderr
        (line,) = re.findall(r"(?m)^ARG BASE=(.*)$", (tmp_path / "Dockerfile").read_text())
        assert line.endswith(f"@{digest}")
        assert line.count("@") == 1
