"""The transactional ids that a broker coordinates: metrics, and a part of /state."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kbroker.broker import Broker
from kbroker.coordinator.common.led import State
from kbroker.coordinator.transactions.shard import TransactionShard
from kbroker.coordinator.transactions.state import Transaction
from kbroker.web.metrics import COUNTER, GAUGE, Samples, of_broker


def shards(broker: Broker) -> list[TransactionShard]:
    """The shards whose transactional ids are loaded."""
    return [led.shard for led in broker.transactions.led.values() if led.state is State.ACTIVE]


@of_broker(GAUGE, "kbroker_transactional_ids")
def _ids(broker: Broker) -> float:
    """Transactional ids that this broker coordinates."""
    return sum(len(shard.transactions) for shard in shards(broker))


@of_broker(GAUGE, "kbroker_transactions", "state")
def _transactions(broker: Broker) -> Samples:
    """Transactions in progress (ongoing), and decided ones that lack markers (prepared)."""
    yield ("ongoing",), sum(shard.ongoing_count for shard in shards(broker))
    yield ("prepared",), sum(shard.prepared_count for shard in shards(broker))


@of_broker(COUNTER, "kbroker_transactions_completed_total", "result")
def _completed(broker: Broker) -> Samples:
    """Transactions that were committed or aborted."""
    yield ("commit",), sum(shard.commit_count for shard in shards(broker))
    yield ("abort",), sum(shard.abort_count for shard in shards(broker))


@of_broker(COUNTER, "kbroker_transactions_timed_out_total")
def _timed_out(broker: Broker) -> float:
    """Transactions that the broker aborted because they took too long."""
    return sum(shard.timed_out_count for shard in shards(broker))


@of_broker(GAUGE, "kafka_coordinator_transaction_transactionmarkerchannelmanager_unknowndestinationqueuesize")
def _waiting(broker: Broker) -> float:
    """Partitions whose marker could not be written yet, for example because they have no leader."""
    return broker.marker_sender.waiting_count


@of_broker(GAUGE, "kbroker_transaction_partitions", "state")
def _partitions(broker: Broker) -> Samples:
    """Partitions of __transaction_state that this broker leads, by state."""
    for state in (State.LOADING, State.ACTIVE, State.FAILED):
        yield (state.value,), sum(led.state is state for led in broker.transactions.led.values())


@of_broker(GAUGE, "kbroker_transaction_unreadable_records")
def _unreadable_records(broker: Broker) -> float:
    """Records of __transaction_state that were skipped during loading, because they could not be read."""
    return sum(led.unreadable_records for led in broker.transactions.led.values())


def transactions(broker: Broker) -> Iterator[Transaction]:
    """Every transactional id. Ids may appear and disappear during the iteration."""
    for shard in shards(broker):
        for transactional_id in list(shard.transactions):
            known = shard.transactions.get(transactional_id)
            if known is not None:
                yield known


def describe(known: Transaction) -> dict[str, Any]:
    """A transactional id for /state."""
    topics: dict[str, list[int]] = {}
    for topic, index in known.partitions:
        topics.setdefault(topic, []).append(index)
    return {
        "transactional_id": known.transactional_id,
        "state": known.state.label,
        "producer_id": known.producer_id,
        "producer_epoch": known.producer_epoch,
        "timeout_ms": known.timeout_ms,
        "start_timestamp_ms": known.start_timestamp_ms if known.start_timestamp_ms >= 0 else None,
        "last_update_timestamp_ms": known.last_update_timestamp_ms,
        "partitions": topics,
    }
