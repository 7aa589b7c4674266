"""Programs with exactly-once, a repartition topic and a changelog, killed at random with their brokers: Kafka Streams
with exactly_once_v2, and quixstreams.

Nothing is cached, so that each word gives one record with its next count: exactly once means that the records of each
word are 1, 2, 3, ..., n in this order.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_BEGINNING, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from compat.features import raise_features
from compat.keyed import PATIENCE_S, consumer, read, write
from compat.main_job import input_lines, source_file
from compat.sites import brokers, kind_under_test
from compat.streams.programs import Program, compiled, java_program, quix_program
from compat.waiting import until

PARTITIONS, PARTS, EACH = 3, 5, 200
NAME = "word-count"


@pytest.fixture
def lines() -> list[bytes]:
    """Real lines, without the numbers that make them unique."""
    found = [line.partition(b" ")[2] for line in input_lines(source_file(), PARTS * EACH)]
    return found[: PARTS * EACH]


class Progress:
    """How many counts are committed, by the sum of the positions of a reader."""

    def __init__(self, servers: str) -> None:
        self._reader = consumer(servers)
        # Not by a subscription: that would start at the end, after what the program counted until then.
        self._reader.assign([TopicPartition("counts", index, OFFSET_BEGINNING) for index in range(PARTITIONS)])
        self.count = 0

    def reaches(self, count: int) -> bool:
        """Read on; whether there are so many counts."""
        self.count += sum(message.error() is None for message in self._reader.consume(200, timeout=0.05))
        return self.count >= count


@pytest.fixture
def program() -> Iterator[list[Program]]:
    """Programs that are killed at the end."""
    made: list[Program] = []
    yield made
    for each in made:
        each.kill()
        print(each.log_tail())  # pytest shows it if the test fails


@pytest.mark.parametrize(
    ("library", "count", "transaction_version"), [("java", 1, 2), ("java", 3, 0), ("quixstreams", 1, 2)]
)
def test_a_killed_word_count_counts_each_word_once(
    tmp_path: Path, lines: list[bytes], *, program: list[Program], library: str, count: int, transaction_version: int
) -> None:
    if os.environ.get("KBROKER_BOOTSTRAP_SERVERS"):
        pytest.skip("an external broker is not ours to kill")
    draws = random.Random(count)
    with brokers(kind_under_test(), count, tmp_path / "site") as site:
        site.start()
        servers = site.bootstrap_servers
        raise_features(servers, {"transaction.version": transaction_version} if transaction_version else {})
        topics = [NewTopic(name, PARTITIONS, count) for name in ("lines", "counts")]
        admin = AdminClient({"bootstrap.servers": servers})
        for created in admin.create_topics(topics).values():
            created.result(PATIENCE_S)
        log, state = tmp_path / "program.txt", str(tmp_path / "state")
        if library == "java":
            classes = compiled(tmp_path / "classes")
            running = java_program(log, "WordCount", servers, NAME, state, str(count), classes=[classes])
        else:
            running = quix_program(log, servers, NAME, state)
        program.append(running)
        running.start()
        progress, written = Progress(servers), 0

        def reaches(wanted: int) -> bool:
            if library == "quixstreams":  # Kafka Streams joins again by itself
                running.revive()
            return progress.reaches(wanted)

        for number in range(PARTS):
            chosen = lines[number * EACH : (number + 1) * EACH]
            write(servers, "lines", [chosen[index::PARTITIONS] for index in range(PARTITIONS)])
            now = sum(len(line.split()) for line in chosen)
            until(lambda: reaches(written + draws.randrange(now)), each_s=0, patience_s=PATIENCE_S)  # noqa: B023
            written += now
            if number in (1, 3):
                running.kill()
                running.start()
            elif number == 2:
                site.kill_one()
        until(lambda: reaches(written), each_s=0, patience_s=PATIENCE_S)
        running.check()
        running.kill()
        expected = Counter(word for line in lines for word in line.split())
        counted: dict[bytes, list[int]] = {}
        for part in read(servers, "counts", PARTITIONS):
            for word, value in part:
                counted.setdefault(word, []).append(int(value))
        assert counted == {word: list(range(1, times + 1)) for word, times in expected.items()}
        if library != "java":
            return  # its changelog has a format of its own
        changelog = [each for part in read(servers, f"{NAME}-words-changelog", PARTITIONS) for each in part]
        assert {word: int.from_bytes(value, "big") for word, value in changelog} == expected
