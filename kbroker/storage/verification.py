"""What a partition knows of producers whose transactions are being verified (KIP-890).

Before the first write of a transaction to a partition, the leader asks the transaction coordinator whether the
partition belongs to the transaction. If a marker ended the transaction between the answer and the append, the batch
would start a transaction that no producer ends. So the append must present the `Verification` that the partition had
when the request was sent; a marker or a data batch of the producer removes it.

The state is not in the log. After a change of leader or a restart the producer's batches are verified again.

Source  VerificationGuard, VerificationStateEntry of Apache Kafka 4.3.1
"""

from __future__ import annotations

from typing import Final

from wire.batch_header import CONTROL_BIT, BatchHeader
from wire.errors import ErrorCode, KafkaError

MAX_VERIFICATIONS: Final = 10_000


class Verification:
    """One producer whose transaction is being verified, or has been verified and not written to yet.

    Shape  lowest_sequence is the smallest first sequence number among the producer's batches that were verified: with
           several requests in flight, no other batch may be written first
    Note   adds: the request also adds the partition to the transaction (transaction.version 2)
    """

    __slots__ = ("adds", "began_ms", "epoch", "lowest_sequence")

    def __init__(self, epoch: int, lowest_sequence: int, *, adds: bool, began_ms: int) -> None:
        self.epoch = epoch
        self.lowest_sequence = lowest_sequence
        self.adds = adds
        self.began_ms = began_ms

    def check_sequence(self, header: BatchHeader, *, has_batches: bool) -> None:
        """Refuse a batch that may not be the producer's first one. Errors: OUT_OF_ORDER_SEQUENCE_NUMBER."""
        sequence = header.base_sequence
        if (self.adds and sequence != 0 and not has_batches) or sequence > self.lowest_sequence:
            raise KafkaError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {header.producer_id} sends sequence {sequence}, its first batch must come first",
            )


NO_VERIFICATION: Final = Verification(-1, 0, adds=False, began_ms=0)
"""Presented with batches of a transaction that was open when the request arrived; it is not valid for another one."""


class Verifications(dict[int, Verification]):
    """The verifications of one partition, by producer id.

    Bound  MAX_VERIFICATIONS; if there are more, the oldest is dropped, and its batch is refused
    """

    def begin(self, producer_id: int, *, epoch: int, sequence: int, adds: bool, timestamp_ms: int) -> Verification:
        """The verification to present with a batch; other batches of the producer may share it."""
        found = self.get(producer_id)
        if found is None:
            if len(self) >= MAX_VERIFICATIONS:
                del self[next(iter(self))]
            found = self[producer_id] = Verification(epoch, sequence, adds=adds, began_ms=timestamp_ms)
        elif epoch == found.epoch:
            found.lowest_sequence = min(found.lowest_sequence, sequence)
        elif epoch > found.epoch:
            found.epoch, found.lowest_sequence = epoch, sequence
        return found

    def end(self, header: BatchHeader) -> None:
        """Note a transactional batch or a marker in the log.

        With transaction.version 2 a marker ends the epoch before the one that is being verified, unless they are equal.
        """
        found = self.get(header.producer_id)
        if found is None:
            return
        if found.adds and header.attributes & CONTROL_BIT and header.producer_epoch == found.epoch:
            return
        del self[header.producer_id]

    def expire(self, timestamp_ms: int, expiration_ms: int) -> None:
        """Drop verifications that no batch has used for `expiration_ms`."""
        for producer_id in [key for key, one in self.items() if timestamp_ms - one.began_ms >= expiration_ms]:
            del self[producer_id]
