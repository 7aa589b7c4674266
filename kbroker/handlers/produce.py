"""Produce: append batches to partitions, and reply when as many replicas have them as `acks` requires.

The reply is never UNKNOWN_SERVER_ERROR: Java's producer would send the batch again, and a producer that is not
idempotent would write it twice. With acks=0 there is no reply; after an error the broker appends the remaining batches
and then closes the connection, so that the client refreshes its metadata.

Records in topics that the broker itself reads must be readable for it (see kbroker/broker/internal_records.py).

The first batch of a transaction in a partition is verified with the transaction's coordinator before the append (see
kbroker/broker/produce_verification.py). From version 13 on topics have ids instead of names.
"""

from __future__ import annotations

from collections.abc import Set
from functools import partial
from typing import Final

from kbroker.broker import Appended, Broker
from kbroker.broker.internal_records import Check, check_of
from kbroker.broker.produce_verification import NotVerified, Verified, verify_produced
from kbroker.handlers import Context, Later, handles
from kbroker.metadata.names import is_internal
from kbroker.runtime.frames import without_frames
from kbroker.security.authorizing import Operation, ResourceType
from kbroker.storage.validation import NotOneBatch, RecordsRefused
from wire.batch_header import HEADER_SIZE, POSITIONS, TRANSACTIONAL_BIT
from wire.errors import ErrorCode, KafkaError
from wire.messages.produce import (
    BatchIndexAndErrorMessage,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from wire.schema import maker

NO_REPLY: Final = 0
LEADER_ONLY: Final = 1
ALL_IN_SYNC: Final = -1
PARTITIONS_IN_ONE_GO: Final = 16
FIRST_VERSION_WITH_CURRENT_LEADER: Final = 10
FIRST_VERSION_WITH_TOPIC_IDS: Final = 13
TOOLS_CLIENT_ID: Final = "__admin_client"
"""The client id of Kafka's own tools; only this client id may write to internal topics."""

_LOW_ATTRIBUTES: Final = POSITIONS["attributes"] + 1
_appended_response: Final = maker(PartitionProduceResponse)
_topic_response: Final = maker(TopicProduceResponse)
_response: Final = maker(ProduceResponse)
# Kafka sets log_start_offset in the reply to a refused batch, except with these codes.
_REFUSED_BEFORE_THE_LOG: Final = frozenset(
    {
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        ErrorCode.RECORD_LIST_TOO_LARGE,
        ErrorCode.INVALID_REQUIRED_ACKS,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    }
)

_RAISED_BEFORE_THE_LOG: Final = (NotOneBatch, NotVerified)


@handles(ProduceRequest, versions="3-13", advertised="0-13", on_error=lambda request, code: None)
async def produce(request: ProduceRequest, broker: Broker, context: Context) -> ProduceResponse | Later | None:
    """Append each partition's batch independently: a refused batch does not affect the others."""
    acks, version = request.acks, context.api_version
    by_id = version >= FIRST_VERSION_WITH_TOPIC_IDS
    authorizer = context.authorizer
    verified: Verified | None = None
    denied: Set[str] = frozenset()
    if _has_transactional(request):
        try:
            verified, denied = await _verify(request, broker, context)
        except KafkaError as error:
            return _refused(request, error)
    responses: list[TopicProduceResponse] = []
    waiting: list[tuple[PartitionProduceResponse, Appended]] = []
    first_error: KafkaError | None = None
    steps = 0
    for topic in request.topic_data:
        if by_id and verified is None:  # after a verification the topics keep the names that were verified
            topic.name = broker.topic_name(topic.topic_id) or ""
        answers = []
        steps += 1 + len(topic.partition_data)
        if authorizer is not None and (topic.name in denied or not _may_write(topic, context)):
            denial = KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
            first_error = first_error or denial
            context.has_errors = True
            answers = [_failed(data, denial, broker, topic.name, version) for data in topic.partition_data]
            topic.partition_data = []
        for data in topic.partition_data:
            if steps > PARTITIONS_IN_ONE_GO and broker.turns.due():
                await broker.turns.next()
            records = data.records
            assert records is None or isinstance(records, memoryview), "decoded records are a view"
            try:
                if acks not in (ALL_IN_SYNC, LEADER_ONLY, NO_REPLY) or is_internal(topic.name):
                    _refuse(topic.name, data, acks, broker, context)
                if by_id:
                    _check_topic_id(topic, data.index, broker)
                appended = await broker.append(
                    topic.name,
                    data.index,
                    records,
                    version=version,
                    all_in_sync=acks == ALL_IN_SYNC,
                    check=_check_of(topic.name, data.index, broker),
                    verification=None if verified is None else verified.of(topic.name, data.index),
                )
            except KafkaError as error:
                first_error = first_error or without_frames(error)
                context.has_errors = True
                answers.append(_failed(data, error, broker, topic.name, version))
                continue
            answer = _appended_response(
                index=data.index,
                base_offset=appended.base_offset,
                log_append_time_ms=appended.log_append_time_ms,
                log_start_offset=appended.log_start_offset,
            )
            answers.append(answer)
            if acks == ALL_IN_SYNC and not appended.is_committed:
                waiting.append((answer, appended))
        responses.append(_topic_response(name=topic.name, topic_id=topic.topic_id, partition_responses=answers))
        if steps > PARTITIONS_IN_ONE_GO and broker.turns.due():
            await broker.turns.next()
    if acks == NO_REPLY:
        if first_error is not None:
            raise first_error
        return None
    response = _response(responses=responses)
    if first_error is not None and version >= FIRST_VERSION_WITH_CURRENT_LEADER:
        response.node_endpoints = _leaders(responses, broker, context)
    if waiting:
        deadline_ms = broker.env.now_ms() + request.timeout_ms
        return Later(partial(_when_committed, response, waiting, broker, context, deadline_ms))
    return response


async def _when_committed(
    response: ProduceResponse,
    waiting: list[tuple[PartitionProduceResponse, Appended]],
    broker: Broker,
    context: Context,
    deadline_ms: int,
) -> ProduceResponse:
    """Wait for the in-sync replicas, even if the client closes its connection."""
    await broker.purgatory.wait(
        *(appended.partition.key for _, appended in waiting),
        until=lambda: all(appended.outcome() is not None for _, appended in waiting),
        max_wait_ms=deadline_ms - broker.env.now_ms(),
    )
    for answer, appended in waiting:
        code = appended.outcome()
        answer.error_code = ErrorCode.REQUEST_TIMED_OUT if code is None else code
        if code is not ErrorCode.NONE:
            context.has_errors = True
    return response


def _has_transactional(request: ProduceRequest) -> bool:
    for topic in request.topic_data:
        for data in topic.partition_data:
            records = data.records
            if (
                isinstance(records, memoryview)
                and len(records) >= HEADER_SIZE
                and records[_LOW_ATTRIBUTES] & TRANSACTIONAL_BIT
            ):
                return True
    return False


def _may_write(topic: TopicProduceData, context: Context) -> bool:
    """Whether the client may write to a topic. An unknown id is refused later, as unknown."""
    if not topic.name and context.api_version >= FIRST_VERSION_WITH_TOPIC_IDS:
        return True
    return context.may(Operation.WRITE, ResourceType.TOPIC, topic.name)


async def _verify(request: ProduceRequest, broker: Broker, context: Context) -> tuple[Verified, Set[str]]:
    """Verify the transactional batches of topics to which the client may write.

    Returns also the names of the other topics. The caller refuses them even if the client has got the right in the
    meantime: their batches are not verified.

    Errors  TRANSACTIONAL_ID_AUTHORIZATION_FAILED, also without a transactional id, and those of verify_produced
    """
    if request.transactional_id is None:
        raise KafkaError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "transactional records need an id")
    context.demand(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, request.transactional_id)
    version = context.api_version
    batches: list[tuple[str, int, memoryview | None]] = []
    denied: set[str] = set()
    by_id = version >= FIRST_VERSION_WITH_TOPIC_IDS
    for topic in request.topic_data:
        if by_id:
            topic.name = broker.topic_name(topic.topic_id) or ""
        if topic.name in denied or not _may_write(topic, context):
            denied.add(topic.name)
            continue
        for data in topic.partition_data:
            if broker.turns.due():
                await broker.turns.next()
            records = data.records
            assert records is None or isinstance(records, memoryview), "decoded records are a view"
            batches.append((topic.name, data.index, records))
    return await verify_produced(broker, request.transactional_id, batches, version=version), denied


def _check_topic_id(topic: TopicProduceData, index: int, broker: Broker) -> None:
    """Refuse an unknown id, and the id of a topic that was created again since.

    Errors  UNKNOWN_TOPIC_ID, INCONSISTENT_TOPIC_ID
    """
    if not topic.name:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, f"there is no topic with id {topic.topic_id}")
    partition = broker.find_partition((topic.name, index))
    if partition is not None and partition.topic_id != topic.topic_id:
        raise KafkaError(ErrorCode.INCONSISTENT_TOPIC_ID, f"{topic.name} now has another topic id")


def _refuse(topic: str, data: PartitionProduceData, acks: int, broker: Broker, context: Context) -> None:
    """Raise errors that do not depend on the records. For an unknown partition do nothing: `append` refuses it."""
    if broker.image.partition(topic, data.index) is None:
        return
    if acks not in (ALL_IN_SYNC, LEADER_ONLY, NO_REPLY):
        raise KafkaError(ErrorCode.INVALID_REQUIRED_ACKS, f"{acks=}")
    if context.client_id != TOOLS_CLIENT_ID:
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{topic} is internal")


def _check_of(topic: str, index: int, broker: Broker) -> Check | None:
    if not topic.startswith("__"):
        return None
    known = broker.image.topics_by_name.get(topic)
    return None if known is None else check_of(topic, index, len(known.partitions))


def _failed(
    data: PartitionProduceData, error: KafkaError, broker: Broker, topic: str, version: int
) -> PartitionProduceResponse:
    answer = PartitionProduceResponse(
        index=data.index,
        error_code=error.code,
        base_offset=-1,
        record_errors=[
            BatchIndexAndErrorMessage(batch_index=wrong.batch_index, batch_index_error_message=wrong.message)
            for wrong in (error.record_errors if isinstance(error, RecordsRefused) else ())
        ],
        error_message=error.message or None,
    )
    if error.code not in _REFUSED_BEFORE_THE_LOG and type(error) not in _RAISED_BEFORE_THE_LOG:
        partition = broker.find_partition((topic, data.index))
        if partition is not None:  # the topic may have been deleted since
            answer.log_start_offset = partition.log.log_start_offset
    if error.code is ErrorCode.NOT_LEADER_OR_FOLLOWER and version >= FIRST_VERSION_WITH_CURRENT_LEADER:
        leader, epoch = broker.current_leader(topic, data.index)
        answer.current_leader = LeaderIdAndEpoch(leader_id=leader, leader_epoch=epoch)
    return answer


def _refused(request: ProduceRequest, error: KafkaError) -> ProduceResponse:
    if request.acks == NO_REPLY:
        raise error
    return ProduceResponse(
        responses=[
            TopicProduceResponse(
                name=topic.name,
                topic_id=topic.topic_id,
                partition_responses=[
                    PartitionProduceResponse(
                        index=data.index, error_code=error.code, base_offset=-1, error_message=error.message or None
                    )
                    for data in topic.partition_data
                ],
            )
            for topic in request.topic_data
        ]
    )


def _leaders(responses: list[TopicProduceResponse], broker: Broker, context: Context) -> list[NodeEndpoint]:
    named = {
        answer.current_leader.leader_id
        for topic in responses
        for answer in topic.partition_responses
        if answer.current_leader is not None
    }
    return [node for node in broker.nodes(context.listener) if node.node_id in named]
