"""The last offset of each key in the dirty part of a log, bounded by log.cleaner.dedupe.buffer.size.

If the map is full, the dirty part ends before the batch that did not fit, and a later pass cleans the rest.

Kafka's table takes 24 bytes for each key. In Python an access of such a table would take about 2 us. A dict takes less
than 0.2 us, but about `ENTRY_BYTES` for each key, so a buffer holds fewer keys than Kafka's.

Source  SkimpyOffsetMap of Apache Kafka 4.3.1; ENTRY_BYTES is measured
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

ENTRY_BYTES: Final = 176
"""Memory of one entry: the key object, the integer, and the dict's slots in its worst state."""


class OffsetMap:
    """See the module's docstring.

    Shape  offsets maps a key, as `cleaning_records` represents it, to its last offset; latest_offset is the last offset
           up to which every record is in the map, -1 if none is
    Bound  `limit` keys
    """

    __slots__ = ("latest_offset", "limit", "offsets")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.offsets: dict[bytes, int] = {}
        self.latest_offset = -1

    @property
    def utilization(self) -> float:
        return len(self.offsets) / self.limit

    def put(self, keys: Sequence[bytes | None], offsets: Iterable[int]) -> bool:
        """Add the records of a batch, with ascending offsets. Returns False if the map is full; then some of them may
        be in the map, which is harmless: all records above latest_offset stay in the log.
        """
        known, limit = self.offsets, self.limit
        if None not in keys and len(known) + len(keys) <= limit:
            known.update(zip(keys, offsets, strict=True))  # type: ignore[arg-type]  # no key is None
            return True
        for key, offset in zip(keys, offsets, strict=True):
            if key is None:
                continue
            if len(known) >= limit and key not in known:
                return False
            known[key] = offset
        return True


def entries_for(buffer_bytes: int, load_factor: float) -> int:
    """How many keys a buffer of that size holds."""
    return max(1, int(buffer_bytes * load_factor) // ENTRY_BYTES)
