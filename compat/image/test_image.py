"""The image as delivered: its configuration, user, start, health check and stop."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from textwrap import dedent

import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from compat.image.building import BASE, IMAGE, READY, Container, Images
from compat.image.starts import start_once
from tests.image.testcontainers import DOTNET_CONFLUENT, GO

STARTS = 10
RUN, HEALTH = "/etc/kafka/docker/run", "/etc/kafka/docker/health"
LOOPBACK = {"KAFKA_LISTENERS": "PLAINTEXT://127.0.0.1:0"}


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Images]:
    built = Images(tmp_path_factory.mktemp("image"))
    try:
        built.build()
        yield built
    finally:
        built.discard()


@pytest.fixture(scope="module")
def container(images: Images) -> Container:
    return images.container()


def test_it_has_the_configuration_that_runtimes_need(images: Images) -> None:
    config = images.description()["config"]
    assert config["User"] == "appuser"
    assert config["Cmd"] == [RUN]
    assert not config["Entrypoint"]
    assert config["Healthcheck"]["Test"] == ["CMD", HEALTH]
    assert set(config["ExposedPorts"]) == {"9092/tcp"}
    assert set(config["Volumes"]) == {"/etc/kafka/secrets", "/var/lib/kafka/data", "/mnt/shared/config"}


def test_it_is_little_larger_than_its_base(images: Images) -> None:
    sizes = images.size_mb()
    assert 0 < sizes[IMAGE] - sizes[BASE] < 60  # docs/image.md says 42


def test_it_has_no_build_tools(container: Container) -> None:
    code, said = container.run("sh", "-c", "ls /opt/kbroker/bin; ls /opt/kbroker/lib/python3*/site-packages")
    assert code == 0
    assert "kbroker" in said.split()
    assert not {"pip", "setuptools", "hatchling", "mypy"} & set(said.split())


def test_its_hot_modules_are_compiled(container: Container) -> None:
    code, said = container.run("kbroker", "--version")
    assert (code, said.strip()[-10:]) == (0, "(compiled)")


@pytest.mark.parametrize("user", ["appuser", "23456:0"])
def test_files_that_a_start_runs_are_read_only(container: Container, user: str) -> None:
    """A compromised broker must not be able to change what the next start runs."""
    places = "/etc/kafka /etc/confluent /usr/local /opt/kafka /opt/kbroker"
    look = f"find {places} -path /etc/kafka/secrets -prune -o -writable ! -type l ! -path /opt/kafka -print"
    # Testcontainers' module for Rust adds a script there, which must not allow to replace what is there.
    script = "/opt/kafka/testcontainers_start.sh"
    add = f"echo true > {script} && chmod 755 {script} && {script} && rm {script}"
    replace = "mv /opt/kafka/libs /opt/kafka/old 2>&-"
    with container.running("sh", "-c", f"{look}; {add} && ! {replace}", options=[f"--user={user}"]) as running:
        assert running.wait() == 0
    assert running.log == ""


def test_the_broker_is_process_1_not_root_and_stops_cleanly(container: Container) -> None:
    with container.running(RUN, **LOOPBACK) as running:
        running.wait_for(READY)
        broker = Path(f"/proc/{running.broker()}")
        assert broker.joinpath("cmdline").read_bytes().split(b"\0")[1:3] == [b"/opt/kbroker/bin/kbroker", b"serve"]
        assert broker.stat().st_uid != 0
        assert running.stop() == 0
        assert "stopped" in running.log


def test_clients_produce_and_consume_and_the_health_check_agrees(container: Container) -> None:
    with container.running(RUN, **LOOPBACK) as running:
        running.wait_for(READY)
        address = f"127.0.0.1:{running.port()}"
        with closing(KafkaProducer(bootstrap_servers=address)) as producer:
            producer.send("greetings", b"hello").get(timeout=20)
        with closing(
            KafkaConsumer(bootstrap_servers=address, auto_offset_reset="earliest", consumer_timeout_ms=20_000)
        ) as consumer:
            consumer.assign([TopicPartition("greetings", 0)])
            assert next(consumer).value == b"hello"
        code, said = container.run(HEALTH)
        assert (code, said[:8]) == (0, "healthy:"), said
        running.stop(signal.SIGKILL)
    code, said = container.run(HEALTH)
    assert code == 1, said


@pytest.mark.parametrize("user", ["12345", "23456:34567"])
def test_any_user_may_run_it(container: Container, user: str) -> None:
    number = user.partition(":")[0]
    variables = {"KAFKA_LOG_DIRS": f"/var/lib/kafka/data/{number}", "KBROKER_READY_FILE": f"/tmp/{number}", **LOOPBACK}
    with container.running(RUN, options=[f"--user={user}"], **variables) as running:
        running.wait_for(READY)
        assert Path(f"/proc/{running.broker()}").stat().st_uid == int(number)
        assert running.stop() == 0


def test_a_mounted_properties_file_is_merged(container: Container, tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    tmp_path.joinpath("server.properties").write_text("num.partitions=3\n")
    mount = f"--volume={tmp_path}:/mnt/shared/config:ro"
    with container.running(RUN, "CLUSTER_ID=abc", options=[mount], **LOOPBACK) as running:
        log = running.wait_for(READY)
    assert "setting name=num.partitions value=3" in log
    assert "setting name=log.dirs value=/var/lib/kafka/data" in log


def test_testcontainers_for_java_starts_it(container: Container) -> None:
    script = "#!/bin/bash\nexport KAFKA_ADVERTISED_LISTENERS=PLAINTEXT://localhost:32768,BROKER://6f2c1e:9093\n"
    container.write("/tmp/testcontainers_start.sh", f"{script}{RUN} \n")
    wait = "while [ ! -f /tmp/testcontainers_start.sh ]; do sleep 0.1; done; /tmp/testcontainers_start.sh"
    variables = {
        "KAFKA_LISTENERS": "PLAINTEXT://:0,BROKER://:0,CONTROLLER://:0",
        "KAFKA_LISTENER_SECURITY_PROTOCOL_MAP": "BROKER:PLAINTEXT,PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "KAFKA_INTER_BROKER_LISTENER_NAME": "BROKER",
        "KAFKA_PROCESS_ROLES": "broker,controller",
        "KAFKA_CONTROLLER_LISTENER_NAMES": "CONTROLLER",
        "KAFKA_NODE_ID": "1",
    }
    with container.running("sh", "-c", wait, **variables) as running:
        running.wait_for(".*Transitioning from RECOVERY to RUNNING.*")


def test_testcontainers_for_python_starts_it(container: Container) -> None:
    script = dedent(
        """
        #!/bin/bash
        sed -i '/KAFKA_ZOOKEEPER_CONNECT/d' /etc/confluent/docker/configure
        echo 'kafka-storage format --ignore-formatted -t abc -c /etc/kafka/kafka.properties' \
        >> /etc/confluent/docker/configure

        export KAFKA_ADVERTISED_LISTENERS=PLAINTEXT://localhost:32769,BROKER://$(hostname -i):9092
        . /etc/confluent/docker/bash-config
        /etc/confluent/docker/configure
        /etc/confluent/docker/launch
        """
    ).strip()
    container.write("/tc-start.sh", script)
    variables = {
        "CLUSTER_ID": "MDEyMzQ1Njc4OTAxMjM0NQ==",
        "KAFKA_BROKER_ID": "1",
        "KAFKA_NODE_ID": "1",
        "KAFKA_LISTENERS": "PLAINTEXT://0.0.0.0:0,BROKER://0.0.0.0:0,CONTROLLER://0.0.0.0:9094",
        "KAFKA_LISTENER_SECURITY_PROTOCOL_MAP": "BROKER:PLAINTEXT,PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "KAFKA_INTER_BROKER_LISTENER_NAME": "BROKER",
        "KAFKA_PROCESS_ROLES": "broker,controller",
        "KAFKA_CONTROLLER_QUORUM_VOTERS": "1@localhost:9094",
        "KAFKA_CONTROLLER_LISTENER_NAMES": "CONTROLLER",
    }
    command = "while [ ! -f /tc-start.sh ]; do sleep 0.1; done; sh /tc-start.sh"
    with container.running("sh", "-c", command, **variables) as running:
        running.wait_for(r".*Kafka Server started.*")
        running.wait_for(r".*\[KafkaServer id=\d+\] started.*")


@pytest.mark.parametrize(
    "script",
    [GO, DOTNET_CONFLUENT],
    ids=["go", "dotnet"],
)
def test_testcontainers_for_go_and_dotnet_start_it(container: Container, script: str) -> None:
    container.write("/usr/sbin/testcontainers_start.sh", script)
    variables = {
        "KAFKA_LISTENERS": "PLAINTEXT://127.0.0.1:0,BROKER://127.0.0.1:0",
        "KAFKA_LISTENER_SECURITY_PROTOCOL_MAP": "BROKER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
        "KAFKA_INTER_BROKER_LISTENER_NAME": "BROKER",
        "KAFKA_BROKER_ID": "1",
    }
    with container.running("bash", "/usr/sbin/testcontainers_start.sh", **variables) as running:
        running.wait_for(r"Transitioning from RECOVERY to RUNNING")
        running.wait_for(r"\[KafkaServer id=\d+\] started")


def test_kafkas_tools_are_where_compose_files_call_them(container: Container) -> None:
    with container.running(RUN, **LOOPBACK) as running:
        running.wait_for(READY)
        at = f"--bootstrap-server 127.0.0.1:{running.port()}"
        script = (
            f"kafka-topics {at} --create --if-not-exists --topic made --partitions 2 --replication-factor 1 && "
            f"/opt/kafka/bin/kafka-topics.sh {at} --list && /bin/kafka-cluster cluster-id {at} && "
            "kbroker --version && /opt/kafka/bin/kafka-server-stop.sh"
        )
        code, said = container.run("bash", "-lc", script)  # a login shell sets its own PATH
        assert (code, "made" in said.split(), "Cluster ID: " in said) == (0, True, True), said
        assert running.wait() == 0
        assert "stopped" in running.log


def test_it_starts_repeatedly(container: Container) -> None:
    for number in range(int(os.environ.get("KBROKER_IMAGE_STARTS", STARTS))):
        start_once(container, number)


def test_it_has_a_list_of_what_it_is_made_of(container: Container) -> None:
    code, said = container.run("cat", "/opt/kbroker/sbom.cdx.json")
    assert code == 0
    found = json.loads(said)
    names = {one["name"] for one in found["components"]}
    assert found["metadata"]["component"]["name"] == "kbroker"
    assert {"trio", "construct", "CPython"} <= names
    assert not {"mypy", "hatchling", "setuptools"} & names
