"""The APIs of transactions: a handler asks the transaction coordinator.

The decisions are in `kbroker.coordinator.transactions`. Listing and describing read the coordinator's shards directly.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any

from kbroker.broker import Broker
from kbroker.coordinator.transactions.describing import STATES, describe, describe_failure, listed
from kbroker.coordinator.transactions.transaction_coordinator import FIRST_VERSION_OF_BROKERS
from kbroker.coordinator.transactions.transitions import Add, End
from kbroker.handlers import Context, handles
from kbroker.metadata.names import GROUP_METADATA_TOPIC, INTERNAL_TOPICS
from kbroker.security.authorizing import Operation, ResourceType
from wire.codec import encode_element
from wire.errors import ErrorCode, KafkaError
from wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopicResult,
)
from wire.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TransactionState,
)
from wire.messages.end_txn import EndTxnRequest, EndTxnResponse
from wire.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse

LISTED_AT_ONCE = 200
PARTITIONS_IN_A_STEP = 10
FIRST_VERSION_WITH_FENCED = 2  # of EndTxn and AddOffsetsToTxn; older clients do not know PRODUCER_FENCED


def _not_added(request: AddPartitionsToTxnRequest, code: ErrorCode) -> AddPartitionsToTxnResponse:
    """Up to version 3 each partition has the code, and later the response as a whole."""
    return AddPartitionsToTxnResponse(
        error_code=code,
        results_by_topic_v3_and_below=[
            AddPartitionsToTxnTopicResult(
                name=topic.name,
                results_by_partition=[
                    AddPartitionsToTxnPartitionResult(partition_index=index, partition_error_code=code)
                    for index in topic.partitions
                ],
            )
            for topic in request.v3_and_below_topics
        ],
    )


@handles(AddPartitionsToTxnRequest, versions="0-5", on_error=_not_added)
async def add_partitions_to_txn(
    request: AddPartitionsToTxnRequest, broker: Broker, context: Context
) -> AddPartitionsToTxnResponse:
    """Add partitions to a transaction (clients), or add and verify those of several transactions (brokers)."""
    version, denied = context.api_version, frozenset[str]()
    if version >= FIRST_VERSION_OF_BROKERS:
        context.demand(Operation.CLUSTER_ACTION, ResourceType.CLUSTER)
    else:
        context.demand(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, request.v3_and_below_transactional_id)
        names = {topic.name for topic in request.v3_and_below_topics}
        denied = INTERNAL_TOPICS.union(
            await context.denied(Operation.WRITE, ResourceType.TOPIC, names - INTERNAL_TOPICS, broker.turns)
        )
    return await broker.transactions.add_partitions(request, api_version=version, denied=denied)


@handles(AddOffsetsToTxnRequest, versions="0-4")
async def add_offsets_to_txn(
    request: AddOffsetsToTxnRequest, broker: Broker, context: Context
) -> AddOffsetsToTxnResponse:
    """Add the partition with a group's offsets to a transaction."""
    context.demand(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, request.transactional_id)
    context.demand(Operation.READ, ResourceType.GROUP, request.group_id)
    partition = GROUP_METADATA_TOPIC, broker.groups.runtime.partition_of(request.group_id)
    step = await broker.transactions.ask(
        Add(request.transactional_id, request.producer_id, request.producer_epoch, [partition])
    )
    return AddOffsetsToTxnResponse(error_code=_known_to(context, step.code))


@handles(EndTxnRequest, versions="0-5")
async def end_txn(request: EndTxnRequest, broker: Broker, context: Context) -> EndTxnResponse:
    """Commit or abort a transaction. The reply means that the result is certain; the markers follow."""
    context.demand(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, request.transactional_id)
    step = await broker.transactions.ask(
        End(
            request.transactional_id,
            request.producer_id,
            request.producer_epoch,
            request.committed,
            client_version=2 if context.api_version >= 5 else 0,
        )
    )
    return EndTxnResponse(
        error_code=_known_to(context, step.code), producer_id=step.producer_id, producer_epoch=step.producer_epoch
    )


def _known_to(context: Context, code: ErrorCode) -> ErrorCode:
    """The code in the words of the request's version."""
    is_new = context.api_version >= FIRST_VERSION_WITH_FENCED
    return code if is_new or code is not ErrorCode.PRODUCER_FENCED else ErrorCode.INVALID_PRODUCER_EPOCH


@handles(DescribeTransactionsRequest, versions="0")
async def describe_transactions(
    request: DescribeTransactionsRequest, broker: Broker, context: Context
) -> DescribeTransactionsResponse:
    """Describe each transactional id once, without the topics that the client may not describe."""
    reply = _Reply(broker, DescribeTransactionsResponse, context.api_version)
    for transactional_id in dict.fromkeys(request.transactional_ids):
        state = _describe(broker, context, transactional_id)
        names = [topic.topic for topic in state.topics]
        denied = await context.denied(Operation.DESCRIBE, ResourceType.TOPIC, names, broker.turns)
        state.topics = [topic for topic in state.topics if topic.topic not in denied]
        if broker.turns.due(1 + sum(len(topic.partitions) for topic in state.topics) // PARTITIONS_IN_A_STEP):
            await broker.turns.next()
        reply.add(state)
    return DescribeTransactionsResponse(transaction_states=reply.elements)


class _Reply:
    """The elements of a reply, encoded one by one, so that it cannot grow beyond kbroker.max.reply.bytes."""

    def __init__(self, broker: Broker, message: type, version: int) -> None:
        self.elements: list[Any] = []
        self._room = broker.settings.limits.kbroker_max_reply_bytes
        self._message, self._version = message, version

    def add(self, element: object) -> None:
        """Add an element. Raises INVALID_REQUEST if the reply becomes too long."""
        encoded = encode_element(element, self._message, self._version)
        self.elements.append(encoded)
        self._room -= len(encoded)
        if self._room < 0:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "the reply would exceed kbroker.max.reply.bytes")


def _may_describe(context: Context, transactional_id: str, *, is_logged: bool = True) -> bool:
    return context.may(Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, transactional_id, is_logged=is_logged)


def _describe(broker: Broker, context: Context, transactional_id: str) -> TransactionState:
    if not _may_describe(context, transactional_id):
        return describe_failure(transactional_id, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    if not transactional_id:
        return describe_failure(transactional_id, ErrorCode.INVALID_REQUEST)
    try:
        shard = broker.transactions.runtime.find(transactional_id).shard
    except KafkaError as error:
        return describe_failure(transactional_id, error.code)
    return describe(transactional_id, shard.transactions.get(transactional_id))


@handles(ListTransactionsRequest, versions="0-2")
async def list_transactions(
    request: ListTransactionsRequest, broker: Broker, context: Context
) -> ListTransactionsResponse:
    """List the transactional ids of all shards that pass the filters and that the client may describe; fail while a
    shard is loading.
    """
    pattern, matches = request.transactional_id_pattern, None
    if pattern:
        from kbroker.coordinator.consumer.regexes import require_valid  # noqa: PLC0415  (slow import)

        matches = require_valid(pattern, "TransactionalIdPattern").fullmatch
    names = set(request.state_filters)
    states = {state for name, state in STATES.items() if name in names} if names else None
    producer_ids, timestamp_ms = set(request.producer_id_filters), broker.env.timestamp_ms()
    reply = _Reply(broker, ListTransactionsResponse, context.api_version)
    for shard in list(broker.transactions.shards()):
        transactions = iter(list(shard.transactions.values()))
        while portion := list(islice(transactions, LISTED_AT_ONCE)):
            if broker.turns.due(len(portion)):
                await broker.turns.next()
            # Ask first: the time to match an id must not reveal one that the client may not describe.
            selected: Iterable[Any] = listed(
                [one for one in portion if _may_describe(context, one.transactional_id, is_logged=False)],
                states=states,
                producer_ids=producer_ids,
                longer_than_ms=request.duration_filter,
                timestamp_ms=timestamp_ms,
                matches=matches,
            )
            if matches is not None:  # one long id can take a second; matching releases the interpreter's lock
                selected = await broker.env.run_blocking(list, selected)
            for found in selected:
                reply.add(found)
    unknown = [name for name in dict.fromkeys(request.state_filters) if name not in STATES]
    return ListTransactionsResponse(unknown_state_filters=unknown, transaction_states=reply.elements)
