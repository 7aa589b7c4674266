"""The program of `compat.main_job_words`: splits lines into words and counts them, exactly once.

    python -m compat.word_splitter JOB        a JSON object, see `Job`

Each transaction has the words of some lines, the new counts of these words, and the offsets of the lines. Partition i
of the counts has the words of partition i of the lines. It is the state: a program that starts reads it first, after
InitProducerId has ended the transaction of the program before. Now and then it aborts a transaction and repeats it.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

TIMEOUT_S = 240.0
CALL_S = 10.0
LINES_IN_TRANSACTION = 100


@dataclass(frozen=True)
class Job:
    """The parameters.

    Shape  lines, words and counts are topics; each ended transaction is reported as a line of JSON in the file `report`
    """

    servers: str
    lines: str
    words: str
    counts: str
    group: str
    partitions: int
    report: str
    seed: int
    lines_in_transaction: int = LINES_IN_TRANSACTION
    abort_chance: float = 0.1


def settings(job: Job) -> dict[str, object]:
    """What producer and consumers share."""
    return {
        "bootstrap.servers": job.servers,
        "reconnect.backoff.ms": 50,
        "reconnect.backoff.max.ms": 500,
        "retry.backoff.ms": 50,
        # librdkafka 2.16 waits for ever for a broker that it "decommissioned" while the only broker was down.
        "metadata.recovery.strategy": "none",
        "log_level": 2,
    }


def committed_consumer(job: Job) -> Consumer:
    """A read_committed consumer that assigns, and never commits by itself."""
    more = {"group.id": job.group, "isolation.level": "read_committed", "enable.auto.commit": False}
    more |= {"auto.offset.reset": "error", "fetch.wait.max.ms": 100, "enable.partition.eof": True}
    return Consumer({**settings(job), **more})


def restored(job: Job) -> list[Counter[str]]:
    """The last committed count of each word, for each partition."""
    found = [Counter[str]() for _ in range(job.partitions)]
    reader = committed_consumer(job)
    reader.assign([TopicPartition(job.counts, index, OFFSET_BEGINNING) for index in range(job.partitions)])
    at_end: set[int] = set()
    deadline = time.monotonic() + TIMEOUT_S
    while len(at_end) < job.partitions:
        for message in reader.consume(1_000, timeout=0.2):
            index, error = message.partition(), message.error()
            assert index is not None, "a message that was read has a place"
            if error is None:
                found[index][text(message.key())] = int(text(message.value()))
            elif error.code() == KafkaError._PARTITION_EOF:
                at_end.add(index)
        if time.monotonic() > deadline:
            raise TimeoutError(f"{job.counts} is only readable up to the ends of {at_end}")
    reader.close()
    return found


def text(value: bytes | str | None) -> str:
    """A key or a value."""
    assert isinstance(value, bytes)
    return value.decode()


class Program:
    """Producer, consumer and counts."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._draws = random.Random(job.seed)
        self._report = Path(job.report).open("a", buffering=1)  # noqa: SIM115  it lives as long as the program
        more = {
            "transactional.id": job.group,
            "transaction.timeout.ms": int(TIMEOUT_S * 1000),
            "compression.type": "lz4",
        }
        self._producer = Producer({**settings(job), **more})
        self._again(lambda: self._producer.init_transactions(CALL_S))
        self._counts = restored(job)
        self._consumer = committed_consumer(job)
        asked = [TopicPartition(job.lines, index) for index in range(job.partitions)]
        found = self._consumer.committed(asked, timeout=TIMEOUT_S)
        self._offsets = {each.partition: max(each.offset, 0) for each in found}
        self._seek()

    def _seek(self) -> None:
        assigned = [TopicPartition(self._job.lines, index, at) for index, at in self._offsets.items()]
        self._consumer.assign(assigned)

    def _again(self, work: Callable[[], None]) -> None:
        """Repeat a call that did not end in time."""
        while True:
            try:
                return work()
            except KafkaException as error:
                if not error.args[0].retriable():
                    raise

    def step(self) -> None:
        """Process the next lines in one transaction."""
        found = self._consumer.consume(self._job.lines_in_transaction, timeout=0.5)
        messages = [message for message in found if message.error() is None]
        if not messages:
            return
        new = [Counter(counts) for counts in self._counts]
        changed: list[set[str]] = [set() for _ in new]
        offsets = dict(self._offsets)
        self._producer.begin_transaction()
        try:
            for message in messages:
                self._split(message, new, changed, offsets)
            for index, words in enumerate(changed):
                for word in words:
                    self._send(self._job.counts, str(new[index][word]), word, index)
            ends = [TopicPartition(self._job.lines, index, at) for index, at in offsets.items()]
            group = self._consumer.consumer_group_metadata()
            self._again(lambda: self._producer.send_offsets_to_transaction(ends, group, CALL_S))
            aborts = self._draws.random() < self._job.abort_chance
            if not aborts:
                self._again(lambda: self._producer.commit_transaction(CALL_S))
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
            aborts = True
        if aborts:
            self._again(lambda: self._producer.abort_transaction(CALL_S))
            self._seek()
        else:
            self._counts, self._offsets = new, offsets
        self._report.write(json.dumps({"aborted": aborts, "counts": sum(map(len, changed))}) + "\n")

    def _split(
        self, message: Message, new: list[Counter[str]], changed: list[set[str]], offsets: dict[int, int]
    ) -> None:
        index, offset = message.partition(), message.offset()
        assert index is not None, "a message that was read has a place"
        assert offset == offsets[index], "lines are read in order"
        offsets[index] = offset + 1
        for word in text(message.value()).split():
            self._send(self._job.words, word, None, index)
            new[index][word] += 1
            changed[index].add(word)

    def _send(self, topic: str, value: str, key: str | None, partition: int) -> None:
        """Send a record. If the queue is full, it waits for room."""
        while True:
            try:
                return self._producer.produce(topic, value, key, partition)
            except BufferError:
                self._producer.poll(0.1)


def main() -> None:
    """Process lines until the process is killed."""
    program = Program(Job(**json.loads(sys.argv[1])))
    while True:
        program.step()


if __name__ == "__main__":
    main()
