"""An end-to-end job on real input: `python -m compat.main_job`.

kcat writes a log file of this machine with zstd and an idempotent producer to six partitions. Each line is prefixed
with its number, so that every record is unique, and the file is repeated to at least 100,000 lines. Half-way the broker
is killed with `kill -9` and restarted on the same directory and port. kafka-python reads everything: complete, in order
in every partition, and without duplicates.
"""

from __future__ import annotations

import argparse
import itertools
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from kafka import KafkaAdminClient, KafkaConsumer, TopicPartition

from compat.brokers import KbrokerProcess
from compat.kafka import KafkaNode
from compat.kafka.libraries import executable
from compat.oracle.raw import connected

TOPIC, PARTITIONS, LEAST_LINES = "main-job", 6, 100_000
# The package manager's log first; then any large text.
CANDIDATES = (
    "/var/log/dpkg.log",
    "/var/log/apt/term.log",
    "/var/log/apt/history.log",
    "/var/log/dnf.log",
    "/var/log/syslog",
)
Broker = KbrokerProcess | KafkaNode


class Differences(NamedTuple):
    """How many records differ between the input and the output."""

    missing: int
    duplicates: int
    foreign: int
    out_of_order: int


@dataclass(frozen=True)
class Result:
    """What was sent and read, and when the kill happened."""

    source: str
    lines: int
    kills: int
    written_before_kill: int
    differences: Differences
    seconds: float

    @property
    def good(self) -> bool:
        """Complete, in order, without duplicates, and really interrupted."""
        return not any(self.differences) and self.kills > 0 and 0 < self.written_before_kill < self.lines


def source_file() -> Path:
    """A real log of this machine, or the largest text of the standard library's sources."""
    for candidate in map(Path, CANDIDATES):
        if candidate.is_file() and candidate.stat().st_size > 10_000:
            return candidate
    return max(Path(subprocess.__file__).parent.glob("*.py"), key=lambda file: file.stat().st_size)


def input_lines(source: Path, count: int) -> list[bytes]:
    """At least `count` numbered lines; `key|value`, where the key chooses the partition."""
    real = [line for line in source.read_bytes().replace(b"|", b"/").splitlines() if line.strip()]
    whole = -(-count // len(real)) * len(real)
    return [
        b"%d|%08d %s" % (number % 97, number, line)
        for number, line in zip(range(whole), itertools.cycle(real), strict=False)
    ]


@contextmanager
def kcat_writes(
    lines: Sequence[bytes], servers: str, *, pause_at: dict[int, threading.Event], records_in_batch: int
) -> Iterator[None]:
    """Let kcat write the lines while the block runs, and wait for its end; pauses as `feed`."""
    with tempfile.TemporaryFile() as complaints:
        producer = subprocess.Popen(
            [
                executable("kcat", hint="install kcat 1.7.1"),
                *("-b", servers, "-P", "-t", TOPIC, "-E", "-K", "|", "-z", "zstd"),
                *("-X", "enable.idempotence=true", "-X", f"batch.num.messages={records_in_batch}"),
                *("-X", "linger.ms=5", "-X", "reconnect.backoff.ms=50", "-X", "reconnect.backoff.max.ms=500"),
            ],
            stdin=subprocess.PIPE,
            stderr=complaints,
        )
        feeder = threading.Thread(target=feed, args=(lines, producer, pause_at))
        feeder.start()
        try:
            yield
        except BaseException:
            producer.kill()
            for gate in pause_at.values():
                gate.set()
            raise
        feeder.join()
        producer.wait(120)
        complaints.seek(0)
        said = complaints.read()[-2000:].decode(errors="replace")
        assert producer.returncode == 0, f"kcat ended with {producer.returncode}: {said}"


def feed(pipe: Iterable[bytes], kcat: subprocess.Popen[bytes], pause_at: dict[int, threading.Event]) -> None:
    """Pass the lines to kcat; at the given lines wait until the event is set."""
    assert kcat.stdin is not None
    with suppress(BrokenPipeError), kcat.stdin as stdin:  # a kcat that ends early says why
        for number, line in enumerate(pipe):
            if number in pause_at:
                stdin.flush()
                pause_at[number].wait()
            stdin.write(line + b"\n")


def written(servers: str) -> int:
    """The number of records in the topic, by the fastest query."""
    asked = [{"PartitionIndex": index, "Timestamp": -1} for index in range(PARTITIONS)]
    with connected(servers) as connection:
        answer = connection.call("ListOffsets", 1, {"ReplicaId": -1, "Topics": [{"Name": TOPIC, "Partitions": asked}]})
    return sum(max(part["Offset"], 0) for part in answer["Topics"][0]["Partitions"])


def wait_until_written(servers: str, count: int, *, timeout_s: float = 60) -> int:
    """Wait until more than `count` records are in the topic; returns their number."""
    deadline = time.monotonic() + timeout_s
    while (now := written(servers)) <= count:
        assert time.monotonic() < deadline, f"only {now} of more than {count} records came within {timeout_s} s"
        time.sleep(0.002)
    return now


def read_all(servers: str) -> dict[int, list[tuple[bytes, bytes]]]:
    """Every record of every partition, in the order of the log, by an assigned kafka-python consumer."""
    with closing(KafkaConsumer(bootstrap_servers=servers, group_id=None, enable_auto_commit=False)) as consumer:
        partitions = [TopicPartition(TOPIC, index) for index in range(PARTITIONS)]
        ends = consumer.end_offsets(partitions)
        consumer.assign(partitions)
        consumer.seek_to_beginning(*partitions)
        found: dict[int, list[tuple[bytes, bytes]]] = {index: [] for index in range(PARTITIONS)}
        while any(len(found[each.partition]) < end for each, end in ends.items()):
            batch = consumer.poll(timeout_ms=10_000)
            assert batch, f"no more records arrive: { ({key: len(part) for key, part in found.items()}) } of {ends}"
            for each, records in batch.items():
                found[each.partition] += [(record.key, record.value) for record in records]
    return found


def run(broker: Broker, *, count: int = LEAST_LINES, kills: int = 1) -> Result:
    """Run the job on a broker that is not started yet."""
    began = time.perf_counter()
    source = source_file()
    lines = input_lines(source, count)
    broker.start()
    with closing(KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)) as admin:
        admin.create_topics({TOPIC: {"num_partitions": PARTITIONS, "replication_factor": 1}}, wait_for_metadata=True)
    before = _produce_and_kill(broker, lines, kills)
    found = read_all(broker.bootstrap_servers)
    broker.stop()
    return judge(source, lines, found, kills=kills, written=before, seconds=time.perf_counter() - began)


def _produce_and_kill(broker: Broker, lines: list[bytes], kills: int) -> int:
    """Let kcat write all lines and kill the broker in between. Returns the number of records before the last kill."""
    before = 0
    gates = {len(lines) * (number + 1) // (kills + 1): threading.Event() for number in range(kills)}
    with kcat_writes(lines, broker.bootstrap_servers, pause_at=gates, records_in_batch=500):
        for place, gate in gates.items():
            settled = wait_until_written(broker.bootstrap_servers, place - 2_000)
            gate.set()
            # At full load: some of the following records are acknowledged, some on the wire, some in kcat's queue.
            before = wait_until_written(broker.bootstrap_servers, settled + 500)
            broker.kill()
            broker.start()
    return before


def compare(lines: Iterable[bytes], found: Iterable[Sequence[tuple[bytes, bytes]]]) -> Differences:
    """Compare the input with the keys and values of each partition, in the order of its log."""
    sent, got, disorder = Counter(lines), Counter[bytes](), 0
    for part in found:
        got.update(key + b"|" + value for key, value in part)
        disorder += sum(later[:8] <= earlier[:8] for (_, earlier), (_, later) in itertools.pairwise(part))
    return Differences(
        missing=sum((sent - got).values()),
        duplicates=sum(times - 1 for times in got.values()),
        foreign=sum(times for line, times in got.items() if line not in sent),
        out_of_order=disorder,
    )


def judge(
    source: Path,
    lines: list[bytes],
    found: dict[int, list[tuple[bytes, bytes]]],
    *,
    kills: int,
    written: int,
    seconds: float,
) -> Result:
    """Compare the output with the input."""
    homes: dict[bytes, set[int]] = {}
    for index, part in found.items():
        for key, _ in part:
            homes.setdefault(key, set()).add(index)
    assert all(len(home) == 1 for home in homes.values()), "a key in two partitions"
    assert sum(bool(part) for part in found.values()) == PARTITIONS
    return Result(
        source=source.name,
        lines=len(lines),
        kills=kills,
        written_before_kill=written,
        differences=compare(lines, found.values()),
        seconds=seconds,
    )


def main() -> int:
    """Run once and print the result."""
    parser = argparse.ArgumentParser(prog="python -m compat.main_job", description=__doc__)
    parser.add_argument("--broker", choices=["kbroker", "kafka"], default="kbroker")
    parser.add_argument("--lines", type=int, default=LEAST_LINES)
    parser.add_argument("--kills", type=int, default=1)
    options = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="kbroker-main-job-"))
    broker: Broker = KafkaNode(directory) if options.broker == "kafka" else KbrokerProcess(directory)
    try:
        result = run(broker, count=options.lines, kills=options.kills)
    finally:
        if broker.process is not None:
            broker.kill()
        shutil.rmtree(directory, ignore_errors=True)
    print(result)
    return 0 if result.good else 1


if __name__ == "__main__":
    sys.exit(main())
