"""The leader epochs of a partition and their start offsets.

A list of (epoch, start_offset), both strictly ascending. A follower or consumer asks where an epoch that it knows has
ended, and learns up to where its own history agrees with the leader's. In a tiered log the list starts at
log_start_offset, before the local start.

Shape   epochs and start offsets both strictly ascend
Source  KIP-101, KIP-279; `leader-epoch-checkpoint` of Apache Kafka
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from itertools import pairwise
from typing import Final

from kbroker.storage.checkpoint import format_lines, parse_lines, parse_number

EPOCH_CHECKPOINT: Final = "leader-epoch-checkpoint"
UNDEFINED_EPOCH: Final = -1
UNDEFINED_OFFSET: Final = -1
MAX_OFFSET: Final = (1 << 63) - 1

_History = tuple[tuple[int, ...], tuple[int, ...]]
_NOTHING: Final[_History] = ((), ())


class LeaderEpochs:
    """The leader epochs of one partition.

    Invariant   `latest` is the newest epoch or -1
    Concurrent  any thread may read; one thread may raise the start while another one assigns. Changes of the end
                replace the whole history; a change of the start only stores the new start
    Note        code that writes the checkpoint file calls `note_written`; `needs_writing` compares with those entries
    """

    __slots__ = ("_history", "_start", "_written", "latest")

    def __init__(self, entries: Iterable[tuple[int, int]] = ()) -> None:
        self._history: _History = _NOTHING
        self._start = 0  # history below it is invalid; the next change of the end removes it
        self.latest = UNDEFINED_EPOCH
        for epoch, start_offset in entries:
            self.assign(epoch, start_offset)
        self._written: list[tuple[int, int]] | None = self.entries

    def _view(self) -> _History:
        """The current (epochs, start offsets)."""
        epochs, starts = history = self._history
        start = self._start
        floor = bisect_right(starts, start) - 1
        if floor < 0 or (floor == 0 and starts[0] == start):
            return history
        return epochs[floor:], (start, *starts[floor + 1 :])

    @property
    def entries(self) -> list[tuple[int, int]]:
        """(epoch, start_offset), oldest first."""
        return list(zip(*self._view(), strict=True))

    def __len__(self) -> int:
        return len(self._view()[0])

    def needs_writing(self, log_end_offset: int) -> bool:
        """Whether the checkpoint file must be written before all batches below log_end_offset count as durable.

        The file need not contain an epoch without batches: the epoch describes no batch, and the next one replaces it.
        """
        written = self._written
        if written is None:
            return True
        return [one for one in self.entries if one[1] < log_end_offset] != [
            one for one in written if one[1] < log_end_offset
        ]

    def note_written(self, entries: list[tuple[int, int]]) -> None:
        """The checkpoint file now holds these entries, durable or not; newer ones are not written yet."""
        self._written = entries

    def note_unwritten(self) -> None:
        """The contents of the checkpoint file are unknown because a write failed."""
        self._written = None

    def assign(self, epoch: int, start_offset: int) -> None:
        """Start `epoch` at `start_offset`.

        Removes entries of this or later epochs and entries that start at or after the offset; they belong to a diverged
        history. Assigning the newest epoch again at a later offset changes nothing.
        """
        if epoch < 0 or start_offset < 0:
            return
        epochs, starts = self._view()
        if epoch == self.latest and starts[-1] <= start_offset:
            return
        keep = min(bisect_left(epochs, epoch), bisect_left(starts, start_offset))
        if keep == 0 and start_offset < self._start:
            self._start = start_offset
        self._history = ((*epochs[:keep], epoch), (*starts[:keep], start_offset))
        self.latest = epoch

    def complete_start(self, older: Iterable[tuple[int, int]]) -> None:
        """Add older entries before the first one if they fit there. They may also give an earlier start for the first
        epoch itself.
        """
        known = self.entries
        whole = LeaderEpochs(
            entry for entry in older if not known or (entry[0] <= known[0][0] and entry[1] < known[0][1])
        )
        for epoch, start_offset in known:
            whole.assign(epoch, start_offset)
        self._history, self._start, self.latest = whole._history, 0, whole.latest

    def end_offset_for(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """(epoch, end_offset) of the largest epoch not above `epoch`; (-1, -1) if it is unknown."""
        epochs, starts = self._view()
        if epoch == UNDEFINED_EPOCH or not epochs or epoch > epochs[-1]:
            return UNDEFINED_EPOCH, UNDEFINED_OFFSET
        if epoch == epochs[-1]:
            return epoch, log_end_offset
        higher = bisect_right(epochs, epoch)
        if higher == 0:
            # Older than all known epochs: everything from the oldest known start on belongs to later epochs.
            return epoch, starts[0]
        return epochs[higher - 1], starts[higher]

    def epoch_for_offset(self, offset: int) -> int:
        """The epoch of the record at that offset; -1 if the offset is before the oldest entry."""
        epochs, starts = self._view()
        at = bisect_right(starts, offset) - 1
        return epochs[at] if at >= 0 else UNDEFINED_EPOCH

    def next_start(self, offset: int) -> int:
        """The start of the first epoch that starts after `offset`; 2^63-1 if there is none."""
        starts = self._view()[1]
        at = bisect_right(starts, offset)
        return starts[at] if at < len(starts) else MAX_OFFSET

    def truncate_from_end(self, end_offset: int) -> None:
        """Remove the epochs that start at or after the log's new end."""
        epochs, starts = self._view()
        keep = bisect_left(starts, end_offset)
        if keep < len(starts):
            self._history = epochs[:keep], starts[:keep]
            self.latest = epochs[keep - 1] if keep else UNDEFINED_EPOCH

    def truncate_from_start(self, start_offset: int) -> None:
        """Remove the epochs that ended before the log's new start; the epoch at the new start now begins there."""
        starts = self._history[1]
        if starts and starts[0] <= start_offset:
            self._start = max(self._start, start_offset)

    def clear(self) -> None:
        self._history, self._start, self.latest = _NOTHING, 0, UNDEFINED_EPOCH


def format_epochs(entries: Iterable[tuple[int, int]]) -> str:
    """The text of `leader-epoch-checkpoint`: `epoch start_offset` lines."""
    return format_lines([f"{epoch} {start_offset}" for epoch, start_offset in entries])


def parse_epochs(text: str) -> list[tuple[int, int]]:
    """Parse the text of a checkpoint; ValueError if it is malformed."""
    entries = [(parse_number(epoch, bits=32), parse_number(start)) for epoch, start in parse_lines(text, 2)]
    for (epoch, start), (next_epoch, next_start) in pairwise([(-1, -1), *entries]):
        if next_epoch <= epoch or next_start <= start:
            raise ValueError(f"entry {next_epoch} {next_start} does not follow {epoch} {start}")
    return entries
