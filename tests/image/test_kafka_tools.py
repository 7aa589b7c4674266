"""The image's kafka-* commands, as compose files call them: paths, exit codes, and the lines that scripts look for.

compat/kafka_tools/test_image_tools.py compares them with Apache Kafka's own tools.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kbroker.runtime.free_ports import free_ports
from tests.image.test_entry_point import LOOPBACK, READY, Container
from tests.image.test_storage import controller_settings

Run = Callable[..., "subprocess.CompletedProcess[str]"]
CLUSTER_ID = "MkU3OEVBNTcwNTJENDM2Qg"


@pytest.fixture(scope="module")
def container(tmp_path_factory: pytest.TempPathFactory) -> Container:
    return Container(tmp_path_factory.mktemp("tools"))


@pytest.fixture(scope="module")
def run(container: Container) -> Run:
    """Run a command of the image; checks its exit code."""

    def run(tool: str, *words: str, status: int = 0, input: str = "") -> subprocess.CompletedProcess[str]:
        command = [str(container.scripts / tool if tool.endswith(".sh") else container.path / "bin" / tool), *words]
        done = subprocess.run(
            command, input=input, capture_output=True, text=True, check=False, timeout=60, env=container.environment
        )
        assert done.returncode == status, done.stdout + done.stderr
        return done

    return run


@pytest.fixture(scope="module")
def at(container: Container) -> Iterator[list[str]]:
    """The flag that names a running broker."""
    with container.running(container.kafka / "run", CLUSTER_ID=CLUSTER_ID, **LOOPBACK) as running:
        running.wait_for(READY)
        yield ["--bootstrap-server", (container.path / "ready").read_text().strip()]


def test_an_init_container_creates_topics(run: Run, at: list[str]) -> None:
    create = [*at, "--create", "--if-not-exists", "--topic", "orders", "--partitions", "3", "--replication-factor", "1"]
    for _ in range(2):
        run("kafka-topics.sh", *create, "--config", "retention.ms=1000000")
    assert "orders" in run("kafka-topics", *at, "--list").stdout.split()
    head = run("kafka-topics.sh", *at, "--describe", "--topic", "orders").stdout.splitlines()[0]
    assert "\tPartitionCount: 3\tReplicationFactor: 1\t" in head
    assert "retention.ms=1000000" in head
    failed = run("kafka-topics", *at, "--create", "--topic", "orders", status=1)
    assert "already exists" in failed.stdout + failed.stderr


def test_health_checks_fail_without_a_broker(run: Run, at: list[str], container: Container) -> None:
    impatient = container.path / "impatient.properties"
    impatient.write_text("default.api.timeout.ms=500\n")
    nobody = ["--bootstrap-server", "127.0.0.1:1", "--command-config", str(impatient)]
    for tool, words in (
        ("kafka-broker-api-versions.sh", []),
        ("kafka-topics.sh", ["--list"]),
        ("kafka-metadata-quorum.sh", ["describe", "--status"]),
    ):
        assert run(tool, *at, *words).stdout
        assert "Traceback" not in run(tool, *nobody, *words, status=1).stderr
    assert run("kafka-cluster.sh", "cluster-id", *at).stdout == f"Cluster ID: {CLUSTER_ID}\n"


def test_an_init_container_waits_for_the_broker(tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_ports(1)[0]}"
    container = Container(tmp_path)
    commands: list[list[str | Path]] = [
        [container.scripts / "kafka-topics.sh", "--bootstrap-server", address, "--list"],
        [container.path / "bin" / "cub", "kafka-ready", "-b", address, "1", "60"],
    ]
    waiting = [subprocess.Popen(words, env=container.environment, stderr=subprocess.PIPE) for words in commands]
    try:
        with pytest.raises(subprocess.TimeoutExpired):  # without a broker each of them waits
            waiting[0].wait(2)
        variables = {"KAFKA_LISTENERS": f"PLAINTEXT://{address}"}
        with container.running(container.kafka / "run", **variables) as running:
            running.wait_for(READY)
            for process in waiting:
                _, said = process.communicate(timeout=60)
                assert process.returncode == 0, said
    finally:
        for process in waiting:
            process.kill()


def test_cub_counts_the_brokers(run: Run, at: list[str]) -> None:
    run("cub", "kafka-ready", "-b", at[1], "1", "20")
    assert "expected 2 brokers, but found 1" in run("cub", "kafka-ready", "-b", at[1], "2", "2", status=1).stderr


def test_deletions_are_not_confirmed(run: Run, at: list[str]) -> None:
    for name in ("gone-1", "gone-2"):
        run("kafka-topics", *at, "--create", "--topic", name)
        run("kafka-console-producer", *at, "--topic", name, input="1\n")
        words = ["--topic", name, "--group", name, "--from-beginning", "--max-messages", "1"]
        run("kafka-console-consumer", *at, *words)
    run("kafka-topics", *at, "--delete", "--topic", "gone-.*")
    assert "gone" not in run("kafka-topics", *at, "--list").stdout
    run("kafka-consumer-groups", *at, "--delete", "--all-groups")
    assert not run("kafka-consumer-groups", *at, "--list").stdout.strip()


def test_records_go_in_and_out_with_keys(run: Run, at: list[str]) -> None:
    keyed = ["--property", "parse.key=true", "--property", "key.separator=:"]
    run("kafka-console-producer.sh", *at, "--topic", "keyed", *keyed, input="k1:v1\nk2:v:2\n")
    shown = ["--property", "print.key=true", "--property", "key.separator==", "--property", "print.partition=true"]
    read = run("kafka-console-consumer", *at, "--topic", "keyed", "--from-beginning", "--max-messages", "2", *shown)
    assert read.stdout == "Partition:0=k1=v1\nPartition:0=k2=v:2\n"
    assert "Processed a total of 2 messages" in read.stderr
    group = ["--group", "readers", "--from-beginning", "--timeout-ms", "3000"]
    assert run("kafka-console-consumer.sh", *at, "--topic", "keyed", *group).stdout == "v1\nv:2\n"
    columns = run("kafka-consumer-groups.sh", *at, "--describe", "--group", "readers").stdout.split("\n")
    assert ["readers", "keyed", "0", "2", "2", "0"] in [line.split()[:6] for line in columns]
    assert run("kafka-get-offsets.sh", *at, "--topic", "keyed").stdout == "keyed:0:2\n"


def test_a_consumer_takes_its_group_from_a_file(run: Run, at: list[str], container: Container) -> None:
    file = container.path / "consumer.properties"
    file.write_text("group.id=from-file\nauto.offset.reset=earliest\nisolation.level=read_committed\n")
    run("kafka-console-producer", *at, "--topic", "filed", input="1\n")
    words = ["--topic", "filed", "--consumer.config", str(file), "--max-messages", "1"]
    assert run("kafka-console-consumer", *at, *words).stdout == "1\n"
    assert "from-file" in run("kafka-consumer-groups", *at, "--list").stdout.split()


def test_an_explicit_offset_counts_more_than_the_reset(run: Run, at: list[str]) -> None:
    run("kafka-console-producer", *at, "--topic", "placed", input="0\n1\n2\n")
    reset = ["--topic", "placed", "--command-property", "auto.offset.reset=earliest"]
    read = [*at, *reset, "--max-messages", "1", "--timeout-ms", "20000"]
    assert run("kafka-console-consumer", *read, "--partition", "0", "--offset", "2").stdout == "2\n"
    assert run("kafka-console-consumer", *read).stdout == "0\n"
    beginning = [*at, "--topic", "placed", "--from-beginning", "--partition", "0"]
    refused = run("kafka-console-consumer", *beginning, "--offset", "2", status=1)
    assert "Can't simultaneously specify --from-beginning" in refused.stderr


def test_a_line_without_a_key_fails(run: Run, at: list[str]) -> None:
    words = ["--topic", "keyed", "--property", "parse.key=true", "--property", "key.separator=:"]
    assert "no key" in run("kafka-console-producer", *at, *words, status=1, input="word\n").stderr


def test_records_are_deleted(run: Run, at: list[str], container: Container) -> None:
    run("kafka-console-producer", *at, "--topic", "short", input="1\n2\n3\n")
    file = container.path / "delete.json"
    file.write_text(json.dumps({"partitions": [{"topic": "short", "partition": 0, "offset": 2}], "version": 1}))
    assert "partition: short-0\tlow_watermark: 2" in run("kafka-delete-records", *at, "--offset-json-file", file).stdout
    file.write_text(json.dumps({"partitions": [{"topic": "short", "partition": 0, "offset": 9}]}))
    assert "error" in run("kafka-delete-records", *at, "--offset-json-file", file, status=1).stdout
    file.write_text("{}")
    assert "cannot read" in run("kafka-delete-records", *at, "--offset-json-file", file, status=1).stderr


def test_partitions_stay_where_a_plan_leaves_them(run: Run, at: list[str], container: Container) -> None:
    run("kafka-topics", *at, "--create", "--topic", "still", "--partitions", "2")
    topics, plan = container.path / "topics.json", container.path / "plan.json"
    topics.write_text('{"topics": [{"topic": "still"}]}')
    generate = ["--generate", "--topics-to-move-json-file", str(topics), "--broker-list", "1"]
    proposed = run("kafka-reassign-partitions.sh", *at, *generate).stdout.splitlines()
    plan.write_text(proposed[proposed.index("Proposed partition reassignment configuration") + 1])
    planned = ["--reassignment-json-file", str(plan)]
    started = run("kafka-reassign-partitions", *at, *planned, "--execute", "--throttle", "1000").stdout
    assert started.endswith("Successfully started partition reassignments for still-0,still-1\n")
    assert "throttled.replicas=0:1,1:1" in run("kafka-topics", *at, "--describe", "--topic", "still").stdout
    assert "still-1 is completed." in run("kafka-reassign-partitions", *at, *planned, "--verify").stdout
    assert "throttled" not in run("kafka-topics", *at, "--describe", "--topic", "still").stdout
    directories = run("kafka-log-dirs.sh", *at, "--describe", "--topic-list", "still").stdout.splitlines()[-1]
    (directory,) = json.loads(directories)["brokers"][0]["logDirs"]
    assert directory["logDir"] == str(container.path / "data")
    many = ["--generate", "--topics-to-move-json-file", str(topics), "--broker-list", "8,9"]
    assert "Error: All brokers are currently fenced." in run("kafka-reassign-partitions", *at, *many, status=1).stdout


def test_a_broker_starts_from_a_formatted_directory(run: Run, container: Container) -> None:
    data = container.path / "formatted"
    settings = f"log.dirs={data}\nsasl.enabled.mechanisms=SCRAM-SHA-256,PLAIN\n"
    file = controller_settings(container.path / "server.properties", settings)
    own_id = run("kafka-storage.sh", "random-uuid").stdout.strip()
    words = ["format", "-t", own_id, "-c", str(file)]
    users = ["--add-scram", "SCRAM-SHA-256=[name=al,password=secret]", "-S", "SCRAM-SHA-512=[name=bo,password=x]"]
    features = ["--release-version", "3.8", "--feature", "transaction.version=2"]
    said = run("kafka-storage.sh", *words, *users, *features).stdout
    assert said == f"Formatting metadata directory {data} with metadata.version 3.8-IV0.\n"
    assert "already formatted" in run("kafka-storage", *words, status=1).stderr
    run("kafka-storage", *words, "--ignore-formatted")
    client = container.path / "al.properties"
    login = "org.apache.kafka.common.security.scram.ScramLoginModule required username=al password=secret;"
    client.write_text(f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-256\nsasl.jaas.config={login}\n")
    modules, plain = container.path / "jaas.conf", container.path / "cy.properties"
    modules.write_text('KafkaServer { a.b.PlainLoginModule required user_cy="tea"; };')
    plain.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n"
        "sasl.jaas.config=PlainLoginModule required username=cy password=tea;\n"
    )
    java = f"-Djava.security.auth.login.config={modules}"
    with container.running(container.scripts / "kafka-server-start.sh", file, KAFKA_OPTS=java) as running:
        log = running.wait_for(READY)
        at = ["--bootstrap-server", log.partition(READY)[2].split()[0], "--command-config", str(client)]
        for file in (client, plain):
            said = run("kafka-cluster", "cluster-id", *at[:2], "--command-config", str(file)).stdout
            assert said == f"Cluster ID: {own_id}\n"
        described = run("kafka-configs", *at, "--describe", "--entity-type", "users").stdout
        assert described.splitlines() == [
            "SCRAM credential configs for user-principal 'al' are SCRAM-SHA-256=iterations=4096",
            "SCRAM credential configs for user-principal 'bo' are SCRAM-SHA-512=iterations=4096",
        ]
        levels = run("kafka-features", *at, "describe").stdout
        for feature, level in (("metadata.version", "3.8-IV0"), ("transaction.version", "2"), ("group.version", "0")):
            assert re.search(rf"Feature: {feature}\t.*FinalizedVersionLevel: {level}\t", levels)
        assert running.stop() == 0


@pytest.mark.parametrize(
    ("tool", "words"),
    [
        ("kafka-acls.sh", ["--add"]),
        ("kafka-reassign-partitions", ["--verify"]),
        ("kafka-share-groups", ["--list"]),
        ("kafka-topics.sh", ["--zookeeper", "zookeeper:2181", "--list"]),
        ("kafka-topics.sh", []),
        ("kafka-console-producer", ["--topic", "t", "--property", "parse.headers=true"]),
        ("kafka-console-consumer", ["--topic", "t", "--formatter", "my.Formatter"]),
        ("kafka-console-consumer", ["--topic", "t", "--value-deserializer", "my.Deserializer"]),
        ("kafka-storage", ["format", "-t", "id"]),
        ("kafka-server-start", []),
        ("kafka-server-stop", []),
    ],
)
def test_what_is_not_supported_fails_with_a_reason(run: Run, tool: str, words: list[str]) -> None:
    said = run(tool, *words, status=1).stderr
    assert said.strip()
    assert "Traceback" not in said


def test_every_name_is_linked_once(container: Container) -> None:
    tools = [sys.executable, "docker/kafka_tools", "kafka-tool"]
    names = subprocess.run(tools, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2]).stdout
    assert {path.stem for path in container.scripts.glob("*.sh")} == set(names.split())
    assert len(names.split()) == len(set(names.split()))
