"""A broker with MinIO behind a failing proxy: rows M1 to M7 and M12 of the faults, as clients see them.

During every fault the broker accepts records and serves the local log, loses nothing and skips no offset. Afterwards
the backlog drains: checker K9, from outside.
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
    """A broker, and its proxy and store."""

    site: Site
    proxy: MinioProxy
    server: MinioServer
    settings: list[str]

    def expect(self, name: str, timestamp: int, offset: int) -> None:
        """Wait until ListOffsets gives this answer."""
        Sites([self.site]).expect(lambda site: site.offset(name, timestamp)[1], offset)

    def filled(self, name: str, hours: list[int]) -> list[Written]:
        """A topic with one segment per hour, all of them only in the tier except for the last hour's."""
        self.site.create(name, {**TIERED, **ONLY_THE_ACTIVE_ONE})
        written = self.write(name, hours)
        active = len(hours) - hours.count(hours[-1])
        self.expect(name, LATEST_TIERED, active - 1)
        self.expect(name, EARLIEST_LOCAL, active)
        return written

    def write(self, name: str, hours: list[int]) -> list[Written]:
        """Write batches of one record, acknowledged one by one."""
        batches = Records(hours, padding=PADDING).batches()
        self.site.produce(name, batches)
        return [(each.timestamp_ms, each.value) for batch in batches for each in records(batch)]

    def check(self, name: str, written: list[Written]) -> None:
        """K9, from outside: the offsets are in order, all records are readable, and the store has no unknown
        objects.
        """
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
        """The number of segments and objects of a topic in the store, by the store's own list."""
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
        """The number of requests with this method for the topic."""
        return sum(
            request.startswith(f"{method} ") and f"/{name}-" in request and ".log" in request
            for request in self.proxy.requests
        )

    def await_requests(self, method: str, name: str, count: int) -> None:
        """Wait for this many requests: the broker has met the fault."""
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
    assert kafka_libraries.is_dir()  # Kafka's schemas decode the metadata topic
    running.proxy.heal()
    yield running
    running.proxy.heal()


@pytest.fixture
def name(new_topic_name: Callable[[str], str]) -> str:
    """A name for the topic of one test."""
    return new_topic_name("minio")


@contextmanager
def refused(tier: Tier) -> Iterator[None]:
    """Connections are refused."""
    tier.proxy.down()
    try:
        yield
    finally:
        tier.proxy.up()


@contextmanager
def stopped(tier: Tier) -> Iterator[None]:
    """The store's process is suspended."""
    tier.server.suspend()
    try:
        yield
    finally:
        tier.server.resume()


@contextmanager
def killed(tier: Tier) -> Iterator[None]:
    """The store's process is killed, and restarts with its disk."""
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
def test_m1_m2_m3_m7_m12_the_log_works_during_a_store_outage(
    tier: Tier, name: str, outage: Callable[[Tier], AbstractContextManager[None]]
) -> None:
    written = tier.filled(name, [0, 2, 4])
    asked = tier.requests("PUT", name)
    with outage(tier):
        local = tier.site.offset(name, EARLIEST_LOCAL)[1]
        written += tier.write(name, [6, 8, 8, 10])
        assert [each.offset for each in tier.site.consume(name, local)] == [2, 3, 4, 5, 6]
        # A read of data only in the store gives an error that clients retry, not an end of the log or a gap.
        answers = {tier.site.fetch(name, 0) for _ in range(3)}
        assert answers <= {(STORAGE_ERROR, b""), (0, b"")}
        if outage is not refused:
            tier.await_requests("PUT", name, asked + 1)
        # Segments that are not copied are still here.
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
def test_m3_m5_wrong_answers_of_the_store_never_reach_clients(
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
    # A fault that occurs once is retried without effect; a permanent fault is an error.
    assert (offset, errors) == (3, 0) if times else errors == 3
    tier.proxy.heal()
    tier.check(name, written)


def test_m3_a_deleted_object_is_an_error_and_no_gap(tier: Tier, name: str) -> None:
    """The segments around it are readable; it alone gives an error, always, and the log does not skip it."""
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


def test_m4_a_slow_read_happens_once_and_is_served_next(tier: Tier, name: str) -> None:
    """Slower than remote.fetch.max.wait.ms (500): the first answers are empty, and the store gets only one request."""
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


def test_m7_a_topic_deleted_during_an_outage_leaves_no_objects(tier: Tier, name: str) -> None:
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
