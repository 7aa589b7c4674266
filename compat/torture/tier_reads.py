"""A large topic in the tier, read at random during faults by a verifier that knows every record.

    python -m compat.torture.tier_reads                             1 GB, kills, damaged and deleted files of the tier
    python -m compat.torture.tier_reads --megabytes 10000 --kills 0 --damages 0  how much memory it takes
    python -m compat.torture.tier_reads --broker kafka --damages 0  Apache Kafka 4.3.1, to verify the judge

The contents of a record follow from its partition and offset, so nothing has to be stored. The broker is killed with
`kill -9` while records are produced and copied, and while they are read. Then files of the tier are changed, cut and
deleted one at a time: a read of their records may be refused, but must never return other bytes or skip an offset. When
the file is restored the read succeeds. Finally the broker is restarted and all records are read from beginning to end.
Memory is sampled all the time. Exit status 1 if there are findings.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from compat.bench.rivals import Rival
from compat.bench.tier_rows import highest_resident
from compat.tiered.site import EARLIEST, EARLIEST_LOCAL, HURRIED, LATEST, ONLY_THE_ACTIVE_ONE, Site

CODECS = ("none", "lz4", "zstd", "none")
LARGEST_VALUE = 2_000
HIGHEST_OVER_IDLE_MIB = 200
PATIENCE_S, REFUSED_AFTER_S = 120.0, 1.0
MOST_AT_ONCE = 100_000  # librdkafka's maximum is a million
# A run should not need twice its size on the disk: copied segments are deleted locally at once.
BROKER = {**HURRIED, "log.segment.delete.delay.ms": "100"}


class Contents:
    """The contents of every record."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._noise = random.Random(seed).randbytes(1 << 20)

    def value(self, partition: int, offset: int) -> bytes:
        """Its place, followed by bytes derived from it."""
        head = b"%d-%d-%d|" % (self._seed, partition, offset)
        drawn = crc32(head)
        start = drawn % (len(self._noise) - LARGEST_VALUE)
        return head + self._noise[start : start + drawn // len(self._noise) % LARGEST_VALUE]

    def complaint(self, message: Message, partition: int, offset: int) -> str | None:
        """The error of a record that should be the one at this place."""
        if (message.partition(), message.offset()) != (partition, offset):
            return f"wanted {partition}:{offset}, got {message.partition()}:{message.offset()}"
        return None if message.value() == self.value(partition, offset) else f"{partition}:{offset} has other bytes"


class Damage(NamedTuple):
    """A kind of damage to a file of the tier."""

    name: str
    do: Callable[[Path, random.Random], None]


def _flip(path: Path, draws: random.Random) -> None:
    data = bytearray(path.read_bytes())
    data[draws.randrange(len(data))] ^= 1 << draws.randrange(8)
    path.write_bytes(data)


def _cut(path: Path, draws: random.Random) -> None:
    path.write_bytes(path.read_bytes()[: draws.randrange(path.stat().st_size)])


def _delete(path: Path, draws: random.Random) -> None:
    del draws
    path.unlink()


DAMAGES = (Damage("changed", _flip), Damage("cut", _cut), Damage("deleted", _delete))


class Soak:
    """One run: the broker, the findings, and the counts."""

    def __init__(self, site: Site, *, seed: int) -> None:
        self.site, self.topic = site, f"soak-{seed}"
        self.contents, self.draws = Contents(seed), random.Random(seed + 1)
        self.findings: list[str] = []
        self.ends = [0] * len(CODECS)
        self.kills = self.reads = self.damaged = self.refused = 0

    def kill(self) -> None:
        """`kill -9`, and a restart."""
        self.kills += 1
        self.site.broker.kill()
        self.site.broker.start()

    def produce(self, megabytes: int, *, kills: int, segment_bytes: int = 4 << 20) -> None:
        """Fill the topic, with kills in between, and wait until nearly all of it is in the tier."""
        settings = {"remote.storage.enable": "true", "segment.bytes": str(segment_bytes), **ONLY_THE_ACTIVE_ONE}
        self.site.create(self.topic, settings, partitions=len(CODECS))
        producers = [_producer(self.site.address, codec) for codec in CODECS]
        moments = sorted(self.draws.randrange(megabytes) for _ in range(kills))
        produced = 0
        while produced < megabytes * 1_000_000:
            for partition, producer in enumerate(producers):
                for _ in range(200):
                    value = self.contents.value(partition, self.ends[partition])
                    self._send(producer, partition, self.ends[partition], value)
                    self.ends[partition] += 1
                    produced += len(value)
            if moments and produced >= moments[0] * 1_000_000:
                moments.pop(0)
                self.kill()
        for producer in producers:
            left = producer.flush(PATIENCE_S)
            if left:
                self.findings.append(f"{left} records were never acknowledged")
        deadline = time.monotonic() + PATIENCE_S + megabytes / 10
        for partition, end in enumerate(self.ends):
            while self.site.offset(self.topic, EARLIEST_LOCAL, partition=partition)[1] < end * 0.8:
                if time.monotonic() > deadline:
                    self.findings.append(f"partition {partition} does not move to the tier")
                    break
                time.sleep(0.1)

    def _send(self, producer: Producer, partition: int, offset: int, value: bytes) -> None:
        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is not None or message.offset() != offset:
                self.findings.append(f"record {partition}:{offset} went to {message.offset()}: {error}")

        while True:
            try:
                producer.produce(self.topic, value, partition=partition, on_delivery=delivered)
            except BufferError:
                producer.poll(0.1)
            else:
                producer.poll(0)
                return

    def read_at_random(self, count: int, *, kills: int) -> None:
        """Read a few records from a random place, `count` times."""
        moments = {self.draws.randrange(count) for _ in range(kills)}
        with _consumer(self.site.address) as consumer:
            for number in range(count):
                if number in moments:
                    self.kill()
                partition = self.draws.randrange(len(CODECS))
                self.read(consumer, partition, self.draws.randrange(self.ends[partition]), self.draws.randrange(1, 300))

    def read(self, consumer: Consumer, partition: int, offset: int, count: int) -> None:
        """Read this many records from an offset on, and compare each."""
        self.reads += 1
        consumer.assign([TopicPartition(self.topic, partition, offset)])
        end, deadline = min(offset + count, self.ends[partition]), time.monotonic() + PATIENCE_S
        while offset < end:
            for message in consumer.consume(min(end - offset, MOST_AT_ONCE), timeout=0.5):
                if message.error() is None:
                    self._check(message, partition, offset)
                    offset += 1
                elif _is_final(message.error()):
                    self.findings.append(f"{partition}:{offset} cannot be read: {message.error()}")
                    return
            if time.monotonic() > deadline:
                self.findings.append(f"{partition}:{offset} does not arrive within {PATIENCE_S} s")
                return

    def _check(self, message: Message, partition: int, offset: int) -> None:
        complaint = self.contents.complaint(message, partition, offset)
        if complaint is not None:
            self.findings.append(complaint)

    def damage(self, count: int) -> None:
        """Damage a file, read its segment, restore it, read again; `count` times."""
        files = self._files()
        segments = [file for file in files if file[0].suffix == ".log"]
        for number in range(count):
            path, partition, base_offset, end = self.draws.choice(files if number % 4 == 0 else segments)
            how = DAMAGES[number % len(DAMAGES)]
            whole = path.read_bytes()
            if not whole:
                continue
            how.do(path, self.draws)
            self.damaged += 1
            with _consumer(self.site.address) as consumer:
                self._read_damaged(consumer, partition, base_offset, end, f"{path.name} is {how.name}")
                path.write_bytes(whole)
                self.read(consumer, partition, base_offset, end - base_offset)

    def _read_damaged(self, consumer: Consumer, partition: int, offset: int, end: int, what: str) -> None:
        """Read a segment with one damaged file: correct records up to some place, and nothing after it."""
        consumer.assign([TopicPartition(self.topic, partition, offset)])
        while offset < end:
            messages = consumer.consume(end - offset, timeout=REFUSED_AFTER_S)
            if not any(message.error() is None for message in messages):
                self.refused += 1
                return
            for message in messages:
                error = message.error()
                if error is None:
                    complaint = self.contents.complaint(message, partition, offset)
                    offset += 1
                else:
                    complaint = str(error) if _is_final(error) else None
                if complaint:
                    self.findings.append(f"{what}: {complaint}")
                    return

    def _files(self) -> list[tuple[Path, int, int, int]]:
        """Files of the tier, with the partition, their first offset, and their end offset."""
        found = []
        bases: dict[int, set[int]] = {partition: {end} for partition, end in enumerate(self.ends)}
        for name in self.site.tier_files(self.topic):
            match = re.search(r"(?:/|-)(\d+)(?:-[\w-]{22})?/(\d{20})-", name)
            if match:
                partition, base_offset = int(match[1]), int(match[2])
                found.append((self.site.tier_directory / name, partition, base_offset))
                bases[partition].add(base_offset)
        assert found, "no files of the topic in the tier"
        return [
            (path, partition, base_offset, min(base for base in bases[partition] if base > base_offset))
            for path, partition, base_offset in found
        ]

    def read_all(self) -> None:
        """Restart, and read every partition from its beginning to its end."""
        self.site.restart()
        self.site.await_leaders(self.topic, len(CODECS))
        for partition, end in enumerate(self.ends):
            if (start := self.site.offset(self.topic, EARLIEST, partition=partition)[1]) != 0:
                self.findings.append(f"partition {partition} begins at {start}")
            if (latest := self.site.offset(self.topic, LATEST, partition=partition)[1]) != end:
                self.findings.append(f"partition {partition} ends at {latest} and not at {end}")
            with _consumer(self.site.address) as consumer:
                self.read(consumer, partition, 0, end)


def _is_final(error: KafkaError | None) -> bool:
    """Whether a retry is useless: corrupt data, or an offset that is out of range."""
    return error is not None and error.code() in {
        KafkaError._BAD_MSG,
        KafkaError.OFFSET_OUT_OF_RANGE,
        KafkaError._AUTO_OFFSET_RESET,
    }


def _producer(servers: str, codec: str) -> Producer:
    return Producer(
        {
            "bootstrap.servers": servers, "enable.idempotence": True, "acks": "all", "compression.type": codec,
            "linger.ms": 5, "batch.size": 200_000, "message.timeout.ms": 120_000, "log_level": 2,
            "reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 200, "retry.backoff.ms": 20,
        }
    )  # fmt: skip


@contextlib.contextmanager
def _consumer(servers: str) -> Iterator[Consumer]:
    consumer = Consumer(
        {
            "bootstrap.servers": servers, "group.id": "soak", "enable.auto.commit": False, "check.crcs": True,
            # A reader whose offset is out of range must not be silently reset to another offset.
            "auto.offset.reset": "error", "fetch.wait.max.ms": 50, "log_level": 2,
            "reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 200,
        }
    )  # fmt: skip
    try:
        yield consumer
    finally:
        consumer.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--broker", choices=["kbroker", "kafka"], default="kbroker")
    parser.add_argument("--megabytes", type=int, default=1_000)
    parser.add_argument("--kills", type=int, default=2, help="while it is filled, and as many while it is read")
    parser.add_argument("--reads", type=int, default=300)
    parser.add_argument("--damages", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tier-soak-") as scratch:
        site = Site.in_directory(Path(scratch), is_kafka=options.broker == "kafka", settings=BROKER)
        broker = site.broker
        broker.start()
        try:
            soak = Soak(site, seed=options.seed)
            rival = Rival(broker)
            idle = rival.resident_mib()
            phases: dict[str, Callable[[], None]] = {
                "filling and copying": lambda: soak.produce(options.megabytes, kills=options.kills),
                "reading at random": lambda: soak.read_at_random(options.reads, kills=options.kills),
                "reading damaged segments": lambda: soak.damage(options.damages),
                "restarting and reading everything": soak.read_all,
            }
            over = 0.0
            for name, phase in phases.items():
                began = time.monotonic()
                with highest_resident(rival) as seen:
                    phase()
                print(f"{name}: {time.monotonic() - began:.0f} s, {max(seen) - idle:.0f} MiB over idle", flush=True)
                over = max(over, max(seen) - idle)
        finally:
            if broker.process is not None:
                broker.kill()
            log = broker.log_tail()
    if options.broker == "kbroker" and over > HIGHEST_OVER_IDLE_MIB:
        soak.findings.append(f"{over:.0f} MiB over idle")
    if options.damages >= 10 and not soak.refused:
        soak.findings.append("no damage was ever noticed: the damaged files are not the ones that are read")
    for finding in soak.findings[:50]:
        print(finding)
    if soak.findings:
        print(log)
    print(
        f"{len(soak.findings)} findings; {sum(soak.ends)} records, {soak.kills} kills, {soak.reads} reads,"
        f" {soak.damaged} damages, {soak.refused} of them refused; {over:.0f} MiB over idle"
    )
    return 1 if soak.findings else 0


if __name__ == "__main__":
    sys.exit(main())
