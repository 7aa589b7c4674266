"""A member of a classic consumer group.

`poll` joins the group and joins again after each rebalance. One call waits at most as long as its argument allows,
because a rebalance may take minutes. A thread sends heartbeats while the caller does something else; it stops if the
caller does not poll for max.poll.interval.ms. The member has its own connections, which a lock protects.

Source  KIP-62, KIP-394; RangeAssignor and RoundRobinAssignor of Apache Kafka 4.3.1
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from threading import Event, Lock, Thread
from typing import Any, Final

from kbroker.client.cluster import UNKNOWN_NODE, Cluster, Partition
from kbroker.client.consuming import SETTINGS
from kbroker.client.operations import Committed, by_topic, commit_offsets, committed_offsets
from wire.errors import ErrorCode, KafkaError, Malformed, check
from wire.messages.heartbeat import HeartbeatRequest
from wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from wire.messages.leave_group import LeaveGroupRequest
from wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from wire.stored.consumer_protocol import ConsumerProtocolAssignment, ConsumerProtocolSubscription, TopicPartition
from wire.stored.frame import decode_value, encode_value

PROTOCOL_TYPE: Final = "consumer"
SUBSCRIPTION_VERSION: Final = 1
ONE_MEMBER: Final = 2
"""The last version of LeaveGroup for a single member."""
SYNC_TIMEOUT_MS: Final = 30_000
_REJOIN: Final = frozenset({ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID})


class Member:
    """Errors: KafkaError if the group refuses the member."""

    def __init__(self, settings: Mapping[str, Any], group: str, topics: Sequence[str]) -> None:
        self._settings = {**SETTINGS, **settings}
        self._instance_id: str | None = self._settings["group_instance_id"]
        self._cluster = Cluster(settings)
        self._group = group
        self._topics = sorted(topics)
        self._node_id = UNKNOWN_NODE
        self._member_id = ""
        self._generation_id = -1
        self._is_joining = False
        self._join_ends_ms = 0
        self._must_join = True
        self._polled_ms = self._counted_ms = self._cluster.env.now_ms()
        self._counts: dict[str, int] = {}
        self._lock = Lock()
        self._ended = Event()
        self.assignment: frozenset[Partition] = frozenset()
        Thread(target=self._beat, daemon=True).start()

    def poll(self, timeout_ms: int) -> bool:
        """Take part in rebalances for a time. Returns whether a new assignment has begun."""
        self._polled_ms = self._cluster.env.now_ms()
        self._look_for_new_partitions()
        if not self._must_join:
            return False
        with self._lock:
            try:
                return self._join(timeout_ms)
            except KafkaError as error:
                self._is_joining = False
                if error.code is ErrorCode.UNKNOWN_MEMBER_ID:
                    self._member_id = ""
                elif not error.code.retriable and error.code not in _REJOIN:
                    raise
                self._cluster.wait(self._cluster.retry_ms)
                return False

    @property
    def is_joined(self) -> bool:
        """Whether the assignment is in force."""
        return not self._must_join

    def _look_for_new_partitions(self) -> None:
        """The leader of the group joins again if a topic has got partitions."""
        if (
            self._counts
            and not self._must_join
            and self._polled_ms - self._counted_ms >= self._settings["metadata_max_age_ms"]
        ):
            with self._lock, suppress(KafkaError):
                self._must_join = self._counts != self._count(list(self._counts))

    def _count(self, topics: Sequence[str]) -> dict[str, int]:
        self._counted_ms = self._polled_ms
        return {str(topic.name): len(topic.partitions) for topic in self._cluster.metadata(topics).topics}

    def committed(self) -> dict[Partition, Committed]:
        """The group's offsets."""
        with self._lock:
            return committed_offsets(self._cluster, self._group)

    def commit(self, offsets: Mapping[Partition, int]) -> None:
        """Commit offsets of assigned partitions. Errors: KafkaError, also if the group has removed this member."""
        with self._lock:
            codes = commit_offsets(
                self._cluster,
                self._group,
                {partition: Committed(offset) for partition, offset in offsets.items()},
                generation_id=self._generation_id,
                member_id=self._member_id,
                instance_id=self._instance_id,
            )
        for code in codes.values():
            check(code)

    def close(self) -> None:
        """Leave the group, unless the member is static, and close the connections."""
        self._ended.set()
        with self._lock, self._cluster:
            if self._is_joining:  # do not mistake the answer for another one
                self._cluster.close()
            if self._member_id and self._instance_id is None:
                request = LeaveGroupRequest(group_id=self._group, member_id=self._member_id)
                with suppress(KafkaError):
                    self._cluster.ask(request, self._cluster.coordinator(self._group), at_most=ONE_MEMBER)

    # --- joining ------------------------------------------------------------------------------------------------------

    def _join(self, timeout_ms: int) -> bool:
        if not self._is_joining:
            self._node_id = self._cluster.retry(lambda: self._cluster.coordinator(self._group))
            self._cluster.send(self._join_request(), self._node_id)
            self._is_joining = True
            self._join_ends_ms = self._cluster.env.now_ms() + self._settings["max_poll_interval_ms"]
        # After the rebalance timeout, receiving has its own timeout, which closes the connection to a silent broker.
        is_late = self._cluster.env.now_ms() > self._join_ends_ms
        if not self._cluster.has_answer(self._node_id, timeout_ms) and not is_late:
            return False
        answer = self._cluster.receive(self._node_id)
        self._is_joining = False
        if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self._member_id = answer.member_id
            return False
        check(answer.error_code)
        self._member_id, self._generation_id = answer.member_id, answer.generation_id
        self._counts.clear()
        plan = self._plan(answer) if answer.leader == answer.member_id else []
        request = SyncGroupRequest(
            group_id=self._group, generation_id=self._generation_id, member_id=self._member_id,
            group_instance_id=self._instance_id, protocol_type=PROTOCOL_TYPE, protocol_name=answer.protocol_name,
            assignments=plan,
        )  # fmt: skip
        synced = self._cluster.ask(request, self._node_id, timeout_ms=SYNC_TIMEOUT_MS)
        check(synced.error_code)
        self.assignment = frozenset()
        if synced.assignment:
            found: Any = decode_value(ConsumerProtocolAssignment, synced.assignment)
            self.assignment = frozenset(
                (each.topic, at) for each in found.assigned_partitions for at in each.partitions
            )
        self._must_join = False
        return True

    def _join_request(self) -> JoinGroupRequest:
        metadata = encode_value(ConsumerProtocolSubscription(topics=self._topics), SUBSCRIPTION_VERSION)
        return JoinGroupRequest(
            group_id=self._group, session_timeout_ms=self._settings["session_timeout_ms"],
            rebalance_timeout_ms=self._settings["max_poll_interval_ms"], member_id=self._member_id,
            group_instance_id=self._instance_id, protocol_type=PROTOCOL_TYPE,
            protocols=[JoinGroupRequestProtocol(name=name, metadata=metadata) for name in ASSIGNORS],
        )  # fmt: skip

    def _plan(self, answer: Any) -> list[SyncGroupRequestAssignment]:
        """The assignment of the whole group, which its leader makes."""
        subscriptions: dict[str, Sequence[str]] = {}
        for member in sorted(answer.members, key=_place):
            try:
                read: Any = decode_value(ConsumerProtocolSubscription, member.metadata)
            except Malformed as error:
                raise KafkaError(
                    ErrorCode.INCONSISTENT_GROUP_PROTOCOL, f"a subscription cannot be read: {error}"
                ) from error
            subscriptions[member.member_id] = read.topics
        names = sorted({topic for topics in subscriptions.values() for topic in topics})
        self._counts = self._count(names)
        found: dict[str, list[Partition]] = {member: [] for member in subscriptions}
        ASSIGNORS[answer.protocol_name](found, subscriptions, self._counts)
        return [
            SyncGroupRequestAssignment(member_id=member, assignment=_encode_assignment(partitions))
            for member, partitions in found.items()
        ]

    # --- heartbeats ---------------------------------------------------------------------------------------------------

    def _beat(self) -> None:
        """Send heartbeats until the member is closed."""
        while not self._ended.wait(self._settings["heartbeat_interval_ms"] / 1000):
            with self._lock:
                if self._ended.is_set():
                    return
                idle_ms = self._cluster.env.now_ms() - self._polled_ms
                # While the member joins, a response to JoinGroup may be due.
                if self._must_join or idle_ms > self._settings["max_poll_interval_ms"]:
                    continue
                try:
                    self._send_heartbeat()
                except KafkaError as error:
                    self._must_join = error.code in _REJOIN or not error.code.retriable
                    self._node_id = UNKNOWN_NODE  # maybe another broker coordinates the group now

    def _send_heartbeat(self) -> None:
        if self._node_id == UNKNOWN_NODE:
            self._node_id = self._cluster.coordinator(self._group)
        request = HeartbeatRequest(
            group_id=self._group, generation_id=self._generation_id, member_id=self._member_id,
            group_instance_id=self._instance_id,
        )  # fmt: skip
        check(self._cluster.ask(request, self._node_id).error_code)


def _place(member: Any) -> tuple[bool, str]:
    """The order of members: static ones come first."""
    return member.group_instance_id is None, member.group_instance_id or member.member_id


def _encode_assignment(partitions: Sequence[Partition]) -> bytes:
    assigned = [
        TopicPartition(topic=topic, partitions=indexes)
        for topic, indexes in by_topic(partitions, lambda _topic, index: index)
    ]
    return encode_value(ConsumerProtocolAssignment(assigned_partitions=assigned), SUBSCRIPTION_VERSION)


Found = dict[str, list[Partition]]


def assign_ranges(found: Found, subscriptions: Mapping[str, Sequence[str]], counts: Mapping[str, int]) -> None:
    """For each topic, a range of neighbouring partitions for each member; the first members get one more."""
    for topic, count in counts.items():
        members = [member for member, topics in subscriptions.items() if topic in topics]
        start = 0
        for number, member in enumerate(members):
            end = start + count // len(members) + (number < count % len(members))
            found[member] += [(topic, index) for index in range(start, end)]
            start = end


def assign_in_turn(found: Found, subscriptions: Mapping[str, Sequence[str]], counts: Mapping[str, int]) -> None:
    """One partition after the other to the next member that subscribes to its topic."""
    members = list(subscriptions)
    turn = 0
    for topic in sorted(counts):
        for index in range(counts[topic]):
            while topic not in subscriptions[members[turn % len(members)]]:
                turn += 1
            found[members[turn % len(members)]].append((topic, index))
            turn += 1


ASSIGNORS: Final = {"range": assign_ranges, "roundrobin": assign_in_turn}
