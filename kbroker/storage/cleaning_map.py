"""Which records of the dirty part of a log are the last ones of their keys, bounded by log.cleaner.dedupe.buffer.size.

A dict maps each key to the number of its last record, counted over all records in the map. Once the map is complete,
each record has a flag that says whether it is the last one of its key. So the second reading of the dirty part looks
up no keys, and decompresses only batches of which some records stay and others go. A record of the clean part is older
than every one in the map: it goes if its key is there.

If the map is full, the dirty part ends before the batch that did not fit, and a later pass cleans the rest.

Kafka's table takes 24 bytes for each key. In Python an access of such a table would take about 2 us. A dict takes less
than 0.2 us, but `ENTRY_BYTES` for each key with its share of the flags, so a buffer holds fewer keys than Kafka's.

Source  SkimpyOffsetMap of Apache Kafka 4.3.1; ENTRY_BYTES is measured
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import Final

FLAG_BYTES: Final = 24
"""Memory of flags and batches for each entry: for 24 records of its key in large batches, or 2 in batches of one."""
ENTRY_BYTES: Final = 176 + FLAG_BYTES
"""Memory of one entry: the key object, the integer, the dict's slots in its worst state, and FLAG_BYTES."""

IS_LAST: Final = 1
IS_TOMBSTONE: Final = 2
HAS_NO_KEY: Final = 4  # alone: such a record always goes


class OffsetMap:
    """See the module's docstring.

    Shape  keys maps a key, as `cleaning_records` represents it, to the number of its last record; the dirty part begins
           at first_offset; latest_offset is the last offset up to which every record is in the map, -1 if none is
    Bound  `limit` keys, and FLAG_BYTES for each of them
    """

    __slots__ = ("_at", "_batches", "_flags", "_next", "first_offset", "keys", "latest_offset", "limit")

    def __init__(self, limit: int, first_offset: int) -> None:
        self.limit = limit
        self.first_offset = first_offset
        self.keys: dict[bytes, int] = {}
        self.latest_offset = -1
        self._flags = bytearray()  # of each record
        self._batches = array("q")  # the base offset of each batch
        self._next = self._at = 0  # the next batch and its first flag

    @property
    def utilization(self) -> float:
        """0 to 1; greater if the first batch alone is larger."""
        return max(len(self.keys) / self.limit, self._bytes() / (FLAG_BYTES * self.limit))

    def _bytes(self) -> int:
        return len(self._flags) + 8 * len(self._batches)

    def put(self, base_offset: int, keys: Sequence[bytes | None], tombstones: Iterable[int]) -> bool:
        """Add the records of the next batch. Returns False if the map is full, without a change.

        Shape  tombstones are indexes of keys
        """
        known = self.keys
        if self._batches and self._bytes() + len(keys) > FLAG_BYTES * self.limit:
            return False
        if len(known) + len(keys) > self.limit:
            added = {key for key in keys if key is not None and key not in known}
            if len(known) + len(added) > self.limit:
                return False
        number = first = len(self._flags)
        self._flags += bytes(len(keys))
        for at in tombstones:
            self._flags[first + at] = IS_TOMBSTONE
        for key in keys:
            if key is None:
                self._flags[number] = HAS_NO_KEY
            else:
                known[key] = number
            number += 1
        self._batches.append(base_offset)
        return True

    def complete(self) -> None:
        """Set the flags of the last records. Afterwards `flags` may be called."""
        flags = self._flags
        for number in self.keys.values():
            flags[number] |= IS_LAST

    def flags(self, base_offset: int, count: int) -> bytearray | None:
        """The flags of the records of a batch; None if it is not in the map. The batches come in the order of `put`."""
        following = self._next
        if following == len(self._batches) or self._batches[following] != base_offset:
            return None
        start = self._at
        self._next, self._at = following + 1, start + count
        return self._flags[start : start + count]


def entries_for(buffer_bytes: int, load_factor: float) -> int:
    """How many keys a buffer of that size holds."""
    return max(1, int(buffer_bytes * load_factor) // ENTRY_BYTES)
