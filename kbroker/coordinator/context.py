"""The state that all decisions of one shard share: groups, offsets, timers, and the output of the current decision.

As in Kafka, a decision about a classic group changes the group in memory immediately: only the coordinator knows its
members and generations, and a generation that is never stored is lost with the coordinator. What is stored (offsets,
the group after a rebalance) takes effect when its record is in the log. A `Write` holds the actions that follow a
successful or a failed append.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple
from uuid import UUID

from kbroker.config.groups import GroupSettings
from kbroker.coordinator.common.ports import Parked
from kbroker.coordinator.consumer.group import ConsumerGroup
from kbroker.coordinator.consumer.records import ConsumerRecord
from kbroker.coordinator.group import Group
from kbroker.coordinator.member import Member
from kbroker.coordinator.offsets import Offsets
from kbroker.coordinator.records import GroupRecord, StoredRecord
from kbroker.coordinator.refusals import in_version, join_error, sync_error
from kbroker.coordinator.timers import Timer, Timers, nothing
from kbroker.coordinator.unserved import UnservedGroups
from kbroker.metadata.image import Image
from wire.errors import ErrorCode
from wire.messages.join_group import JoinGroupResponse
from wire.messages.sync_group import SyncGroupResponse
from wire.stored.groups import GroupMetadataKey, GroupMetadataValue

NEW_MEMBER_JOIN_TIMEOUT_MS: Final = 5 * 60 * 1000


AnyGroup = Group | ConsumerGroup


class Write(NamedTuple):
    """The actions after the records of a decision are appended, and after the append fails. on_failed gets the error
    code for clients.
    """

    on_appended: Callable[[], None]
    on_failed: Callable[[ErrorCode], None]


@dataclass(slots=True, eq=False)
class Counts:
    """Counters of a shard since it was loaded, for metrics."""

    offset_commits: int = 0
    offset_deletions: int = 0
    offset_expirations: int = 0
    completed_rebalances: int = 0
    consumer_rebalances: int = 0


@dataclass(slots=True, eq=False)
class Context:
    """The state of a shard and of its current decision.

    Units   now_ms is monotonic, timestamp_ms is wall time, both of the current decision; aging_timestamp_ms is the wall
            time that expiry compares with
    """

    settings: GroupSettings
    new_uuid: Callable[[], UUID]
    max_pending_bytes: int
    image: Image = field(default_factory=Image)
    groups: dict[str, AnyGroup] = field(default_factory=dict)
    unserved: UnservedGroups = field(default_factory=UnservedGroups)
    offsets: Offsets = field(default_factory=Offsets)
    timers: Timers = field(default_factory=Timers)
    counts: Counts = field(default_factory=Counts)
    now_ms: int = 0
    timestamp_ms: int = 0
    aging_timestamp_ms: int = 0
    # Expiry timers of member ids that were assigned but not used yet, oldest first, with their size in bytes.
    pending: dict[Timer, int] = field(default_factory=dict)
    pending_bytes: int = 0
    answers: list[tuple[Parked, Any]] = field(default_factory=list)
    records: list[StoredRecord | ConsumerRecord] = field(default_factory=list)
    writes: list[Write] = field(default_factory=list)
    # Consumer groups: work for threads, and what it is done for (the group epoch of an assignment); the timers of
    # members by group, member and kind; members whose timers have expired; the image with the newest topics.
    jobs: list[tuple[Callable[[], Any], Callable[[Any], None]]] = field(default_factory=list)
    computing: dict[str, int] = field(default_factory=dict)
    resolving: set[str] = field(default_factory=set)
    member_timers: dict[tuple[str, str, str], Timer] = field(default_factory=dict)
    expired: dict[str, dict[str, None]] = field(default_factory=dict)
    new_topics_version: int = -1

    # Groups

    def classic_group(self, group_id: str) -> Group | None:
        """A group of the classic protocol; None also for a consumer group."""
        group = self.groups.get(group_id)
        return group if isinstance(group, Group) else None

    def forget_group(self, group: Group) -> None:
        """Remove a group from the table and cancel all its timers."""
        if self.groups.get(group.group_id) is group:
            del self.groups[group.group_id]
        self.timers.cancel(group.join)
        self.timers.cancel(group.sync)
        for member in group.members.values():
            self.timers.cancel(member.session)
        for timer in group.pending_join.values():
            self.end_pending(timer)

    def store_group(
        self,
        group: Group,
        value: GroupMetadataValue,
        *,
        on_appended: Callable[[], None] = nothing,
        on_failed: Callable[[ErrorCode], None] = lambda _: None,
    ) -> None:
        """Add the group's record to the decision, with the actions that follow the append."""
        self.records.append(GroupRecord(GroupMetadataKey(group=group.group_id), value))
        self.writes.append(Write(on_appended, on_failed))

    # Timers

    def schedule(self, timer: Timer, delay_ms: int) -> None:
        """Schedule a timer delay_ms from now."""
        self.timers.schedule(timer, self.now_ms + delay_ms)

    def extend_session(self, member: Member) -> None:
        """Restart the member's session timeout."""
        self.timers.schedule(member.session, self.now_ms + member.session_timeout_ms)

    # Member ids that were assigned but not used yet
    def note_pending(self, timer: Timer, size: int, delay_ms: int) -> None:
        """Track a newly assigned member id, which expires after delay_ms.

        If such ids take too much memory, the oldest ones expire immediately: a client that is still alive has already
        used its id, or asks for another one.
        """
        self.schedule(timer, delay_ms)
        self.pending[timer] = size
        self.pending_bytes += size
        while self.pending_bytes > self.max_pending_bytes and len(self.pending) > 1:
            oldest = next(iter(self.pending))
            self.pending_bytes -= self.pending.pop(oldest)
            self.schedule(oldest, 0)

    def end_pending(self, timer: Timer) -> None:
        """Stop tracking an assigned id that was used or has expired."""
        self.timers.cancel(timer)
        timer.action = nothing  # frees the id while the timer's entry is still in the heap
        self.pending_bytes -= self.pending.pop(timer, 0)

    # Answers

    def answer_join(self, group: Group, member: Member, response: JoinGroupResponse) -> None:
        """Answer the member's parked JoinGroup, if there is one."""
        parked = member.awaiting_join
        if parked is None:
            return
        member.awaiting_join = None
        group.awaiting_join_count -= 1
        self.answers.append((parked, in_version(response, parked.api_version)))

    def answer_sync(self, member: Member, response: SyncGroupResponse) -> bool:
        """Answer the member's parked SyncGroup. False if there is none."""
        parked = member.awaiting_sync
        if parked is None:
            return False
        member.awaiting_sync = None
        self.answers.append((parked, response))
        return True

    def park_join(self, group: Group, member: Member, parked: Parked) -> None:
        """Park a JoinGroup. An earlier parked JoinGroup of the member is answered with REBALANCE_IN_PROGRESS."""
        self.answer_join(group, member, join_error(ErrorCode.REBALANCE_IN_PROGRESS, member.member_id))
        member.awaiting_join = parked
        group.awaiting_join_count += 1

    def park_sync(self, member: Member, parked: Parked) -> None:
        """Park a SyncGroup. An earlier parked SyncGroup of the member is answered with REBALANCE_IN_PROGRESS."""
        self.answer_sync(member, sync_error(ErrorCode.REBALANCE_IN_PROGRESS))
        member.awaiting_sync = parked

    def remove_member(self, group: Group, member: Member) -> None:
        """Remove a member. Its parked requests are answered with UNKNOWN_MEMBER_ID, so that the client rejoins."""
        self.answer_join(group, member, join_error(ErrorCode.UNKNOWN_MEMBER_ID))
        self.answer_sync(member, sync_error(ErrorCode.UNKNOWN_MEMBER_ID))
        self.timers.cancel(member.session)
        member.session.action = nothing
        group.remove(member)
