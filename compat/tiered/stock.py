"""A topic that is mostly in the tier, for every client to read: its contents, its creation, and the check.

The contents of a record follow from its partition and offset, so nothing has to be stored. Each record that a client
shows is compared with the expected one: its place, and the fields that the client shows.
"""

from __future__ import annotations

import base64
import random
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, fields
from typing import NamedTuple
from zlib import crc32

from compat.clients import confluent
from compat.clients.samples import CODECS, Sample
from compat.tiered.site import EARLIEST, EARLIEST_LOCAL, LATEST, ONLY_THE_ACTIVE_ONE, YESTERDAY_MS, Site, Sites

PARTITIONS = len(CODECS)  # each is written with another codec
SEGMENT_BYTES = 1 << 20
AVERAGE_BYTES = 1_000
LARGEST_VALUE = 30_000
HEADERS = ((), (("one", b"1"),), (("one", b"1"), ("two", b"zwei"), ("one", b"again")))
_AT_ONCE = 20_000
_SHOWN = 160


class Contents:
    """The contents of every record.

    Shape  PARTITIONS partitions of `count` records, about `megabytes` in all. Values are text of up to LARGEST_VALUE
           bytes that contains its place, for tools that print lines, and base64 of noise, which codecs cannot compress
           much. Keys are null or short, and there are up to three headers
    """

    def __init__(self, megabytes: int, *, seed: int = 405) -> None:
        self.count = megabytes * 1_000_000 // AVERAGE_BYTES // PARTITIONS
        self._noise = base64.b64encode(random.Random(seed).randbytes(3 << 18)).replace(b"=", b"")

    @property
    def total(self) -> int:
        """The number of all records."""
        return self.count * PARTITIONS

    def sample(self, partition: int, offset: int) -> Sample:
        """The record at a place."""
        head = b"%d:%d:" % (partition, offset)
        drawn = crc32(head)
        kind = drawn >> 24
        size = LARGEST_VALUE if kind < 2 else drawn % (100 if kind < 64 else 2_000)
        start = drawn % (len(self._noise) - LARGEST_VALUE)
        key = b"%d" % (drawn % 7) if drawn % 8 else None
        value = head + self._noise[start : start + size]
        return Sample(key, value, YESTERDAY_MS + offset, HEADERS[drawn % len(HEADERS)])


@dataclass(frozen=True)
class Stock:
    """A topic of a broker, and its contents."""

    site: Site
    topic: str
    contents: Contents

    @property
    def servers(self) -> str:
        """The bootstrap servers of its broker."""
        return self.site.address

    def fill(self) -> None:
        """Create the topic, write it with confluent-kafka, and wait until all but its end is only in the tier."""
        settings = {"remote.storage.enable": "true", "segment.bytes": str(SEGMENT_BYTES), **ONLY_THE_ACTIVE_ONE}
        self.site.create(self.topic, settings, partitions=PARTITIONS)
        for partition, codec in enumerate(CODECS):
            for first in range(0, self.contents.count, _AT_ONCE):
                places = range(first, min(first + _AT_ONCE, self.contents.count))
                records = [self.contents.sample(partition, offset) for offset in places]
                larger = {"batch.size": 100_000, "linger.ms": 50}
                confluent.produce(self.servers, self.topic, partition, records, codec, idempotent=True, **larger)
        self._await_tier()

    def _await_tier(self) -> None:
        """Each partition keeps only the active segment locally, a small part of the whole."""
        for partition in range(PARTITIONS):
            found = Sites([self.site])
            found.expect(lambda site, partition=partition: len(site.local_segments(self.topic, partition)), 1)
            start, local_start, end = (
                self.site.offset(self.topic, which, partition=partition)[1]
                for which in (EARLIEST, EARLIEST_LOCAL, LATEST)
            )
            assert (start, end) == (0, self.contents.count)
            assert local_start == self.site.local_segments(self.topic, partition)[0]
            # The active segment has less than SEGMENT_BYTES, which is at most this many records if these compress well.
            assert end - local_start < max(end // 10, 2 * SEGMENT_BYTES // AVERAGE_BYTES), "mostly in the tier"


class Shown(NamedTuple):
    """A record as a client shows it; `what` is the part that the client shows."""

    partition: int
    offset: int
    what: object


class Reader(NamedTuple):
    """One client: it reads a stock from beginning to end, each partition in order.

    Shape  expected gives the part of a record that this client should show
    """

    name: str
    read: Callable[[Stock], Generator[Shown, None, None]]
    expected: Callable[[Sample], object]


def check(contents: Contents, shown: Iterable[Shown], expected: Callable[[Sample], object]) -> None:
    """Compare every record; all must arrive once, each partition's in order.

    Errors  AssertionError with the first difference
    """
    following = [0] * PARTITIONS
    for partition, offset, what in shown:
        assert 0 <= partition < PARTITIONS, f"there is no partition {partition}"
        assert offset == following[partition], f"partition {partition}: {offset} follows {following[partition] - 1}"
        assert offset < contents.count, f"partition {partition}: {offset} is after the end"
        wanted = expected(contents.sample(partition, offset))
        assert what == wanted, f"partition {partition}, offset {offset}: {difference(what, wanted)}"
        following[partition] += 1
    assert following == [contents.count] * PARTITIONS, f"records that were read of each partition: {following}"


def difference(found: object, wanted: object) -> str:
    """The difference, shortened to its beginning."""
    if isinstance(found, Sample) and isinstance(wanted, Sample):
        pairs = [(each.name, getattr(found, each.name), getattr(wanted, each.name)) for each in fields(Sample)]
        return "; ".join(f"{name}: {difference(one, other)}" for name, one, other in pairs if one != other)
    one, other = repr(found), repr(wanted)
    length = min(len(one), len(other))
    at = next((place for place in range(length) if one[place] != other[place]), length)
    start = max(0, at - _SHOWN // 4)
    return f"...{one[start : at + _SHOWN]} and not ...{other[start : at + _SHOWN]} (from character {at} on)"
