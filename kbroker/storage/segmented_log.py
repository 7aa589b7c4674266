"""The segments of a log: rolls, truncation and retention, and the offsets that they change.

Source  UnifiedLog, LocalLog of Apache Kafka 4.3.1
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence

from kbroker.runtime.event_log import get_logger
from kbroker.storage.durable import lacks_space
from kbroker.storage.leader_epoch import LeaderEpochs
from kbroker.storage.log_config import LogConfig
from kbroker.storage.log_view import LogView
from kbroker.storage.producer_state import ProducerEntry, ProducerState
from kbroker.storage.reading import Tail
from kbroker.storage.retention import Reason, RetentionPlan, judge, local_limits, plan_retention
from kbroker.storage.segment import Segment
from kbroker.storage.segments import unlink_segment
from wire.errors import KafkaError

logger = get_logger(__name__)


class SegmentedLog(LogView):
    """The second base class of `Log`, which sets its fields.

    Shape      retired are the segments that retention has removed and whose files are not renamed yet
    Invariant  recovery_point <= log_end_offset, and the invariants of LogView
    Shape      cleaned_offset is where the dirty part starts; None if the log was never cleaned
    Note       each truncation raises `generation`, which invalidates older flush plans
    """

    config: LogConfig
    leader_epochs: LeaderEpochs
    producers: ProducerState
    recovery_point: int
    persisted_recovery_point: int
    is_log_start_known: bool
    retired: deque[tuple[Segment, ...]]
    generation: int
    cleaned_offset: int | None
    _jitter_ms: Callable[[int], int]
    _loaded_active_offset: int

    # --- roll ---------------------------------------------------------------------------------------------------------

    def roll(self, *, timestamp_ms: int) -> bool:
        """Start a new segment at log_end_offset unless the active segment is empty. Blocking."""
        if not self.tail.segment.size:
            return False
        with self.disk_errors():
            self._install(self._begin_segment(self.log_end_offset, timestamp_ms))
        return True

    def _begin_segment(self, base_offset: int, timestamp_ms: int) -> Segment:
        return self.files.begin_segment(
            base_offset,
            config=self.config,
            timestamp_ms=timestamp_ms,
            jitter_ms=self._jitter_ms,
            # Recovery trusts everything below a recovery point, so a closed segment below it must be completely
            # durable: its indexes if a flush came before the roll, and its data if the log was truncated and has grown
            # again.
            syncs=max(self.recovery_point, self.persisted_recovery_point) >= self.log_end_offset,
        )

    def _install(self, segment: Segment) -> Tail:
        """Make a new segment the active one. Remove an empty one before it; only a log that skips offsets has one."""
        old = self.tail.segment
        if not old.size:
            unlink_segment(old)
            self.segments.remove([old])
        old.is_active, segment.is_active = False, True
        self.segments.add(segment)
        self.tail = tail = Tail(segment, self.log_end_offset, 0)
        return tail

    def may_hold_earlier_than(self, timestamp_ms: int) -> bool:
        """Whether the active segment may hold a batch that was appended before that wall time. Blocking.

        A restart loses the time when a segment was created, but its batches are newer than those of the segment before.
        """
        active = self.segments.active
        if not active.size:
            return False
        if active.base_offset != self._loaded_active_offset:
            return active.created_ms < timestamp_ms
        before = tuple(self.segments)[-2:-1]
        with self.disk_errors():
            return not before or self.disk.modified_ms(before[0].log_path) < timestamp_ms

    # --- truncate -----------------------------------------------------------------------------------------------------

    def raise_log_start_offset(self, offset: int) -> bool:
        """Hide the records below `offset` from readers; the next retention deletes their segments. Returns False if
        log_start_offset was already that high.
        """
        assert offset <= self.log_end_offset
        if offset <= self.log_start_offset:
            return False
        if offset >= self.local_log_start_offset:
            self.is_log_start_known = True
        self.log_start_offset = offset
        self.local_log_start_offset = max(self.local_log_start_offset, offset)
        self.leader_epochs.truncate_from_start(offset)
        return True

    def truncate_to(self, offset: int) -> bool:
        """Delete every batch that ends at or after `offset`; True if any was deleted. Blocking."""
        if offset >= self.log_end_offset:
            # The epochs may still be ahead: a leader starts its epoch before its first batch, and another leader may
            # have followed it.
            self.leader_epochs.truncate_from_end(self.log_end_offset)
            return False
        if offset < self.segments.first.base_offset:
            start, epochs = offset, LeaderEpochs()
            if self.config.remote_storage_enable:
                start, epochs = min(self.log_start_offset, offset), LeaderEpochs(self.leader_epochs.entries)
                epochs.truncate_from_end(offset)
            self.truncate_fully_and_start_at(offset, log_start_offset=start, epochs=epochs.entries)
            return True
        with self.disk_errors():
            self.generation += 1
            self._end_at(self.files.truncate(offset))
            self.files.load_producers(self.producers, self.files.snapshots, self.log_end_offset)
        return True

    def truncate_fully_and_start_at(
        self,
        offset: int,
        *,
        log_start_offset: int | None = None,
        epochs: Iterable[tuple[int, int]] = (),
        producers: Sequence[ProducerEntry] = (),
    ) -> None:
        """Delete all local segments and continue at `offset`. log_start_offset may be lower if the tier has the records
        between; `epochs` and `producers` are theirs. Blocking.
        """
        self.remove_retired(0)
        with self.disk_errors():
            self.generation += 1
            self.files.start_again_at(
                offset, interval_bytes=self.config.index_interval_bytes, epochs=epochs, producers=producers
            )
        self.log_start_offset = offset if log_start_offset is None else log_start_offset
        self.local_log_start_offset = offset
        self._end_at(offset)
        self.recovery_point = offset
        self.leader_epochs.truncate_from_start(self.log_start_offset)

    def _end_at(self, offset: int) -> None:
        self.log_end_offset = offset
        if self.cleaned_offset is not None:
            self.cleaned_offset = min(self.cleaned_offset, offset)
        self.recovery_point = min(self.recovery_point, offset)
        self.log_start_offset = min(self.log_start_offset, offset)
        self.local_log_start_offset = min(self.local_log_start_offset, offset)
        self.restart_reading()

    # --- retention ----------------------------------------------------------------------------------------------------

    @property
    def may_need_retention(self) -> bool:
        """Whether retention might delete anything; if not, it need not look at the files."""
        config = self.config
        if self.retired:
            return True
        if self.log_end_offset <= self.segments.first.base_offset:
            return False
        limits = local_limits(config, is_copied=config.is_copied_to_tier)
        return len(self.segments) > 1 or limits.ms >= 0 or limits.bytes >= 0

    def plan_retention(
        self, *, high_watermark: int, timestamp_ms: int, highest_offset_in_remote_storage: int | None = None
    ) -> RetentionPlan:
        """Choose the segments to delete now, by log_start_offset, size and time. May read a few index entries.

        `highest_offset_in_remote_storage` is None for a log without a tier.
        """
        segments = tuple(self.segments)
        is_copied = highest_offset_in_remote_storage is not None
        verdicts = judge(
            segments,
            largest_timestamp=lambda at: segments[at].newest_ms(),
            limits=local_limits(self.config, is_copied=is_copied),
            log_start_offset=self.log_start_offset,
            log_end_offset=self.log_end_offset,
            high_watermark=high_watermark,
            timestamp_ms=timestamp_ms,
            waits_for_copy=is_copied,
            highest_offset_in_remote_storage=highest_offset_in_remote_storage,
            leased_from=self.config.held_from(self.partition, timestamp_ms),
        )
        with self.disk_errors():
            return plan_retention(verdicts, is_copied=is_copied)

    def apply_retention(self, plan: RetentionPlan, *, now_ms: int, timestamp_ms: int) -> None:
        """`retire` and `remove_retired` in one call. Blocking."""
        self.retire(plan, timestamp_ms=timestamp_ms)
        self.remove_retired(now_ms)

    def retire(self, plan: RetentionPlan, *, timestamp_ms: int) -> None:
        """Remove the planned segments from the log; their files keep their names until `remove_retired`. Blocking.

        Raises log_start_offset; for a plan of copied segments only local_log_start_offset.
        """
        names = frozenset(plan.doomed)
        if plan.rolls:
            try:
                self.roll(timestamp_ms=timestamp_ms)
            except KafkaError as error:
                if not lacks_space(error):
                    raise
                # On a full disk the active segment stays until deleting the others has freed space for a new one.
                names -= {self.segments.active.base_offset}
        segments = tuple(self.segments)
        doomed = tuple(segment for segment in segments if segment.base_offset in names)
        if not doomed:
            return
        assert len(doomed) < len(segments)
        assert doomed == segments[: len(doomed)]
        start_offset = segments[len(doomed)].base_offset
        with self.disk_errors():
            if self.producers.producers:
                self.files.sync_snapshot(start_offset)
            if plan.is_copied and self.leader_epochs.needs_writing(start_offset):
                self._write_epochs_of_remote_segments()
        # Raise the offsets first, so that no reader looks for the segments.
        self.local_log_start_offset = max(self.local_log_start_offset, start_offset)
        if not plan.is_copied:
            self.raise_log_start_offset(max(self.log_start_offset, start_offset))
        self.retired.append(doomed)
        self.files.release(doomed)
        # One line per log and pass, because a pass over a long idle log may remove hundreds of segments.
        limits = local_limits(self.config, is_copied=plan.is_copied)
        named = {Reason.SIZE: limits.bytes_name, Reason.TIME: limits.ms_name}
        logger.info(
            "local retention removes segments that the tier has" if plan.is_copied else "retention removes segments",
            topic=self.topic,
            partition=self.partition,
            segments=len(doomed),
            bytes=sum(segment.size for segment in doomed),
            below_offset=start_offset,
            reasons=", ".join(dict.fromkeys(named.get(reason, reason) for reason in plan.reasons)),
        )

    def _write_epochs_of_remote_segments(self) -> None:
        """Make the leader epochs durable before local segments are removed whose records are then only in the tier.

        A leader has written them before it copied the segments, but a follower may not have flushed since. A full disk
        must not prevent the removal, which frees space; then the epochs are written by the next flush.
        """
        try:
            self.files.write_epochs()
        except OSError as error:
            if not lacks_space(error):
                raise

    def remove_retired(self, now_ms: int) -> None:
        """Rename the files of retired segments; `unlink_doomed` removes them after file.delete.delay.ms.

        Blocking. May run in a thread while the log is read and appended to, but not while it is truncated. The next
        call retries what failed.
        """
        due_ms = now_ms + self.config.file_delete_delay_ms
        with self.disk_errors():
            while self.retired:
                self.files.doom(self.retired[0], due_ms)
                self.retired.popleft()

    def unlink_doomed(self, now_ms: int) -> int:
        """Unlink the renamed files that are due and return how many were unlinked. Blocking."""
        with self.disk_errors():
            return self.files.doomed.remove_due(now_ms, self.disk.unlink)
