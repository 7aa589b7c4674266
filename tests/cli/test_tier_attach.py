"""`kbroker tier attach`: topics out of a store whose cluster and data directory are gone."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import NamedTuple

import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import KafkaAdminClient
from kafka.errors import PolicyViolationError

from kbroker.cli import main
from kbroker.spark import client
from kbroker.spark.options import SourceOptions
from kbroker.spark.pieces import SegmentPiece
from kbroker.spark.planning import batch_tasks
from kbroker.spark.reading import read_piece
from tests.cli.conftest import Done, Run
from tests.cli.tiered import Served, Site, TieredBroker

TOPIC, PARTITIONS = "orders", 2
SMALL_SEGMENTS = {"remote.storage.enable": "true", "internal.segment.bytes": "3000", "retention.ms": "-1"}
START_MS, STEP_MS = int(time.time() * 1000) + 2_700_000, 1_000  # later than the markers of transactions


class Seen(NamedTuple):
    """A record as a client sees it."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...]
    leader_epoch: int | None


Records = dict[int, list[Seen]]


def read(address: str, topic: str, *, isolation_level: str) -> Records:
    """All records of each partition, from its first offset to its end."""
    found: Records = {}
    with closing(
        KafkaConsumer(
            bootstrap_servers=address, auto_offset_reset="earliest", enable_auto_commit=False,
            isolation_level=isolation_level,
        )
    ) as consumer:  # fmt: skip
        places = [TopicPartition(topic, index) for index in range(PARTITIONS)]
        consumer.assign(places)
        ends = consumer.end_offsets(places)
        consumer.seek_to_beginning()
        while any(consumer.position(place) < ends[place] for place in places):
            for place, records in consumer.poll(timeout_ms=500).items():
                found.setdefault(place.partition, []).extend(
                    Seen(one.offset, one.timestamp, one.key, one.value, tuple(one.headers), one.leader_epoch)
                    for one in records
                )
    return found


def read_both(address: str, topic: str) -> tuple[Records, Records]:
    return tuple(read(address, topic, isolation_level=f"read_{each}") for each in ("committed", "uncommitted"))  # type: ignore[return-value]


def send(producer: KafkaProducer, first: int, count: int, *, topic: str = TOPIC) -> None:
    sent = []
    for number in range(first, first + count):
        value = b"%d " % number * 30
        sent.append(producer.send(
            topic, value, key=b"k%d" % number, partition=number % PARTITIONS,
            headers=[("n", b"%d" % number)], timestamp_ms=START_MS + number * STEP_MS,
        ))  # fmt: skip
        if number % 20 == 19:
            producer.flush()
    for one in sent:
        one.get(timeout=20)


def fill(served: Served, first: int) -> None:
    """Plain, compressed, committed and aborted records."""
    for codec, at in ((None, first), ("gzip", first + 40)):
        with closing(KafkaProducer(bootstrap_servers=served.address, compression_type=codec)) as producer:
            send(producer, at, 40)
    with closing(KafkaProducer(bootstrap_servers=served.address, transactional_id=f"t{first}")) as producer:
        producer.init_transactions()
        for at, commits in ((first + 80, True), (first + 120, False), (first + 160, True), (first + 200, False)):
            producer.begin_transaction()
            send(producer, at, 40)
            producer.flush()
            (producer.commit_transaction if commits else producer.abort_transaction)()


class Source(NamedTuple):
    """A store without its cluster, and what clients of the cluster read."""

    tier: Path
    committed: Records
    uncommitted: Records


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Source:
    """The records of a cluster that ran twice, so that there are two leader epochs; the data directory is gone."""
    site = Site(tmp_path_factory.mktemp("source") / "data")
    for first in (0, 240):
        with TieredBroker(site) as served:
            with closing(KafkaAdminClient(bootstrap_servers=served.address)) as admin:
                if not first:
                    configs = {"num_partitions": PARTITIONS, "replication_factor": 1, "configs": SMALL_SEGMENTS}
                    admin.create_topics({TOPIC: configs})
            fill(served, first)
            assert main(["tier", "flush", "-b", served.address, "-t", TOPIC]) == 0
            committed, uncommitted = read_both(served.address, TOPIC)
    shutil.rmtree(site.data)
    assert len(committed[0]) == 160
    assert len({one.leader_epoch for one in committed[0]}) == 2
    assert len(uncommitted[0]) - len(committed[0]) == 80
    return Source(site.tier, committed, uncommitted)


@pytest.fixture(scope="module")
def store(source: Source, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the store."""
    copied = tmp_path_factory.mktemp("target") / "store"
    shutil.copytree(source.tier, copied)
    return copied


def read_by_spark(address: str, store: Path, topic: str) -> set[tuple[int, int, bytes]]:
    """What the tasks of `format("kbroker")` read: partition, offset and value of each record."""
    given = {"subscribe": topic, "kafka.bootstrap.servers": address, "rsm.config.dir": str(store)}
    options = SourceOptions.parse(given).for_batch()
    pieces = [piece for task in batch_tasks(options) for piece in task]
    assert any(isinstance(piece, SegmentPiece) for piece in pieces)
    rows = [row for piece in pieces for batch in read_piece(options, piece) for row in batch.to_pylist()]
    while client._OPEN:
        client._OPEN.popitem()[1].close()
    return {(row["partition"], row["offset"], row["value"]) for row in rows}


def as_read(records: Records) -> set[tuple[int, int, bytes | None]]:
    return {(index, one.offset, one.value) for index, held in records.items() for one in held}


def contents(store: Path) -> dict[str, bytes]:
    """The objects in the store; a broker may be deleting some."""
    found: dict[str, bytes] = {}
    for directory, _, names in os.walk(store):  # unlike Path.rglob it passes over a directory that has just gone
        for path in (Path(directory, name) for name in names):
            with suppress(FileNotFoundError):
                found[str(path.relative_to(store))] = path.read_bytes()
    return found


class Target(NamedTuple):
    """A running broker of another cluster that has the store."""

    served: Served
    store: Path

    def attach(self, run: Run, *words: object, topic: str = "") -> Done:
        override = ("--override", f"rsm.config.dir={self.store}")
        name = ("--as", topic) if topic else ()
        return run("tier", "attach", "-b", self.served.address, *override, *name, *words)


@pytest.fixture(scope="module")
def target(store: Path) -> Iterator[Target]:
    with TieredBroker(Site(store.parent / "data"), "--override", f"rsm.config.dir={store}") as served:
        yield Target(served, store)


def chosen(store: Path) -> tuple[str, ...]:
    """The flags that choose the topic of the source."""
    (directory,) = store.glob(f"{TOPIC}-*")
    return "--topic-id", directory.name.removeprefix(f"{TOPIC}-")


def test_an_attached_topic_has_the_records_of_the_old_one(source: Source, target: Target, run: Run) -> None:
    before = contents(target.store)
    done = target.attach(run, "-t", TOPIC)
    assert done.code == 0, (done.out, done.err)
    assert read_both(target.served.address, TOPIC) == (source.committed, source.uncommitted)
    assert read_by_spark(target.served.address, target.store, TOPIC) == as_read(source.uncommitted)
    with closing(KafkaConsumer(bootstrap_servers=target.served.address)) as consumer:
        for index, records in source.uncommitted.items():
            for one in records[::17]:
                found = consumer.offsets_for_times({TopicPartition(TOPIC, index): one.timestamp})
                assert found[TopicPartition(TOPIC, index)].offset == one.offset
    scrubbed = run(
        "tier", "scrub", "-b", target.served.address, "--override", f"rsm.config.dir={target.store}", "--deep"
    )
    assert scrubbed.code == 0, scrubbed
    assert contents(target.store) == before


def test_a_dry_run_makes_nothing(target: Target, run: Run) -> None:
    done = target.attach(run, *chosen(target.store), "--dry-run", "--deep", "--format", "json", topic="dry")
    assert done.code == 0
    assert [json.loads(line)["end_offset"] for line in done.lines] == [248, 248]
    assert run("topic", "--describe", "-b", target.served.address, "--topic", "dry").code == 1


def test_a_read_only_topic_refuses_producers_and_survives_a_restart(source: Source, tmp_path: Path, run: Run) -> None:
    store, before = source.tier, contents(source.tier)
    site, override = Site(tmp_path / "data"), ("--override", f"rsm.config.dir={store}")
    with TieredBroker(site, *override) as served:
        assert run("tier", "attach", "-b", served.address, *override, "-t", TOPIC, "--as", "old").code == 0
        with closing(KafkaProducer(bootstrap_servers=served.address)) as producer, pytest.raises(PolicyViolationError):
            producer.send("old", b"new", partition=0).get(timeout=20)
    with TieredBroker(site, *override) as served:
        assert read(served.address, "old", isolation_level="read_committed") == source.committed
        with closing(KafkaAdminClient(bootstrap_servers=served.address)) as admin:
            admin.delete_topics(["old"])
        served.until("its metadata are deleted", lambda: not is_registered(site))
    assert contents(store) == before


def is_registered(site: Site) -> bool:
    return "old" in (site.data / "remote-partitions").read_text()


def test_a_writable_topic_goes_on_in_segments_of_its_own(source: Source, target: Target, run: Run) -> None:
    before, address = contents(target.store), target.served.address
    small = ("--topic-config", "internal.segment.bytes=3000")
    assert target.attach(run, *chosen(target.store), "--writable", *small, topic="more").code == 0
    with closing(KafkaProducer(bootstrap_servers=address)) as producer:
        send(producer, 480, 40, topic="more")
    assert run("tier", "flush", "-b", address, "-t", "more").code == 0
    found = read(address, "more", isolation_level="read_committed")
    for index in range(PARTITIONS):
        old, new = source.committed[index], found[index][len(source.committed[index]) :]
        assert found[index][: len(old)] == old
        assert len(new) == 20
        assert new[0].offset > old[-1].offset
        assert {one.leader_epoch for one in new} == {max(one.leader_epoch or 0 for one in old) + 1}
    after = contents(target.store)
    assert {name: after[name] for name in before} == before
    # Both ids together are one history.
    (second,) = {name.split("/")[0] for name in after} - {name.split("/")[0] for name in before}
    both = (*chosen(target.store), "--topic-id", second.removeprefix("more-"))
    found_again = target.attach(run, *both, "--dry-run", "--format", "json", topic="both")
    assert [(json.loads(line)["start_offset"], json.loads(line)["end_offset"]) for line in found_again.lines] == [
        (0, records[-1].offset + 1) for records in found.values()
    ]
    refused = target.attach(run, *both, topic="both")
    assert refused.code == 1
    assert "is the topic more of this cluster" in refused.err
    # A deletion that waits for the store goes on as soon as the store is back.
    away = target.store.rename(target.store.with_name("away"))
    assert run("topic", "--delete", "-b", address, "--topic", "more").code == 0
    refused = Target(target.served, away).attach(run, *both, topic="both")
    assert refused.code == 1
    assert "was the topic more of this cluster, which may still delete its objects" in refused.err
    away.rename(target.store)
    target.served.until("its own segments are deleted", lambda: contents(target.store) == before)


def test_two_topics_may_have_the_same_segments(source: Source, target: Target, run: Run) -> None:
    assert target.attach(run, *chosen(target.store), topic="one").code == 0
    assert target.attach(run, *chosen(target.store), "--writable", topic="two").code == 0
    assert run("topic", "--delete", "-b", target.served.address, "--topic", "one").code == 0
    assert read(target.served.address, "two", isolation_level="read_committed") == source.committed


@pytest.mark.parametrize("how", ["time", "offset"])
def test_an_attached_topic_may_end_inside_a_segment(source: Source, target: Target, run: Run, how: str) -> None:
    """At a time when a transaction was open, which is then aborted."""
    number = 190
    until_ms = START_MS + number * STEP_MS
    offsets = {
        index: next(one.offset for one in records if one.timestamp >= until_ms)
        for index, records in source.uncommitted.items()
    }
    words = ("--until", until_ms) if how == "time" else (
        [word for index, offset in offsets.items() for word in ("--until-offset", f"{index}:{offset}")]
    )  # fmt: skip
    before = contents(target.store)
    done = target.attach(run, *chosen(target.store), *words, topic=how)
    assert done.code == 0, done
    assert "will be aborted" in done.out
    committed, uncommitted = read_both(target.served.address, how)
    assert read_by_spark(target.served.address, target.store, how) == as_read(uncommitted)
    for index in range(PARTITIONS):
        records = uncommitted[index]
        # Whole batches: at least those of the records that were flushed before.
        before_time = [one for one in source.uncommitted[index] if one.timestamp < until_ms]
        assert records == before_time[: len(records)]
        assert records[-1].timestamp >= START_MS + (180 - PARTITIONS) * STEP_MS
        assert committed[index] == [one for one in source.committed[index] if one.timestamp < START_MS + 160 * STEP_MS]
    assert contents(target.store) == before
