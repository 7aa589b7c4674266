"""DumpLogSegments decodes a broker's records of groups in `__consumer_offsets`, and groups survive `kill -9`."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from compat.clients import filling
from compat.clients.members import CLIENTS, await_assignment
from compat.conftest import KafkaTool
from compat.kafka_tools.test_files import AnyBroker, StartBroker, create, dump
from compat.oracle.groups import await_coordinator, committing, fetching, offsets_of
from compat.oracle.raw import connected

OFFSET, GROUP_METADATA = "1", "2"
COMMITTED = {0: (7, "a note"), 1: (30, ""), 2: (0, "\u00fcml\u00e4ut")}


@pytest.fixture(scope="module")
def grouped(start_broker: StartBroker) -> AnyBroker:
    """A broker with a group of one static member and one of a simple consumer; it was killed and restarted."""
    broker = start_broker("offsets.topic.num.partitions=3")
    servers = broker.bootstrap_servers
    create(broker, "read", partitions=3)
    filling.fill(servers, "read", {partition: [b"%d" % number for number in range(30)] for partition in range(3)})
    for group in ("members", "simple", "deleted"):
        await_coordinator(servers, group)
    named = {"instance": "the-instance", "client_id": "the-client", "session_timeout_ms": 300_000}
    member = CLIENTS["confluent-kafka"](servers, "members", "read", **named)
    await_assignment(member, {0, 1, 2})
    member.commit({partition: (offset, note) for partition, (offset, note) in COMMITTED.items() if note})
    with connected(servers) as connection:
        for group in ("simple", "deleted"):
            reported = [(partition, offset, note) for partition, (offset, note) in COMMITTED.items()]
            connection.call("OffsetCommit", 8, committing(group, {"read": reported}, leader_epoch=0))
        assert connection.call("DeleteGroups", 2, {"GroupsNames": ["deleted"]})["Results"][0]["ErrorCode"] == 0
    broker.kill()
    member.close()  # a static member does not leave
    broker.start()
    await_coordinator(broker.bootstrap_servers, "members")
    return broker


def test_d1_groups_and_offsets_survive_kill_9(grouped: AnyBroker) -> None:
    for group in ("members", "simple", "deleted"):
        await_coordinator(grouped.bootstrap_servers, group)
    with connected(grouped.bootstrap_servers) as connection:
        found = {group: connection.call("OffsetFetch", 7, fetching(group, None)) for group in ("simple", "deleted")}
        described = connection.call("DescribeGroups", 5, {"Groups": ["members", "deleted"]})["Groups"]
    assert offsets_of(found["simple"]) == COMMITTED
    assert offsets_of(found["deleted"]) == {}
    group = {each["GroupId"]: each for each in described}
    assert (group["members"]["GroupState"], group["deleted"]["GroupState"]) == ("Stable", "Dead")
    member = group["members"]["Members"][0]
    assert (member["GroupInstanceId"], member["ClientId"], member["ClientHost"]) == (
        "the-instance",
        "the-client",
        "/127.0.0.1",
    )
    assert b"read" in member["MemberAssignment"]


def records(printed: str) -> list[tuple[dict[str, Any], Any]]:
    """Keys and payloads of all records, in the order of their log."""
    found = re.findall(r"key: (\{.*?\}\}) payload: (.*)$", printed, re.MULTILINE)
    return [(json.loads(key), None if payload == "<DELETE>" else json.loads(payload)) for key, payload in found]


def test_the_offsets_log_is_decoded(grouped: AnyBroker, kafka_tool: KafkaTool) -> None:
    assert grouped.stop() in {0, 143}
    assert grouped.log_directory is not None
    files = [file for file in grouped.log_directory.glob("__consumer_offsets-*/*.log") if file.stat().st_size]
    found = records(dump(kafka_tool, files, "--offsets-decoder"))
    offsets: dict[str, dict[int, tuple[int, str, int] | None]] = {}
    for key, payload in found:
        if key["type"] == OFFSET:
            data = key["data"]
            assert data["topic"] == "read"
            reported = payload and (
                payload["data"]["offset"],
                payload["data"]["metadata"],
                payload["data"]["leaderEpoch"],
            )
            offsets.setdefault(data["group"], {})[data["partition"]] = reported
    # confluent-kafka appends a NUL to its metadata.
    assert offsets["members"] == {
        partition: (COMMITTED[partition][0], COMMITTED[partition][1] + "\0", -1) for partition in (0, 2)
    }
    assert offsets["simple"] == {partition: (offset, note, 0) for partition, (offset, note) in COMMITTED.items()}
    assert offsets["deleted"] == dict.fromkeys(COMMITTED)
    groups = [payload["data"] for key, payload in found if key["type"] == GROUP_METADATA and payload is not None]
    last = [data for data in groups if data["members"]][-1]
    assert (last["protocolType"], last["protocol"]) == ("consumer", "range")
    assert last["leader"] == last["members"][0]["memberId"]
    assert last["members"][0]["groupInstanceId"] == "the-instance"
