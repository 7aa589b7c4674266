"""One Fetch over its partitions: what is read within one byte budget, and what it waits for.

Theory of operation: partitions are read in the order of the request (or session). The first one with anything to give
may exceed both limits by one whole batch, so that a consumer always gets on; later ones give nothing when their next
batch does not fit. A Fetch that found too little waits, and looks again at just those partitions whose readable end or
leadership moved. When the wait ends everything is read anew.

Source: KIP-74 (one whole batch at least), KIP-227, the delayed fetch of Apache Kafka 4.3.1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kbroker.replication.fetch_session import FetchedPartition
from kbroker.replication.partition import Partition, PartitionRead
from wire.errors import ErrorCode, KafkaError


@dataclass(slots=True)
class PartitionAnswer:
    """What one partition gives to one Fetch: either an error, or what was read."""

    asked: FetchedPartition
    partition: Partition | None = None
    read: PartitionRead | None = None
    error: KafkaError | None = None
    size: int = 0

    @property
    def error_code(self) -> ErrorCode:
        """NONE, or why nothing was read."""
        return self.error.code if self.error is not None else ErrorCode.NONE


class FetchRound:
    """One Fetch, read as often as it takes.

    Units   max_bytes, min_bytes and size are bytes of records
    Errors  none: what goes wrong with a partition is part of its answer
    """

    def __init__(
        self,
        asked: list[FetchedPartition],
        find: Callable[[FetchedPartition], Partition],
        *,
        max_bytes: int,
        min_bytes: int,
        replica_id: int,
        read_committed: bool,
    ) -> None:
        self.answers = [PartitionAnswer(partition) for partition in asked]
        self.size = 0
        self._find = find
        self._max_bytes = max_bytes
        self._min_bytes = min_bytes
        self._replica_id = replica_id
        self._read_committed = read_committed

    def read(self) -> None:
        """Read every partition within the byte budget."""
        budget, self.size = self._max_bytes, 0
        for answer in self.answers:
            self._read_one(answer, max_bytes=min(answer.asked.partition_max_bytes, budget), first=self.size == 0)
            self.size += answer.size
            budget = max(0, budget - answer.size)

    @property
    def answers_at_once(self) -> bool:
        """Whether there is no reason to wait: enough bytes, an error, a diverging epoch, or nothing asked."""
        return (
            not self.answers
            or self.size >= self._min_bytes
            or any(
                answer.error is not None
                or (answer.read is not None and answer.read.diverging is not None)
                or self._lags_a_segment(answer)
                for answer in self.answers
            )
        )

    def is_satisfied(self) -> bool:
        """Whether a waiting Fetch is to be answered now. Looks only at partitions that moved since they were read."""
        for answer in self.answers:
            partition, read = answer.partition, answer.read
            if partition is None or read is None:
                return True
            try:
                end = partition.readable_end(replica_id=self._replica_id, read_committed=self._read_committed)
            except KafkaError:
                return True
            if end == read.readable_end and partition.leader_epoch == read.leader_epoch:
                continue
            before = answer.size
            self._read_one(answer, max_bytes=answer.asked.partition_max_bytes, first=True)
            self.size += answer.size - before
            if answer.error is not None or (answer.read is not None and answer.read.diverging is not None):
                return True
            if self._lags_a_segment(answer):
                return True
        return self.size >= self._min_bytes

    @staticmethod
    def _lags_a_segment(answer: PartitionAnswer) -> bool:
        """A fetcher that reads from a closed segment is behind: waiting for more bytes than that segment has is vain."""
        return (
            answer.size > 0
            and answer.partition is not None
            and answer.asked.fetch_offset < answer.partition.log.active_segment_base_offset
        )

    def _read_one(self, answer: PartitionAnswer, *, max_bytes: int, first: bool) -> None:
        asked = answer.asked
        answer.read, answer.error, answer.size = None, None, 0
        try:
            partition = answer.partition = self._find(asked)
            answer.read = partition.read(
                fetch_offset=asked.fetch_offset,
                max_bytes=max_bytes,
                current_leader_epoch=asked.current_leader_epoch,
                last_fetched_epoch=asked.last_fetched_epoch,
                replica_id=self._replica_id,
                read_committed=self._read_committed,
                at_least_one_batch=first,
            )
        except KafkaError as error:
            answer.error = error
        else:
            answer.size = answer.read.size
