"""Log messages of a start about MinIO if a setting of the store is wrong or missing, or the store is down."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from compat.brokers import KbrokerProcess, StartFailed, free_port
from compat.minio import MinioServer
from compat.tiered.minio_fixtures import HASTY, admin
from compat.tiered.site import HURRIED
from compat.waiting import until

ANY_SEGMENT = {"remote.storage.enable": "true", "segment.bytes": "1048576", "local.retention.bytes": "1"}


def broker_with(directory: Path, server: MinioServer, **changes: str | None) -> KbrokerProcess:
    """A broker on a store, with some settings of the plug-in changed, or removed if None."""
    plugin: dict[str, str | None] = {**HASTY, **server.settings(prefix=directory.name)}
    plugin |= {name.replace("_", "."): value for name, value in changes.items()}
    given = {f"rsm.config.{key}": value for key, value in plugin.items() if value is not None}
    return KbrokerProcess(directory, overrides=overrides({"remote.log.storage.manager.class.name": "minio", **given}))


def overrides(settings: Mapping[str, str]) -> list[str]:
    return [f"{key}={value}" for key, value in {**HURRIED, **settings}.items()]


@contextmanager
def started(broker: KbrokerProcess) -> Iterator[KbrokerProcess]:
    broker.start()
    try:
        yield broker
    finally:
        broker.stop()


def said(broker: KbrokerProcess) -> list[str]:
    """The lines of a broker's log about the store."""
    return [line for line in (broker.directory / "stderr.txt").read_text().splitlines() if "the store" in line]


def kbroker(broker: KbrokerProcess, *arguments: str, text: str = "") -> None:
    command = [sys.executable, "-m", "kbroker", *arguments, "-b", broker.bootstrap_servers]
    subprocess.run(command, input=text, text=True, check=True, timeout=60, capture_output=True)


def fill(broker: KbrokerProcess) -> None:
    """Create a tiered topic and wait until the store has a segment of it."""
    settings = [argument for key, value in ANY_SEGMENT.items() for argument in ("--config", f"{key}={value}")]
    kbroker(broker, "topic", "--create", "--topic", "orders", *settings)
    kbroker(broker, "produce", "-t", "orders", text="".join(f"{number}\n" for number in range(100)))
    kbroker(broker, "tier", "flush", "-t", "orders")


@pytest.mark.parametrize(
    ("changes", "reported"),
    [
        ({"bucket": "elsewhere"}, "there is no bucket 'elsewhere': create it, or set rsm.config.bucket.create=true"),
        ({"secret_key": "wrong-secret"}, "keys from rsm.config.access.key and rsm.config.secret.key"),
        (
            {"access_key": None, "secret_key": None, "credentials_file": "/nowhere/keys"},
            "rsm.config.credentials.file=/nowhere/keys: FileNotFoundError",
        ),
    ],
    ids=["no bucket", "wrong keys", "no credentials file"],
)
def test_a_first_start_with_a_wrong_setting_is_refused(
    minio_server: MinioServer, tmp_path: Path, changes: dict[str, str | None], reported: str
) -> None:
    broker = broker_with(tmp_path, minio_server, **changes)
    with pytest.raises(StartFailed), started(broker):
        pass
    (line,) = said(broker)
    assert "the store of the tier cannot be used" in line
    assert reported in line
    assert "wrong-secret" not in line
    assert minio_server.secret_key not in line


def test_a_bucket_is_created_at_the_start_if_allowed(minio_server: MinioServer, tmp_path: Path) -> None:
    with started(broker_with(tmp_path, minio_server, bucket="made-at-start", bucket_create="true")) as broker:
        assert admin(minio_server).bucket_exists("made-at-start")
        assert not said(broker)


def test_a_broker_starts_if_the_store_is_down(minio_server: MinioServer, tmp_path: Path) -> None:
    with started(broker_with(tmp_path, minio_server, endpoint=f"http://127.0.0.1:{free_port()}")) as broker:
        kbroker(broker, "topic", "--create", "--topic", "plain")
        kbroker(broker, "produce", "-t", "plain", text="one\n")
        (line,) = said(broker)
        assert "WARN" in line
        assert "rsm.config.endpoint" in line


def test_a_broker_with_tiered_segments_starts_without_its_bucket(minio_server: MinioServer, tmp_path: Path) -> None:
    with started(broker_with(tmp_path, minio_server)) as broker:
        fill(broker)
        assert not said(broker)
    with started(broker_with(tmp_path, minio_server, bucket="elsewhere")) as broker:
        kbroker(broker, "produce", "-t", "orders", text="more\n")
        (line,) = said(broker)
        assert "ERROR" in line
        assert "there is no bucket 'elsewhere'" in line


@pytest.mark.parametrize("wrong", ["directory", "prefix"])
def test_a_missing_store_setting_is_detected(minio_server: MinioServer, tmp_path: Path, wrong: str) -> None:
    with started(broker_with(tmp_path, minio_server)) as broker:
        fill(broker)
    forgetful = KbrokerProcess(tmp_path, overrides=overrides({}))
    if wrong == "prefix":
        forgetful = broker_with(tmp_path, minio_server, prefix="another")
    with started(forgetful):
        until(lambda: bool(said(forgetful)), patience_s=20)
        (line,) = said(forgetful)
        assert "ERROR" in line
        assert "has none of the segments that the metadata list" in line
        assert "settings=remote.log.storage.manager.class.name and rsm.config.*" in line.replace('"', "")
    with started(broker_with(tmp_path, minio_server)) as broker:
        kbroker(broker, "produce", "-t", "orders", text="more\n")
        assert len(said(broker)) == 1, "nothing more than before"
