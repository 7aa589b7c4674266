"""Serve one Fetch: read its partitions within one byte budget, and decide whether it waits.

Theory of operation: partitions are read in the order of the request (or session). The first one with data may exceed
both limits by one whole batch, so that a consumer always makes progress. Later ones return nothing if their next batch
does not fit. A Fetch that found too little waits. It then checks only those partitions whose readable end or leadership
changed. When the wait ends, it reads the partitions again, except those that still have nothing to read.

The positions of records at the tail of a log and of continued reads are known in memory. Other positions take 1.5 to
5 ms to find if the index is not in the page cache, and 0.04 to 0.1 ms if it is, so such reads run in a thread.

This module does not read from the tier. A part that is only there gets its share of the byte budget in the order of the
request, and the caller reads it and inserts the result (`RemotePart`). A Fetch with such a part does not wait.

A partition that the metadata does not know, or that the client may not read, does not end the wait while others may
get records. Otherwise a consumer whose topic was deleted would send requests in a loop until it learns of the deletion.
Such partitions are at the end of the answer.

Source: KIP-74 (at least one whole batch), KIP-227, the delayed fetch of Apache Kafka 4.3.1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

from kbroker.replication.fetch_session import FetchedPartition
from kbroker.replication.leader import LeaderProgress
from kbroker.replication.partition import Partition
from kbroker.replication.partition_reads import Fetcher, PartitionRead, ReadsTo
from kbroker.replication.replica_selector import NO_PREFERENCE
from kbroker.runtime.frames import without_frames
from kbroker.runtime.net_ports import Pieces
from kbroker.runtime.ports import Buffer
from kbroker.storage.checkpoint import TopicPartition
from kbroker.storage.transaction_index import AbortedTransaction
from wire.errors import ErrorCode, KafkaError

_SET_ASIDE: Final = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    }
)


class _FarBehind(Exception):
    """The read needs a position that is not known in memory."""


@dataclass(slots=True, eq=False)
class PartitionAnswer:
    """The answer for one partition of a Fetch: either an error or the data that was read.

    Note  is_unknown: the metadata did not know the partition, or the client might not read it, when the request arrived
    Note  with OFFSET_MOVED_TO_TIERED_STORAGE it has both: the error, and the log start offset and high watermark
    """

    asked: FetchedPartition
    partition: Partition | None = None
    read: PartitionRead | None = None
    error: KafkaError | None = None
    is_unknown: bool = False
    size: int = 0
    preferred_replica: int = NO_PREFERENCE

    def fail(self, error: KafkaError) -> None:
        """Replace the data with an error."""
        self.error, self.read, self.size = without_frames(error), None, 0

    # What a session needs

    @property
    def error_code(self) -> ErrorCode:
        """The error code of the partition, or NONE."""
        return ErrorCode.NONE if self.error is None else self.error.code

    @property
    def high_watermark(self) -> int:
        """The high watermark to send; -1 with an error, except if a follower must continue from the tier."""
        return -1 if self.read is None else self.read.high_watermark

    @property
    def log_start_offset(self) -> int:
        """The log start offset to send; -1 with an error."""
        return -1 if self.read is None else self.read.log_start_offset

    @property
    def must_be_sent(self) -> bool:
        """Whether there is a diverging epoch or a preferred replica, which are always sent."""
        return (self.read is not None and self.read.diverging is not None) or self.preferred_replica != NO_PREFERENCE


class RemotePart(NamedTuple):
    """The part of a Fetch that must be read from the tier for one partition.

    Units  max_bytes were taken from the budget of the Fetch (KAFKA-19462, KAFKA-20019)
    Note   at_least_one_batch is true for at most one part: the first one of the answer with data
    """

    answer: PartitionAnswer
    partition: Partition
    max_bytes: int
    at_least_one_batch: bool


class FetchRound:
    """One Fetch, which may be read several times.

    Units   max_bytes, min_bytes and size are bytes of records
    Shape   remote are the parts that the last read left to be read from the tier
    Errors  none: errors of partitions are part of their answers
    Note    is_throttled tells whether a follower gets nothing of a partition for now
    Note    prefer names the replica from which the fetcher should read a partition instead, -1 for this one
    """

    def __init__(
        self,
        asked: list[FetchedPartition],
        find: Callable[[FetchedPartition], Partition],
        *,
        fetcher: Fetcher,
        max_bytes: int,
        min_bytes: int,
        prefer: Callable[[LeaderProgress, int], int] | None = None,
        is_throttled: Callable[[Partition], bool] | None = None,
    ) -> None:
        self.answers = [PartitionAnswer(partition) for partition in asked]
        self.size = 0
        self.remote: list[RemotePart] = []
        self._find = find
        self._fetcher = fetcher
        self._prefer = prefer
        self._is_throttled = is_throttled
        self._max_bytes = max(0, max_bytes)
        self._min_bytes = min(min_bytes, self._max_bytes)

    def read(self) -> bool:
        """Read every partition within the byte budget, unless a position must be looked up on the disk.

        Returns False in that case; the caller must then call `read_blocking` in a thread.
        """
        try:
            self._read_all(may_block=False)
        except _FarBehind:
            return False
        return True

    def read_blocking(self) -> None:
        """As `read`, but looks up any position. Blocking."""
        self._read_all(may_block=True)

    def refuse_retired(self) -> None:
        """After `read_blocking`, drop what was read of partitions that were removed from this broker during the read:
        another topic may have reused their file names.
        """
        for answer in self.answers:
            if answer.partition is not None and answer.error is None and not answer.partition.serves(self._fetcher):
                answer.fail(
                    KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{answer.partition.name} is not led here any more")
                )

    def set_unknown_aside(self) -> None:
        """After the first read, move partitions that are unknown, or that the client may not read, to the end, and skip
        them later.
        """
        has_unknown = False
        for answer in self.answers:
            if answer.error is not None and answer.error.code in _SET_ASIDE:
                answer.is_unknown = has_unknown = True
        if has_unknown:
            self.answers.sort(key=lambda answer: answer.is_unknown)

    def _read_all(self, *, may_block: bool) -> None:
        budget, self.size = self._max_bytes, 0
        if self.remote:
            self.remote = []
        for answer in self.answers:
            if answer.is_unknown or self._is_unchanged(answer):
                continue
            size = self._read_one(answer, budget, first=not self.size and not self.remote, may_block=may_block)
            if size:
                self.size += size
                budget = max(0, budget - size)
            elif answer.read is not None and answer.read.is_remote:
                budget -= self._leave(answer, budget)

    def _is_unchanged(self, answer: PartitionAnswer) -> bool:
        """Whether the last read found nothing to read, and another one would find the same offsets."""
        partition, read = answer.partition, answer.read
        if partition is None or read is None or self._prefer is not None:
            return False
        is_idle = read.diverging is None and answer.asked.fetch_offset == read.readable_end
        return is_idle and partition.is_unchanged_since(read, self._fetcher)

    def _leave(self, answer: PartitionAnswer, budget: int) -> int:
        """Leave a partition to be read from the tier; returns how many bytes it may return."""
        partition = answer.partition
        if partition is None or answer.error is not None:
            return 0
        max_bytes = min(max(0, answer.asked.partition_max_bytes), budget)
        # KAFKA-19795: only the first partition may exceed the limit by one whole batch.
        self.remote.append(RemotePart(answer, partition, max_bytes, not self.size and not self.remote))
        return max_bytes

    # Data read from the tier

    @property
    def reads_committed(self) -> bool:
        """Whether the fetcher skips aborted transactions."""
        return self._fetcher.reads_to is ReadsTo.LAST_STABLE_OFFSET

    def take_remote(
        self, part: RemotePart, records: Buffer | Pieces, size: int, aborted: tuple[AbortedTransaction, ...] = ()
    ) -> None:
        """Insert what was read from the tier."""
        read = part.answer.read
        assert read is not None
        read.records, read.size, read.aborted = records, size, aborted
        part.answer.size = size
        self.size += size

    def read_on(self, part: RemotePart, offset: int) -> None:
        """The tier has nothing between the requested offset and `offset`: read the local log from there. Blocking.

        Source  KAFKA-15388
        """
        answer = part.answer
        try:
            found = part.partition.read(
                fetch_offset=offset,
                max_bytes=part.max_bytes,
                fetcher=self._fetcher,
                current_leader_epoch=answer.asked.current_leader_epoch,
                at_least_one_batch=part.at_least_one_batch,
            )
        except KafkaError as error:
            answer.fail(error)
            return
        answer.read, answer.size = found, found.size
        self.size += found.size

    def read_without_remote(self) -> None:
        """The tier returned nothing: let the first of the other partitions exceed the limits instead. Blocking."""
        left = {id(part.answer) for part in self.remote}
        budget = self._max_bytes
        for answer in self.answers:
            if answer.is_unknown or id(answer) in left:
                continue
            size = self._read_one(answer, budget, first=not self.size, may_block=True)
            self.size += size
            budget = max(0, budget - size)

    @property
    def has_enough(self) -> bool:
        """Whether there are at least min_bytes."""
        return self.size >= self._min_bytes

    def note_follower(self, now_ms: int = 0) -> tuple[list[TopicPartition], list[Partition]]:
        """Record a follower's fetch offsets, which acknowledge all earlier records. Returns the partitions whose high
        watermark rose, and those with a new proposal of an ISR.

        Call it once, after the first read, for a follower.
        """
        fetcher = self._fetcher
        risen: list[TopicPartition] = []
        proposing: list[Partition] = []
        for answer in self.answers:
            partition, read = answer.partition, answer.read
            if partition is None or read is None or answer.error is not None:
                continue
            if fetcher.is_stale:
                message = f"broker {fetcher.replica_id} has registered again since"
                answer.fail(KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, message))
            elif read.diverging is None:
                asked, proposal = answer.asked, partition.proposal
                try:
                    rose = partition.on_follower_fetch(
                        fetcher,
                        asked.fetch_offset,
                        current_leader_epoch=asked.current_leader_epoch,
                        log_start_offset=asked.log_start_offset,
                        now_ms=now_ms,
                    )
                except KafkaError as error:  # the leader epoch has changed during the read, or the directory has failed
                    answer.fail(error)
                    continue
                if rose:
                    risen.append(partition.key)
                if partition.proposal is not proposal:
                    proposing.append(partition)
        return risen, proposing

    @property
    def answers_at_once(self) -> bool:
        """Whether there is no reason to wait: enough bytes, an error, a diverging epoch, or no partitions."""
        if self.size >= self._min_bytes:
            return True
        waits = False
        for answer in self.answers:
            if answer.is_unknown:
                continue
            partition, read = answer.partition, answer.read
            if partition is None or read is None or self._available(answer, partition, read) is None:
                return True
            waits = True
        return not waits

    def is_satisfied(self) -> bool:
        """Whether a waiting Fetch is due. Pure: it compares positions in memory; the caller reads again afterwards."""
        fetcher, size = self._fetcher, 0
        for answer in self.answers:
            if answer.is_unknown:
                continue
            asked, partition, read = answer.asked, answer.partition, answer.read
            if partition is None or read is None:
                return True
            try:
                end = partition.readable_end_for(fetcher)
                if end == read.readable_end and partition.leader_epoch == read.leader_epoch:
                    size += answer.size
                    continue
                found = partition.look_up(
                    asked.fetch_offset,
                    fetcher=fetcher,
                    current_leader_epoch=asked.current_leader_epoch,
                    last_fetched_epoch=asked.last_fetched_epoch,
                )
            except KafkaError:
                return True
            found.place, found.is_remote = read.place, partition.is_remote(asked.fetch_offset)
            if (available := self._available(answer, partition, found)) is None:
                return True
            size += min(available, max(0, asked.partition_max_bytes))
        return size >= self._min_bytes

    def _available(self, answer: PartitionAnswer, partition: Partition, read: PartitionRead) -> int | None:
        """Bytes that the partition has for this Fetch; None if it must be answered now."""
        if read.diverging is not None or read.is_remote or answer.preferred_replica != NO_PREFERENCE:
            return None
        if self._is_throttled is not None and self._is_throttled(partition):
            return 0
        return partition.bytes_between(answer.asked.fetch_offset, read.readable_end, read.place)

    def _names_other_replica(self, answer: PartitionAnswer, partition: Partition) -> bool:
        """Whether the fetcher should read from another replica; the answer then has no records. Errors: of look_up."""
        assert self._prefer is not None
        asked, progress = answer.asked, partition.progress
        if progress is not None:
            answer.preferred_replica = self._prefer(progress, asked.fetch_offset)
        if answer.preferred_replica == NO_PREFERENCE:
            return False
        answer.read = partition.look_up(
            asked.fetch_offset,
            fetcher=self._fetcher,
            current_leader_epoch=asked.current_leader_epoch,
            last_fetched_epoch=asked.last_fetched_epoch,
        )
        return True

    def _read_one(self, answer: PartitionAnswer, budget: int, *, first: bool, may_block: bool) -> int:
        """Read one partition; returns the number of bytes read."""
        asked = answer.asked
        answer.read = answer.error = None
        answer.size = 0
        try:
            partition = answer.partition = self._find(asked)
            if self._prefer is not None and self._names_other_replica(answer, partition):
                return 0
            if not may_block and not partition.is_remote(asked.fetch_offset):
                log = partition.log
                if not log.knows_place_of(asked.fetch_offset) or (
                    self.reads_committed and log.aborted_may_block(asked.fetch_offset)
                ):
                    raise _FarBehind
            is_throttled = self._is_throttled is not None and self._is_throttled(partition)
            read = answer.read = partition.read(
                fetch_offset=asked.fetch_offset,
                max_bytes=0 if is_throttled else min(max(0, asked.partition_max_bytes), budget),
                fetcher=self._fetcher,
                current_leader_epoch=asked.current_leader_epoch,
                last_fetched_epoch=asked.last_fetched_epoch,
                at_least_one_batch=first and not is_throttled,
            )
        except KafkaError as error:
            answer.fail(error)
            return 0
        if read.is_remote and self._fetcher.is_replica:
            # KAFKA-16013: reported without waiting, because the follower builds its state from the tier itself.
            answer.error = KafkaError(
                ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE, f"{asked.fetch_offset} of {partition.name} is in the tier"
            )
            return 0
        answer.size = read.size
        return read.size
