"""Members of one group that speak the protocol themselves, follow the group's coordinator over brokers, and record
what they own and commit for K10.

As in stock clients a member keeps its id and generation when the coordinator changes, and joins again only if the
coordinator demands it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Final

from compat.background import Background
from compat.cluster.nodes import ProcessCluster
from compat.oracle.groups import (
    ILLEGAL_GENERATION,
    LOADING,
    MEMBER_ID_REQUIRED,
    NONE,
    NOT_AVAILABLE,
    NOT_COORDINATOR,
    REBALANCING,
    UNKNOWN_MEMBER,
    beating,
    committing,
    fetching,
    joining,
    offsets_of,
    syncing,
)
from compat.oracle.raw import RawConnection
from compat.torture.load import Recorder
from kbroker.testing.history import Function, Type

GROUP, TOPIC, PARTITIONS = "members", "orders", 4
SESSION_MS: Final = 6_000
ANSWER_S: Final = 8.0
"""Longer than a session. A coordinator of Apache Kafka 4.3.1 registers for changes of the high watermark after it has
loaded the group. If it misses the last change, it answers no heartbeat until the next record is written, for example
because a session ends; but each heartbeat that a member repeats would extend the session.
"""
PAUSE_S: Final = 0.02
_REJOIN: Final = {ILLEGAL_GENERATION, UNKNOWN_MEMBER, REBALANCING}


class Refused(Exception):
    """The coordinator is not there, is loading, or has moved: NOT_AVAILABLE, LOADING, NOT_COORDINATOR."""


class Client(Background):
    """A thread that works on one connection to the coordinator, and looks for it again whenever that fails.

    Shape  phase is the API whose answer it waits for; failures counts, for each API, the requests that got no answer or
           one of the codes of Refused; codes counts the error codes of all answers; rounds counts completed rounds
    """

    def __init__(self, name: str, cluster: ProcessCluster, recorder: Recorder, *, group: str = GROUP) -> None:
        super().__init__(self._run)
        self.name, self.cluster, self.recorder, self.group = name, cluster, recorder, group
        self.phase = ""
        self.rounds = 0
        self.failures: Counter[str] = Counter()
        self.codes: Counter[int] = Counter()

    def _run(self) -> None:
        while not self.over.is_set():
            try:
                connection = RawConnection(coordinator(self.cluster, self.group), timeout_s=ANSWER_S)
                try:
                    while not self.over.wait(PAUSE_S):
                        self.work(connection)
                        self.rounds += 1
                finally:
                    connection.close()
            except (OSError, AssertionError, Refused):
                self.over.wait(PAUSE_S)

    def work(self, connection: RawConnection) -> None:
        """One round. Errors: Refused, OSError, AssertionError: another connection is needed."""
        raise NotImplementedError

    def ask(self, connection: RawConnection, api: str, version: int, message: Mapping[str, Any]) -> Any:
        """Send a request and wait for its answer; counts the error code at its top."""
        self.phase = api
        try:
            answer = connection.call(api, version, dict(message))
        except (OSError, AssertionError):
            self.failures[api] += 1
            raise
        finally:
            self.phase = ""
        self.check(api, answer.get("ErrorCode", NONE))
        return answer

    def check(self, api: str, code: int) -> None:
        """Count a code in the answer to a request. Errors: Refused."""
        self.codes[code] += 1
        if code in (LOADING, NOT_AVAILABLE, NOT_COORDINATOR):
            self.failures[api] += 1
            raise Refused(code)

    def note(self, function: Function, kind: Type, partition: int, **fields: Any) -> None:
        self.recorder.note(self.name, function, kind, f"{TOPIC}-{partition}", value=self.group, **fields)


def coordinator(cluster: ProcessCluster, group: str = GROUP) -> str:
    """The address of a group's coordinator, by the first broker that knows it. Errors: OSError."""
    for node in cluster.brokers.values():
        try:
            connection = RawConnection(node.address, timeout_s=1)
        except OSError:
            continue
        try:
            found = connection.call("FindCoordinator", 3, {"Key": group, "KeyType": 0})
        except AssertionError:
            continue
        finally:
            connection.close()
        if found["ErrorCode"] == NONE:
            return f"{found['Host']}:{found['Port']}"
    raise OSError("no coordinator")


class Member(Client):
    """Joins, commits an offset of each of its partitions in each round, and joins again if `rejoins` is set."""

    def __init__(self, name: str, cluster: ProcessCluster, recorder: Recorder, offsets: Callable[[], int]) -> None:
        super().__init__(name, cluster, recorder)
        self.member_id, self.generation = "", -1
        self.owned: list[int] = []
        self.rejoins = False
        self._next_offset = offsets

    def work(self, connection: RawConnection) -> None:
        if self.generation < 0 or self.rejoins:
            self.rejoins = False
            self._join(connection)
            return
        beat = self.ask(connection, "Heartbeat", 4, beating(GROUP, self.generation, self.member_id))
        if self._is_gone(beat["ErrorCode"]):
            return
        for partition in self.owned:
            self._commit(connection, partition)

    def _is_gone(self, code: int) -> bool:
        if code == UNKNOWN_MEMBER:
            self.member_id = ""
        if code in _REJOIN:
            self.generation, self.owned = -1, []
        return code != NONE

    def _join(self, connection: RawConnection) -> None:
        self.generation, self.owned = -1, []
        joined = self.ask(
            connection, "JoinGroup", 5, joining(GROUP, self.member_id, session_ms=SESSION_MS, rebalance_ms=3_000)
        )
        if joined["ErrorCode"] == MEMBER_ID_REQUIRED:
            self.member_id = joined["MemberId"]
        if self._is_gone(joined["ErrorCode"]):
            return
        self.member_id = joined["MemberId"]
        members = sorted(each["MemberId"] for each in joined["Members"])
        plan = {each: bytes(range(PARTITIONS)[index :: len(members)]) for index, each in enumerate(members)}
        synced = self.ask(connection, "SyncGroup", 3, syncing(GROUP, joined["GenerationId"], self.member_id, plan))
        if self._is_gone(synced["ErrorCode"]):
            return
        self.generation, self.owned = joined["GenerationId"], list(synced["Assignment"])
        for partition in self.owned:
            self.note(Function.OWN, Type.OK, partition, epoch=self.generation)

    def _commit(self, connection: RawConnection, partition: int) -> None:
        offset, generation = self._next_offset(), self.generation
        self.note(Function.COMMIT, Type.INVOKE, partition, offset=offset, epoch=generation)
        outcome = Type.INFO  # also for codes that a coordinator may send after it has appended the commit
        try:
            message = committing(
                GROUP, {TOPIC: [(partition, offset, None)]}, generation=generation, member_id=self.member_id
            )
            answer = self.ask(connection, "OffsetCommit", 7, message)
            code = answer["Topics"][0]["Partitions"][0]["ErrorCode"]
            outcome = Type.OK if code == NONE else Type.FAIL if code in _REJOIN else Type.INFO
            self.check("OffsetCommit", code)
            self._is_gone(code)
        finally:
            self.note(Function.COMMIT, outcome, partition, offset=offset, epoch=generation)


class Reader(Client):
    """Reads all committed offsets in each round.

    Source  GroupCoordinatorService.fetchOffsets and CoordinatorLoaderImpl of Apache Kafka 4.3.1: without RequireStable
            its coordinator shows what its own high watermark covers. A new leader learns the high watermark from its
            followers, so such a read may miss acknowledged commits for about a second. With RequireStable it waits, as
            kbroker always does.
    """

    def __init__(
        self, name: str, cluster: ProcessCluster, recorder: Recorder, *, stable: bool, group: str = GROUP
    ) -> None:
        super().__init__(name, cluster, recorder, group=group)
        self._stable = stable

    def work(self, connection: RawConnection) -> None:
        for partition in range(PARTITIONS):
            self.note(Function.COMMITTED, Type.INVOKE, partition)
            offset = None
            try:
                asked = fetching(self.group, {TOPIC: [partition]}, stable=self._stable)
                answer = self.ask(connection, "OffsetFetch", 7, asked)
                offset = offsets_of(answer)[partition][0]
            finally:
                self.note(Function.COMMITTED, Type.FAIL if offset is None else Type.OK, partition, offset=offset)
