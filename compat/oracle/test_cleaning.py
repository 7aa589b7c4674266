"""Compacted topics: for generated histories both brokers' cleaners leave the same records at the same offsets.

The histories have keys, tombstones, two codecs, idempotent producers, and transactions that commit and abort. Nothing
is cleaned while a history is written. Then min.cleanable.dirty.ratio falls, each broker cleans once, and all records
that consumers read are compared.
"""

from __future__ import annotations

import gzip
import random
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest
import zstandard

from compat.oracle.batches import GZIP, ZSTD, Batch, Item
from compat.oracle.conftest import Pair, Topic, same
from compat.oracle.schema import Message
from compat.oracle.test_fetch import fetch, parts, wanted
from compat.oracle.test_produce import partition_of
from compat.oracle.test_topics_and_configs import SET, TOPIC, alter
from compat.oracle.transactions import Twins
from compat.tiered.records import HEADER_BYTES, Stored, last_offset, records, whole_batches
from compat.waiting import until

BROKER = 4
TRANSACTIONAL, CONTROL = 0x10, 0x20
SEGMENT_MS = 10_000
TOMBSTONES_MS = 1_000
Values = dict[bytes | None, bytes]


@pytest.fixture(scope="module", autouse=True)
def hurried(pair: Pair) -> Iterator[None]:
    """Both cleaners look for work five times a second."""
    for value in ("200", "15000"):
        same(pair.call("IncrementalAlterConfigs", 1, alter(BROKER, "", ("log.cleaner.backoff.ms", SET, value))))
        if value == "200":
            yield


@dataclass
class Log:
    """One topic on both brokers, written with the same batches.

    Units  time_ms is the timestamp of the next batch, later than those of markers, so that segments roll on both alike
    """

    pair: Pair
    topic: Topic
    rng: random.Random
    producers: list[Twins]
    time_ms: int = field(default_factory=lambda: int(time.time() * 1000) + 60_000)
    sequences: dict[str, int] = field(default_factory=dict)
    is_open: set[str] = field(default_factory=set)

    def write_history(self, batches: int, keys: int) -> None:
        """Write batches and transactions, in several segments; all transactions end."""
        for number in range(batches):
            producer = self.rng.choice([None, None, *self.producers])
            if producer is not None and producer.name in self.is_open and self.rng.random() < 0.4:
                self._end(producer)
            else:
                self._write(self._items(keys), producer)
            if number % 8 == 7:
                self.begin_segment()
        for producer in self.producers:
            if producer.name in self.is_open:
                self._end(producer)

    def begin_segment(self) -> None:
        """The next batch rolls the log."""
        self.time_ms += 2 * SEGMENT_MS

    def mark(self, name: bytes) -> int:
        """Write a batch into a segment of its own; returns its offset. Everything before it can be cleaned."""
        self.begin_segment()
        return self._write([Item(b"mark", key=name)], None)

    def _items(self, keys: int) -> list[Item]:
        rng = self.rng
        return [
            Item(
                None if rng.random() < 0.25 else b"%d" % rng.randrange(10**9) + b"v" * rng.randrange(60),
                key=b"key-%d" % rng.randrange(keys),
                timestamp_delta=at,
            )
            for at in range(rng.choice((1, 1, 3, 20)))
        ]

    def _write(self, items: list[Item], producer: Twins | None) -> int:
        if producer is not None and producer.name not in self.is_open:
            producer.add((self.topic.name, 0))
            self.is_open.add(producer.name)
        sequence = self.sequences.get(producer.name, 0) if producer is not None else -1
        codec = self.rng.choice((0, GZIP, ZSTD))
        plain = b"".join(item.encode(place) for place, item in enumerate(items))
        body = zstandard.ZstdCompressor().compress(plain) if codec == ZSTD else None
        self.time_ms += 100

        def for_side(side: int) -> Message:
            producer_id, epoch = (-1, -1) if producer is None else producer.ids[side]
            batch = Batch(
                items,
                codec=codec,
                body=body,
                base_timestamp=self.time_ms,
                attributes=0 if producer is None else TRANSACTIONAL,
                producer_id=producer_id,
                producer_epoch=epoch,
                base_sequence=sequence,
            )
            data = {"Name": self.topic.name, "PartitionData": [{"Index": 0, "Records": batch.encode()}]}
            name = None if producer is None else producer.name
            return {"TransactionalId": name, "Acks": -1, "TimeoutMs": 10_000, "TopicData": [data]}

        answer = partition_of(same(self.pair.call("Produce", 9, for_side)))
        assert answer["ErrorCode"] == 0
        if producer is not None:
            self.sequences[producer.name] = sequence + len(items)
        return int(answer["BaseOffset"])

    def _end(self, producer: Twins) -> None:
        producer.end(is_commit=self.rng.random() < 0.6)
        producer.described()  # waits until the marker is written
        self.is_open.discard(producer.name)

    def set(self, name: str, value: str) -> None:
        same(self.pair.call("IncrementalAlterConfigs", 1, alter(TOPIC, self.topic.name, (name, SET, value))))

    def clean_to(self, end: int) -> tuple[list[Stored], Values]:
        """Have both clean everything below an offset, and return what both have then."""
        self.set("min.cleanable.dirty.ratio", "0.0")
        found: list[tuple[list[Stored], Values]] = []

        def are_clean() -> bool:
            found[:] = [read(self.pair, self.topic, side) for side in (0, 1)]
            return all(is_clean(stored, end) for stored, _ in found)

        until(are_clean, patience_s=60, each_s=0.1)
        self.set("min.cleanable.dirty.ratio", "1.0")
        assert found[0][0] == found[1][0], "the records of both"
        assert found[0][1] == found[1][1], "the committed values of both"
        return found[0]


def is_clean(stored: list[Stored], end: int) -> bool:
    keys = [one.key for one in stored if one.offset < end]
    return len(keys) == len(set(keys))


def read(pair: Pair, topic: Topic, side: int) -> tuple[list[Stored], Values]:
    """All records, and what a consumer of committed records ends with."""
    stored: list[Stored] = []
    values: dict[bytes | None, bytes | None] = {}
    offset, aborted, coming = 0, set[int](), list[tuple[int, int]]()
    while True:
        request = fetch(topic, 12, wanted(offset=offset), IsolationLevel=1)
        assert callable(request)
        part = parts(Pair(*[pair.addresses[side]] * 2).call("Fetch", 12, request)[0])[0]
        batches = list(whole_batches(part["Records"] or b""))
        if not batches:
            return stored, {key: value for key, value in values.items() if value is not None}
        coming = sorted((one["FirstOffset"], one["ProducerId"]) for one in part["AbortedTransactions"] or ())
        for batch in batches:
            offset = last_offset(batch) + 1
            attributes, producer_id = struct.unpack_from(">h", batch, 21)[0], struct.unpack_from(">q", batch, 43)[0]
            while coming and coming[0][0] <= last_offset(batch):
                aborted.add(coming.pop(0)[1])
            if attributes & CONTROL:
                aborted.discard(producer_id)
                continue
            found = list(records(unpacked(batch)))
            stored += found
            if not (attributes & TRANSACTIONAL and producer_id in aborted):
                values |= {one.key: one.value for one in found}


def unpacked(batch: bytes) -> bytes:
    """The batch with uncompressed records; its CRC is no longer right."""
    (attributes,) = struct.unpack_from(">h", batch, 21)
    body = batch[HEADER_BYTES:]
    if attributes & 7 == GZIP:
        body = gzip.decompress(body)
    elif attributes & 7 == ZSTD:
        body = zstandard.ZstdDecompressor().decompressobj().decompress(body)
    return batch[:21] + struct.pack(">h", attributes & ~7) + batch[23:HEADER_BYTES] + body


@pytest.fixture
def new_log(pair: Pair, new_topic_name: Callable[[str], str]) -> Callable[..., Log]:
    """A function that makes a compacted topic, and its transactional producers."""

    def make(seed: int, *, producers: int = 0) -> Log:
        topic = pair.create(
            new_topic_name("cleaned"),
            configs={
                "cleanup.policy": "compact",
                "segment.ms": str(SEGMENT_MS),
                "min.cleanable.dirty.ratio": "1.0",
                "delete.retention.ms": str(TOMBSTONES_MS),
            },
        )
        made = [Twins(pair, new_topic_name("cleaning")) for _ in range(producers)]
        for one in made:
            one.call("FindCoordinator", 6, [{"KeyType": 1, "CoordinatorKeys": [one.name]}] * 2)
            one.init()
        return Log(pair, topic, random.Random(seed), made)

    return make


@pytest.mark.parametrize("seed", range(3))
def test_d6_both_cleaners_leave_the_same_records(new_log: Callable[..., Log], seed: int) -> None:
    log = new_log(seed, producers=2)
    log.write_history(60, keys=10)
    log.mark(b"first")
    before, expected = read(log.pair, log.topic, 0)
    after, values = log.clean_to(log.mark(b"second"))
    assert len(after) < len(before)
    assert values == {**expected, b"second": b"mark"}
    assert any(one.value is None for one in after), "tombstones stay"
    # The second pass removes the tombstones, and markers without records.
    time.sleep(1.5 * TOMBSTONES_MS / 1000)
    log.write_history(20, keys=10)
    end = log.mark(b"third")
    _, expected = read(log.pair, log.topic, 0)
    after, values = log.clean_to(end)
    assert values == expected
    assert not [one for one in after if one.value is None and one.offset < before[-1].offset]


def test_all_records_of_one_key_and_all_of_distinct_keys(new_log: Callable[..., Log]) -> None:
    log = new_log(7)
    log.write_history(40, keys=1)
    after, _ = log.clean_to(log.mark(b"one"))
    assert len(after) == 2, "the last record, and the mark"
    log.write_history(40, keys=10_000_000)
    before, _ = read(log.pair, log.topic, 0)
    after, _ = log.clean_to(log.mark(b"many"))
    assert after[:-1] == before
