"""What each request or event does to one transactional id: pure functions.

Each function takes the current value, None if the transactional id is unknown, and returns a Step: an error, or the
new value to store and what the client gets. The caller stores the value and then makes it the current one.

A producer id may be necessary. If the caller has none at hand, the step says so (`NEEDS_PRODUCER_ID`), and the caller
asks again with one.

The protocol depends on the client. A client of transaction.version 2 gets a higher epoch at the end of each
transaction, so no request of an earlier transaction can affect a later one (KIP-890). A client of an older version
keeps its epoch.

In a Prepare state the coordinator writes markers, and clients have to wait (CONCURRENT_TRANSACTIONS).

Source: TransactionCoordinator and TransactionMetadata of Apache Kafka 4.3.1. Two answers differ. If the epoch is
exhausted, a repeated InitProducerId gets its answer again, and a fenced one PRODUCER_FENCED; in Kafka both fail with
UNKNOWN_SERVER_ERROR.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from kbroker.coordinator.transactions.state import (
    COMPLETE_ABORT,
    COMPLETE_COMMIT,
    DEAD,
    EMPTY,
    EPOCH_BUMP_VERSION,
    IDLE,
    LAST_EPOCH_OF_CLIENTS,
    MAX_EPOCH,
    NO_EPOCH,
    NO_PARTITIONS,
    NO_PRODUCER_ID,
    NO_TIMESTAMP,
    ONGOING,
    PREPARE_ABORT,
    PREPARE_COMMIT,
    PREPARE_EPOCH_FENCE,
    PREPARED,
    TopicPartition,
    Transaction,
    TransactionState,
)
from wire.errors import ErrorCode


class Step(NamedTuple):
    """The result of a request or an event.

    Shape  after is the value to store; None if nothing changes. The producer id and epoch are for the client, -1 with
           an error
    """

    code: ErrorCode = ErrorCode.NONE
    after: Transaction | None = None
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_EPOCH


NEEDS_PRODUCER_ID: Final = Step(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
"""The caller has to ask again with a new producer id. The code is for a client whose broker gets none."""

_CONCURRENT: Final = Step(ErrorCode.CONCURRENT_TRANSACTIONS)
_FENCED: Final = Step(ErrorCode.PRODUCER_FENCED)
_UNKNOWN_PRODUCER: Final = Step(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
_INVALID_STATE: Final = Step(ErrorCode.INVALID_TXN_STATE)


class Init(NamedTuple):
    """InitProducerId. The producer id and epoch are those that the client has, or -1."""

    transactional_id: str
    timeout_ms: int
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_EPOCH


class Add(NamedTuple):
    """AddPartitionsToTxn, or AddOffsetsToTxn with the partition of the group's offsets."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: Sequence[TopicPartition]
    client_version: int = 0


class Verify(NamedTuple):
    """AddPartitionsToTxn that only asks which partitions the transaction has (KIP-890)."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: Sequence[TopicPartition]


class End(NamedTuple):
    """EndTxn."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    is_commit: bool
    client_version: int = 0


def init(
    known: Transaction | None, request: Init, *, server_version: int, new_producer_id: int, timestamp_ms: int
) -> Step:
    """Give a producer its id and epoch, and fence earlier producers with the same transactional id.

    A transaction in progress is aborted first; the producer asks again.
    """
    if known is None:
        if new_producer_id == NO_PRODUCER_ID:
            return NEEDS_PRODUCER_ID
        known = Transaction(request.transactional_id, new_producer_id)
    if known.state not in IDLE and known.state is not ONGOING:
        return _CONCURRENT
    expects = request.producer_id != NO_PRODUCER_ID
    if expects and not _is_of_producer(known, request):
        return _FENCED
    if known.state is ONGOING:
        fenced = fence(known, server_version=server_version, timestamp_ms=timestamp_ms)
        return Step(ErrorCode.CONCURRENT_TRANSACTIONS, fenced.after)
    producer_id, epoch, last_epoch = known.producer_id, known.producer_epoch, NO_EPOCH
    is_current = not expects or epoch in (NO_EPOCH, request.producer_epoch)
    if not is_current and request.producer_epoch != known.last_producer_epoch:
        return _FENCED
    if not is_current and epoch < MAX_EPOCH:
        last_epoch = known.last_producer_epoch  # a retry: its first attempt has raised the epoch
    elif known.is_exhausted:
        if new_producer_id == NO_PRODUCER_ID:
            return NEEDS_PRODUCER_ID
        producer_id, epoch, last_epoch = new_producer_id, 0, request.producer_epoch
    else:
        epoch, last_epoch = epoch + 1, epoch if expects else NO_EPOCH
    after = known.to(
        EMPTY,
        producer_id=producer_id,
        producer_epoch=epoch,
        last_producer_epoch=last_epoch,
        timeout_ms=request.timeout_ms,
        partitions=NO_PARTITIONS,
        start_timestamp_ms=NO_TIMESTAMP,
        last_update_timestamp_ms=timestamp_ms,
    )
    return Step(ErrorCode.NONE, after, producer_id, epoch)


def _is_of_producer(known: Transaction, request: Init) -> bool:
    """Whether the producer id in the request may be that of the transactional id's producer."""
    if known.producer_epoch == NO_EPOCH or request.producer_id == known.producer_id:
        return True
    # The client may not have got the answer that replaced its exhausted id.
    return request.producer_id == known.previous_producer_id and request.producer_epoch >= LAST_EPOCH_OF_CLIENTS


def add(known: Transaction | None, request: Add, *, timestamp_ms: int) -> Step:
    """Add partitions to a transaction, which begins with the first ones."""
    if known is None or known.state is DEAD:
        return _UNKNOWN_PRODUCER
    if known.state in PREPARED or known.state is PREPARE_EPOCH_FENCE:
        # First: the client may already have the producer id that replaces the current one.
        return _CONCURRENT
    if known.producer_id != request.producer_id:
        return _UNKNOWN_PRODUCER
    if known.producer_epoch != request.producer_epoch:
        return _FENCED
    if known.state is ONGOING and all(partition in known.partitions for partition in request.partitions):
        return Step()
    after = known.to(
        ONGOING,
        partitions={**known.partitions, **dict.fromkeys(request.partitions)},
        start_timestamp_ms=known.start_timestamp_ms if known.state is ONGOING else timestamp_ms,
        last_update_timestamp_ms=timestamp_ms,
        client_version=request.client_version,
    )
    return Step(ErrorCode.NONE, after)


def verify(known: Transaction | None, request: Verify) -> ErrorCode | Mapping[TopicPartition, ErrorCode]:
    """Whether each partition is in the producer's transaction, or an error for all of them."""
    if known is None or known.state is DEAD or known.producer_id != request.producer_id:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    if known.producer_epoch != request.producer_epoch:
        return ErrorCode.PRODUCER_FENCED
    if known.state in PREPARED or known.state is PREPARE_EPOCH_FENCE:
        return ErrorCode.CONCURRENT_TRANSACTIONS
    return {
        partition: ErrorCode.NONE if partition in known.partitions else ErrorCode.TRANSACTION_ABORTABLE
        for partition in request.partitions
    }


def end(known: Transaction | None, request: End, *, new_producer_id: int, timestamp_ms: int) -> Step:
    """Commit or abort a transaction. A repeated request gets its answer again."""
    if known is None or known.state is DEAD:
        return _UNKNOWN_PRODUCER
    if request.client_version < EPOCH_BUMP_VERSION:
        return _end_and_keep_epoch(known, request, timestamp_ms=timestamp_ms)
    return _end_and_bump_epoch(known, request, new_producer_id=new_producer_id, timestamp_ms=timestamp_ms)


def _end_and_keep_epoch(known: Transaction, request: End, *, timestamp_ms: int) -> Step:
    if known.producer_id != request.producer_id:
        return _UNKNOWN_PRODUCER
    if known.producer_epoch != request.producer_epoch:
        return _FENCED
    if known.state is ONGOING:
        return _prepare(known, is_commit=request.is_commit, client_version=0, timestamp_ms=timestamp_ms)
    if known.state in PREPARED or known.state is PREPARE_EPOCH_FENCE:
        return _CONCURRENT
    if known.state is (COMPLETE_COMMIT if request.is_commit else COMPLETE_ABORT):
        return Step(ErrorCode.NONE, None, known.producer_id, known.producer_epoch)
    return _INVALID_STATE


def _end_and_bump_epoch(known: Transaction, request: End, *, new_producer_id: int, timestamp_ms: int) -> Step:
    if known.state in PREPARED or known.state is PREPARE_EPOCH_FENCE:
        return _CONCURRENT
    epoch = request.producer_epoch
    is_after_overflow = (
        known.previous_producer_id == request.producer_id
        and epoch == LAST_EPOCH_OF_CLIENTS
        and known.producer_epoch == 0
    )
    if known.producer_id != request.producer_id and not is_after_overflow:
        return _UNKNOWN_PRODUCER
    if known.producer_epoch != epoch:
        is_retry = is_after_overflow or known.producer_epoch == epoch + 1 < MAX_EPOCH
        if not is_retry or known.state not in (COMPLETE_COMMIT, COMPLETE_ABORT):
            return _FENCED
        if known.state is (COMPLETE_COMMIT if request.is_commit else COMPLETE_ABORT):
            return Step(ErrorCode.NONE, None, known.producer_id, known.producer_epoch)
        return _INVALID_STATE
    if known.state is not ONGOING and request.is_commit:
        return _INVALID_STATE
    # A client may abort a transaction without partitions: it does not know whether the broker has added any.
    next_producer_id = NO_PRODUCER_ID
    if known.is_exhausted:
        if new_producer_id == NO_PRODUCER_ID:
            return NEEDS_PRODUCER_ID
        next_producer_id = new_producer_id
    return _prepare(
        known,
        is_commit=request.is_commit,
        client_version=request.client_version,
        timestamp_ms=timestamp_ms,
        next_producer_id=next_producer_id,
    )


def fence(known: Transaction, *, server_version: int, timestamp_ms: int) -> Step:
    """Abort a transaction in progress with an epoch that is higher than its producer's: it timed out, or another
    producer has the transactional id now.

    If the epoch is exhausted, the id is left with MAX_EPOCH, which no client gets, until the next InitProducerId.
    """
    epochs = {}
    if server_version < EPOCH_BUMP_VERSION:  # with the newer protocol every end of a transaction raises the epoch
        epochs = {"producer_epoch": min(known.producer_epoch + 1, MAX_EPOCH), "last_producer_epoch": NO_EPOCH}
    fenced = known.to(PREPARE_EPOCH_FENCE, **epochs)
    version = 0 if epochs else server_version
    return _prepare(fenced, is_commit=False, client_version=version, timestamp_ms=timestamp_ms)


def _prepare(
    known: Transaction,
    *,
    is_commit: bool,
    client_version: int,
    timestamp_ms: int,
    next_producer_id: int = NO_PRODUCER_ID,
) -> Step:
    """Make the result of the transaction certain."""
    epoch, last_epoch = known.producer_epoch, known.last_producer_epoch
    if client_version >= EPOCH_BUMP_VERSION:
        epoch, last_epoch = min(epoch + 1, MAX_EPOCH), epoch
    after = known.to(
        PREPARE_COMMIT if is_commit else PREPARE_ABORT,
        producer_epoch=epoch,
        last_producer_epoch=last_epoch,
        next_producer_id=next_producer_id,
        start_timestamp_ms=timestamp_ms if known.state in IDLE else known.start_timestamp_ms,
        last_update_timestamp_ms=timestamp_ms,
        client_version=client_version,
    )
    return Step(ErrorCode.NONE, after, *after.successor)


def complete(known: Transaction, *, timestamp_ms: int) -> Transaction:
    """All markers are written."""
    state: TransactionState = COMPLETE_COMMIT if known.state is PREPARE_COMMIT else COMPLETE_ABORT
    producer_id, producer_epoch = known.successor
    return known.to(
        state,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        next_producer_id=NO_PRODUCER_ID,
        partitions=NO_PARTITIONS,
        last_update_timestamp_ms=timestamp_ms,
    )


def has_timed_out(known: Transaction, timestamp_ms: int) -> bool:
    """Whether a transaction in progress is older than its timeout."""
    return known.state is ONGOING and known.start_timestamp_ms + known.timeout_ms < timestamp_ms


def is_expired(known: Transaction, timestamp_ms: int, *, expiration_ms: int) -> bool:
    """Whether a transactional id without a transaction has not been used for expiration_ms."""
    return known.state in IDLE and known.last_update_timestamp_ms <= timestamp_ms - expiration_ms
