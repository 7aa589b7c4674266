"""A model member of a consumer group of KIP-848: it speaks ConsumerGroupHeartbeat.

The coordinator computes the assignment. A member drops at once what is not in it, and tells the coordinator by the
partitions that it lists in its next heartbeat; only then another member gets them. After a heartbeat without an answer
it sends everything again. It commits with its member epoch, which is the `epoch` of its lines.

Source  KIP-848; ConsumerMembershipManager of Apache Kafka 4.3.1
"""

from __future__ import annotations

from typing import Any, Final

from kbroker.testing.history import Function, Type
from kbroker.testing.model_group import As, GroupClient, GroupPlan, Offsets
from kbroker.testing.model_router import Router, Unreachable
from kbroker.testing.recorder import History
from wire.errors import ErrorCode, code_of
from wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest, TopicPartitions

_HEARTBEAT_VERSION: Final = 0
_REBALANCE_MS: Final = 3_000
_JOINS, _LEAVES = 0, -1
"""Member epochs of the first and of the last heartbeat."""
_FENCED: Final = (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH)


class Consumer(GroupClient):
    """One member of a consumer group."""

    commit_version = 9

    def __init__(
        self, router: Router, plan: GroupPlan, number: int, history: History, offsets: Offsets, *, seed: int
    ) -> None:
        super().__init__(router, plan, number, history, offsets, seed=seed)
        self._id = ""
        self._epoch = _JOINS
        self._owned: list[int] = []
        self._told: list[int] | None = None
        """The partitions that the coordinator knows this member to own; None: send everything."""

    async def _work(self) -> None:
        await self._commit_late()
        if not await self._beat():
            return
        if self._plan.leaves and self._draws.chance(0.05):
            await self._leave()
            return
        await self._read()
        for index in list(self._owned):
            code = await self._commit(index, As(self._epoch, self._id))
            if code in _FENCED:
                self._forget(code)
            if code is not ErrorCode.NONE:
                return

    async def _beat(self) -> bool:
        """Send a heartbeat. Returns whether this is a member. Errors: Unreachable."""
        says_all, owned = self._told is None or self._epoch == _JOINS, list(self._owned)
        self._told, known = None, self._told
        answer = await self._heartbeat(
            self._epoch,
            subscribed_topic_names=[self._plan.topic] if says_all else None,
            rebalance_timeout_ms=_REBALANCE_MS if says_all else -1,
            topic_partitions=self._listed(owned) if says_all or known != owned else None,
        )
        code = code_of(answer.error_code)
        if code is not ErrorCode.NONE:
            if code not in _FENCED:
                raise Unreachable(code.name)
            self._forget(code)
            return False
        self._told = owned
        has_changed = answer.assignment is not None or answer.member_epoch != self._epoch
        by = As(self._epoch, self._id)
        self._id, self._epoch = answer.member_id or self._id, answer.member_epoch
        if answer.assignment is not None:
            self._owned = [index for topic in answer.assignment.topic_partitions for index in topic.partitions]
            if lost := [index for index in owned if index not in self._owned]:
                self._before = by, lost
        for index in self._owned if has_changed else ():
            self._note(Function.OWN, Type.OK, index, epoch=self._epoch)
        return True

    async def _heartbeat(self, epoch: int, **more: Any) -> Any:
        request = ConsumerGroupHeartbeatRequest(
            group_id=self._plan.name, member_id=self._id, member_epoch=epoch, **more
        )
        return await self._ask(request, _HEARTBEAT_VERSION)

    def _listed(self, owned: list[int]) -> list[TopicPartitions]:
        topic = self._router.cluster.image.topics_by_name[self._plan.topic]
        return [TopicPartitions(topic_id=topic.id, partitions=owned)] if owned else []

    def _forget(self, code: ErrorCode) -> None:
        """Join again with nothing: the coordinator has given its partitions to others."""
        if self._owned:
            self._before = As(self._epoch, self._id), self._owned
        self._epoch, self._owned, self._told = _JOINS, [], None
        if code is ErrorCode.UNKNOWN_MEMBER_ID:
            self._id = ""

    async def _leave(self) -> None:
        try:
            await self._heartbeat(_LEAVES)
        finally:
            self._forget(ErrorCode.UNKNOWN_MEMBER_ID)
