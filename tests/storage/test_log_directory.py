from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kbroker.runtime.disk import RealDisk, RealFile
from kbroker.storage.directory_names import deleted_name, stray_name
from kbroker.storage.formatting import (
    format_identity,
    format_partition_metadata,
    parse_identity,
    parse_partition_metadata,
)
from kbroker.storage.log_config import LogConfig
from kbroker.storage.log_directory import LogDirectory
from tests.storage.logs import FailingDisk, fill, offsets
from wire.errors import ErrorCode, KafkaError

TOPIC_ID = uuid.UUID(int=77)
NO_ROLL = LogConfig()


def ids() -> Any:
    numbers = iter(range(1_000, 2_000))
    return lambda: uuid.UUID(int=next(numbers))


def open_directory(path: Path, **given: Any) -> LogDirectory:
    given = {"disk": RealDisk(), "node_id": 1, "new_uuid": ids(), **given}
    return LogDirectory(str(path), **given)


def open_log(directory: LogDirectory, partition: int = 0, *, topic: str = "orders", config: LogConfig = NO_ROLL) -> Any:
    return directory.open_log(topic, partition, topic_id=TOPIC_ID, config=config, timestamp_ms=0)


def test_a_new_directory_gets_an_identity_and_keeps_it(tmp_path: Path) -> None:
    path = tmp_path / "data"
    first = open_directory(path)
    first.close()
    assert (path / "meta.properties").read_text() == format_identity(first.identity)
    again = open_directory(path, cluster_id=first.identity.cluster_id)
    assert again.identity == first.identity
    again.abandon()


def test_kafkas_meta_properties_can_be_read() -> None:
    text = (
        "#\n#Sat Nov 21 14:13:52 UTC 2026\nnode.id=1\ndirectory.id=7XPne58WM1omW07KcBWQQg\n"
        "version=1\ncluster.id=5L6g3nShT-eMCtK--X86sw\n"
    )
    identity = parse_identity(text)
    assert (identity.cluster_id, identity.node_id) == ("5L6g3nShT-eMCtK--X86sw", 1)
    assert parse_identity(format_identity(identity)) == identity


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({"node_id": 2}, ErrorCode.INVALID_CONFIG),
        ({"cluster_id": "AAAAAAAAAAAAAAAAAAAAAQ"}, ErrorCode.INCONSISTENT_CLUSTER_ID),
    ],
)
def test_d12_the_directory_of_another_node_or_cluster_is_refused(
    tmp_path: Path, given: dict[str, Any], code: ErrorCode
) -> None:
    open_directory(tmp_path).close()
    with pytest.raises(KafkaError) as raised:
        open_directory(tmp_path, **given)
    assert raised.value.code is code
    open_directory(tmp_path).abandon()


@pytest.mark.parametrize("text", ["", "version=0\n", "version=1\ncluster.id=x\nnode.id=one\ndirectory.id=y\n"])
def test_d12_a_malformed_identity_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "meta.properties").write_text(text)
    with pytest.raises(KafkaError) as raised:
        open_directory(tmp_path)
    assert raised.value.code is ErrorCode.INVALID_CONFIG


def test_d12_a_directory_in_use_is_refused(tmp_path: Path) -> None:
    first = open_directory(tmp_path)
    with pytest.raises(KafkaError, match="another broker"):
        open_directory(tmp_path)
    first.close()
    open_directory(tmp_path).abandon()


def test_the_clean_shutdown_marker_is_written_last_and_removed_first(tmp_path: Path) -> None:
    disk = FailingDisk()
    directory = open_directory(tmp_path, disk=disk)
    assert not directory.was_clean
    fill(open_log(directory), 5)
    disk.done.clear()
    directory.close(broker_epoch=42)
    assert disk.done[-2:] == ["rename .kafka_cleanshutdown", f"sync_directory {tmp_path.name}"]
    assert json.loads((tmp_path / ".kafka_cleanshutdown").read_text()) == {"version": 0, "brokerEpoch": 42}
    directory = open_directory(tmp_path)
    assert directory.was_clean
    assert directory.previous_broker_epoch == 42
    assert not (tmp_path / ".kafka_cleanshutdown").exists()
    directory.abandon()
    assert not open_directory(tmp_path).was_clean


def test_a_shutdown_with_a_failed_sync_is_not_clean(tmp_path: Path) -> None:
    disk = FailingDisk()
    directory = open_directory(tmp_path, disk=disk)
    fill(open_log(directory), 5)
    disk.fail("sync")
    with pytest.raises(KafkaError):
        directory.close()
    assert not (tmp_path / ".kafka_cleanshutdown").exists()
    again = open_directory(tmp_path)
    assert offsets(open_log(again)) == [0, 1, 2, 3, 4]
    again.abandon()


def test_partitions_are_stored_under_kafkas_names_with_their_topics_id(tmp_path: Path) -> None:
    directory = open_directory(tmp_path)
    fill(open_log(directory, 3, topic="a-b.c_d"), 2)
    metadata = tmp_path / "a-b.c_d-3" / "partition.metadata"
    assert metadata.read_text() == "version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAATQ"
    directory.close()
    directory = open_directory(tmp_path)
    assert directory.stored_partitions() == [("a-b.c_d", 3)]
    assert directory.stored_topic_id("a-b.c_d", 3) == TOPIC_ID
    assert offsets(open_log(directory, 3, topic="a-b.c_d")) == [0, 1]
    directory.abandon()


def test_a_topic_id_survives_a_round_trip() -> None:
    assert parse_partition_metadata(format_partition_metadata(TOPIC_ID)) == TOPIC_ID
    for text in ("", "version: 1\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ", "version: 0\ntopic_id: x"):
        with pytest.raises(ValueError):
            parse_partition_metadata(text)


def test_a_log_of_another_topic_of_that_name_is_refused(tmp_path: Path) -> None:
    directory = open_directory(tmp_path)
    open_log(directory)
    directory.close()
    directory = open_directory(tmp_path)
    with pytest.raises(KafkaError) as raised:
        directory.open_log("orders", 0, topic_id=uuid.UUID(int=78), config=NO_ROLL, timestamp_ms=0)
    assert raised.value.code is ErrorCode.INCONSISTENT_TOPIC_ID
    directory.abandon()


def test_checkpoints_keep_the_offsets_over_a_crash(tmp_path: Path) -> None:
    directory = open_directory(tmp_path)
    log = open_log(directory)
    fill(log, 10)
    log.flush()
    fill(log, 5)
    log.raise_log_start_offset(4)
    directory.checkpoints.write_recovery_points()
    directory.checkpoints.write_log_starts()
    directory.checkpoints.write_high_watermarks({("orders", 0): 12})
    directory.abandon()
    directory = open_directory(tmp_path)
    assert directory.checkpoints.high_watermarks == {("orders", 0): 12}
    # Checkpoints written before the logs are opened keep their entries.
    directory.checkpoints.write_recovery_points()
    directory.checkpoints.write_log_starts()
    directory.abandon()
    directory = open_directory(tmp_path)
    log = open_log(directory)
    assert (log.persisted_recovery_point, log.log_start_offset, log.log_end_offset) == (10, 4, 15)
    directory.abandon()


def test_the_log_start_checkpoint_has_only_starts_inside_a_segment(tmp_path: Path) -> None:
    directory = open_directory(tmp_path)
    fill(open_log(directory, 0), 10)
    log = open_log(directory, 1)
    fill(log, 10)
    log.raise_log_start_offset(3)
    directory.checkpoints.write_log_starts()
    assert (tmp_path / "log-start-offset-checkpoint").read_text() == "0\n1\norders 1 3\n"
    directory.abandon()


@pytest.mark.parametrize("name", ["recovery-point", "log-start", "replication"])
@pytest.mark.parametrize("text", ["0\n5\norders 0", "?", "0\n1\norders 0 x\n"])
def test_d3_d4_a_malformed_checkpoint_loses_no_records(tmp_path: Path, name: str, text: str) -> None:
    directory = open_directory(tmp_path)
    log = open_log(directory)
    fill(log, 10)
    log.flush()
    directory.checkpoints.write_recovery_points()
    directory.checkpoints.write_high_watermarks({("orders", 0): 10})
    directory.abandon()
    (tmp_path / f"{name}-offset-checkpoint").write_text(text)
    reports: list[str] = []
    directory = open_directory(tmp_path, report=reports.append)
    assert len(reports) == 1
    log = open_log(directory)
    assert offsets(log) == list(range(10))
    assert log.log_start_offset == 0
    assert log.persisted_recovery_point == (0 if name == "recovery-point" else 10)
    assert directory.checkpoints.high_watermarks == ({} if name == "replication" else {("orders", 0): 10})
    directory.abandon()


def test_a_deleted_partition_is_renamed_at_once_and_removed_later(tmp_path: Path) -> None:
    directory = open_directory(tmp_path)
    log = open_log(directory)
    fill(log, 5)
    reading = log.read(0, max_bytes=10_000)
    directory.delete_log("orders", 0, unique_id=uuid.UUID(int=5), now_ms=100, delay_ms=50)
    assert not (tmp_path / "orders-0").exists()
    assert (tmp_path / f"orders-0.{5:032x}-delete").is_dir()
    assert directory.stored_partitions() == []
    again = open_log(directory)
    fill(again, 1)
    assert len(reading.read()) > 4 * 170
    assert directory.remove_doomed(149) == 0
    assert directory.remove_doomed(150) == 1
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["orders-0"]
    assert offsets(again) == [0]
    directory.abandon()


def test_an_interrupted_deletion_is_completed(tmp_path: Path) -> None:
    directory = open_directory(tmp_path)
    fill(open_log(directory), 5)
    directory.delete_log("orders", 0, unique_id=uuid.UUID(int=5), now_ms=0)
    directory.abandon()
    directory = open_directory(tmp_path)
    assert directory.stored_partitions() == []
    assert not any(path.is_dir() for path in tmp_path.iterdir())
    directory.abandon()


def test_a_deleted_partitions_name_fits_into_a_file_name() -> None:
    for named, suffix in ((deleted_name, "delete"), (stray_name, "stray")):
        name = named("t" * 249, 12, uuid.UUID(int=1))
        assert len(name) == 255
        assert name.endswith(f"-12.{1:032x}-{suffix}")


def test_d9_a_nearly_full_disk_refuses_appends_but_not_reads(tmp_path: Path) -> None:
    directory = open_directory(tmp_path)
    log = open_log(directory)
    fill(log, 5)
    free = directory.check_space(0)
    directory.check_space(free * 2)
    with pytest.raises(KafkaError) as raised:
        fill(log, 1)
    assert raised.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert offsets(log) == [0, 1, 2, 3, 4]
    log.raise_log_start_offset(2)
    directory.check_space(0)
    fill(log, 1)
    directory.abandon()


def test_many_logs_share_one_bounded_pool(tmp_path: Path) -> None:
    directory = open_directory(tmp_path, open_files_limit=10)
    logs = [open_log(directory, number) for number in range(40)]
    for _ in range(3):
        for log in logs:
            fill(log, 2)
    assert len(directory.files) <= 10
    for log in logs:
        assert offsets(log) == list(range(6))
    directory.close()


def test_readers_of_a_deleted_log_do_not_corrupt_its_successor(tmp_path: Path) -> None:
    disk = SlowToOpen()
    directory = open_directory(tmp_path / "data", disk=disk)
    old = open_log(directory)
    fill(old, 3)
    path = old.segments.active.log_path
    directory.files.forget(path)
    disk.hook = lambda: directory.delete_log("orders", 0, unique_id=uuid.UUID(int=7), now_ms=0)
    reading = directory.files.open(path).file  # by a thread that found the partition before its deletion
    assert reading.size() > 0
    new = open_log(directory)
    fill(new, 2)
    assert reading is not new.segments.active.open().file
    directory.files.close()
    assert offsets(new) == [0, 1]


class SlowToOpen(RealDisk):
    """Runs a hook while a file is opened for reading."""

    def __init__(self) -> None:
        self.hook: Callable[[], None] | None = None

    def open(self, path: str, *, create: bool = False, writable: bool = True) -> RealFile:
        file = super().open(path, create=create, writable=writable)
        hook, self.hook = self.hook, None
        if hook is not None:
            hook()
        return file
