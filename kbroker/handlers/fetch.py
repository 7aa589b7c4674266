"""Fetch: see kbroker.replication.fetching for what is read, kbroker.replication.fetch_session for what is answered."""

from __future__ import annotations

from collections.abc import Hashable
from itertools import groupby
from operator import attrgetter

from kbroker.broker import Broker
from kbroker.handlers import Context, handles
from kbroker.replication.fetch_session import FIRST_VERSION_WITH_TOPIC_IDS, FetchedPartition, Told
from kbroker.replication.fetching import FetchRound, PartitionAnswer
from wire.errors import ErrorCode
from wire.messages.fetch import (
    EpochEndOffset,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
)
from wire.types import ZERO_UUID

READ_COMMITTED = 1
FIRST_VERSION_WITH_NODE_ENDPOINTS = 16


@handles(FetchRequest, versions="4-17", on_error=lambda request, code: FetchResponse(error_code=code, responses=[]))
async def fetch(request: FetchRequest, broker: Broker, context: Context) -> FetchResponse:
    """Read from the partitions of the request (or of its session), waiting for min_bytes at most max_wait_ms."""
    by_id = context.api_version >= FIRST_VERSION_WITH_TOPIC_IDS
    replica_id = request.replica_id if request.replica_state is None else request.replica_state.replica_id
    session = broker.fetch_sessions.begin(
        session_id=request.session_id,
        session_epoch=request.session_epoch,
        asked=_asked(request, broker, by_id=by_id),
        forgotten=_forgotten(request, by_id=by_id),
        uses_topic_ids=by_id,
        now_ms=broker.env.now_ms(),
    )
    if session.error is not ErrorCode.NONE:
        return FetchResponse(error_code=session.error, responses=[])
    this_round = FetchRound(
        session.partitions,
        broker.find_fetched,
        max_bytes=min(request.max_bytes, broker.settings.fetch.fetch_max_bytes),
        min_bytes=request.min_bytes,
        replica_id=replica_id,
        read_committed=request.isolation_level == READ_COMMITTED,
    )
    this_round.read()
    if request.max_wait_ms > 0 and not this_round.answers_at_once:
        keys = [answer.partition.key for answer in this_round.answers if answer.partition is not None]
        await context.wait(broker.purgatory, *keys, until=this_round.is_satisfied, max_wait_ms=request.max_wait_ms)
        this_round.read()
    if session.is_superseded:
        return FetchResponse(
            error_code=ErrorCode.INVALID_FETCH_SESSION_EPOCH, session_id=request.session_id, responses=[]
        )
    answered = [_partition_data(answer, context, request) for answer in this_round.answers]
    session_id, selected = session.select(
        [_told(answer, data) for answer, data in zip(this_round.answers, answered, strict=True)],
        is_follower=replica_id >= 0,
        uses_topic_ids=by_id,
        now_ms=broker.env.now_ms(),
    )
    return FetchResponse(
        session_id=session_id,
        responses=_grouped([(this_round.answers[index], answered[index]) for index in selected]),
        node_endpoints=_leaders(answered, broker, context) if replica_id < 0 else [],
    )


def _asked(request: FetchRequest, broker: Broker, *, by_id: bool) -> list[FetchedPartition]:
    asked = []
    for topic in request.topics:
        name = broker.topic_name(topic.topic_id) if by_id else topic.topic
        topic_id = topic.topic_id if by_id else ZERO_UUID
        for partition in topic.partitions:
            asked.append(
                FetchedPartition(
                    name,
                    topic_id,
                    partition.partition,
                    partition.fetch_offset,
                    partition.partition_max_bytes,
                    partition.current_leader_epoch,
                    partition.last_fetched_epoch,
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


def _partition_data(answer: PartitionAnswer, context: Context, request: FetchRequest) -> PartitionData:
    asked, read = answer.asked, answer.read
    if read is None:
        # Records are empty, not null: several clients index into them without a look at the error.
        data = PartitionData(
            partition_index=asked.index,
            error_code=answer.error_code,
            high_watermark=-1,
            last_stable_offset=-1,
            log_start_offset=-1,
            aborted_transactions=None,
            records=b"",
        )
        fenced = answer.error_code in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)
        if fenced and answer.partition is not None and context.api_version >= FIRST_VERSION_WITH_NODE_ENDPOINTS:
            partition = answer.partition
            data.current_leader = LeaderIdAndEpoch(leader_id=partition.leader, leader_epoch=partition.leader_epoch)
        return data
    return PartitionData(
        partition_index=asked.index,
        high_watermark=read.high_watermark,
        last_stable_offset=read.last_stable_offset,
        log_start_offset=read.log_start_offset,
        diverging_epoch=EpochEndOffset(epoch=read.diverging.leader_epoch, end_offset=read.diverging.end_offset)
        if read.diverging is not None
        else None,
        aborted_transactions=[] if request.isolation_level == READ_COMMITTED else None,
        records=(read.records.records if read.records is not None else None) or b"",
    )


def _told(answer: PartitionAnswer, data: PartitionData) -> Told:
    return Told(
        data.error_code,
        data.high_watermark,
        data.log_start_offset,
        answer.size,
        must_be_told=data.diverging_epoch is not None,
    )


def _grouped(answered: list[tuple[PartitionAnswer, PartitionData]]) -> list[FetchableTopicResponse]:
    """Neighbours of one topic under one heading, in the order of the session."""
    return [
        FetchableTopicResponse(topic=name or "", topic_id=topic_id, partitions=[data for _, data in neighbours])
        for (name, topic_id), neighbours in groupby(answered, lambda pair: _TOPIC(pair[0].asked))
    ]


_TOPIC = attrgetter("name", "topic_id")


def _leaders(answered: list[PartitionData], broker: Broker, context: Context) -> list[NodeEndpoint]:
    named = {data.current_leader.leader_id for data in answered if data.current_leader is not None}
    return [
        NodeEndpoint(node_id=node.id, host=node.host, port=node.port, rack=node.rack)
        for node in broker.nodes(context.listener)
        if node.id in named
    ]
