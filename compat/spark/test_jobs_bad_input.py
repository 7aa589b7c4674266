"""Bad input to each job: the error names object, offset and remedy, and no output looks complete."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from typing import NamedTuple

import pytest
from minio import Minio

from compat.brokers import KbrokerProcess
from compat.clients import kafka_python
from compat.clients.samples import Sample
from compat.minio import BUCKET, MinioServer
from compat.spark.jobs import topics
from compat.spark.source import Source
from compat.tiered.minio_fixtures import admin, minio_server
from compat.tiered.site import HURRIED, LATEST, Site, Sites
from kbroker.cli import main
from wire.record_batch import batches, set_max_timestamp

__all__ = ["minio_server"]

TOPIC = "orders"
PREFIX = "jobs"
HASTY = {"call.timeout.ms": "3000", "retries": "1", "retry.backoff.ms": "10"}
FOREVER = {"retention.ms": "-1"}

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def source(
    tmp_path_factory: pytest.TempPathFactory, kafka_libraries: Path, minio_server: MinioServer
) -> Iterator[Source]:
    """A topic of forty records. The first thirty are three segments in the bucket."""
    assert kafka_libraries.is_dir()  # the schemas of its requests
    settings = {**minio_server.settings(prefix=PREFIX), **HASTY}
    store = {f"rsm.config.{name}": text for name, text in settings.items()}
    store["remote.log.storage.manager.class.name"] = "minio"
    directory = tmp_path_factory.mktemp("bad")
    broker = KbrokerProcess(directory, overrides=[f"{name}={text}" for name, text in {**HURRIED, **store}.items()])
    broker.start()
    try:
        made = Source(Site(broker, directory), store)
        made.filled(TOPIC, [0, 2, 4, 6])
        yield made
    finally:
        broker.kill()


@pytest.fixture
def run(spark: object, source: Source, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run `kbroker spark` with the options of broker and store, or others. Returns exit code, output and errors."""
    del spark  # the command uses this session

    def run(*words: str, **options: str) -> tuple[int, str, str]:
        named = {**source.broker, **source.store} | {name.replace("__", "."): text for name, text in options.items()}
        given = [word for pair in named.items() for word in ("--option", "=".join(pair))]
        code = main(["spark", *words, *given])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


class Victim:
    """The object of the segment with the offsets 10 to 19, which tests damage."""

    def __init__(self, objects: Minio) -> None:
        self._objects = objects
        found = objects.list_objects(BUCKET, prefix=f"{PREFIX}/{TOPIC}-", recursive=True)
        names = [str(each.object_name) for each in found]
        (self.name,) = (name for name in names if f"/{10:020d}-" in name and name.endswith(".log"))
        response = objects.get_object(BUCKET, self.name)
        self._whole = response.read()
        response.close()

    def restore(self) -> None:
        self._put(self._whole)

    def damaged(self) -> None:
        """Flip a bit of a record."""
        self._put(self._whole[:100] + bytes([self._whole[100] ^ 1]) + self._whole[101:])

    def missing(self) -> None:
        """Delete it."""
        self._objects.remove_object(BUCKET, self.name)

    def of_an_unknown_codec(self) -> None:
        """Give an intact batch an unknown compression codec."""
        log = bytearray(self._whole)
        log[22] |= 5
        (batch,) = batches(log)
        set_max_timestamp(log, max_timestamp=batch.max_timestamp, is_log_append_time=False)
        self._put(bytes(log))

    def _put(self, data: bytes) -> None:
        self._objects.put_object(BUCKET, self.name, BytesIO(data), len(data))


@pytest.fixture
def victim(source: Source, minio_server: MinioServer) -> Iterator[Victim]:
    del source  # this fixture fills the bucket
    found = Victim(admin(minio_server))
    yield found
    found.restore()


def new_target(source: Source, name: str) -> str:
    source.site.create(name, FOREVER)
    return name


def written(source: Source, target: str) -> list[Sample]:
    end = source.site.offset(target, LATEST)[1]
    return kafka_python.consume(source.site.address, target, {0: end}).get(0, [])


def assert_nothing_looks_done(output: Path) -> None:
    assert not (output / "_SUCCESS").exists()
    assert not (output / "_kbroker_export").exists()
    assert not list(output.glob("date=*"))


class Fault(NamedTuple):
    """A kind of damage, the message of the jobs that read the object, and the finding of the audit."""

    happen: Callable[[Victim], None]
    said: str
    found: str


FAULTS = [
    Fault(Victim.damaged, "the CRC of the batch at byte 0 is wrong", "the batch at offset 10 has a wrong CRC"),
    Fault(Victim.missing, "failOnDataLoss=false", "the log is missing"),
    Fault(
        Victim.of_an_unknown_codec, "codec is 5", "the batch at offset 10 cannot be read: unknown compression codec 5"
    ),
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.happen.__name__)
def test_an_unreadable_object_fails_each_job_until_it_is_restored(
    source: Source, run: Run, victim: Victim, tmp_path: Path, fault: Fault
) -> None:
    """The error names its first offset. After the object is restored, the same jobs succeed."""
    output, target = tmp_path / "out", new_target(source, f"copy-{fault.happen.__name__}")
    export, replay = ("export", "-t", TOPIC, "-o", str(output)), ("replay", "-t", TOPIC, "--to", target)
    fault.happen(victim)
    where = f"kbroker spark: {TOPIC}-0 at offset 10 in object {victim.name.removeprefix(PREFIX + '/')} of "
    for job in (export, replay):
        code, out, err = run(*job)
        assert (code, out) == (1, "")
        assert err.startswith(where)
        assert fault.said in err
        assert "Remedy: " in err
        assert err.count("\n") == 1
    assert_nothing_looks_done(output)
    code, out, _ = run("audit", "-t", TOPIC, "--format", "json")
    *findings, summary = map(json.loads, out.splitlines())
    assert (code, summary["findings"]) == (3, len(findings))
    assert any(fault.found in each["text"] and each["topic"] == TOPIC for each in findings), findings
    assert run("catalog", "-t", TOPIC)[0] == 0
    victim.restore()
    for job in (export, replay):
        assert run(*job)[0] == 0
    assert (output / "_SUCCESS").exists()
    assert written(source, target) == written(source, TOPIC)
    assert run("audit", "-t", TOPIC)[0] == 0


def test_each_job_refuses_an_unknown_topic(source: Source, run: Run, tmp_path: Path) -> None:
    target, output = new_target(source, "copy-nowhere"), tmp_path / "out"
    for job in (
        ("export", "-t", "nowhere", "-o", str(output)),
        ("replay", "-t", "nowhere", "--to", target),
        ("replay", "-t", TOPIC, "--to", "nowhere"),
        ("audit", "-t", "nowhere"),
        ("catalog", "-t", "nowhere"),
    ):
        code, out, err = run(*job)
        assert (code, out) == (1, "")
        assert err.startswith("kbroker spark: nowhere: there is no such topic. Remedy: name an existing one")
    assert not output.exists()
    assert written(source, target) == []


def test_each_job_refuses_a_recreated_topic(source: Source, run: Run, tmp_path: Path) -> None:
    """A job that has begun must not continue with the records of the new topic."""
    site, target = source.site, new_target(source, "copy-again")
    site.create("again", FOREVER)
    kafka_python.produce(site.address, "again", 0, [Sample(b"k", b"v", 1)] * 3, "none", idempotent=True)
    export = ("export", "-t", "again", "-o", str(tmp_path / "out"))
    replay = ("replay", "-t", "again", "--to", target, "--job-id", "again")
    assert [run(*job)[0] for job in (export, replay)] == [0, 0]
    remake(site, "again")
    code, _, err = run(*export)
    assert (code, "the topic was created again since the last export" in err, "Remedy: " in err) == (1, True, True)
    code, _, err = run(*replay)
    assert (code, "the replay 'again' has the source the topic again " in err, "Remedy: " in err) == (1, True, True)
    assert len(written(source, target)) == 3


def remake(site: Site, topic: str) -> None:
    site.delete_topic(topic)
    Sites([site]).expect(lambda site: topic in topics(site), False)
    site.create(topic, FOREVER)


def test_each_job_fails_without_access_to_the_bucket(source: Source, run: Run, tmp_path: Path) -> None:
    output, target, secret = tmp_path / "out", new_target(source, "copy-denied"), "not-the-secret-at-all"
    for job in (("export", "-t", TOPIC, "-o", str(output)), ("replay", "-t", TOPIC, "--to", target), ("audit",)):
        code, out, err = run(*job, rsm__config__secret__key=secret)
        assert (code, out) == (1, "")
        assert "SignatureDoesNotMatch" in err
        assert "Remedy: check that the store " in err
        assert job == ("audit",) or f"{TOPIC}-0 at offset " in err
        assert secret not in err
    assert_nothing_looks_done(output)
    assert written(source, target) == []


def test_offsets_outside_the_topic_are_refused(source: Source, run: Run, tmp_path: Path) -> None:
    output, target = tmp_path / "out", new_target(source, "copy-beyond")
    for job in (("export", "-t", TOPIC, "-o", str(output)), ("replay", "-t", TOPIC, "--to", target)):
        code, out, err = run(*job, startingOffsets=json.dumps({TOPIC: {"0": 41}}))
        assert (code, out) == (1, "")
        assert err.startswith(
            f"kbroker spark: {TOPIC}-0 at offset 41: startingOffsets has 41; the topic has the offsets 0 to 39"
        )
        assert "Remedy: name existing offsets" in err
    assert not output.exists()
    assert written(source, target) == []


@pytest.mark.usefixtures("spark")
def test_without_a_broker_an_inaccessible_bucket_is_an_error(
    source: Source, capsys: pytest.CaptureFixture[str]
) -> None:  # fmt: skip
    """The options name no broker."""
    words = [f"--option={name}={text}" for name, text in {**source.store, "rsm.config.secret.key": "no"}.items()]
    for job in (["audit"], ["catalog"], ["export", "-t", TOPIC, "-o", "/nowhere"]):
        assert main(["spark", *job, *words]) == 1
        printed = capsys.readouterr()
        assert printed.out == ""
        assert "SignatureDoesNotMatch" in printed.err
        assert "Remedy: check that the store answers and that its keys permit listing and reading" in printed.err


def test_an_unwritable_directory_is_reported_with_its_cause(run: Run) -> None:
    """Spark's message has the cause after many lines."""
    code, _, err = run("export", "-t", TOPIC, "-o", "/proc/nothing")
    assert code == 1
    assert err.startswith("kbroker spark: java.io.IOException: Mkdirs failed to create ")
