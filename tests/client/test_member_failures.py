"""A member of a group whose coordinator moves, falls silent or answers while the member does something else."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from threading import Event
from typing import Any

from kbroker.client.membership import Member
from tests.client.peers import Peers
from wire.messages.find_coordinator import FindCoordinatorResponse
from wire.messages.heartbeat import HeartbeatResponse
from wire.messages.join_group import JoinGroupResponse, JoinGroupResponseMember
from wire.messages.leave_group import LeaveGroupResponse
from wire.messages.sync_group import SyncGroupResponse
from wire.stored.consumer_protocol import ConsumerProtocolAssignment, ConsumerProtocolSubscription
from wire.stored.frame import decode_value, encode_value

FIND_COORDINATOR, JOIN, HEARTBEAT, LEAVE, SYNC = 10, 11, 12, 13, 14
SERVED = {FIND_COORDINATOR: 2, JOIN: 5, HEARTBEAT: 3, LEAVE: 2, SYNC: 3}
JOINED = JoinGroupResponse(
    error_code=0, generation_id=1, protocol_name="range", leader="another", member_id="m", members=[]
)
SYNCED = SyncGroupResponse(error_code=0, assignment=b"")
WAIT_S = 20


class Group:
    """The coordinator of the group is the broker `coordinator`."""

    def __init__(self) -> None:
        self.coordinator = 1
        self._peers = Peers(SERVED)

    def find(self, _request: object) -> FindCoordinatorResponse:
        node_id, host, port = self._peers.places()[self.coordinator - 1]
        return FindCoordinatorResponse(error_code=0, node_id=node_id, host=host, port=port)

    @contextmanager
    def member(self, *answers: Mapping[int, object], **settings: Any) -> Iterator[Member]:
        common = {FIND_COORDINATOR: self.find, SYNC: SYNCED, LEAVE: LeaveGroupResponse(error_code=0)}
        with self._peers.serve(*({**common, **each} for each in answers)) as addresses:
            wanted = {"bootstrap_servers": addresses, "retry_backoff_ms": 0, "heartbeat_interval_ms": 5, **settings}
            with closing(Member(wanted, "g", ["t"])) as member:
                yield member


def poll_until(member: Member, is_over: Callable[[], bool]) -> None:
    for _ in range(1_000):
        if is_over():
            return
        member.poll(timeout_ms=10)
    raise AssertionError("the member does not get so far")


def test_heartbeats_go_to_the_new_coordinator() -> None:
    group, arrived = Group(), Event()

    def dies(_request: object) -> None:
        group.coordinator = 2
        raise OSError  # closes the connection

    def beats(_request: object) -> HeartbeatResponse:
        arrived.set()
        return HeartbeatResponse(error_code=0)

    with group.member({JOIN: JOINED, HEARTBEAT: dies}, {HEARTBEAT: beats}) as member:
        poll_until(member, lambda: member.is_joined)
        assert arrived.wait(WAIT_S)
        assert member.is_joined


def test_a_member_joins_again_if_the_coordinator_is_silent() -> None:
    requests: list[object] = []

    def join(request: object) -> JoinGroupResponse | None:
        requests.append(request)
        return None if len(requests) == 1 else JOINED

    with Group().member({JOIN: join}, max_poll_interval_ms=20, request_timeout_ms=50) as member:
        poll_until(member, lambda: member.is_joined)
    assert len(requests) == 2


def test_static_members_come_before_others() -> None:
    metadata = encode_value(ConsumerProtocolSubscription(topics=["t"]), 1)
    members = [
        JoinGroupResponseMember(member_id=name, group_instance_id=instance, metadata=metadata)
        for name, instance in (("m", None), ("y", "z"))
    ]
    joined = JoinGroupResponse(
        error_code=0, generation_id=1, protocol_name="range", leader="m", member_id="m", members=members
    )
    plans: list[Any] = []

    def sync(request: object) -> SyncGroupResponse:
        plans.append(request)
        return SYNCED

    with Group().member({JOIN: joined, SYNC: sync}) as member:
        poll_until(member, lambda: member.is_joined)
    assigned: dict[str, Any] = {
        each.member_id: decode_value(ConsumerProtocolAssignment, each.assignment) for each in plans[0].assignments
    }
    assert [each.topic for each in assigned["y"].assigned_partitions] == ["t"]
    assert not assigned["m"].assigned_partitions
