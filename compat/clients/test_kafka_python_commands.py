"""kafka-python's own commands: administration without Java; another command verifies each change."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from compat.brokers import Broker
from compat.clients import filling
from compat.clients.conftest import NewTopic
from compat.clients.members import CLIENTS, LATEST_S, await_assignment
from compat.oracle.groups import await_coordinator

EACH = 40
Admin = Callable[..., Any]


@pytest.fixture(scope="module")
def admin(broker: Broker) -> Admin:
    """`admin("groups", "list")`: run `python -m kafka.admin`, assert its status, return its JSON or its output."""

    def run(*arguments: str, status: int = 0, form: str = "json") -> Any:
        command = [sys.executable, "-m", "kafka.admin", "-b", broker.bootstrap_servers, "--format", form, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == status, f"{arguments} ended with {done.returncode}: {done.stdout}{done.stderr}"
        return json.loads(done.stdout) if (status, form) == (0, "json") else done.stdout + done.stderr

    return run


def test_topics_partitions_and_settings(broker: Broker, admin: Admin, new_topic_name: Callable[[str], str]) -> None:
    name = new_topic_name("commands")
    created = admin("topics", "create", "-t", name, "--num-partitions", "2")["topics"][0]
    assert (created["name"], created["num_partitions"], created["error_code"]) == (name, 2, 0)
    assert "TopicAlreadyExists" in admin("topics", "create", "-t", name, "--num-partitions", "2", status=1)
    assert name in admin("topics", "list")
    admin("partitions", "create", "-p", f"{name}:3")
    described = admin("topics", "describe", "-t", name)[0]
    assert sorted(part["partition_index"] for part in described["partitions"]) == [0, 1, 2]
    filling.fill(broker.bootstrap_servers, name, {2: [b"%d" % number for number in range(EACH)]})
    # Its JSON output of deleted records fails, because a key is not a string.
    assert "'low_watermark': 15" in admin("partitions", "delete-records", "-r", f"{name}:2:15", form="raw")
    for spec, offsets in (("earliest", [0, 0, 15]), ("latest", [0, 0, EACH]), ("max-timestamp", [-1, -1, EACH - 1])):
        found = admin("partitions", "list-offsets", "-t", name, "-s", spec)
        assert [found[name][str(index)]["offset"] for index in range(3)] == offsets, found
    topic = ("-r", "topic", "-n", name)
    admin("configs", "alter", *topic, "-c", "retention.ms=5000", "-c", "segment.ms=70000")
    changed = admin("configs", "describe", *topic, "--modified")["topic"][name]
    assert {key: each["value"] for key, each in changed.items()} == {"retention.ms": "5000", "segment.ms": "70000"}
    admin("configs", "reset", *topic, "-c", "segment.ms")
    changed = admin("configs", "describe", *topic, "--modified")["topic"][name]
    assert {key: each["value"] for key, each in changed.items()} == {"retention.ms": "5000"}
    assert "InvalidConfiguration" in admin("configs", "alter", *topic, "-c", "retention.ms=soon")["topic"][name]
    assert name in admin("configs", "list")["topic"]
    admin("partitions", "elect-leaders", "-p", f"{name}:0", "--no-raise-errors")
    assert admin("partitions", "list-reassignments") == {}
    refused = admin("partitions", "alter-reassignments", "-r", f"{name}:0=1,77")
    assert refused == {f"{name}:0": "InvalidReplicationAssignmentError"}
    admin("topics", "delete", "-t", name)
    assert name not in admin("topics", "list")


def test_groups_and_their_offsets(
    broker: Broker, admin: Admin, new_topic: NewTopic, new_topic_name: Callable[[str], str]
) -> None:
    topic, group = new_topic("commands", partitions=2), new_topic_name("commands")
    servers = broker.bootstrap_servers
    await_coordinator(servers, group)
    filling.fill(servers, topic, {part: [b"%d" % number for number in range(EACH)] for part in (0, 1)})
    member = CLIENTS["kafka-python"](servers, group, topic, client_id="the-client")
    await_assignment(member, {0, 1})
    member.commit({0: (10, "a note")})
    listed = {"group_id": group, "protocol_type": "consumer", "group_state": "Stable", "group_type": "classic"}
    assert listed in admin("groups", "list", "--state", "Stable", "--type", "classic")
    assert listed not in admin("groups", "list", "--state", "Empty")
    described = admin("groups", "describe", "-g", group)[group]
    assert (described["group_state"], described["protocol_data"]) == ("Stable", "range")
    reported = described["members"][0]
    assert (reported["client_id"], reported["client_host"]) == ("the-client", "/127.0.0.1")
    assert reported["member_assignment"]["assigned_partitions"] == [{"topic": topic, "partitions": [0, 1]}]
    offsets = admin("groups", "list-offsets", "-g", group)[topic]
    assert {key: offsets["0"][key] for key in ("offset", "metadata", "lag")} == {
        "offset": 10,
        "metadata": "a note",
        "lag": EACH - 10,
    }
    assert admin("groups", "delete", "-g", group) == {group: "NonEmptyGroupError"}
    removed = admin("groups", "remove-members", "-g", group, "-m", reported["member_id"], "-m", "nobody")
    assert removed == {reported["member_id"]: "NoError", "nobody": "UnknownMemberIdError"}
    member.close()

    def committed() -> dict[str, int]:
        found = admin("groups", "list-offsets", "-g", group)
        return {partition: each["offset"] for partition, each in found[topic].items()}

    assert admin("groups", "alter-offsets", "-g", group, "-o", f"{topic}:1:5") == {f"{topic}:1": "NoError"}
    assert committed() == {"0": 10, "1": 5}
    both = ("-p", f"{topic}:0", "-p", f"{topic}:1")
    # Its --shift-by and --to-current find no offsets, on Apache Kafka either.
    for way, expected in (
        (["--to-offset", "1000"], {"0": EACH, "1": EACH}),
        (["--spec", "earliest"], {"0": 0, "1": 0}),
        (["--to-datetime", "2030-01-01T00:00:00"], {"0": EACH, "1": EACH}),
        (["--by-duration", "PT1H"], {"0": 0, "1": 0}),
    ):
        admin("groups", "reset-offsets", "-g", group, *both, *way)
        assert (way, committed()) == (way, expected)
    assert admin("groups", "delete-offsets", "-g", group, "-p", f"{topic}:1") == {f"{topic}:1": "NoError"}
    assert committed() == {"0": 0}
    deleted = admin("groups", "delete", "-g", group, "-g", "never-seen")
    assert deleted == {group: "OK", "never-seen": "GroupIdNotFoundError"}
    assert admin("groups", "describe", "-g", group)[group]["group_state"] == "Dead"


def test_the_cluster(broker: Broker, admin: Admin, new_topic: NewTopic) -> None:
    topic = new_topic("commands")
    filling.fill(broker.bootstrap_servers, topic, {0: [b"x" * 1000]})
    described = admin("cluster", "describe")
    assert [f"{each['host']}:{each['port']}" for each in described["brokers"]] == [broker.bootstrap_servers]
    quorum = admin("cluster", "describe-quorum")["topics"][0]["partitions"][0]
    assert [voter["replica_id"] for voter in quorum["current_voters"]] == [quorum["leader_id"]]
    assert "metadata.version" in json.dumps(admin("cluster", "describe-features"))
    assert f'"{topic}"' in json.dumps(admin("cluster", "describe-log-dirs"))
    versions = admin("cluster", "api-versions")
    assert "JoinGroup" in json.dumps(versions)
    assert "SecurityDisabled" in admin("acls", "describe", status=1)
    found = admin("transactions", "describe-producers", "-t", topic, "-p", "0")
    assert topic in json.dumps(found)


def test_a_console_producer_and_a_console_consumer_in_a_group(broker: Broker, new_topic: NewTopic) -> None:
    topic, lines = new_topic("commands"), [f"line {number} \u00fc" for number in range(200)]
    at = ("-b", broker.bootstrap_servers, "-t", topic)
    done = subprocess.run(
        [sys.executable, "-m", "kafka.producer", *at],
        input="\n".join(lines) + "\n",
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    # A consumer that joins before it knows the topic may hang forever; the records it has read are then not committed.
    printed: list[str] = []
    for _ in range(3):
        if printed != lines:
            printed = read([*at, "-g", topic, "-C", "auto_offset_reset=earliest"], len(lines))
    assert printed == lines


def read(arguments: Sequence[str], count: int) -> list[str]:
    """This many lines of a console consumer, or fewer after a time-out."""
    command = [sys.executable, "-u", "-m", "kafka.consumer", *arguments]  # -u: it never flushes what it prints
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as consumer:
        assert consumer.stdout is not None
        timer = threading.Timer(LATEST_S, consumer.kill)
        timer.start()
        try:
            return [line.rstrip("\n") for line in itertools.islice(consumer.stdout, count)]
        finally:
            timer.cancel()
            consumer.kill()
