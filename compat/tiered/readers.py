"""The clients of the other tests; each reads a whole stock in one of the usual ways: by assignment, as a member of a
group, on the command line. `stock.check` checks the records as they arrive, so a stock may be large.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import TypeAlias

from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as AioPartition
from confluent_kafka import OFFSET_BEGINNING
from confluent_kafka import TopicPartition as ConfluentPartition
from kafka import KafkaConsumer, TopicPartition

from compat.clients import confluent, members
from compat.clients import kcat as kcat_output
from compat.clients.samples import Sample
from compat.kafka.jvm import java_command, java_environment
from compat.kafka.libraries import executable
from compat.kafka_tools.verifiable import JavaTeam
from compat.oracle.groups import await_coordinator
from compat.tiered.stock import PARTITIONS, Reader, Shown, Stock

Shows: TypeAlias = Generator[Shown, None, None]

EMPTY_POLLS = (
    100  # of a tenth of a second or more each: after this many empty polls in a row no more records will arrive
)
PROGRAM_S = 1_800.0
MOST_AT_ONCE = 5_000


def _polled(total: int, poll: Callable[[], list[Shown]]) -> Shows:
    """The records of a client's polls, until all have arrived or no more arrive."""
    left, empty = total, 0
    while left > 0 and empty < EMPTY_POLLS:
        got = poll()
        empty = 0 if got else empty + 1
        left -= len(got)
        yield from got


def _group(stock: Stock, name: str) -> str:
    """A group with an available coordinator."""
    group = f"{name}-{stock.topic}"
    await_coordinator(stock.servers, group)
    return group


# --- by assignment ----------------------------------------------------------------------------------------------------


def _kafka_python(stock: Stock) -> Shows:
    consumer = KafkaConsumer(bootstrap_servers=stock.servers, group_id=None, enable_auto_commit=False)
    assigned = [TopicPartition(stock.topic, partition) for partition in range(PARTITIONS)]
    consumer.assign(assigned)
    consumer.seek_to_beginning(*assigned)

    def poll() -> list[Shown]:
        return [
            Shown(
                key.partition,
                each.offset,
                Sample(each.key, each.value, each.timestamp, tuple(map(tuple, each.headers))),
            )
            for key, records in consumer.poll(timeout_ms=100, max_records=MOST_AT_ONCE).items()
            for each in records
        ]

    with contextlib.closing(consumer):
        yield from _polled(stock.contents.total, poll)


def _confluent(stock: Stock) -> Shows:
    consumer = confluent.consumer(stock.servers)
    consumer.assign([ConfluentPartition(stock.topic, each, OFFSET_BEGINNING) for each in range(PARTITIONS)])

    def poll() -> list[Shown]:
        messages = consumer.consume(MOST_AT_ONCE, timeout=0.1)
        errors = [message.error() for message in messages if message.error() is not None]
        assert not errors, errors
        return [
            Shown(
                each.partition(),
                each.offset(),
                Sample(each.key(), each.value(), each.timestamp()[1], tuple(map(tuple, each.headers() or ()))),
            )
            for each in messages
        ]

    with contextlib.closing(consumer):
        yield from _polled(stock.contents.total, poll)


def _aiokafka(stock: Stock) -> Shows:
    with asyncio.Runner() as runner:
        consumer = runner.run(_started(stock))

        def poll() -> list[Shown]:
            found = runner.run(consumer.getmany(timeout_ms=100, max_records=MOST_AT_ONCE))
            return [
                Shown(
                    key.partition,
                    each.offset,
                    Sample(each.key, each.value, each.timestamp, tuple(map(tuple, each.headers))),
                )
                for key, records in found.items()
                for each in records
            ]

        try:
            yield from _polled(stock.contents.total, poll)
        finally:
            runner.run(consumer.stop())


async def _started(stock: Stock) -> AIOKafkaConsumer:
    consumer = AIOKafkaConsumer(bootstrap_servers=stock.servers, group_id=None, enable_auto_commit=False)
    await consumer.start()
    assigned = [AioPartition(stock.topic, partition) for partition in range(PARTITIONS)]
    consumer.assign(assigned)
    await consumer.seek_to_beginning(*assigned)
    return consumer


# --- as a member of a group -------------------------------------------------------------------------------------------


def _member(stock: Stock, *, name: str) -> Shows:
    member = members.CLIENTS[name](stock.servers, _group(stock, name), stock.topic)
    with contextlib.closing(member):
        yield from _polled(
            stock.contents.total, lambda: [Shown(each.partition, each.offset, each.value) for each in member.poll()]
        )


def _java_member(stock: Stock) -> Shows:
    team = JavaTeam(stock.servers, _group(stock, "java"), stock.topic, PARTITIONS)
    try:
        member, left = team.join(), stock.contents.total
        while left > 0:
            team.until(lambda: bool(member.got))
            got = team.take()
            left -= len(got)
            yield from (Shown(*each) for each in got)
    finally:
        team.close()


# --- on the command line ----------------------------------------------------------------------------------------------


def _lines(command: Sequence[str], environment: Mapping[str, str] = os.environ) -> Generator[bytes, None, None]:
    """The output of a program, until it ends or the caller stops reading."""
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment
    ) as program:
        assert program.stdout is not None
        timer = threading.Timer(PROGRAM_S, program.kill)
        timer.start()
        try:
            yield from program.stdout
        finally:
            timer.cancel()
            program.kill()


def _kcat(stock: Stock) -> Shows:
    at = ("-C", "-q", "-t", stock.topic, "-o", "beginning", "-e")
    return _kcat_shows(stock, *at, "-f", kcat_output.FORMAT)


def _kcat_member(stock: Stock) -> Shows:
    at = ("-q", "-e", "-X", "auto.offset.reset=earliest", "-f", kcat_output.FORMAT)
    return _kcat_shows(stock, *at, "-G", _group(stock, "kcat"), stock.topic)


def _kcat_shows(stock: Stock, *arguments: str) -> Shows:
    """It prints lengths before fields with arbitrary bytes; values without line ends take one line each."""
    for line in _lines([executable("kcat", hint="install kcat 1.7.1"), "-b", stock.servers, *arguments]):
        partition, offset, timestamp, key_size, value_size, rest = line.split(b" ", 5)
        key_end = max(int(key_size), 0)
        value_end = key_end + int(value_size)
        named = rest[value_end:-1].decode()
        headers = tuple((name, text.encode()) for name, _, text in (each.partition("=") for each in named.split(",")))
        sample = Sample(
            None if int(key_size) < 0 else rest[:key_end],
            rest[key_end:value_end],
            int(timestamp),
            headers if named else (),
        )
        yield Shown(int(partition), int(offset), sample)


_CONSOLE = re.compile(rb"CreateTime:-?\d+\tPartition:(\d+)\tOffset:(\d+)\t")


def _console_consumer(stock: Stock) -> Shows:
    printed = ("timestamp", "partition", "offset", "headers", "key", "value")
    arguments = [f"--formatter-property=print.{name}=true" for name in printed]
    arguments += ["--bootstrap-server", stock.servers, "--topic", stock.topic, "--group", _group(stock, "console")]
    arguments += ["--from-beginning", "--max-messages", str(stock.contents.total), "--timeout-ms", "30000"]
    main_class = "org.apache.kafka.tools.consumer.ConsoleConsumer"
    for line in _lines(java_command(main_class, *arguments), java_environment()):
        place = _CONSOLE.match(line)
        assert place is not None, line
        yield Shown(int(place[1]), int(place[2]), _without_place(line))


def _without_place(line: bytes) -> bytes:
    timestamp, _, _, rest = line.split(b"\t", 3)
    return timestamp + b"\t" + rest


def _console_line(sample: Sample) -> bytes:
    headers = ",".join(f"{name}:{(value or b'').decode()}" for name, value in sample.headers) or "NO_HEADERS"
    key = b"null" if sample.key is None else sample.key
    return b"CreateTime:%d\t%s\t%s\t%s\n" % (sample.timestamp_ms, headers.encode(), key, sample.value)


def _kafka_python_command(stock: Stock) -> Shows:
    """It prints only values, which contain their place; it never ends by itself, and flushes nothing without -u."""
    arguments = ["-b", stock.servers, "-t", stock.topic, "-C", "auto_offset_reset=earliest"]
    with contextlib.closing(_lines([sys.executable, "-u", "-m", "kafka.consumer", *arguments])) as lines:
        for line in islice(lines, stock.contents.total):
            partition, offset, _ = line.split(b":", 2)
            yield Shown(int(partition), int(offset), line[:-1])


def _whole(sample: Sample) -> object:
    return sample


def _value(sample: Sample) -> object:
    return sample.value


def _text(sample: Sample) -> object:
    assert sample.value is not None
    return sample.value.decode()


READERS = (
    Reader("kafka-python", _kafka_python, _whole),
    Reader("confluent-kafka", _confluent, _whole),
    Reader("aiokafka", _aiokafka, _whole),
    Reader("kcat", _kcat, _whole),
    *(Reader(f"{name} in a group", partial(_member, name=name), _value) for name in members.CLIENTS),
    Reader("kcat -G", _kcat_member, _whole),
    Reader("console consumer in a group", _console_consumer, _console_line),
    Reader("VerifiableConsumer in a group", _java_member, _text),
    Reader("kafka-python's command", _kafka_python_command, _value),
)
