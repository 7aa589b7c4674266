"""Groups on two brokers at once: requests as dicts for all versions, and members that remember their ids.

The encoder omits fields that a version does not have, so one message has the fields of all versions.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from compat.oracle.conftest import ForSide, Pair, Topic, differences, normal
from compat.oracle.raw import RawConnection, Reply, connected
from compat.oracle.schema import Message, decode_response, encode_request

NONE, UNKNOWN_TOPIC, LOADING, NOT_AVAILABLE, NOT_COORDINATOR = 0, 3, 14, 15, 16
ILLEGAL_GENERATION, INCONSISTENT_PROTOCOL, INVALID_GROUP, UNKNOWN_MEMBER = 22, 23, 24, 25
INVALID_SESSION, REBALANCING, METADATA_TOO_LARGE = 26, 27, 12
INVALID_REQUEST, NON_EMPTY, NOT_FOUND, MEMBER_ID_REQUIRED, FENCED = 42, 68, 69, 79, 82
SUBSCRIBED, UNKNOWN_TOPIC_ID = 86, 100


def subscription(*topics: str, user_data: bytes | None = None) -> bytes:
    """A consumer's metadata, version 0. Kafka decodes it, and never answers a group if it cannot."""
    listed = b"".join(struct.pack(">h", len(topic)) + topic.encode() for topic in topics)
    data = struct.pack(">i", -1) if user_data is None else struct.pack(">i", len(user_data)) + user_data
    return struct.pack(">hi", 0, len(topics)) + listed + data


RANGE, ROUND_ROBIN = ("range", subscription("t")), ("roundrobin", subscription("t", user_data=b"\x00\xffother"))
CHANGED = ("range", subscription("t", user_data=b"changed"))
Protocols = Sequence[tuple[str, bytes]]

_RANDOM = re.compile(r"-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")


def joining(
    group: str,
    member_id: str = "",
    *,
    instance: str | None = None,
    protocols: Protocols = (RANGE,),
    kind: str = "consumer",
    session_ms: int = 10_000,
    rebalance_ms: int = 10_000,
) -> Message:
    """A JoinGroup request."""
    return {
        "GroupId": group,
        "SessionTimeoutMs": session_ms,
        "RebalanceTimeoutMs": rebalance_ms,
        "MemberId": member_id,
        "GroupInstanceId": instance,
        "ProtocolType": kind,
        "Protocols": [{"Name": name, "Metadata": metadata} for name, metadata in protocols],
        "Reason": "a reason",
    }


def syncing(
    group: str,
    generation: int,
    member_id: str,
    assignments: Mapping[str, bytes] | None = None,
    *,
    instance: str | None = None,
    kind: str | None = "consumer",
    protocol: str | None = "range",
) -> Message:
    """A SyncGroup request."""
    return {
        "GroupId": group,
        "GenerationId": generation,
        "MemberId": member_id,
        "GroupInstanceId": instance,
        "ProtocolType": kind,
        "ProtocolName": protocol,
        "Assignments": [
            {"MemberId": each, "Assignment": assignment} for each, assignment in (assignments or {}).items()
        ],
    }


def beating(group: str, generation: int, member_id: str, *, instance: str | None = None) -> Message:
    """A Heartbeat request."""
    return {"GroupId": group, "GenerationId": generation, "MemberId": member_id, "GroupInstanceId": instance}


def leaving(group: str, *members: tuple[str, str | None]) -> Message:
    """A LeaveGroup request of members and their instances; below version 3 only the first member."""
    listed = [{"MemberId": member, "GroupInstanceId": instance, "Reason": "bye"} for member, instance in members]
    return {"GroupId": group, "MemberId": members[0][0] if members else "", "Members": listed}


def committing(
    group: str,
    topics: Mapping[str | Topic, Sequence[tuple[int, int, str | None]]],
    *,
    side: int = 0,
    generation: int = -1,
    member_id: str = "",
    instance: str | None = None,
    leader_epoch: int = -1,
    retention_ms: int = -1,
) -> Message:
    """An OffsetCommit request of (partition, offset, metadata); `side` chooses the topic's id."""
    return {
        "GroupId": group,
        "GenerationIdOrMemberEpoch": generation,
        "MemberId": member_id,
        "GroupInstanceId": instance,
        "RetentionTimeMs": retention_ms,
        "Topics": [
            {
                **_named(topic, side),
                "Partitions": [
                    {
                        "PartitionIndex": index,
                        "CommittedOffset": offset,
                        "CommittedLeaderEpoch": leader_epoch,
                        "CommittedMetadata": metadata,
                    }
                    for index, offset, metadata in partitions
                ],
            }
            for topic, partitions in topics.items()
        ],
    }


def fetching(
    group: str | Sequence[str],
    topics: Mapping[str | Topic, Sequence[int]] | None,
    *,
    side: int = 0,
    member_id: str | None = None,
    member_epoch: int = -1,
    stable: bool = False,
) -> Message:
    """An OffsetFetch request; None asks for all topics. Below version 8 only the first group."""
    groups = [group] if isinstance(group, str) else list(group)
    wanted = None
    if topics is not None:
        wanted = [{**_named(topic, side), "PartitionIndexes": list(parts)} for topic, parts in topics.items()]
    named = None if wanted is None else [{key: part[key] for key in part if key != "TopicId"} for part in wanted]
    return {
        "GroupId": groups[0],
        "Topics": named,
        "Groups": [
            {"GroupId": each, "MemberId": member_id, "MemberEpoch": member_epoch, "Topics": wanted} for each in groups
        ],
        "RequireStable": stable,
    }


def _named(topic: str | Topic, side: int) -> dict[str, Any]:
    if isinstance(topic, str):
        return {"Name": topic, "TopicId": b"\x07" * 16}
    return {"Name": topic.name, "TopicId": topic.ids[side]}


def offsets_of(response: Message) -> dict[int, tuple[int, str | None]]:
    """Partition to (offset, metadata) of an OffsetFetch response of one group and one topic, in any version."""
    topics = response["Groups"][0]["Topics"] if response.get("Groups") else response["Topics"]
    return {
        part["PartitionIndex"]: (part["CommittedOffset"], part["Metadata"])
        for topic in topics
        for part in topic["Partitions"]
    }


class Seat:
    """One member and its connection to each broker. `send` goes to both; `answers` waits for both."""

    def __init__(self, pair: Pair, group: str, client_id: str = "alice", *, instance: str | None = None) -> None:
        self.group, self.client_id, self.instance = group, client_id, instance
        self.addresses = pair.addresses
        self.connections: list[RawConnection] = pair.connect()
        self.ids = ["", ""]
        self.generation = -1
        self._asked: list[tuple[str, int]] = []

    def send(self, api: str, version: int, message: ForSide) -> None:
        """Send a request to both."""
        for side, connection in enumerate(self.connections):
            body = message(side) if callable(message) else message
            connection.send(encode_request(api, version, body, client_id=self.client_id))
        self._asked.append((api, version))

    def answers(self, *, timeout_s: float = 8) -> list[Message]:
        """The next response of each."""
        api, version = self._asked.pop(0)
        found = []
        for side, connection in enumerate(self.connections):
            got = connection.answer(timeout_s=timeout_s)
            assert isinstance(got, Reply), f"{'broker' if side else 'Kafka'}: {api} v{version}: {got}"
            found.append(decode_response(api, version, got.payload))
        return found

    def silent(self, *, timeout_s: float = 0.3) -> bool:
        """True if neither has answered within the time."""
        return all(not isinstance(each.answer(timeout_s=timeout_s), Reply) for each in self.connections)

    def call(self, api: str, version: int, message: ForSide) -> list[Message]:
        """Send and wait."""
        self.send(api, version, message)
        return self.answers()

    def join(self, version: int = 9, **more: Any) -> list[Message]:
        """Join, in a second step with the assigned id if the broker requires one; stores id and generation."""
        self.send_join(version, **more)
        return self.joined()

    def send_join(self, version: int = 9, **more: Any) -> None:
        """Get an id if the version requires one, then send the JoinGroup that will wait."""
        if version >= 4 and self.ids == ["", ""] and self.instance is None:
            self.joined(self.call("JoinGroup", version, joining(self.group, **more)))
        self.send(
            "JoinGroup", version, lambda side: joining(self.group, self.ids[side], instance=self.instance, **more)
        )

    def joined(self, answers: list[Message] | None = None) -> list[Message]:
        """Store the id and generation of a JoinGroup response."""
        answers = self.answers() if answers is None else answers
        self.ids = [answer["MemberId"] for answer in answers]
        self.generation = answers[0]["GenerationId"]
        return answers

    def send_sync(self, version: int = 5, assignments: Mapping[Seat, bytes] | None = None, **more: Any) -> None:
        """Send a SyncGroup with assignments for members of this test."""
        self.send(
            "SyncGroup",
            version,
            lambda side: syncing(
                self.group,
                self.generation,
                self.ids[side],
                {member.ids[side]: assigned for member, assigned in (assignments or {}).items()},
                instance=self.instance,
                **more,
            ),
        )

    def sync(self, version: int = 5, assignments: Mapping[Seat, bytes] | None = None, **more: Any) -> list[Message]:
        """Send a SyncGroup and wait."""
        self.send_sync(version, assignments, **more)
        return self.answers()

    def beat(self, version: int = 4, *, generation: int | None = None) -> list[Message]:
        """Send a Heartbeat and wait."""
        reported = self.generation if generation is None else generation
        return self.call(
            "Heartbeat", version, lambda side: beating(self.group, reported, self.ids[side], instance=self.instance)
        )

    def leave(self, version: int = 5) -> list[Message]:
        """Leave the group."""
        return self.call("LeaveGroup", version, lambda side: leaving(self.group, (self.ids[side], self.instance)))

    def await_members(self, count: int) -> None:
        """Wait until both brokers have this many members in the group, so that requests on other connections have
        arrived.
        """
        for address in self.addresses:
            with connected(address) as connection:
                for _ in range(2000):
                    described = connection.call("DescribeGroups", 5, {"Groups": [self.group]})["Groups"][0]
                    if len(described["Members"]) == count:
                        break
                else:
                    raise AssertionError(f"not {count} members on {address}: {described}")

    def close(self) -> None:
        """Close both connections."""
        for connection in self.connections:
            connection.close()


def _known_random(value: object, name: str = "") -> object:
    """A decoded message without the random part of topic ids and member ids."""
    if name == "TopicId":
        return value if value == bytes(16) else b"id"
    if isinstance(value, dict):
        return {key: _known_random(inner, key) for key, inner in value.items()}
    if isinstance(value, list):
        return sorted((_known_random(inner) for inner in value), key=repr)
    return _RANDOM.sub("-id", value) if name in {"MemberId", "Leader"} and isinstance(value, str) else value


def alike(answers: list[Message]) -> Message:
    """Assert that the broker answered as Kafka did except for the random part of member ids; returns Kafka's answer."""
    found = differences(*(normal(_known_random(answer)) for answer in answers))
    assert not found, "\n".join(found)
    return answers[0]


def await_coordinator(address: str, group: str) -> None:
    """Wait until the group's coordinator is available: the first request creates the offsets topic."""
    with connected(address) as connection:
        for _ in range(2000):
            found = connection.call("FindCoordinator", 3, {"Key": group, "KeyType": 0})
            if found["ErrorCode"] == NONE:
                answer = connection.call("OffsetFetch", 7, fetching(group, {}))
                if answer["ErrorCode"] == NONE:
                    return
    raise AssertionError(f"{group} has no coordinator on {address}: {found}")


NewGroup = Callable[[str], str]
NewSeat = Callable[..., Seat]
