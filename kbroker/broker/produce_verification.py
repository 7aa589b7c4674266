"""Verification of the transactional batches of a Produce (KIP-890).

A batch that would start a transaction in its partition is appended only if the coordinator says that the partition
belongs to the producer's transaction, or adds it: from version 12 on the producer leaves that to the leader
(transaction.version 2). Batches of a transaction that is open in their partition need no answer. One Produce has the
batches of one producer, so it causes at most one request.

Source  ReplicaManager.handleProduceAppend of Apache Kafka 4.3.1
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from kbroker.broker.transaction_verification import verify
from kbroker.runtime.frames import without_frames
from kbroker.storage.checkpoint import TopicPartition
from kbroker.storage.verification import NO_VERIFICATION, Verification
from wire.batch_header import HEADER_SIZE, MAGIC, NO_PRODUCER_ID, TRANSACTIONAL_BIT, BatchHeader
from wire.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from kbroker.broker.broker import Broker

FIRST_VERSION_WITH_ABORTABLE_TRANSACTIONS: Final = 11
FIRST_VERSION_THAT_ADDS: Final = 12

_RETRIABLE: Final = frozenset(
    {
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)


class NotVerified(KafkaError):
    """The coordinator did not confirm the transaction; the log was not consulted."""


class Verified:
    """The result for one Produce: what to present with each transactional batch, or why it is refused.

    A batch that was not verified gets NO_VERIFICATION, so that it can only continue an open transaction, unless
    transaction.partition.verification.enable is off.
    """

    def __init__(self, *, is_enabled: bool) -> None:
        self.otherwise = NO_VERIFICATION if is_enabled else None
        self.verifications: dict[TopicPartition, Verification] = {}
        self.errors: dict[TopicPartition, KafkaError] = {}

    def of(self, topic: str, index: int) -> Verification | None:
        """The verification for a partition, None if the log need not check it. Errors: those of `verify_produced`."""
        error = self.errors.get((topic, index))
        if error is not None:
            raise error
        return self.verifications.get((topic, index), self.otherwise)


async def verify_produced(
    broker: Broker,
    transactional_id: str,
    batches: Iterable[tuple[str, int, memoryview | None]],
    *,
    version: int,
) -> Verified:
    """Verify the transactional batches among those of a Produce of `version`, as (topic, partition, records).

    Errors  INVALID_PRODUCER_ID_MAPPING if they are of several producers. For a partition: those of Broker.find and
            Partition.leading; INVALID_PRODUCER_EPOCH, the coordinator's, NOT_ENOUGH_REPLICAS if it may answer later
    """
    is_enabled = broker.transaction_verifier.is_enabled
    found = Verified(is_enabled=is_enabled)
    headers = await _transactional(broker, batches, found)
    if not headers:
        return found
    producers = {(header.producer_id, header.producer_epoch) for header in headers.values()}
    if len(producers) > 1:
        raise KafkaError(
            ErrorCode.INVALID_PRODUCER_ID_MAPPING, "Transactional records contained more than one producer ID"
        )
    adds = version >= FIRST_VERSION_THAT_ADDS
    if not (adds or is_enabled):
        return found
    ((producer_id, epoch),) = producers
    asked = []
    for key, header in headers.items():
        try:
            verification = _begin(broker, key, header, adds=adds)
        except KafkaError as error:
            found.errors[key] = without_frames(NotVerified(error.code, error.message))
            continue
        if is_enabled:
            found.verifications[key] = verification
        if verification is not NO_VERIFICATION:
            asked.append(key)
    if asked:
        codes = await verify(broker, transactional_id, producer_id, epoch, asked, adds=adds)
        for key, code in codes.items():
            if code is not ErrorCode.NONE:
                found.errors[key] = _refusal(code, version)
    return found


async def _transactional(
    broker: Broker, batches: Iterable[tuple[str, int, memoryview | None]], found: Verified
) -> dict[TopicPartition, BatchHeader]:
    """The headers of the transactional batches of known producers, without those that no append would accept.

    Batches for unknown partitions are refused in `found`, because a partition may become known before the append.
    """
    headers: dict[TopicPartition, BatchHeader] = {}
    for topic, index, records in batches:
        if broker.turns.due():
            await broker.turns.next()
        if broker.image.partition(topic, index) is None:
            error = KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no {topic}-{index}")
            found.errors[topic, index] = error
            continue
        if records is None or len(records) < HEADER_SIZE:
            continue
        header = BatchHeader(records)
        if (
            header.magic == MAGIC
            and header.attributes & TRANSACTIONAL_BIT
            and header.producer_id != NO_PRODUCER_ID
            and header.size <= len(records)
        ):
            headers[topic, index] = header
    return headers


def _begin(broker: Broker, key: TopicPartition, header: BatchHeader, *, adds: bool) -> Verification:
    partition = broker.find(*key)
    partition.leading()
    producers = partition.log.producers
    if (entry := producers.producers.get(header.producer_id)) is not None:
        if entry.original_of(header) is not None:
            # A late repetition, perhaps of a transaction that has ended, gets the original's offset. If it began a
            # verification, its sequence would be the lowest, and the first batch of the next transaction be refused.
            # Apache Kafka 4.3.1 does that.
            return NO_VERIFICATION
        entry.check_epoch(header.producer_epoch)
    if producers.is_open(header.producer_id, header.producer_epoch):
        return NO_VERIFICATION
    return producers.verifications.begin(
        header.producer_id,
        epoch=header.producer_epoch,
        sequence=header.base_sequence,
        adds=adds,
        timestamp_ms=broker.env.timestamp_ms(),
    )


def _refusal(code: ErrorCode, version: int) -> NotVerified:
    """The error for the producer. Old ones know only some codes; they retry NOT_ENOUGH_REPLICAS without a refresh."""
    if code is ErrorCode.TRANSACTION_ABORTABLE and version < FIRST_VERSION_WITH_ABORTABLE_TRANSACTIONS:
        code = ErrorCode.INVALID_TXN_STATE
    if code is ErrorCode.INVALID_TXN_STATE:
        return NotVerified(code, "Partition was not added to the transaction")
    is_busy = code is ErrorCode.CONCURRENT_TRANSACTIONS and version < FIRST_VERSION_THAT_ADDS
    if code in _RETRIABLE or is_busy:
        why = f"Unable to verify the partition has been added to the transaction. Underlying error: {code.name}"
        return NotVerified(ErrorCode.NOT_ENOUGH_REPLICAS, why)
    return NotVerified(code, "")
