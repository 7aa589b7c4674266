"""Model clients of a consumer group. What they own, commit, delete and read is recorded for K10.

    Member      joins, commits an offset of each partition that it owns, reads the committed offsets, leaves and comes
                again
    Standalone  commits without being a member, as a consumer that assigns partitions to itself, and deletes offsets
    Watcher     reads the committed offsets while commits run

As in stock clients a member keeps its id and generation when the coordinator moves, and joins again only if the
coordinator demands it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import trio

from kbroker.testing.draws import Draws
from kbroker.testing.group_checker import NONE_COMMITTED, SESSION_MS
from kbroker.testing.history import Function, Type
from kbroker.testing.model_router import BACKOFF_MS, Router, Unreachable, pause
from kbroker.testing.recorder import History
from wire.errors import ErrorCode, code_of
from wire.messages.heartbeat import HeartbeatRequest
from wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from wire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestTopic
from wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment

REBALANCE_MS: Final = 3_000
JOIN_ANSWER_MS: Final = 12_000
WATCH_MS: Final = 20
_JOIN_VERSION, _SYNC_VERSION, _BEAT_VERSION, _LEAVE_VERSION, _COMMIT_VERSION, _FETCH_VERSION = 5, 3, 3, 3, 7, 7
_DELETE_VERSION, _RETENTION_VERSION = 0, 4
_RETENTION_MS: Final = 10 * 365 * 86_400_000
"""What standalone consumers ask for: without it, a broker that starts while its clock is far ahead expires their
offsets."""
REJOIN: Final = (ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.REBALANCE_IN_PROGRESS)
_REFUSED: Final = (
    *REJOIN, ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.NON_EMPTY_GROUP, ErrorCode.FENCED_MEMBER_EPOCH,
    ErrorCode.STALE_MEMBER_EPOCH,
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPlan:
    """What a group does: each member reads the committed offsets once in `commit_every_ms`, and commits.

    Shape  leaves: a member leaves and joins again now and then; commits_late: a member whose generation is over may
           commit in it once more; is_standalone: the clients are not members, and delete offsets now and then;
           watchers: how many clients only read; writes_to: the members read the topic and write to this one, with
           partitions 0 to `outputs` - 1, in transactions of `timeout_ms` that commit their offsets; is_consumer: the
           members speak the protocol of KIP-848
    """

    name: str
    members: int
    topic: str
    partitions: int
    commit_every_ms: int = 500
    leaves: bool = False
    commits_late: bool = False
    is_standalone: bool = False
    watchers: int = 0
    writes_to: str = ""
    outputs: int = 1
    timeout_ms: int = 10_000
    is_consumer: bool = False


class Offsets:
    """The next offset that a group commits: every commit of a run has another one, so a read shows which it was. Groups
    with transactions commit the offsets that they have read instead.

    Shape  changing is the number of commits and deletions in flight; `has_begun` is set when the next one begins
    """

    def __init__(self) -> None:
        self._last = 0
        self.changing = 0
        self.has_begun = trio.Event()

    def next(self) -> int:
        """An offset that was not used yet."""
        self._last += 1
        return self._last

    def begin(self) -> None:
        """A commit or a deletion begins."""
        self.changing += 1
        self.has_begun.set()
        self.has_begun = trio.Event()


class As(NamedTuple):
    """The generation and the id with which a client commits."""

    generation: int = -1
    member_id: str = ""


class GroupClient(ABC):
    """What the clients of a group have in common."""

    commit_version = _COMMIT_VERSION

    def __init__(
        self, router: Router, plan: GroupPlan, number: int, history: History, offsets: Offsets, *, seed: int
    ) -> None:
        self._router = router
        self._plan = plan
        self._name = f"{plan.name}-{number}"
        self._history = history
        self._offsets = offsets
        self._draws = Draws(seed, self._name)
        self._coordinator = -1
        self._before: tuple[As, list[int]] | None = None
        """The last generation that ended, and what this member owned in it and lost."""
        self._late = Draws(seed, self._name, "late")

    async def run(self, stopping: trio.Event) -> None:
        """Work until the run stops."""
        await pause(stopping, self._draws.below(self._plan.commit_every_ms + 1))
        while not stopping.is_set():
            try:
                await self._work()
                await self._rest(stopping)
            except Unreachable:
                self._coordinator = -1
                await pause(stopping, BACKOFF_MS)
        self._router.close()

    @abstractmethod
    async def _work(self) -> None:
        """Do one round. Errors: Unreachable."""

    async def _rest(self, stopping: trio.Event) -> None:
        await pause(stopping, self._plan.commit_every_ms)

    async def _ask(self, request: object, version: int, *, timeout_ms: int = JOIN_ANSWER_MS) -> Any:
        if self._coordinator < 0:
            self._coordinator = await self._router.coordinator(self._plan.name)
        answer = await self._router.ask(self._coordinator, request, version=version, timeout_ms=timeout_ms)
        self._check(code_of(getattr(answer, "error_code", 0)))
        return answer

    @staticmethod
    def _check(code: ErrorCode) -> None:
        if code is not ErrorCode.NONE and code not in _REFUSED and code is not ErrorCode.MEMBER_ID_REQUIRED:
            raise Unreachable(code.name)

    async def _commit(self, index: int, by: As) -> ErrorCode:
        """Commit the next offset of a partition. Returns the answer. Errors: Unreachable."""
        part = OffsetCommitRequestPartition(
            partition_index=index, committed_offset=self._offsets.next(), committed_metadata=None
        )
        topic = OffsetCommitRequestTopic(name=self._plan.topic, partitions=[part])
        request = OffsetCommitRequest(
            group_id=self._plan.name,
            generation_id_or_member_epoch=by.generation,
            member_id=by.member_id,
            retention_time_ms=_RETENTION_MS,
            topics=[topic],
        )
        version = _RETENTION_VERSION if self._plan.is_standalone else self.commit_version
        return await self._change(index, part.committed_offset, by.generation, request, version)

    async def _commit_late(self) -> None:
        """Perhaps commit as a thread that has not noticed the rebalance. Errors: Unreachable."""
        if self._plan.commits_late and self._before is not None and self._late.chance(0.5):
            by, lost = self._before
            self._before = None
            for index in lost[:1]:
                await self._commit(index, by)

    async def _change(self, index: int, offset: int, generation: int, request: object, version: int) -> ErrorCode:
        """Change the committed offset of a partition; NONE_COMMITTED is a deletion."""
        self._note(Function.COMMIT, Type.INVOKE, index, offset=offset, epoch=generation)
        self._offsets.begin()
        repeated = self._router.cluster.network.repeated
        before = repeated[self._name]
        outcome = Type.INFO  # also for codes that a coordinator may send after it has appended the record
        try:
            answer = await self._ask(request, version)
            code = code_of(getattr(answer, "error_code", 0) or answer.topics[0].partitions[0].error_code)
            if repeated[self._name] == before:  # else it may take effect once more, at any time
                outcome = Type.OK if code is ErrorCode.NONE else Type.FAIL if code in _REFUSED else Type.INFO
            self._check(code)
            return code
        finally:
            self._offsets.changing -= 1
            self._note(Function.COMMIT, outcome, index, offset=offset, epoch=generation)

    async def _read(self) -> dict[int, int]:
        """Read all committed offsets of the group's topic. Returns those that are stable. Errors: Unreachable."""
        indexes = range(self._plan.partitions)
        for index in indexes:
            self._note(Function.COMMITTED, Type.INVOKE, index)
        found: dict[int, int] = {}
        try:
            topic = OffsetFetchRequestTopic(name=self._plan.topic, partition_indexes=list(indexes))
            request = OffsetFetchRequest(group_id=self._plan.name, topics=[topic], require_stable=True)
            answer = await self._ask(request, _FETCH_VERSION)
            for part in answer.topics[0].partitions:
                if not part.error_code:
                    found[part.partition_index] = part.committed_offset
        finally:
            for index in indexes:
                kind = Type.OK if index in found else Type.FAIL
                self._note(Function.COMMITTED, kind, index, offset=found.get(index))
        return found

    def _note(self, function: Function, kind: Type, index: int, **fields: Any) -> None:
        self._history.note(self._name, function, kind, f"{self._plan.topic}-{index}", value=self._plan.name, **fields)


class Standalone(GroupClient):
    """A consumer that is no member: it reads, then commits or deletes one offset."""

    async def _work(self) -> None:
        await self._read()
        index = self._draws.below(self._plan.partitions)
        if self._draws.chance(0.5):
            await self._commit(index, As())
        else:
            await self._delete(index)

    async def _delete(self, index: int) -> None:
        part = OffsetDeleteRequestPartition(partition_index=index)
        topic = OffsetDeleteRequestTopic(name=self._plan.topic, partitions=[part])
        request = OffsetDeleteRequest(group_id=self._plan.name, topics=[topic])
        await self._change(index, NONE_COMMITTED, -1, request, _DELETE_VERSION)


class Watcher(GroupClient):
    """Reads the committed offsets when a commit begins, and again and again until it has ended."""

    async def _work(self) -> None:
        await self._read()

    async def _rest(self, stopping: trio.Event) -> None:
        if self._offsets.changing:
            await pause(stopping, WATCH_MS)
        else:
            await pause(self._offsets.has_begun, self._plan.commit_every_ms)


class Member(GroupClient):
    """One member of a group."""

    def __init__(
        self, router: Router, plan: GroupPlan, number: int, history: History, offsets: Offsets, *, seed: int
    ) -> None:
        super().__init__(router, plan, number, history, offsets, seed=seed)
        self._id = ""
        self._generation = -1
        self._owned: list[int] = []

    async def _work(self) -> None:
        await self._commit_late()
        if self._generation < 0:
            await self._join()
            return
        if self._plan.leaves and self._draws.chance(0.05):
            await self._leave()
            return
        beat = HeartbeatRequest(group_id=self._plan.name, generation_id=self._generation, member_id=self._id)
        if self._is_gone(code_of((await self._ask(beat, _BEAT_VERSION)).error_code)):
            return
        await self._serve()

    async def _serve(self) -> None:
        """Do what a member of a stable group does. Errors: Unreachable."""
        await self._read()
        for index in list(self._owned):
            if self._is_gone(await self._commit(index, As(self._generation, self._id))):
                return

    def _is_gone(self, code: ErrorCode) -> bool:
        if code in REJOIN:
            if self._generation >= 0:
                self._before = As(self._generation, self._id), self._owned
            self._generation, self._owned = -1, []
        if code is ErrorCode.UNKNOWN_MEMBER_ID:
            self._id = ""
        return code is not ErrorCode.NONE

    async def _join(self) -> None:
        self._generation, self._owned = -1, []
        joined = await self._ask(
            JoinGroupRequest(
                group_id=self._plan.name,
                session_timeout_ms=SESSION_MS,
                rebalance_timeout_ms=REBALANCE_MS,
                member_id=self._id,
                protocol_type="members",
                protocols=[JoinGroupRequestProtocol(name="in-turn", metadata=b"")],
            ),
            _JOIN_VERSION,
        )
        code = code_of(joined.error_code)
        if code is ErrorCode.MEMBER_ID_REQUIRED:
            self._id = joined.member_id
        if self._is_gone(code):
            return
        self._id = joined.member_id
        ids = sorted(member.member_id for member in joined.members)
        plan = [
            SyncGroupRequestAssignment(
                member_id=each, assignment=bytes(range(self._plan.partitions)[number :: len(ids)])
            )
            for number, each in enumerate(ids)
        ]
        synced = await self._ask(
            SyncGroupRequest(
                group_id=self._plan.name, generation_id=joined.generation_id, member_id=self._id, assignments=plan
            ),
            _SYNC_VERSION,
        )
        if self._is_gone(code_of(synced.error_code)):
            return
        self._generation, self._owned = joined.generation_id, list(synced.assignment)
        for index in self._owned:
            self._note(Function.OWN, Type.OK, index, epoch=self._generation)

    async def _leave(self) -> None:
        request = LeaveGroupRequest(group_id=self._plan.name, members=[MemberIdentity(member_id=self._id)])
        await self._ask(request, _LEAVE_VERSION)
        self._id, self._generation, self._owned = "", -1, []
