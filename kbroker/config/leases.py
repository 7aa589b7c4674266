"""Leases: offsets from which on retention keeps the records of a topic, for a time, while a job reads them.

A lease is an entry of the topic setting kbroker.retention.leases, so every replica and every controller knows it, and
a restart keeps it. The entry has an id, the time of its creation, the time at which it expires, and the first held
offset of each partition:

    5f2c;1700000000000;1700000600000;0:1200;1:0

The holder renews a lease by another entry with the same id and creation time. A lease is void after
kbroker.retention.lease.max.ms from its creation, however often it was renewed. Leases hold records against retention by
time and size, and against nothing else: DeleteRecords and the deletion of the topic are decisions of an operator.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Final, NamedTuple

_LEASE: Final = re.compile(r"[A-Za-z0-9._-]{1,64}(;[0-9]{1,15}){2}(;[0-9]{1,10}:[0-9]{1,19})+", re.ASCII)


MAX_AHEAD_MS: Final = 5 * 60_000
"""How far the clock of a holder may be ahead of the broker's. A lease that was created later does not hold yet."""


class Lease(NamedTuple):
    """One entry. Units: *_ms is wall time."""

    id: str
    created_ms: int
    expires_ms: int
    offsets: Mapping[int, int]

    def __str__(self) -> str:
        offsets = ";".join(f"{partition}:{offset}" for partition, offset in sorted(self.offsets.items()))
        return f"{self.id};{self.created_ms};{self.expires_ms};{offsets}"

    @classmethod
    def parse(cls, text: str) -> Lease:
        """Errors: ValueError."""
        if not _LEASE.fullmatch(text):
            raise ValueError(f"{text!r} is not a lease")
        name, created_ms, expires_ms, *offsets = text.split(";")
        pairs = (each.partition(":") for each in offsets)
        held = {int(partition): int(offset) for partition, _, offset in pairs}
        return cls(name, int(created_ms), int(expires_ms), held)

    def is_valid(self, timestamp_ms: int, max_ms: int) -> bool:
        """Whether it holds records now."""
        age_ms = timestamp_ms - self.created_ms
        return timestamp_ms < self.expires_ms and -MAX_AHEAD_MS <= age_ms < max_ms


@lru_cache(64)
def parsed(entries: frozenset[str]) -> tuple[Lease, ...]:
    """The leases in a topic's setting."""
    return tuple(Lease.parse(each) for each in entries)


def held_from(entries: frozenset[str], partition: int, timestamp_ms: int, *, max_ms: int) -> int | None:
    """The first offset of a partition that a valid lease holds; None if there is none."""
    if not entries:
        return None
    valid = (one for one in parsed(entries) if one.is_valid(timestamp_ms, max_ms))
    return min((one.offsets[partition] for one in valid if partition in one.offsets), default=None)


def fault(entries: Iterable[str]) -> str | None:
    """What is wrong with a value of the setting; None for a valid one."""
    wrong = [each for each in entries if not _LEASE.fullmatch(each)]
    return f"{wrong[0]!r} is not a lease of the form id;created ms;expires ms;partition:offset;..." if wrong else None
