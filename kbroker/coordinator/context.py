"""What all decisions of one shard share: its groups and offsets, timers, and what the decision at hand has brought.

A decision of a classic group changes the group at once, as in Kafka: members and generations are the coordinator's
own, and a generation that was never stored is forgotten with it. What is stored (offsets, the group after a rebalance)
counts when its record is in the log; a `Write` holds what has to follow then, or has to be undone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final
from uuid import UUID

from kbroker.config.groups import GroupSettings
from kbroker.coordinator.group import Group
from kbroker.coordinator.member import Member, Parked
from kbroker.coordinator.offsets import Offsets
from kbroker.coordinator.records import GroupRecord, StoredRecord
from kbroker.coordinator.refusals import in_version, join_error, sync_error
from kbroker.coordinator.timers import Timer, Timers
from wire.errors import ErrorCode
from wire.messages.join_group import JoinGroupResponse
from wire.messages.sync_group import SyncGroupResponse
from wire.stored.groups import GroupMetadataKey, GroupMetadataValue

NEW_MEMBER_JOIN_TIMEOUT_MS: Final = 5 * 60 * 1000


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sends a request.

    Shape   client_id "" where the client gave none; client_host as Kafka shows it, a slash and the address
    """

    client_id: str = ""
    client_host: str = ""
    api_version: int = 0


@dataclass(frozen=True, slots=True)
class Write:
    """What follows when the records of a decision are in the log, and when they cannot be appended."""

    on_appended: Callable[[], None]
    on_failed: Callable[[ErrorCode], None]


@dataclass(slots=True)
class Counts:
    """What happened in a shard since it was loaded, for metrics."""

    offset_commits: int = 0
    offset_deletions: int = 0
    offset_expirations: int = 0
    completed_rebalances: int = 0
    skipped_records: int = 0


@dataclass(slots=True)
class Context:
    """The state of a shard and of the decision at hand.

    Units   now_ms monotonic, timestamp_ms wall time, both of the decision at hand; aging_timestamp_ms is the wall time
            by which something may be called old
    """

    settings: GroupSettings
    new_uuid: Callable[[], UUID]
    max_pending_bytes: int
    groups: dict[str, Group] = field(default_factory=dict)
    offsets: Offsets = field(default_factory=Offsets)
    timers: Timers = field(default_factory=Timers)
    counts: Counts = field(default_factory=Counts)
    now_ms: int = 0
    timestamp_ms: int = 0
    aging_timestamp_ms: int = 0
    # Member ids that were handed out and not used yet, the oldest first, and how many bytes they take.
    pending: dict[Timer, int] = field(default_factory=dict)
    pending_bytes: int = 0
    answers: list[tuple[Parked, Any]] = field(default_factory=list)
    records: list[StoredRecord] = field(default_factory=list)
    writes: list[Write] = field(default_factory=list)

    # Groups

    def new_group(
        self, group_id: str, *, on_join: Callable[[Context, Group], None], on_sync: Callable[[Context, Group], None]
    ) -> Group:
        """An empty group, in the table."""
        group = Group(group_id, join=Timer(_nothing), sync=Timer(_nothing), state_timestamp_ms=self.timestamp_ms)
        group.join.action = partial(on_join, self, group)
        group.sync.action = partial(on_sync, self, group)
        self.groups[group_id] = group
        return group

    def forget_group(self, group: Group) -> None:
        """Take a group out of the table; none of its timers is due any more."""
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
        on_appended: Callable[[], None],
        on_failed: Callable[[ErrorCode], None],
    ) -> None:
        """Let the group be written, and the rest follow."""
        self.records.append(GroupRecord(GroupMetadataKey(group=group.group_id), value))
        self.writes.append(Write(on_appended, on_failed))

    # Timers

    def schedule(self, timer: Timer, delay_ms: int) -> None:
        """Let a timer be due that much later."""
        self.timers.schedule(timer, self.now_ms + delay_ms)

    def extend_session(self, member: Member) -> None:
        """A member gave a sign of life, or is going to have to."""
        self.timers.schedule(member.session, self.now_ms + member.session_timeout_ms)

    # Member ids that were handed out

    def note_pending(self, timer: Timer, size: int, delay_ms: int) -> None:
        """An id was handed out, which is void after delay_ms. When such ids take too much memory, the oldest are void
        at once: a client that is still alive has used its own long ago, or asks for another one.
        """
        self.schedule(timer, delay_ms)
        self.pending[timer] = size
        self.pending_bytes += size
        while self.pending_bytes > self.max_pending_bytes and len(self.pending) > 1:
            oldest = next(iter(self.pending))
            self.pending_bytes -= self.pending.pop(oldest)
            self.schedule(oldest, 0)

    def end_pending(self, timer: Timer) -> None:
        """An id is used, or void."""
        self.timers.cancel(timer)
        timer.action = _nothing  # the id would be remembered as long as the timer's entry
        self.pending_bytes -= self.pending.pop(timer, 0)

    # Answers

    def answer_join(self, group: Group, member: Member, response: JoinGroupResponse) -> None:
        """Answer the JoinGroup that waits for this member, if one does."""
        parked = member.awaiting_join
        if parked is None:
            return
        member.awaiting_join = None
        group.awaiting_join_count -= 1
        self.answers.append((parked, in_version(response, parked.api_version)))

    def answer_sync(self, member: Member, response: SyncGroupResponse) -> bool:
        """Answer the SyncGroup that waits for this member; False if none does."""
        parked = member.awaiting_sync
        if parked is None:
            return False
        member.awaiting_sync = None
        self.answers.append((parked, response))
        return True

    def park_join(self, group: Group, member: Member, parked: Parked) -> None:
        """Let a JoinGroup wait; one that waits already for this member is answered, so that none waits for ever."""
        self.answer_join(group, member, join_error(ErrorCode.REBALANCE_IN_PROGRESS, member.member_id))
        member.awaiting_join = parked
        group.awaiting_join_count += 1

    def park_sync(self, member: Member, parked: Parked) -> None:
        """Let a SyncGroup wait, as park_join does."""
        self.answer_sync(member, sync_error(ErrorCode.REBALANCE_IN_PROGRESS))
        member.awaiting_sync = parked

    def remove_member(self, group: Group, member: Member) -> None:
        """Let a member go; if it waits for an answer, it is told that it is unknown, upon which it joins anew."""
        self.answer_join(group, member, join_error(ErrorCode.UNKNOWN_MEMBER_ID))
        self.answer_sync(member, sync_error(ErrorCode.UNKNOWN_MEMBER_ID))
        self.timers.cancel(member.session)
        member.session.action = _nothing
        group.remove(member)


def _nothing() -> None:
    """The action of a timer whose owner is not complete yet, or has gone."""
