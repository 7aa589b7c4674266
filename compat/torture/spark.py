"""Structured Streaming from a topic that moves to the tier, with `kill -9` of the driver and of the broker.

    .venv-spark/bin/python -m compat.torture.spark --kills 20
    .venv-spark/bin/python -m compat.torture.spark --broker kafka      Apache Kafka 4.3.1, to verify the judge

One query of Spark's stock connector writes files, exactly once, another one a topic, at least once
(`compat/spark/stream_job.py`). Records are produced as fast as the queries read them, and most of them are already in
the tier. The driver, which is Python and its JVM, is killed as often within a batch as between two; the new one
continues from the checkpoints. At the end every record must be in the files once, with its bytes and its time, and in
the other topic at least once. The last records are held back until all kills are done. Exit status 1 if there are
findings.
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
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import pyarrow as pa
from confluent_kafka import Consumer, Message, Producer, TopicPartition

from compat.spark.environment import FINISH
from compat.tiered.site import EARLIEST_LOCAL, LATEST, ONLY_THE_ACTIVE_ONE, Site, Sites
from compat.torture.tier_reads import Contents
from kbroker.testing.draws import Draws

CODECS = ("none", "lz4", "zstd", "gzip")
AT_ONCE = 400  # records per Spark batch
AHEAD = 4 * AT_ONCE
# Rolled by time, because Apache Kafka accepts no segments below a megabyte: half an hour of records is one.
STEP_MS, SEGMENT_MS = 12_000, 30 * 60_000
PATIENCE_S = 240.0
_ROOT = Path(__file__).parents[2]


class Driver:
    """The Spark program in its own process group."""

    def __init__(self, job: dict[str, object], directory: Path) -> None:
        self._job, self.directory = job, directory
        self._process: subprocess.Popen[bytes] | None = None
        self._log = directory / "driver.log"

    def start(self) -> None:
        """Start it. It ends with this process, even if this one is killed."""
        job = json.dumps({**self._job, "directory": str(self.directory)})
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "compat.spark.stream_job", job],
                stdin=subprocess.PIPE,
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
            assert self._process.stdin is not None
            self._process.stdin.close()

    def finish(self) -> int:
        """Make it process the remaining records and end; returns its exit status."""
        assert self._process is not None, "not started"
        assert self._process.stdin is not None
        self._process.stdin.write(FINISH)
        self._process.stdin.flush()
        return self._process.wait(PATIENCE_S)

    def is_up(self) -> bool:
        """Whether it still runs."""
        return self._process is not None and self._process.poll() is None

    def said(self) -> str:
        """The end of its log, without stack traces."""
        lines = self._log.read_text(errors="replace").splitlines()
        return "\n".join([line for line in lines if not line.startswith("\tat ")][-30:])

    def batches(self) -> tuple[int, int]:
        """The last planned batch and the last finished batch of the query that writes files."""
        return self._last("offsets"), self._last("commits")

    def _last(self, kind: str) -> int:
        names = (path.name for path in (self.directory / "files-checkpoint" / kind).glob("*"))
        return max((int(name) for name in names if name.isdecimal()), default=-1)

    def done(self, topic: str) -> int:
        """The number of records in finished batches."""
        _, committed = self.batches()
        if committed < 0:
            return 0
        lines = (self.directory / "files-checkpoint" / "offsets" / str(committed)).read_text().splitlines()
        return sum(json.loads(lines[-1])[topic].values())

    def files(self) -> int:
        """The number of files, of finished and unfinished batches."""
        return sum(1 for _ in (self.directory / "rows").glob("part-*"))


class Run:
    """One run: production, kills and findings."""

    def __init__(self, site: Site, directory: Path, *, seed: int, records: int, kills: int) -> None:
        self.site, self.records = site, records
        self.topic, self.target = f"spark-{seed}", f"spark-copy-{seed}"
        self.contents, self._draws = Contents(seed), Draws("spark", seed)
        self._start_ms = Sites.now_ms() - (records + 1) * STEP_MS - SEGMENT_MS
        self.findings: list[str] = []
        self.driver_kills = self.broker_kills = self.within_batches = self.copies = 0
        # The end of each part before the last batch, so that each kill happens while there is work left.
        self._before_last = max(records * len(CODECS) - AT_ONCE, 1)
        pieces = [
            (number * self._before_last + self._draws.below(self._before_last)) // (kills + 1)
            for number in range(1, kills + 1)
        ]
        self._driver_moments = pieces
        self._broker_moments = sorted(self._draws.below(self._before_last) for _ in range(kills))
        job = {"servers": site.address, "topic": self.topic, "target": self.target, "at_once": AT_ONCE}
        self.driver = Driver(job, directory)
        self._ends = [0] * len(CODECS)

    def stream(self) -> None:
        """Produce everything while the driver streams it and both are killed repeatedly.

        Errors: TimeoutError if there is no progress for too long.
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
            limit = done + AHEAD
            if self._driver_moments or self._broker_moments:
                limit = min(limit, self._before_last)
            for partition, producer in enumerate(producers):
                self._produce(producer, partition, limit=limit)
            if self._broker_moments and sum(self._ends) >= self._broker_moments[0]:
                self._broker_moments.pop(0)
                self.site.broker.kill()
                self.site.broker.start()
                self.broker_kills += 1
            planned, committed = self.driver.batches()
            if planned == committed:
                files = self.driver.files()
            within = planned > committed and (wanted == "planned" or self.driver.files() > files)
            is_moment = within or wanted == "any" or done >= self._before_last
            if self._driver_moments and done >= self._driver_moments[0] and is_moment:
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
                raise TimeoutError(f"no progress after {done} records for {PATIENCE_S} s:\n{self.driver.said()}")
            time.sleep(0.02)
        for producer in producers:
            producer.flush()

    def finish(self) -> None:
        """Let the driver finish, then check every record."""
        if self.findings:
            return
        for partition, end in enumerate(self._ends):
            begins = self.site.offset(self.topic, EARLIEST_LOCAL, partition=partition)[1]
            if begins <= end // 2:
                self.findings.append(f"partition {partition} is not mostly in the tier: {begins} of {end}")
        status = self.driver.finish()
        if status != 0:
            self.findings.append(f"the driver has ended with {status}:\n{self.driver.said()}")
            return
        self._judge()

    def _create(self) -> None:
        settings = {"remote.storage.enable": "true", "segment.ms": str(SEGMENT_MS), "retention.ms": "-1"}
        self.site.create(self.topic, {**settings, **ONLY_THE_ACTIVE_ONE}, partitions=len(CODECS))
        self.site.create(self.target, {}, partitions=len(CODECS))

    def _produce(self, producer: Producer, partition: int, *, limit: int) -> None:
        producer.poll(0)
        for _ in range(100):
            offset = self._ends[partition]
            if offset == self.records or sum(self._ends) >= limit or len(producer) > 500:
                return
            value, time_ms = self.contents.value(partition, offset), self._start_ms + STEP_MS * offset
            producer.produce(self.topic, value, b"%d" % offset, partition, _refused, timestamp=time_ms)
            self._ends[partition] += 1

    def _judge(self) -> None:
        with pa.OSFile(str(self.driver.directory / "rows.arrow")) as file:
            rows = pa.ipc.open_file(file).read_all().to_pylist()
        self.findings += complaints_of_files(self.contents, self.records, rows, start_ms=self._start_ms)
        copies = ((each.partition() or 0, each.offset() or 0, each.value()) for each in _all_of(self.site, self.target))
        found, self.copies = complaints_of_copies(self.contents, self.records, copies)
        self.findings += found

    def __str__(self) -> str:
        kills = f"{self.driver_kills} kills of the driver, {self.within_batches} of them within a batch"
        records = f"{self.records * len(CODECS)} records once in the files, {self.copies} copied again"
        return f"{kills}, {self.broker_kills} kills of the broker, {records}, {len(self.findings)} findings"


def complaints_of_files(
    contents: Contents, records: int, rows: Iterable[Mapping[str, object]], *, start_ms: int
) -> list[str]:
    """The findings for the rows: each record has to be there once, as it was written."""
    found: list[str] = []
    seen: Counter[tuple[int, int]] = Counter()
    for row in rows:
        partition, offset = row["partition"], row["offset"]
        assert isinstance(partition, int)
        assert isinstance(offset, int)
        seen[partition, offset] += 1
        expected = (start_ms + STEP_MS * offset, b"%d" % offset, contents.value(partition, offset))
        if (row["time"], row["key"], row["value"]) != expected:
            found.append(f"{partition}:{offset} is in the files with other contents")
    found += _complaints_of_places("the files", records, seen)
    twice = [place for place, count in seen.items() if count > 1]
    return [*found, f"{len(twice)} records are in the files more than once, {twice[:5]}"] if twice else found


def complaints_of_copies(
    contents: Contents, records: int, copies: Iterable[tuple[int, int, bytes | None]]
) -> tuple[list[str], int]:
    """The findings for the copies, each with its partition and offset in the other topic: each record has to be there
    at least once, in its partition. Also returns the number of duplicates.
    """
    numbers = {
        (partition, contents.value(partition, offset)): offset
        for partition in range(len(CODECS))
        for offset in range(records)
    }
    found: list[str] = []
    seen: Counter[tuple[int, int]] = Counter()
    for partition, at, value in copies:
        offset = numbers.get((partition, value or b""))
        if offset is None:
            found.append(f"the copy has a record that is not of the topic at {partition}:{at}")
        else:
            seen[partition, offset] += 1
    return found + _complaints_of_places("the copy", records, seen), sum(seen.values()) - len(seen)


def _complaints_of_places(where: str, records: int, seen: Counter[tuple[int, int]]) -> list[str]:
    places = {(partition, offset) for partition in range(len(CODECS)) for offset in range(records)}
    lost, alien = sorted(places - seen.keys()), sorted(seen.keys() - places)
    reported = [f"{len(lost)} records are not in {where}, {lost[:5]}"] if lost else []
    return (
        [*reported, f"{len(alien)} places that were never written are in {where}, {alien[:5]}"] if alien else reported
    )


def _refused(error: object, _: Message) -> None:
    assert error is None, error


def _producer(servers: str, codec: str) -> Producer:
    settings = {"bootstrap.servers": servers, "compression.type": codec, "linger.ms": 5, "batch.size": 20_000}
    # Longer than any restart: unacknowledged batches are retried, and must not be duplicated.
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
                assert time.monotonic() < deadline, f"no records arrive from {position} of {end}"
    finally:
        consumer.close()


def torture(site: Site, directory: Path, *, seed: int, records: int, kills: int) -> Run:
    """One complete run."""
    directory.mkdir()
    run = Run(site, directory, seed=seed, records=records, kills=kills)
    try:
        run.stream()
        run.finish()
    finally:
        run.driver.kill()
    return run


def main() -> int:
    """One run; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--broker", choices=["kbroker", "kafka"], default="kbroker")
    parser.add_argument("--kills", type=int, default=3, help="of the driver, and as many of the broker")
    parser.add_argument("--records", type=int, default=0, help="for each of four partitions (default 700 a kill)")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    records = options.records or 700 * max(options.kills, 1)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="spark-kills-") as name:
        site = Site.in_directory(Path(name) / "broker", is_kafka=options.broker == "kafka")
        site.broker.start()
        try:
            run = torture(site, Path(name) / "driver", seed=options.seed, records=records, kills=options.kills)
        finally:
            site.broker.kill()
    for finding in run.findings[:50]:
        print(finding)
    print(f"{run}, {time.monotonic() - began:.0f} s")
    return 1 if run.findings else 0


if __name__ == "__main__":
    sys.exit(main())
