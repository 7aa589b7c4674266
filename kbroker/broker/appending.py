"""Appending produced batches to the logs of partitions.

Theory of operation: no other trio task runs between two awaits, so a small append needs no lock: it runs inline from
plan to commit. Slow steps run in a thread: a sync, a segment roll, the validation of an expensive batch, and a large
write while the system is slow to accept them (`WritePace`). Such an append holds its partition's lock, so that no other
append plans from the same log end offset; later appends to the partition wait for the lock in order.

Source: decisions 1, 3, 11 and 14 of ARCHITECTURE.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from kbroker.broker.locks import PartitionLocks
from kbroker.replication.follower import Followed
from kbroker.replication.partition import Partition
from kbroker.runtime.budget import SplitBudget
from kbroker.runtime.net_ports import Env
from kbroker.runtime.purgatory import Purgatory
from kbroker.storage.log import Log
from kbroker.storage.plans import INLINE_WRITE_BYTES, AppendPlan
from kbroker.storage.validation import ProducedBatch, is_cheap, unpacking_bytes, validate_produced
from kbroker.storage.verification import Verification
from wire.errors import ErrorCode, KafkaError
from wire.record_batch import RecordBatch

INLINE_LARGE_WRITE_BYTES: Final = 2 * 1024 * 1024
"""A write up to this size stays on the event loop as long as the page cache accepts such writes quickly."""
QUICK_WRITE_NS: Final = 2_000_000
QUICK_WRITES_WANTED: Final = 64
SMALL_UNPACKING_BYTES: Final = 8 * 1024 * 1024
"""Batches of common producers need less memory than this to check; they do not wait for larger batches."""


class WritePace:
    """Decides whether large writes are fast enough to run on the event loop.

    A 900 KiB write into a page cache with room takes 0.3 ms. In a thread it takes longer, because the thread and the
    event loop compete for the interpreter lock: 1,380 MB/s inline, 830 MB/s in a thread. But when the kernel makes
    writers wait for the disk, an inline write blocks every client. So one slow write moves the following large writes
    into threads, until QUICK_WRITES_WANTED writes in a row were fast.
    """

    __slots__ = ("_wanted",)

    def __init__(self) -> None:
        self._wanted = 0

    def is_inline(self, size: int) -> bool:
        """Whether a write of `size` bytes may run on the event loop."""
        return size <= INLINE_WRITE_BYTES or (not self._wanted and size <= INLINE_LARGE_WRITE_BYTES)

    def note(self, took_ns: int) -> None:
        """Record the duration of a large write, inline or in a thread."""
        if took_ns > QUICK_WRITE_NS:
            self._wanted = QUICK_WRITES_WANTED
        elif self._wanted:
            self._wanted -= 1


class Appended:
    """A batch that is in the leader's log.

    Units  offsets count records; log_append_time_ms is wall time, -1 if the topic keeps the producer's timestamps
    """

    __slots__ = ("base_offset", "leader_epoch", "log_append_time_ms", "log_start_offset", "next_offset", "partition")

    def __init__(self, partition: Partition, plan: AppendPlan, log_append_time_ms: int) -> None:
        self.partition = partition
        self.base_offset = plan.first_offset
        self.next_offset = plan.next_offset
        # The reply to a duplicate batch has the time of the first append.
        self.log_append_time_ms = plan.timestamp_ms if plan.is_duplicate else log_append_time_ms
        self.log_start_offset = partition.log.log_start_offset
        self.leader_epoch = partition.leader_epoch

    @property
    def is_committed(self) -> bool:
        """Whether every in-sync replica has the batch."""
        progress = self.partition.progress
        return progress is not None and progress.high_watermark >= self.next_offset

    def outcome(self) -> ErrorCode | None:
        """The error code for a Produce with acks=all; None while the batch is not committed yet."""
        partition = self.partition
        progress = partition.progress
        if partition.log.state.failure is not None:
            return ErrorCode.KAFKA_STORAGE_ERROR
        if progress is None or partition.leader_epoch != self.leader_epoch:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if progress.high_watermark < self.next_offset:
            return None
        return ErrorCode.NONE if progress.had_enough_replicas else ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND


class Appender:
    """Appends for one broker.

    Bound unpacking: the memory that threads use to check batches (`kbroker.max.unpacking.bytes`)
    Note  max_decompressed_bytes limits the decompressed size of a batch; it follows the settings
    Note  code that changes a log in more than one step holds the partition's lock in `locks`
    """

    def __init__(
        self, env: Env, purgatory: Purgatory, *, max_decompressed_bytes: int, max_unpacking_bytes: int
    ) -> None:
        self.max_decompressed_bytes = max_decompressed_bytes
        self.unpacking = SplitBudget(max_unpacking_bytes, small_bytes=SMALL_UNPACKING_BYTES)
        self._env = env
        self._purgatory = purgatory
        self._pace = WritePace()
        self.locks = PartitionLocks()

    async def append(
        self,
        partition: Partition,
        records: memoryview | bytes | None,
        *,
        version: int,
        check: Callable[[RecordBatch], None] | None = None,
        verification: Verification | None = None,
    ) -> Appended:
        """Append one produced batch to a partition that this broker leads, if `check` accepts it.

        With a `verification` a transactional batch must belong to an open or a verified transaction.

        Errors  those of validate_produced, Partition.leading and Log.plan_append; TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        Errors  POLICY_VIOLATION for a read-only topic
        """
        timestamp_ms = self._env.timestamp_ms()
        log = partition.log
        config = log.config
        if config.kbroker_read_only:
            raise KafkaError(ErrorCode.POLICY_VIOLATION, f"{partition.topic} is read-only (kbroker.read.only=true)")
        if config.kbroker_attached_end_offsets and log.log_end_offset < config.attached_end(partition.index):
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"the segments of {partition.name} are being attached")
        if check is None and is_cheap(records, config):
            batch = self._validate(records, partition, version, timestamp_ms, None)
        else:
            size = 0 if records is None or is_cheap(records, config) else unpacking_bytes(records, config)
            claim = self.unpacking.claim(size)
            try:
                await claim.take(size)
                batch = await self._env.run_blocking(self._validate, records, partition, version, timestamp_ms, check)
            finally:
                claim.release()
            partition.leading()  # the leader may have changed during the await
        data, header = batch.data, batch.batch
        size = len(data)
        rose = True
        if self._pace.is_inline(size) and partition.key not in self.locks:
            plan = log.plan_append(
                data,
                leader_epoch=partition.leader_epoch,
                timestamp_ms=timestamp_ms,
                header=header,
                verification=verification,
            )
            if plan.rolls or plan.syncs:
                plan = await self._append_off_the_loop(partition, batch, timestamp_ms, verification)
            else:
                if size <= INLINE_WRITE_BYTES:
                    log.write(plan)
                else:
                    self._write_large(log, plan)
                log.commit(plan)
                rose = partition.on_append()
        else:
            plan = await self._append_off_the_loop(partition, batch, timestamp_ms, verification)
        if rose:
            self._purgatory.wake(partition.key)
        else:
            self._purgatory.wake_for_append(partition.key)
        if not plan.is_duplicate:
            traffic = partition.traffic
            traffic.bytes_in += size
            traffic.messages_in += plan.next_offset - plan.first_offset
        return Appended(partition, plan, batch.log_append_time)

    def _validate(
        self,
        records: memoryview | bytes | None,
        partition: Partition,
        version: int,
        timestamp_ms: int,
        check: Callable[[RecordBatch], None] | None,
    ) -> ProducedBatch:
        found = validate_produced(
            records,
            api_version=version,
            config=partition.log.config,
            timestamp_ms=timestamp_ms,
            partition=partition.name,
            max_decompressed_bytes=self.max_decompressed_bytes,
        )
        if check is not None:
            check(found.batch)
        return found

    async def _append_off_the_loop(
        self, partition: Partition, batch: ProducedBatch, timestamp_ms: int, verification: Verification | None
    ) -> AppendPlan:
        """Append with the write in a thread, after the appends in progress."""
        async with self.locks.holding(partition.key):
            partition.leading()  # the leader may have changed while this append waited
            log = partition.log
            plan = log.plan_append(
                batch.data, leader_epoch=partition.leader_epoch, timestamp_ms=timestamp_ms, verification=verification
            )
            await self._env.run_blocking(self._write_large, log, plan)
            log.commit(plan)
            partition.on_append()
        return plan

    async def append_marker(
        self,
        partition: Partition,
        batch: bytes,
        *,
        transaction_version: int,
        on_commit: Callable[[], None] | None = None,
    ) -> Appended:
        """Append a coordinator's marker to a partition that this broker leads; `on_commit` runs before the next append.

        Errors  those of Partition.leading and Log.plan_marker
        """
        log, timestamp_ms = partition.log, self._env.timestamp_ms()

        def plan_marker() -> AppendPlan:
            partition.leading()
            return log.plan_marker(
                batch,
                leader_epoch=partition.leader_epoch,
                timestamp_ms=timestamp_ms,
                transaction_version=transaction_version,
            )

        plan = plan_marker()
        if plan.rolls or plan.syncs or partition.key in self.locks:
            async with self.locks.holding(partition.key):
                plan = plan_marker()
                await self._env.run_blocking(log.write, plan)
                self._commit_marker(partition, plan, on_commit)
        else:
            log.write(plan)
            self._commit_marker(partition, plan, on_commit)
        self._purgatory.wake(partition.key)
        return Appended(partition, plan, -1)

    def _commit_marker(self, partition: Partition, plan: AppendPlan, on_commit: Callable[[], None] | None) -> None:
        partition.log.commit(plan)
        partition.on_append()
        if on_commit is not None:
            on_commit()

    async def append_as_follower(self, followed: Followed, records: memoryview) -> None:
        """Append the records that the leader has sent, unless the partition has a new leader or another end by now.

        Errors  those of Log.plan_append_as_follower and Log.write
        """
        partition, log = followed.partition, followed.partition.log
        if self._pace.is_inline(len(records)) and partition.key not in self.locks:
            plan = self._plan_as_follower(followed, records)
            if plan is None:
                return
            if not (plan.rolls or plan.syncs):
                self._write_large(log, plan)
                log.commit(plan)
                return
        async with self.locks.holding(partition.key):
            plan = self._plan_as_follower(followed, records)
            if plan is not None:
                await self._env.run_blocking(self._write_large, log, plan)
                log.commit(plan)

    def _plan_as_follower(self, followed: Followed, records: memoryview) -> AppendPlan | None:
        log = followed.partition.log
        if not followed.is_current or followed.fetch_offset != log.log_end_offset:
            return None
        return log.plan_append_as_follower(
            records, timestamp_ms=self._env.timestamp_ms(), leader_epoch=followed.leader_epoch
        )

    def _write_large(self, log: Log, plan: AppendPlan) -> None:
        began = self._env.now_ns()
        log.write(plan)
        if plan.size > INLINE_WRITE_BYTES and not (plan.rolls or plan.syncs):  # rolls and syncs are always slow
            self._pace.note(self._env.now_ns() - began)
