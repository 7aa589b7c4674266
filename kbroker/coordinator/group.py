"""A classic group: its state, its members, and counters that keep its decisions fast.

    Empty -> PreparingRebalance -> CompletingRebalance -> Stable -> PreparingRebalance ...
                    |
                    +-> Empty, when no member is left

In PreparingRebalance the members join. When all have joined, or the rebalance timeout expires, a new generation begins
and the leader computes the assignment. When the leader sends it with SyncGroup, the group becomes Stable. The group
keeps counters for what every join needs to know (whether all members have joined, which protocols all members support),
so that a rebalance of n members costs n steps.

Source: ClassicGroup of Apache Kafka 4.3.1.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from kbroker.coordinator.member import Member
from kbroker.coordinator.timers import Timer
from wire.codec import decode
from wire.errors import ErrorCode, KafkaError, Malformed
from wire.messages.join_group import JoinGroupResponseMember
from wire.stored.consumer_protocol import ConsumerProtocolSubscription
from wire.stored.groups import GroupMetadataValue, MemberMetadata

CONSUMER_PROTOCOL_TYPE: Final = "consumer"
MAX_SUBSCRIBED_TOPICS: Final = 30_000
"""Per member. If a member subscribes to more, the broker does not track the topics of its group."""
MOST_GENERATIONS: Final = 2**31 - 1
"""The largest int32. The next generation is 1."""


class GroupState(Enum):
    """The states, as ListGroups and DescribeGroups name them. Only a group that does not exist is DEAD."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


EMPTY, PREPARING_REBALANCE = GroupState.EMPTY, GroupState.PREPARING_REBALANCE
COMPLETING_REBALANCE, STABLE, DEAD = GroupState.COMPLETING_REBALANCE, GroupState.STABLE, GroupState.DEAD

_FROM: Final = {
    EMPTY: {PREPARING_REBALANCE},
    PREPARING_REBALANCE: {STABLE, COMPLETING_REBALANCE, EMPTY},
    COMPLETING_REBALANCE: {PREPARING_REBALANCE},
    STABLE: {COMPLETING_REBALANCE},
}


@dataclass(eq=False, slots=True)
class Group:
    """A classic group.

    Shape      members by id, in the order in which they joined; static_members maps group_instance_id to member id;
               pending_join maps ids that were assigned but not used yet to their expiry timers; pending_sync holds the
               members that have not sent SyncGroup in this generation; join and sync are the timers of the two phases;
               subscribed_topics is None if unknown
    Units      state_timestamp_ms is wall time, None if unknown; generation_id counts rebalances
    Invariant  awaiting_join_count is the number of members with awaiting_join; every member supports protocol_name
    """

    group_id: str
    state_timestamp_ms: int | None
    join: Timer = field(default_factory=Timer)
    sync: Timer = field(default_factory=Timer)
    state: GroupState = EMPTY
    previous_state: GroupState = EMPTY
    protocol_type: str | None = None
    protocol_name: str | None = None
    generation_id: int = 0
    leader_id: str | None = None
    members: dict[str, Member] = field(default_factory=dict)
    static_members: dict[str, str] = field(default_factory=dict)
    pending_join: dict[str, Timer] = field(default_factory=dict)
    pending_sync: set[str] = field(default_factory=set)
    awaiting_join_count: int = 0
    supported: Counter[str] = field(default_factory=Counter)
    subscribed_topics: frozenset[str] | None = None
    new_member_added: bool = False
    initial_delay_ms: int = 0
    initial_remaining_ms: int = 0

    def __repr__(self) -> str:
        return f"Group({self.group_id!r}, {self.state.value}, {self.generation_id=}, {len(self.members)} members)"

    def transition(self, state: GroupState, *, timestamp_ms: int) -> None:
        """Change the state. The transition must be legal."""
        assert self.state in _FROM[state], f"{self} cannot go to {state.value}"
        self.previous_state, self.state = self.state, state
        self.state_timestamp_ms = timestamp_ms

    @property
    def state_name(self) -> str:
        """The state, as ListGroups names it."""
        return self.state.value

    @property
    def is_empty(self) -> bool:
        """Whether the group has no members and prepares no generation."""
        return self.state is EMPTY

    def can_rebalance(self) -> bool:
        """Whether a rebalance can start in this state."""
        return self.state in _FROM[PREPARING_REBALANCE]

    # Members

    def add(self, member: Member) -> None:
        """Add a member. The first member becomes the leader."""
        if member.group_instance_id is not None:
            assert member.group_instance_id not in self.static_members, f"{member}: instance id is taken in {self}"
            self.static_members[member.group_instance_id] = member.member_id
        if self.leader_id is None:
            self.leader_id = member.member_id
        self.members[member.member_id] = member
        self.supported.update(member.protocols.keys())
        if member.awaiting_join is not None:
            self.awaiting_join_count += 1

    def remove(self, member: Member) -> None:
        """Remove a member. The caller must have answered its parked requests and must cancel its session timer."""
        assert member.awaiting_join is member.awaiting_sync is None, f"{member} has an unanswered request"
        del self.members[member.member_id]
        self._withdraw(member.protocols)
        if member.group_instance_id is not None:
            self.static_members.pop(member.group_instance_id, None)
        if self.leader_id == member.member_id:
            self.leader_id = next(iter(self.members), None)
        self.pending_sync.discard(member.member_id)

    def update(
        self, member: Member, protocols: dict[str, bytes], *, rebalance_timeout_ms: int, session_timeout_ms: int
    ) -> None:
        """Update a member from its new JoinGroup."""
        self._withdraw(member.protocols)
        member.protocols = protocols
        self.supported.update(protocols.keys())
        member.rebalance_timeout_ms = rebalance_timeout_ms
        member.session_timeout_ms = session_timeout_ms

    def rename(self, member: Member, member_id: str) -> None:
        """Replace the id of a static member; nothing else about the member changes."""
        assert member.group_instance_id is not None, f"{member} is not static"
        del self.members[member.member_id]
        if self.leader_id == member.member_id:
            self.leader_id = member_id
        if member.member_id in self.pending_sync:
            self.pending_sync.remove(member.member_id)
            self.pending_sync.add(member_id)
        member.member_id = member_id
        self.members[member_id] = member
        self.static_members[member.group_instance_id] = member_id

    def validate_member(self, member_id: str, group_instance_id: str | None) -> Member:
        """The member that a request comes from. Raises UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID."""
        if group_instance_id is not None:
            known = self.static_members.get(group_instance_id)
            if known is None:
                raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
            if known != member_id:
                raise KafkaError(ErrorCode.FENCED_INSTANCE_ID)
        member = self.members.get(member_id)
        if member is None:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
        return member

    def is_leader(self, member_id: str) -> bool:
        """Whether this member is the group's leader."""
        return self.leader_id == member_id

    def elect_joined_leader(self) -> bool:
        """Make sure that the leader has joined; elect another member if not. False if no member has joined."""
        if self.leader_id is None:
            return False
        if self.members[self.leader_id].awaiting_join is not None:
            return True
        joined = next((member for member in self.members.values() if member.awaiting_join is not None), None)
        if joined is not None:
            self.leader_id = joined.member_id
        return joined is not None

    def has_all_members_joined(self) -> bool:
        """Whether every member has joined and no assigned member id is still unused."""
        return self.awaiting_join_count == len(self.members) and not self.pending_join

    def rebalance_timeout_ms(self) -> int:
        """How long a rebalance phase may take: the largest rebalance timeout of any member."""
        return max(0, max((member.rebalance_timeout_ms for member in self.members.values()), default=0))

    # Protocols

    def _withdraw(self, protocols: dict[str, bytes]) -> None:
        supported = self.supported
        for name in protocols:
            if supported[name] == 1:
                del supported[name]
            else:
                supported[name] -= 1

    def supports(self, protocol_type: str, protocols: dict[str, bytes]) -> bool:
        """Whether a member that offers these protocols can join the group."""
        if self.state is EMPTY:
            return bool(protocol_type) and bool(protocols)
        supported, count = self.supported, len(self.members)
        return self.protocol_type == protocol_type and any(supported[name] == count for name in protocols)

    def select_protocol(self) -> str:
        """The protocol with the most votes among those that all members support; ties go to the one that got a vote
        first.
        """
        count = len(self.members)
        candidates = {name for name, supporters in self.supported.items() if supporters == count}
        assert candidates, f"{self} has members without a common protocol"
        votes = Counter(member.vote(candidates) for member in self.members.values())
        return votes.most_common(1)[0][0]

    def begin_generation(self, *, timestamp_ms: int) -> None:
        """Start the next generation with the current members; without members the group becomes Empty."""
        self.generation_id = self.generation_id % MOST_GENERATIONS + 1
        self.pending_sync.clear()
        if self.members:
            self.protocol_name = self.select_protocol()
            self.transition(COMPLETING_REBALANCE, timestamp_ms=timestamp_ms)
        else:
            self.protocol_name = None
            self.transition(EMPTY, timestamp_ms=timestamp_ms)
        self.subscribed_topics = self.compute_subscribed_topics()

    def joined_members(self) -> list[JoinGroupResponseMember]:
        """The members, as the JoinGroup response of the leader lists them."""
        name = self.protocol_name
        assert name is not None, f"{self} has no protocol"
        return [
            JoinGroupResponseMember(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                metadata=member.protocols[name],
            )
            for member in self.members.values()
        ]

    # Topics

    def uses_consumer_protocol(self) -> bool:
        """Whether the members are consumers, whose metadata the broker can decode."""
        return self.protocol_type == CONSUMER_PROTOCOL_TYPE

    def is_subscribed_to(self, topic: str) -> bool:
        """Whether a member subscribes to the topic. If the subscriptions of a consumer group are unknown, True for
        every topic.
        """
        topics = self.subscribed_topics
        return topic in topics if topics is not None else self.uses_consumer_protocol()

    def compute_subscribed_topics(self) -> frozenset[str] | None:
        """The topics that the members subscribe to. None if the group is not a consumer group, or if a member's
        metadata does not decode or names too many topics.

        Every version of a subscription starts with the fields of version 0.
        """
        if not self.uses_consumer_protocol():
            return None
        if not self.members:
            return frozenset()
        name = self.protocol_name
        if name is None:
            return None
        topics: set[str] = set()
        try:
            for metadata in {member.protocols[name] for member in self.members.values()}:
                if len(metadata) < 2:
                    return None
                body = memoryview(metadata)[2:]
                subscription = decode(ConsumerProtocolSubscription, 0, body, max_elements=MAX_SUBSCRIBED_TOPICS)
                topics.update(subscription.topics)
        except Malformed:
            return None
        return frozenset(topics)

    # Records

    def as_value(self, assignments: dict[str, bytes]) -> GroupMetadataValue:
        """The stored record of the group, with these assignments, one for each member."""
        name = self.protocol_name
        return GroupMetadataValue(
            protocol_type=self.protocol_type or "",
            generation=self.generation_id,
            protocol=name,
            leader=self.leader_id,
            current_state_timestamp=-1 if self.state_timestamp_ms is None else self.state_timestamp_ms,
            members=[
                MemberMetadata(
                    member_id=member.member_id,
                    group_instance_id=member.group_instance_id,
                    client_id=member.client_id,
                    client_host=member.client_host,
                    rebalance_timeout=member.rebalance_timeout_ms,
                    session_timeout=member.session_timeout_ms,
                    subscription=member.protocols[name] if name is not None else b"",
                    assignment=assignments[member.member_id],
                )
                for member in self.members.values()
            ],
        )
