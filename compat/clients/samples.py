"""Records that reveal losses in a broker, a codec or a client: nulls, empties, bytes, large and small, odd dates."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
START_MS = 1_700_000_000_000


@dataclass(frozen=True)
class Sample:
    """One record as a client writes or reads it."""

    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    headers: tuple[tuple[str, bytes | None], ...] = ()


def samples(count: int, *, seed: int, null_headers: bool = True) -> list[Sample]:
    """The same records for the same seed; the first ones are the unusual ones."""
    generator = random.Random(seed)
    odd = [
        Sample(b"key", b"value", START_MS),
        Sample(None, b"no key", START_MS + 1),
        Sample(b"tombstone", None, START_MS + 1),
        Sample(b"", b"", START_MS),
        Sample(b"\x00\xff", bytes(range(256)), START_MS + 5),
        Sample(b"k", b"v", START_MS, (("one", b"1"), ("two", b""), ("one", b"again"), ("\u00fcmlaut", b"\xff\x00"))),
        Sample(b"k", b"v", 1, (("null", None if null_headers else b""),)),
        Sample(b"large", b"x" * 100_000, START_MS + 7),
        Sample(b"noise", generator.randbytes(50_000), START_MS + 6),
    ]
    for number in range(count - len(odd)):
        size = generator.choice([0, 1, 10, 100, 1000])
        value = b"%d:" % number + generator.choice([b"ab" * (size // 2), generator.randbytes(size)])
        odd.append(Sample(b"%d" % (number % 7), value, START_MS + 10 * number))
    return odd


class Client(Protocol):
    """The interface of a client for these tests."""

    name: str
    null_headers: bool  # whether it can write a header without a value

    def produce(
        self, servers: str, topic: str, partition: int, records: Sequence[Sample], codec: str, *, idempotent: bool
    ) -> None:
        """Write records into one partition, in order, and wait until all are acknowledged."""

    def consume(self, servers: str, topic: str, counts: dict[int, int]) -> dict[int, list[Sample]]:
        """Read this many records of each partition from its beginning, by assignment."""


def until_complete(counts: dict[int, int], poll: Callable[[dict[int, list[Sample]]], None]) -> dict[int, list[Sample]]:
    """Poll until each partition has given the wanted number of records.

    Errors: AssertionError if no records arrive for too long.
    """
    found: dict[int, list[Sample]] = {partition: [] for partition in counts}
    idle = 0
    while any(len(found[partition]) < count for partition, count in counts.items()):
        before = sum(map(len, found.values()))
        poll(found)
        idle = idle + 1 if sum(map(len, found.values())) == before else 0
        assert idle < 20, f"no more records arrive: { ({key: len(value) for key, value in found.items()}) } of {counts}"
    return found
