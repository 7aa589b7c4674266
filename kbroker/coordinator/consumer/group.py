"""A consumer group: its epochs, members, target assignment and subscriptions, with counters that keep decisions fast.

    Empty -> Assigning -> Reconciling -> Stable

A change of subscriptions, members or subscribed topics raises the group epoch. The group is Assigning until its target
assignment has that epoch too, Reconciling until each member has its part of it, and then Stable.

Source: ConsumerGroup and ModernGroup of Apache Kafka 4.3.1.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple
from uuid import UUID

from kbroker.coordinator.consumer.member import NO_PARTITIONS, ConsumerMember, Epochs, Partitions
from wire.errors import ErrorCode, KafkaError

CONSUMER: Final = "consumer"
EMPTY, ASSIGNING, RECONCILING, STABLE = "Empty", "Assigning", "Reconciling", "Stable"
STATES: Final = (EMPTY, ASSIGNING, RECONCILING, STABLE)
NO_TARGET_EPOCH: Final = -1


class ResolvedRegex(NamedTuple):
    """The topics that a regular expression matches.

    Units  version is the offset of the metadata; timestamp_ms is wall time
    """

    topics: frozenset[str]
    version: int
    timestamp_ms: int


UNRESOLVED: Final = ResolvedRegex(frozenset(), 0, 0)


class Subscriptions(NamedTuple):
    """What the members of a group subscribe to, each with the number of its subscribers.

    Shape  by_name counts members, by_regex the regular expressions that match the topic, regexes the members
    """

    by_name: Counter[str]
    by_regex: Counter[str]
    regexes: Counter[str]

    def copy(self) -> Subscriptions:
        """A copy to change."""
        return Subscriptions(self.by_name.copy(), self.by_regex.copy(), self.regexes.copy())

    def replace(self, old: ConsumerMember | None, new: ConsumerMember | None) -> None:
        """Count one member's subscriptions again, except the topics of regular expressions."""
        if old is not None and new is not None and old.subscribes_as(new):
            return
        if old is not None:
            drop(self.by_name, old.subscribed_topic_names)
            drop(self.regexes, _regex(old))
        if new is not None:
            self.by_name.update(new.subscribed_topic_names)
            self.regexes.update(_regex(new))

    def topics(self) -> set[str]:
        """The names of all subscribed topics."""
        return set(self.by_name) | set(self.by_regex)

    def are_homogeneous(self, member_count: int) -> bool:
        """Whether all members subscribe to the same topics."""
        if not self.regexes:
            return all(count == member_count for count in self.by_name.values()) and not self.by_regex
        if next(iter(self.regexes.values())) != member_count:
            return False
        return not self.by_name and all(count == 1 for count in self.by_regex.values())


def drop(counts: Counter[str], names: Iterable[str]) -> None:
    """Count each name once less; names without a count disappear."""
    for name in names:
        if counts[name] <= 1:
            del counts[name]
        else:
            counts[name] -= 1


def _regex(member: ConsumerMember) -> tuple[str, ...]:
    return (member.subscribed_topic_regex,) if member.subscribed_topic_regex else ()


@dataclass(eq=False, slots=True)
class ConsumerGroup:
    """A consumer group. Only `kbroker.coordinator.consumer.replaying` changes what is stored.

    Shape      members by id in the order of their first record; static_members maps instance ids to member ids;
               target maps member ids to partitions; owned maps topic ids and
               partitions to the epoch of the member that may own the partition
    Units      assignment_timestamp_ms is wall time, 0 if unknown; refreshed_epoch is the group epoch at which topics
               were last compared, None to compare them at the next heartbeat
    Not stored refreshed_epoch
    """

    group_id: str
    group_epoch: int = 1
    metadata_hash: int = 0
    assignment_epoch: int = 1
    assignment_timestamp_ms: int = 0
    members: dict[str, ConsumerMember] = field(default_factory=dict)
    static_members: dict[str, str] = field(default_factory=dict)
    target: dict[str, Partitions] = field(default_factory=dict)
    owned: dict[UUID, dict[int, int]] = field(default_factory=dict)
    subscriptions: Subscriptions = field(default_factory=lambda: Subscriptions(Counter(), Counter(), Counter()))
    resolved: dict[str, ResolvedRegex] = field(default_factory=dict)
    assignors: Counter[str] = field(default_factory=Counter)
    classic_count: int = 0
    classic_protocols: Counter[str] = field(default_factory=Counter)
    has_partition_metadata: bool = False
    refreshed_epoch: int | None = None

    def __repr__(self) -> str:
        return f"ConsumerGroup({self.group_id!r}, epoch={self.group_epoch}, {len(self.members)} members)"

    @property
    def state_name(self) -> str:
        """The state, as ListGroups names it."""
        if not self.members:
            return EMPTY
        if self.group_epoch > self.assignment_epoch:
            return ASSIGNING
        if all(member.is_reconciled_to(self.assignment_epoch) for member in self.members.values()):
            return STABLE
        return RECONCILING

    @property
    def is_empty(self) -> bool:
        """Whether the group has no members."""
        return not self.members

    def member(self, member_id: str) -> ConsumerMember:
        """A member. Raises UNKNOWN_MEMBER_ID."""
        found = self.members.get(member_id)
        if found is None:
            text = f"Member {member_id} is not a member of group {self.group_id}."
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, text)
        return found

    def static_member(self, instance_id: str | None) -> ConsumerMember | None:
        """The member with this instance id."""
        member_id = None if instance_id is None else self.static_members.get(instance_id)
        return None if member_id is None else self.members[member_id]

    def target_of(self, member: ConsumerMember) -> Partitions:
        """The target assignment of a member; that of its predecessor if it replaces a static member."""
        member_id: str | None = member.member_id
        if member.instance_id is not None:
            member_id = self.static_members.get(member.instance_id)
        return self.target.get(member_id or "", NO_PARTITIONS)

    def topics_of(self, member: ConsumerMember) -> frozenset[str]:
        """The names of the topics that a member subscribes to. A regular expression that is not resolved yet matches
        none.
        """
        resolved = self.resolved.get(member.subscribed_topic_regex or "")
        return member.subscribed_topic_names if resolved is None else member.subscribed_topic_names | resolved.topics

    def is_subscribed_to(self, topic: str) -> bool:
        """Whether a member subscribes to the topic."""
        return topic in self.subscriptions.by_name or topic in self.subscriptions.by_regex

    def is_owned(self, topic_id: UUID, partition: int) -> bool:
        """Whether a member may own the partition."""
        return partition in self.owned.get(topic_id, ())

    @property
    def is_metadata_expired(self) -> bool:
        """Whether the subscribed topics may have changed. The record of the last comparison may have been lost."""
        return self.refreshed_epoch is None or self.group_epoch < self.refreshed_epoch

    def preferred_assignor(self, old: ConsumerMember | None = None, new: ConsumerMember | None = None) -> str | None:
        """The assignor that most members name, after one member has changed."""
        counts = self.assignors
        if old is not new:
            counts = counts.copy()
            if old is not None and old.server_assignor is not None:
                drop(counts, (old.server_assignor,))
            if new is not None and new.server_assignor is not None:
                counts[new.server_assignor] += 1
        return counts.most_common(1)[0][0] if counts else None

    # Changes; for replaying

    def update_member(self, new: ConsumerMember) -> None:
        """Add or replace a member."""
        old = self.members.get(new.member_id)
        self._recount(old, new)
        if old is not None and old.instance_id != new.instance_id:
            self._forget_instance(old)
        self.members[new.member_id] = new
        if new.instance_id is not None:
            self.static_members[new.instance_id] = new.member_id

    def remove_member(self, member_id: str) -> None:
        """Remove a member. Its instance id may already belong to another one."""
        old = self.members.pop(member_id)
        self._recount(old, None)
        self._forget_instance(old)

    def _forget_instance(self, old: ConsumerMember) -> None:
        if old.instance_id is not None and self.static_members.get(old.instance_id) == old.member_id:
            del self.static_members[old.instance_id]

    def _recount(self, old: ConsumerMember | None, new: ConsumerMember | None) -> None:
        if old is not None:
            self._release(old.assigned, old.member_epoch)
            self._release(old.pending_revocation, old.member_epoch)
            if old.server_assignor is not None:
                drop(self.assignors, (old.server_assignor,))
            if old.classic is not None:
                self.classic_count -= 1
                drop(self.classic_protocols, (one.name for one in old.classic.supported_protocols))
        if new is not None:
            for epochs in (new.assigned, new.pending_revocation):
                for topic_id, partitions in epochs.items():
                    self.owned.setdefault(topic_id, {}).update(dict.fromkeys(partitions, new.member_epoch))
            if new.server_assignor is not None:
                self.assignors[new.server_assignor] += 1
            if new.classic is not None:
                self.classic_count += 1
                self.classic_protocols.update(one.name for one in new.classic.supported_protocols)
        self.subscriptions.replace(old, new)

    def _release(self, epochs: Epochs, member_epoch: int) -> None:
        for topic_id, partitions in epochs.items():
            owned = self.owned.get(topic_id, {})
            for partition in partitions:
                if owned.get(partition) == member_epoch:  # another member may have got it in a later record
                    del owned[partition]
            if not owned:
                self.owned.pop(topic_id, None)

    def resolve(self, regex: str, resolved: ResolvedRegex | None) -> None:
        """Set or remove the topics of a regular expression."""
        old = self.resolved.pop(regex, None)
        if old is not None:
            drop(self.subscriptions.by_regex, old.topics)
        if resolved is not None:
            self.resolved[regex] = resolved
            self.subscriptions.by_regex.update(resolved.topics)


def as_partitions(topics: Iterable[Any]) -> Partitions:
    """Topic ids and partitions of a stored record or of a request."""
    return {topic.topic_id: frozenset(topic.partitions) for topic in topics if topic.partitions}


def partitions_of(epochs: Epochs) -> dict[UUID, frozenset[int]]:
    """Assigned partitions without their epochs."""
    return {topic_id: frozenset(of_topic) for topic_id, of_topic in epochs.items()}
