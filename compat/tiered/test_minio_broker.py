"""A broker with MinIO behind a failing proxy: rows M1 to M7 and M12 of the faults, as clients see them.

Through all of it records are taken and the local log is read, nothing is lost and no offset is skipped, and afterwards
the backlog drains: checker K9, told from outside.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from compat.brokers import KbrokerProcess
from compat.minio import BUCKET, MinioServer
from compat.minio_proxy import Action, MinioProxy, answer, cut_short, damage, late, lose_reply, shift_range, silence
from compat.tiered.minio_fixtures import HASTY, admin
from compat.tiered.records import records, whole_batches
from compat.tiered.site import (
    EARLIEST,
    EARLIEST_LOCAL,
    HURRIED,
    LATEST,
    LATEST_TIERED,
    ONLY_THE_ACTIVE_ONE,
    TIERED,
    WAIT_S,
    Records,
    Site,
    Sites,
)
from kbroker.tiered.layout import parse_object_name

STORAGE_ERROR = 56
FILES_OF_A_SEGMENT = 6  # the log, four indexes, the manifest
PADDING = 3_000
Written = tuple[int, bytes | None]


@dataclass
class Tier:
    """A broker, and the proxy and the store behind it."""

    site: Site
    proxy: MinioProxy
    server: MinioServer
    settings: list[str]

    def expect(self, name: str, timestamp: int, offset: int) -> None:
        """Wait until ListOffsets answers so."""
        Sites([self.site]).expect(lambda site: site.offset(name, timestamp)[1], offset)

    def filled(self, name: str, hours: list[int]) -> list[Written]:
        """A topic whose batches of an hour are a segment, all in the tier and not here, but for the last hour's."""
        self.site.create(name, {**TIERED, **ONLY_THE_ACTIVE_ONE})
        written = self.write(name, hours)
        active = len(hours) - hours.count(hours[-1])
        self.expect(name, LATEST_TIERED, active - 1)
        self.expect(name, EARLIEST_LOCAL, active)
        return written

    def write(self, name: str, hours: list[int]) -> list[Written]:
        """Batches, each of one record, that are taken one by one."""
        batches = Records(hours, padding=PADDING).batches()
        self.site.produce(name, batches)
        return [(each.timestamp_ms, each.value) for batch in batches for each in records(batch)]

    def check(self, name: str, written: list[Written]) -> None:
        """K9, from outside: the offsets are in order, all records are read, and the store holds what is known alone."""
        start, local, tiered, end = (
            self.site.offset(name, asked)[1] for asked in (EARLIEST, EARLIEST_LOCAL, LATEST_TIERED, LATEST)
        )
        assert 0 == start <= tiered < end == len(written)
        assert start <= local <= tiered + 1
        assert [(each.timestamp_ms, each.value) for each in self.site.consume(name, 0)] == written
        topic_id = self.site.topic_id(name)
        live = len(self.site.live(name))
        Sites([self.site]).expect(lambda _: self._stored(topic_id), (live, live * FILES_OF_A_SEGMENT))

    def _stored(self, topic_id: bytes) -> tuple[int, int]:
        """How many segments, and how many objects, of a topic there are in the store, by the store's own list."""
        found = [
            parsed
            for stored in admin(self.server).list_objects(BUCKET, prefix="tier/", recursive=True)
            if (parsed := parse_object_name((stored.object_name or "").removeprefix("tier/"))) is not None
            and parsed.topic_id.bytes == topic_id
        ]
        return len({each.segment_id for each in found}), len(found)

    def remove(self, name: str, start_offset: int, kind: str) -> None:
        """Delete an object of a topic by hand."""
        client = admin(self.server)
        for stored in client.list_objects(BUCKET, prefix=f"tier/{name}-", recursive=True):
            full_name = stored.object_name or ""
            parsed = parse_object_name(full_name.removeprefix("tier/"))
            if parsed is not None and (parsed.start_offset, parsed.kind) == (start_offset, kind):
                client.remove_object(BUCKET, full_name)

    def scrub(self, name: str) -> subprocess.CompletedProcess[str]:
        """`kbroker tier scrub --deep` of a topic."""
        command = [sys.executable, "-m", "kbroker", "tier", "scrub", "-b", self.site.address, "-t", name, "--deep"]
        command += [argument for setting in self.settings for argument in ("--override", setting)]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    def requests(self, method: str, name: str) -> int:
        """How many requests with this method named the topic."""
        return sum(
            request.startswith(f"{method} ") and f"/{name}-" in request and ".log" in request
            for request in self.proxy.requests
        )

    def await_requests(self, method: str, name: str, count: int) -> None:
        """Wait until so many came: the broker has met the fault."""
        deadline = time.monotonic() + WAIT_S
        while self.requests(method, name) < count:
            assert time.monotonic() < deadline, f"{self.requests(method, name)} requests and not {count}"
            time.sleep(0.02)


@pytest.fixture(scope="module")
def running(minio_server: MinioServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tier]:
    """A broker that copies often and gives up soon; its keys are in a file."""
    directory = tmp_path_factory.mktemp("minio-broker")
    keys = directory / "keys"
    keys.write_text(f"access.key={minio_server.access_key}\nsecret.key={minio_server.secret_key}\n")
    with MinioProxy(minio_server.port) as proxy:
        plugin = {
            **HASTY,
            "call.timeout.ms": "1500",
            "endpoint": proxy.endpoint,
            "bucket": BUCKET,
            "prefix": "tier",
            "retries": "1",
            "credentials.file": str(keys),
        }
        settings = {
            **HURRIED,
            "remote.log.storage.manager.class.name": "minio",
            "kbroker.remote.chunk.bytes": "65536",
            **{f"rsm.config.{key}": value for key, value in plugin.items()},
        }
        overrides = [f"{key}={value}" for key, value in settings.items()]
        broker = KbrokerProcess(directory, overrides=overrides)
        broker.start()
        try:
            yield Tier(Site(broker, directory), proxy, minio_server, overrides)
        finally:
            broker.kill()
        assert minio_server.secret_key not in broker._log.read_text()


@pytest.fixture
def tier(running: Tier, kafka_libraries: Path) -> Iterator[Tier]:
    """The same, healed before and after."""
    assert kafka_libraries.is_dir()  # the metadata topic is read by Kafka's schemas
    running.proxy.heal()
    yield running
    running.proxy.heal()


@pytest.fixture
def name(new_topic_name: Callable[[str], str]) -> str:
    """A name for the topic of one test."""
    return new_topic_name("minio")


@contextmanager
def refused(tier: Tier) -> Iterator[None]:
    """Nobody listens."""
    tier.proxy.down()
    try:
        yield
    finally:
        tier.proxy.up()


@contextmanager
def stopped(tier: Tier) -> Iterator[None]:
    """The store's process stands still."""
    tier.server.suspend()
    try:
        yield
    finally:
        tier.server.resume()


@contextmanager
def killed(tier: Tier) -> Iterator[None]:
    """The store's process is gone, and comes back with its disk."""
    tier.server.kill()
    try:
        yield
    finally:
        tier.server.start()


def met(action: Action) -> Callable[[Tier], AbstractContextManager[None]]:
    """Every request meets this fault."""

    @contextmanager
    def outage(tier: Tier) -> Iterator[None]:
        tier.proxy.rule(action)
        try:
            yield
        finally:
            tier.proxy.heal()

    return outage


OUTAGES = {
    "m1-refused": refused,
    "m1-stopped": stopped,
    "m1-killed": killed,
    "m2-silent": met(silence),
    "m3-503": met(answer(503, "SlowDown")),
    "m3-403": met(answer(403, "AccessDenied")),
    "m3-no-bucket": met(answer(404, "NoSuchBucket")),
    "m7-replies-lost": met(lose_reply),
    "m12-full": met(answer(507, "XMinioStorageFull")),
}


@pytest.mark.parametrize("outage", OUTAGES.values(), ids=OUTAGES)
def test_m1_m2_m3_m7_m12_while_the_store_is_out_the_log_goes_on_and_afterwards_the_backlog_drains(
    tier: Tier, name: str, outage: Callable[[Tier], AbstractContextManager[None]]
) -> None:
    written = tier.filled(name, [0, 2, 4])
    asked = tier.requests("PUT", name)
    with outage(tier):
        local = tier.site.offset(name, EARLIEST_LOCAL)[1]
        written += tier.write(name, [6, 8, 8, 10])
        assert [each.offset for each in tier.site.consume(name, local)] == [2, 3, 4, 5, 6]
        # What is in the store alone is an error that clients repeat, and neither an end of the log nor a gap.
        answers = {tier.site.fetch(name, 0) for _ in range(3)}
        assert answers <= {(STORAGE_ERROR, b""), (0, b"")}
        if outage is not refused:
            tier.await_requests("PUT", name, asked + 1)
        # Nothing that was not copied is gone from here.
        assert tier.site.offset(name, EARLIEST_LOCAL)[1] <= tier.site.offset(name, LATEST_TIERED)[1] + 1
        assert [each.offset for each in tier.site.consume(name, local)] == [2, 3, 4, 5, 6]
    tier.expect(name, LATEST_TIERED, 5)
    tier.expect(name, EARLIEST_LOCAL, 6)
    tier.check(name, written)


@pytest.mark.parametrize(
    "action",
    [answer(500, "InternalError"), answer(503, "SlowDown"), cut_short, damage, shift_range],
    ids=["m3-500", "m3-503", "m5-cut-short", "m5-wrong-bytes", "m5-wrong-range"],
)
@pytest.mark.parametrize("times", [1, None], ids=["once", "for-ever"])
def test_m3_m5_what_is_wrong_in_an_answer_of_the_store_never_reaches_a_client(
    tier: Tier, name: str, action: Action, times: int | None
) -> None:
    written = tier.filled(name, [0, 0, 0, 2])
    tier.proxy.rule(action, method="GET", path=".log", times=times)
    deadline = time.monotonic() + WAIT_S
    offset = errors = 0
    while offset < 3 and errors < 3:
        error, data = tier.site.fetch(name, offset)
        assert error in {0, STORAGE_ERROR}
        errors += error != 0
        for batch in whole_batches(data):
            found = [each for each in records(batch) if each.offset < 3]
            assert [(each.timestamp_ms, each.value) for each in found] == written[offset : offset + len(found)]
            offset += len(found)
        assert time.monotonic() < deadline
    # What is wrong once is asked for again, and nobody notices; what is wrong for ever is an error.
    assert (offset, errors) == (3, 0) if times else errors == 3
    tier.proxy.heal()
    tier.check(name, written)


def test_m3_an_object_that_somebody_deleted_is_an_error_and_no_gap(tier: Tier, name: str) -> None:
    """The segments around it are read; it alone answers with an error, for ever, and the log does not jump over it."""
    tier.filled(name, [0, 2, 4, 6])
    assert (done := tier.scrub(name)).returncode == 0, done.stdout + done.stderr
    tier.remove(name, 1, "log")
    for _ in range(3):
        assert tier.site.fetch(name, 1) == (STORAGE_ERROR, b"")
    error, data = tier.site.fetch(name, 0, limit=1)
    assert error == 0
    assert len(list(whole_batches(data))) == 1
    assert [each.offset for each in tier.site.consume(name, 2)] == [2, 3]
    done = tier.scrub(name)
    assert done.returncode == 3, done.stdout + done.stderr
    assert tier.server.secret_key not in done.stdout + done.stderr


def test_m4_a_read_that_takes_longer_than_a_client_waits_is_read_once_and_served_next(tier: Tier, name: str) -> None:
    """Slower than remote.fetch.max.wait.ms (500): the first answers are empty, and the store is asked only once."""
    tier.filled(name, [0, 2])
    before = tier.requests("GET", name)
    tier.proxy.rule(late(0.6), method="GET")
    deadline = time.monotonic() + WAIT_S
    empty = 0
    while True:
        error, data = tier.site.fetch(name, 0)
        assert error == 0
        if data:
            break
        empty += 1
        assert time.monotonic() < deadline
    assert empty >= 1
    assert len(list(whole_batches(data))) == 1
    assert tier.requests("GET", name) == before + 1


def test_m7_a_topic_that_is_deleted_while_the_store_is_out_leaves_nothing_there(tier: Tier, name: str) -> None:
    tier.filled(name, [0, 2, 4])
    topic_id = tier.site.topic_id(name)
    assert tier._stored(topic_id)[0] == 2
    rule = tier.proxy.rule(answer(503, "SlowDown"))
    tier.site.delete_topic(name)
    deadline = time.monotonic() + WAIT_S
    while not rule.used:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert tier._stored(topic_id)[0] == 2
    tier.proxy.heal()
    Sites([tier.site]).expect(lambda _: tier._stored(topic_id), (0, 0))
