"""Fetch: read batches. See kbroker.replication.fetching for reading, kbroker.replication.fetch_session for sessions.

Each Fetch asks again whether the client may read the topics of its session, and once more after it has waited. So a
right that is taken away counts at once, except for a read from the tier that has begun. Kafka still answers a Fetch
that waits. A client with a replica id must be a broker.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Set
from typing import Final

from kbroker.broker import Broker
from kbroker.broker.client_quotas import PARTITION_BYTES
from kbroker.broker.remote_fetching import read_remote
from kbroker.handlers import Context, handles
from kbroker.replication.fetch_session import FIRST_VERSION_WITH_TOPIC_IDS, NO_SESSION, FetchContext, FetchedPartition
from kbroker.replication.fetching import FetchRound, PartitionAnswer
from kbroker.replication.partition import Partition
from kbroker.replication.partition_reads import NO_EPOCH
from kbroker.security.authorizing import Operation, ResourceType
from wire.errors import ErrorCode, KafkaError
from wire.messages.fetch import (
    AbortedTransaction,
    EpochEndOffset,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from wire.messages.produce import LeaderIdAndEpoch
from wire.schema import maker
from wire.types import ZERO_UUID

READ_COMMITTED: Final = 1
MANY_PARTITIONS: Final = 500
"""A Fetch of more partitions is read in a thread, and its response is made in turns."""
FIRST_VERSION_WITH_STORAGE_ERRORS: Final = 6
FIRST_VERSION_WITH_RACKS: Final = 11
FIRST_VERSION_WITH_NODE_ENDPOINTS: Final = 16
_response: Final = maker(FetchResponse)
_topic_response: Final = maker(FetchableTopicResponse)
_partition_data: Final = maker(PartitionData)
_LEADERSHIP_ERRORS: Final = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)


@handles(FetchRequest, versions="4-18", on_error=lambda request, code: FetchResponse(error_code=code, responses=[]))
async def fetch(request: FetchRequest, broker: Broker, context: Context) -> FetchResponse:
    """Read from the partitions of the request or its session; wait for min_bytes for at most max_wait_ms."""
    by_id = context.api_version >= FIRST_VERSION_WITH_TOPIC_IDS
    now_ms = broker.env.now_ms()
    session = broker.fetch_sessions.begin(
        owner=context.principal,
        session_id=request.session_id,
        session_epoch=request.session_epoch,
        asked=_asked(request, broker, by_id=by_id),
        forgotten=_forgotten(request, by_id=by_id) if request.forgotten_topics_data else (),
        uses_topic_ids=by_id,
        now_ms=now_ms,
    )
    if session.error is not ErrorCode.NONE:
        return FetchResponse(error_code=session.error, responses=[])
    state = request.replica_state
    fetcher = broker.fetcher(
        request.replica_id if state is None else state.replica_id,
        replica_epoch=NO_EPOCH if state is None else state.replica_epoch,
        read_committed=request.isolation_level == READ_COMMITTED,
        may_read_follower=context.api_version >= FIRST_VERSION_WITH_RACKS,
    )
    find: Callable[[FetchedPartition], Partition] = broker.find_fetched
    rights: _Rights | None = None
    if context.authorizer is not None:
        rights = _Rights(session.partitions, broker, context, is_follower=fetcher.is_follower)
        await rights.ask()
        find = rights.find
    # A client that only claims to be a broker has the quotas of a client, and its session no precedence.
    is_broker = fetcher.is_follower and (rights is None or rights.may_follow)
    max_bytes = min(request.max_bytes, broker.settings.fetch.fetch_max_bytes)
    context.is_charged = is_broker
    if context.measures and not is_broker:
        max_bytes = min(max_bytes, broker.quotas.max_fetch_bytes(context, now_ms))
    this_round = FetchRound(
        session.partitions,
        find,
        fetcher=fetcher,
        max_bytes=max_bytes,
        min_bytes=request.min_bytes,
        prefer=broker.replica_chooser(request.rack_id, context.listener) if request.rack_id else None,
        is_throttled=broker.leader_throttle(fetcher.replica_id) if fetcher.is_follower else None,
    )
    context.is_large = len(session.partitions) > MANY_PARTITIONS
    await _read(this_round, broker, off_the_loop=context.is_large)
    this_round.set_unknown_aside()
    if is_broker:
        broker.note_follower(this_round, now_ms)
    if request.max_wait_ms > 0 and not this_round.answers_at_once:
        keys = [answer.partition.key for answer in this_round.answers if answer.partition is not None]
        await context.wait(
            broker.purgatory,
            *keys,
            until=this_round.is_satisfied,
            max_wait_ms=request.max_wait_ms,
            waits_for_appends=fetcher.is_replica,
        )
        if rights is not None:
            await rights.ask()
        await _read(this_round, broker, off_the_loop=context.is_large)
    if this_round.remote:
        is_expired = await read_remote(
            this_round,
            broker.tier.reader,
            broker.env,
            context,
            max_wait_ms=max(0, request.max_wait_ms),
            remote_wait_ms=broker.settings.tier.remote_fetch_max_wait_ms,
        )
        broker.tier.expired_fetches += is_expired  # separate from the await: other tasks change the counter during it
    if session.is_superseded:
        return FetchResponse(
            error_code=ErrorCode.INVALID_FETCH_SESSION_EPOCH, session_id=request.session_id, responses=[]
        )
    if context.measures and not is_broker and _is_throttled(this_round, session, broker, context):
        named = NO_SESSION if session.session is None else session.session.id
        return FetchResponse(session_id=named, responses=[])
    session_id, selected = session.select(
        this_round.answers, is_follower=is_broker, uses_topic_ids=by_id, now_ms=now_ms
    )
    response = _response(session_id=session_id, responses=[])
    leaders: set[int] = set()
    topic: FetchableTopicResponse | None = None
    for answer in selected:
        if context.is_large and broker.turns.due():
            await broker.turns.next()
        asked = answer.asked
        # Consecutive partitions of one topic share one topic entry, in the order of the session.
        if topic is None or topic.topic_id != (asked.topic_id or ZERO_UUID) or topic.topic != (asked.name or ""):
            topic = _topic_response(topic=asked.name or "", topic_id=asked.topic_id or ZERO_UUID, partitions=[])
            response.responses.append(topic)
        if answer.error is None:
            assert answer.read is not None
            assert answer.partition is not None
            if fetcher.is_follower:
                broker.count_sent(answer.partition, answer.read.size)
            else:
                answer.partition.traffic.bytes_out += answer.read.size
            topic.partitions.append(_found(answer, reads_committed=request.isolation_level == READ_COMMITTED))
        else:
            context.has_errors = True
            data = _failed(answer, broker, context.api_version)
            topic.partitions.append(data)
            if data.current_leader is not None:
                leaders.add(data.current_leader.leader_id)
    if leaders and not fetcher.is_follower:
        response.node_endpoints = [node for node in broker.nodes(context.listener) if node.node_id in leaders]
    return response


class _Rights:
    """What the sender of a Fetch may read: a consumer the topics that it may read, a follower all or nothing.

    may_follow  whether it is a follower with the right to be one
    """

    def __init__(self, asked: list[FetchedPartition], broker: Broker, context: Context, *, is_follower: bool) -> None:
        for one in asked:
            if one.name is None and one.topic_id is not None:
                one.name = broker.topic_name(one.topic_id)
        self.may_follow = self._is_follower = is_follower
        self._readable: Set[str] = {one.name for one in asked if one.name is not None}
        self._broker = broker
        self._context = context

    async def ask(self) -> None:
        """Ask the authorizer, once for each topic; later only for what was allowed."""
        context = self._context
        if self._is_follower:
            self.may_follow = self.may_follow and context.may(Operation.CLUSTER_ACTION, ResourceType.CLUSTER)
            return
        turns = self._broker.turns
        self._readable -= await context.denied(Operation.READ, ResourceType.TOPIC, self._readable, turns)

    def find(self, one: FetchedPartition) -> Partition:
        """The partition. Errors: TOPIC_AUTHORIZATION_FAILED, UNKNOWN_TOPIC_ID, and those of Broker.find_fetched."""
        if self._is_follower and not self.may_follow:
            raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        if one.name is None:  # it may be known by now, but then its name was not checked
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, f"there is no topic with id {one.topic_id}")
        if not (self._is_follower or one.name in self._readable):
            raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        return self._broker.find_fetched(one)


def _is_throttled(this_round: FetchRound, session: FetchContext, broker: Broker, context: Context) -> bool:
    """Charge the client; whether it gets an empty response. The response of a session has only what has changed."""
    size = sum(answer.size + PARTITION_BYTES for answer in this_round.answers if answer.size or session.session is None)
    loop_ns = broker.env.now_ns() - context.started_ns - context.waited_ns
    context.throttle_ms, is_empty = broker.quotas.charge_fetch(context, size, loop_ns, broker.env.now_ms())
    context.is_charged = True
    return is_empty


async def _read(this_round: FetchRound, broker: Broker, *, off_the_loop: bool) -> None:
    if off_the_loop or not this_round.read():
        await broker.env.run_blocking(this_round.read_blocking)
        this_round.refuse_retired()


def _asked(request: FetchRequest, broker: Broker, *, by_id: bool) -> list[FetchedPartition]:
    asked = []
    for topic in request.topics:
        name = broker.topic_name(topic.topic_id) if by_id else topic.topic
        topic_id = topic.topic_id if by_id else None
        for partition in topic.partitions:
            asked.append(
                FetchedPartition(
                    name,
                    topic_id,
                    partition.partition,
                    partition.fetch_offset,
                    partition.partition_max_bytes,
                    # Any negative epoch means "no epoch".
                    max(NO_EPOCH, partition.current_leader_epoch),
                    max(NO_EPOCH, partition.last_fetched_epoch),
                    partition.log_start_offset,
                )
            )
    return asked


def _forgotten(request: FetchRequest, *, by_id: bool) -> list[Hashable]:
    return [
        (topic.topic_id if by_id else topic.topic, index)
        for topic in request.forgotten_topics_data
        for index in topic.partitions
    ]


def _found(answer: PartitionAnswer, *, reads_committed: bool) -> PartitionData:
    read = answer.read
    assert read is not None
    aborted = None
    if reads_committed and read.diverging is None:
        aborted = [
            AbortedTransaction(producer_id=one.producer_id, first_offset=one.first_offset) for one in read.aborted
        ]
    data = _partition_data(
        partition_index=answer.asked.index,
        high_watermark=read.high_watermark,
        last_stable_offset=read.last_stable_offset,
        log_start_offset=read.log_start_offset,
        aborted_transactions=aborted,
        preferred_read_replica=answer.preferred_replica,
        records=read.records or b"",
    )
    if read.diverging is not None:
        data.diverging_epoch = EpochEndOffset(epoch=read.diverging.leader_epoch, end_offset=read.diverging.end_offset)
    return data


def _failed(answer: PartitionAnswer, broker: Broker, version: int) -> PartitionData:
    code = answer.error_code
    if code is ErrorCode.KAFKA_STORAGE_ERROR and version < FIRST_VERSION_WITH_STORAGE_ERRORS:
        # Older clients do not know KAFKA_STORAGE_ERROR and would not retry.
        code = ErrorCode.NOT_LEADER_OR_FOLLOWER
    data = PartitionData(
        partition_index=answer.asked.index,
        error_code=code,
        # Known if the requested offset has moved to the tier: a follower needs the offsets then.
        high_watermark=answer.high_watermark,
        last_stable_offset=-1,
        log_start_offset=answer.log_start_offset,
        aborted_transactions=[] if answer.is_unknown else None,
        # Empty, not null: several clients read records without checking the error code first.
        records=b"",
    )
    if code in _LEADERSHIP_ERRORS and version >= FIRST_VERSION_WITH_NODE_ENDPOINTS and answer.asked.name is not None:
        leader, epoch = broker.current_leader(answer.asked.name, answer.asked.index)
        data.current_leader = LeaderIdAndEpoch(leader_id=leader, leader_epoch=epoch)
    return data
