"""All groups of one partition of `__consumer_offsets`, as a state machine without I/O.

It is a Shard of the coordinator runtime (see common/ports.py). Rules for the caller:

- OffsetCommit decisions may share an append. Decide several, append all their records, then call on_appended for each
  outcome in the same order.
- JoinGroup and SyncGroup requests may have to wait; their response is then `Parked`. If the connection of a parked
  request closes, call nothing and drop the answer: the member stays in the group until its session expires, as in
  Kafka.
- After the first JoinGroup of a group, on_time is often due immediately, because `group.initial.rebalance.delay.ms` may
  be 0.
- To load a shard, call `replay` for every record from the start of the partition, then make the decisions of
  `after_loading`. The shard makes no decisions before that.

Times: now_ms is monotonic and drives the timers; timestamp_ms is wall time and is stored.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any, Final
from uuid import UUID

from kbroker.config.groups import GroupSettings
from kbroker.coordinator import describing, expiry, rebalance
from kbroker.coordinator.caller import Caller
from kbroker.coordinator.committing import offset_commit, offset_delete, offset_fetch, txn_offset_commit
from kbroker.coordinator.common.ports import Decide, Decided, Job, Parked
from kbroker.coordinator.consumer import classic_members
from kbroker.coordinator.consumer.describing import describe_consumer_group
from kbroker.coordinator.consumer.fencing import fence_expired
from kbroker.coordinator.consumer.group import ConsumerGroup
from kbroker.coordinator.consumer.heartbeat import consumer_group_heartbeat
from kbroker.coordinator.consumer.records import ConsumerRecord, decode_consumer_record
from kbroker.coordinator.consumer.replaying import replay as replay_consumer_record
from kbroker.coordinator.consumer.timing import start_group
from kbroker.coordinator.context import Context, Counts, Write
from kbroker.coordinator.describing import delete_groups
from kbroker.coordinator.group import Group
from kbroker.coordinator.joining import join_group
from kbroker.coordinator.leaving import heartbeat, leave_group
from kbroker.coordinator.offsets import TopicOffsets
from kbroker.coordinator.records import GroupRecord, OffsetRecord, decode_record
from kbroker.coordinator.refusals import in_version, join_error, refuse, response_code, sync_error
from kbroker.coordinator.syncing import sync_group
from kbroker.coordinator.timers import Timer
from kbroker.metadata.image import Image
from wire.batch_header import NO_PRODUCER_ID
from wire.errors import ErrorCode, KafkaError
from wire.messages.consumer_group_describe import DescribedGroup as DescribedConsumerGroup
from wire.messages.consumer_group_describe import Member
from wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
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
from wire.messages.txn_offset_commit import TxnOffsetCommitRequest
from wire.types import ZERO_UUID

PENDING_BYTES: Final = 1 << 20

_DECISIONS: Final[dict[type, Callable[[Context, Any, Caller], Any]]] = {
    JoinGroupRequest: join_group,
    SyncGroupRequest: sync_group,
    HeartbeatRequest: heartbeat,
    LeaveGroupRequest: leave_group,
    OffsetCommitRequest: offset_commit,
    TxnOffsetCommitRequest: txn_offset_commit,
    OffsetDeleteRequest: offset_delete,
    DeleteGroupsRequest: delete_groups,
    ConsumerGroupHeartbeatRequest: consumer_group_heartbeat,
}


@dataclass(frozen=True, slots=True, eq=False)
class GroupOutcome(Decided):
    """The result of a decision about groups, with the actions that follow a successful or a failed append."""

    writes: list[Write] = field(default_factory=list, repr=False)


class GroupShard:
    """The groups of one partition of `__consumer_offsets`.

    Shape   new_uuid returns the random part of member ids
    Bound   max_pending_bytes for member ids that were assigned but not used yet
    """

    __slots__ = ("_context", "_expiry", "_fencing", "_settling")

    def __init__(
        self, settings: GroupSettings, *, new_uuid: Callable[[], UUID], max_pending_bytes: int = PENDING_BYTES
    ) -> None:
        self._context = Context(settings, new_uuid, max_pending_bytes)
        self._expiry = Timer(self._expire)
        self._fencing = Timer()
        self._settling = Timer()

    def on_image(self, image: Image, changed_topics: Collection[str] = (), *, has_new_topics: bool = True) -> None:
        """Follow the metadata. Groups that subscribe to changed topics compare them at the next heartbeat."""
        context = self._context
        context.image = image
        if has_new_topics:
            context.new_topics_version = image.offset
        for group in context.groups.values() if changed_topics else ():
            if isinstance(group, ConsumerGroup) and any(map(group.is_subscribed_to, changed_topics)):
                group.refreshed_epoch = None

    def reconfigure(self, settings: GroupSettings) -> None:
        """Use these settings from now on."""
        self._context.settings = settings

    # Deciding

    def decide(self, request: Any, caller: Caller, *, now_ms: int, timestamp_ms: int) -> GroupOutcome:
        """Decide a request for groups of this shard.

        Errors  in the response, as the protocol defines them; nothing is raised
        """
        context = self._at(now_ms, timestamp_ms)
        try:
            context.unserved.refuse(getattr(request, "group_id", ""), request, caller.api_version)
            response = _DECISIONS[type(request)](context, request, caller)
        except KafkaError as error:
            self._drop(error.code)
            response = refuse(request, error.code, caller.api_version, error.message)
        except Exception:
            self._drop(ErrorCode.UNKNOWN_SERVER_ERROR)  # a fault must not leave its records to the next decision
            raise
        if type(response) is JoinGroupResponse:
            in_version(response, caller.api_version)
        return self._outcome(response, partial(_refused, request, caller.api_version))

    def on_time(self, *, now_ms: int, timestamp_ms: int, aging_timestamp_ms: int | None = None) -> GroupOutcome:
        """Run all timers that are due: session timeouts, rebalance phases, and the expiry of offsets.

        aging_timestamp_ms is the time that expiry compares with; it differs from timestamp_ms while the wall clock is
        not trusted.
        """
        context = self._at(now_ms, timestamp_ms)
        context.aging_timestamp_ms = timestamp_ms if aging_timestamp_ms is None else aging_timestamp_ms
        while (timer := context.timers.due(now_ms)) is not None:
            timer.action()
        context.offsets.settle()
        self._settle_soon()
        # Members of consumer groups are fenced in a batch of their own, which must not be split.
        refuse = None if context.records or not fence_expired(context) else nothing_to_refuse
        if context.expired:
            context.schedule(self._fencing, 0)
        return self._outcome(None, refuse)

    def next_deadline_ms(self) -> int | None:
        """When to call on_time next; None if never. The result may be too early, which is harmless, but is never too
        late.
        """
        return self._context.timers.next_deadline_ms()

    def on_topics_deleted(self, topics: Iterable[tuple[UUID, str]], *, now_ms: int, timestamp_ms: int) -> GroupOutcome:
        """Delete the offsets of deleted topics, given as ids and names, and offsets without an id of these names."""
        gone = {(known_id, name) for topic_id, name in topics for known_id in (topic_id, ZERO_UUID)}
        return self._forget_topics(gone, now_ms=now_ms, timestamp_ms=timestamp_ms)

    def on_appended(self, outcome: GroupOutcome, *, now_ms: int, timestamp_ms: int, base_offset: int = -1) -> None:
        """Apply an outcome whose records are now in the log, the first one at base_offset."""
        context = self._at(now_ms, timestamp_ms)
        producer_id = NO_PRODUCER_ID if outcome.producer is None else outcome.producer.producer_id
        for index, record in enumerate(outcome.records):
            if isinstance(record, ConsumerRecord):
                self._replay_consumer_group(record)
            elif isinstance(record, OffsetRecord):
                self._replay_offset(record, base_offset + index if base_offset >= 0 else -1, producer_id)
            else:
                self._note_stored(record)
        for write in outcome.writes:
            write.on_appended()
        assert not context.records, "on_appended must not produce records"

    def on_append_failed(self, outcome: GroupOutcome, code: ErrorCode, *, now_ms: int, timestamp_ms: int) -> None:
        """Undo an outcome whose records could not be appended.

        The effects are undone as in Kafka: a new group is removed, a leader's assignment is dropped and its group
        rebalances, a static member gets its old id back. The answers to parked requests are available from
        take_answers.
        """
        self._at(now_ms, timestamp_ms)
        for write in outcome.writes:
            write.on_failed(response_code(code))
        assert not self._context.records, "on_failed must not produce records"

    def take_answers(self) -> list[tuple[Parked, JoinGroupResponse | SyncGroupResponse]]:
        """The answers to parked requests since the last call. Each parked request is answered once."""
        answers, self._context.answers = self._context.answers, []
        return answers

    # Reading

    def fetch_offsets(
        self, request: OffsetFetchRequestGroup, *, require_stable: bool = False
    ) -> OffsetFetchResponseGroup:
        """The committed offsets of one group. The request gives topics by name; topic ids may be zero."""
        return offset_fetch(self._context, request, require_stable=require_stable)

    def list_groups(self, states: Collection[str] = (), types: Collection[str] = ()) -> list[ListedGroup]:
        """The groups of this shard in these states and of these types, given as lower-case names; no names allow all
        groups.
        """
        return describing.list_groups(self._context.groups.values(), states, types)

    def describe_group(self, group_id: str, api_version: int) -> DescribedGroup:
        """Describe a group. The caller fills in authorized_operations."""
        return describing.describe_group(self.group(group_id), group_id, api_version)

    def group_ids(self) -> list[str]:
        """The ids of all groups."""
        return list(self._context.groups)

    def describe_consumer_group(self, group_id: str) -> tuple[DescribedConsumerGroup, Iterator[Member]]:
        """Describe a consumer group. The caller adds the members, which follow, and authorized_operations."""
        return describe_consumer_group(self._context, group_id)

    def is_computing(self, group_id: str) -> bool:
        """Whether a thread computes the target assignment of a consumer group."""
        return group_id in self._context.computing

    def group(self, group_id: str) -> Group | ConsumerGroup | None:
        """A group, or None. Read-only."""
        return self._context.groups.get(group_id)

    def named_topics(self, request: JoinGroupRequest | ConsumerGroupHeartbeatRequest) -> Collection[str]:
        """The topics by name of which the decision needs to know whether the sender may describe them."""
        group = self.group(request.group_id)
        if isinstance(request, JoinGroupRequest):
            return classic_members.subscribed_topics(request) if isinstance(group, ConsumerGroup) else ()
        # A member that joins makes a classic group a consumer group.
        return (group.subscribed_topics or ()) if isinstance(group, Group) and request.member_epoch == 0 else ()

    def offsets_of(self, group_id: str) -> TopicOffsets:
        """A group's committed offsets by topic and partition. Read-only."""
        return self._context.offsets.of_group(group_id)

    @property
    def counts(self) -> Counts:
        """Counters since the shard was created."""
        return self._context.counts

    def sizes(self) -> dict[str, int]:
        """The numbers of groups and of committed offsets."""
        return {"groups": len(self._context.groups), "offsets": self.offset_count}

    @property
    def offset_count(self) -> int:
        """The number of committed offsets in all groups."""
        return self._context.offsets.count

    # Loading

    def replay(self, key: bytes | None, value: bytes | None, *, offset: int = -1, producer_id: int = -1) -> None:
        """Apply a record from the log while loading; value None is a tombstone.

        Errors: Malformed if the bytes do not decode.
        """
        record = None if key is None else decode_record(key, value) or decode_consumer_record(key, value)
        if key is None:
            return
        if record is None:
            made = self._context.classic_group(self._context.unserved.replay(key, value) or "")
            if made is not None:  # made for offsets that are before this record in a compacted log
                self._context.forget_group(made)
            return
        if isinstance(record, ConsumerRecord):
            self._replay_consumer_group(record)
            return
        if isinstance(record, OffsetRecord):
            self._replay_offset(record, offset, producer_id)
        else:
            self._note_stored(record)
            if record.value_message is not None:
                rebalance.restore_group(self._context, record.key_message.group, record.value_message)

    def replay_marker(self, producer_id: int, *, committed: bool) -> None:
        """Apply a transaction marker that is in the log: the transaction's offsets become visible or are dropped."""
        self._context.offsets.replay_marker(producer_id, committed=committed)
        self._settle_soon()

    def after_loading(self, image: Image) -> list[Decide]:
        """The first decisions: start the members' sessions, and delete the offsets of topics that no longer exist.

        Topics may have been deleted during loading, or just before a crash. They are collected before any client can
        commit: offsets committed after that belong to topics that exist. So does an offset without an id whose topic
        exists.
        """
        self.on_image(image)
        gone = {
            (committed.topic_id, name)
            for _, name, _, committed in chain(self._context.offsets.committed(), self._context.offsets.pending)
            if (topic := image.topics_by_name.get(name)) is None or not committed.is_of(topic.id)
        }
        return [self.on_loaded, *([partial(self._forget_topics, gone)] if gone else [])]

    def on_loaded(self, *, now_ms: int, timestamp_ms: int) -> GroupOutcome:
        """Finish loading: start the members' sessions. A group that exceeds group.max.size has to rebalance."""
        context = self._at(now_ms, timestamp_ms)
        for group in context.groups.values():
            if isinstance(group, ConsumerGroup):
                start_group(context, group)
                continue
            group.subscribed_topics = group.compute_subscribed_topics()
            for member in group.members.values():
                context.extend_session(member)
            if len(group.members) > context.settings.group_max_size:
                rebalance.prepare(context, group)
        context.schedule(self._expiry, context.settings.offsets_retention_check_interval_ms)
        return self._outcome(None)

    def unload(self, *, now_ms: int, timestamp_ms: int) -> None:
        """Stop coordinating these groups: answer all parked requests with NOT_COORDINATOR."""
        context = self._at(now_ms, timestamp_ms)
        context.timers.cancel(self._expiry)
        for group in list(context.groups.values()):
            if isinstance(group, ConsumerGroup):
                continue  # its requests do not wait
            for member in group.members.values():
                context.answer_join(group, member, join_error(ErrorCode.NOT_COORDINATOR, member.member_id))
                context.answer_sync(member, sync_error(ErrorCode.NOT_COORDINATOR))
            context.forget_group(group)

    # Internals
    def _at(self, now_ms: int, timestamp_ms: int) -> Context:
        context = self._context
        context.now_ms = now_ms
        context.timestamp_ms = timestamp_ms
        assert not context.records, "the previous decision is not finished"
        return context

    def _outcome(self, response: Any, refuse: Callable[[ErrorCode], Any] | None = None) -> GroupOutcome:
        context = self._context
        if not context.records:
            for write in context.writes:
                write.on_appended()
            context.writes = []
        records, writes = context.records, context.writes
        jobs = [Job(run, partial(self._finishing, finish)) for run, finish in context.jobs]
        context.records, context.writes, context.jobs = [], [], []
        return GroupOutcome(records, response, refuse, None, jobs, writes)

    def _finishing(self, finish: Callable[[Any], None], result: Any) -> Decide:
        """The decision that follows a job."""

        def decide(*, now_ms: int, timestamp_ms: int) -> GroupOutcome:
            self._at(now_ms, timestamp_ms)
            finish(result)
            return self._outcome(None, nothing_to_refuse)

        return decide

    def _drop(self, code: ErrorCode) -> None:
        """Undo a decision that raised an error."""
        context = self._context
        for write in context.writes:
            write.on_failed(code)
        context.records, context.writes, context.jobs = [], [], []

    def _settle_soon(self) -> None:
        if not self._context.offsets.is_settled:
            self._context.schedule(self._settling, 0)

    def _forget_topics(self, gone: Collection[tuple[UUID, str]], *, now_ms: int, timestamp_ms: int) -> GroupOutcome:
        expiry.forget_topics(self._at(now_ms, timestamp_ms), gone)
        return self._outcome(None)

    def _expire(self) -> None:
        context = self._context
        expiry.expire(context)
        context.schedule(self._expiry, context.settings.offsets_retention_check_interval_ms)

    def _replay_offset(self, record: OffsetRecord, offset: int, producer_id: int) -> None:
        key = record.key_message
        value = record.value_message
        context = self._context
        if value is not None and key.group not in context.groups and key.group not in context.unserved:
            # Offsets without a group record: the group has no members and no protocol.
            rebalance.create_group(context, key.group)
        context.offsets.replay(key, value, record_offset=offset, producer_id=producer_id)

    def _replay_consumer_group(self, record: ConsumerRecord) -> None:
        context = self._context
        group_id = record.key_message.group_id
        group = context.groups.get(group_id)
        if not isinstance(group, ConsumerGroup):
            if record.value_message is None:
                return  # the group is gone, or is a classic group now
            if group is not None:
                context.forget_group(group)
            group = context.groups[group_id] = ConsumerGroup(group_id)
        if not replay_consumer_record(group, record):
            del context.groups[group_id]

    def _note_stored(self, record: GroupRecord) -> None:
        group = self._context.classic_group(record.key_message.group)
        if group is not None and record.value_message is None:
            self._context.forget_group(group)


def nothing_to_refuse(_: ErrorCode) -> None:
    """The refusal of a decision that answers no request, but whose records must stay together."""


def _refused(request: Any, api_version: int, code: ErrorCode) -> Any:
    """The response to send if the records of a decision were not stored."""
    return refuse(request, response_code(code), api_version)
