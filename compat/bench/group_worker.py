"""The clients of the consumer group benchmarks: members as bare connections, each with one request in flight."""

from __future__ import annotations

import itertools
import selectors
import socket
import statistics
import struct
import time
from collections.abc import Sequence
from functools import partial

from compat.oracle.groups import joining, subscription
from compat.oracle.raw import RawConnection, Reply
from compat.oracle.schema import Message, decode_response, encode_request
from compat.waiting import MEASURE_S, until

# Versions that every broker serves and most clients send.
FIND, JOIN, SYNC, COMMIT, FETCH = 2, 5, 3, 7, 5
NOT_YET = (14, 15, 16)
ASSIGNMENT = bytes(100)


def await_coordinator(servers: str, group: str) -> None:
    """Wait until the group has a coordinator that answers."""
    connection = RawConnection(servers, timeout_s=60)

    def answers() -> bool:
        found = connection.call("FindCoordinator", FIND, {"Key": group, "KeyType": 0})
        if found["ErrorCode"] != 0:
            return False
        answer = connection.call("OffsetFetch", FETCH, {"GroupId": group, "Topics": None})
        return int(answer["ErrorCode"]) == 0

    until(answers, patience_s=MEASURE_S / 2)
    connection.close()


class Members:
    """The members of one group, each with its own connection, which all act at the same time."""

    def __init__(self, servers: str, group: str, count: int) -> None:
        await_coordinator(servers, group)
        self.group = group
        self.ids = [""] * count
        self.generation = -1
        self.leader = ""
        self._changes = itertools.count()
        self._connections = [RawConnection(servers, timeout_s=60) for _ in range(count)]
        # The first generation of a group has the members that joined within a delay: start with one, to be
        # deterministic.
        first = self._connections[0]
        self.ids[0] = first.call("JoinGroup", JOIN, self._join(""))["MemberId"]
        assert first.call("JoinGroup", JOIN, self._join(self.ids[0]))["ErrorCode"] == 0
        for number, connection in enumerate(self._connections[1:], start=1):
            self.ids[number] = connection.call("JoinGroup", JOIN, self._join(""))["MemberId"]

    def _all(self, api: str, version: int, requests: Sequence[Message]) -> list[Message]:
        frames = [encode_request(api, version, request) for request in requests]
        for connection, frame in zip(self._connections, frames, strict=True):
            connection.send(frame)
        answers = []
        for connection in self._connections:
            got = connection.answer()
            assert isinstance(got, Reply), got
            answers.append(decode_response(api, version, got.payload))
        return answers

    def rebalance(self) -> None:
        """All members join and get an assignment from the leader."""
        joined = self._all("JoinGroup", JOIN, [self._join(member_id) for member_id in self.ids])
        assert {answer["ErrorCode"] for answer in joined} == {0}, joined
        generations = {answer["GenerationId"] for answer in joined}
        assert len(generations) == 1, generations
        self.generation = generations.pop()
        self.leader = joined[0]["Leader"]
        given = [{"MemberId": member_id, "Assignment": ASSIGNMENT} for member_id in self.ids]
        synced = self._all("SyncGroup", SYNC, [self._sync(member_id, given) for member_id in self.ids])
        assert all(answer["ErrorCode"] == 0 and answer["Assignment"] == ASSIGNMENT for answer in synced), synced

    def _join(self, member_id: str) -> Message:
        # A member's metadata changes each time, because only then does a stable group rebalance for it.
        reported = subscription("bench", user_data=str(next(self._changes)).encode())
        return joining(self.group, member_id, protocols=(("range", reported),), session_ms=30_000, rebalance_ms=30_000)

    def _sync(self, member_id: str, given: list[Message]) -> Message:
        assignments = given if member_id == self.leader else []
        return {
            "GroupId": self.group,
            "GenerationId": self.generation,
            "MemberId": member_id,
            "Assignments": assignments,
        }

    def commits(self, topic: str, offset: int) -> list[bytes]:
        """A frame for each member that commits one partition."""
        return [
            encode_request(
                "OffsetCommit",
                COMMIT,
                commit(self.group, topic, [number], offset, generation=self.generation, member_id=member_id),
            )
            for number, member_id in enumerate(self.ids)
        ]

    @property
    def sockets(self) -> list[socket.socket]:
        """The connections' sockets, in the order of the members."""
        return [connection.socket for connection in self._connections]

    def close(self) -> None:
        """Close all connections."""
        for connection in self._connections:
            connection.close()


def commit(
    group: str, topic: str, partitions: Sequence[int], offset: int, *, generation: int = -1, member_id: str = ""
) -> Message:
    """An OffsetCommit request; by default without a member."""
    parts = [
        {
            "PartitionIndex": number,
            "CommittedOffset": offset,
            "CommittedLeaderEpoch": -1,
            "CommittedMetadata": "",
        }
        for number in partitions
    ]
    return {
        "GroupId": group,
        "GenerationIdOrMemberEpoch": generation,
        "MemberId": member_id,
        "GroupInstanceId": None,
        "Topics": [{"Name": topic, "Partitions": parts}],
    }


def rebalance(servers: str, topic: str, *, members: int, count: int) -> dict[str, float]:
    """Make a stable group rebalance `count` times: from the first JoinGroup to the last answer to a SyncGroup."""
    group = Members(servers, f"rebalance-{topic}-{time.time_ns()}", members)
    group.rebalance()
    times = []
    for _ in range(count):
        before = group.generation
        began = time.perf_counter()
        group.rebalance()
        times.append(time.perf_counter() - began)
        assert group.generation == before + 1
    group.close()
    return {"ms": statistics.median(times) * 1000}


def commits(servers: str, topic: str, *, members: int, count: int) -> dict[str, float]:
    """Commit `count` offsets with all members of one group, each with one commit in flight."""
    group = Members(servers, f"commits-{topic}-{time.time_ns()}", members)
    group.rebalance()
    frames = [group.commits(topic, offset) for offset in range(10)]
    selector = selectors.DefaultSelector()
    for number, one in enumerate(group.sockets):
        selector.register(one, selectors.EVENT_READ, number)
    places = [itertools.cycle(range(10)) for _ in group.sockets]
    sent = received = 0
    began = time.perf_counter()
    for number, one in enumerate(group.sockets):
        one.sendall(frames[next(places[number])][number])
        sent += 1
    while received < count:
        for key, _ in selector.select():
            reply = key.fileobj.recv(65536)  # type: ignore[union-attr]
            assert len(reply) == 4 + struct.unpack_from(">i", reply)[0], "one small reply is one packet"
            received += 1
            if sent < count:
                key.fileobj.sendall(frames[next(places[key.data])][key.data])  # type: ignore[union-attr]
                sent += 1
    took = time.perf_counter() - began
    answer = decode_response("OffsetCommit", COMMIT, reply[4:])
    assert answer["Topics"][0]["Partitions"][0]["ErrorCode"] == 0, answer
    group.close()
    return {"per_s": count / took}


def fill_groups(servers: str, topic: str, *, groups: int, partitions: int, rounds: int) -> dict[str, float]:
    """Commit offsets of all partitions in `groups` groups, `rounds` times."""
    await_coordinator(servers, "groups-0")
    connection = RawConnection(servers, timeout_s=60)
    for number, group in itertools.product(range(rounds), range(groups)):
        request = commit(f"groups-{group}", topic, range(partitions), number)
        until(partial(_is_committed, connection, request), patience_s=MEASURE_S / 2)
    connection.close()
    return {}


def _is_committed(connection: RawConnection, request: Message) -> bool:
    answer = connection.call("OffsetCommit", COMMIT, request)
    codes = {part["ErrorCode"] for part in answer["Topics"][0]["Partitions"]}
    assert codes == {0} or codes <= set(NOT_YET), codes
    return codes == {0}


def groups_answer(servers: str, topic: str, *, groups: int, partitions: int, offset: int) -> bool:
    """Whether every group has the last committed offsets; False while its coordinator is not available."""
    connection = RawConnection(servers, timeout_s=60)
    try:
        for group in range(groups):
            asked = [{"Name": topic, "PartitionIndexes": list(range(partitions))}]
            answer = connection.call("OffsetFetch", FETCH, {"GroupId": f"groups-{group}", "Topics": asked})
            if answer["ErrorCode"] in NOT_YET:
                return False
            found = {part["CommittedOffset"] for part in answer["Topics"][0]["Partitions"]}
            assert found == {offset}, found
    finally:
        connection.close()
    return True
