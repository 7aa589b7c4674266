"""An end-to-end job of groups on real input: `python -m compat.main_job_groups`.

A group of three kafka-python members, each in its own process, reads a log file of this machine, numbered and repeated
to at least 100,000 lines over six partitions (made by `compat.main_job`), and commits what it has processed. During the
run one member leaves and one joins, another is killed with `kill -9` and so is the broker, which is restarted on the
same directory and port. The judge uses what each member reported before and after all of its actions:

    every line is processed          all offsets of all partitions, with the bytes that were written
    committed offsets never go back  the group's committed offsets, queried continuously, only grow
    nothing is processed twice       except for records whose commit no member had confirmed, because a member died or
                                     lost its partitions
"""

from __future__ import annotations

import argparse
import itertools
import json
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kafka import KafkaAdminClient, KafkaProducer

from compat.brokers import KbrokerProcess, end
from compat.group_member import digest
from compat.kafka import KafkaNode
from compat.main_job import LEAST_LINES, PARTITIONS, input_lines, source_file
from compat.oracle.groups import await_coordinator, fetching, offsets_of
from compat.oracle.raw import Reply, ask
from compat.oracle.schema import decode_response, encode_request

TOPIC, GROUP = "main-job-groups", "readers"
SESSION_MS = 6_000
LATEST_S = 90.0
Broker = KbrokerProcess | KafkaNode
Record = tuple[bytes, bytes]


@dataclass
class Processed:
    """A run of offsets that one member processed."""

    member: str
    partition: int
    first: int
    last: int
    digest: str
    known_committed: int = (
        0  # of its offsets, those below this one were committed already, and a member had reported it
    )


@dataclass(frozen=True)
class Result:
    """The findings."""

    source: str
    lines: int
    missing: int
    wrong: int
    twice: int
    unexcused: int
    steps_back: int
    looks: int
    commits: int
    members: int
    seconds: float

    @property
    def good(self) -> bool:
        """Everything processed, committed offsets only grew, and every duplicate has a reason."""
        return self.missing == self.wrong == self.unexcused == self.steps_back == 0 < self.commits


class MemberProcess:
    """A member, and its reports."""

    def __init__(self, name: str, servers: str, ledger: Ledger) -> None:
        job = {"servers": servers, "group": GROUP, "topic": TOPIC, "name": name, "session_ms": SESSION_MS}
        self.name, self.owns = name, list[int]()
        self.events = 0
        self._ledger = ledger
        self._complaints = tempfile.TemporaryFile()  # noqa: SIM115  it lives as long as the member
        self.process = subprocess.Popen(
            [sys.executable, "-m", "compat.group_member", json.dumps(job)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._complaints,
            cwd=Path(__file__).parents[1],
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._ledger.changed:
                self._note(json.loads(line))
                self._ledger.changed.notify_all()

    def _note(self, event: dict[str, Any]) -> None:
        self.events += 1
        if "assigned" in event:
            self.owns = event["assigned"]
        elif "processed" in event:
            self._ledger.add(Processed(self.name, event["processed"], event["first"], event["last"], event["digest"]))
        elif "committed" in event:
            self._ledger.note_commit({int(partition): offset for partition, offset in event["committed"].items()})

    def leave(self) -> None:
        """Make it commit, leave the group and end."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        status = self.process.wait(LATEST_S)
        self._reader.join()
        self._complaints.seek(0)
        assert status == 0, f"{self.name} ended with {status}: {self._complaints.read()[-3000:].decode()}"

    def kill(self) -> None:
        """`kill -9`; other members process its uncommitted records again."""
        end(self.process, signal_number=9)
        self._reader.join()


@dataclass
class Ledger:
    """The reports of all members, in the order of arrival."""

    changed: threading.Condition = field(default_factory=threading.Condition)
    processed: list[Processed] = field(default_factory=list)
    covered: dict[int, set[int]] = field(default_factory=dict)
    committed: dict[int, int] = field(default_factory=dict)
    commits: int = 0

    def add(self, run: Processed) -> None:
        """Record what a member processed."""
        run.known_committed = self.committed.get(run.partition, 0)
        self.processed.append(run)
        self.covered.setdefault(run.partition, set()).update(range(run.first, run.last + 1))

    def note_commit(self, offsets: dict[int, int]) -> None:
        """Record the offsets whose commit a member has confirmed."""
        self.commits += 1
        for partition, offset in offsets.items():
            self.committed[partition] = max(offset, self.committed.get(partition, 0))

    def count(self) -> int:
        """How many lines were processed at least once."""
        return sum(map(len, self.covered.values()))

    def until(self, reached: Callable[[], bool], what: str) -> None:
        """Wait until the condition holds."""
        deadline = time.monotonic() + LATEST_S
        with self.changed:
            while not reached():
                assert time.monotonic() < deadline, f"{what}: not within {LATEST_S} s; {self.count()} lines processed"
                self.changed.wait(0.1)


class Watch:
    """Queries the group's committed offsets continuously and counts steps back. Errors of a broker that is down are
    ignored.
    """

    def __init__(self, servers: str) -> None:
        self.latest: dict[int, int] = {}
        self.steps_back: list[tuple[int, int, int]] = []
        self.looks = 0
        self._servers, self._done = servers, threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._done.wait(0.02):
            self.look()

    def look(self) -> None:
        """Query once."""
        try:
            got = ask(self._servers, encode_request("OffsetFetch", 7, fetching(GROUP, None)))
        except OSError:
            return
        answer = decode_response("OffsetFetch", 7, got.payload) if isinstance(got, Reply) else {"ErrorCode": -1}
        if answer["ErrorCode"]:
            return
        self.looks += 1
        found = {partition: offset for partition, (offset, _) in offsets_of(answer).items()}
        for partition, before in self.latest.items():
            if found.get(partition, -1) < before:
                self.steps_back.append((partition, before, found.get(partition, -1)))
        self.latest = found

    def stop(self) -> None:
        """Query a last time."""
        self._done.set()
        self._thread.join()
        self.look()


def write(servers: str, lines: Sequence[bytes], written: dict[int, list[Record]]) -> None:
    """Write lines by their keys, and append them to the expected contents of each partition."""
    with closing(
        KafkaProducer(bootstrap_servers=servers, linger_ms=20, compression_type="zstd", acks="all")
    ) as producer:
        sent = []
        for line in lines:
            key, _, value = line.partition(b"|")
            sent.append((producer.send(TOPIC, value, key), (key, value)))
    shown = [(future.get(timeout=30), record) for future, record in sent]
    for place, record in sorted(shown, key=lambda each: (each[0].partition, each[0].offset)):
        assert place.offset == len(written[place.partition])
        written[place.partition].append(record)


def run(broker: Broker, *, count: int = LEAST_LINES) -> Result:
    """Run the job on a broker that is not started yet."""
    began = time.perf_counter()
    source = source_file()
    lines = input_lines(source, count)
    broker.start()
    servers = broker.bootstrap_servers
    with closing(KafkaAdminClient(bootstrap_servers=servers)) as admin:
        admin.create_topics({TOPIC: {"num_partitions": PARTITIONS, "replication_factor": 1}}, wait_for_metadata=True)
    await_coordinator(servers, GROUP)
    written: dict[int, list[Record]] = {partition: [] for partition in range(PARTITIONS)}
    ledger, watch, members = Ledger(), Watch(servers), list[MemberProcess]()
    try:
        _story(broker, lines, written, ledger, watch, members=members)
    finally:
        for member in members:
            end(member.process, signal_number=9)
        watch.stop()
    ends = {partition: len(records) for partition, records in written.items()}
    assert watch.latest == ends, f"committed at the end: {watch.latest}, written: {ends}"
    broker.stop()
    return judge(source, lines, written, ledger, watch, members=len(members), seconds=time.perf_counter() - began)


def _story(
    broker: Broker,
    lines: Sequence[bytes],
    written: dict[int, list[Record]],
    ledger: Ledger,
    watch: Watch,
    *,
    members: list[MemberProcess],
) -> None:
    """Three members read; one leaves, one joins, one is killed, the broker is killed, one more joins."""
    half = len(lines) // 2
    names = (f"member-{number}" for number in itertools.count())

    def join() -> MemberProcess:
        members.append(MemberProcess(next(names), broker.bootstrap_servers, ledger))
        return members[-1]

    write(broker.bootstrap_servers, lines[:half], written)
    first, second, third = join(), join(), join()
    ledger.until(lambda: ledger.count() > half // 5, "a tenth is processed")
    second.leave()
    fourth = join()
    ledger.until(lambda: all(len(each.owns) == 2 for each in (first, third, fourth)), "three share")
    ledger.until(lambda: ledger.count() == half, "the first half is processed")
    write(broker.bootstrap_servers, lines[half:], written)
    ledger.until(lambda: ledger.count() > half + half // 20, "the second half is begun")
    third.kill()
    ledger.until(lambda: ledger.count() > half + half // 5, "the others go on")
    broker.kill()
    broker.start()
    fifth = join()
    ledger.until(lambda: ledger.count() == len(lines), "every line is processed")
    # Other members have to process again what a killed member did not commit, so no member leaves before that.
    ends = {partition: len(records) for partition, records in written.items()}
    ledger.until(lambda: watch.latest == ends, "every line is committed")
    for member in (first, fourth, fifth):
        member.leave()


def judge(
    source: Path,
    lines: Sequence[bytes],
    written: dict[int, list[Record]],
    ledger: Ledger,
    watch: Watch,
    *,
    members: int,
    seconds: float,
) -> Result:
    """Compare the processed records with the written ones, and find duplicates without a reason.

    A record may be processed twice until a member has reported its commit: the first member may die or lose its
    partitions.
    """
    missing = sum(len(records) - len(ledger.covered.get(partition, ())) for partition, records in written.items())
    wrong = sum(run.digest != digest(written[run.partition][run.first : run.last + 1]) for run in ledger.processed)
    twice = sum(run.last + 1 - run.first for run in ledger.processed) - ledger.count()
    unexcused = sum(max(0, min(run.last + 1, run.known_committed) - run.first) for run in ledger.processed)
    return Result(
        source=source.name,
        lines=len(lines),
        missing=missing,
        wrong=wrong,
        twice=twice,
        unexcused=unexcused,
        steps_back=len(watch.steps_back),
        looks=watch.looks,
        commits=ledger.commits,
        members=members,
        seconds=seconds,
    )


def main() -> int:
    """Run once and print the result."""
    parser = argparse.ArgumentParser(prog="python -m compat.main_job_groups", description=__doc__)
    parser.add_argument("--broker", choices=["kbroker", "kafka"], default="kbroker")
    parser.add_argument("--lines", type=int, default=LEAST_LINES)
    options = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="kbroker-main-job-"))
    broker: Broker = KafkaNode(directory) if options.broker == "kafka" else KbrokerProcess(directory)
    try:
        result = run(broker, count=options.lines)
    finally:
        if broker.process is not None:
            broker.kill()
        shutil.rmtree(directory, ignore_errors=True)
    print(result)
    return 0 if result.good else 1


if __name__ == "__main__":
    sys.exit(main())
