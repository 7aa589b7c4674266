"""Recovery with an epoch checkpoint whose log start is newer than the log's."""

from pathlib import Path

from kbroker.runtime.disk import RealDisk
from kbroker.storage.log import Log
from kbroker.storage.log_config import LogConfig
from wire.record_batch import Record, build_batch


def opened(directory: Path) -> Log:
    return Log(
        str(directory), disk=RealDisk(), config=LogConfig(), topic="t", partition=0, recovery_point=70, timestamp_ms=1
    )


def test_d7_recovery_finds_an_epoch_that_the_checkpoint_starts_too_late(tmp_path: Path) -> None:
    """The raised log start was written only to the epoch checkpoint; then a loss of power took the records after it."""
    log = opened(tmp_path)
    log.append(build_batch([Record(0, 1_000, None, b"value")]), leader_epoch=8, timestamp_ms=1_000)
    log.flush()
    (tmp_path / "leader-epoch-checkpoint").write_text("0\n1\n8 1\n")
    recovered = opened(tmp_path)
    assert (recovered.log_start_offset, recovered.log_end_offset) == (0, 1)
    assert recovered.leader_epochs.entries == [(8, 0)]


def test_a_clean_start_does_not_need_epochs_of_deleted_records(tmp_path: Path) -> None:
    log = opened(tmp_path)
    log.append(build_batch([Record(0, 1_000, None, b"value")]), leader_epoch=8, timestamp_ms=1_000)
    log.flush()
    log.raise_log_start_offset(1)
    log.roll(timestamp_ms=1_000)
    log.close()
    reports: list[str] = []
    found = Log(
        str(tmp_path), disk=RealDisk(), config=LogConfig(), topic="t", partition=0, recovery_point=1,
        log_start_offset=1, clean_shutdown=True, report=reports.append,
    )  # fmt: skip
    assert reports == []
    assert (found.log_start_offset, found.log_end_offset) == (1, 1)
