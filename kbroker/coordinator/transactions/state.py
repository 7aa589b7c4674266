"""A transactional id: the state of its transaction, its producer and the partitions that the transaction has.

    Empty ──────────> Ongoing ─────────> PrepareCommit ──> CompleteCommit
      ^   partitions     │    commit                             │
      │                  │ abort, timeout, a new producer        │
      │                  v                                       v
      │              PrepareAbort ─────> CompleteAbort ──> Ongoing, or Empty with a new producer
      └── InitProducerId

Values are immutable: each change makes a new one, which is stored as one record. Two states are never stored. A
transactional id is Dead from the decision to remove it until its tombstone is stored. It is in PrepareEpochFence while
the coordinator fences its producer, which ends with PrepareAbort in the same step.

Source: TransactionState and TransactionMetadata of Apache Kafka 4.3.1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from types import MappingProxyType
from typing import Any, Final, Self

NO_PRODUCER_ID: Final = -1
NO_EPOCH: Final = -1
MAX_EPOCH: Final = 32_767
LAST_EPOCH_OF_CLIENTS: Final = MAX_EPOCH - 1
"""No client gets MAX_EPOCH, so that the coordinator can always fence a producer with a higher epoch."""

NO_TIMESTAMP: Final = -1
EPOCH_BUMP_VERSION: Final = 2
"""The transaction.version from which each transaction has an epoch of its own (KIP-890 part 2)."""

TopicPartition = tuple[str, int]
Partitions = Mapping[TopicPartition, None]
"""An ordered set; the order is that in which the partitions were added."""

NO_PARTITIONS: Final[Partitions] = MappingProxyType({})


class TransactionState(Enum):
    """The state of a transactional id; the value is the stored number."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7

    @property
    def label(self) -> str:
        """Kafka's name, as clients see it."""
        return _LABELS[self]


_LABELS: Final = {state: "".join(word.capitalize() for word in state.name.split("_")) for state in TransactionState}

EMPTY, ONGOING = TransactionState.EMPTY, TransactionState.ONGOING
PREPARE_COMMIT, PREPARE_ABORT = TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT
COMPLETE_COMMIT, COMPLETE_ABORT = TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT
DEAD, PREPARE_EPOCH_FENCE = TransactionState.DEAD, TransactionState.PREPARE_EPOCH_FENCE

PREPARED: Final = frozenset({PREPARE_COMMIT, PREPARE_ABORT})
COMPLETE: Final = frozenset({COMPLETE_COMMIT, COMPLETE_ABORT})
IDLE: Final = COMPLETE | {EMPTY}
"""There is no transaction: the id may expire."""

STORED: Final = frozenset(TransactionState) - {DEAD, PREPARE_EPOCH_FENCE}

PREVIOUS: Final[Mapping[TransactionState, frozenset[TransactionState]]] = MappingProxyType(
    {
        EMPTY: IDLE,
        ONGOING: IDLE | {ONGOING},
        PREPARE_COMMIT: frozenset({ONGOING}),
        PREPARE_ABORT: IDLE | {ONGOING, PREPARE_EPOCH_FENCE},
        COMPLETE_COMMIT: frozenset({PREPARE_COMMIT}),
        COMPLETE_ABORT: frozenset({PREPARE_ABORT}),
        DEAD: IDLE,
        PREPARE_EPOCH_FENCE: frozenset({ONGOING}),
    }
)
"""The states from which each state can be reached."""


@dataclass(frozen=True, slots=True)
class Transaction:
    """A transactional id; see the module docstring.

    Shape   previous_producer_id is the producer id before the last change, next_producer_id the one that replaces
            producer_id when the transaction is complete, last_producer_epoch the epoch before the last bump that the
            client asked for; -1 for none. client_version is the transaction.version of the client that made the last
            change of the transaction
    Units   wall time; start_timestamp_ms is -1 without a transaction
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int = NO_EPOCH
    previous_producer_id: int = NO_PRODUCER_ID
    next_producer_id: int = NO_PRODUCER_ID
    last_producer_epoch: int = NO_EPOCH
    timeout_ms: int = 0
    state: TransactionState = EMPTY
    partitions: Partitions = field(default_factory=lambda: NO_PARTITIONS)
    start_timestamp_ms: int = NO_TIMESTAMP
    last_update_timestamp_ms: int = NO_TIMESTAMP
    client_version: int = 0

    def to(self, state: TransactionState, **changes: Any) -> Self:
        """This transactional id after a change to `state`."""
        assert self.state in PREVIOUS[state], f"{self.transactional_id}: {self.state.label} to {state.label}"
        after = replace(self, state=state, previous_producer_id=self.producer_id, **changes)
        assert 0 <= after.producer_epoch <= MAX_EPOCH or state is DEAD, f"{after.producer_epoch} is no epoch"
        return after

    @property
    def is_exhausted(self) -> bool:
        """Whether no higher epoch of the producer id can be given to a client."""
        return self.producer_epoch >= LAST_EPOCH_OF_CLIENTS

    @property
    def successor(self) -> tuple[int, int]:
        """The producer id and epoch with which the producer continues after this transaction."""
        if self.next_producer_id != NO_PRODUCER_ID:
            return self.next_producer_id, 0
        return self.producer_id, self.producer_epoch
