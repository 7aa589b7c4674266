"""A follower's log that starts after records which only the tier has: it needs their leader epochs and producers."""

from __future__ import annotations

from kbroker.storage.log import Log
from kbroker.storage.log_config import LogConfig
from kbroker.storage.producer_state import ProducerEntry
from kbroker.testing.disk import Operation, SimulatedDisk
from kbroker.testing.disk_nodes import Loss
from tests.storage.logs import append_as_follower, batch, fill, offsets, open_log

TIERED = LogConfig(segment_bytes=2_000, remote_storage_enable=True)
EPOCHS = [(0, 20), (3, 250), (4, 499)]
HOME = "/log"


def producers() -> list[ProducerEntry]:
    """The producers that a log of the leader has at offset 500."""
    disk = SimulatedDisk()
    disk.make_directory(HOME)
    log = open_log(HOME, disk=disk)
    log.truncate_fully_and_start_at(497)
    for number in range(3):
        sent = batch(
            base_offset=497 + number, producer_id=7, producer_epoch=0, base_sequence=number, partition_leader_epoch=4
        )
        append_as_follower(log, sent)
    return list(log.producers.producers.values())


def start(log: Log) -> None:
    log.truncate_fully_and_start_at(500, log_start_offset=20, epochs=EPOCHS, producers=producers())


def short_log(disk: SimulatedDisk) -> Log:
    """The log before: 0 to 99 in several segments, with a producer."""
    disk.make_directory(HOME)
    disk.sync_directory("/")
    log = open_log(HOME, disk=disk, config=TIERED)
    fill(log, 99)
    log.append(batch(producer_id=1, producer_epoch=0, base_sequence=0), leader_epoch=1, timestamp_ms=1)
    log.flush()
    return log


def reopened(disk: SimulatedDisk, **given: object) -> Log:
    return open_log(HOME, disk=disk, config=TIERED, log_start_offset=20, **given)


def assert_complete(log: Log) -> None:
    assert (log.log_start_offset, log.local_log_start_offset, log.log_end_offset) == (20, 500, 500)
    assert log.leader_epochs.entries == EPOCHS
    assert [one.last_sequence for one in log.producers.producers[7].batches] == [0, 1, 2]


def test_the_log_continues_with_the_given_epochs_and_producers() -> None:
    disk = SimulatedDisk()
    log = short_log(disk)
    start(log)
    assert_complete(log)
    assert_complete(reopened(disk.crash(Loss.ONLY_SYNCED)))
    retry = batch(producer_id=7, producer_epoch=0, base_sequence=1)
    plan = log.append(retry, leader_epoch=4, timestamp_ms=1)
    assert (plan.is_duplicate, plan.first_offset) == (True, 498)
    append_as_follower(log, batch(base_offset=500, partition_leader_epoch=9))
    assert offsets(log) == [500]
    log.close()
    again = reopened(disk, clean_shutdown=True)
    assert again.leader_epochs.entries == [*EPOCHS, (9, 500)]
    assert set(again.producers.producers) == {7}


def test_a_truncation_into_the_tier_keeps_earlier_epochs() -> None:
    """An unclean election may lose records that the tier has. The remaining ones are found by their leader epochs."""
    disk = SimulatedDisk()
    log = short_log(disk)
    start(log)
    append_as_follower(log, batch(base_offset=500, partition_leader_epoch=9))
    assert log.truncate_to(300)
    for found in (log, reopened(disk.crash(Loss.ONLY_SYNCED))):
        assert (found.log_start_offset, found.local_log_start_offset, found.log_end_offset) == (20, 300, 300)
        assert found.leader_epochs.entries == EPOCHS[:2]


def test_m11_a_crash_leaves_the_old_log_or_the_whole_state() -> None:
    """A log that starts at 500 without its epochs and producers would never be repaired."""
    disk = SimulatedDisk()
    log = short_log(disk)
    ends: set[int] = set()

    def crash(operation: Operation) -> None:
        for loss in Loss:
            for seed in range(3):
                found = reopened(disk.crash(loss, seed=seed, during=operation))
                ends.add(found.log_end_offset)
                if found.log_end_offset == 500:
                    assert_complete(found)
                else:
                    assert found.log_end_offset <= 100

    disk.observer = crash
    start(log)
    disk.observer = None
    assert {20, 100} < ends
    assert_complete(reopened(disk.crash(Loss.ONLY_SYNCED)))
