"""Every client reads a topic of 100 MB that is mostly in the tier, and each record is compared; `make soak` does the
same with 1 GB (compat/torture/tier_clients.py).
"""

from __future__ import annotations

import dataclasses
import random
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest
from confluent_kafka import TopicPartition

from compat.clients import confluent
from compat.clients.samples import Sample
from compat.conftest import KafkaTool
from compat.kafka.libraries import executable
from compat.tiered.readers import READERS
from compat.tiered.site import YESTERDAY_MS, Sites
from compat.tiered.stock import PARTITIONS, Contents, Reader, Shown, Stock, check

MEGABYTES = 100


@pytest.fixture(scope="module")
def stock(sites: Sites, new_topic_name: Callable[[str], str]) -> Iterator[Stock]:
    """The topic; the broker under test has only the active segments locally, and the tier has all others."""
    made = Stock(sites.all[-1], new_topic_name("stock"), Contents(MEGABYTES))
    made.fill()
    yield made
    made.site.delete_topic(made.topic)


@pytest.mark.parametrize("reader", READERS, ids=[reader.name for reader in READERS])
def test_a_client_reads_every_record(stock: Stock, reader: Reader) -> None:
    with closing(reader.read(stock)) as shown:
        check(stock.contents, shown, reader.expected)


def test_consumer_performance_counts_every_record(stock: Stock, kafka_tool: KafkaTool) -> None:
    """It compares nothing; the bytes that it counts are those of keys and values."""
    total = stock.contents.total
    where = ("--bootstrap-server", stock.servers, "--topic", stock.topic)
    done = kafka_tool("ConsumerPerformance", *where, "--num-records", str(total), "--hide-header")
    counted = [field.strip() for field in done.stdout.strip().splitlines()[-1].split(",")]
    samples = (
        stock.contents.sample(partition, offset)
        for partition in range(PARTITIONS)
        for offset in range(stock.contents.count)
    )
    size = sum(len(sample.key or b"") + len(sample.value or b"") for sample in samples)
    assert (float(counted[2]), int(counted[4])) == (pytest.approx(size / (1 << 20), abs=0.001), total)


def _all(contents: Contents) -> list[Shown]:
    return [
        Shown(partition, offset, contents.sample(partition, offset))
        for partition in range(PARTITIONS)
        for offset in range(contents.count)
    ]


def _other_value(sample: Sample) -> Sample:
    return dataclasses.replace(sample, value=b"other")


def test_missing_repeated_swapped_and_changed_records_are_reported() -> None:
    """A test of the check itself."""
    contents = Contents(1)
    whole = _all(contents)
    check(contents, whole, lambda sample: sample)
    partition, offset, what = whole[70]
    assert isinstance(what, Sample)
    headers = next(each for each in whole if isinstance(each.what, Sample) and len(each.what.headers) == 3)
    assert isinstance(headers.what, Sample)
    turned = dataclasses.replace(headers.what, headers=headers.what.headers[::-1])
    spoilt = [
        ("0: 71 follows 69", [*whole[:70], *whole[71:]]),
        ("0: 70 follows 70", [*whole[:71], whole[70], *whole[71:]]),
        ("0: 71 follows 69", [*whole[:70], whole[71], whole[70], *whole[72:]]),
        ("read of each", whole[:-1]),
        ("after the end", [*whole, Shown(PARTITIONS - 1, contents.count, what)]),
        ("no partition", [Shown(PARTITIONS, 0, what)]),
        ("0, offset 70: value", [*whole[:70], Shown(partition, offset, _other_value(what)), *whole[71:]]),
        ("headers: ", [Shown(each.partition, each.offset, turned) if each is headers else each for each in whole]),
    ]
    for reported, shown in spoilt:
        with pytest.raises(AssertionError, match=reported):
            check(contents, shown, lambda sample: sample)


def test_kcat_finds_a_time_in_the_tier(stock: Stock) -> None:
    for number in (0, 1, 777):
        asked = f"{stock.topic}:3:{YESTERDAY_MS + number}"
        assert f"[3] offset {number}\n".encode() in _kcat(stock, "-Q", "-t", asked)


def _kcat(stock: Stock, *arguments: str) -> bytes:
    program = executable("kcat", hint="install kcat 1.7.1")
    done = subprocess.run([program, "-b", stock.servers, *arguments], capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_consumer_seeks_back_and_forth_over_both_tiers(stock: Stock) -> None:
    draws = random.Random(1)
    consumer = confluent.consumer(stock.servers, **{"fetch.wait.max.ms": 50})
    for _ in range(40):
        partition, offset = draws.randrange(PARTITIONS), draws.randrange(stock.contents.count)
        consumer.assign([TopicPartition(stock.topic, partition, offset)])
        message = consumer.poll(20)
        assert message is not None, f"nothing from {offset} of partition {partition}"
        assert message.error() is None, message.error()
        wanted = dataclasses.replace(stock.contents.sample(partition, offset), headers=())
        found = Sample(message.key(), message.value(), message.timestamp()[1])
        assert (message.offset(), found) == (offset, wanted)
    consumer.close()


A_TIME = str(YESTERDAY_MS + 500)
SPECIAL = ("earliest", "latest", "max-timestamp", "earliest-local", "latest-tiered", "earliest-pending-upload", A_TIME)


@pytest.mark.parametrize("time", SPECIAL, ids=(*SPECIAL[:-1], "a time"))
def test_kafka_get_offsets_knows_every_special_offset(stock: Stock, kafka_tool: KafkaTool, time: str) -> None:
    """The values follow from the partition's offsets: start 0, local start and end of the tier."""
    done = kafka_tool("GetOffsetShell", "--bootstrap-server", stock.servers, "--topic", stock.topic, "--time", time)
    local = [stock.site.local_segments(stock.topic, partition)[0] for partition in range(PARTITIONS)]
    expected = {
        "earliest": [0] * len(local),
        "latest": [stock.contents.count] * len(local),
        "max-timestamp": [stock.contents.count - 1] * len(local),
        "earliest-local": local,
        "latest-tiered": [base_offset - 1 for base_offset in local],
        "earliest-pending-upload": local,
        A_TIME: [500] * len(local),
    }[time]
    lines = [f"{stock.topic}:{partition}:{offset}" for partition, offset in enumerate(expected)]
    assert sorted(done.stdout.splitlines()) == lines
