"""Apache Kafka's controller and kbroker's, which get the same requests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from compat.kafka.node import CLUSTER_ID
from compat.oracle.raw import RawConnection
from compat.oracle.schema import Message

METADATA_ID = bytes(15) + b"\x01"
FAR = 2**40
NO_REPLICAS = {f"{name}.replication.factor": "1" for name in ("default", "offsets.topic", "transaction.state.log")} | {
    "min.insync.replicas": "1",
    "broker.session.timeout.ms": "600000",
}
ANY = {"BrokerEpoch", "TopicId", "HighWatermark", "LogStartOffset", "ThrottleTimeMs"}
"""Fields that differ: offsets, and what a controller chooses."""


class Side:
    """One controller, with the epochs and ids that it has chosen."""

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
        check_equal(*answers)
        return answers[1]

    def register(self, broker: int, *, incarnation: int = 1, **more: Any) -> Message:
        """Register, and remember the epochs if that succeeds."""
        message = registration(broker, incarnation, **more)
        answers = [side.call("BrokerRegistration", 4, message) for side in self.sides]
        check_equal(*answers)
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
        check_equal(*answers)
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


def check_equal(kafka: Message, ours: Message) -> None:
    """Errors: AssertionError with the differences."""
    found = list(differences(kafka, ours))
    assert not found, "\n".join(found)


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
        "Features": [
            {"Name": "metadata.version", "MinSupportedVersion": 7, "MaxSupportedVersion": 30},
            {"Name": "group.version", "MinSupportedVersion": 0, "MaxSupportedVersion": 1},
        ],
        "Rack": None,
        "LogDirs": [bytes([broker]) * 16],
        **more,
    }


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
