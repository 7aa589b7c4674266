"""AlterReplicaLogDirs on a broker with one directory."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from compat.oracle.conftest import Pair
from compat.oracle.schema import Message


@pytest.mark.parametrize("version", [1, 2])
def test_replicas_stay_in_the_only_directory(pair: Pair, new_topic_name: Callable[[str], str], version: int) -> None:
    topic = pair.create(new_topic_name("moved"), partitions=2)
    described = pair.call("DescribeLogDirs", 5, {"Topics": []})
    directories = [answer["Results"][0]["LogDir"] for answer in described]

    def message(side: int) -> Message:
        topics = [
            {"Name": topic.name, "Partitions": [0, 1, 7]},
            {"Name": "never-created", "Partitions": [0]},
            {"Name": "no name", "Partitions": [0]},
        ]
        elsewhere = {"Path": "/nowhere", "Topics": [{"Name": topic.name, "Partitions": [1]}]}
        return {"Dirs": [{"Path": directories[side], "Topics": topics}, elsewhere]}

    def codes(answer: Message) -> dict[tuple[str, int], int]:
        return {
            (one["TopicName"], partition["PartitionIndex"]): partition["ErrorCode"]
            for one in answer["Results"]
            for partition in one["Partitions"]
        }

    theirs, ours = pair.call("AlterReplicaLogDirs", version, message)
    assert codes(theirs) == codes(ours)
    assert codes(ours)[topic.name, 0] == 0
