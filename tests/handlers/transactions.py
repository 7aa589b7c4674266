"""Helpers that send the requests of transactional producers."""

from __future__ import annotations

from collections.abc import Mapping

import trio

from kbroker.testing.memory_node import Client
from tests.handlers.groups import fetch_group
from wire.errors import ErrorCode
from wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from wire.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from wire.messages.describe_transactions import DescribeTransactionsRequest, TransactionState
from wire.messages.end_txn import EndTxnRequest, EndTxnResponse
from wire.messages.find_coordinator import FindCoordinatorRequest
from wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from wire.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest

IN_PROGRESS = ("Ongoing", "PrepareCommit", "PrepareAbort")


async def init_answer(
    client: Client,
    transactional_id: str,
    *,
    producer: tuple[int, int] = (-1, -1),
    timeout_ms: int = 60_000,
    version: int | None = None,
) -> InitProducerIdResponse:
    """The first answer to InitProducerId that is not CONCURRENT_TRANSACTIONS."""
    found = await client.ask(FindCoordinatorRequest(coordinator_keys=[transactional_id], key_type=1))
    assert found.coordinators[0].error_code == 0, found
    request = InitProducerIdRequest(
        transactional_id=transactional_id,
        transaction_timeout_ms=timeout_ms,
        producer_id=producer[0],
        producer_epoch=producer[1],
    )
    while True:
        answer = await client.ask(request, version=version)
        if answer.error_code != ErrorCode.CONCURRENT_TRANSACTIONS:
            assert isinstance(answer, InitProducerIdResponse)
            return answer
        await trio.sleep(0.01)


async def init(
    client: Client, transactional_id: str, *, producer: tuple[int, int] = (-1, -1), timeout_ms: int = 60_000
) -> tuple[int, int]:
    """The producer id and epoch of a transactional id."""
    answer = await init_answer(client, transactional_id, producer=producer, timeout_ms=timeout_ms)
    assert answer.error_code == 0, answer
    return answer.producer_id, answer.producer_epoch


async def add_partitions(
    client: Client,
    transactional_id: str,
    producer_id: int,
    epoch: int,
    *partitions: tuple[str, int],
    version: int = 3,
) -> dict[tuple[str, int], int]:
    """Add partitions to a transaction as a client does; return the error codes."""
    topics: dict[str, list[int]] = {}
    for topic, index in partitions:
        topics.setdefault(topic, []).append(index)
    request = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=transactional_id,
        v3_and_below_producer_id=producer_id,
        v3_and_below_producer_epoch=epoch,
        v3_and_below_topics=[AddPartitionsToTxnTopic(name=name, partitions=found) for name, found in topics.items()],
    )
    answer = await client.ask(request, version=version)
    return {
        (topic.name, one.partition_index): one.partition_error_code
        for topic in answer.results_by_topic_v3_and_below
        for one in topic.results_by_partition
    }


async def add_offsets(client: Client, producer: tuple[int, int], group_id: str = "g") -> int:
    """The error code of AddOffsetsToTxn of the transactional id `t`."""
    request = AddOffsetsToTxnRequest(
        transactional_id="t", producer_id=producer[0], producer_epoch=producer[1], group_id=group_id
    )
    return int((await client.ask(request)).error_code)


def committing_in_transaction(
    offsets: Mapping[tuple[str, int], int], *, group_id: str = "g", producer: tuple[int, int] = (1000, 0)
) -> TxnOffsetCommitRequest:
    """A TxnOffsetCommit of the transactional id `t` without a member."""
    topics: dict[str, list[TxnOffsetCommitRequestPartition]] = {}
    for (topic, index), offset in offsets.items():
        one = TxnOffsetCommitRequestPartition(partition_index=index, committed_offset=offset, committed_metadata="")
        topics.setdefault(topic, []).append(one)
    return TxnOffsetCommitRequest(
        transactional_id="t",
        group_id=group_id,
        producer_id=producer[0],
        producer_epoch=producer[1],
        topics=[TxnOffsetCommitRequestTopic(name=topic, partitions=found) for topic, found in topics.items()],
    )


async def commit_in_transaction(
    client: Client,
    offsets: Mapping[tuple[str, int], int],
    *,
    version: int = 4,
    group_id: str = "g",
    producer: tuple[int, int] = (1000, 0),
) -> dict[tuple[str, int], int]:
    """Send a TxnOffsetCommit; return the error code of each partition."""
    request = committing_in_transaction(offsets, group_id=group_id, producer=producer)
    answer = await client.ask(request, version=version)
    return {(topic.name, one.partition_index): one.error_code for topic in answer.topics for one in topic.partitions}


async def is_stable(client: Client) -> bool:
    """Whether the group `g` has no pending offset of t-0."""
    found = await fetch_group(client, places=[("t", 0)], require_stable=True)
    (one,) = found.topics[0].partitions
    assert one.error_code in (0, ErrorCode.UNSTABLE_OFFSET_COMMIT)
    return one.error_code == 0


def ending(transactional_id: str, producer_id: int, epoch: int, *, is_commit: bool = True) -> EndTxnRequest:
    """An EndTxn."""
    return EndTxnRequest(
        transactional_id=transactional_id, producer_id=producer_id, producer_epoch=epoch, committed=is_commit
    )


async def end(
    client: Client,
    transactional_id: str,
    producer_id: int,
    epoch: int,
    *,
    is_commit: bool = True,
    version: int = 4,
) -> EndTxnResponse:
    """EndTxn."""
    answer = await client.ask(ending(transactional_id, producer_id, epoch, is_commit=is_commit), version=version)
    assert isinstance(answer, EndTxnResponse)
    return answer


async def described(client: Client, transactional_id: str) -> TransactionState:
    """DescribeTransactions of one id, when it is loaded."""
    while True:
        answer = await client.ask(DescribeTransactionsRequest(transactional_ids=[transactional_id]))
        found = answer.transaction_states[0]
        if found.error_code != ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            assert isinstance(found, TransactionState)
            return found
        await trio.lowlevel.checkpoint()


async def settled(client: Client, transactional_id: str) -> TransactionState:
    """The description of an id when it has no transaction any more."""
    while True:
        found = await described(client, transactional_id)
        if found.transaction_state not in IN_PROGRESS:
            return found
        await trio.sleep(0.01)


async def finalize_transaction_version(client: Client, level: int) -> None:
    """Set the transaction.version of the cluster."""
    update = FeatureUpdateKey(feature="transaction.version", max_version_level=level, upgrade_type=1)
    answer = await client.ask(UpdateFeaturesRequest(timeout_ms=1000, feature_updates=[update]))
    assert answer.error_code == 0, answer
