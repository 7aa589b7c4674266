"""Model members of a consumer group: they join, commit an offset of each partition that they own, read the committed
offsets, leave and come again. What they own, commit and read is recorded for K10.

As in stock clients a member keeps its id and generation when the coordinator moves, and joins again only if the
coordinator demands it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import trio

from kbroker.testing.draws import Draws
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
from wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestTopic
from wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment

SESSION_MS: Final = 6_000
REBALANCE_MS: Final = 3_000
JOIN_ANSWER_MS: Final = 12_000
_JOIN_VERSION, _SYNC_VERSION, _BEAT_VERSION, _LEAVE_VERSION, _COMMIT_VERSION, _FETCH_VERSION = 5, 3, 3, 3, 7, 7
_REJOIN: Final = (ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.REBALANCE_IN_PROGRESS)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPlan:
    """What a group does: each member reads the committed offsets once in `commit_every_ms`, and commits.

    Shape  leaves: a member leaves and joins again now and then
    """

    name: str
    members: int
    topic: str
    partitions: int
    commit_every_ms: int = 500
    leaves: bool = False


class Offsets:
    """The next offset that a group commits: every commit of a run has another one, so a read shows which it was."""

    def __init__(self) -> None:
        self._last = 0

    def next(self) -> int:
        """An offset that was not used yet."""
        self._last += 1
        return self._last


class Member:
    """One member of a group."""

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
        self._id = ""
        self._generation = -1
        self._owned: list[int] = []

    async def run(self, stopping: trio.Event) -> None:
        """Work until the run stops."""
        await pause(stopping, self._draws.below(self._plan.commit_every_ms + 1))
        while not stopping.is_set():
            try:
                await self._work()
                await pause(stopping, self._plan.commit_every_ms)
            except Unreachable:
                self._coordinator = -1
                await pause(stopping, BACKOFF_MS)
        self._router.close()

    async def _work(self) -> None:
        if self._generation < 0:
            await self._join()
            return
        if self._plan.leaves and self._draws.chance(0.05):
            await self._leave()
            return
        beat = HeartbeatRequest(group_id=self._plan.name, generation_id=self._generation, member_id=self._id)
        if self._is_gone(code_of((await self._ask(beat, _BEAT_VERSION)).error_code)):
            return
        await self._read()
        for index in list(self._owned):
            await self._commit(index)

    async def _ask(self, request: object, version: int, *, timeout_ms: int = JOIN_ANSWER_MS) -> Any:
        if self._coordinator < 0:
            self._coordinator = await self._router.coordinator(self._plan.name)
        answer = await self._router.ask(self._coordinator, request, version=version, timeout_ms=timeout_ms)
        self._check(code_of(getattr(answer, "error_code", 0)))
        return answer

    @staticmethod
    def _check(code: ErrorCode) -> None:
        if code is not ErrorCode.NONE and code not in _REJOIN and code is not ErrorCode.MEMBER_ID_REQUIRED:
            raise Unreachable(code.name)

    def _is_gone(self, code: ErrorCode) -> bool:
        if code is ErrorCode.UNKNOWN_MEMBER_ID:
            self._id = ""
        if code in _REJOIN:
            self._generation, self._owned = -1, []
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

    async def _commit(self, index: int) -> None:
        offset, generation = self._offsets.next(), self._generation
        part = OffsetCommitRequestPartition(partition_index=index, committed_offset=offset, committed_metadata=None)
        topic = OffsetCommitRequestTopic(name=self._plan.topic, partitions=[part])
        request = OffsetCommitRequest(
            group_id=self._plan.name, generation_id_or_member_epoch=generation, member_id=self._id, topics=[topic]
        )
        self._note(Function.COMMIT, Type.INVOKE, index, offset=offset, epoch=generation)
        outcome = Type.INFO  # also for codes that a coordinator may send after it has appended the commit
        try:
            answer = await self._ask(request, _COMMIT_VERSION)
            code = code_of(answer.topics[0].partitions[0].error_code)
            outcome = Type.OK if code is ErrorCode.NONE else Type.FAIL if code in _REJOIN else Type.INFO
            self._check(code)
            self._is_gone(code)
        finally:
            self._note(Function.COMMIT, outcome, index, offset=offset, epoch=generation)

    async def _read(self) -> None:
        """Read all committed offsets of the group's topic."""
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

    def _note(self, function: Function, kind: Type, index: int, **fields: Any) -> None:
        self._history.note(self._name, function, kind, f"{self._plan.topic}-{index}", value=self._plan.name, **fields)
