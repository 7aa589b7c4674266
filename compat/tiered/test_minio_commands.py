"""`kbroker tier` against a real MinIO: reads a bucket with the broker running and stopped, and finds changed
objects.
"""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from compat.brokers import KbrokerProcess
from compat.minio import BUCKET, MinioServer
from compat.tiered.minio_fixtures import HASTY, admin
from compat.tiered.site import HURRIED, LATEST_TIERED, ONLY_THE_ACTIVE_ONE, TIERED, Records, Site, Sites
from compat.tiered.test_commands import tier
from kbroker.tiered.api import StoredObject
from kbroker.tiered.minio import MinioRemoteStorage

NAME = "bucket"
WRITTEN = Records([0, 2, 4, 6], records=3, padding=2_000)


@dataclass
class Bucket:
    """A broker whose tier is a bucket, and its settings as a file."""

    site: Site
    config: Path
    server: MinioServer

    def run(self, *words: object, by_broker: bool = False) -> list[dict[str, Any]]:
        """The output of a command."""
        where = ["-b", self.site.address] if by_broker else ["--data-dir", self.site.broker.log_directory]
        store = [] if words[0] == "ls" else ["--config", self.config]
        done = tier(*words, *where, *store, "--format", "json")
        assert done.returncode in {0, 3}, done
        assert self.server.secret_key not in done.stdout + done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    def problems(self, *words: object, by_broker: bool = False) -> list[str]:
        """The findings of scrub."""
        *found, summary = self.run("scrub", *words, by_broker=by_broker)
        assert summary["findings"] == sum(each["kind"] == "finding" for each in found)
        return [each["problem"] for each in found if each["kind"] == "finding"]

    def objects(self, kind: str) -> list[str]:
        """The names of the objects of one kind, by offset."""
        found = (one.object_name or "" for one in admin(self.server).list_objects(BUCKET, "tools/", recursive=True))
        return sorted(name for name in found if name.endswith(f".{kind}"))

    def contents(self, name: str) -> bytes:
        """The contents of an object."""
        response = admin(self.server).get_object(BUCKET, name)
        try:
            return response.read()
        finally:
            response.close()
            response.release_conn()

    def store(self, name: str, data: bytes) -> None:
        """Replace an object."""
        admin(self.server).put_object(BUCKET, name, io.BytesIO(data), len(data))


@pytest.fixture(scope="module")
def bucket(minio_server: MinioServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bucket]:
    """Three segments of three records are only in the bucket."""
    directory = tmp_path_factory.mktemp("minio-commands")
    plugin = minio_server.settings(prefix="tools", **{key.replace(".", "_"): value for key, value in HASTY.items()})
    settings = {
        **HURRIED,
        "remote.log.storage.manager.class.name": "minio",
        **{f"rsm.config.{key}": value for key, value in plugin.items()},
    }
    config = directory / "server.properties"
    config.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    broker = KbrokerProcess(directory, overrides=[f"{key}={value}" for key, value in settings.items()])
    broker.start()
    try:
        site = Site(broker, directory)
        site.create(NAME, {**TIERED, **ONLY_THE_ACTIVE_ONE})
        site.produce(NAME, WRITTEN.batches())
        Sites([site]).expect(lambda each: each.offset(NAME, LATEST_TIERED)[1], 8)
        yield Bucket(site, config, minio_server)
    finally:
        broker.kill()


def test_records_are_read_with_the_broker_running_and_stopped(bucket: Bucket) -> None:
    def values(*, by_broker: bool) -> list[str]:
        found = []
        for segment in bucket.run("ls", by_broker=by_broker):
            found += [each["value"] for each in bucket.run("cat", "-s", segment["segment_id"], by_broker=by_broker)]
        return found

    up = values(by_broker=True)
    assert [value.rstrip("\0") for value in up] == [f"v{batch}-{place}|" for batch in range(3) for place in range(3)]
    bucket.site.broker.kill()
    try:
        assert values(by_broker=False) == up
        assert bucket.problems("--deep") == []
    finally:
        bucket.site.broker.start()
        bucket.site.await_leaders(NAME)


def test_changed_objects_are_found(bucket: Bucket) -> None:
    assert bucket.problems("--deep") == []
    first, second, third = bucket.objects("log")
    index = bucket.objects("index")[2]
    before = {name: bucket.contents(name) for name in (first, second, third, index)}
    admin(bucket.server).remove_object(BUCKET, first)
    bucket.store(second, before[second][:-1])
    bucket.store(third, before[third][:500] + b"?" + before[third][501:])
    try:
        assert sorted(bucket.problems()) == ["missing", "size"]
        assert sorted(bucket.problems("--deep")) == ["damage", "missing", "size"]
    finally:
        for name, data in before.items():
            bucket.store(name, data)


class ListOfManifests(MinioRemoteStorage):
    """A bucket whose list is so old that it has only manifests."""

    def list_objects(self) -> Iterator[StoredObject]:
        return (each for each in super().list_objects() if each.is_auxiliary)


@pytest.mark.parametrize("by_broker", [False, True])
def test_m6_changes_to_unlisted_objects_are_found(bucket: Bucket, by_broker: bool) -> None:
    """M6: every object that the metadata know is requested by name."""
    by_class = f"remote.log.storage.manager.class.name={ListOfManifests.__module__}:{ListOfManifests.__qualname__}"
    words = ["--override", by_class]
    assert bucket.problems("--deep", *words, by_broker=by_broker) == []
    first, second, third = bucket.objects("log")
    index = bucket.objects("index")[0]
    before = {name: bucket.contents(name) for name in (first, second, third, index)}
    admin(bucket.server).remove_object(BUCKET, first)
    bucket.store(index, before[index] + b"?")
    bucket.store(second, before[second][:-1])
    bucket.store(third, before[third][:500] + b"?" + before[third][501:])
    try:
        assert sorted(bucket.problems(*words, by_broker=by_broker)) == ["damage", "missing", "size"]
        bucket.store(index, before[index])
        assert sorted(bucket.problems("--deep", *words, by_broker=by_broker)) == ["damage", "missing", "size"]
    finally:
        for name, data in before.items():
            bucket.store(name, data)


def test_unknown_objects_are_reported_and_kept(bucket: Bucket) -> None:
    (name, *_) = bucket.objects("log")
    stranger = f"{name.rpartition('/')[0]}/{7:020d}-{'A' * 21}Q.log"
    bucket.store(stranger, b"who knows")
    bucket.store("tools/readme", b"mine")
    try:
        assert bucket.problems() == ["foreign"]
        assert sorted(bucket.problems("--min-age-ms", 0)) == ["foreign", "unknown"]
        assert sorted(bucket.problems("--min-age-ms", 0, "--delete-orphans")) == ["foreign", "unknown"]
        assert bucket.contents(stranger) == b"who knows"
    finally:
        for each in (stranger, "tools/readme"):
            admin(bucket.server).remove_object(BUCKET, each)


def test_an_unreachable_store_is_reported_in_one_line(bucket: Bucket) -> None:
    nowhere = ["--override", "rsm.config.endpoint=http://127.0.0.1:1"]
    done = tier("scrub", "--data-dir", bucket.site.broker.log_directory, "--config", bucket.config, *nowhere)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("kbroker tier: the store: ")
    assert bucket.server.secret_key not in done.stderr


def test_a_bucket_is_attached_to_another_cluster(bucket: Bucket, tmp_path: Path) -> None:
    """Up to an offset inside a segment, so that the object is larger than the segment."""
    site, name = bucket.site, "parts"
    site.create(name, {**TIERED, **ONLY_THE_ACTIVE_ONE})
    site.produce(name, Records([0, 0, 0, 2], records=3, padding=2_000).batches())
    Sites([site]).expect(lambda each: each.offset(name, LATEST_TIERED)[1], 8)
    objects = {each: bucket.contents(each) for kind in ("log", "manifest.json") for each in bucket.objects(kind)}
    site.broker.kill()
    other = KbrokerProcess(tmp_path, overrides=bucket.config.read_text().split())
    other.start()
    try:
        address = f"127.0.0.1:{other.port}"
        words = ["-b", address, "--config", bucket.config, "-t", name, "--as", "attached", "--until-offset", 7]
        done = tier("attach", *words)
        assert done.returncode == 0, done
        read = [sys.executable, "-m", "kbroker", "consume", "-b", address, "-t", "attached", "--exit-at-end"]
        consumed = subprocess.run([*read, "-o", "beginning"], capture_output=True, text=True, check=True, timeout=60)
        values = [line.partition("|")[0] for line in consumed.stdout.splitlines()]
        assert values == [f"v{batch}-{place}" for batch in range(2) for place in range(3)]
    finally:
        other.stop()
        site.broker.start()
        site.await_leaders(NAME)
    assert {each: bucket.contents(each) for each in objects} == objects
