"""Each producer's last five batches are recognised after rolls, restarts, retention and truncations."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kbroker.storage.log import Log
from kbroker.storage.producer_state import ProducerEntry, format_snapshot, snapshot_rows
from kbroker.storage.retention import RetentionPlan
from tests.storage.logs import batch, open_log
from tests.storage.test_producer_state import header
from wire.batch_header import MAX_SEQUENCE
from wire.errors import ErrorCode, KafkaError

FIRST = 100  # the sequence number of the first batch that the tests send
Stop = Callable[[Path, Log], Log]


def send(log: Log, sequence: int, *, producer: int = 1, epoch: int = 0) -> int | None:
    """Append a batch of one record; returns the original's offset, None if it is new."""
    sent = batch(producer_id=producer, producer_epoch=epoch, base_sequence=sequence)
    plan = log.append(sent, leader_epoch=0, timestamp_ms=1_000)
    return plan.first_offset if plan.is_duplicate else None


def roll(log: Log) -> None:
    assert log.roll(timestamp_ms=1_000)


def killed(directory: Path, log: Log) -> Log:
    log.files.pool.close()
    return open_log(directory, log_start_offset=log.log_start_offset)


def stopped(directory: Path, log: Log) -> Log:
    log.close()
    log.files.pool.close()
    return open_log(directory, log_start_offset=log.log_start_offset, clean_shutdown=True)


both_stops = pytest.mark.parametrize("stop", [killed, stopped])


@both_stops
@pytest.mark.parametrize("rolls_after", [[], [0], [3], [4], [0, 1, 2, 3, 4]])
def test_five_batches_are_known_after_a_roll_and_a_restart(tmp_path: Path, rolls_after: list[int], stop: Stop) -> None:
    log = open_log(tmp_path)
    for number in range(5):
        assert send(log, FIRST + number) is None
        if number in rolls_after:
            roll(log)
    for _ in range(2):
        log = stop(tmp_path, log)
        assert [send(log, FIRST + number) for number in range(5)] == [0, 1, 2, 3, 4]
    assert send(log, FIRST + 5) is None
    with pytest.raises(KafkaError) as refused:
        send(log, FIRST)
    assert refused.value.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, "it is now the sixth"


@both_stops
def test_five_batches_are_known_after_their_segments_are_deleted(tmp_path: Path, stop: Stop) -> None:
    log = open_log(tmp_path)
    for number in range(5):
        send(log, FIRST + number)
        roll(log)
    doomed = tuple(segment.base_offset for segment in log.segments)[:-1]
    log.apply_retention(RetentionPlan(doomed), now_ms=0, timestamp_ms=0)
    assert log.log_start_offset == 5
    log = stop(tmp_path, log)
    assert [send(log, FIRST + number) for number in range(5)] == [0, 1, 2, 3, 4]


@both_stops
@pytest.mark.parametrize("rolls_after", [[], [3]])
def test_five_batches_are_known_after_their_records_are_deleted(
    tmp_path: Path, rolls_after: list[int], stop: Stop
) -> None:
    log = open_log(tmp_path)
    for number in range(5):
        send(log, FIRST + number)
        if number in rolls_after:
            roll(log)
    log.raise_log_start_offset(5)
    for _ in range(2):
        log = stop(tmp_path, log)
        assert log.log_start_offset == 5
        assert [send(log, FIRST + number) for number in range(5)] == [0, 1, 2, 3, 4]


def test_a_truncated_log_knows_the_five_batches_before_the_truncation(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for number in range(9):
        send(log, FIRST + number)
        if number in (2, 5):
            roll(log)
    assert log.truncate_to(7)
    assert [send(log, FIRST + number) for number in range(2, 7)] == [2, 3, 4, 5, 6]
    assert [send(log, FIRST + number) for number in (7, 8)] == [None, None]


def test_d5_five_batches_are_known_from_an_older_snapshot(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for number in range(7):
        send(log, FIRST + number)
        if number in (2, 5):
            roll(log)
    log.files.pool.close()
    max(tmp_path.glob("*.snapshot")).write_bytes(b"torn")
    log = open_log(tmp_path)
    assert [send(log, FIRST + number) for number in range(2, 7)] == [2, 3, 4, 5, 6]


@both_stops
def test_a_new_epoch_forgets_the_batches_of_the_old_one(tmp_path: Path, stop: Stop) -> None:
    log = open_log(tmp_path)
    for number in range(3):
        send(log, FIRST + number)
    roll(log)
    send(log, 0, epoch=1)
    roll(log)
    send(log, 1, epoch=1)
    log = stop(tmp_path, log)
    assert [send(log, number, epoch=1) for number in range(3)] == [3, 4, None]
    with pytest.raises(KafkaError) as refused:
        send(log, FIRST + 2)
    assert refused.value.code is ErrorCode.INVALID_PRODUCER_EPOCH


@both_stops
def test_five_batches_are_known_when_sequence_numbers_wrap(tmp_path: Path, stop: Stop) -> None:
    """A batch with sequence number 0 need not be the first of its producer."""
    log = open_log(tmp_path)
    sequences = [MAX_SEQUENCE - 1, MAX_SEQUENCE, 0, 1, 2]
    for sequence in sequences:
        send(log, sequence)
        roll(log)
    log = stop(tmp_path, log)
    assert [send(log, sequence) for sequence in sequences] == [0, 1, 2, 3, 4]


@both_stops
def test_each_producer_has_its_own_five_batches(tmp_path: Path, stop: Stop) -> None:
    log = open_log(tmp_path)
    for number in range(7):
        for producer in (1, 2, 3):
            if number % producer == 0:
                send(log, FIRST + number // producer, producer=producer)
    roll(log)
    before = {one: list(entry.batches) for one, entry in log.producers.producers.items()}
    assert {one: len(batches) for one, batches in before.items()} == {1: 5, 2: 4, 3: 3}
    log = stop(tmp_path, log)
    assert {one: entry.batches for one, entry in log.producers.producers.items()} == before


def test_kafka_reads_each_producers_last_batch_from_a_snapshot() -> None:
    """Kafka keeps each producer's last row, unless it has expired, and any transaction in a row."""
    entry = ProducerEntry(7)
    for number, timestamp in enumerate((5_000, 9_000, 7_000)):
        entry.note(header(number, offset=20 + number, timestamp=timestamp))
    entry.current_txn_first_offset = 21
    rows = list(snapshot_rows(format_snapshot([entry, ProducerEntry(8)])))
    assert [(row.producer_id, row.last_sequence, row.last_offset) for row in rows] == [
        (7, 0, 20), (7, 1, 21), (7, 2, 22), (8, -1, -1),
    ]  # fmt: skip
    assert [row.timestamp_ms for row in rows] == [5_000, 7_000, 7_000, -1]
    assert [row.current_txn_first_offset for row in rows] == [-1, -1, 21, -1]
