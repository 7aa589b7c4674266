"""A disk that fails or fills up while a log is used: rows D8 and D9. Each operation of a workload fails once."""

from __future__ import annotations

import errno
from dataclasses import replace

import pytest

from kbroker.storage.directory_names import FAILED
from kbroker.storage.log import Log
from kbroker.storage.log_config import LogConfig
from kbroker.testing.disk import Crashed, Fault, SimulatedDisk
from kbroker.testing.disk_nodes import POWER_LOSSES, Loss
from kbroker.testing.draws import Draws
from tests.sweep.log_judge import complaints_about, read_batches
from tests.sweep.log_model import compare
from tests.sweep.workload import DATA, START_MS, LogWorkload, drawn_config, drawn_steps, start_broker
from wire.errors import ErrorCode, KafkaError
from wire.record_batch import Record, build_batch

STEPS = 25
SEEDS = range(4)


def operations_of(seed: int) -> int:
    """The number of operations of the workload on its first disk without faults."""
    disk = SimulatedDisk()
    workload = LogWorkload(disk, drawn_config(seed), seed)
    for step in drawn_steps(seed, STEPS):
        if step.name != "die":
            workload.run(step)
    return disk.operations


def run_until_it_fails(seed: int, fault: Fault) -> tuple[LogWorkload | None, KafkaError | None]:
    """The workload up to the step that meets the fault; no workload if opening the log failed."""
    disk = SimulatedDisk()
    disk.inject(fault)
    try:
        workload = LogWorkload(disk, drawn_config(seed), seed)
    except KafkaError as error:
        return None, error
    for step in drawn_steps(seed, STEPS):
        if step.name == "die":
            continue
        try:
            workload.run(step)
        except KafkaError as error:
            return workload, error
    return workload, None


def judge(workload: LogWorkload, loss: Loss, seed: int) -> list[str]:
    """The complaints after the process with the failing disk has died, or lost its power."""
    survivor = workload.disk.crash(loss, seed=seed)
    expected = workload.model.expectation(power_lost=loss is not Loss.PROCESS_DEATH)
    _, log = start_broker(survivor, workload.config, timestamp_ms=START_MS, report=lambda _: None)
    found = read_batches(log, survivor)
    wrong = compare(found, log.log_start_offset, log.log_end_offset, expected)
    return [wrong] if wrong is not None else list(complaints_about(log, survivor, found, Draws("judge", seed)))


def assert_untouched_from_now_on(workload: LogWorkload, number: int) -> None:
    """A failed directory is not written to or synced again, whatever the caller does."""
    written = workload.disk.operations
    batch = build_batch([Record(value=b"after the failure")])
    with pytest.raises(KafkaError) as refused:
        workload.log.append(bytearray(batch), leader_epoch=0, timestamp_ms=START_MS)
    assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    with pytest.raises(KafkaError):
        workload.log.flush()
    workload.log.close()
    assert workload.disk.operations == written, f"operation {number} failed, but the directory was changed again"


@pytest.mark.parametrize("seed", SEEDS)
def test_d8_a_failed_sync_takes_the_directory_offline_without_losses(seed: int) -> None:
    failed = 0
    for number in range(operations_of(seed)):
        fault = Fault(errno.EIO, name="sync*", number=number)
        workload, error = run_until_it_fails(seed, fault)
        if fault.times or workload is None:
            continue
        failed += 1
        assert error is not None, f"operation {number} failed, and the log went on"
        assert error.code is ErrorCode.KAFKA_STORAGE_ERROR
        if not workload.is_stopped:
            assert_untouched_from_now_on(workload, number)
        for loss in (Loss.PROCESS_DEATH, Draws("loss", seed, number).choice(POWER_LOSSES)):
            assert judge(workload, loss, number) == [], f"operation {number} failed with {error}, then {loss.value}"
    assert failed > 0


SMALL_AND_LARGE = [replace(LogConfig(), segment_bytes=size) for size in (300, 1 << 20)]


def started(disk: SimulatedDisk, config: LogConfig) -> Log:
    return start_broker(disk, config, timestamp_ms=START_MS, report=lambda _: None)[1]


def append_one(log: Log) -> None:
    log.append(bytearray(build_batch([Record(value=b"x" * 100)])), leader_epoch=0, timestamp_ms=START_MS)


def offsets_in(log: Log, disk: SimulatedDisk) -> list[int]:
    return [batch.base_offset for batch in read_batches(log, disk)]


def with_lost_pages(config: LogConfig) -> SimulatedDisk:
    """The disk of a process that ended because the sync of three batches failed."""
    disk = SimulatedDisk()
    log = started(disk, config)
    for _ in range(3):
        append_one(log)
    disk.fail("sync", "*.log")
    with pytest.raises(KafkaError):
        log.flush()
    return disk.crash(Loss.PROCESS_DEATH)


@pytest.mark.parametrize("config", SMALL_AND_LARGE, ids=["many-segments", "one-segment"])
def test_d8_a_start_writes_again_what_only_the_cache_has(config: LogConfig) -> None:
    second = with_lost_pages(config)
    log = started(second, config)
    assert offsets_in(log, second) == [0, 1, 2]
    append_one(log)
    log.flush()
    third = second.crash(Loss.ONLY_SYNCED)
    assert offsets_in(started(third, config), third) == [0, 1, 2, 3]
    assert not third.exists(f"{DATA}/{FAILED}"), "the next start need not write them again"


def test_d8_a_failed_truncation_does_not_bring_old_batches_back() -> None:
    config = LogConfig()
    disk = SimulatedDisk()
    log = started(disk, config)
    for _ in range(3):
        append_one(log)
    log.flush()
    disk.fail("sync", "*.log")
    with pytest.raises(KafkaError):
        log.truncate_to(1)
    second = disk.crash(Loss.PROCESS_DEATH)
    assert offsets_in(started(second, config), second) == [0]
    third = second.crash(Loss.ONLY_SYNCED)
    assert offsets_in(started(third, config), third) == [0]


@pytest.mark.parametrize("config", SMALL_AND_LARGE, ids=["many-segments", "one-segment"])
def test_d8_a_death_while_writing_again_starts_over(config: LogConfig) -> None:
    number = 0
    while True:
        second = with_lost_pages(config)
        second.kill_at(number, done=0.5)
        try:
            started(second, config)
            break
        except Crashed:
            number += 1
        third = second.crash(Loss.PROCESS_DEATH)
        log = started(third, config)
        append_one(log)
        log.flush()
        fourth = third.crash(Loss.ONLY_SYNCED)
        assert offsets_in(started(fourth, config), fourth) == [0, 1, 2, 3], f"died at operation {number - 1}"
    assert number > 5


def test_d8_a_sync_that_fails_again_keeps_the_marker() -> None:
    second = with_lost_pages(LogConfig())
    second.fail("sync", "*.log")
    with pytest.raises(KafkaError):
        started(second, LogConfig())
    third = second.crash(Loss.PROCESS_DEATH)
    started(third, LogConfig())
    fourth = third.crash(Loss.ONLY_SYNCED)
    assert offsets_in(started(fourth, LogConfig()), fourth) == [0, 1, 2]


@pytest.mark.long
@pytest.mark.parametrize("share", [0.0, 0.5], ids=["nothing-written", "half-written"])
@pytest.mark.parametrize("seed", SEEDS)
def test_d9_a_full_disk_refuses_and_loses_nothing_acknowledged(seed: int, share: float) -> None:
    refused = 0
    for number in range(operations_of(seed)):
        fault = Fault(errno.ENOSPC, name="[wc]r*", number=number, written=int(100 * share))
        workload, error = run_until_it_fails(seed, fault)
        if error is None or workload is None:
            continue
        refused += 1
        assert error.code is ErrorCode.KAFKA_STORAGE_ERROR
        for loss in (Loss.PROCESS_DEATH, Draws("loss", seed, number).choice(POWER_LOSSES)):
            assert judge(workload, loss, number) == [], f"operation {number} failed with {error}, then {loss.value}"
    assert refused > 10


@pytest.mark.parametrize("seed", SEEDS)
def test_d9_a_log_continues_after_space_is_freed(seed: int) -> None:
    """Appends that are refused for lack of space leave no trace, and the next ones succeed."""
    workload = LogWorkload(SimulatedDisk(), drawn_config(seed), seed)
    refusals: list[ErrorCode] = []
    for step in drawn_steps(seed, STEPS):
        if step.name in {"append", "produce", "append_as_follower"}:
            used = sum(len(data) for data in workload.disk.image().values() if data is not None)
            workload.disk.capacity_bytes = used + 40
            try:
                workload.run(step)
            except KafkaError as error:
                refusals.append(error.code)
            workload.disk.heal()
            assert workload.log.log_end_offset == workload.model.log_end_offset
        workload.run(step)
    assert set(refusals) == {ErrorCode.KAFKA_STORAGE_ERROR}
    assert judge(workload, Loss.PROCESS_DEATH, seed) == []
