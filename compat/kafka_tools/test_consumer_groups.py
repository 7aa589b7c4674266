"""kafka-consumer-groups: list, describe in all views, reset offsets in all its ways, delete groups and offsets.

A JVM takes more than a second to start, so the effects of a run are checked without one.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest

from compat.brokers import Broker
from compat.clients import filling
from compat.clients.conftest import NewTopic
from compat.clients.members import CLIENTS, Member, await_assignment
from compat.conftest import KafkaTool
from compat.oracle.groups import await_coordinator, committing, fetching, offsets_of
from compat.oracle.raw import connected

TOOL = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
EACH = 40
HOUR_MS = 3_600_000
Command = Callable[..., str]


@pytest.fixture(scope="module")
def command(broker: Broker, kafka_tool: KafkaTool) -> Command:
    """Run the tool on the broker; returns its standard output. Its status is always 0; only the text reports errors."""

    def run(*arguments: str) -> str:
        return kafka_tool(TOOL, "--bootstrap-server", broker.bootstrap_servers, *arguments).stdout

    return run


@pytest.fixture(scope="module")
def filled(broker: Broker, new_topic: NewTopic) -> tuple[str, int]:
    """Two partitions of forty records, a millisecond apart: twenty are two hours old, twenty half an hour; returns the
    time.
    """
    topic, now = new_topic("reset", partitions=2), int(time.time() * 1000)
    for start in (now - 2 * HOUR_MS, now - HOUR_MS // 2):
        values = {partition: [b"%d" % number for number in range(EACH // 2)] for partition in (0, 1)}
        filling.fill(broker.bootstrap_servers, topic, values, start_ms=start)
    return topic, now


def new_group(broker: Broker, name: Callable[[str], str]) -> str:
    group = name("group")
    await_coordinator(broker.bootstrap_servers, group)
    return group


def commit(broker: Broker, group: str, topic: str, offsets: Mapping[int, int]) -> None:
    """Commit as a simple consumer."""
    reported = {topic: [(partition, offset, "") for partition, offset in offsets.items()]}
    with connected(broker.bootstrap_servers) as connection:
        answer = connection.call("OffsetCommit", 8, committing(group, reported))
    codes = {part["ErrorCode"] for each in answer["Topics"] for part in each["Partitions"]}
    assert codes == {0}, answer


def committed(broker: Broker, group: str) -> dict[int, int]:
    """The committed offsets of a group's only topic."""
    with connected(broker.bootstrap_servers) as connection:
        answer = connection.call("OffsetFetch", 7, fetching(group, None))
    assert answer["ErrorCode"] == 0
    return {partition: offset for partition, (offset, _) in offsets_of(answer).items()}


def rows(printed: str) -> list[dict[str, str]]:
    """The rows of a printed table by column. Only the coordinator column has a blank in its cells, before the id."""
    lines = [re.sub(r"\s+(?=\()", "", line).split() for line in printed.splitlines()]
    start = next(number for number, line in enumerate(lines) if line and line[0] in {"GROUP", "TOPIC"})
    return [dict(zip(lines[start], line, strict=True)) for line in lines[start + 1 :] if line]


@pytest.fixture
def member(
    broker: Broker, filled: tuple[str, int], new_topic_name: Callable[[str], str]
) -> Iterator[tuple[str, Member]]:
    """A stable group with one member that owns both partitions and has committed 10 of the first."""
    group = new_group(broker, new_topic_name)
    found = CLIENTS["confluent-kafka"](broker.bootstrap_servers, group, filled[0], client_id="the-client")
    await_assignment(found, {0, 1})
    found.commit({0: (10, "note")})
    yield group, found
    found.close()


def test_a_group_with_a_member_is_described_in_all_views(
    broker: Broker, command: Command, filled: tuple[str, int], member: tuple[str, Member]
) -> None:
    group, topic = member[0], filled[0]
    for view, reported in (("--state", "Stable"), ("--type", "Classic")):
        listed = [line.split() for line in command("--list", view).splitlines() if line.strip()]
        assert [group, reported] in listed[1:]
    at = ("--describe", "--group", group)
    offsets = rows(command(*at, "--offsets"))
    assert [{key: row[key] for key in row if key != "CONSUMER-ID"} for row in offsets] == [
        {
            "GROUP": group,
            "TOPIC": topic,
            "PARTITION": partition,
            "CURRENT-OFFSET": current,
            "LOG-END-OFFSET": "40",
            "LAG": lag,
            "HOST": "/127.0.0.1",
            "CLIENT-ID": "the-client",
        }
        for partition, current, lag in (("0", "10", "30"), ("1", "-", "-"))
    ]
    consumer = offsets[0]["CONSUMER-ID"]
    assert consumer.startswith("the-client-")
    members = rows(command(*at, "--members", "--verbose"))
    assert len(members) == 1
    reported = {key: members[0][key] for key in ("GROUP", "CONSUMER-ID", "HOST", "CLIENT-ID", "#PARTITIONS")}
    assert reported == {
        "GROUP": group,
        "CONSUMER-ID": consumer,
        "HOST": "/127.0.0.1",
        "CLIENT-ID": "the-client",
        "#PARTITIONS": "2",
    }
    assert members[0]["CURRENT-ASSIGNMENT"] == f"{topic}:0,1"
    state = rows(command(*at, "--state", "--verbose"))[0]
    assert state["COORDINATOR(ID)"].startswith(broker.bootstrap_servers)
    assert (state["ASSIGNMENT-STRATEGY"], state["STATE"], state["#MEMBERS"]) == ("range", "Stable", "1")


def test_a_group_with_a_member_is_neither_reset_nor_deleted(
    broker: Broker, command: Command, filled: tuple[str, int], member: tuple[str, Member]
) -> None:
    group = member[0]
    refused = command("--reset-offsets", "--group", group, "--topic", filled[0], "--to-earliest", "--execute")
    assert f"can only be reset if the group '{group}' is inactive, but the current state is Stable" in refused
    refused = command("--delete", "--group", group)
    assert f"Group '{group}' could not be deleted due to: " in refused
    assert "GroupNotEmptyException" in refused
    refused = command("--delete-offsets", "--group", group, "--topic", filled[0])
    assert "is actively subscribed" in refused or "GroupSubscribedToTopic" in refused
    assert committed(broker, group) == {0: 10}


def test_empty_groups_can_be_deleted_and_unknown_ones_cannot(
    broker: Broker, command: Command, filled: tuple[str, int], new_topic_name: Callable[[str], str]
) -> None:
    group, topic = new_group(broker, new_topic_name), filled[0]
    commit(broker, group, topic, {0: 7, 1: 40})
    found = {
        row["PARTITION"]: (row["CURRENT-OFFSET"], row["LAG"]) for row in rows(command("--describe", "--group", group))
    }
    assert found == {"0": ("7", "33"), "1": ("40", "0")}
    deleted = rows(command("--delete-offsets", "--group", group, "--topic", f"{topic}:1"))
    assert deleted == [{"TOPIC": topic, "PARTITION": "1", "STATUS": "Successful"}]
    assert committed(broker, group) == {0: 7}
    reported = command("--delete", "--group", group, "--group", "never-seen")
    assert "* Group 'never-seen' could not be deleted due to: " in reported
    assert "GroupIdNotFoundException" in reported
    assert f"These consumer groups were deleted successfully: '{group}'" in reported
    assert committed(broker, group) == {}
    assert "Group never-seen not found" in command("--describe", "--group", "never-seen")


def moment(timestamp_ms: int) -> str:
    """A time in the tool's format, in UTC."""
    return datetime.fromtimestamp(timestamp_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S.") + f"{timestamp_ms % 1000:03}"


def ways(now: int, file: Path) -> list[tuple[Sequence[str], dict[int, int]]]:
    """Each way of resetting, and the result for a group that has committed 10 and 30."""
    return [
        (["--to-earliest"], {0: 0, 1: 0}),
        (["--to-latest"], {0: EACH, 1: EACH}),
        (["--to-offset", "13"], {0: 13, 1: 13}),
        (["--to-offset", "1000"], {0: EACH, 1: EACH}),
        (["--shift-by", "5"], {0: 15, 1: 35}),
        (["--shift-by", "-20"], {0: 0, 1: 10}),
        (["--to-current"], {0: 10, 1: 30}),
        (["--to-datetime", moment(now - 2 * HOUR_MS + 7)], {0: 7, 1: 7}),
        (["--to-datetime", moment(now - HOUR_MS)], {0: 20, 1: 20}),
        (["--by-duration", "PT1H"], {0: 20, 1: 20}),
        (["--by-duration", "PT0S"], {0: EACH, 1: EACH}),
        (["--from-file", str(file)], {0: 3, 1: 33}),
    ]


def test_offsets_are_reset_in_all_ways(
    broker: Broker,
    command: Command,
    filled: tuple[str, int],
    new_topic_name: Callable[[str], str],
    tmp_path: Path,
) -> None:
    group, (topic, now) = new_group(broker, new_topic_name), filled
    file = tmp_path / "offsets.csv"
    file.write_text(f"{topic},0,3\n{topic},1,33\n")
    for way, expected in ways(now, file):
        commit(broker, group, topic, {0: 10, 1: 30})
        printed = command("--reset-offsets", "--group", group, "--topic", topic, *way, "--execute")
        reported = {int(row["PARTITION"]): int(row["NEW-OFFSET"]) for row in rows(printed)}
        assert (way, reported) == (way, expected)
        assert (way, committed(broker, group)) == (way, expected)


def test_a_reset_supports_dry_run_export_and_partitions(
    broker: Broker, command: Command, filled: tuple[str, int], new_topic_name: Callable[[str], str]
) -> None:
    group, topic = new_group(broker, new_topic_name), filled[0]
    commit(broker, group, topic, {0: 10, 1: 30})
    printed = command("--reset-offsets", "--group", group, "--topic", topic, "--to-latest", "--dry-run")
    assert {row["PARTITION"]: row["NEW-OFFSET"] for row in rows(printed)} == {"0": "40", "1": "40"}
    printed = command("--reset-offsets", "--group", group, "--all-topics", "--to-earliest", "--export", "--dry-run")
    assert sorted(printed.split()) == [f"{topic},0,0", f"{topic},1,0"]
    assert committed(broker, group) == {0: 10, 1: 30}
    command("--reset-offsets", "--group", group, "--topic", f"{topic}:1", "--to-earliest", "--execute")
    assert committed(broker, group) == {0: 10, 1: 0}
    # The first reset of an unknown group creates it.
    fresh = new_group(broker, new_topic_name)
    command("--reset-offsets", "--group", fresh, "--topic", topic, "--to-latest", "--execute")
    assert committed(broker, fresh) == {0: EACH, 1: EACH}
