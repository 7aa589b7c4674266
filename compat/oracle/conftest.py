"""Fixtures for two brokers: Apache Kafka, and the one under test."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from compat.brokers import Broker
from compat.kafka import KafkaNode
from compat.oracle.raw import Answer, Closed, RawConnection, Reply, Silent, ask, connected
from compat.oracle.schema import Message, decode_response, encode_request
from compat.waiting import until

if TYPE_CHECKING:
    from compat.oracle.groups import NewGroup, NewSeat, Seat

COORDINATOR_LOAD_IN_PROGRESS = 14


@dataclass(frozen=True)
class Topic:
    """One topic with one name on both brokers, and its two ids."""

    name: str
    ids: tuple[bytes, bytes]


# A message may contain a value that differs between the brokers (a topic's id): then it is a function of the side, 0 or
# 1.
ForSide = Message | Callable[[int], Message]


class Pair:
    """Apache Kafka (side 0) and the broker under test (side 1)."""

    def __init__(self, kafka: str, broker: str) -> None:
        self.addresses = (kafka, broker)

    def ask(self, data: bytes | Callable[[int], bytes], *, finish: bool = False, timeout_s: float = 3) -> list[Answer]:
        """The answers of both brokers to the same bytes on a new connection."""
        return [
            ask(address, data(side) if callable(data) else data, finish=finish, timeout_s=timeout_s)
            for side, address in enumerate(self.addresses)
        ]

    def call(self, api: str, version: int, message: ForSide, *, client_id: str | None = "compat") -> list[Message]:
        """The decoded response of each to the same request; anything but a reply is an error."""
        result = []
        for side, address in enumerate(self.addresses):
            body = message(side) if callable(message) else message
            got = ask(address, encode_request(api, version, body, client_id=client_id))
            assert isinstance(got, Reply), f"{'broker' if side else 'Kafka'}: {api} v{version} {body}: {got}"
            result.append(decode_response(api, version, got.payload))
        return result

    def producer_ids(self, version: int = 4) -> list[Message]:
        """A new producer id on each; retries COORDINATOR_LOAD_IN_PROGRESS, which Kafka returns while it fetches a block
        of ids.
        """
        result = []
        for address in self.addresses:
            with connected(address) as connection:
                for _ in range(1000):
                    answer = connection.call(
                        "InitProducerId", version, {"TransactionTimeoutMs": 60_000, "TransactionalId": None}
                    )
                    if answer["ErrorCode"] != COORDINATOR_LOAD_IN_PROGRESS:
                        break
            result.append(answer)
        return result

    def connect(self) -> list[RawConnection]:
        """A connection to each."""
        return [RawConnection(address) for address in self.addresses]

    def create(self, name: str, *, partitions: int = 1, configs: Mapping[str, str] | None = None) -> Topic:
        """Create one topic on both and wait until both have leaders."""
        request = {
            "Topics": [
                {
                    "Name": name,
                    "NumPartitions": partitions,
                    "ReplicationFactor": 1,
                    "Configs": [{"Name": key, "Value": value} for key, value in (configs or {}).items()],
                }
            ],
            "timeoutMs": 30_000,
        }
        created = self.call("CreateTopics", 7, request)
        assert [response["Topics"][0]["ErrorCode"] for response in created] == [0, 0], (configs, created[1])
        for address in self.addresses:
            await_leaders(address, name, partitions)
        return Topic(name, (created[0]["Topics"][0]["TopicId"], created[1]["Topics"][0]["TopicId"]))


def await_leaders(address: str, name: str, partitions: int) -> None:
    """Wait until the broker serves reads of every partition: KRaft creates a topic before its broker applies it."""
    probes = [{"PartitionIndex": index, "Timestamp": -1} for index in range(partitions)]
    request = encode_request("ListOffsets", 1, {"ReplicaId": -1, "Topics": [{"Name": name, "Partitions": probes}]})

    def have_leaders() -> bool:
        got = ask(address, request)
        assert isinstance(got, Reply)
        found = decode_response("ListOffsets", 1, got.payload)["Topics"][0]["Partitions"]
        return all(partition["ErrorCode"] == 0 for partition in found)

    until(have_leaders, each_s=0.002)


def kind(answer: Answer) -> str:
    """The class of an answer: reply, close or silence."""
    return {Reply: "reply", Closed: "close", Silent: "silence"}[type(answer)]


def _count(nodes: object) -> int:
    assert isinstance(nodes, list)
    return len(nodes)


# Healthy brokers may differ in identities, addresses, clocks and message texts. Everything else must agree.
_PLACEHOLDERS: dict[str, Callable[[object], object]] = {
    "TopicId": lambda value: "zero" if value == bytes(16) else "id",
    "ClusterId": lambda value: value is not None,
    "Host": lambda _: "host",
    "Port": lambda _: "port",
    "NodeId": lambda _: "node",
    "BrokerId": lambda _: "node",
    "LeaderId": lambda value: "none" if value == -1 else "node",
    "ControllerId": lambda value: "none" if value == -1 else "node",
    "ReplicaNodes": _count,
    "IsrNodes": _count,
    "SessionId": lambda value: "none" if value == 0 else "session",
    "ProducerId": lambda value: "none" if value == -1 else "id",
    "ErrorMessage": lambda value: value is not None,
    "BatchIndexErrorMessage": lambda value: value is not None,
    "FinalizedFeaturesEpoch": lambda value: value == -1,
}


_IDENTITIES = ("ApiKey", "Topic", "Name", "ConfigName", "PartitionIndex", "Partition", "Index", "ErrorCode")


def normal(value: object, name: str = "") -> object:
    """A decoded message without the fields that may differ."""
    if name in _PLACEHOLDERS:
        return _PLACEHOLDERS[name](value)
    if name == "LogAppendTimeMs" and isinstance(value, int) and value > 1_750_000_000_000:
        return "now"
    if isinstance(value, dict):
        return {key: normal(inner, key) for key, inner in value.items()}
    if isinstance(value, list):
        return sorted((normal(inner) for inner in value), key=_place)
    return value


def _place(entry: object) -> str:
    """The sort key of a list: Kafka keeps partitions, topics and settings in hash tables, clients send them in any
    order.
    """
    if not isinstance(entry, dict):
        return ""
    return "".join(f"{entry[key]!s:>12}" for key in _IDENTITIES if key in entry)


def differences(theirs: object, ours: object, path: str = "") -> list[str]:
    """The places where two decoded messages differ, with both values."""
    if isinstance(theirs, dict) and isinstance(ours, dict):
        keys = [*theirs, *(key for key in ours if key not in theirs)]
        absent = "absent"
        return [
            each
            for key in keys
            for each in differences(theirs.get(key, absent), ours.get(key, absent), f"{path}.{key}" if path else key)
        ]
    if isinstance(theirs, list) and isinstance(ours, list) and len(theirs) == len(ours):
        pairs = enumerate(zip(theirs, ours, strict=True))
        return [each for index, (their, our) in pairs for each in differences(their, our, f"{path}[{index}]")]
    if path.endswith("ErrorMessage") and ours:
        return []  # a text where Kafka has none is allowed
    return [] if theirs == ours else [f"{path}: Kafka {_shown(theirs)}, broker {_shown(ours)}"]


def _shown(value: object) -> str:
    return f"{len(value)} bytes {value[:80].hex()}" if isinstance(value, bytes) else f"{value!r:.200}"


def same(answers: list[Message]) -> Message:
    """Assert that the broker answered as Kafka did; returns Kafka's answer."""
    found = differences(*map(normal, answers))
    assert not found, "\n".join(found)
    return answers[0]


@pytest.fixture(scope="session")
def pair(kafka: KafkaNode, broker: Broker) -> Pair:
    """Both brokers."""
    return Pair(kafka.bootstrap_servers, broker.bootstrap_servers)


@pytest.fixture(scope="session")
def new_group(pair: Pair, new_topic_name: Callable[[str], str]) -> NewGroup:
    """A function that names an unused group and waits for its coordinator on both."""
    from compat.oracle.groups import await_coordinator  # noqa: PLC0415

    def name(stem: str) -> str:
        group = new_topic_name(stem)
        for address in pair.addresses:
            await_coordinator(address, group)
        return group

    return name


@pytest.fixture
def seat(pair: Pair) -> Iterator[NewSeat]:
    """A function that creates members, whose connections are closed at the end."""
    from compat.oracle.groups import Seat  # noqa: PLC0415

    seats: list[Seat] = []

    def take(group: str, client_id: str = "alice", *, instance: str | None = None) -> Seat:
        seats.append(Seat(pair, group, client_id, instance=instance))
        return seats[-1]

    yield take
    for each in seats:
        each.close()


def soon_same(read: Callable[[], list[Message]]) -> None:
    """Assert that the broker's answer becomes that of Kafka, which acknowledges a change before its broker shows it."""
    for _ in range(200):
        if not differences(*map(normal, read())):
            return
        time.sleep(0.02)
    same(read())
