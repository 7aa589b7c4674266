"""A shard with its log, clocks and clients in memory. Records are appended immediately; the test moves time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any
from uuid import UUID

from kbroker.config.groups import GroupSettings
from kbroker.coordinator.caller import Caller
from kbroker.coordinator.common.ports import Job, Parked, Producer
from kbroker.coordinator.shard import GroupOutcome, GroupShard
from kbroker.metadata.image import Image
from wire.codec import encode
from wire.errors import ErrorCode
from wire.messages.heartbeat import HeartbeatRequest
from wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from wire.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberIdentity
from wire.messages.offset_commit import OffsetCommitRequest, OffsetCommitRequestPartition, OffsetCommitRequestTopic
from wire.messages.offset_fetch import (
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchResponsePartition,
)
from wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment, SyncGroupResponse
from wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from wire.stored.consumer_protocol import ConsumerProtocolSubscription
from wire.types import ZERO_UUID

GROUP = "orders-app"
SESSION_MS, REBALANCE_MS = 10_000, 30_000
MONOTONIC_START_MS, WALL_START_MS = 1_000_000, 1_700_000_000_000
MAX_PENDING_BYTES = 100_000
CALLER = Caller("client", "/127.0.0.1", 9)


def subscription(*topics: str) -> bytes:
    """Metadata of a consumer, version 0."""
    return b"\0\0" + encode(ConsumerProtocolSubscription(topics=list(topics)), 0)


class World:
    """See the module docstring.

    Shape   log holds keys and values; transactional says, by offset in the log, which producer appended a record, and
            for a marker, whether it commits. fail_with makes the next append fail; holds_jobs keeps jobs for do_job
    """

    def __init__(self, **settings: Any) -> None:
        self.settings = GroupSettings(**{"group_initial_rebalance_delay_ms": 0, **settings})
        self.now_ms, self.timestamp_ms = MONOTONIC_START_MS, WALL_START_MS
        self.log: list[tuple[bytes, bytes | None]] = []
        self.transactional: dict[int, tuple[int, bool | None]] = {}
        self.answers: dict[Parked, Any] = {}
        self.fail_with: ErrorCode | None = None
        self.jobs: list[Job] = []
        self.holds_jobs = False
        self.image = Image()
        self._ids = 0
        self.shard = self.load()

    def load(self) -> GroupShard:
        """Load a new shard from the log."""
        self.shard = GroupShard(self.settings, new_uuid=self.new_uuid, max_pending_bytes=MAX_PENDING_BYTES)
        for offset, (key, value) in enumerate(self.log):
            producer_id, commits = self.transactional.get(offset, (-1, None))
            if commits is None:
                self.shard.replay(key, value, offset=offset, producer_id=producer_id)
            else:
                self.shard.replay_marker(producer_id, committed=commits)
        self.shard.on_image(self.image)
        self.jobs = []
        self.append(self.shard.on_loaded(now_ms=self.now_ms, timestamp_ms=self.timestamp_ms))
        return self.shard

    def reload(self) -> None:
        """Stop the coordinator cleanly and load another one."""
        self.shard.unload(now_ms=self.now_ms, timestamp_ms=self.timestamp_ms)
        self._take_answers()
        self.load()

    def new_uuid(self) -> UUID:
        self._ids += 1
        return UUID(int=self._ids)

    def decide(self, request: Any, caller: Caller = CALLER, *, producer: Producer | None = None) -> Any:
        """The response: Parked if the request waits, or its answer if that is already there."""
        outcome = self.shard.decide(request, caller, now_ms=self.now_ms, timestamp_ms=self.timestamp_ms)
        outcome = replace(outcome, producer=producer)
        response = self.append(outcome)
        # An initial delay of 0 is over immediately.
        self.on_time()
        return self.answers.get(response, response) if isinstance(response, Parked) else response

    def append(self, outcome: GroupOutcome) -> Any:
        now = {"now_ms": self.now_ms, "timestamp_ms": self.timestamp_ms}
        response = outcome.response
        if not outcome.records:
            assert not outcome.writes
        elif self.fail_with is not None:
            code, self.fail_with = self.fail_with, None
            self.shard.on_append_failed(outcome, code, **now)
            response = outcome.refused(code)
        else:
            base_offset = self.store(outcome)
            self.shard.on_appended(outcome, base_offset=base_offset, **now)
            self.jobs += outcome.jobs
        if not outcome.records:
            self.jobs += outcome.jobs
        self._take_answers()
        while self.jobs and not self.holds_jobs:
            self.do_job()
        return response

    def do_job(self) -> None:
        """Do the first piece of work for a thread, and the decision that follows it."""
        job = self.jobs.pop(0)
        self.append(job.decide(job.run())(now_ms=self.now_ms, timestamp_ms=self.timestamp_ms))

    def store(self, outcome: GroupOutcome) -> int:
        """Append the records to the log. Returns the offset of the first one."""
        base_offset = len(self.log)
        self.log.extend((record.key, record.value) for record in outcome.records)
        if outcome.producer is not None:
            of_producer = outcome.producer.producer_id, None
            self.transactional.update(dict.fromkeys(range(base_offset, len(self.log)), of_producer))
        return base_offset

    def end(self, producer_id: int, *, committed: bool) -> None:
        """Append a marker, and apply it."""
        self.transactional[len(self.log)] = producer_id, committed
        self.log.append((b"", None))
        self.shard.replay_marker(producer_id, committed=committed)

    def on_time(self) -> None:
        while (due_ms := self.shard.next_deadline_ms()) is not None and due_ms <= self.now_ms:
            self.append(self.shard.on_time(now_ms=self.now_ms, timestamp_ms=self.timestamp_ms))

    def advance(self, ms: int) -> None:
        """Advance time, and run each timer when it is due."""
        end_ms = self.now_ms + ms
        while (due_ms := self.shard.next_deadline_ms()) is not None and due_ms <= end_ms:
            self._move_to(max(due_ms, self.now_ms))
            self.append(self.shard.on_time(now_ms=self.now_ms, timestamp_ms=self.timestamp_ms))
        self._move_to(end_ms)

    def _move_to(self, now_ms: int) -> None:
        self.timestamp_ms += now_ms - self.now_ms
        self.now_ms = now_ms

    def _take_answers(self) -> None:
        for parked, answer in self.shard.take_answers():
            assert parked not in self.answers, f"{parked} is answered twice"
            self.answers[parked] = answer

    # Requests

    def join(
        self,
        member_id: str = "",
        *,
        version: int = 9,
        instance_id: str | None = None,
        protocols: dict[str, bytes] | None = None,
        protocol_type: str = "consumer",
        group_id: str = GROUP,
        session_ms: int = SESSION_MS,
        rebalance_ms: int = REBALANCE_MS,
        client_id: str = "client",
    ) -> Any:
        """JoinGroup. If a member id is required, the request is repeated with it."""
        request = JoinGroupRequest(
            group_id=group_id,
            session_timeout_ms=session_ms,
            rebalance_timeout_ms=rebalance_ms,
            member_id=member_id,
            group_instance_id=instance_id,
            protocol_type=protocol_type,
            protocols=[
                JoinGroupRequestProtocol(name=name, metadata=metadata)
                for name, metadata in ({"range": subscription("orders")} if protocols is None else protocols).items()
            ],
        )
        caller = Caller(client_id, "/127.0.0.1", version)
        answer = self.decide(request, caller)
        if isinstance(answer, JoinGroupResponse) and answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            request.member_id = answer.member_id
            answer = self.decide(request, caller)
        return answer

    def sync(self, joined: JoinGroupResponse, *, instance_id: str | None = None, **assignments: bytes) -> Any:
        """SyncGroup of a member. The leader passes assignments by member id; `own` is its own."""
        return self.decide(
            SyncGroupRequest(
                group_id=GROUP,
                generation_id=joined.generation_id,
                member_id=joined.member_id,
                group_instance_id=instance_id,
                protocol_type=joined.protocol_type,
                protocol_name=joined.protocol_name,
                assignments=[
                    SyncGroupRequestAssignment(
                        member_id=joined.member_id if name == "own" else name, assignment=assignment
                    )
                    for name, assignment in assignments.items()
                ],
            )
        )

    def give(self, leader: JoinGroupResponse, assignments: dict[str, bytes]) -> Any:
        """SyncGroup of the leader."""
        return self.decide(
            SyncGroupRequest(
                group_id=GROUP,
                generation_id=leader.generation_id,
                member_id=leader.member_id,
                assignments=[
                    SyncGroupRequestAssignment(member_id=name, assignment=assignment)
                    for name, assignment in assignments.items()
                ],
            )
        )

    def heartbeat(self, joined: JoinGroupResponse, *, instance_id: str | None = None) -> ErrorCode:
        request = HeartbeatRequest(
            group_id=GROUP,
            generation_id=joined.generation_id,
            member_id=joined.member_id,
            group_instance_id=instance_id,
        )
        return ErrorCode(self.decide(request).error_code)

    def leave(self, *member_ids: str, instance_ids: Iterable[str] = ()) -> LeaveGroupResponse:
        identities = [MemberIdentity(member_id=member_id) for member_id in member_ids]
        identities += [MemberIdentity(member_id="", group_instance_id=instance_id) for instance_id in instance_ids]
        response: LeaveGroupResponse = self.decide(LeaveGroupRequest(group_id=GROUP, members=identities))
        return response

    def commit(
        self,
        offset: int,
        *,
        joined: JoinGroupResponse | None = None,
        topic: str = "orders",
        partition: int = 0,
        metadata: str | None = "",
        instance_id: str | None = None,
        retention_ms: int = -1,
        topic_id: UUID = ZERO_UUID,
        group_id: str = GROUP,
        version: int = 9,
    ) -> ErrorCode:
        """OffsetCommit of one partition, by a member or without membership."""
        request = OffsetCommitRequest(
            group_id=group_id,
            generation_id_or_member_epoch=-1 if joined is None else joined.generation_id,
            member_id="" if joined is None else joined.member_id,
            group_instance_id=instance_id,
            retention_time_ms=retention_ms,
            topics=[
                OffsetCommitRequestTopic(
                    name=topic,
                    topic_id=topic_id,
                    partitions=[
                        OffsetCommitRequestPartition(
                            partition_index=partition,
                            committed_offset=offset,
                            committed_leader_epoch=3,
                            committed_metadata=metadata,
                        )
                    ],
                )
            ],
        )
        response = self.decide(request, Caller("client", "/127.0.0.1", version))
        return ErrorCode(response.topics[0].partitions[0].error_code)

    def commit_in_transaction(
        self,
        offset: int,
        *,
        producer_id: int = 1000,
        joined: JoinGroupResponse | None = None,
        topic: str = "orders",
        partition: int = 0,
        instance_id: str | None = None,
        metadata: str | None = "",
        group_id: str = GROUP,
    ) -> ErrorCode:
        """TxnOffsetCommit of one partition, by a member or without membership."""
        one = TxnOffsetCommitRequestPartition(
            partition_index=partition, committed_offset=offset, committed_leader_epoch=3, committed_metadata=metadata
        )
        request = TxnOffsetCommitRequest(
            transactional_id=f"t{producer_id}",
            group_id=group_id,
            producer_id=producer_id,
            producer_epoch=0,
            generation_id=-1 if joined is None else joined.generation_id,
            member_id="" if joined is None else joined.member_id,
            group_instance_id=instance_id,
            topics=[TxnOffsetCommitRequestTopic(name=topic, partitions=[one])],
        )
        return ErrorCode(self.decide(request, producer=Producer(producer_id, 0)).topics[0].partitions[0].error_code)

    def committed(
        self, *, topic: str = "orders", partition: int = 0, group_id: str = GROUP, topic_id: UUID = ZERO_UUID
    ) -> int:
        """OffsetFetch of one partition."""
        return self.fetch(topic, partition, group_id, topic_id=topic_id).committed_offset

    def fetch(
        self, topic: str, partition: int, group_id: str, *, topic_id: UUID = ZERO_UUID, require_stable: bool = False
    ) -> OffsetFetchResponsePartition:
        """The answer of OffsetFetch for one partition."""
        topics = [OffsetFetchRequestTopic(name=topic, topic_id=topic_id, partition_indexes=[partition])]
        request = OffsetFetchRequestGroup(group_id=group_id, topics=topics)
        return self.shard.fetch_offsets(request, require_stable=require_stable).topics[0].partitions[0]

    def is_unstable(self, *, partition: int = 0, group_id: str = GROUP) -> bool:
        """Whether OffsetFetch with require_stable refuses a partition of "orders"."""
        found = self.fetch("orders", partition, group_id, require_stable=True)
        assert found.error_code in (ErrorCode.NONE, ErrorCode.UNSTABLE_OFFSET_COMMIT)
        return found.error_code == ErrorCode.UNSTABLE_OFFSET_COMMIT

    # Whole groups

    def stable(self, count: int = 1, **arguments: Any) -> list[JoinGroupResponse]:
        """A stable group of `count` members, the leader first. Each is assigned its index as a byte."""
        waiting = [self.join(client_id=f"c{index}", **arguments) for index in range(count)]
        while not all(isinstance(one, JoinGroupResponse) for one in waiting):
            waiting = [self._settle(one, arguments) for one in waiting]
        joined: list[JoinGroupResponse] = waiting
        leader = next(one for one in joined if one.member_id == one.leader)
        joined.sort(key=lambda one: one is not leader)
        assert len({one.generation_id for one in joined}) == 1
        parked = [self.sync(one) for one in joined[1:]]
        answer = self.give(leader, {one.member_id: bytes([index]) for index, one in enumerate(joined)})
        for index, one in enumerate([answer, *(self.answers[each] for each in parked)]):
            assert isinstance(one, SyncGroupResponse)
            assert (one.error_code, one.assignment) == (ErrorCode.NONE, bytes([index]))
        return joined

    def _settle(self, waiting: Any, arguments: dict[str, Any]) -> Any:
        """The next step of a client: keep waiting, or rejoin for a newer generation."""
        if isinstance(waiting, Parked):
            return self.answers.get(waiting, waiting)
        group = self.shard.group(GROUP)
        assert group is not None
        if group.generation_id == waiting.generation_id and group.state.value == "CompletingRebalance":
            return waiting
        return self.join(waiting.member_id, **arguments)
