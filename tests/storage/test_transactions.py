"""Transactions in one log: markers, the transaction indexes, recovery, truncation, snapshots, verification."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kbroker.runtime.disk import RealDisk
from kbroker.storage.control_records import marker_batch
from kbroker.storage.files import FilePool
from kbroker.storage.log import Log
from kbroker.storage.producer_state import NO_OFFSET, ProducerEntry, ProducerState, parse_snapshot, read_marker
from kbroker.storage.transaction_index import AbortedTransaction, TransactionIndex
from kbroker.storage.verification import NO_VERIFICATION, Verification
from tests.storage.logs import append_as_follower, batch, open_log, read_all
from tests.storage.test_log import SMALL
from tests.storage.test_recovery import crash
from tests.storage.transactions import Producers, indexed, txnindex_files
from wire.batch_header import BatchHeader
from wire.errors import ErrorCode, KafkaError
from wire.record_batch import RecordBatch

P, Q = 7, 8


def sent(sequence: int, *, producer_id: int = P, epoch: int = 0, transactional: bool = True) -> bytearray:
    return batch(producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence, is_transactional=transactional)


def code_of_append(log: Log, data: bytearray, **given: Any) -> ErrorCode:
    try:
        log.commit(_written(log, log.plan_append(data, leader_epoch=0, timestamp_ms=0, **given)))
    except KafkaError as error:
        return error.code
    return ErrorCode.NONE


def code_of_marker(
    log: Log, epoch: int, *, producer_id: int = P, coordinator_epoch: int = 0, version: int = 0, commit: bool = False
) -> ErrorCode:
    data = marker_batch(producer_id, epoch, is_commit=commit, coordinator_epoch=coordinator_epoch, timestamp_ms=1_000)
    try:
        plan = log.plan_marker(data, leader_epoch=0, timestamp_ms=0, transaction_version=version)
    except KafkaError as error:
        return error.code
    log.commit(_written(log, plan))
    return ErrorCode.NONE


def _written(log: Log, plan: Any) -> Any:
    log.write(plan)
    return plan


# --- markers ---


def test_a_marker_has_kafkas_bytes() -> None:
    made = RecordBatch(marker_batch(5, 2, is_commit=True, coordinator_epoch=9, timestamp_ms=77))
    (record,) = made.records()
    assert (made.is_control, made.is_transactional, made.base_sequence, made.max_timestamp) == (True, True, -1, 77)
    assert (record.key, record.value) == (b"\0\0\0\1", b"\0\0\0\0\0\x09")
    marker = read_marker(made.data, 0)
    assert marker == (True, 9)


def test_a_marker_of_an_old_coordinator_is_fenced(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    assert code_of_marker(log, 0, coordinator_epoch=5) is ErrorCode.NONE
    assert code_of_marker(log, 0, coordinator_epoch=4) is ErrorCode.TRANSACTION_COORDINATOR_FENCED
    assert code_of_marker(log, 0, coordinator_epoch=5) is ErrorCode.NONE


def test_a_marker_with_an_old_producer_epoch_is_refused(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    assert code_of_append(log, sent(0, epoch=3)) is ErrorCode.NONE
    assert code_of_marker(log, 2) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert code_of_marker(log, 3) is ErrorCode.NONE, "the classic protocol ends a transaction with its own epoch"


def test_r11_a_late_marker_with_an_equal_epoch_is_refused(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    assert code_of_append(log, sent(0, epoch=3)) is ErrorCode.NONE
    assert code_of_marker(log, 4, version=2, commit=True) is ErrorCode.NONE
    assert code_of_marker(log, 4, version=2, commit=True) is ErrorCode.NONE, "a retry: no transaction is open"
    assert code_of_append(log, sent(0, epoch=4)) is ErrorCode.NONE
    assert code_of_marker(log, 4, version=2, commit=True) is ErrorCode.INVALID_PRODUCER_EPOCH
    log.producers.on_high_watermark(log.log_end_offset)
    assert log.producers.first_unstable_offset == 3, "the next transaction is still open"


def test_the_last_epoch_may_end_its_own_transaction(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    assert code_of_append(log, sent(0, epoch=32_767)) is ErrorCode.NONE
    assert code_of_marker(log, 32_767, version=2) is ErrorCode.NONE


# --- sequences ---


def test_an_aborted_batch_is_no_duplicate_of_the_next_epoch(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    producers = Producers(log, epoch_for_each_transaction=True)
    producers.write(P)
    producers.end(P)
    plan = log.plan_append(sent(0, epoch=1), leader_epoch=0, timestamp_ms=0)
    assert (plan.is_duplicate, plan.first_offset) == (False, 2), "an old offset would be that of an aborted record"
    assert code_of_append(log, sent(0)) is ErrorCode.INVALID_PRODUCER_EPOCH


def test_a_retry_within_five_batches_is_never_out_of_order(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    producers = Producers(log)
    offsets = [producers.write(P) for _ in range(7)]
    for number in range(7):
        if number < 2:
            assert code_of_append(log, sent(number)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
            continue
        plan = log.plan_append(sent(number), leader_epoch=0, timestamp_ms=0)
        assert (plan.is_duplicate, plan.first_offset) == (True, offsets[number])
    producers.end(P, commit=True)
    plan = log.plan_append(sent(6), leader_epoch=0, timestamp_ms=0)
    assert (plan.is_duplicate, plan.first_offset) == (True, offsets[6]), "the reply was lost, then the marker came"


def test_sequences_continue_after_a_marker_of_the_same_epoch(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    producers = Producers(log)
    producers.write(P)
    producers.end(P)
    assert code_of_append(log, sent(0, epoch=1)) is ErrorCode.NONE, "a new epoch begins at 0"
    assert code_of_append(log, sent(2, epoch=1)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert code_of_append(log, sent(1, epoch=2)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_non_transactional_batch_is_refused_during_a_transaction(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    Producers(log).write(P)
    assert code_of_append(log, sent(1, transactional=False)) is ErrorCode.INVALID_TXN_STATE
    assert code_of_append(log, sent(5, transactional=False)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, "as in Kafka"


def test_a_coordinators_batch_needs_no_sequence(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for epoch in (0, 0, 1, 1):
        assert code_of_append(log, sent(-1, epoch=epoch)) is ErrorCode.NONE
    assert code_of_append(log, sent(-1)) is ErrorCode.INVALID_PRODUCER_EPOCH


# --- verification ---


def begin(log: Log, *, sequence: int = 0, epoch: int = 0, adds: bool = False) -> Verification:
    return log.producers.verifications.begin(P, epoch=epoch, sequence=sequence, adds=adds, timestamp_ms=0)


def test_a_marker_between_verification_and_append_refuses_the_append(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    verified = begin(log)
    assert code_of_marker(log, 0) is ErrorCode.NONE
    assert code_of_append(log, sent(0), verification=verified) is ErrorCode.INVALID_TXN_STATE
    assert code_of_append(log, sent(0), verification=begin(log)) is ErrorCode.NONE
    assert code_of_append(log, sent(1), verification=NO_VERIFICATION) is ErrorCode.NONE, "it is open now"
    assert not log.producers.verifications


def test_an_open_transaction_that_ended_needs_a_verification(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    producers = Producers(log)
    producers.write(P)
    producers.end(P, commit=True)
    assert code_of_append(log, sent(1), verification=NO_VERIFICATION) is ErrorCode.INVALID_TXN_STATE
    retry = log.plan_append(sent(0), leader_epoch=0, timestamp_ms=0, verification=NO_VERIFICATION)
    assert retry.is_duplicate, "a retry is recognised first"


def test_the_marker_of_the_previous_epoch_keeps_an_adding_verification(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    assert code_of_append(log, sent(0, epoch=1)) is ErrorCode.NONE
    verified = begin(log, epoch=2, adds=True)
    assert code_of_marker(log, 2, version=2, commit=True) is ErrorCode.NONE
    assert code_of_append(log, sent(0, epoch=2), verification=verified) is ErrorCode.NONE
    verified = begin(log, epoch=3, adds=True)
    assert code_of_marker(log, 4, version=2) is ErrorCode.NONE
    assert code_of_append(log, sent(0, epoch=4), verification=verified) is ErrorCode.INVALID_TXN_STATE


def test_the_lowest_verified_sequence_is_written_first(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    begin(log, sequence=1)
    verified = begin(log, sequence=0)
    assert code_of_append(log, sent(1), verification=verified) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert code_of_append(log, sent(0), verification=verified) is ErrorCode.NONE


# --- the transaction index ---


def test_only_aborted_transactions_with_data_are_indexed(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    producers = Producers(log)
    producers.end(Q)  # without data
    producers.write(P)
    producers.write(Q)
    producers.end(P, commit=True)
    producers.write(P)
    producers.end(Q)
    producers.end(P)
    assert indexed(log) == [AbortedTransaction(Q, 2, 5, 4), AbortedTransaction(P, 4, 6, 7)] == producers.aborted
    assert not txnindex_files(tmp_path), "entries are written by a flush of the indexes, a roll or a close"
    log.close()
    (path,) = txnindex_files(tmp_path)
    assert path.read_bytes().hex() == "".join(
        f"0000{one.producer_id:016x}{one.first_offset:016x}{one.last_offset:016x}{one.last_stable_offset:016x}"
        for one in producers.aborted
    )
    assert indexed(open_log(tmp_path, clean_shutdown=True)) == producers.aborted


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 1 << 30), bumps=st.booleans())
def test_indexes_survive_closes_crashes_and_truncations(
    tmp_path_factory: pytest.TempPathFactory, seed: int, bumps: bool
) -> None:
    rng, directory = random.Random(seed), tmp_path_factory.mktemp("log")
    log = open_log(directory, config=SMALL)
    producers = Producers(log, epoch_for_each_transaction=bumps)
    recovery_point = 0
    for _ in range(3):
        producers.write_history(rng, 60)
        assert indexed(log) == producers.aborted
        unstable = log.producers.first_unstable_offset
        if rng.random() < 0.3:
            log.flush()
            recovery_point = log.recovery_point
        clean = rng.random() < 0.4
        if clean:
            log.close()
            recovery_point = log.recovery_point
        else:
            crash(log)
        log = producers.log = open_log(directory, config=SMALL, clean_shutdown=clean, recovery_point=recovery_point)
        log.producers.on_high_watermark(log.log_end_offset)
        assert indexed(log) == producers.aborted
        assert log.producers.open_transactions == {first: one for one, first in producers.open.items()}
        assert min(producers.open.values(), default=None) == log.producers.first_unstable_offset
        assert unstable is None or unstable <= (log.producers.first_unstable_offset or log.log_end_offset)
    offset = rng.randrange(log.log_end_offset)
    log.truncate_to(offset)
    assert indexed(log) == [one for one in producers.aborted if one.last_offset < log.log_end_offset]
    reopened = open_log(directory, config=SMALL)
    assert indexed(reopened) == indexed(log)
    assert reopened.producers.open_transactions == log.producers.open_transactions


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 1 << 30))
def test_each_read_finds_the_aborted_transactions_of_its_records(
    tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    rng = random.Random(seed)
    log = open_log(tmp_path_factory.mktemp("log"), config=SMALL)
    producers = Producers(log)
    producers.write_history(rng, 150)
    for _ in range(30):
        first = rng.randrange(log.log_end_offset)
        end = rng.randint(first + 1, log.log_end_offset)
        overlapping = {one for one in producers.aborted if one.last_offset >= first and one.first_offset < end}
        found = log.aborted_between(first, end)
        assert set(found) == overlapping
        assert [one.first_offset for one in found] == sorted(one.first_offset for one in found)


@pytest.mark.parametrize("count", [1, 16, 17, 60])
def test_an_index_of_any_size_finds_what_a_look_at_all_entries_finds(tmp_path: Path, count: int) -> None:
    """Long ones are searched by the last offset. Every third transaction began long before its end."""
    spans = [(10 * at - (45 if at % 3 == 0 else 5), 10 * at) for at in range(5, 5 + count)]
    every = [
        AbortedTransaction(P, first, last, min([last + 1, *(other for other, end in spans if other < last < end)]))
        for first, last in spans
    ]
    pool = FilePool(RealDisk())
    for written in (False, True):
        index = TransactionIndex(pool, str(tmp_path / f"{written}.txnindex"), written=0)
        for one in every:
            index.add(one)
        if written:
            index.write_out()
        for first in range(0, 10 * (count + 6), 7):
            for end in (first + 1, first + 30, 10_000):
                found, _ = index.between(first, end)
                assert found == [one for one in every if one.last_offset >= first and one.first_offset < end]


@pytest.mark.parametrize("damage", ["cut", "garbage", "zeros"])
def test_d2_a_damaged_transaction_index_is_rebuilt(tmp_path: Path, damage: str) -> None:
    log = open_log(tmp_path, config=SMALL)
    producers = Producers(log)
    producers.write_history(random.Random(1), 200)
    log.close()
    paths = txnindex_files(tmp_path)
    assert len(paths) > 2
    for path in paths[1:]:
        if damage == "cut":
            os.truncate(path, path.stat().st_size - 5)
        else:
            path.write_bytes((b"\xff" if damage == "garbage" else b"\1") * path.stat().st_size)
    reports: list[str] = []
    log = open_log(tmp_path, config=SMALL, clean_shutdown=True, report=reports.append)
    assert len(reports) == len(paths) - 1
    assert indexed(log) == producers.aborted
    crash(log)
    assert indexed(open_log(tmp_path, config=SMALL, clean_shutdown=True)) == producers.aborted


def test_reads_at_the_tail_need_no_disk(tmp_path: Path) -> None:
    log = open_log(tmp_path, config=SMALL)
    producers = Producers(log)
    producers.write_history(random.Random(2), 200)
    log.flush()
    assert not log.aborted_may_block(log.log_end_offset - 1)
    log.close()
    log = open_log(tmp_path, config=SMALL, clean_shutdown=True)
    first = log.segments.first.base_offset
    log.files.pool.close()
    assert log.aborted_may_block(first)
    log.aborted_between(first, log.log_end_offset)
    assert not log.aborted_may_block(first), "the entries stay in memory with the open files"


# --- followers and snapshots ---


def test_a_follower_has_the_leaders_state_and_index(tmp_path: Path) -> None:
    (tmp_path / "leader").mkdir()
    (tmp_path / "follower").mkdir()
    leader = open_log(tmp_path / "leader", config=SMALL)
    follower = open_log(tmp_path / "follower", config=SMALL)
    producers = Producers(leader, epoch_for_each_transaction=True)
    producers.write_history(random.Random(3), 120)
    for one in read_all(leader):
        append_as_follower(follower, bytes(one.data))
    assert indexed(follower) == producers.aborted
    assert follower.producers.open_transactions == leader.producers.open_transactions
    assert follower.producers.format_snapshot() == leader.producers.format_snapshot()


def test_a_snapshot_has_the_open_transaction_in_kafkas_field(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    producers = Producers(log)
    producers.write(Q)
    producers.end(Q, coordinator_epoch=4)
    producers.write(P)
    entries = {one.producer_id: one for one in parse_snapshot(log.producers.format_snapshot())}
    assert entries[P].current_txn_first_offset == 2
    assert (entries[Q].current_txn_first_offset, entries[Q].coordinator_epoch) == (NO_OFFSET, 4)
    restored = ProducerState()
    restored.restore(3, [entries[P], ProducerEntry(Q, current_txn_first_offset=1)])
    assert restored.first_unstable_offset == 1, "in order of offsets, not of producers"


def test_many_ended_transactions_wait_for_the_high_watermark() -> None:
    state = ProducerState()
    for number in range(100):
        header = BatchHeader(
            batch(base_offset=2 * number, producer_id=P, producer_epoch=0, base_sequence=number, is_transactional=True)
        )
        state.note(header)
        data = bytearray(marker_batch(P, 0, is_commit=True, coordinator_epoch=0, timestamp_ms=0))
        marker = BatchHeader(data)
        marker.base_offset = 2 * number + 1
        state.note(marker, read_marker(data, 0))
    for high_watermark in range(201):
        state.on_high_watermark(high_watermark)
        expected = high_watermark // 2 * 2
        assert state.first_unstable_offset == (expected if expected < 200 else None)
