"""The records of `__transaction_state`, as Apache Kafka 4.3.1 writes them.

The value has version 0 until transaction.version is 1. Version 0 cannot express the previous and the next producer id
and the client's version: they are lost when another broker loads the record.

Source: TransactionLog of Apache Kafka 4.3.1.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final, NamedTuple

from kbroker.coordinator.transactions.state import (
    EMPTY,
    NO_EPOCH,
    STORED,
    Partitions,
    TopicPartition,
    Transaction,
    TransactionState,
)
from wire.codec import encode_element
from wire.errors import Malformed
from wire.stored.frame import decode_key, decode_value, encode_key, encode_value
from wire.stored.transactions import PartitionsSchema, TransactionLogKey, TransactionLogValue

REMEMBERED_TOPICS: Final = 4_096
_STATES: Final = {state.value: state for state in STORED}


class TransactionRecord(NamedTuple):
    """A transactional id, or its tombstone if transaction is None.

    Shape   server_version is the transaction.version of the cluster
    """

    transactional_id: str
    transaction: Transaction | None
    server_version: int = 0

    @property
    def key(self) -> bytes:
        """The key as bytes, encoded at each call."""
        return encode_key(TransactionLogKey(transactional_id=self.transactional_id))

    @property
    def value(self) -> bytes | None:
        """The value as bytes, None for a tombstone; encoded at each call."""
        known = self.transaction
        if known is None:
            return None
        version = min(self.server_version, 1)
        value = TransactionLogValue(
            producer_id=known.producer_id,
            producer_epoch=known.producer_epoch,
            transaction_timeout_ms=known.timeout_ms,
            transaction_status=known.state.value,
            transaction_partitions=None if known.state is EMPTY else _by_topic(known.partitions, version),
            transaction_last_update_timestamp_ms=known.last_update_timestamp_ms,
            transaction_start_timestamp_ms=known.start_timestamp_ms,
        )
        if version == 1:
            value.previous_producer_id = known.previous_producer_id
            value.next_producer_id = known.next_producer_id
            value.client_transaction_version = known.client_version
        return encode_value(value, version)


def _by_topic(partitions: Partitions, version: int) -> list[Any]:
    """The partitions of each topic, encoded. A transaction is stored again with each partition that it gets."""
    topics: dict[str, list[int]] = {}
    for topic, index in partitions:
        topics.setdefault(topic, []).append(index)
    return [_encoded(topic, tuple(indexes), version) for topic, indexes in topics.items()]


@lru_cache(REMEMBERED_TOPICS)
def _encoded(topic: str, indexes: tuple[int, ...], version: int) -> bytes:
    return encode_element(PartitionsSchema(topic=topic, partition_ids=list(indexes)), TransactionLogValue, version)


def decode_record(key: bytes, value: bytes | None) -> TransactionRecord | None:
    """Decode a record; None if its key has a type that this version does not know.

    Errors: Malformed if the bytes do not decode, or have a state or an epoch that is never stored.
    """
    decoded = decode_key(key, {0: TransactionLogKey})
    if decoded is None:
        return None
    if value is None:
        return TransactionRecord(decoded.transactional_id, None)
    stored = decode_value(TransactionLogValue, value)
    state: TransactionState | None = _STATES.get(stored.transaction_status)
    if state is None:
        raise Malformed(f"transaction status {stored.transaction_status} is never stored")
    if stored.producer_epoch < 0 or stored.producer_id < 0:
        raise Malformed(f"producer id {stored.producer_id} with epoch {stored.producer_epoch}")
    partitions: dict[TopicPartition, None] = {
        (schema.topic, index): None for schema in stored.transaction_partitions or () for index in schema.partition_ids
    }
    return TransactionRecord(
        decoded.transactional_id,
        Transaction(
            decoded.transactional_id,
            stored.producer_id,
            producer_epoch=stored.producer_epoch,
            previous_producer_id=stored.previous_producer_id,
            next_producer_id=stored.next_producer_id,
            last_producer_epoch=NO_EPOCH,
            timeout_ms=stored.transaction_timeout_ms,
            state=state,
            partitions=partitions if state is not EMPTY else {},
            start_timestamp_ms=stored.transaction_start_timestamp_ms,
            last_update_timestamp_ms=stored.transaction_last_update_timestamp_ms,
            client_version=stored.client_transaction_version,
        ),
    )
