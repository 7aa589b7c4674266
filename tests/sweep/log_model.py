"""The contents that a partition's log must have after a crash, tracked while a workload runs.

The model is a list of batches, simple enough to be right by inspection: an append adds, a truncation cuts. In addition
to the present list it records what a crash at this moment may leave:

* an unfinished step: a batch that is being appended may be present or not, a truncation may be done in part;
* after a loss of power any end at or after `synced_end`, and, as long as the present history does not differ from an
  older one below `synced_end`, a prefix of that older one (a truncation that did not reach the platter).

So a recovery must find one contiguous run of one of these histories, byte for byte, that reaches at least to the
promised end: to everything completed after the death of the process, to everything synced after the loss of power.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from wire.record_batch import RecordBatch

History = list[RecordBatch]

REMEMBERED_BATCHES: Final = 5
"""How many batches an idempotent producer may have in flight, and a broker must recognize (KIP-98)."""


def window_of(batches: Sequence[RecordBatch], producer_id: int) -> Sequence[RecordBatch]:
    """The batches of a producer that must be recognized as duplicates: the last five of its last epoch, which may have
    begun with a marker.
    """
    sent = [batch for batch in batches if batch.producer_id == producer_id]
    return [batch for batch in sent if batch.producer_epoch == sent[-1].producer_epoch and not batch.is_control][
        -REMEMBERED_BATCHES:
    ]


@dataclass(frozen=True, slots=True)
class Expectation:
    """What a crash at one moment may leave.

    Units   least_end: the log must reach at least this offset; least_start..most_start: where it may begin for readers
    """

    histories: tuple[History, ...]
    least_end: int
    least_start: int
    most_start: int


@dataclass(slots=True)
class ModelLog:
    """One log.

    Shape   batches ascend without gaps up to log_end_offset and begin where the log was last restarted (batches that
            retention deleted stay in the list; only log_start_offset rises)
    """

    batches: History = field(default_factory=list)
    log_start_offset: int = 0
    log_end_offset: int = 0
    synced_end: int = 0
    checkpointed_start: int = 0
    pending: History = field(default_factory=list)
    _older: list[History] = field(default_factory=list)
    _cutting_to: int | None = None
    _highest_start: int = 0
    _checkpointing: int = 0

    # Steps have two halves: the intention before the call to the log, and the result after it has returned.

    def begin_append(self, batches: Sequence[RecordBatch]) -> None:
        self.pending = list(batches)

    def finish_append(self) -> None:
        self.batches += self.pending
        self.log_end_offset = self.pending[-1].next_offset
        self.pending = []

    def refuse_append(self) -> None:
        """The append failed, and its bytes were cut off. A loss of power may undo the cut, which is not synced."""
        self._older.append(self.batches + self.pending)
        self.pending = []

    def begin_truncation(self, offset: int) -> None:
        self._cutting_to = self.end_after_truncation(offset)

    def end_after_truncation(self, offset: int) -> int:
        """The end of the log without every batch that reaches `offset` or beyond."""
        for batch in self.batches:
            if batch.next_offset > offset:
                return min(batch.base_offset, self.log_end_offset)
        return self.log_end_offset

    def finish_truncation(self) -> None:
        assert self._cutting_to is not None
        self._forget_from(self._cutting_to)
        self.log_end_offset = self._cutting_to
        self.log_start_offset = min(self.log_start_offset, self._cutting_to)
        self._cutting_to = None

    def begin_restart_at(self, offset: int) -> None:
        """The log is about to drop everything and continue from an offset."""
        # If the last segment is deleted and the new one not created yet, only the checkpointed start is known.
        self._cutting_to = min([offset, self.checkpointed_start, *(batch.base_offset for batch in self.batches[:1])])
        self.raise_highest_start(max(offset, self.log_end_offset))

    def finish_restart_at(self, offset: int) -> None:
        self._forget_from(0)
        self._cutting_to = None
        self.log_start_offset = self.log_end_offset = offset

    def raise_highest_start(self, offset: int) -> None:
        """log_start_offset is about to rise to at most this offset."""
        self._highest_start = max(self._highest_start, offset)

    def note_state(self, *, log_start_offset: int, recovery_point: int) -> None:
        """After a step: take over the log's start and what it promises to be durable."""
        self.log_start_offset = log_start_offset
        self.raise_highest_start(log_start_offset)
        self.synced_end = max(min(self.synced_end, self.log_end_offset), recovery_point)
        self._older = [older for older in self._older if self._agree_below(older, self.synced_end)]

    def begin_checkpoint(self, start: int) -> None:
        """The start of the log is about to be checkpointed (0: taken from the segments' names)."""
        self._checkpointing = start
        self.checkpointed_start = min(self.checkpointed_start, start)

    def finish_checkpoint(self) -> None:
        self.checkpointed_start = self._checkpointing
        self._highest_start = self.log_start_offset

    def expectation(self, *, power_lost: bool) -> Expectation:
        """What a crash now may leave."""
        end = self.synced_end if power_lost else self.log_end_offset
        if self._cutting_to is not None:
            end = min(end, self._cutting_to)
        histories = [self.batches + self.pending]
        if power_lost:
            histories += self._older
        least_start = min(self.checkpointed_start, self.log_start_offset)
        return Expectation(tuple(histories), end, least_start, max(self._highest_start, self.checkpointed_start))

    def _forget_from(self, offset: int) -> None:
        keep = bisect_left(self.batches, offset, key=lambda batch: batch.base_offset)
        if keep < len(self.batches):
            self._older.append(self.batches)
            self.batches = self.batches[:keep]

    def _agree_below(self, older: History, offset: int) -> bool:
        """Whether an older history has the same batches below an offset as the present one."""
        return [b.data for b in older if b.base_offset < offset] == [
            b.data for b in self.batches if b.base_offset < offset
        ]


def compare(
    found: Sequence[RecordBatch], log_start_offset: int, log_end_offset: int, expected: Expectation
) -> str | None:
    """What is wrong with the batches that a recovery found, None if nothing is."""
    most_start = expected.most_start
    if not found and expected.least_end <= expected.least_start:
        # Nothing was promised and the log is empty: it may continue from any offset that it has seen.
        most_start = max([most_start, *(history[-1].next_offset for history in expected.histories if history)])
    if not expected.least_start <= log_start_offset <= most_start:
        return f"log_start_offset is {log_start_offset}, expected {expected.least_start} to {most_start}"
    if log_end_offset < expected.least_end:
        return f"log_end_offset is {log_end_offset}, but everything below {expected.least_end} was promised to survive"
    if not found:
        return None if log_start_offset == log_end_offset else f"no batches in [{log_start_offset}, {log_end_offset})"
    if found[0].base_offset > log_start_offset:
        return f"the first batch begins at {found[0].base_offset}, the log at {log_start_offset}"
    if found[-1].next_offset != log_end_offset:
        return f"the last batch ends at {found[-1].next_offset}, the log at {log_end_offset}"
    complaints = []
    for history in expected.histories:
        complaint = _compare_with(found, history)
        if complaint is None:
            return None
        complaints.append(complaint)
    return f"the log is not part of any possible history: {'; '.join(complaints)}"


def _compare_with(found: Sequence[RecordBatch], history: History) -> str | None:
    start = bisect_left(history, found[0].base_offset, key=lambda batch: batch.base_offset)
    for at, batch in enumerate(found, start=start):
        if at >= len(history):
            return f"offset {batch.base_offset} is after its end"
        if batch.data != history[at].data:
            return f"the batch at {batch.base_offset} is not the one at {history[at].base_offset} there"
    return None
