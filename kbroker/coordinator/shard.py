"""All groups whose records lie in one partition of `__consumer_offsets`, as a state machine without I/O.

    outcome = shard.decide(request, caller, now_ms=..., timestamp_ms=...)
    append outcome.records; then shard.on_appended(outcome, ...), or shard.on_append_failed(outcome, code, ...)
    send outcome.response, unless it is Parked; send what shard.take_answers() gives

Rules for who drives it:

- One decision at a time: from `decide` or `on_time` to `on_appended` or `on_append_failed` no other decision of the
  shard is made, if there are records. (Decisions of OffsetCommit alone may share an append: decide several, append all,
  then call on_appended for each, in that order.)
- The response is true once on_appended was called; on_append_failed gives another in its place.
- Requests that wait (JoinGroup, SyncGroup) have a `Parked` as response. Any later call may bring their answers, so
  take_answers is looked at after each. If the connection of a parked request is gone, nothing is called and the answer
  is dropped: the member stays until its session ends, as in Kafka.
- `on_time` is called when next_deadline_ms() has come. It is often due at once after a JoinGroup that begins a group,
  where `group.initial.rebalance.delay.ms` is 0.
- A shard is loaded by `replay` of every record from the start of the partition, and then `on_loaded`. Before that
  nothing is decided.

Times: now_ms is monotonic and runs the timers; timestamp_ms is wall time and is stored.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final
from uuid import UUID

from kbroker.config.groups import GroupSettings
from kbroker.coordinator import describing, expiry, rebalance
from kbroker.coordinator.committing import offset_commit, offset_delete, offset_fetch
from kbroker.coordinator.context import Caller, Context, Counts, Write
from kbroker.coordinator.describing import delete_groups
from kbroker.coordinator.group import DEAD, Group, GroupState
from kbroker.coordinator.joining import join_group
from kbroker.coordinator.leaving import heartbeat, leave_group
from kbroker.coordinator.member import Parked
from kbroker.coordinator.offsets import CommittedOffset, TopicOffsets
from kbroker.coordinator.records import OffsetRecord, decode_record
from kbroker.coordinator.refusals import in_version, join_error, refuse, response_code, sync_error
from kbroker.coordinator.restoring import restore_group
from kbroker.coordinator.syncing import sync_group
from kbroker.coordinator.timers import Timer
from kbroker.runtime.outcome import Outcome
from wire.errors import ErrorCode, KafkaError
from wire.messages.delete_groups import DeleteGroupsRequest
from wire.messages.describe_groups import DescribedGroup
from wire.messages.heartbeat import HeartbeatRequest
from wire.messages.join_group import JoinGroupRequest, JoinGroupResponse
from wire.messages.leave_group import LeaveGroupRequest
from wire.messages.list_groups import ListedGroup
from wire.messages.offset_commit import OffsetCommitRequest
from wire.messages.offset_delete import OffsetDeleteRequest
from wire.messages.offset_fetch import OffsetFetchRequestGroup, OffsetFetchResponseGroup
from wire.messages.sync_group import SyncGroupRequest, SyncGroupResponse

__all__ = [
    "Caller",
    "CommittedOffset",
    "Counts",
    "GroupOutcome",
    "GroupShard",
    "GroupState",
    "Parked",
    "partition_for",
    "refuse",
]

GroupRequest = (
    JoinGroupRequest
    | SyncGroupRequest
    | HeartbeatRequest
    | LeaveGroupRequest
    | OffsetCommitRequest
    | OffsetDeleteRequest
    | DeleteGroupsRequest
)

BATCH_OVERHEAD_BYTES: Final = 128
RECORD_OVERHEAD_BYTES: Final = 32
PENDING_BYTES: Final = 1 << 20
"""More than the header of a batch, and what a record has beside its key and value."""

_DECISIONS: Final[dict[type, Callable[[Context, Any, Caller], Any]]] = {
    JoinGroupRequest: join_group,
    SyncGroupRequest: sync_group,
    HeartbeatRequest: heartbeat,
    LeaveGroupRequest: leave_group,
    OffsetCommitRequest: offset_commit,
    OffsetDeleteRequest: offset_delete,
    DeleteGroupsRequest: delete_groups,
}


def partition_for(group_id: str, partitions: int) -> int:
    """The partition of `__consumer_offsets` that holds a group: Java's hash of its id, without the sign.

    The smallest int has no positive counterpart, and counts as 0. Source: Utils.abs of Apache Kafka.
    """
    code = 0
    for unit in struct.iter_unpack("<H", group_id.encode("utf-16-le", "surrogatepass")):
        code = (31 * code + unit[0]) & 0xFFFFFFFF
    if code & 0x80000000:
        code = (0x100000000 - code) & 0x7FFFFFFF
    return code % partitions


@dataclass(frozen=True, slots=True)
class GroupOutcome(Outcome[Any]):
    """What was decided: the records with `.key` and `.value` as bytes, and the response or Parked (None: of a timer).

    Shape   records may be empty, and then the response is true at once; writes and request are the shard's own
    """

    writes: list[Write] = field(default_factory=list, repr=False)
    request: Any = field(default=None, repr=False)
    api_version: int = 0

    def parts(self, max_bytes: int) -> list[GroupOutcome]:
        """Outcomes that make this one if they are appended in order, each of a batch of at most max_bytes if it can be.

        What follows follows the last one.
        """
        parts: list[list[Any]] = [[]]
        part_bytes = BATCH_OVERHEAD_BYTES
        for record in self.records:
            record_bytes = len(record.key) + len(record.value or b"") + RECORD_OVERHEAD_BYTES
            if parts[-1] and part_bytes + record_bytes > max_bytes:
                parts.append([])
                part_bytes = BATCH_OVERHEAD_BYTES
            parts[-1].append(record)
            part_bytes += record_bytes
        *first, last = parts
        return [*(GroupOutcome(records, None) for records in first), replace(self, records=last)]


class GroupShard:
    """The groups of one partition of `__consumer_offsets`.

    Shape   new_uuid gives the random part of member ids
    Bound   max_pending_bytes for member ids that were handed out and not used yet
    """

    __slots__ = ("_context", "_expiry")

    def __init__(
        self, settings: GroupSettings, *, new_uuid: Callable[[], UUID], max_pending_bytes: int = PENDING_BYTES
    ) -> None:
        self._context = Context(settings, new_uuid, max_pending_bytes)
        self._expiry = Timer(self._expire)

    # Deciding

    def decide(self, request: GroupRequest, caller: Caller, *, now_ms: int, timestamp_ms: int) -> GroupOutcome:
        """Decide about a request whose groups are of this shard.

        Errors  in the response, as the protocol has them; none is raised
        """
        context = self._at(now_ms, timestamp_ms)
        try:
            response = _DECISIONS[type(request)](context, request, caller)
        except KafkaError as error:
            response = refuse(request, error.code, caller.api_version)
        if type(response) is JoinGroupResponse:
            in_version(response, caller.api_version)
        return self._outcome(response, request, caller.api_version)

    def on_time(self, *, now_ms: int, timestamp_ms: int, aging_timestamp_ms: int | None = None) -> GroupOutcome:
        """Do what is due by now: sessions, phases of rebalances, and the search for expired offsets.

        aging_timestamp_ms is the time by which offsets may be called old, where the wall clock is not to be believed.
        """
        context = self._at(now_ms, timestamp_ms)
        context.aging_timestamp_ms = timestamp_ms if aging_timestamp_ms is None else aging_timestamp_ms
        while (timer := context.timers.due(now_ms)) is not None:
            timer.action()
        return self._outcome(None)

    def next_deadline_ms(self) -> int | None:
        """When on_time is to be called next; None if never. It may be early, which does no harm, but is never late."""
        return self._context.timers.next_deadline_ms()

    def on_topics_deleted(self, topics: Iterable[tuple[UUID, str]], *, now_ms: int, timestamp_ms: int) -> GroupOutcome:
        """Let go of the offsets of deleted topics, given as ids and names."""
        expiry.forget_topics(self._at(now_ms, timestamp_ms), topics)
        return self._outcome(None)

    def on_appended(self, outcome: GroupOutcome, *, now_ms: int, timestamp_ms: int, base_offset: int = -1) -> None:
        """The records of an outcome are in the log, the first at base_offset: now they count."""
        context = self._at(now_ms, timestamp_ms)
        for index, record in enumerate(outcome.records):
            if isinstance(record, OffsetRecord):
                self._replay_offset(record, base_offset + index if base_offset >= 0 else -1, -1)
            elif record.value_message is None:
                self._remove_group(record.key_message.group)
        for write in outcome.writes:
            write.on_appended()
        assert not context.records, "what follows an append has nothing to append"

    def on_append_failed(self, outcome: GroupOutcome, code: ErrorCode, *, now_ms: int, timestamp_ms: int) -> Any:
        """The records of an outcome are not in the log. Gives the response to send instead of the outcome's.

        What the decision changed is undone as in Kafka: a group that was new is gone, a leader's assignment is
        forgotten and its group rebalances, a static member has its old id again. Parked requests have their answers.
        """
        self._at(now_ms, timestamp_ms)
        for write in outcome.writes:
            write.on_failed(code)
        assert not self._context.records, "what follows a failure has nothing to append"
        if outcome.request is None or type(outcome.response) is Parked:
            return outcome.response
        return refuse(outcome.request, response_code(code), outcome.api_version)

    def take_answers(self) -> list[tuple[Parked, JoinGroupResponse | SyncGroupResponse]]:
        """The answers to parked requests since the last call; each parked request comes once."""
        answers, self._context.answers = self._context.answers, []
        return answers

    # Reading

    def fetch_offsets(
        self, request: OffsetFetchRequestGroup, *, require_stable: bool = False
    ) -> OffsetFetchResponseGroup:
        """The committed offsets of one group; the topics' names are known, their ids may be zero."""
        return offset_fetch(self._context, request, require_stable=require_stable)

    def list_groups(self, states_filter: Sequence[str] = (), types_filter: Sequence[str] = ()) -> list[ListedGroup]:
        """The groups of this shard that pass the filters."""
        return describing.list_groups(
            self._context.groups.values(), states_filter=states_filter, types_filter=types_filter
        )

    def describe_groups(self, group_ids: Iterable[str], api_version: int) -> list[DescribedGroup]:
        """These groups, in their order. authorized_operations are for the caller to fill in."""
        groups = self._context.groups
        return [describing.describe_group(groups.get(group_id), group_id, api_version) for group_id in group_ids]

    def group_ids(self) -> list[str]:
        """The ids of all groups."""
        return list(self._context.groups)

    def group(self, group_id: str) -> Group | None:
        """A group, to be looked at and not to be changed."""
        return self._context.groups.get(group_id)

    def offsets_of(self, group_id: str) -> TopicOffsets:
        """A group's committed offsets by topic and partition, to be looked at and not to be changed."""
        return self._context.offsets.of_group(group_id)

    @property
    def counts(self) -> Counts:
        """What happened since the shard was made."""
        return self._context.counts

    @property
    def offset_count(self) -> int:
        """How many offsets are committed in all groups."""
        return self._context.offsets.count

    # Loading

    def replay(self, key: bytes | None, value: bytes | None, *, offset: int = -1, producer_id: int = -1) -> None:
        """Take over a record of the log while loading; value None is a tombstone.

        Records of other kinds of groups are counted and left alone. Errors: Malformed for bytes that do not decode.
        """
        record = None if key is None else decode_record(key, value)
        if record is None:
            self._context.counts.skipped_records += 1
        elif isinstance(record, OffsetRecord):
            self._replay_offset(record, offset, producer_id)
        elif record.value_message is None:
            self._remove_group(record.key_message.group)
        else:
            restore_group(self._context, record.key_message.group, record.value_message)

    def replay_marker(self, producer_id: int, *, committed: bool) -> None:
        """Take over the end of a transaction."""
        self._context.offsets.replay_marker(producer_id, committed=committed)

    def on_loaded(self, *, now_ms: int, timestamp_ms: int) -> GroupOutcome:
        """Every record was replayed: the members' sessions begin. A group beyond group.max.size has to rebalance."""
        context = self._at(now_ms, timestamp_ms)
        for group in context.groups.values():
            group.subscribed_topics = group.compute_subscribed_topics()
            for member in group.members.values():
                context.extend_session(member)
            if len(group.members) > context.settings.group_max_size:
                rebalance.prepare(context, group)
        context.schedule(self._expiry, context.settings.offsets_retention_check_interval_ms)
        return self._outcome(None)

    def unload(self, *, now_ms: int, timestamp_ms: int) -> None:
        """Another broker coordinates these groups, or none: all parked requests are answered NOT_COORDINATOR."""
        context = self._at(now_ms, timestamp_ms)
        context.timers.cancel(self._expiry)
        for group in list(context.groups.values()):
            for member in group.members.values():
                context.answer_join(group, member, join_error(ErrorCode.NOT_COORDINATOR, member.member_id))
                context.answer_sync(member, sync_error(ErrorCode.NOT_COORDINATOR))
            context.forget_group(group)
            group.transition(DEAD, timestamp_ms=timestamp_ms)

    # Inside

    def _at(self, now_ms: int, timestamp_ms: int) -> Context:
        context = self._context
        context.now_ms = now_ms
        context.timestamp_ms = timestamp_ms
        assert not context.records, "a decision before this one did not end"
        return context

    def _outcome(self, response: Any, request: Any = None, api_version: int = 0) -> GroupOutcome:
        context = self._context
        records, writes = context.records, context.writes
        context.records, context.writes = [], []
        return GroupOutcome(records, response, writes, request, api_version)

    def _expire(self) -> None:
        context = self._context
        expiry.expire(context)
        context.schedule(self._expiry, context.settings.offsets_retention_check_interval_ms)

    def _replay_offset(self, record: OffsetRecord, offset: int, producer_id: int) -> None:
        key = record.key_message
        value = record.value_message
        context = self._context
        if value is not None and key.group not in context.groups:
            # Committed without membership: a group without a protocol.
            rebalance.create_group(context, key.group)
        context.offsets.replay(key, value, record_offset=offset, producer_id=producer_id)

    def _remove_group(self, group_id: str) -> None:
        group = self._context.groups.get(group_id)
        if group is not None:
            self._context.forget_group(group)
