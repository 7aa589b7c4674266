"""The image's kafka-* commands compared with Apache Kafka's tools: the same exit codes and important lines.

Both run against the same broker. Lines are compared by their words, because column widths are not part of any contract.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from compat.brokers import Broker
from compat.kafka import run_tool
from compat.kafka_tools.image_tools import image_tool
from kbroker.controller.snapshots import BOOTSTRAP_FILE, read_snapshot
from kbroker.metadata.image import Record
from kbroker.runtime.disk import RealDisk

KAFKA = "org.apache.kafka.tools"
CLASSES = {
    "kafka-broker-api-versions": f"{KAFKA}.BrokerApiVersionsCommand",
    "kafka-cluster": f"{KAFKA}.ClusterTool",
    "kafka-configs": "kafka.admin.ConfigCommand",
    "kafka-console-consumer": f"{KAFKA}.consumer.ConsoleConsumer",
    "kafka-console-producer": f"{KAFKA}.ConsoleProducer",
    "kafka-consumer-groups": f"{KAFKA}.consumer.group.ConsumerGroupCommand",
    "kafka-delete-records": f"{KAFKA}.DeleteRecordsCommand",
    "kafka-features": f"{KAFKA}.FeatureCommand",
    "kafka-get-offsets": f"{KAFKA}.GetOffsetShell",
    "kafka-groups": f"{KAFKA}.GroupsCommand",
    "kafka-leader-election": f"{KAFKA}.LeaderElectionCommand",
    "kafka-log-dirs": f"{KAFKA}.LogDirsCommand",
    "kafka-metadata-quorum": f"{KAFKA}.MetadataQuorumCommand",
    "kafka-reassign-partitions": f"{KAFKA}.reassign.ReassignPartitionsCommand",
    "kafka-storage": "kafka.tools.StorageTool",
    "kafka-topics": f"{KAFKA}.TopicCommand",
    "kafka-transactions": f"{KAFKA}.TransactionsCommand",
}
Words = list[list[str]]


def ours(tool: str, *words: str, input: str | None = None) -> tuple[int, Words]:
    done = image_tool(tool, *words, input=input)
    return done.returncode, _words(done.stdout)


def theirs(tool: str, *words: str, input: str | None = None) -> tuple[int, Words]:
    done = run_tool(CLASSES[tool], *words, input=input)
    return done.returncode, _words(done.stdout)


def _words(text: str) -> Words:
    lines = (line for line in text.splitlines() if not line.startswith(("Warn: ", "Warning: ", "Option --", "[20")))
    return sorted(line.split() for line in lines if line.strip())


def _with_broker(tool: str, words: Sequence[str], broker: Broker, topic: str) -> list[str]:
    """The words with the broker's address, which follows the action of kafka-cluster, and with the topic's name."""
    found = [word.replace("TOPIC", topic) for word in words]
    at = 1 if tool == "kafka-cluster" else 0
    return [*found[:at], "--bootstrap-server", broker.bootstrap_servers, *found[at:]]


pytestmark = pytest.mark.usefixtures("kafka_libraries")


@pytest.fixture(scope="module")
def topic(broker: Broker, new_topic_name: Callable[[str], str]) -> str:
    """Two partitions; the first has keyed records with a null among them."""
    name = new_topic_name("image")
    at = ("--bootstrap-server", broker.bootstrap_servers)
    created = ours("kafka-topics", *at, "--create", "--topic", name, "--partitions", "2", "--config", "retention.ms=-1")
    assert created == (0, [["Created", "topic", f"{name}."]])
    reading = ("--property", "parse.key=true", "--property", "key.separator=:", "--property", "null.marker=NIL")
    for run in (ours, theirs):
        assert run("kafka-console-producer", *at, "--topic", name, *reading, input="a:1\na:2:3\na:NIL\n") == (0, [])
    reading = ("--topic", name, "--from-beginning", "--group", name, "--max-messages", "1")
    assert ours("kafka-console-consumer", *at, *reading)[0] == 0
    return name


@pytest.mark.parametrize(
    ("tool", "words"),
    [
        ("kafka-topics", ["--describe", "--topic", "TOPIC"]),
        ("kafka-topics", ["--create", "--topic", "TOPIC", "--if-not-exists", "--partitions", "3"]),
        ("kafka-configs", ["--alter", "--topic", "TOPIC", "--add-config", "segment.ms=9"]),
        ("kafka-get-offsets", ["--topic", "TOPIC", "--time", "-1"]),
        ("kafka-features", ["describe"]),
        ("kafka-cluster", ["list-endpoints", "--include-fenced-brokers"]),
        ("kafka-groups", ["--list", "--consumer"]),
        ("kafka-groups", ["--list", "--group-type", "SHARE"]),
        ("kafka-metadata-quorum", ["describe", "--status"]),
        ("kafka-leader-election", ["--election-type", "preferred", "--topic", "TOPIC", "--partition", "0"]),
    ],
    ids=lambda each: each if isinstance(each, str) else each[0],
)  # fmt: skip
def test_exit_code_and_output_are_kafkas(broker: Broker, topic: str, tool: str, words: Sequence[str]) -> None:
    words = _with_broker(tool, words, broker, topic)
    code, lines = ours(tool, *words)
    expected_code, expected = theirs(tool, *words)
    if tool == "kafka-metadata-quorum":  # the log grows between the two runs
        lines, expected = ([row for row in each if row[0] != "HighWatermark:"] for each in (lines, expected))
    assert (code, lines) == (expected_code, expected)


def test_credentials_and_quotas_are_set_and_described_as_by_kafkas_tool(broker: Broker) -> None:
    at = ("--bootstrap-server", broker.bootstrap_servers)
    user = ("--entity-type", "users", "--entity-name", "image-al")
    pair = (*user, "--entity-type", "clients", "--entity-name", "c")
    clients, users = ("--entity-type=clients", "--entity-default"), ("--user-defaults",)
    values = {
        (user, "SCRAM-SHA-256"): "[iterations=8192,password=a,b]",
        (user, "SCRAM-SHA-512"): "[password=c]",
        (user, "producer_byte_rate"): "1024",
        (pair, "consumer_byte_rate"): "7",
        (clients, "request_percentage"): "200",
        (users, "request_percentage"): "200",
    }
    commands = [["--alter", *whom, "--add-config", f"{name}={value}"] for (whom, name), value in values.items()]
    commands += [["--describe", *whom] for whom in (user, pair, ("--entity-type", "users"), clients)]
    commands += [["--alter", *whom, "--delete-config", name] for whom, name in values]
    commands.append(["--describe", *user])
    found = [[run("kafka-configs", *at, *command) for command in commands] for run in (ours, theirs)]
    assert found[0] == found[1]
    assert {code for code, _ in found[0]} == {0}


@pytest.mark.parametrize(
    ("tool", "words"),
    [
        ("kafka-configs", ["--alter", "--entity-type", "users", "--add-config", "producer_byte_rate=1"]),
        (
            "kafka-configs",
            ["--alter", "--entity-type", "users", "--entity-name", "x", "--add-config", "SCRAM-SHA-256=x"],
        ),
        (
            "kafka-configs",
            ["--alter", "--entity-type", "ips", "--entity-name", "::1", "--add-config", "producer_byte_rate=1"],
        ),
        ("kafka-topics", ["--create", "--topic", "TOPIC"]),
        ("kafka-topics", ["--describe", "--topic", "no-such-topic"]),
        ("kafka-topics", ["--help"]),
        ("kafka-get-offsets", ["--topic", "no-such-topic"]),
        ("kafka-features", ["upgrade", "--feature", "group.version=99"]),
        ("kafka-console-consumer", ["--topic", "TOPIC", "--offset", "3"]),
        ("kafka-cluster", ["unregister", "--id", "7"]),
        ("kafka-groups", ["--list", "--group-type", "none"]),
        ("kafka-groups", ["--list", "--consumer", "--protocol", "consumer"]),
        ("kafka-log-dirs", ["--describe", "--broker-list", "7"]),
        ("kafka-reassign-partitions", ["--list", "--additional"]),
        ("kafka-reassign-partitions", ["--verify"]),
        ("kafka-transactions", ["describe", "--transactional-id", "none"]),
        ("kafka-transactions", ["abort", "--topic", "TOPIC", "--partition", "0", "--start-offset", "99"]),
        ("kafka-transactions", ["find-hanging"]),
        ("kafka-consumer-groups", ["--describe", "--group", "no-such-group"]),
    ],
    ids=lambda each: each if isinstance(each, str) else each[0],
)
def test_failures_have_kafkas_exit_code(broker: Broker, topic: str, tool: str, words: Sequence[str]) -> None:
    words = _with_broker(tool, words, broker, topic)
    assert ours(tool, *words)[0] == theirs(tool, *words)[0]


@pytest.mark.parametrize(
    "flags",
    [
        ["--from-beginning", "--max-messages", "6"],
        ["--partition", "PARTITION", "--offset", "4", "--timeout-ms", "3000"],
        ["--from-beginning", "--group", "GROUP", "--max-messages", "6"],
    ],
    ids=lambda flags: flags[-2],
)
def test_the_console_consumer_prints_kafkas_lines(broker: Broker, topic: str, flags: list[str]) -> None:
    at = ("--bootstrap-server", broker.bootstrap_servers, "--topic", topic)
    shown = ["timestamp", "partition", "offset", "headers", "key", "value"]
    properties = [word for name in shown for word in ("--property", f"print.{name}=true")]
    _, ends = ours("kafka-get-offsets", *at)
    (partition,) = (line.split(":")[1] for ((line),) in ends if line.endswith(":6"))
    found = []
    for run in (ours, theirs):
        words = [word.replace("PARTITION", partition).replace("GROUP", run.__name__) for word in flags]
        found.append(run("kafka-console-consumer", *at, *words, *properties))
    assert found[0] == found[1]
    assert found[0][0] == 0
    assert len(found[0][1]) == (2 if "--partition" in flags else 6)


def test_records_are_deleted_as_by_kafkas_tool(broker: Broker, topic: str, tmp_path: Path) -> None:
    file = tmp_path / "delete.json"
    partitions = [{"topic": topic, "partition": index, "offset": -1} for index in range(2)]
    file.write_text(json.dumps({"partitions": partitions, "version": 1}))
    words = ("--bootstrap-server", broker.bootstrap_servers, "--offset-json-file", str(file))
    assert ours("kafka-delete-records", *words) == theirs("kafka-delete-records", *words)


def test_every_api_of_the_broker_is_listed_as_by_kafkas_tool(broker: Broker) -> None:
    at = ("--bootstrap-server", broker.bootstrap_servers)
    code, lines = ours("kafka-broker-api-versions", *at)
    _, expected = theirs("kafka-broker-api-versions", *at)
    known = [[word.rstrip(",") for word in line] for line in expected if "UNSUPPORTED" not in " ".join(line)]
    assert code == 0
    assert sorted([word.rstrip(",") for word in line] for line in lines) == sorted(known)


def test_a_plan_is_proposed_executed_throttled_and_verified_as_by_kafkas_tool(
    broker: Broker, new_topic_name: Callable[[str], str], tmp_path: Path
) -> None:
    at, name = ("--bootstrap-server", broker.bootstrap_servers), new_topic_name("planned")
    assert ours("kafka-topics", *at, "--create", "--topic", name)[0] == 0
    _, (*_, [described]) = ours("kafka-log-dirs", *at, "--describe", "--topic-list", name)
    (directory,) = {each["logDir"] for each in json.loads(described)["brokers"][0]["logDirs"]}
    plan = {"topic": name, "partition": 0, "replicas": [1], "log_dirs": [directory]}
    files = {
        "topics": {"version": 1, "topics": [{"topic": name}]},
        "plan": {"version": 1, "partitions": [plan]},
        "nowhere": {"partitions": [{**plan, "log_dirs": ["/nowhere"]}]},
        "unknown": {"partitions": [{"topic": name, "partition": 0, "replicas": [7]}]},
        "absent": {"partitions": [{**plan, "topic": "absent"}]},
    }
    for stem, contents in files.items():
        (tmp_path / stem).write_text(json.dumps(contents))
    described_topic = ["kafka-configs", "--describe", "--topic", name]
    broker_1 = ["kafka-configs", "--describe", "--broker", "1"]

    def reassign(stem: str, *flags: str) -> list[str]:
        return ["kafka-reassign-partitions", "--reassignment-json-file", str(tmp_path / stem), *flags]

    generated = ["--topics-to-move-json-file", str(tmp_path / "topics"), "--broker-list", "1"]
    exact = [
        ["kafka-log-dirs", "--describe", "--topic-list", name],
        ["kafka-reassign-partitions", "--generate", *generated],
        reassign("plan", "--execute", "--throttle", "1000000"),
        described_topic,
        broker_1,
        reassign("unknown", "--verify", "--preserve-throttles"),
        reassign("plan", "--verify"),
        described_topic,
        reassign("nowhere", "--verify"),
        reassign("absent", "--verify", "--preserve-throttles"),
        reassign("plan", "--cancel"),
        ["kafka-reassign-partitions", "--list"],
    ]
    for tool, *words in exact:
        assert ours(tool, *at, *words) == theirs(tool, *at, *words), words
    for stem in ("nowhere", "unknown", "absent"):
        tool, *words = reassign(stem, "--execute")
        code, lines = ours(tool, *at, *words)
        expected_code, expected = theirs(tool, *at, *words)
        assert code == expected_code == 1
        if stem != "absent":  # Kafka's tool prints the name of an exception
            (found,), (error,) = ([each for each in some if each[0] == "Error:"] for some in (lines, expected))
            assert " ".join(found).startswith(" ".join(error))  # ours also says why a directory cannot be used


def storage_properties(directory: Path) -> str:
    """The path of a file with the settings of a broker that is its own controller, and has its data there."""
    settings = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": "1@127.0.0.1:9093",
        "listeners": "PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:9093",
        "controller.listener.names": "CONTROLLER",
        "log.dirs": str(directory),
    }
    file = directory.with_suffix(".properties")
    file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    return str(file)


FORMAT = ("format", "--cluster-id", "MkU3OEVBNTcwNTJENDM2Qg")


def test_a_directory_is_formatted_as_by_kafkas_tool(tmp_path: Path) -> None:
    users = (
        "SCRAM-SHA-256=[name=al,password=se=cret,salt=N3E=,iterations=8192]",
        'SCRAM-SHA-512=[name=al,salt="N3E=",saltedpassword="YCE="]',
    )
    flags = [word for each in users for word in ("--add-scram", each)]
    flags += ["--release-version", "4.2", "--feature", "share.version=0", "--feature", "streams.version=0"]
    flags += ["--feature", "eligible.leader.replicas.version=0"]
    found: list[set[str]] = []
    for run in (ours, theirs):
        directory = tmp_path / run.__name__
        file = storage_properties(directory)
        informed = ours("kafka-storage", "info", "--config", file)
        assert informed == theirs("kafka-storage", "info", "--config", file)
        assert informed[0] == 1
        code, lines = run("kafka-storage", *FORMAT, "--config", file, *flags)
        said = f"Formatting metadata directory {directory} with metadata.version 4.2-IV1.".split()
        assert (code, said in lines) == (0, True)
        informed = ours("kafka-storage", "info", "--config", file)
        assert informed == theirs("kafka-storage", "info", "--config", file)
        assert informed[0] == 0
        records: list[Record] = read_snapshot(RealDisk(), str(directory / BOOTSTRAP_FILE))
        # Kafka's tool also writes the levels that are 0.
        found.append({repr(each) for each in records if getattr(each, "feature_level", True)})
    assert found[0] == found[1]
    assert len(found[0]) == 5


@pytest.mark.parametrize(
    "flags",
    [
        ["--add-scram", "SCRAM-SHA-1=[name=al,password=a]"],
        ["--add-scram", "SCRAM-SHA-256=[name=al,password=a"],
        ["--add-scram", "SCRAM-SHA-256=[password=a]"],
        ["--add-scram", "SCRAM-SHA-256=[name=al,saltedpassword=YCE=]"],
        ["--add-scram", "SCRAM-SHA-256=[name=al,password=a,iterations=1]"],
        ["--add-scram", "SCRAM-SHA-256=[name=al,password=a,color=red]"],
        ["--add-scram", "SCRAM-SHA-256=[name=al,password=a]", "--release-version", "3.4"],
        ["--feature", "metadata.version=20", "--release-version", "3.8"],
        ["--standalone"],
    ],
    ids=lambda flags: flags[-1],
)
def test_kafka_storage_fails_as_kafkas_tool(tmp_path: Path, flags: list[str]) -> None:
    words = [*FORMAT, "--config", storage_properties(tmp_path / "data"), *flags]
    found, expected = image_tool("kafka-storage", *words), run_tool(CLASSES["kafka-storage"], *words)
    assert found.returncode == expected.returncode == 1
    assert found.stderr.removeprefix("kafka-storage: ").strip() in expected.stderr
    assert not (tmp_path / "data").exists()
