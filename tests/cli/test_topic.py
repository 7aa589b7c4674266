"""`kbroker topic` against a broker: its actions, output and errors."""

from __future__ import annotations

import json
import os
import pty
import select
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.broker_process import BrokerProcess
from tests.cli.conftest import Run, run_apart


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[str]:
    """The address of a broker that no other test uses."""
    with BrokerProcess(tmp_path) as broker:
        yield f"{broker.host}:{broker.port}"


def described(run: Run, broker: str, name: str, *flags: str) -> list[dict[str, Any]]:
    done = run("topic", "-b", broker, "--describe", "--topic", name, "--format", "json", *flags)
    assert (done.code, done.err) == (0, "")
    topics: list[dict[str, Any]] = json.loads(done.out)
    return topics


def test_a_topic_is_created_listed_described_and_deleted(run: Run, broker: str) -> None:
    made = run(
        "topic", "--bootstrap-server", broker, "--create", "--topic", "orders", "--partitions", 3,
        "--replication-factor", 1, "--config", "retention.ms=5000", "--config", "segment.bytes=1048576",
    )  # fmt: skip
    assert made == (0, "Created topic orders.\n", "")
    assert "orders" in run("topic", "--bootstrap-servers", broker, "--list").lines
    (topic,) = described(run, broker, "orders")
    assert (topic["topic"], topic["partition_count"], topic["replication_factor"]) == ("orders", 3, 1)
    assert topic["configs"] == {"retention.ms": "5000", "segment.bytes": "1048576"}
    assert run("topic", "-b", broker, "--delete", "--topic", "orders") == (0, "", "")
    assert "orders" not in run("topic", "-b", broker, "--list").lines


def test_json_shows_partition_states_in_zookeepers_format(run: Run, broker: str) -> None:
    run("topic", "-b", broker, "--create", "--topic", "stateful", "--partitions", 2)
    (topic,) = described(run, broker, "stateful")
    assert [each["partition"] for each in topic["partitions"]] == [0, 1]
    for state in topic["partitions"]:
        assert list(state)[:6] == ["partition", "controller_epoch", "leader", "version", "leader_epoch", "isr"]
        assert state["version"] == 1
        assert state["isr"] == state["replicas"] == [state["leader"]]
        assert state["leader_epoch"] == 0
        assert state["controller_epoch"] is None or state["controller_epoch"] >= 1
        assert state["offline_replicas"] == []
    assert len(topic["topic_id"]) == 22


def test_described_topics_are_kafkas_lines_without_a_terminal(run: Run, broker: str) -> None:
    run("topic", "-b", broker, "--create", "--topic", "plain", "--partitions", 2, "--config", "retention.ms=7")
    (topic,) = described(run, broker, "plain")
    node = topic["partitions"][0]["leader"]
    assert run("topic", "-b", broker, "--describe", "--topic", "plain").lines == [
        f"Topic: plain\tTopicId: {topic['topic_id']}\tPartitionCount: 2\tReplicationFactor: 1\tConfigs: retention.ms=7",
        f"\tTopic: plain\tPartition: 0\tLeader: {node}\tReplicas: {node}\tIsr: {node}\tElr: \tLastKnownElr: ",
        f"\tTopic: plain\tPartition: 1\tLeader: {node}\tReplicas: {node}\tIsr: {node}\tElr: \tLastKnownElr: ",
    ]
    by_id = run("topic", "-b", broker, "--describe", "--topic-id", topic["topic_id"])
    assert by_id == run("topic", "-b", broker, "--describe", "--topic", "plain")


def test_filters_choose_topics_and_partitions(run: Run, broker: str) -> None:
    run("topic", "-b", broker, "--create", "--topic", "filtered", "--config", "retention.ms=9")
    run("topic", "-b", broker, "--create", "--topic", "filtered-not")
    both = ["topic", "-b", broker, "--describe", "--topic", "filtered,filtered-not"]
    for flag in ("--under-replicated-partitions", "--unavailable-partitions", "--under-min-isr-partitions"):
        assert run(*both, flag) == (0, "", "")
    assert len(run(*both, "--at-min-isr-partitions").lines) == 2
    assert [line.split("\t")[0] for line in run(*both, "--topics-with-overrides").lines] == ["Topic: filtered"]


def test_creating_an_existing_topic_fails_without_if_not_exists(run: Run, broker: str) -> None:
    words = ["topic", "-b", broker, "--create", "--topic", "twice"]
    assert run(*words).code == 0
    assert run(*words) == (1, "", "Error while executing topic command : Topic 'twice' already exists.\n")
    assert run(*words, "--if-not-exists") == (0, "", "")


@pytest.mark.parametrize("action", [["--delete"], ["--describe"], ["--alter", "--partitions", "2"]])
def test_a_missing_topic_is_an_error_without_if_exists(run: Run, broker: str, action: list[str]) -> None:
    words = ["topic", "-b", broker, *action, "--topic", "nowhere"]
    said = "Error while executing topic command : Topic 'nowhere' does not exist as expected\n"
    assert run(*words) == (1, "", said)
    assert run(*words, "--if-exists") == (0, "", "")


def test_a_refusal_is_printed_in_the_brokers_words(run: Run, broker: str) -> None:
    create = ["topic", "-b", broker, "--create", "--topic"]
    assert "Unknown topic config name: nonsense" in run(*create, "refused", "--config", "nonsense=1").err
    assert "Topic name is invalid: 'a/b'" in run(*create, "a/b").err
    replicated = run(*create, "refused", "--replication-factor", 3)
    assert (replicated.code, replicated.out) == (1, "")
    assert "replication factor" in replicated.err
    assert "refused" not in run("topic", "-b", broker, "--list").lines


def test_partitions_are_added_and_never_removed(run: Run, broker: str) -> None:
    run("topic", "-b", broker, "--create", "--topic", "growing", "--partitions", 2)
    alter = ["topic", "-b", broker, "--alter", "--topic", "growing", "--partitions"]
    assert run(*alter, 4) == (0, "", "")
    assert described(run, broker, "growing")[0]["partition_count"] == 4
    fewer = run(*alter, 3)
    assert fewer.code == 1
    assert "currently has 4 partition(s); 3 would not be an increase" in fewer.err


def test_replicas_are_placed_by_hand(run: Run, broker: str) -> None:
    run("topic", "-b", broker, "--create", "--topic", "scout")
    node = described(run, broker, "scout")[0]["partitions"][0]["leader"]
    words = ["topic", "-b", broker, "--topic", "placed", "--replica-assignment"]
    assert run(*words, f"{node},{node}", "--create").code == 0
    assert described(run, broker, "placed")[0]["partition_count"] == 2
    assert run(*words, f"{node},{node},{node}", "--alter", "--partitions", 3) == (0, "", "")
    assert described(run, broker, "placed")[0]["partition_count"] == 3


def test_topics_are_chosen_by_lists_and_expressions(run: Run, broker: str) -> None:
    for name in ("choose-a", "choose-b", "chosen-not"):
        run("topic", "-b", broker, "--create", "--topic", name)
    chosen = run("topics", "-b", broker, "--list", "--topic", "choose-.*, chosen")
    assert chosen.lines == ["choose-a", "choose-b"]
    assert json.loads(run("topic", "-b", broker, "--list", "--topic", "choose-a", "--format", "json").out) == [
        "choose-a"
    ]
    wrong = run("topic", "-b", broker, "--list", "--topic", "(")
    assert (wrong.code, wrong.out) == (1, "")
    assert "( is an invalid regex" in wrong.err


def test_names_that_collide_in_metrics_cause_a_warning(run: Run, broker: str) -> None:
    done = run("topic", "-b", broker, "--create", "--topic", "dotted.name")
    assert (done.code, done.out) == (0, "Created topic dotted.name.\n")
    assert done.err.startswith("WARNING: Due to limitations in metric names")


def test_json_output_says_what_was_done(run: Run, broker: str) -> None:
    words = ["topic", "-b", broker, "--format", "json", "--topic", "machine"]
    assert json.loads(run(*words, "--create").out) == {"topic": "machine", "is_created": True}
    assert json.loads(run(*words, "--create", "--if-not-exists").out) == {"topic": "machine", "is_created": False}
    assert json.loads(run(*words, "--alter", "--partitions", 2).out) == {"altered": ["machine"], "partition_count": 2}
    assert json.loads(run(*words, "--delete").out) == {"deleted": ["machine"]}


def test_the_first_broker_of_a_list_may_be_down(broker: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        down = f"127.0.0.1:{taken.getsockname()[1]}"
        assert run_apart("topic", "-b", f"{down},{broker}", "--list").code == 0


def test_no_broker_at_all_is_an_error_in_one_line(tmp_path: Path) -> None:
    config = tmp_path / "client.properties"
    config.write_text("default.api.timeout.ms=300\n")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        down = f"127.0.0.1:{taken.getsockname()[1]}"
        done = run_apart("topic", "-b", down, "--list", "--command-config", config)
    said = f"no broker answers at {down}: Connection refused; `kbroker serve` starts a broker"
    assert done == (1, "", f"Error while executing topic command : {said}\n")


def on_a_terminal(*words: str, answer: str | None = None) -> str:
    """The output of a command on a terminal; with an answer, the terminal is also its input."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "dumb", "COLUMNS": "100"}
    both = {} if answer is None else {"stdin": theirs, "stderr": theirs}
    process = subprocess.Popen([sys.executable, "-m", "kbroker", *words], stdout=theirs, env=environment, **both)
    os.close(theirs)
    os.write(ours, (answer or "").encode())
    shown = b""
    while select.select([ours], [], [], 20)[0]:
        try:
            piece = os.read(ours, 4096)
        except OSError:  # the other end is closed
            break
        if not piece:
            break
        shown += piece
    os.close(ours)
    assert process.wait(timeout=20) == ("nothing was deleted" in shown.decode())
    return shown.decode()


def test_a_table_is_drawn_on_a_terminal(run: Run, broker: str) -> None:
    run("topic", "-b", broker, "--create", "--topic", "drawn", "--partitions", 2, "--config", "retention.ms=11")
    text = on_a_terminal("topic", "-b", broker, "--describe", "--topic", "drawn")
    assert "replication factor 1" in text
    assert "retention.ms=11" in text
    assert [line.split()[0] for line in text.splitlines() if line.strip()[:1].isdigit()] == ["0", "1"]


def test_json_is_the_same_on_a_terminal(run: Run, broker: str) -> None:
    run("topic", "-b", broker, "--create", "--topic", "shown")
    words = ["topic", "-b", broker, "--describe", "--topic", "shown", "--format", "json"]
    assert on_a_terminal(*words).splitlines() == run(*words).lines


def test_a_pattern_never_matches_internal_topics(run: Run, own_broker: str) -> None:
    run("topic", "-b", own_broker, "--create", "--topic", "__consumer_offsets", "--partitions", 1)
    for action in (["--delete"], ["--alter", "--partitions", 2]):
        for pattern in (".*", "__consumer_.*", ".*offsets"):
            done = run("topic", "-b", own_broker, *action, "--topic", pattern)
            assert done.code == 1
            assert "skipping internal topics that are not named exactly: __consumer_offsets" in done.err
    run("topic", "-b", own_broker, "--create", "--topic", "orders")
    done = run("topic", "-b", own_broker, "--delete", "--topic", ".*", "--yes")
    assert done.code == 0
    assert "WARNING: skipping internal topics" in done.err
    assert run("topic", "-b", own_broker, "--list").lines == ["__consumer_offsets"]
    run("topic", "-b", own_broker, "--create", "--topic", "orders")
    assert run("topic", "-b", own_broker, "--delete", "--topic", "orders,__consumer_offsets") == (0, "", "")
    assert run("topic", "-b", own_broker, "--list").lines == []


def test_a_pattern_deletes_only_after_agreement(run: Run, broker: str) -> None:
    for name in ("sure-1", "sure-2"):
        run("topic", "-b", broker, "--create", "--topic", name)
    words = ["topic", "-b", broker, "--delete", "--topic", "sure-.*"]
    done = run(*words)
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith("  sure-1\n  sure-2\n")
    assert "there is no terminal to ask; use --yes to agree" in done.err
    for answer, said, left in (("n", "nothing was deleted", 2), ("", "nothing was deleted", 2), ("y", "", 0)):
        shown = on_a_terminal(*words, answer=f"{answer}\n")
        assert "Delete these 2 topics with their records? [y/N] " in shown
        assert said in shown
        assert len([name for name in run("topic", "-b", broker, "--list").lines if name.startswith("sure")]) == left


def test_a_name_that_is_also_a_pattern_asks_for_others_only(run: Run, broker: str) -> None:
    for name in ("odd.1", "odd-1"):
        run("topic", "-b", broker, "--create", "--topic", name)
    assert run("topic", "-b", broker, "--delete", "--topic", "odd.1").code == 1
    assert run("topic", "-b", broker, "--delete", "--topic", "odd-1") == (0, "", "")
    assert run("topic", "-b", broker, "--delete", "--topic", "odd.1") == (0, "", "")
