"""kafka-reassign-partitions of the image: what its plans may contain, and which replicas it throttles."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kbroker.cli import CommandFailed
from tests.image.tool_modules import tool_module
from wire.messages.list_partition_reassignments import OngoingPartitionReassignment


@pytest.fixture(scope="module")
def plans() -> Iterator[Any]:
    with tool_module("plans") as module:
        yield module


def planned(path: Path, *partitions: dict[str, Any], **more: Any) -> Path:
    file = path / "plan.json"
    file.write_text(json.dumps({"partitions": partitions, **more}))
    return file


def test_a_plan_is_written_as_it_is_read(plans: Any, tmp_path: Path) -> None:
    some = {"topic": "b", "partition": 1, "replicas": [2, 1], "log_dirs": ["any", "/d"]}
    plan = plans.read_plan(planned(tmp_path, some, {"topic": "a", "partition": 0, "replicas": [3]}))
    assert plan.directories == {plans.Replica(1, "b", 1): "/d"}
    assert str(plans.Replica(1, "b", 1)) == "b-1-1"
    assert plans.as_json(plans.to_start(plan), plan.directories) == (
        '{"version":1,"partitions":[{"topic":"a","partition":0,"replicas":[3],"log_dirs":["any"]},'
        '{"topic":"b","partition":1,"replicas":[2,1],"log_dirs":["any","/d"]}]}'
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "null",
        '{"partitions": 7}',
        '{"partitions": [7]}',
        '{"partitions": [{"topic": "t"}]}',
        '{"partitions": [{"topic": "t", "partition": "0", "replicas": [1]}]}',
        '{"partitions": [{"topic": "t", "partition": true, "replicas": [1]}]}',
        '{"partitions": [{"topic": "t", "partition": 0, "replicas": [1], "log_dirs": ["a", "b"]}]}',
        '{"partitions": [{"topic": "t", "partition": 0, "replicas": [1], "log_dirs": 5}]}',
        '{"version": 2, "partitions": []}',
        "[" * 100_000,
    ],
    ids=lambda text: text[:60],
)
def test_a_file_that_is_no_plan_fails(plans: Any, tmp_path: Path, text: str) -> None:
    file = tmp_path / "plan.json"
    file.write_text(text)
    with pytest.raises(CommandFailed):
        plans.read_plan(file)


@pytest.mark.parametrize(
    ("partitions", "reason"),
    [
        ([], "list cannot be empty"),
        ([{"topic": "t", "partition": 0, "replicas": []}], "replica list cannot be empty"),
        ([{"topic": "t", "partition": 0, "replicas": [1]}] * 2, "duplicate topic partitions: t-0"),
        ([{"topic": "t", "partition": 0, "replicas": [1, 1]}], "t-0 contains multiple entries for 1"),
    ],
)
def test_a_plan_that_cannot_be_started_fails(
    plans: Any, tmp_path: Path, partitions: list[dict[str, Any]], reason: str
) -> None:
    with pytest.raises(CommandFailed, match=reason):
        plans.to_start(plans.read_plan(planned(tmp_path, *partitions)))


def test_a_partition_that_moves_already_still_comes_from_its_first_brokers(plans: Any) -> None:
    ongoing = {
        ("t", 0): OngoingPartitionReassignment(
            partition_index=0, replicas=[3, 1, 2], adding_replicas=[3], removing_replicas=[2]
        )
    }
    moving = plans.moves(ongoing, {("t", 0): [4, 1], ("u", 10): [2, 3]}, {("t", 0): [3, 1, 2], ("u", 10): [1, 2]})
    assert moving == {("t", 0): ({1, 2}, {4}), ("u", 10): ({1, 2}, {3})}
    assert plans.throttled_replicas(moving) == {"t": ("0:1,0:2", "0:4"), "u": ("10:1,10:2", "10:3")}
