"""Group members that behave like clients and record what they observe, for the group checker (K10).

A member takes one step at a time: join, wait, sync, heartbeat, rejoin when the coordinator asks for it. Between its
steps it may commit, leave, crash, or be replaced by another process with its static id while it is still running. The
coordinator may stop cleanly or crash: between two decisions, or after a record is in its log and before the response is
sent.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from kbroker.coordinator.caller import Caller
from kbroker.coordinator.common.ports import Parked
from kbroker.coordinator.group import Group, GroupState
from kbroker.coordinator.shard import GroupOutcome, GroupShard
from kbroker.testing.history import Event, Function, Type
from tests.coordinator.world import GROUP, World, subscription
from wire.errors import ErrorCode
from wire.messages.heartbeat import HeartbeatRequest
from wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from wire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment, SyncGroupResponse

PARTITIONS = 4
LOST = {ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID}


class CoordinatorDied(Exception):
    """The coordinator crashed; the request may or may not have taken effect."""


class RecordingWorld(World):
    """A world whose coordinator can crash. It records the history that its clients observe."""

    def __init__(self, **settings: Any) -> None:
        self.dies_in_append = False
        self.events: list[Event] = []
        super().__init__(**settings)

    def append(self, outcome: GroupOutcome) -> Any:
        if self.dies_in_append and outcome.records:
            self.dies_in_append = False
            self.store(outcome)
            raise CoordinatorDied
        return super().append(outcome)

    def die(self) -> None:
        """Crash the coordinator without any answers; another one loads the log."""
        self.dies_in_append = False
        self.load()

    def note(self, process: str, function: Function, kind: Type, partition: int, **more: Any) -> None:
        self.events.append(
            Event(
                at_ms=self.now_ms,
                process=process,
                function=function,
                type=kind,
                key=f"orders-{partition}",
                value=GROUP,
                **more,
            )
        )

    def read(self, process: str, partition: int) -> None:
        """Read a committed offset, as an administrator does."""
        self.note(process, Function.COMMITTED, Type.INVOKE, partition)
        self.note(process, Function.COMMITTED, Type.OK, partition, offset=self.committed(partition=partition))

    def check(self) -> None:
        """Check the invariants of all groups between decisions."""
        for group_id in self.shard.group_ids():
            group = self.shard.group(group_id)
            assert group is not None
            check_group(group, self.shard)


def check_group(group: Group, shard: GroupShard) -> None:
    """The counters agree with the members, and every waiting phase has a timer."""
    members = group.members.values()
    assert group.awaiting_join_count == sum(member.awaiting_join is not None for member in members)
    names = {name for member in members for name in member.protocols}
    assert dict(group.supported) == {name: sum(name in member.protocols for member in members) for name in names}
    assert group.static_members == {
        member.group_instance_id: member.member_id for member in members if member.group_instance_id is not None
    }
    assert (group.leader_id in group.members) if group.members else group.leader_id is None
    assert group.pending_sync <= set(group.members)
    assert all(member.session.deadline_ms is not None or member.has_satisfied_heartbeat() for member in members)
    if group.state is GroupState.PREPARING_REBALANCE:
        assert group.join.deadline_ms is not None, "no timer ends PreparingRebalance"
    elif group.state is GroupState.COMPLETING_REBALANCE:
        assert group.sync.deadline_ms is not None, "no timer ends CompletingRebalance"
    elif group.state is GroupState.EMPTY:
        assert not members
    if group.state in (GroupState.STABLE, GroupState.EMPTY):
        assert not any(member.awaiting_join or member.awaiting_sync for member in members)
    assert shard.next_deadline_ms() is not None


@dataclass
class Client:
    """One process that is or wants to be a member.

    Shape   joined is the generation that it knows; owned its partitions in that generation, None until it has synced;
            is_busy while it processes records: it then sends heartbeats but ignores rebalances
    """

    world: RecordingWorld
    name: str
    instance_id: str | None = None
    member_id: str = ""
    waiting: Parked | None = None
    joined: JoinGroupResponse | None = None
    owned: list[int] | None = None
    is_fenced: bool = False
    is_busy: bool = False
    positions: dict[int, int] = field(default_factory=dict)

    def step(self) -> None:
        """Take the next step."""
        if self.is_fenced:
            return
        try:
            if self.waiting is not None:
                self._look_for_answer()
            elif self.joined is None:
                self._join()
            elif self.owned is None:
                self._sync()
            else:
                self._heartbeat()
        except CoordinatorDied:
            self.world.die()
            self.disconnected()

    def disconnected(self) -> None:
        """Its coordinator is gone: send the waiting request again to the next one."""
        if self.waiting is not None and self.waiting not in self.world.answers:
            self.waiting = None
            if self.joined is not None and self.owned is None:
                self.joined = None

    def _request(self, request: Any) -> Any:
        return self.world.decide(request, Caller(self.name, "/127.0.0.1", 9))

    def _join(self) -> None:
        request = JoinGroupRequest(
            group_id=GROUP,
            session_timeout_ms=10_000,
            rebalance_timeout_ms=6_000,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range", metadata=subscription("orders"))],
        )
        self._take(self._request(request))

    def _sync(self) -> None:
        assert self.joined is not None
        members = sorted(member.member_id for member in self.joined.members)
        parts: dict[str, list[int]] = {member_id: [] for member_id in members}
        for partition in range(PARTITIONS) if members and not self.joined.skip_assignment else ():
            parts[members[partition % len(members)]].append(partition)
        self._take(
            self._request(
                SyncGroupRequest(
                    group_id=GROUP,
                    generation_id=self.joined.generation_id,
                    member_id=self.member_id,
                    group_instance_id=self.instance_id,
                    assignments=[
                        SyncGroupRequestAssignment(member_id=member_id, assignment=bytes(owned))
                        for member_id, owned in parts.items()
                    ],
                )
            )
        )

    def _heartbeat(self) -> None:
        assert self.joined is not None
        response = self._request(
            HeartbeatRequest(
                group_id=GROUP,
                generation_id=self.joined.generation_id,
                member_id=self.member_id,
                group_instance_id=self.instance_id,
            )
        )
        if not (self.is_busy and response.error_code == ErrorCode.REBALANCE_IN_PROGRESS):
            self._fault(ErrorCode(response.error_code))

    def _look_for_answer(self) -> None:
        assert self.waiting is not None
        answer = self.world.answers.get(self.waiting)
        if answer is not None:
            self.waiting = None
            self._take(answer)

    def _take(self, answer: Any) -> None:
        if isinstance(answer, Parked):
            self.waiting = answer
        elif answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = answer.member_id
        elif answer.error_code != ErrorCode.NONE:
            self._fault(ErrorCode(answer.error_code))
        elif isinstance(answer, JoinGroupResponse):
            self.joined, self.owned, self.member_id = answer, None, answer.member_id
        else:
            self._own(answer)

    def _own(self, answer: SyncGroupResponse) -> None:
        assert self.joined is not None
        self.owned = list(answer.assignment)
        owner = self.name if self.instance_id is None else self.instance_id
        for partition in self.owned:
            self.world.note(owner, Function.OWN, Type.OK, partition, epoch=self.joined.generation_id)
            self.positions[partition] = max(self.world.committed(partition=partition), 0)

    def _fault(self, code: ErrorCode) -> None:
        if code == ErrorCode.NONE:
            return
        if code == ErrorCode.FENCED_INSTANCE_ID:
            self.is_fenced = True
        if code in LOST:
            self.member_id = ""
        self.joined = self.owned = None

    def commit(self, partition: int, *, gets_answer: bool = True) -> None:
        """Commit the next offset of a partition that it owns or has owned, as a slow client does."""
        if self.joined is None or self.waiting is not None or partition not in self.positions:
            return
        offset = self.positions[partition] + 1
        self.positions[partition] = offset
        epoch = self.joined.generation_id
        self.world.note(self.name, Function.COMMIT, Type.INVOKE, partition, offset=offset, epoch=epoch)
        try:
            code = self.world.commit(offset, joined=self.joined, partition=partition, instance_id=self.instance_id)
        except CoordinatorDied:
            self.world.note(self.name, Function.COMMIT, Type.INFO, partition, offset=offset, epoch=epoch)
            self.world.die()
            return
        kind = Type.OK if code == ErrorCode.NONE else Type.FAIL
        if kind is Type.OK and not gets_answer:
            kind = Type.INFO
        self.world.note(self.name, Function.COMMIT, kind, partition, offset=offset, epoch=epoch)
        self._fault(code)

    def rejoin(self) -> None:
        """Ask for a rebalance, as a leader does when its topics have changed."""
        if self.waiting is None and not self.is_fenced:
            self.joined = self.owned = None

    def leave(self) -> None:
        """Leave the group cleanly; a waiting client cannot."""
        if self.joined is None or self.waiting is not None:
            return
        try:
            self._request(LeaveGroupRequest(group_id=GROUP, members=[MemberIdentity(member_id=self.member_id)]))
        except CoordinatorDied:
            self.world.die()
        self.member_id = ""
        self.joined = self.owned = None


def settle(world: RecordingWorld, clients: Iterable[Client]) -> int:
    """Run the clients until all of them are in one stable generation. Returns the number of one-second rounds.

    A fenced client ends its process and is started again.
    """
    alive = list(clients)
    for count in range(200):
        for client in alive:
            client.is_fenced = client.is_busy = False
            client.step()
            world.check()
        group = world.shard.group(GROUP)
        if group is not None and group.state is GroupState.STABLE and len(group.members) == len(alive):
            generations = {client.joined.generation_id if client.joined else -1 for client in alive}
            if generations == {group.generation_id} and all(client.owned is not None for client in alive):
                return count
        world.advance(1_000)
    raise AssertionError(f"{world.shard.group(GROUP)} does not settle: {alive}")
