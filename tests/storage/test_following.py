"""What a follower appends of the batches that a leader sends."""

from pathlib import Path

import pytest

from kbroker.storage.log import Log
from tests.storage.logs import append_as_follower, open_log
from wire.errors import ErrorCode, KafkaError
from wire.record_batch import Record, build_batch


def sent(offset: int, epoch: int = 1, value: bytes = b"x") -> bytes:
    return build_batch(
        [Record(offset=offset, timestamp=1, value=value)], base_offset=offset, partition_leader_epoch=epoch
    )


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return open_log(tmp_path)


def test_batches_are_stored_byte_for_byte(log: Log) -> None:
    data = sent(0) + sent(1, 3) + sent(7, 3)
    append_as_follower(log, data)
    assert log.read(0, max_bytes=1000).read() == data
    assert log.log_end_offset == 8
    assert log.leader_epochs.entries == [(1, 0), (3, 1)]


@pytest.mark.parametrize("cut", [1, 30, 60, 61])
def test_a_batch_that_is_cut_short_is_left_out(log: Log, cut: int) -> None:
    append_as_follower(log, sent(0) + sent(1)[:cut])
    assert log.log_end_offset == 1
    assert log.plan_append_as_follower(sent(1)[:cut], timestamp_ms=0) is None


def test_batches_of_a_later_leader_epoch_are_left_out(log: Log) -> None:
    """They come from a leader that this follower does not know yet (KAFKA-18723)."""
    plan = log.plan_append_as_follower(sent(0, 2) + sent(1, 3) + sent(2, 2), timestamp_ms=0, leader_epoch=2)
    assert plan is not None
    assert (plan.next_offset, plan.size) == (1, len(sent(0)))


@pytest.mark.parametrize("position", [8, 16, 17, 25, 61, -1])
def test_a_damaged_batch_is_refused(log: Log, position: int) -> None:
    data = bytearray(sent(0) + sent(1))
    data[len(sent(0)) + position if position >= 0 else position] ^= 0xFF
    with pytest.raises(KafkaError) as caught:
        log.plan_append_as_follower(data, timestamp_ms=0)
    assert caught.value.code is ErrorCode.CORRUPT_MESSAGE
    assert log.log_end_offset == 0


def test_offsets_that_do_not_ascend_are_refused(log: Log) -> None:
    append_as_follower(log, sent(0) + sent(1))
    for data in (sent(1), sent(2) + sent(2)):
        with pytest.raises(KafkaError) as caught:
            log.plan_append_as_follower(data, timestamp_ms=0)
        assert caught.value.code is ErrorCode.CORRUPT_MESSAGE
