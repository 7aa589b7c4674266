"""`kbroker offset`: first and last offsets of partitions, and offsets of timestamps."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing

import pytest
from kafka import KafkaProducer

from kbroker.cli.offset import Rule, parse_partitions, parse_rules
from tests.cli.conftest import Done, Run

START_MS = 1_700_000_000_000

Offset = Callable[..., Done]


@pytest.fixture(scope="module")
def topic(broker: str) -> str:
    """Three partitions with 3, 1 and no records; the newest of 0 is its second."""
    from kafka.admin import KafkaAdminClient

    with closing(KafkaAdminClient(bootstrap_servers=broker)) as admin:
        configs = {"retention.ms": "-1"}
        admin.create_topics({"located": {"num_partitions": 3, "replication_factor": 1, "configs": configs}})
        admin.create_topics({"located-too": {"num_partitions": 1, "replication_factor": 1}})
    with closing(KafkaProducer(bootstrap_servers=broker)) as producer:
        for index, timestamp in ((0, 0), (0, 9_000), (0, 5_000), (1, 1_000)):
            producer.send("located", b"v", partition=index, timestamp_ms=START_MS + timestamp).get(20)
    return "located"


@pytest.fixture
def offset(run: Run, broker: str, topic: str) -> Offset:
    return lambda *words: run("offset", "-b", broker, *words)


@pytest.mark.parametrize(
    ("time", "found"),
    [
        (None, ["located:0:3", "located:1:1", "located:2:0"]),
        ("-1", ["located:0:3", "located:1:1", "located:2:0"]),
        ("earliest", ["located:0:0", "located:1:0", "located:2:0"]),
        ("-2", ["located:0:0", "located:1:0", "located:2:0"]),
        ("-3", ["located:0:1", "located:1:0"]),
        ("max-timestamp", ["located:0:1", "located:1:0"]),
        ("-4", ["located:0:0", "located:1:0", "located:2:0"]),
        (str(START_MS + 2_000), ["located:0:1"]),
        (str(START_MS), ["located:0:0", "located:1:0"]),
    ],
)
def test_offsets_are_printed_in_kafkas_lines(offset: Offset, time: str | None, found: list[str]) -> None:
    words = [] if time is None else ["--time", time]
    done = offset("--topic", "located", *words)
    assert (done.code, done.err) == (0, "")
    assert done.lines == found


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["--topic", "located,located-.*", "--partitions", "0"], ["located:0:3", "located-too:0:0"]),
        (["--topic-partitions", "located:0-2,located-too"], ["located:0:3", "located:1:1", "located-too:0:0"]),
        (["--topic-partitions", "located:1-"], ["located:1:1", "located:2:0"]),
        (["--topic-partitions", "located:-1"], ["located:0:3"]),
        (["--topic-partitions", "loc.*:2"], ["located:2:0"]),
    ],
)
def test_partitions_are_chosen_as_for_kafka(offset: Offset, words: list[str], found: list[str]) -> None:
    assert offset(*words).lines == found


def test_json_output_has_the_offsets(offset: Offset) -> None:
    printed = json.loads(offset("--topic", "located", "--partitions", "1", "--format", "json").out)
    assert printed == [{"topic": "located", "partition": 1, "offset": 1}]


def test_it_is_an_error_if_no_partition_matches(offset: Offset) -> None:
    said = "kbroker offset: Could not match any topic-partitions with the specified filters\n"
    assert offset("--topic", "nowhere") == (1, "", said)


def test_internal_topics_can_be_excluded(offset: Offset) -> None:
    assert not [line for line in offset("--exclude-internal-topics").lines if line.startswith("__")]


def test_rules_are_read_as_by_kafka() -> None:
    assert parse_rules("a:1,b:0-3,:-3,c,d:") == [
        Rule("a", 1, 2), Rule("b", 0, 3), Rule(".*", 0, 3), Rule("c"), Rule("d"),
    ]  # fmt: skip
    assert parse_partitions("0, 2,2") == {0, 2}


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--time", "now"], "'now' is not a timestamp in milliseconds or one of latest, earliest"),
        (["--time", "-6"], "-6 is not a timestamp"),
        (["--partitions", "a"], "'a' is not a partition"),
        (["--partitions", ""], "'' is not a partition"),
        (["--topic-partitions", "a:b"], "Invalid rule specification: a:b"),
        (["--topic-partitions", "a:1:2"], "Invalid rule specification: a:1:2"),
        (["--topic-partitions", "("], "( is an invalid regex"),
        (["--topic-partitions", "a:99999999999"], "is not a partition between"),
        (["--topic-partitions", "a", "--topic", "b"], "--topic-partitions cannot be used with --topic or --partitions"),
    ],
)
def test_wrong_usage_exits_with_2_and_a_reason(run: Run, words: list[str], reason: str) -> None:
    done = run("offset", *words)
    assert (done.code, done.out) == (2, "")
    assert reason in done.err
