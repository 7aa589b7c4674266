"""A kbroker controller answers as Apache Kafka's, byte for byte, except for offsets, ids and times.

Two controllers get the same requests of three brokers that exist only here. The brokers register, propose ISRs, are
fenced and stop, and tools move their replicas.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from compat.cluster import KAFKA, KBROKER, ProcessCluster
from compat.kafka import libraries
from compat.kafka.node import CLUSTER_ID
from compat.oracle.raw import RawConnection, Reply
from compat.oracle.schema import Message, decode_response, encode_request
from compat.waiting import until

METADATA_ID = bytes(15) + b"\x01"
FAR = 2**40
NO_REPLICAS = {f"{name}.replication.factor": "1" for name in ("default", "offsets.topic", "transaction.state.log")} | {
    "min.insync.replicas": "1",
    "broker.session.timeout.ms": "600000",
}
ANY = {"BrokerEpoch", "TopicId", "HighWatermark", "LogStartOffset", "ThrottleTimeMs"}
"""Fields that differ: offsets, and what a controller chooses."""


class Side:
    """One controller, and what only it knows."""

    def __init__(self, address: str) -> None:
        self.connection = RawConnection(address)
        self.epochs: dict[int, int] = {}
        self.topics: dict[str, bytes] = {}

    def call(self, api: str, version: int, message: Message) -> Message:
        return self.connection.call(api, version, message)


class Two:
    """Apache Kafka's controller and kbroker's."""

    def __init__(self, sides: list[Side]) -> None:
        self.sides = sides

    def same(self, api: str, version: int, message: Message | Callable[[Side], Message]) -> Message:
        """Ask both; the answers must be equal. Returns kbroker's."""
        answers = [side.call(api, version, message(side) if callable(message) else message) for side in self.sides]
        assert not list(differences(*answers))
        return answers[1]

    def register(self, broker: int, *, incarnation: int = 1, **more: Any) -> Message:
        """Register, and remember the epochs if that succeeds."""
        message = registration(broker, incarnation, **more)
        answers = [side.call("BrokerRegistration", 4, message) for side in self.sides]
        assert not list(differences(*answers))
        if not answers[0]["ErrorCode"]:
            for side, answer in zip(self.sides, answers, strict=True):
                side.epochs[broker] = answer["BrokerEpoch"]
        return answers[1]

    def beat(self, broker: int, *, offset: int = FAR, epoch: int = 0, **more: bool) -> Message:
        """A heartbeat; `epoch` is added to the broker's."""
        wants = {"WantFence": False, "WantShutDown": False, **more}
        return self.same(
            "BrokerHeartbeat",
            1,
            lambda side: {
                "BrokerId": broker,
                "BrokerEpoch": side.epochs.get(broker, 0) + epoch,
                "CurrentMetadataOffset": offset,
                **wants,
            },
        )

    def start(self, *brokers: int, incarnation: int = 1) -> None:
        for broker in brokers:
            assert not self.register(broker, incarnation=incarnation)["ErrorCode"]
            assert not self.beat(broker)["IsFenced"]

    def create(self, name: str, *assignments: list[int]) -> Message:
        """Create a topic with these replicas, and remember its ids."""
        listed = [{"PartitionIndex": index, "BrokerIds": brokers} for index, brokers in enumerate(assignments)]
        topic = {"Name": name, "NumPartitions": -1, "ReplicationFactor": -1, "Assignments": listed, "Configs": []}
        answers = [side.call("CreateTopics", 7, {"Topics": [topic], "timeoutMs": 9000}) for side in self.sides]
        for side, answer in zip(self.sides, answers, strict=True):
            side.topics[name] = answer["Topics"][0]["TopicId"]
            for found in answer["Topics"]:
                del found["Configs"]  # the defaults of the two differ
        assert not list(differences(*answers))
        return answers[1]["Topics"][0]

    def alter(self, name: str, isr: list[int], *, sender: int = 1, version: int = 3, **more: Any) -> Message:
        """Propose an ISR for partition 0; returns the partition's answer."""
        epochs = more.pop("epochs", {})

        def message(side: Side) -> Message:
            members = [{"BrokerId": one, "BrokerEpoch": epochs.get(one, side.epochs.get(one, -1))} for one in isr]
            partition = {
                "PartitionIndex": 0,
                "LeaderRecoveryState": 0,
                **({"NewIsrWithEpochs": members} if version >= 3 else {"NewIsr": isr}),
                **{key: value for key, value in more.items() if key != "TopicId"},
            }
            topic = {"TopicId": more.get("TopicId", side.topics[name]), "Partitions": [partition]}
            return {"BrokerId": sender, "BrokerEpoch": side.epochs[sender], "Topics": [topic]}

        answer = self.same("AlterPartition", version, message)
        return answer["Topics"][0]["Partitions"][0]

    def reassign(self, name: str, replicas: list[int] | None, *, version: int = 1, **more: Any) -> int:
        """Reassign partition 0; returns the error code."""
        partition = {"PartitionIndex": 0, "Replicas": replicas}
        answer = self.same(
            "AlterPartitionReassignments",
            version,
            {"TimeoutMs": 9000, "Topics": [{"Name": name, "Partitions": [partition]}], **more},
        )
        self.same("ListPartitionReassignments", 0, {"Topics": None, "TimeoutMs": 9000})
        return answer["Responses"][0]["Partitions"][0]["ErrorCode"]


def differences(kafka: Any, ours: Any, path: str = "") -> Iterator[str]:
    """Where two answers differ, apart from the fields in ANY."""
    if isinstance(kafka, dict) and isinstance(ours, dict):
        for key in kafka.keys() | ours.keys():
            if key not in ANY:
                yield from differences(kafka.get(key), ours.get(key), f"{path}.{key}")
    elif isinstance(kafka, list) and isinstance(ours, list) and len(kafka) == len(ours):
        for index, pair in enumerate(zip(kafka, ours, strict=True)):
            yield from differences(*pair, f"{path}[{index}]")
    elif kafka != ours:
        yield f"{path}: Kafka {kafka!r}, kbroker {ours!r}"


def registration(broker: int, incarnation: int = 1, **more: Any) -> Message:
    listener = {"Name": "PLAINTEXT", "Host": "127.0.0.1", "Port": 9000 + broker, "SecurityProtocol": 0}
    return {
        "BrokerId": broker,
        "ClusterId": CLUSTER_ID,
        "IncarnationId": bytes([incarnation]) * 16,
        "Listeners": [listener],
        "Features": [{"Name": "metadata.version", "MinSupportedVersion": 7, "MaxSupportedVersion": 30}],
        "Rack": None,
        "LogDirs": [bytes([broker]) * 16],
        **more,
    }


@pytest.fixture(scope="module")
def addresses(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    libraries()
    clusters = [
        ProcessCluster(tmp_path_factory.mktemp(kind), controllers=[kind], brokers=[], settings=NO_REPLICAS)
        for kind in (KAFKA, KBROKER)
    ]
    with clusters[0], clusters[1]:
        found = [cluster.controllers[100].address for cluster in clusters]
        for cluster in clusters:
            cluster.controllers[100].start()
        for address in found:
            until(lambda: is_active(address), each_s=0.1, patience_s=60)  # noqa: B023  (called here)
        yield found


def is_active(address: str) -> bool:
    """Whether a controller answers and leads."""
    try:
        connection = RawConnection(address)
    except OSError:
        return False
    try:
        answer = connection.call("DescribeQuorum", 2, quorum("__cluster_metadata"))
        return answer["Topics"][0]["Partitions"][0]["LeaderId"] == 100 and is_decided(connection)
    finally:
        connection.close()


def is_decided(connection: RawConnection) -> bool:
    """Whether the controller has activated: before that it answers NOT_CONTROLLER."""
    answer = connection.call("UnregisterBroker", 0, {"BrokerId": 999})
    return answer["ErrorCode"] == 102


def quorum(topic: str) -> Message:
    return {"Topics": [{"TopicName": topic, "Partitions": [{"PartitionIndex": 0}]}]}


@pytest.fixture
def two(addresses: list[str]) -> Iterator[Two]:
    """Both controllers with the brokers 1, 2 and 3, none of them registered before."""
    pair = Two([Side(address) for address in addresses])
    for broker in (1, 2, 3, 4, 5):
        pair.same("UnregisterBroker", 0, {"BrokerId": broker})
    yield pair
    for side in pair.sides:
        side.connection.close()


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


@pytest.mark.parametrize("kind", [1, 2, 3])
def test_clusters_are_described_as_by_kafka(two: Two, kind: int) -> None:
    message = {"IncludeClusterAuthorizedOperations": False, "EndpointType": kind}
    answers = [side.call("DescribeCluster", 1, message) for side in two.sides]
    for answer in answers:
        for controller in answer["Brokers"]:
            controller["Port"] = 0
    assert not list(differences(*answers))


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
    assert not list(differences(*answers))


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
        {"RequestData": encode_request("BrokerHeartbeat", 1, {})[4:]},
    ],
    ids=str,
)
def test_envelopes_are_refused_as_by_kafka(two: Two, more: Message) -> None:
    inner = encode_request("DescribeQuorum", 1, quorum("orders"))[4:]
    whole = {"RequestData": inner, "RequestPrincipal": PRINCIPAL, "ClientHostAddress": bytes(4), **more}
    outcomes = []
    for side in two.sides:
        got = side.connection.exchange(encode_request("Envelope", 0, whole))
        outcomes.append(decode_response("Envelope", 0, got.payload) if isinstance(got, Reply) else got)
    assert outcomes[1] == outcomes[0]
