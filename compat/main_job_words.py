"""An exactly-once job on real input: `python -m compat.main_job_words`.

A log file of this machine, repeated to at least 100,000 lines (made by `compat.main_job`), is split into words by a
consume-transform-produce program (`compat.word_splitter`): each transaction has the words of some lines, the new counts
of these words, and the offsets of the lines. The program is killed with `kill -9` at random and started again, and so
is the broker, or each broker of a cluster in turn. At the end all three are as if every line had been processed once:

    words     the records of a read_committed consumer are exactly the words of the file
    counts    the last record of each word in the compacted topic of counts is its number in the file
    offsets   the committed offsets of the group reach the ends of the input
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from compat.brokers import CHECKOUT, end
from compat.cluster import KAFKA, KBROKER
from compat.features import raise_features
from compat.keyed import consumer, read, write
from compat.main_job import LEAST_LINES, input_lines, source_file
from compat.sites import Site, brokers
from compat.waiting import until
from compat.word_splitter import LINES_IN_TRANSACTION

PARTITIONS = 3
LINES, WORDS, COUNTS, GROUP = "lines", "words", "counts", "splitters"
PATIENCE_S = 300.0
COMPACTED = {"cleanup.policy": "compact", "segment.ms": "2000", "min.cleanable.dirty.ratio": "0.01"}


@dataclass(frozen=True)
class Result:
    """The findings."""

    source: str
    lines: int
    words: int
    wrong_words: int
    wrong_counts: int
    transactions: int
    aborts: int
    counts_written: int
    counts_left: int
    program_kills: int
    broker_kills: int
    seconds: float

    @property
    def good(self) -> bool:
        """Exactly once, and really interrupted; the cleaner worked during a long run."""
        is_cleaned = self.lines < LEAST_LINES or self.counts_left < self.counts_written
        return self.wrong_words == self.wrong_counts == 0 < self.aborts and is_cleaned


class Splitter:
    """The program as a process, with what it reports."""

    def __init__(self, servers: str, report: Path, *, seed: int) -> None:
        job = {
            "servers": servers, "lines": LINES, "words": WORDS, "counts": COUNTS, "group": GROUP,
            "partitions": PARTITIONS, "report": str(report), "seed": seed,
        }  # fmt: skip
        self._complaints = tempfile.TemporaryFile()  # noqa: SIM115  it lives as long as the program
        self.process = subprocess.Popen(
            [sys.executable, "-m", "compat.word_splitter", json.dumps(job)],
            stdin=subprocess.DEVNULL, stdout=self._complaints, stderr=subprocess.STDOUT, cwd=CHECKOUT,
        )  # fmt: skip

    def check(self) -> None:
        """Errors: AssertionError if it has ended by itself."""
        if self.process.poll() is not None:
            self._complaints.seek(0)
            said = self._complaints.read()[-3000:].decode(errors="replace")
            raise AssertionError(f"the program ended with {self.process.returncode}: {said}")

    def kill(self) -> None:
        """`kill -9`."""
        end(self.process, signal_number=9)


def committed(reader: Consumer) -> dict[int, int]:
    """The committed offsets of the group; empty while its coordinator does not answer."""
    asked = [TopicPartition(LINES, index) for index in range(PARTITIONS)]
    with suppress(KafkaException):
        return {each.partition: each.offset for each in reader.committed(asked, timeout=10)}
    return {}


def judge(servers: str, parts: Sequence[Sequence[bytes]]) -> tuple[int, int, int]:
    """How many words are wrong, how many counts are wrong, and how many records the topic of counts has."""
    wrong_words = wrong_counts = records = 0
    expected = [Counter(word for line in part for word in line.split()) for part in parts]
    for words, found in zip(expected, read(servers, WORDS, PARTITIONS), strict=True):
        got = Counter(value for _, value in found)
        wrong_words += (words - got).total() + (got - words).total()
    for words, found in zip(expected, read(servers, COUNTS, PARTITIONS), strict=True):
        last = {key: int(value) for key, value in found}
        wrong_counts += sum(last.get(word) != words.get(word) for word in last.keys() | words.keys())
        records += len(found)
    return wrong_words, wrong_counts, records


class Story:
    """Lets the program run to its end, while it and the brokers are killed at random."""

    def __init__(self, site: Site, directory: Path, seed: int) -> None:
        self._site, self._report, self._seed = site, directory / "report.txt", seed
        self._program: Splitter | None = None
        self._starts = 0

    def transactions(self) -> list[dict[str, int]]:
        """The ended transactions, as the program reported them."""
        whole = self._report.read_text().rpartition("\n")[0] if self._report.exists() else ""
        return [json.loads(line) for line in whole.splitlines()]

    def begin(self) -> None:
        """Start the program."""
        self._starts += 1
        self._program = Splitter(self._site.bootstrap_servers, self._report, seed=self._seed + self._starts)

    def _kill_program(self) -> None:
        assert self._program is not None
        self._program.kill()
        self.begin()

    def kill(self, program_kills: int, broker_kills: int, expected: int) -> None:
        """Kill at random moments between two of the expected number of transactions."""
        draws = random.Random(self._seed)
        actions = [self._kill_program] * program_kills + [self._site.kill_one] * broker_kills
        draws.shuffle(actions)
        moments = sorted(draws.randrange(1, max(2, expected * 8 // 10)) for _ in actions)
        for moment, action in zip(moments, actions, strict=True):
            self.until(lambda: len(self.transactions()) >= moment)  # noqa: B023  (called here)
            action()

    def until(self, reached: Callable[[], bool]) -> None:
        """Wait until the condition holds. Errors: AssertionError if the program ends."""

        def checked() -> bool:
            assert self._program is not None
            self._program.check()
            return reached()

        until(checked, patience_s=PATIENCE_S)

    def end(self) -> None:
        """End the program."""
        if self._program is not None:
            self._program.kill()


def run(
    site: Site,
    directory: Path,
    *,
    count: int = LEAST_LINES,
    program_kills: int = 2,
    broker_kills: int = 2,
    transaction_version: int = 0,
    seed: int = 0,
) -> Result:
    """Run the job on brokers that are not started yet."""
    began, source = time.perf_counter(), source_file()
    lines = [line.partition(b"|")[2] for line in input_lines(source, count)]
    parts = [lines[index::PARTITIONS] for index in range(PARTITIONS)]
    site.start()
    servers = site.bootstrap_servers
    raise_features(servers, {"transaction.version": transaction_version} if transaction_version else {})
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
    topics = [NewTopic(LINES, PARTITIONS), NewTopic(WORDS, PARTITIONS), NewTopic(COUNTS, PARTITIONS, config=COMPACTED)]
    for created in admin.create_topics(topics).values():
        created.result(PATIENCE_S)
    write(servers, LINES, parts)
    ends = {index: len(part) for index, part in enumerate(parts)}
    story, reader = Story(site, directory, seed), consumer(servers, GROUP)
    try:
        story.begin()
        story.kill(program_kills, broker_kills, len(lines) // LINES_IN_TRANSACTION)
        story.until(lambda: committed(reader) == ends)
    finally:
        story.end()
        reader.close()
    wrong_words, wrong_counts, records = judge(servers, parts)
    ended = story.transactions()
    return Result(
        source=source.name,
        lines=len(lines),
        words=sum(len(line.split()) for line in lines),
        wrong_words=wrong_words,
        wrong_counts=wrong_counts,
        transactions=len(ended),
        aborts=sum(each["aborted"] for each in ended),
        counts_written=sum(each["counts"] for each in ended if not each["aborted"]),
        counts_left=records,
        program_kills=program_kills,
        broker_kills=broker_kills,
        seconds=time.perf_counter() - began,
    )


def main() -> int:
    """Run once and print the result."""
    parser = argparse.ArgumentParser(prog="python -m compat.main_job_words", description=__doc__.partition("\n")[0])
    parser.add_argument("--broker", choices=[KBROKER, KAFKA], default=KBROKER)
    parser.add_argument("--brokers", type=int, default=1, help="1, or at least 3 for a cluster")
    parser.add_argument("--lines", type=int, default=LEAST_LINES)
    parser.add_argument("--kills", type=int, default=3, help="of the program, and as many of brokers")
    parser.add_argument("--transaction-version", type=int, choices=[0, 1, 2], default=2)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="kbroker-main-job-words-"))
    with brokers(options.broker, options.brokers, directory) as site:
        result = run(
            site, directory, count=options.lines, program_kills=options.kills, broker_kills=options.kills,
            transaction_version=options.transaction_version, seed=options.seed,
        )  # fmt: skip
    shutil.rmtree(directory, ignore_errors=True)
    print(result)
    return 0 if result.good else 1


if __name__ == "__main__":
    sys.exit(main())
