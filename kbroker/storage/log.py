"""The log of one partition: its segments, offsets, leader epochs and producer state.

An append has three steps, because large writes run in a thread outside the event loop. `plan_append` decides offsets,
epoch, duplicates and whether to roll, and changes nothing. `write` does the I/O; readers do not see its result yet.
`commit` adds the batch to the log. Between plan and commit the caller must prevent other appends; reads continue. A
flush has the same three steps.

Crash safety. Every completed write survives a crash of the process. A loss of power keeps what `flush` has covered:
the data up to recovery_point and the indexes of closed segments. The indexes of the active segment are rebuilt from its
data.

Errors. A failed write is undone at once by truncating the file to its old end. EIO, a failed truncation or a failed
fsync takes the whole log directory offline: after a failed fsync the kernel marks the lost pages clean, so a second
fsync would succeed without writing them. A full disk only fails the append.

Source  UnifiedLog, LocalLog of Apache Kafka 4.3.1
"""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from kbroker.runtime.ports import Buffer, Disk
from kbroker.storage.batches import WritableBuffer
from kbroker.storage.files import FilePool
from kbroker.storage.index import BLOCK_ENTRIES
from kbroker.storage.loader import Loader
from kbroker.storage.log_config import LogConfig
from kbroker.storage.log_files import LogFiles, ignore
from kbroker.storage.plans import (
    UNKNOWN_SPACE,
    AppendPlan,
    DirectoryState,
    FlushPlan,
    assign_several,
    duplicate_plan,
    followers_headers,
    writable,
)
from kbroker.storage.producer_state import read_marker
from kbroker.storage.reading import TAIL_BATCHES
from kbroker.storage.recovering import RecoveredLog
from kbroker.storage.segment import MAX_RELATIVE_OFFSET, Segment
from kbroker.storage.segmented_log import SegmentedLog
from kbroker.storage.segments import unlink_segment
from kbroker.storage.verification import Verification
from wire.batch_header import CONTROL_BIT, NO_PRODUCER_ID, BatchHeader
from wire.errors import ErrorCode, KafkaError

MAX_LEADER_EPOCH: Final = (1 << 31) - 1


def no_jitter(_bound: int) -> int:
    return 0


class Log(SegmentedLog):
    """See the module docstring.

    Units      offsets count records; *_ms is wall time
    Note       lowest_free_bytes: an append must leave this much of the disk free, if that is less than the directory's
               own limit
    Note       persisted_recovery_point and persisted_log_start_offset (None if absent) are what the checkpoint files
               contain; the code that writes these files sets them
    Note       is_log_start_known: False if no checkpoint entry gives the log_start_offset of a tiered log; it is then a
               lower bound until the tier's metadata has been read
    Errors     KafkaError KAFKA_STORAGE_ERROR from everything that touches the disk, with the OSError as its cause
    """

    def __init__(
        self,
        directory: str,
        *,
        disk: Disk,
        config: LogConfig,
        topic: str,
        partition: int,
        topic_id: uuid.UUID | None = None,
        clean_shutdown: bool = False,
        recovery_point: int = 0,
        log_start_offset: int | None = None,
        cleaned_offset: int | None = None,
        timestamp_ms: int = 0,
        pool: FilePool | None = None,
        state: DirectoryState | None = None,
        jitter_ms: Callable[[int], int] = no_jitter,
        report: Callable[[str], None] = ignore,
        recovered: RecoveredLog | None = None,
    ) -> None:
        """Open the log in an existing directory, which may be empty. Recover it first unless the last shutdown was
        clean or `recovered` is given.

        `log_start_offset` and `cleaned_offset` are the checkpoints' entries, None if they have none.
        `jitter_ms(bound)` draws a number in [0, bound); `report` receives one sentence for each repair.
        Blocking: after an unclean shutdown it reads everything from `recovery_point` on.
        """
        self.directory = directory
        self.disk = disk
        self.topic = topic
        self.partition = partition
        self.topic_id = topic_id
        self.state = DirectoryState() if state is None else state
        pool = FilePool(disk) if pool is None else pool
        try:
            if recovered is not None:
                loaded = recovered.take(pool, report)
            else:
                files = LogFiles(directory, pool=pool, report=report)
                loaded = Loader(files, config).load(
                    clean_shutdown=clean_shutdown,
                    recovery_point=recovery_point,
                    log_start_offset=log_start_offset or 0,
                    cleaned_offset=cleaned_offset or 0,
                    timestamp_ms=timestamp_ms,
                )
        except OSError as error:
            self.state.note(error)
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"cannot load {directory}: {error}") from error
        self.files = loaded.files
        self.segments = self.files.segments
        self.leader_epochs = self.files.leader_epochs
        self.producers = self.files.producers
        self.log_start_offset = loaded.log_start_offset
        self.local_log_start_offset = max(loaded.log_start_offset, self.segments.first.base_offset)
        self.log_end_offset = loaded.log_end_offset
        self.recovery_point = loaded.recovery_point
        # The file keeps this number until it is written again, even if the log now ends below it.
        self.persisted_recovery_point = recovery_point
        # After an unclean shutdown the checkpoint that was read may not be durable.
        self.persisted_log_start_offset = log_start_offset if clean_shutdown else None
        self.is_log_start_known = log_start_offset is not None or self.local_log_start_offset == self.log_start_offset
        self.retired = deque()
        self.generation = 0
        self.cleaned_offset = cleaned_offset
        self.last_flush_ms = 0
        self.lowest_free_bytes = UNKNOWN_SPACE
        self.is_closed = False
        self._jitter_ms = jitter_ms
        self._loaded_active_offset = self.segments.active.base_offset if self.log_end_offset else -1
        self._next_segment: Segment | None = None  # made by `write` for a plan that rolls, installed by its `commit`
        self.restart_reading()
        self.reconfigure(config)

    def reconfigure(self, config: LogConfig) -> None:
        """Apply changed settings from the next append on."""
        self.config = config
        self._segment_bytes = config.segment_bytes
        self._segment_ms = config.segment_ms
        if config.is_compacting and config.max_compaction_lag_ms > 0:
            # Records in the active segment cannot be compacted.
            self._segment_ms = min(self._segment_ms, config.max_compaction_lag_ms)
        self.tail.segment.interval_bytes = config.index_interval_bytes
        self._flush_messages = config.flush_messages
        self._offset_entries = config.offset_index_entries
        self._time_entries = config.time_index_entries
        self.producers.limit = config.max_producers

    # --- append -------------------------------------------------------------------------------------------------------

    def append(self, batches: Buffer, *, leader_epoch: int, timestamp_ms: int) -> AppendPlan:
        """`plan_append`, `write` and `commit` in one call; for small batches and callers that may block."""
        plan = self.plan_append(batches, leader_epoch=leader_epoch, timestamp_ms=timestamp_ms)
        self.write(plan)
        self.commit(plan)
        return plan

    def plan_append(
        self,
        batches: Buffer,
        *,
        leader_epoch: int,
        timestamp_ms: int,
        header: BatchHeader | None = None,
        verification: Verification | None = None,
    ) -> AppendPlan:
        """Plan the append of one or more whole, validated batches from a client. Changes nothing but `header`.

        `header` is that of the first batch, if the caller has read it already; it gets the assigned offset and epoch.
        `write` writes base_offset and partition_leader_epoch into `batches` if it is writable, else into a copy.
        With a `verification` one transactional batch must belong to an open or a verified transaction.
        Errors  KAFKA_STORAGE_ERROR; INVALID_PRODUCER_EPOCH, OUT_OF_ORDER_SEQUENCE_NUMBER, INVALID_TXN_STATE
        """
        state, size = self.state, len(batches)
        if state.spare_bytes < size and not state.leaves(self.lowest_free_bytes + size):
            raise self.offline_error()
        batches = writable(batches)
        if header is None:
            header = BatchHeader(batches)
        header.base_offset, header.partition_leader_epoch = self.log_end_offset, leader_epoch
        if header.size != size:
            assigned = assign_several(
                batches, offset=self.log_end_offset, leader_epoch=leader_epoch, producers=self.producers
            )
            return assigned if isinstance(assigned, AppendPlan) else self._plan(batches, size, assigned, timestamp_ms)
        if header.producer_id != NO_PRODUCER_ID:
            original = self.producers.check(header, None, verification)
            if original is not None:
                return duplicate_plan(header, original)
        return self._plan(batches, size, (header,), timestamp_ms)

    def plan_marker(
        self, batch: bytes, *, leader_epoch: int, timestamp_ms: int, transaction_version: int
    ) -> AppendPlan:
        """Plan the append of a marker that a transaction coordinator sends.

        Errors  KAFKA_STORAGE_ERROR; INVALID_PRODUCER_EPOCH, TRANSACTION_COORDINATOR_FENCED
        """
        if self.state.failure is not None:
            raise self.offline_error()
        header, marker = BatchHeader(batch), read_marker(batch, 0)
        assert marker is not None
        self.producers.check_marker(header, marker, transaction_version)
        header.base_offset, header.partition_leader_epoch = self.log_end_offset, leader_epoch
        return self._plan(bytearray(batch), len(batch), (header,), timestamp_ms)

    def plan_append_as_follower(
        self, batches: Buffer, *, timestamp_ms: int, leader_epoch: int = MAX_LEADER_EPOCH
    ) -> AppendPlan | None:
        """Plan the append of batches from the leader of leader_epoch, as they are; None if there is no whole one.

        Errors  KAFKA_STORAGE_ERROR; CORRUPT_MESSAGE if a batch is damaged or the offsets do not ascend
        """
        if self.state.failure is not None:
            raise self.offline_error()
        headers, size = followers_headers(batches, self.log_end_offset, leader_epoch=leader_epoch)
        if not headers:
            return None
        return self._plan(writable(memoryview(batches)[:size]), size, headers, timestamp_ms)

    def _plan(
        self, batches: WritableBuffer, size: int, headers: Sequence[BatchHeader], timestamp_ms: int
    ) -> AppendPlan:
        """Plan batches that already have offsets."""
        active = self.tail.segment
        first, last = headers[0], headers[-1]
        next_offset = last.base_offset + last.last_offset_delta + 1
        if active.size:
            latest = first.max_timestamp if first is last else max(header.max_timestamp for header in headers)
            begun = active.first_timestamp
            waited_ms = latest - begun if begun >= 0 else timestamp_ms - active.created_ms
            rolls = (
                active.size > self._segment_bytes - size
                or waited_ms > self._segment_ms - active.jitter_ms
                or active.index_entries >= self._offset_entries
                or active.time_entries >= self._time_entries
                or next_offset - 1 - active.base_offset > MAX_RELATIVE_OFFSET
            )
        else:
            rolls = next_offset - 1 - active.base_offset > MAX_RELATIVE_OFFSET
        syncs = next_offset - self.recovery_point >= self._flush_messages
        return AppendPlan(
            batches, size, headers, first.base_offset, next_offset, rolls=rolls, syncs=syncs, wall_ms=timestamp_ms
        )

    def write(self, plan: AppendPlan) -> None:
        """Do the I/O of a plan. Blocking; may run in a thread while no other append runs."""
        if plan.is_duplicate:
            return
        plan.stamp()
        segment = self.tail.segment
        try:
            if plan.rolls:
                segment = self._next_segment = self._begin_segment(plan.first_offset, plan.wall_ms)
            file = segment.open().file
            try:
                file.pwrite(plan.data, segment.size)
                if plan.syncs:
                    self.files.write_epochs_of(plan.headers)
                    self.files.sync((*self.segments, segment) if plan.rolls else tuple(self.segments), segment)
                elif segment.unwritten_entries >= BLOCK_ENTRIES:
                    segment.write_indexes()
            except OSError as error:
                self._cut_back(segment, error)
                raise
        except OSError as error:
            raise self.storage_error(error) from error

    def _cut_back(self, segment: Segment, error: OSError) -> None:
        """Truncate the file to its old end after a failed write; if that fails too, take the directory offline."""
        try:
            if segment is not self.tail.segment:
                unlink_segment(segment)
            else:
                segment.open().file.truncate(segment.size)
        except OSError:
            self.state.fail(error)

    def commit(self, plan: AppendPlan) -> None:
        """Add the written batches to the log: offsets, indexes, epochs, producers."""
        if plan.is_duplicate:
            return
        self.state.spare_bytes -= plan.size
        tail = self.tail
        if plan.rolls:
            assert self._next_segment is not None
            tail = self._install(self._next_segment)
            self._next_segment = None
        segment = tail.segment
        segment.has_unsynced_files = not plan.syncs
        position, at = segment.size, 0
        epochs = self.leader_epochs
        for header in plan.headers:
            segment.note_batch(header, position + at)
            if header.partition_leader_epoch > epochs.latest:
                epochs.assign(header.partition_leader_epoch, header.base_offset)
            if header.producer_id != NO_PRODUCER_ID:
                marker = read_marker(plan.data, at) if header.attributes & CONTROL_BIT else None
                aborted = self.producers.note(header, marker)
                if aborted is not None:
                    segment.add_aborted(aborted)
            at += header.size
            tail.add(header.base_offset + header.last_offset_delta + 1, position + at)
        self.producers.end_offset = self.log_end_offset = plan.next_offset
        if plan.syncs:
            self.recovery_point = plan.next_offset
        if len(tail.ends) > 2 * TAIL_BATCHES:
            self.tail = tail.shortened()

    def assign_epoch(self, leader_epoch: int) -> None:
        """Start a leader epoch at the log end offset, as a new leader does before its first append. No I/O."""
        self.leader_epochs.assign(leader_epoch, self.log_end_offset)

    # --- flush and close ----------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Make the whole log durable: all steps of a flush in one call. Blocking."""
        plan = self.plan_flush()
        if plan is not None:
            if plan.writes_epochs:
                self.write_epochs()
            self.write_flush(plan)
            self.commit_flush(plan)

    def plan_flush(self, *, below_active: bool = False) -> FlushPlan | None:
        """Plan a flush; None if there is nothing to flush. `below_active` leaves out the active segment."""
        if self.state.failure is not None:
            raise self.offline_error()
        active = self.tail.segment
        offset = active.base_offset if below_active else self.log_end_offset
        segments = tuple(s for s in self.segments if s.has_unsynced_files and (s is not active or not below_active))
        if not offset or (not segments and offset <= self.recovery_point):
            return None  # the log is empty or already durable
        writes_epochs = self.leader_epochs.needs_writing(offset)
        return FlushPlan(offset, segments, active, writes_epochs=writes_epochs, generation=self.generation)

    def write_epochs(self) -> None:
        """Write the leader epoch checkpoint, before `write_flush` if the plan says so. Blocking.

        May run in a thread while the log is read. The caller must prevent appends and truncations.
        """
        with self.disk_errors():
            self.files.write_epochs()

    def write_flush(self, plan: FlushPlan) -> None:
        """Sync files and directory entries. Blocking; may run in a thread while the log is read and appended to."""
        with self.disk_errors():
            self.files.sync(plan.segments, plan.active)

    def commit_flush(self, plan: FlushPlan) -> None:
        """Advance recovery_point, unless the log was truncated since the plan was made."""
        if plan.generation == self.generation:
            self.recovery_point = max(self.recovery_point, plan.offset)

    def close(self) -> None:
        """Make the log durable and complete its files, so that the next load need not scan them. Blocking."""
        if self.is_closed:
            return
        if self.state.failure is None:
            if self.log_end_offset:
                # A log that never held a batch has nothing to write, so thousands of them close quickly.
                self.remove_retired(0)
                with self.disk_errors():
                    self.files.complete(self.log_end_offset, recovery_point=self.recovery_point)
            self.recovery_point = self.log_end_offset
        self.abandon()

    def abandon(self) -> None:
        """Close the log without writing anything."""
        self.files.forget()
        self.is_closed = True
