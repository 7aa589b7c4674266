"""Canaries: logs and disks that are wrong on purpose. If the sweep misses one, its passing proves nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kbroker.runtime.ports import Disk
from kbroker.storage.leader_epoch import EPOCH_CHECKPOINT
from kbroker.storage.log import Log
from kbroker.storage.log_config import LogConfig
from kbroker.storage.log_directory import LogDirectory
from kbroker.testing.disk import SimulatedDisk
from kbroker.testing.disk_nodes import FileNode
from tests.sweep.crash_sweep import Options, Sweep
from tests.sweep.workload import DATA, TOPIC, TOPIC_ID, Report, start_broker

WORKLOADS = 12


class ForgetsSyncs(SimulatedDisk):
    """Reports segments as synced, and does nothing."""

    def _sync(self, node: FileNode, path: str) -> None:
        if path.endswith(".log"):
            self._operate("sync", path, node=node)
        else:
            super()._sync(node, path)


class ForgetsDirectorySyncs(SimulatedDisk):
    """Reports names as durable, and does nothing: a broker without a directory sync after a roll."""

    def sync_directory(self, path: str) -> None:
        if path != DATA:
            self._operate("sync_directory", path)
        else:
            super().sync_directory(path)


def trusts_every_stop(disk: Disk, config: LogConfig, *, timestamp_ms: int, report: Report) -> tuple[LogDirectory, Log]:
    """Treats every stop as a clean one and reads nothing."""
    directory = LogDirectory(DATA, disk=disk, node_id=1, cluster_id="sweep", new_uuid=lambda: TOPIC_ID, report=report)
    directory.was_clean = True
    return directory, directory.open_log(TOPIC, 0, topic_id=TOPIC_ID, config=config, timestamp_ms=timestamp_ms)


def believes_a_recovery_point_that_is_too_high(
    disk: Disk, config: LogConfig, *, timestamp_ms: int, report: Report
) -> tuple[LogDirectory, Log]:
    """Like a checkpoint that was written before the flush that it covers."""
    directory = LogDirectory(DATA, disk=disk, node_id=1, cluster_id="sweep", new_uuid=lambda: TOPIC_ID, report=report)
    directory.checkpoints.recovery_points = {(TOPIC, 0): 1 << 40}
    return directory, directory.open_log(TOPIC, 0, topic_id=TOPIC_ID, config=config, timestamp_ms=timestamp_ms)


def damaged(damage: Callable[[Log], None]) -> Callable[..., tuple[LogDirectory, Log]]:
    """A correct start that afterwards damages a log, unless the log is new."""

    def start(disk: Disk, config: LogConfig, *, timestamp_ms: int, report: Report) -> tuple[LogDirectory, Log]:
        directory, log = start_broker(disk, config, timestamp_ms=timestamp_ms, report=report)
        if log.log_end_offset > log.log_start_offset:
            damage(log)
        return directory, log

    return start


def lose_the_last_batch(log: Log) -> None:
    log.truncate_to(log.log_end_offset - 1)


def forget_the_producers(log: Log) -> None:
    log.producers.clear(log.log_end_offset)


def remember_no_batches(log: Log) -> None:
    """Deduplication by sequence, without batches to compare with."""
    for entry in log.producers.producers.values():
        entry.batches.clear()


def remember_only_the_last_batch(log: Log) -> None:
    """The result of a Kafka snapshot: a retry of an earlier batch is refused."""
    for entry in log.producers.producers.values():
        del entry.batches[:-1]


def forget_the_oldest_batch(log: Log) -> None:
    """Four batches, although a producer may have five in flight."""
    for entry in log.producers.producers.values():
        del entry.batches[:-4]


def forget_the_epochs(log: Log) -> None:
    log.leader_epochs.clear()


def leave_a_temporary_file(log: Log) -> None:
    log.disk.open(f"{log.directory}/{EPOCH_CHECKPOINT}.tmp", create=True).close()


def append_rubbish(log: Log) -> None:
    """A torn tail that the recovery did not cut."""
    file = log.disk.open(log.segments.active.log_path)
    file.pwrite(b"torn", file.size())


def swap_two_index_entries(log: Log) -> None:
    for segment in log.segments:
        entries = segment.offset_index.read_all()
        if len(entries) > 1:
            file = log.disk.open(segment.path(".index"))
            first, second = file.pread(8, 0), file.pread(8, 8)
            file.pwrite(second + first, 0)


def raise_the_start(log: Log) -> None:
    log.raise_log_start_offset(log.log_end_offset)


def caught(options: Options) -> bool:
    for seed in range(WORKLOADS):
        try:
            if Sweep(seed, options).run().failures:
                return True
        except AssertionError:
            # Some damage shows before any crash: a step that kills the process finds another log.
            return True
    return False


@pytest.mark.parametrize("make_disk", [ForgetsSyncs, ForgetsDirectorySyncs])
def test_the_sweep_detects_a_disk_that_does_not_sync(make_disk: Callable[[], SimulatedDisk]) -> None:
    assert caught(Options(steps=30, losses=3, deep=0.0, make_disk=make_disk))


@pytest.mark.parametrize("start", [trusts_every_stop, believes_a_recovery_point_that_is_too_high])
def test_the_sweep_detects_a_recovery_that_reads_too_little(start: Callable[..., tuple[LogDirectory, Log]]) -> None:
    assert caught(Options(steps=30, losses=3, deep=0.0, start=start))


@pytest.mark.long
@pytest.mark.parametrize(
    "damage",
    [
        lose_the_last_batch, forget_the_producers, remember_no_batches, remember_only_the_last_batch,
        forget_the_oldest_batch, forget_the_epochs, leave_a_temporary_file, append_rubbish, swap_two_index_entries,
        raise_the_start,
    ],
)  # fmt: skip
def test_the_sweep_detects_a_recovery_with_a_wrong_result(damage: Callable[[Log], None]) -> None:
    assert caught(Options(steps=30, losses=1, deep=0.0, start=damaged(damage)))


@pytest.mark.long
def test_the_sweep_accepts_a_correct_log() -> None:
    """The same workloads, crashes and losses as above: the sweep caught the canaries by their own fault."""
    assert not caught(Options(steps=30, losses=1, deep=0.0))
