"""`kbroker group` against a broker: lists, lag, members, and every way to reset offsets."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.structs import OffsetAndMetadata

from compat.clients.joining import join
from tests.cli.conftest import Done, Run, run_apart
from tests.client.peers import Peers
from wire.errors import ErrorCode
from wire.messages.delete_groups import DeletableGroupResult, DeleteGroupsResponse
from wire.messages.describe_groups import DescribedGroup, DescribeGroupsResponse
from wire.messages.find_coordinator import FindCoordinatorResponse
from wire.messages.list_groups import ListedGroup, ListGroupsResponse

START_MS = 1_700_000_000_000
HOUR_MS = 3_600_000
RECORDS = 10

Group = Callable[..., Done]


@pytest.fixture(scope="module")
def topic(broker: str) -> str:
    """Two partitions: 0 holds ten records, one an hour from START_MS on; 1 is empty."""
    with closing(KafkaAdminClient(bootstrap_servers=broker)) as admin:
        admin.create_topics(
            {"grouped": {"num_partitions": 2, "replication_factor": 1, "configs": {"retention.ms": "-1"}}}
        )
    with closing(KafkaProducer(bootstrap_servers=broker)) as producer:
        for number in range(RECORDS):
            producer.send("grouped", b"%d" % number, partition=0, timestamp_ms=START_MS + number * HOUR_MS).get(20)
    return "grouped"


@pytest.fixture
def group(run: Run, broker: str) -> Group:
    """`group("--list")`: the command against the broker."""
    return lambda *words: run("group", "-b", broker, *words)


def reset(group: Group, name: str, *words: object, scope: str = "grouped") -> dict[tuple[str, int], int]:
    """Reset with --execute; check that the printed offsets are committed, and return them."""
    where = ["--topic", scope] if scope else []
    done = group("--reset-offsets", "--group", name, *where, *words, "--execute", "--format", "json")
    assert done.code == 0, done.err
    printed = json.loads(done.out)
    assert printed["is_executed"] is True
    offsets = {(each["topic"], each["partition"]): each["new_offset"] for each in printed["offsets"]}
    assert offsets.items() <= committed(group, name).items()
    return offsets


def described(group: Group, name: str) -> dict[str, Any]:
    done = group("--describe", "--group", name, "--format", "json")
    assert done.code == 0, done.err
    (found,) = json.loads(done.out)
    assert isinstance(found, dict)
    return found


def committed(group: Group, name: str) -> dict[tuple[str, int], int]:
    return {(each["topic"], each["partition"]): each["current_offset"] for each in described(group, name)["offsets"]}


@contextmanager
def member(broker: str, topic: str, name: str, **settings: Any) -> Iterator[KafkaConsumer]:
    """A member to which all partitions of a topic are assigned."""
    consumer = KafkaConsumer(
        bootstrap_servers=broker, group_id=name, auto_offset_reset="earliest", client_id="reader", **settings
    )
    try:
        join(consumer, topic, 2)
        yield consumer
    finally:
        consumer.close(autocommit=False)


def test_offsets_are_described_with_lag(group: Group, topic: str) -> None:
    reset(group, "lagging", "--to-offset", 4, scope="grouped:0")
    done = group("--describe", "--group", "lagging")
    assert done.code == 0
    assert done.err == "kbroker group: group 'lagging' has no active members\n"
    assert [line.split() for line in done.lines] == [
        ["GROUP", "TOPIC", "PARTITION", "CURRENT-OFFSET", "LOG-END-OFFSET", "LAG", "CONSUMER-ID", "HOST", "CLIENT-ID"],
        ["lagging", "grouped", "0", "4", "10", "6", "-", "-", "-"],
    ]
    verbose = group("--describe", "--group", "lagging", "--offsets", "--verbose").lines
    assert verbose[0].split()[3] == "LEADER-EPOCH"
    (printed,) = described(group, "lagging")["offsets"]
    assert (printed["current_offset"], printed["log_end_offset"], printed["lag"], printed["member_id"]) == (
        4,
        10,
        6,
        None,
    )


def test_groups_are_listed_with_state_and_type(group: Group, broker: str, topic: str) -> None:
    reset(group, "listed-empty", "--to-earliest")
    with member(broker, topic, "listed-stable"):
        assert {"listed-empty", "listed-stable"} <= set(group("--list").lines)
        rows = [line.split() for line in group("--list", "--state", "--type").lines]
        assert rows[0] == ["GROUP", "TYPE", "STATE"]
        assert ["listed-empty", "Classic", "Empty"] in rows
        assert ["listed-stable", "Classic", "Stable"] in rows
        assert group("--list", "--state", "", "--type", "").lines == group("--list", "--state", "--type").lines
        stable = [line.split() for line in group("--list", "--state", "stable,preparingrebalance").lines]
        assert ["listed-stable", "Stable"] in stable
        assert "listed-empty" not in [row[0] for row in stable]
        printed = json.loads(group("--list", "--type", "classic", "--format", "json").out)
        assert {"group": "listed-empty", "type": "Classic", "state": "Empty"} in printed
        assert group("--list", "--type", "share").lines == ["GROUP TYPE"]


def test_members_are_described_with_their_partitions(group: Group, broker: str, topic: str) -> None:
    with member(broker, topic, "membered", group_instance_id="first") as consumer:
        for _ in range(100):
            if consumer.position(next(iter(consumer.assignment()))) is not None:
                break
        consumer.commit()
        done = group("--describe", "--group", "membered", "--members", "--verbose")
        assert (done.code, done.err) == (0, "")
        head, row = (line.split() for line in done.lines)
        assert head == [
            "GROUP", "CONSUMER-ID", "GROUP-INSTANCE-ID", "HOST", "CLIENT-ID", "#PARTITIONS",
            "CURRENT-EPOCH", "CURRENT-ASSIGNMENT", "TARGET-EPOCH", "TARGET-ASSIGNMENT",
        ]  # fmt: skip
        assert (row[0], row[2], row[4:]) == ("membered", "first", ["reader", "2", "-", "grouped:0,1", "-", "-"])
        head, row = (line.split() for line in group("--describe", "--group", "membered", "--state").lines)
        assert row[-3:] == ["range", "Stable", "1"]
        offsets = [line.split() for line in group("--describe", "--group", "membered").lines[1:]]
        assert [(each[1], each[2], each[8]) for each in offsets] == [
            ("grouped", "0", "reader"),
            ("grouped", "1", "reader"),
        ]
        printed = described(group, "membered")
        assert [each["assignment"] for each in printed["members"]] == [{"grouped": [0, 1]}]
        assert printed["coordinator"]["port"] == int(broker.rpartition(":")[2])


def test_waiting_ends_with_state_members_and_lag(run: Run, group: Group, broker: str, topic: str) -> None:
    reset(group, "awaited", "--to-offset", 4, scope="grouped:0")
    for words in (["--lag", 6], ["--members", 0], ["--state", "stable,empty"]):
        assert group("--wait", "--group", "awaited", *words).code == 0, words
    wanted = ["--state", "Stable", "--members", 1, "--lag", 5]
    done = run("group", "wait", "awaited", "-b", broker, *wanted, "--timeout", 300)
    said = "waited 300 ms for group 'awaited' to be Stable and to have 1 members and to have a lag of at most 5"
    assert (done.code, done.out) == (1, "")
    assert done.err == f"kbroker group: {said}; it is Empty with 0 members and a lag of 6\n"
    done = group("--wait", "--group", "no-such", "--lag", 5, "--timeout", 1)
    assert (done.code, "it is Dead with 0 members and a lag of unknown size" in done.err) == (1, True)
    assert group("--wait", "--group", "no-such", "--state", "Dead").code == 0
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(run_apart, "group", "wait", "awaited", "-b", broker, "--members", 1, "--format", "json")
        with member(broker, topic, "awaited"):
            done = waiting.result(60)
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert (found.pop("state") in {"PreparingRebalance", "CompletingRebalance", "Stable"}) is True
    assert found == {"group": "awaited", "members": 1}


def test_a_missing_group_is_an_error_and_others_are_described(group: Group, topic: str) -> None:
    reset(group, "existing", "--to-earliest")
    done = group("--describe", "--group", "existing", "--group", "nowhere")
    assert done.code == 1
    assert "group 'nowhere' does not exist" in done.err
    assert len(done.lines) == 3


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["--to-earliest"], {0: 0, 1: 0}),
        (["--to-latest"], {0: 10, 1: 0}),
        (["--to-current"], {0: 5, 1: 0}),
        (["--to-offset", 7], {0: 7, 1: 0}),
        (["--to-offset", -3], {0: 0, 1: 0}),
        (["--to-offset", 99], {0: 10, 1: 0}),
        (["--shift-by", 2], {0: 7, 1: 0}),
        (["--shift-by", -2], {0: 3, 1: 0}),
        (["--shift-by", -20], {0: 0, 1: 0}),
        (["--to-datetime", "2023-11-14T22:13:20.000"], {0: 0, 1: 0}),
        (["--to-datetime", "2023-11-15T01:13:20.001Z"], {0: 4, 1: 0}),
        (["--to-datetime", "2023-11-15T02:13:20.000+01:00"], {0: 3, 1: 0}),
        (["--to-datetime", "2099-01-01T00:00:00.000"], {0: 10, 1: 0}),
        (["--by-duration", "P20000D"], {0: 0, 1: 0}),
        (["--by-duration", "PT1S"], {0: 10, 1: 0}),
    ],
    ids=lambda value: " ".join(map(str, value)) if isinstance(value, list) else "",
)
def test_offsets_are_reset_in_every_way(group: Group, topic: str, words: list[object], found: dict[int, int]) -> None:
    reset(group, "moved", "--to-offset", 5)
    assert reset(group, "moved", *words) == {("grouped", index): offset for index, offset in found.items()}


def test_nothing_is_changed_without_execute(group: Group, topic: str) -> None:
    reset(group, "kept", "--to-offset", 5)
    words = ["--reset-offsets", "--group", "kept", "--all-topics", "--to-latest"]
    planned = group(*words)
    assert planned.code == 0
    assert [line.split() for line in planned.lines] == [
        ["GROUP", "TOPIC", "PARTITION", "NEW-OFFSET"],
        ["kept", "grouped", "0", "10"],
        ["kept", "grouped", "1", "0"],
    ]
    assert planned.err == "kbroker group: nothing was changed; use --execute to change the offsets\n"
    assert group(*words, "--dry-run").err == ""
    assert json.loads(group(*words, "--dry-run", "--format", "json").out)["is_executed"] is False
    assert committed(group, "kept")["grouped", 0] == 5


def test_a_group_may_be_made_by_setting_its_offsets(group: Group, topic: str) -> None:
    assert reset(group, "made", "--to-current", scope="grouped:1") == {("grouped", 1): 0}
    assert described(group, "made")["state"] == "Empty"


def test_an_exported_plan_can_be_executed(group: Group, topic: str, tmp_path: Path) -> None:
    reset(group, "planned", "--to-offset", 3)
    exported = group("--reset-offsets", "--group", "planned", "--all-topics", "--to-current", "--export", "--dry-run")
    assert exported == (0, "grouped,0,3\ngrouped,1,0\n", "")
    plan = tmp_path / "plan.csv"
    plan.write_text(exported.out.replace(",0,3", ",0,8"))
    assert reset(group, "planned", "--from-file", plan, scope="")["grouped", 0] == 8


def test_a_plan_of_several_groups_names_them(group: Group, topic: str, tmp_path: Path) -> None:
    for name in ("several-a", "several-b"):
        reset(group, name, "--to-offset", 3)
    both = ["--reset-offsets", "--group", "several-a", "--group", "several-b"]
    exported = group(*both, "--topic", "grouped:0", "--shift-by", 1, "--export", "--dry-run")
    assert exported.lines == ["several-a,grouped,0,4", "several-b,grouped,0,4"]
    plan = tmp_path / "plan.csv"
    plan.write_text(exported.out)
    assert group(*both, "--from-file", plan, "--execute").code == 0
    assert committed(group, "several-a")["grouped", 0] == committed(group, "several-b")["grouped", 0] == 4
    missing = group("--reset-offsets", "--group", "several-c", "--from-file", plan, "--execute")
    assert (missing.code, missing.out) == (1, "")
    assert "the file does not contain group 'several-c'" in missing.err


def test_offsets_of_a_group_with_members_are_not_reset(group: Group, broker: str, topic: str) -> None:
    with member(broker, topic, "active"):
        done = group("--reset-offsets", "--group", "active", "--topic", topic, "--to-latest", "--execute")
        assert done.code == 1
        assert "it is Stable, not empty" in done.err
        deleted = group("--delete", "--group", "active")
        assert deleted.code == 1
        assert "group 'active' was not deleted" in deleted.err


def test_shifting_requires_a_committed_offset(group: Group, topic: str) -> None:
    done = group("--reset-offsets", "--group", "unread", "--topic", "grouped:0", "--shift-by", 1, "--execute")
    assert (done.code, done.out) == (1, "")
    assert done.err == "kbroker group: grouped-0 cannot be shifted: group 'unread' has no offset there\n"


@pytest.mark.parametrize(
    ("scope", "reason"),
    [("nowhere", "topic 'nowhere' does not exist"), ("grouped:0,7,9", "topic 'grouped' has no partition 7, 9")],
)
def test_a_scope_that_does_not_exist_is_an_error(group: Group, topic: str, scope: str, reason: str) -> None:
    for words in (["--reset-offsets", "--to-latest", "--execute"], ["--delete-offsets"]):
        done = group(*words, "--group", "scoped", "--topic", scope)
        assert done == (1, "", f"kbroker group: {reason}\n")


def test_offsets_and_groups_are_deleted(group: Group, topic: str) -> None:
    reset(group, "doomed", "--to-offset", 5)
    done = group("--delete-offsets", "--group", "doomed", "--topic", "grouped:0")
    assert [line.split() for line in done.lines] == [["TOPIC", "PARTITION", "STATUS"], ["grouped", "0", "Successful"]]
    assert committed(group, "doomed") == {("grouped", 1): 0}
    refused = group("--delete", "--all-groups")
    assert (refused.code, refused.out) == (1, "")
    assert "  doomed\n" in refused.err
    assert "use --yes to agree" in refused.err
    assert group("--delete", "--group", "doomed") == (
        0,
        "Deletion of requested consumer groups ('doomed') was successful.\n",
        "",
    )
    assert "doomed" not in group("--list").lines
    again = group("--delete", "--group", "doomed", "--format", "json")
    assert (again.code, json.loads(again.out)) == (1, {"deleted": []})
    assert again.err == "kbroker group: group 'doomed' was not deleted: The group id does not exist.\n"
    offsets = group("--delete-offsets", "--group", "doomed", "--topic", topic)
    assert (offsets.code, offsets.out) == (1, "")
    assert "the offsets of group 'doomed' were not deleted" in offsets.err


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("grouped,0\n", "line 1: not of the form topic,partition,offset"),
        ("grouped,0,1\ngrouped,x,1\n", "line 2: not of the form"),
        ("grouped,0,-1\n", "line 1: not of the form"),
        ("grouped,0,99999999999999999999\n", "line 1: not of the form"),
        ('grouped,"0,1\n', "cannot be read as CSV"),
        (b"\xff\xfe", "cannot read"),
        (None, "No such file or directory"),
    ],
)
def test_an_unreadable_plan_is_an_error(group: Group, tmp_path: Path, text: str | bytes | None, reason: str) -> None:
    plan = tmp_path / "plan.csv"
    if text is not None:
        plan.write_bytes(text if isinstance(text, bytes) else text.encode())
    done = group("--reset-offsets", "--group", "g", "--from-file", plan)
    assert (done.code, done.out) == (1, "")
    assert reason in done.err
    assert len(done.err.splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ([], "one of the arguments --list --describe --delete --reset-offsets --delete-offsets --wait is required"),
        (["--list", "--describe"], "not allowed with argument --list"),
        (["--describe"], "--describe requires --group or --all-groups"),
        (["--describe", "--group", "g", "--all-groups"], "--group cannot be used with --all-groups"),
        (["--describe", "--group", ""], "the name of a group is empty"),
        (["--describe", "--group", "g", "--members", "--offsets"], "takes one of --offsets, --members and --state"),
        (["--describe", "--group", "g", "--state", "stable"], "--state and --members take no value with --describe"),
        (["--describe", "--group", "g", "--members", "1"], "--state and --members take no value with --describe"),
        (["wait", "g", "--members"], "--state and --members require a value with --wait"),
        (["wait", "g", "--state", "--lag", "1"], "--state and --members require a value with --wait"),
        (["wait", "g"], "--wait requires --state, --members or --lag"),
        (["wait", "--lag", "1"], "--wait requires --group"),
        (["wait", "g", "--lag", "-1"], "-1 is not a whole number between 0 and"),
        (["--list", "--lag", "1"], "--lag cannot be used with --list"),
        (["--describe", "--group", "g", "--type"], "--type cannot be used with --describe"),
        (["--describe", "--group", "g", "--topic", "t"], "--topic cannot be used with --describe"),
        (["--list", "--group", "g"], "--group cannot be used with --list"),
        (["--list", "--state", "asleep"], "'asleep' is not a state of a group; use one of PreparingRebalance, "),
        (["--list", "--type", "classic,"], "'' is not a type of a group"),
        (["--delete", "--group", "g", "--topic", "t"], "--topic cannot be used with --delete"),
        (["--delete", "--group", "g", "--execute"], "--execute cannot be used with --delete"),
        (["--delete-offsets", "--group", "g"], "--delete-offsets requires one --group and --topic"),
        (["--delete-offsets", "--all-groups", "--topic", "t"], "--all-groups cannot be used with --delete-offsets"),
        (["--reset-offsets", "--group", "g", "--topic", "t"], "--reset-offsets requires one of --to-earliest, "),
        (["--reset-offsets", "--group", "g", "--topic", "t", "--to-latest", "--to-earliest"], "requires one of"),
        (["--reset-offsets", "--group", "g", "--to-latest"], "--reset-offsets requires --all-topics or --topic"),
        (["--reset-offsets", "--group", "g", "--topic", "t:x", "--to-latest"], "'x' is not a partition"),
        (["--reset-offsets", "--group", "g", "--topic", "t", "--to-offset", "x"], "'x' is not a whole number"),
        (["--reset-offsets", "--group", "g", "--topic", "t", "--to-datetime", "now"], "not of the form YYYY-MM-DD"),
        (["--reset-offsets", "--group", "g", "--topic", "t", "--by-duration", "1h"], "not of the form PnDTnHnMnS"),
        (
            ["--reset-offsets", "--group", "g", "--all-topics", "--to-latest", "--dry-run", "--execute"],
            "--dry-run cannot be used with --execute",
        ),
        (
            ["--reset-offsets", "--group", "g", "--all-topics", "--topic", "t", "--to-latest"],
            "--topic cannot be used with --all-topics",
        ),
        (
            ["--reset-offsets", "--group", "g", "--all-topics", "--to-latest", "--export", "--format", "json"],
            "--export prints CSV",
        ),
        (["--list", "--timeout", "0"], "is not a number of milliseconds between 1 and"),
    ],
)
def test_wrong_usage_exits_with_2_and_a_reason(run: Run, words: list[str], reason: str) -> None:
    done = run("group", *words)
    assert (done.code, done.out) == (2, "")
    assert reason in done.err


HOSTILE = "evil\x1b[2J\x9b\u202e\nfake"
ESCAPED = r"evil\x1b[2J\x9b\u202e\nfake"


@pytest.mark.parametrize("words", [("--list",), ("--list", "--state"), ("--describe",), ("--describe", "--state")])
def test_names_from_clients_are_escaped(group: Group, broker: str, topic: str, words: tuple[str, ...]) -> None:
    with closing(KafkaConsumer(bootstrap_servers=broker, group_id=HOSTILE)) as consumer:
        consumer.commit({TopicPartition(topic, 0): OffsetAndMetadata(1, "", -1)})
    scope = () if words[0] == "--list" else ("--group", HOSTILE)
    done = group(*words, *scope)
    assert done.code == 0, done.err
    assert ESCAPED in done.out + done.err
    assert not any(character in done.out + done.err for character in "\x1b\x9b\u202e")
    assert "fake" not in done.lines


def test_a_coordinator_that_loads_its_groups_is_waited_for(run: Run) -> None:
    peers = Peers({10: 2, 15: 5, 16: 4, 42: 1})
    codes = [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NONE] * 3

    def find(_request: object) -> FindCoordinatorResponse:
        ((node_id, host, port),) = peers.places()
        return FindCoordinatorResponse(error_code=0, node_id=node_id, host=host, port=port)

    def describe(_request: object) -> DescribeGroupsResponse:
        found = DescribedGroup(
            error_code=codes.pop(0), group_id="g", group_state="Empty", protocol_type="consumer", protocol_data="",
            members=[],
        )  # fmt: skip
        return DescribeGroupsResponse(groups=[found])

    def listed(_request: object) -> ListGroupsResponse:
        return ListGroupsResponse(
            error_code=codes.pop(0), groups=[ListedGroup(group_id="g", protocol_type="consumer", group_state="Empty")]
        )

    def delete(_request: object) -> DeleteGroupsResponse:
        return DeleteGroupsResponse(results=[DeletableGroupResult(group_id="g", error_code=codes.pop(0))])

    with peers.serve({10: find, 15: describe, 16: listed, 42: delete}) as addresses:
        done = run("group", "--list", "--state", "-b", addresses[0])
        assert (done.code, done.lines[1:]) == (0, ["g     Empty"])
        done = run("group", "--describe", "--group", "g", "--state", "-b", addresses[0])
        assert (done.code, "Empty" in done.out) == (0, True)
        assert run("group", "--delete", "--group", "g", "-b", addresses[0]).code == 0
    assert not codes
