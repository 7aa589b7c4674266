"""Every client reads a topic that lies mostly in the tier, and each record is compared. Those of them that are members
of groups read it as such; the soak reads more (compat/torture/tier.py).
"""

from __future__ import annotations

import base64
import dataclasses
import random
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import cast

import pytest
from confluent_kafka import TopicPartition

from compat.clients import aio, confluent, kafka_python
from compat.clients import kcat as kcat_output
from compat.clients.samples import CODECS, Client, Sample
from compat.conftest import KafkaTool, missing
from compat.kafka.libraries import Unavailable, executable
from compat.kafka_tools.verifiable import JavaTeam
from compat.oracle.groups import await_coordinator
from compat.tiered.site import (
    EARLIEST,
    EARLIEST_LOCAL,
    ONLY_THE_ACTIVE_ONE,
    YESTERDAY_MS,
    Site,
    Sites,
)

CLIENTS = [cast(Client, module) for module in (kafka_python, confluent, aio)]
COUNT, VALUE_BYTES, SEGMENT_BYTES = 3_500, 1_000, 1 << 20
HEADERS = (("one", b"1"), ("two", b"zwei"))


@dataclass(frozen=True)
class Stock:
    """A topic with a partition for each codec, and what is in it."""

    site: Site
    topic: str
    records: dict[int, list[Sample]]

    @property
    def servers(self) -> str:
        """Of the broker that has it."""
        return self.site.address


@pytest.fixture(scope="module")
def stock(sites: Sites, new_topic_name: Callable[[str], str]) -> Iterator[Stock]:
    """17 MB in five partitions, of which the broker under test has at most the last two segments of each itself."""
    site, topic = sites.all[-1], new_topic_name("stock")
    settings = {"remote.storage.enable": "true", "segment.bytes": str(SEGMENT_BYTES), **ONLY_THE_ACTIVE_ONE}
    site.create(topic, settings, partitions=len(CODECS))
    draws = random.Random(405)
    written = {}
    for partition, codec in enumerate(CODECS):
        # Text, for the tools that print lines; base64 of noise, so that no codec makes it vanish.
        values = (base64.b64encode(draws.randbytes(VALUE_BYTES * 3 // 4)) for _ in range(COUNT))
        written[partition] = [
            Sample(b"%d" % (number % 7), value, YESTERDAY_MS + number, HEADERS) for number, value in enumerate(values)
        ]
        confluent.produce(
            site.address, topic, partition, written[partition], codec, idempotent=True, **{"batch.size": 100_000}
        )
    for partition in range(len(CODECS)):
        alone = Sites([site])
        alone.expect(lambda site, partition=partition: len(site.local_segments(topic, partition)), 1)
        assert site.offset(topic, EARLIEST, partition=partition)[1] == 0
        assert site.offset(topic, EARLIEST_LOCAL, partition=partition)[1] > COUNT // 2, "mostly in the tier"
    yield Stock(site, topic, written)
    site.delete_topic(topic)


@pytest.mark.parametrize("reader", CLIENTS, ids=[client.name for client in CLIENTS])
def test_a_client_reads_every_record(stock: Stock, reader: Client) -> None:
    found = reader.consume(stock.servers, stock.topic, dict.fromkeys(stock.records, COUNT))
    for partition, wanted in stock.records.items():
        assert found[partition] == wanted, f"partition {partition}"


def test_kcat_reads_every_record(stock: Stock) -> None:
    printed = _kcat(stock, "-C", "-q", "-t", stock.topic, "-o", "beginning", "-e", "-f", kcat_output.FORMAT)
    found = kcat_output.parse(printed)
    for partition, wanted in stock.records.items():
        assert found[partition] == wanted, f"partition {partition}"


def test_kcat_finds_a_time_in_the_tier(stock: Stock) -> None:
    for number in (0, 1, 777):
        asked = f"{stock.topic}:3:{YESTERDAY_MS + number}"
        assert f"[3] offset {number}\n".encode() in _kcat(stock, "-Q", "-t", asked)


def _kcat(stock: Stock, *arguments: str) -> bytes:
    try:
        program = executable("kcat", hint="install kcat 1.7.1")
    except Unavailable as error:
        missing(str(error))
    done = subprocess.run([program, "-b", stock.servers, *arguments], capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_console_consumer_reads_every_record_in_a_group(stock: Stock, kafka_tool: KafkaTool) -> None:
    group = f"console-{stock.topic}"
    await_coordinator(stock.servers, group)
    printed = [
        argument
        for name in ("timestamp", "partition", "offset", "headers", "key", "value")
        for argument in ("--formatter-property", f"print.{name}=true")
    ]
    where = ("--bootstrap-server", stock.servers, "--topic", stock.topic, "--group", group, "--from-beginning")
    total = COUNT * len(stock.records)
    done = kafka_tool("ConsoleConsumer", *where, "--max-messages", str(total), "--timeout-ms", "30000", *printed)
    expected = {
        f"CreateTime:{record.timestamp_ms}\tPartition:{partition}\tOffset:{offset}\tone:1,two:zwei\t"
        f"{_text(record.key)}\t{_text(record.value)}"
        for partition, records in stock.records.items()
        for offset, record in enumerate(records)
    }
    found = done.stdout.splitlines()
    assert len(found) == total
    assert set(found) == expected


def test_members_of_a_java_group_share_every_record(stock: Stock, kafka_tool: KafkaTool) -> None:
    assert callable(kafka_tool)  # there is Java
    group = f"java-{stock.topic}"
    await_coordinator(stock.servers, group)
    team = JavaTeam(stock.servers, group, stock.topic, len(stock.records))
    try:
        team.join()
        team.until(lambda: len(team.got()) >= COUNT * len(stock.records))
        expected = {
            (partition, offset, _text(record.value))
            for partition, records in stock.records.items()
            for offset, record in enumerate(records)
        }
        assert Counter(team.got()) == Counter(expected)
    finally:
        team.close()


def _text(data: bytes | None) -> str:
    assert data is not None
    return data.decode()


def test_a_consumer_seeks_back_and_forth_over_both_tiers(stock: Stock) -> None:
    draws = random.Random(1)
    consumer = confluent.consumer(stock.servers, **{"fetch.wait.max.ms": 50})
    for _ in range(40):
        partition, offset = draws.randrange(len(CODECS)), draws.randrange(COUNT)
        consumer.assign([TopicPartition(stock.topic, partition, offset)])
        message = consumer.poll(20)
        assert message is not None, f"nothing from {offset} of partition {partition}"
        assert message.error() is None, message.error()
        wanted = dataclasses.replace(stock.records[partition][offset], headers=())
        found = Sample(message.key(), message.value(), message.timestamp()[1])
        assert (message.offset(), found) == (offset, wanted)
    consumer.close()


A_TIME = str(YESTERDAY_MS + 500)
SPECIAL = ("earliest", "latest", "max-timestamp", "earliest-local", "latest-tiered", "earliest-pending-upload", A_TIME)


@pytest.mark.parametrize("time", SPECIAL, ids=(*SPECIAL[:-1], "a time"))
def test_kafka_get_offsets_knows_every_special_offset(stock: Stock, kafka_tool: KafkaTool, time: str) -> None:
    """Each is what the partition's three offsets make it: start 0, local start and end of what is in the tier."""
    done = kafka_tool("GetOffsetShell", "--bootstrap-server", stock.servers, "--topic", stock.topic, "--time", time)
    local = [stock.site.local_segments(stock.topic, partition)[0] for partition in stock.records]
    expected = {
        "earliest": [0] * len(local),
        "latest": [COUNT] * len(local),
        "max-timestamp": [COUNT - 1] * len(local),
        "earliest-local": local,
        "latest-tiered": [base_offset - 1 for base_offset in local],
        "earliest-pending-upload": local,
        A_TIME: [500] * len(local),
    }[time]
    lines = [f"{stock.topic}:{partition}:{offset}" for partition, offset in enumerate(expected)]
    assert sorted(done.stdout.splitlines()) == lines
