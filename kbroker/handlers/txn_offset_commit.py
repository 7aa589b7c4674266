"""TxnOffsetCommit: store the offsets of a group in a transaction. They become visible when the transaction commits.

Before the first offsets of a transaction the broker asks the transaction's coordinator whether the partition of the
group in `__consumer_offsets` belongs to it. A client of version 5 does not add that partition itself, so the broker
adds it with the same request (KIP-890).

Large requests are split as in OffsetCommit. A transaction that ends between two parts refuses the rest.

Source  KafkaApis, GroupCoordinatorService and CoordinatorPartitionWriter of Apache Kafka 4.3.1
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Final

from kbroker.broker import Broker
from kbroker.broker.known_partitions import known_partitions, why_refused
from kbroker.broker.portions import in_portions
from kbroker.broker.transaction_verification import verify
from kbroker.coordinator.common.ports import Producer
from kbroker.coordinator.refusals import response_code
from kbroker.handlers import Context, handles
from kbroker.handlers.groups import log_new_group
from kbroker.security.authorizing import Operation, ResourceType
from kbroker.storage.verification import NO_VERIFICATION
from wire.errors import ErrorCode, KafkaError
from wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)

FIRST_VERSION_THAT_KNOWS_LOADING: Final = 2
FIRST_VERSION_WITH_ABORTABLE_TRANSACTIONS: Final = 4
FIRST_VERSION_THAT_ADDS_THE_PARTITION: Final = 5
PARTITIONS_TOGETHER: Final = 500


@handles(TxnOffsetCommitRequest, versions="0-5")
async def txn_offset_commit(
    request: TxnOffsetCommitRequest, broker: Broker, context: Context
) -> TxnOffsetCommitResponse:
    """Commit the offsets of partitions that exist and that the client may read; refuse the others."""
    context.demand(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, request.transactional_id)
    context.demand(Operation.READ, ResourceType.GROUP, request.group_id)
    names = [topic.name for topic in request.topics]
    denied = await context.denied(Operation.READ, ResourceType.TOPIC, names, broker.turns)
    sort_out = partial(known_partitions, request.topics, broker.image, denied=denied)
    known, unknown = await broker.env.run_blocking(sort_out) if context.is_large else sort_out()
    by_name = {name: _answered(name, indexes, why_refused(name, denied)) for name, indexes in unknown.items()}
    for answer in await _commit(request, known, broker, context) if known else ():
        entry = by_name.setdefault(answer.name, answer)
        if entry is not answer:
            entry.partitions += answer.partitions
    if context.api_version < FIRST_VERSION_THAT_KNOWS_LOADING:
        for answer in by_name.values():
            for one in answer.partitions:
                if one.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
                    one.error_code = ErrorCode.COORDINATOR_NOT_AVAILABLE  # the other code crashes these clients
    return TxnOffsetCommitResponse(topics=list(by_name.values()))


async def _commit(
    request: TxnOffsetCommitRequest, known: list[TxnOffsetCommitRequestTopic], broker: Broker, context: Context
) -> Iterable[TxnOffsetCommitResponseTopic]:
    """The answers for the partitions that exist."""
    try:
        producer = await _verified(request, broker, context.api_version)
    except KafkaError as error:
        code = response_code(error.code)
        return [_answered(topic.name, [one.partition_index for one in topic.partitions], code) for topic in known]
    answers: list[TxnOffsetCommitResponseTopic] = []
    existed = broker.groups.knows(request.group_id)
    for topics in in_portions(known, "partitions", size=PARTITIONS_TOGETHER):
        if broker.turns.due(sum(len(topic.partitions) for topic in topics)):
            await broker.turns.next()
        request.topics = topics
        answer: TxnOffsetCommitResponse = await broker.groups.ask(
            request.group_id, request, context.caller, wait=context.wait, producer=producer
        )
        answers += answer.topics
    log_new_group(request.group_id, broker, context, existed=existed)
    return answers


async def _verified(request: TxnOffsetCommitRequest, broker: Broker, version: int) -> Producer:
    """The producer, whose transaction includes the partition of the group.

    Errors  INVALID_GROUP_ID; NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS; those of the transaction coordinator
    """
    if not request.group_id:
        raise KafkaError(ErrorCode.INVALID_GROUP_ID)
    producer_id, epoch = request.producer_id, request.producer_epoch
    partition = broker.groups.runtime.find(request.group_id).partition
    producers = partition.log.producers
    if producers.is_open(producer_id, epoch):
        return Producer(producer_id, epoch, NO_VERIFICATION)
    adds, is_enabled = version >= FIRST_VERSION_THAT_ADDS_THE_PARTITION, broker.transaction_verifier.is_enabled
    if not (adds or is_enabled):
        return Producer(producer_id, epoch)
    verification = producers.verifications.begin(
        producer_id, epoch=epoch, sequence=-1, adds=adds, timestamp_ms=broker.env.timestamp_ms()
    )
    codes = await verify(broker, request.transactional_id, producer_id, epoch, [partition.key], adds=adds)
    code = codes[partition.key]
    if code is ErrorCode.TRANSACTION_ABORTABLE and version < FIRST_VERSION_WITH_ABORTABLE_TRANSACTIONS:
        code = ErrorCode.INVALID_TXN_STATE
    if code is not ErrorCode.NONE:
        raise KafkaError(code)
    return Producer(producer_id, epoch, verification) if is_enabled else Producer(producer_id, epoch)


def _answered(name: str, indexes: Iterable[int], code: ErrorCode) -> TxnOffsetCommitResponseTopic:
    return TxnOffsetCommitResponseTopic(
        name=name,
        partitions=[TxnOffsetCommitResponsePartition(partition_index=index, error_code=code) for index in indexes],
    )
