"""A kbroker controller answers as Apache Kafka's, byte for byte, except for offsets, ids and times.

Two controllers get the same requests of three brokers that exist only here. The brokers register, propose ISRs, are
fenced and stop, and tools move their replicas.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from compat.cluster.two_controllers import FAR, METADATA_ID, Side, Two, check_equal, quorum
from compat.kafka.node import CLUSTER_ID
from compat.oracle.raw import RawConnection, Reply
from compat.oracle.schema import Message, decode_response, encode_request


def test_a_kbroker_controller_serves_a_part_of_kafkas_apis(addresses: list[str]) -> None:
    ranges, client = [], {"ClientSoftwareName": "x", "ClientSoftwareVersion": "1"}
    for address in addresses:
        answer = RawConnection(address).call("ApiVersions", 3, client)
        ranges.append({one["ApiKey"]: (one["MinVersion"], one["MaxVersion"]) for one in answer["ApiKeys"]})
    kafka, ours = ranges
    assert {key: kafka[key] for key in ours} == {**ours, 63: (0, 2)}
    assert {52, 53, 54, 80, 81, 82} <= set(kafka) - set(ours), "kbroker has one controller"


@pytest.mark.parametrize(
    "more",
    [
        {"ClusterId": "another"},
        {"LogDirs": []},
        {"LogDirs": [bytes(15) + b"\x05"]},
        {"LogDirs": [bytes([9]) * 16] * 2},
        {"LogDirs": [bytes([1]) * 16]},
        {"Features": []},
        {"Features": [{"Name": "metadata.version", "MinSupportedVersion": 7, "MaxSupportedVersion": 20}]},
        {"IsMigratingZkBroker": True},
        {"Rack": "a"},
    ],
    ids=str,
)
def test_registrations_are_judged_as_by_kafka(two: Two, more: dict[str, Any]) -> None:
    two.start(1)
    two.register(2, **more)


def test_incarnations_and_heartbeats_are_judged_as_by_kafka(two: Two) -> None:
    two.register(1)
    two.register(1)
    assert two.beat(1, offset=-1)["IsFenced"]
    assert not two.beat(1)["IsFenced"]
    two.register(1, incarnation=2)
    two.register(1)
    two.beat(1, epoch=-1)
    two.beat(5)
    assert two.beat(1, WantFence=True)["IsFenced"]
    assert not two.beat(1)["IsFenced"]
    assert two.beat(1, WantShutDown=True)["ShouldShutDown"]
    assert two.beat(1, WantShutDown=True)["ShouldShutDown"]


def test_topics_are_created_as_by_kafka(two: Two) -> None:
    two.start(1, 2)
    two.register(3)
    for number, brokers in enumerate(([1, 2], [2, 1], [3], [1, 3], [1, 9], [1, 1], [])):
        two.create(f"topic-{number}", brokers)
    two.create("two", [1, 2], [2, 1])
    two.create("uneven", [1, 2], [1])


def test_isrs_change_as_under_kafka(two: Two) -> None:
    two.start(1, 2, 3, 4)
    two.create("isrs", [1, 2, 3])
    epochs = {"LeaderEpoch": 0, "PartitionEpoch": 0}
    two.alter("isrs", [1], **epochs, TopicId=bytes([7]) * 16)
    two.alter("isrs", [1], PartitionIndex=5, **epochs)
    two.alter("isrs", [1], LeaderEpoch=1, PartitionEpoch=0)
    two.alter("isrs", [1], LeaderEpoch=0, PartitionEpoch=1)
    two.alter("isrs", [1], LeaderEpoch=-1, PartitionEpoch=0)
    two.alter("isrs", [2], sender=2, **epochs)
    for isr in ([], [2], [1, 4], [1, 1], [1, 9]):
        two.alter("isrs", isr, **epochs)
    two.alter("isrs", [1, 2, 3], LeaderRecoveryState=1, **epochs)
    two.alter("isrs", [1], LeaderRecoveryState=1, **epochs)
    two.alter("isrs", [1, 2, 3], **epochs)
    assert two.alter("isrs", [1, 3], version=2, **epochs)["Isr"] == [1, 3]
    two.alter("isrs", [1, 3], **epochs)
    epochs = {"LeaderEpoch": 0, "PartitionEpoch": 1}
    two.alter("isrs", [1, 2, 3], epochs={2: 3}, **epochs)
    two.alter("isrs", [1, 2, 3], epochs={2: -1}, **epochs)
    two.beat(2, WantFence=True)
    two.alter("isrs", [1, 2, 3], LeaderEpoch=0, PartitionEpoch=3)
    two.beat(3, WantShutDown=True)
    two.alter("isrs", [1, 3], LeaderEpoch=0, PartitionEpoch=4)


def test_leaders_move_as_under_kafka(two: Two) -> None:
    two.start(1, 2, 3)
    two.create("moves", [1, 2, 3])
    two.beat(1, WantFence=True)
    assert two.alter("moves", [2, 3], sender=2, LeaderEpoch=1, PartitionEpoch=1)["LeaderId"] == 2
    two.beat(1)
    named = [{"Topic": "moves", "Partitions": [0, 1]}, {"Topic": "none", "Partitions": [0]}]
    elect: Message = {"ElectionType": 0, "TopicPartitions": named, "TimeoutMs": 9000}
    two.same("ElectLeaders", 2, elect)
    two.alter("moves", [2, 3, 1], sender=2, LeaderEpoch=1, PartitionEpoch=1)
    two.same("ElectLeaders", 2, elect)
    two.same("ElectLeaders", 2, elect)
    for broker in (2, 3, 1):
        two.beat(broker, WantFence=True)
    two.beat(2)
    two.same("ElectLeaders", 2, {**elect, "ElectionType": 1})
    two.same("ElectLeaders", 2, {**elect, "ElectionType": 1})
    assert two.alter("moves", [2], sender=2, LeaderEpoch=4, PartitionEpoch=7)["ErrorCode"] == 0


def test_a_controlled_shutdown_ends_as_under_kafka(two: Two) -> None:
    two.start(1, 2)
    two.create("stops", [1, 2])
    for side in two.sides:
        side.call(
            "BrokerHeartbeat",
            1,
            {
                "BrokerId": 2,
                "BrokerEpoch": side.epochs[2],
                "CurrentMetadataOffset": side.epochs[2],
                "WantFence": False,
                "WantShutDown": False,
            },
        )
    assert not two.beat(1, WantShutDown=True)["ShouldShutDown"]
    assert not two.beat(1, WantShutDown=True)["ShouldShutDown"]
    two.create("later", [1, 2])
    two.beat(2)
    assert two.beat(1, WantShutDown=True)["ShouldShutDown"]
    assert two.alter("stops", [2], sender=2, LeaderEpoch=1, PartitionEpoch=1)["ErrorCode"] == 0


def test_reassignments_run_as_under_kafka(two: Two) -> None:
    two.start(1, 2, 3, 4)
    two.create("placed", [1, 2])
    for replicas in ([1, 9], [], [1, 1], None):
        two.reassign("placed", replicas)
    two.reassign("placed", [1], AllowReplicationFactorChange=False)
    assert two.reassign("placed", [3, 4]) == 0
    two.reassign("placed", [3], AllowReplicationFactorChange=False)
    assert two.alter("placed", [1, 2, 3], LeaderEpoch=0, PartitionEpoch=1)["ErrorCode"] == 0
    assert two.reassign("placed", None) == 0
    assert two.alter("placed", [1, 2], LeaderEpoch=1, PartitionEpoch=3)["Isr"] == [1, 2]
    assert two.reassign("placed", [3, 4]) == 0
    assert two.alter("placed", [1, 2, 3, 4], LeaderEpoch=1, PartitionEpoch=4)["ErrorCode"] == 108
    assert two.alter("placed", [3, 4], sender=3, LeaderEpoch=2, PartitionEpoch=5)["Isr"] == [3, 4]
    assert two.reassign("placed", [4, 3], version=0) == 0
    assert two.reassign("placed", [4], version=0) == 0
    assert two.alter("placed", [4], sender=4, LeaderEpoch=3, PartitionEpoch=7)["Isr"] == [4]
    assert two.reassign("placed", [1, 4]) == 0
    assert two.reassign("placed", [2, 4]) == 0
    assert two.alter("placed", [4, 2], sender=4, LeaderEpoch=3, PartitionEpoch=9)["ErrorCode"] == 0


def test_directories_are_assigned_as_by_kafka(two: Two) -> None:
    two.start(2)
    dirs = [bytes([11]) * 16, bytes([12]) * 16]
    two.register(1, LogDirs=dirs)
    two.beat(1)
    two.create("dirs", [1, 2])

    def assign(side: Side, directory: bytes = dirs[0], topic: bytes | None = None, index: int = 0) -> Message:
        partitions = [{"PartitionIndex": index}]
        topics = [{"TopicId": topic or side.topics["dirs"], "Partitions": partitions}]
        directories = [{"Id": directory, "Topics": topics}]
        return {"BrokerId": 1, "BrokerEpoch": side.epochs[1], "Directories": directories}

    two.same("AssignReplicasToDirs", 0, lambda side: {**assign(side), "BrokerEpoch": 0})
    two.same("AssignReplicasToDirs", 0, lambda side: assign(side, topic=bytes([5]) * 16))
    two.same("AssignReplicasToDirs", 0, lambda side: assign(side, index=5))
    two.same("AssignReplicasToDirs", 0, lambda side: {**assign(side), "BrokerId": 2, "BrokerEpoch": side.epochs[2]})
    two.same("AssignReplicasToDirs", 0, assign)
    two.beat(1, OfflineLogDirs=dirs[:1])  # type: ignore[arg-type]
    two.alter("dirs", [2], sender=2, LeaderEpoch=1, PartitionEpoch=2)


def test_producer_ids_and_unregistrations_are_answered_as_by_kafka(two: Two) -> None:
    two.start(1)
    for epoch in (0, -1):
        two.same(
            "AllocateProducerIds",
            0,
            lambda side, epoch=epoch: {"BrokerId": 1, "BrokerEpoch": side.epochs[1] + epoch},
        )
    for broker in (1, 1, -1):
        two.same("UnregisterBroker", 0, {"BrokerId": broker})


@pytest.mark.parametrize("name", ["", "1", "100", "77", "x"])
def test_settings_of_nodes_are_changed_as_by_kafka(two: Two, name: str) -> None:
    two.start(1)
    change = {"Name": "log.retention.ms", "ConfigOperation": 1, "Value": None}
    resource = {"ResourceType": 4, "ResourceName": name, "Configs": [change]}
    two.same("IncrementalAlterConfigs", 1, {"Resources": [resource], "ValidateOnly": False})


@pytest.mark.parametrize("kind", [1, 2, 3])
def test_clusters_are_described_as_by_kafka(two: Two, kind: int) -> None:
    message = {"IncludeClusterAuthorizedOperations": False, "EndpointType": kind}
    answers = [side.call("DescribeCluster", 1, message) for side in two.sides]
    for answer in answers:
        for controller in answer["Brokers"]:
            controller["Port"] = 0
    check_equal(*answers)


def fetching(offset: int, epoch: int, *, current: int | None = None, **more: Any) -> Callable[[Side], Message]:
    def message(side: Side) -> Message:
        partition = {
            "Partition": more.get("partition", 0),
            "CurrentLeaderEpoch": leader_epoch(side) if current is None else current,
            "FetchOffset": offset,
            "LastFetchedEpoch": epoch,
        }
        return {
            "ClusterId": more.get("cluster_id", CLUSTER_ID),
            "ReplicaState": {"ReplicaId": 55},
            "MaxWaitMs": more.get("max_wait_ms", 0),
            "MinBytes": 0,
            "Topics": [{"TopicId": more.get("topic_id", METADATA_ID), "Partitions": [partition]}],
        }

    return message


def leader_epoch(side: Side) -> int:
    answer = side.call("DescribeQuorum", 0, quorum("__cluster_metadata"))
    return answer["Topics"][0]["Partitions"][0]["LeaderEpoch"]


@pytest.mark.parametrize(
    "message",
    [
        fetching(0, 0, cluster_id="another"),
        fetching(0, 0, partition=1),
        fetching(0, 0, topic_id=bytes([3]) * 16),
        fetching(0, 0, current=0),
        fetching(0, 0, current=99),
        fetching(-1, 0),
        fetching(0, -1),
        fetching(0, 99),
        fetching(0, 0, max_wait_ms=-1),
        fetching(FAR, 0),
    ],
)
def test_fetches_of_the_metadata_log_fail_as_under_kafka(two: Two, message: Callable[[Side], Message]) -> None:
    answers = [side.call("Fetch", 17, message(side)) for side in two.sides]
    for answer in answers:
        for endpoint in answer["NodeEndpoints"]:
            endpoint["Port"] = 0
        for topic in answer["Responses"]:
            for partition in topic["Partitions"]:
                # The epochs of the two differ: Kafka's begins with its first election.
                partition["CurrentLeader"]["LeaderEpoch"] = partition["DivergingEpoch"]["EndOffset"] = 0
    check_equal(*answers)


def test_a_snapshot_of_another_cluster_is_refused_as_by_kafka(two: Two) -> None:
    """For every other error Kafka answers UNKNOWN_SERVER_ERROR, because it cannot encode its own answer."""
    partition = {"Partition": 0, "SnapshotId": {"EndOffset": 7, "Epoch": 1}, "Position": 0}
    message = {
        "ClusterId": "another",
        "ReplicaId": 55,
        "Topics": [{"Name": "__cluster_metadata", "Partitions": [{**partition, "CurrentLeaderEpoch": 0}]}],
    }
    two.same("FetchSnapshot", 1, message)


# Envelope

PRINCIPAL = bytes.fromhex("0000 05 55736572 06 616c696365 00 00")


@pytest.mark.parametrize("version", [0, 1, 2])
def test_a_forwarded_request_is_answered_as_by_kafka(two: Two, version: int) -> None:
    inner = encode_request("DescribeQuorum", version, quorum("orders"))[4:]
    answer = two.same(
        "Envelope", 0, {"RequestData": inner, "RequestPrincipal": PRINCIPAL, "ClientHostAddress": bytes(4)}
    )
    assert answer["ErrorCode"] == 0
    decode_response("DescribeQuorum", version, answer["ResponseData"])


@pytest.mark.parametrize(
    "more",
    [
        {"ClientHostAddress": bytes(5)},
        {"RequestPrincipal": b"\0\x09"},
        {"RequestData": bytes.fromhex("0013 0063 00000001 ffff 00")},
        {"RequestData": "BrokerHeartbeat"},
    ],
    ids=str,
)
def test_envelopes_are_refused_as_by_kafka(two: Two, more: Message) -> None:
    if more.get("RequestData") == "BrokerHeartbeat":
        more = {"RequestData": encode_request("BrokerHeartbeat", 1, {})[4:]}
    inner = encode_request("DescribeQuorum", 1, quorum("orders"))[4:]
    whole = {"RequestData": inner, "RequestPrincipal": PRINCIPAL, "ClientHostAddress": bytes(4), **more}
    outcomes = []
    for side in two.sides:
        got = side.connection.exchange(encode_request("Envelope", 0, whole))
        outcomes.append(decode_response("Envelope", 0, got.payload) if isinstance(got, Reply) else got)
    assert outcomes[1] == outcomes[0]
