"""Where each leader epoch of a partition begins.

A list of (epoch, start_offset), both ascending. A follower or consumer that knows an epoch asks where it ended, and so
learns how far its own history agrees with the leader's. With a tier the list reaches down to log_start_offset, not only
to the local start.

Shape   two lists of one length; epochs and start offsets both strictly ascend
Source  KIP-101, KIP-279; `leader-epoch-checkpoint` of Apache Kafka
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from itertools import pairwise
from typing import Final

UNDEFINED_EPOCH: Final = -1
UNDEFINED_OFFSET: Final = -1


class LeaderEpochs:
    """The leader epochs of one partition.

    Invariant  `latest` is the newest epoch or -1
    Note       `is_dirty` says that there is something that the checkpoint file does not have yet; who writes it resets
               it
    """

    __slots__ = ("_epochs", "_starts", "is_dirty", "latest")

    def __init__(self, entries: Iterable[tuple[int, int]] = ()) -> None:
        self._epochs: list[int] = []
        self._starts: list[int] = []
        self.latest = UNDEFINED_EPOCH
        for epoch, start_offset in entries:
            self.assign(epoch, start_offset)
        self.is_dirty = False

    @property
    def entries(self) -> list[tuple[int, int]]:
        """(epoch, start_offset), oldest first."""
        return list(zip(self._epochs, self._starts, strict=True))

    def __len__(self) -> int:
        return len(self._epochs)

    def assign(self, epoch: int, start_offset: int) -> None:
        """Note that `epoch` begins at `start_offset`.

        Entries of this or a later epoch, or that begin at or behind it, are of a history that did not happen: they go.
        The newest epoch again at a later offset changes nothing.
        """
        if epoch < 0 or start_offset < 0:
            return
        if epoch == self.latest and self._starts[-1] <= start_offset:
            return
        self._cut(min(bisect_left(self._epochs, epoch), bisect_left(self._starts, start_offset)))
        self._epochs.append(epoch)
        self._starts.append(start_offset)
        self.latest = epoch
        self.is_dirty = True

    def end_offset_for(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """(epoch, end_offset) of the largest epoch not above the one asked for; (-1, -1) when nothing can be said."""
        if epoch == UNDEFINED_EPOCH or not self._epochs or epoch > self.latest:
            return UNDEFINED_EPOCH, UNDEFINED_OFFSET
        if epoch == self.latest:
            return epoch, log_end_offset
        higher = bisect_right(self._epochs, epoch)
        if higher == 0:
            # Older than all that is known: everything from the oldest known start on is of later epochs.
            return epoch, self._starts[0]
        return self._epochs[higher - 1], self._starts[higher]

    def epoch_for_offset(self, offset: int) -> int:
        """The epoch in which a record of that offset was written; -1 if it lies before the oldest entry."""
        at = bisect_right(self._starts, offset) - 1
        return self._epochs[at] if at >= 0 else UNDEFINED_EPOCH

    def start_offset_of(self, epoch: int) -> int:
        """Where exactly this epoch begins; -1 if it has no entry."""
        at = bisect_left(self._epochs, epoch)
        found = at < len(self._epochs) and self._epochs[at] == epoch
        return self._starts[at] if found else UNDEFINED_OFFSET

    def truncate_from_end(self, end_offset: int) -> None:
        """Drop the epochs that begin at or behind the log's new end."""
        keep = bisect_left(self._starts, end_offset)
        if keep < len(self._starts):
            self._cut(keep)
            self.is_dirty = True

    def truncate_from_start(self, start_offset: int) -> None:
        """Drop the epochs that ended before the log's new start; the one that covers it now begins there."""
        floor = bisect_right(self._starts, start_offset) - 1
        if floor < 0 or (floor == 0 and self._starts[0] == start_offset):
            return
        del self._epochs[:floor]
        del self._starts[:floor]
        self._starts[0] = start_offset
        self.is_dirty = True

    def clear(self) -> None:
        if self._epochs:
            self._cut(0)
            self.is_dirty = True

    def _cut(self, keep: int) -> None:
        del self._epochs[keep:]
        del self._starts[keep:]
        self.latest = self._epochs[-1] if self._epochs else UNDEFINED_EPOCH


def format_epochs(entries: Iterable[tuple[int, int]]) -> str:
    """The text of `leader-epoch-checkpoint`: version 0, the count, then `epoch start_offset` lines."""
    lines = [f"{epoch} {start_offset}" for epoch, start_offset in entries]
    return "\n".join(["0", str(len(lines)), *lines]) + "\n"


def parse_epochs(text: str) -> list[tuple[int, int]]:
    """The entries of a checkpoint's text; ValueError if it is not one. An empty file is an empty list, as in Kafka."""
    lines = text.splitlines()
    if not lines:
        return []
    if lines[0] != "0":
        raise ValueError(f"version {lines[0]!r}, expected 0")
    if len(lines) < 2:
        return []
    if not text.endswith("\n"):
        raise ValueError("the last line is cut short")
    entries = []
    for line in lines[2:]:
        words = line.split(" ")
        if len(words) != 2:
            raise ValueError(f"line {line!r}")
        entries.append((int(words[0]), int(words[1])))
    if len(entries) != int(lines[1]):
        raise ValueError(f"{lines[1]} entries announced, {len(entries)} found")
    for (epoch, start), (next_epoch, next_start) in pairwise(entries):
        if next_epoch <= epoch or next_start <= start:
            raise ValueError(f"entry {next_epoch} {next_start} does not follow {epoch} {start}")
    return entries
