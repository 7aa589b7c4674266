"""DescribeTransactions and ListTransactions: what a shard tells about its transactional ids.

Source: KIP-664, KIP-994, KIP-1152; TransactionCoordinator of Apache Kafka 4.3.1.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Final

from kbroker.coordinator.transactions.state import Transaction, TransactionState
from wire.errors import ErrorCode
from wire.messages import list_transactions
from wire.messages.describe_transactions import TopicData
from wire.messages.describe_transactions import TransactionState as Described

STATES: Final = {state.label: state for state in TransactionState}


def describe(transactional_id: str, known: Transaction | None) -> Described:
    """A transactional id with the partitions of its transaction."""
    if known is None:
        return describe_failure(transactional_id, ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
    topics: dict[str, list[int]] = {}
    for topic, index in known.partitions:
        topics.setdefault(topic, []).append(index)
    return Described(
        transactional_id=transactional_id,
        transaction_state=known.state.label,
        transaction_timeout_ms=known.timeout_ms,
        transaction_start_time_ms=known.start_timestamp_ms,
        producer_id=known.producer_id,
        producer_epoch=known.producer_epoch,
        topics=[TopicData(topic=name, partitions=indexes) for name, indexes in topics.items()],
    )


def describe_failure(transactional_id: str, code: ErrorCode) -> Described:
    """A transactional id that cannot be described."""
    return Described(
        error_code=code,
        transactional_id=transactional_id,
        transaction_state="",
        transaction_timeout_ms=0,
        transaction_start_time_ms=0,
        producer_id=0,
        producer_epoch=0,
        topics=[],
    )


def listed(
    transactions: Iterable[Transaction],
    *,
    states: Collection[TransactionState] | None,
    producer_ids: Collection[int],
    longer_than_ms: int,
    timestamp_ms: int,
    matches: Callable[[str], object] | None = None,
) -> Iterator[list_transactions.TransactionState]:
    """The transactions that pass the filters: `states` and `matches` if they are not None, `producer_ids` if there are
    any, `longer_than_ms` if it is not negative.
    """
    for known in transactions:
        if (
            (states is None or known.state in states)
            and (not producer_ids or known.producer_id in producer_ids)
            and (longer_than_ms < 0 or timestamp_ms - known.start_timestamp_ms > longer_than_ms)
            and (matches is None or matches(known.transactional_id))
        ):
            yield list_transactions.TransactionState(
                transactional_id=known.transactional_id,
                producer_id=known.producer_id,
                transaction_state=known.state.label,
            )
