"""Structured Streaming from a topic on its way to the tier, with `kill -9` of the driver and of the broker in between.

    .venv-spark/bin/python -m compat.torture.spark --kills 20
    .venv-spark/bin/python -m compat.torture.spark --broker kafka      Apache Kafka 4.3.1: is the judge fair?

One query of Spark's stock connector writes files, exactly once, another one a topic, at least once
(`compat/spark/stream_job.py`). Records are produced as fast as the queries take them, and most of them are in the tier
by then. The driver, which is Python and the JVM that it has started, is killed in the middle of a batch as often as
between two; the new one goes on from the checkpoints. At the end every record must be in the files once, with its
bytes and its time, and in the other topic at least once. Exit status 1 when there are findings.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
from confluent_kafka import Consumer, Message, Producer, TopicPartition

from compat.brokers import KbrokerProcess
from compat.kafka import KafkaNode
from compat.tiered.site import EARLIEST_LOCAL, HURRIED, LATEST, ONLY_THE_ACTIVE_ONE, YESTERDAY_MS, Site
from compat.torture.tier import Contents
from kbroker.testing.draws import Draws

CODECS = ("none", "lz4", "zstd", "gzip")
AT_ONCE = 400  # records a batch of Spark
AHEAD = 4 * AT_ONCE
SEGMENT_BYTES = 150_000
PATIENCE_S = 240.0
_ROOT = Path(__file__).parents[2]


class Driver:
    """The Spark program in a process group of its own."""

    def __init__(self, job: dict[str, object], directory: Path) -> None:
        self._job, self.directory = job, directory
        self._process: subprocess.Popen[bytes] | None = None
        self._log = directory / "driver.log"

    def start(self, *, finish: bool = False) -> None:
        """Start it."""
        job = json.dumps({**self._job, "directory": str(self.directory), "finish": finish})
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "compat.spark.stream_job", job],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=_ROOT,
                start_new_session=True,
            )

    def kill(self) -> None:
        """`kill -9` of Python and its JVM."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def wait(self) -> int:
        """Its exit status, when it has come to the end."""
        assert self._process is not None, "not started"
        return self._process.wait(PATIENCE_S)

    def is_up(self) -> bool:
        """Whether it still runs."""
        return self._process is not None and self._process.poll() is None

    def said(self) -> str:
        """The end of its log, without the stacks."""
        lines = self._log.read_text(errors="replace").splitlines()
        return "\n".join([line for line in lines if not line.startswith("\tat ")][-30:])

    def batches(self) -> tuple[int, int]:
        """The last batch that was planned and the last one that is done, of the query with the files."""
        return self._last("offsets"), self._last("commits")

    def _last(self, kind: str) -> int:
        names = (path.name for path in (self.directory / "files-checkpoint" / kind).glob("*"))
        return max((int(name) for name in names if name.isdecimal()), default=-1)

    def done(self, topic: str) -> int:
        """How many records the batches hold that are done."""
        _, committed = self.batches()
        if committed < 0:
            return 0
        lines = (self.directory / "files-checkpoint" / "offsets" / str(committed)).read_text().splitlines()
        return sum(json.loads(lines[-1])[topic].values())

    def files(self) -> int:
        """How many files there are, of batches that are done or not."""
        return sum(1 for _ in (self.directory / "rows").glob("part-*"))


class Run:
    """One run: what is produced, killed and found."""

    def __init__(self, site: Site, directory: Path, *, seed: int, records: int, kills: int) -> None:
        self.site, self.records = site, records
        self.topic, self.target = f"spark-{seed}", f"spark-copy-{seed}"
        self.contents, self._draws = Contents(seed), Draws("spark", seed)
        self.findings: list[str] = []
        self.driver_kills = self.broker_kills = self.within_batches = self.copies = 0
        total = records * len(CODECS)
        pieces = [(number * total + self._draws.below(total)) // (kills + 1) for number in range(1, kills + 1)]
        self._driver_moments, self._broker_moments = list(pieces), [self._draws.below(total) for _ in range(kills)]
        self._broker_moments.sort()
        job = {"servers": site.address, "topic": self.topic, "target": self.target, "at_once": AT_ONCE}
        self.driver = Driver(job, directory)
        self._ends = [0] * len(CODECS)

    def stream(self) -> None:
        """Produce everything while the driver streams it and both are killed now and then.

        Errors: TimeoutError when nothing moves for too long.
        """
        self._create()
        producers = [_producer(self.site.address, codec) for codec in CODECS]
        wanted = self._draws.choice(["planned", "files", "any"])
        done, moved = 0, time.monotonic()
        files = 0
        self.driver.start()
        while done < self.records * len(CODECS):
            if (reached := self.driver.done(self.topic)) > done:
                done, moved = reached, time.monotonic()
            for partition, producer in enumerate(producers):
                self._produce(producer, partition, limit=done + AHEAD)
            if self._broker_moments and sum(self._ends) >= self._broker_moments[0]:
                self._broker_moments.pop(0)
                self.site.broker.kill()
                self.site.broker.start()
                self.broker_kills += 1
            planned, committed = self.driver.batches()
            if planned == committed:
                files = self.driver.files()
            within = planned > committed and (wanted == "planned" or self.driver.files() > files)
            if self._driver_moments and done >= self._driver_moments[0] and (within or wanted == "any"):
                self._driver_moments.pop(0)
                self.driver.kill()
                self.driver_kills += 1
                planned, committed = self.driver.batches()
                self.within_batches += planned > committed
                wanted = self._draws.choice(["planned", "files", "any"])
                self.driver.start()
            if not self.driver.is_up():
                self.findings.append(f"the driver has ended by itself:\n{self.driver.said()}")
                return
            if time.monotonic() - moved > PATIENCE_S:
                raise TimeoutError(f"{done} records are done for {PATIENCE_S} s:\n{self.driver.said()}")
            time.sleep(0.005)
        for producer in producers:
            producer.flush()
        self.driver.kill()

    def finish(self) -> None:
        """Let the driver come to the end, then look at every record."""
        if self.findings:
            return
        for partition, end in enumerate(self._ends):
            begins = self.site.offset(self.topic, EARLIEST_LOCAL, partition=partition)[1]
            if begins <= end // 2:
                self.findings.append(f"partition {partition} is not mostly in the tier: {begins} of {end}")
        self.driver.start(finish=True)
        status = self.driver.wait()
        if status != 0:
            self.findings.append(f"the driver has ended with {status}:\n{self.driver.said()}")
            return
        self._judge_files()
        self._judge_copies()

    def _create(self) -> None:
        settings = {"remote.storage.enable": "true", "segment.bytes": str(SEGMENT_BYTES), **ONLY_THE_ACTIVE_ONE}
        self.site.create(self.topic, settings, partitions=len(CODECS))
        self.site.create(self.target, {}, partitions=len(CODECS))

    def _produce(self, producer: Producer, partition: int, *, limit: int) -> None:
        producer.poll(0)
        for _ in range(100):
            offset = self._ends[partition]
            if offset == self.records or sum(self._ends) >= limit or len(producer) > 500:
                return
            value, time_ms = self.contents.value(partition, offset), YESTERDAY_MS + offset
            producer.produce(self.topic, value, b"%d" % offset, partition, _refused, timestamp=time_ms)
            self._ends[partition] += 1

    def _judge_files(self) -> None:
        with pa.OSFile(str(self.driver.directory / "rows.arrow")) as file:
            table = pa.ipc.open_file(file).read_all()
        seen: Counter[tuple[int, int]] = Counter()
        for row in table.to_pylist():
            partition, offset = row["partition"], row["offset"]
            seen[partition, offset] += 1
            expected = (YESTERDAY_MS + offset, b"%d" % offset, self.contents.value(partition, offset))
            if (row["time"], row["key"], row["value"]) != expected:
                self.findings.append(f"{partition}:{offset} is in the files with other contents")
        self._judge("the files", seen)
        twice = [place for place, count in seen.items() if count > 1]
        self.findings += [f"{len(twice)} records are in the files more than once, {twice[:5]}"] if twice else []

    def _judge_copies(self) -> None:
        numbers = {
            (partition, self.contents.value(partition, offset)): offset
            for partition in range(len(CODECS))
            for offset in range(self.records)
        }
        seen: Counter[tuple[int, int]] = Counter()
        for message in _all_of(self.site, self.target):
            partition = message.partition()
            assert partition is not None
            offset = numbers.get((partition, message.value() or b""))
            if offset is None:
                self.findings.append(
                    f"the copy has a record that is not of the topic at {partition}:{message.offset()}"
                )
            else:
                seen[partition, offset] += 1
        self._judge("the copy", seen)
        self.copies = sum(seen.values()) - len(seen)

    def _judge(self, where: str, seen: Counter[tuple[int, int]]) -> None:
        places = {(partition, offset) for partition in range(len(CODECS)) for offset in range(self.records)}
        if lost := sorted(places - seen.keys()):
            self.findings.append(f"{len(lost)} records are not in {where}, {lost[:5]}")
        if alien := sorted(seen.keys() - places):
            self.findings.append(f"{len(alien)} places that nobody wrote are in {where}, {alien[:5]}")

    def __str__(self) -> str:
        kills = f"{self.driver_kills} kills of the driver, {self.within_batches} of them within a batch"
        records = f"{self.records * len(CODECS)} records once in the files, {self.copies} copied again"
        return f"{kills}, {self.broker_kills} kills of the broker, {records}, {len(self.findings)} findings"


def _refused(error: object, _: Message) -> None:
    assert error is None, error


def _producer(servers: str, codec: str) -> Producer:
    settings = {"bootstrap.servers": servers, "compression.type": codec, "linger.ms": 5, "batch.size": 20_000}
    # Longer than any restart: what is not acknowledged is sent again, and must not double.
    patience = {"enable.idempotence": True, "message.timeout.ms": 120_000, "reconnect.backoff.max.ms": 200}
    return Producer({**settings, **patience, "log_level": 2})


def _all_of(site: Site, topic: str) -> Iterator[Message]:
    """Every record of a topic."""
    consumer = Consumer({"bootstrap.servers": site.address, "group.id": "copies", "enable.auto.commit": False})
    try:
        for partition in range(len(CODECS)):
            position, end = 0, site.offset(topic, LATEST, partition=partition)[1]
            consumer.assign([TopicPartition(topic, partition, 0)])
            deadline = time.monotonic() + PATIENCE_S
            while position < end:
                for message in consumer.consume(500, timeout=0.2):
                    assert message.error() is None, message.error()
                    yield message
                    position = (message.offset() or 0) + 1
                assert time.monotonic() < deadline, f"nothing comes from {position} of {end}"
    finally:
        consumer.close()


@contextlib.contextmanager
def running(directory: Path, kind: Callable[..., KbrokerProcess | KafkaNode]) -> Iterator[Site]:
    """A broker with a tier on a directory."""
    tier = directory / "tier"
    if kind is KbrokerProcess:
        broker = kind(directory, overrides=[f"{key}={text}" for key, text in HURRIED.items()], tier=tier)
    else:
        broker = kind(directory, overrides=HURRIED, tier=tier)
    broker.start()
    try:
        yield Site(broker, tier)
    finally:
        broker.kill()


def torture(site: Site, directory: Path, *, seed: int, records: int, kills: int) -> Run:
    """One run from beginning to end."""
    directory.mkdir()
    run = Run(site, directory, seed=seed, records=records, kills=kills)
    try:
        run.stream()
        run.finish()
    finally:
        run.driver.kill()
    return run


def main() -> int:
    """One run; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--broker", choices=["kbroker", "kafka"], default="kbroker")
    parser.add_argument("--kills", type=int, default=3, help="of the driver, and as many of the broker")
    parser.add_argument("--records", type=int, default=0, help="for each of four partitions (default 700 a kill)")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    kind: Callable[..., KbrokerProcess | KafkaNode] = KafkaNode if options.broker == "kafka" else KbrokerProcess
    records = options.records or 700 * max(options.kills, 1)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="spark-kills-") as name, running(Path(name) / "broker", kind) as site:
        run = torture(site, Path(name) / "driver", seed=options.seed, records=records, kills=options.kills)
    for finding in run.findings[:50]:
        print(finding)
    print(f"{run}, {time.monotonic() - began:.0f} s")
    return 1 if run.findings else 0


if __name__ == "__main__":
    sys.exit(main())
