"""The transactions of a partition that hold back its last stable offset.

A transaction is open from its first batch to its marker, and then undecided for readers until the high watermark has
passed the marker. Both kinds are kept so that the first unstable offset is found without a search: open transactions
ascend by first offset as they are added, and the ended ones are a heap.

Source  ProducerStateManager of Apache Kafka 4.3.1
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heappop, heappush


class OpenTransactions(dict[int, int]):
    """The open transactions: first offset -> producer id, in ascending order.

    Shape  _ended holds (first offset, offset of the marker) of ended transactions; the smallest first offset is on top
    """

    def __init__(self, opened: Iterable[tuple[int, int]] = ()) -> None:
        super().__init__(sorted(opened))
        self._ended: list[tuple[int, int]] = []

    def __reduce__(self) -> tuple[type[OpenTransactions], tuple[list[tuple[int, int]]], list[tuple[int, int]]]:
        return OpenTransactions, (list(self.items()),), self._ended

    def __setstate__(self, ended: list[tuple[int, int]]) -> None:
        self._ended = ended

    def end(self, first_offset: int, last_offset: int) -> None:
        """Note the marker at last_offset."""
        self.pop(first_offset, None)
        heappush(self._ended, (first_offset, last_offset))

    def on_high_watermark(self, high_watermark: int) -> None:
        """Forget the transactions whose marker is below the high watermark."""
        ended = self._ended
        while ended and ended[0][1] < high_watermark:
            heappop(ended)

    def after(self, first_offset: int) -> int | None:
        """The first offset of the first other open transaction; None if there is none."""
        return next((offset for offset in self if offset != first_offset), None)

    @property
    def first_unstable_offset(self) -> int | None:
        """The first offset of the first transaction that is open or ended by a marker that is not replicated yet."""
        first = next(iter(self), None)
        if self._ended:
            ended = self._ended[0][0]
            return ended if first is None else min(first, ended)
        return first
