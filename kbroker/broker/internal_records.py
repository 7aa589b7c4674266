"""Checks records that clients write to internal topics: the broker must be able to read them.

Apache Kafka accepts any record from a client with the client id of its tools; a record that does not decode then makes
groups unavailable or stops tiering. This broker refuses such a record with INVALID_RECORD, and also a record that
belongs to another partition. It accepts records of unknown types, because a tool may copy them from a newer broker.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from kbroker.coordinator.common.ports import partition_for
from kbroker.metadata.names import GROUP_METADATA_TOPIC, REMOTE_LOG_METADATA_TOPIC, TRANSACTION_STATE_TOPIC
from kbroker.storage.validation import MAX_RECORD_ERRORS, RecordError, RecordsRefused
from wire.errors import ErrorCode, Malformed
from wire.record_batch import Record, RecordBatch
from wire.stored.frame import decode_key, decode_value
from wire.stored.transactions import TransactionLogKey, TransactionLogValue

Check = Callable[[RecordBatch], None]
"""Raises RecordsRefused for a batch with records that the broker cannot read. CPU only."""


def check_of(topic: str, partition: int, partition_count: int) -> Check | None:
    """The check for batches that clients write to a partition; None for topics that the broker does not read."""
    where = _PARTITIONS.get(topic)
    if where is None:
        return None

    def check(batch: RecordBatch) -> None:
        errors = []
        for index, record in enumerate(batch.records()):
            try:
                expected = where(record, partition_count)
                if expected not in (None, partition):
                    raise Malformed(f"it belongs to partition {expected}")
            except Malformed as error:
                errors.append(RecordError(index, f"{topic} cannot accept this record: {error}"))
                if len(errors) == MAX_RECORD_ERRORS:
                    break
        if errors:
            raise RecordsRefused(ErrorCode.INVALID_RECORD, errors[0].message, errors)

    return check


def _group_partition(record: Record, partition_count: int) -> int | None:
    from kbroker.coordinator.records import decode_record  # noqa: PLC0415  (few clients write here)

    stored = decode_record(_key_of(record), record.value)
    return None if stored is None else partition_for(stored.key_message.group, partition_count)


def _transaction_partition(record: Record, partition_count: int) -> int | None:
    key = decode_key(_key_of(record), {0: TransactionLogKey})
    if key is None:
        return None
    if record.value is not None:
        decode_value(TransactionLogValue, record.value)
    return partition_for(key.transactional_id, partition_count)


def _tier_partition(record: Record, partition_count: int) -> int:
    # A broker without a tier does not import it.
    from kbroker.tiered.metadata_topic import decode_event, metadata_partition  # noqa: PLC0415

    if record.value is None:
        raise Malformed("a record without a value")
    return metadata_partition(decode_event(record.value).remote_log_segment_id.topic_id_partition, partition_count)


def _key_of(record: Record) -> bytes:
    if record.key is None:
        raise Malformed("a record without a key")
    return record.key


_PARTITIONS: Final[dict[str, Callable[[Record, int], int | None]]] = {
    GROUP_METADATA_TOPIC: _group_partition,
    TRANSACTION_STATE_TOPIC: _transaction_partition,
    REMOTE_LOG_METADATA_TOPIC: _tier_partition,
}
"""Topic -> function that gives the partition of a record; None for types that the broker skips. Errors: Malformed."""
