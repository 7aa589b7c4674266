"""The input of Spark: pre-encoded batches whose timestamps cover a day."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass

import zstandard

from compat.bench.frames import PRODUCE_VERSION, check_produced, receive
from compat.oracle.batches import ZSTD, Batch, Item
from compat.oracle.raw import RawConnection
from compat.oracle.schema import encode_request

BATCH_BYTES = 16 << 10
DAY_MS, HOUR_MS = 86_400_000, 3_600_000
DIFFERENT = 64  # batches, which are repeated in turn
WORDS = ("alpha", "bravo", "charlie", "delta", "echo", "foxtrot", "golf", "hotel", "india", "juliett", "kilo", "lima")


@dataclass(frozen=True)
class Day:
    """A day of records in some partitions.

    Shape  record_bytes: of a value; records: per partition, rounded up to whole batches
    """

    record_bytes: int
    records: int
    partitions: int
    codec: int
    start_ms: int

    @property
    def records_a_batch(self) -> int:
        """The number of records that a client puts into a batch of 16 KiB."""
        return BATCH_BYTES // (self.record_bytes + 10)

    @property
    def batches(self) -> int:
        """The number of batches per partition."""
        return -(-self.records // self.records_a_batch)

    @property
    def count(self) -> int:
        """The number of all records."""
        return self.batches * self.records_a_batch * self.partitions

    def bodies(self) -> list[bytes]:
        """The records of the repeated batches, compressed or not."""
        draws, compressor = random.Random(self.record_bytes), zstandard.ZstdCompressor(level=3)
        found = []
        for _ in range(DIFFERENT):
            values = [event(draws, self.record_bytes) for _ in range(self.records_a_batch)]
            body = b"".join(Item(value).encode(place) for place, value in enumerate(values))
            found.append(compressor.compress(body) if self.codec == ZSTD else body)
        return found

    def time_ms(self, number: int) -> int:
        """The timestamp of all records of a batch."""
        return self.start_ms + number * DAY_MS // self.batches

    def batch(self, bodies: Sequence[bytes], number: int) -> bytes:
        """One complete batch."""
        items = [Item()] * self.records_a_batch
        body = bodies[number % DIFFERENT]
        return Batch(items, base_timestamp=self.time_ms(number), codec=self.codec, body=body).encode()

    def bytes_between(self, begin_ms: int, end_ms: int) -> int:
        """The bytes of the batches of all partitions with timestamps in [begin_ms, end_ms)."""
        bodies = self.bodies()
        numbers = (number for number in range(self.batches) if begin_ms <= self.time_ms(number) < end_ms)
        return self.partitions * sum(len(self.batch(bodies, number)) for number in numbers)


def event(draws: random.Random, size: int) -> bytes:
    """A JSON text of words and numbers with this size in bytes."""
    text = ""
    while len(text) < size - 12:
        text += f"{draws.choice(WORDS)} {draws.randrange(10_000)} "
    return json.dumps({"text": text[: size - 12]}).encode()


def fill_day(servers: str, topic: str, *, day: dict[str, int]) -> dict[str, float]:
    """Produce the day; returns the number of records and bytes."""
    wanted, connection, written = Day(**day), RawConnection(servers, timeout_s=60).socket, 0
    bodies = wanted.bodies()
    for number in range(wanted.batches):
        batch = wanted.batch(bodies, number)
        written += len(batch) * wanted.partitions
        parts = [{"Index": partition, "Records": batch} for partition in range(wanted.partitions)]
        message = {"Acks": -1, "TimeoutMs": 30_000, "TopicData": [{"Name": topic, "PartitionData": parts}]}
        connection.sendall(encode_request("Produce", PRODUCE_VERSION, message))
        reply = receive(connection)
    check_produced(reply)
    return {"records": wanted.count, "bytes": written}
