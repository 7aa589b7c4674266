from __future__ import annotations

import tracemalloc
from typing import Any

import pytest

from kbroker.storage.producer_state import (
    ProducerEntry,
    ProducerState,
    RememberedBatch,
    TransactionMarker,
    format_snapshot,
    parse_snapshot,
    read_marker,
)
from tests.storage.logs import batch
from wire.batch_header import MAX_SEQUENCE, BatchHeader
from wire.errors import ErrorCode, KafkaError
from wire.record_batch import Record, build_batch

PRODUCER = 7


def header(
    sequence: int,
    *,
    count: int = 1,
    offset: int = 0,
    epoch: int = 0,
    timestamp: int = 1_000,
    producer_id: int = PRODUCER,
    **given: Any,
) -> BatchHeader:
    data = batch(
        count,
        base_offset=offset,
        timestamp=timestamp,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        **given,
    )
    return BatchHeader(data)


def state_after(*headers: BatchHeader) -> ProducerState:
    state = ProducerState()
    for one in headers:
        assert state.check(one) is None
        state.note(one)
    return state


def refusal(state: ProducerState, one: BatchHeader) -> ErrorCode:
    with pytest.raises(KafkaError) as raised:
        state.check(one)
    return raised.value.code


def test_an_unknown_producer_may_begin_with_any_sequence() -> None:
    assert ProducerState().check(header(41)) is None


def test_the_next_sequence_follows_the_last() -> None:
    state = state_after(header(0, count=3))
    assert state.check(header(3)) is None
    assert refusal(state, header(4)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert refusal(state, header(2)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_the_last_five_batches_are_recognised_as_duplicates() -> None:
    sent = [header(2 * number, count=2, offset=100 + 2 * number, timestamp=5_000 + number) for number in range(6)]
    state = state_after(*sent)
    for one in sent[1:]:
        known = state.check(one)
        assert known is not None
        assert (known.first_offset, known.last_offset) == (one.base_offset, one.base_offset + 1)
        assert known.timestamp_ms == one.max_timestamp
    assert refusal(state, sent[0]) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_part_of_a_known_batch_is_not_a_duplicate() -> None:
    state = state_after(header(0, count=4))
    assert refusal(state, header(0, count=3)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert refusal(state, header(1, count=3)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_sequences_wrap_to_zero() -> None:
    state = state_after(header(MAX_SEQUENCE - 1, count=2))
    assert state.check(header(0, offset=2)) is None
    # A batch across the wrap has last sequence 0, so 1 follows; it is recognised as a duplicate.
    across = header(MAX_SEQUENCE, count=2, offset=2)
    state = state_after(across)
    assert state.check(header(1, offset=4)) is None
    known = state.check(across)
    assert known is not None
    assert (known.first_sequence, known.last_sequence) == (MAX_SEQUENCE, 0)


def test_an_older_epoch_is_fenced() -> None:
    state = state_after(header(0, epoch=3))
    assert refusal(state, header(1, epoch=2)) is ErrorCode.INVALID_PRODUCER_EPOCH


def test_a_new_epoch_begins_at_zero_and_forgets_the_batches() -> None:
    state = state_after(header(0, epoch=1))
    assert refusal(state, header(1, epoch=2)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    state.note(header(0, epoch=2, offset=1))
    assert len(state.producers[PRODUCER].batches) == 1
    assert refusal(state, header(0, epoch=1)) is ErrorCode.INVALID_PRODUCER_EPOCH


def test_batches_of_one_append_are_checked_in_turn() -> None:
    state = ProducerState()
    pending: dict[int, ProducerEntry] = {}
    assert state.check(header(0), pending) is None
    assert state.check(header(1), pending) is None
    with pytest.raises(KafkaError):
        state.check(header(3), pending)
    assert not state.producers, "a check changes nothing"


def test_a_batch_without_a_producer_is_not_checked() -> None:
    state = ProducerState()
    plain = BatchHeader(batch())
    assert state.check(plain) is None
    state.note(plain)
    assert len(state) == 0
    assert state.end_offset == 1


def test_idle_producers_expire_unless_in_a_transaction() -> None:
    state = state_after(header(0, timestamp=1_000))
    assert state.expire(1_000, 100) == 0
    assert state.expire(1_000 + 99, 100) == 0
    assert state.expire(1_000 + 100, 100) == 1
    state = state_after(header(0, timestamp=1_000, is_transactional=True))
    assert state.expire(1_000, 100) == 0
    assert state.expire(999_999, 100) == 0


def test_a_producer_of_old_timestamps_is_not_idle() -> None:
    """Otherwise a batch that it resends after a crash would count as new."""
    state = state_after(header(0, timestamp=1))
    assert state.expire(1_000, 100) == 0, "it has just sent a batch"
    state.note(header(1, offset=1, timestamp=2))
    assert state.expire(1_099, 100) == 0, "and again"
    assert state.expire(1_198, 100) == 0
    assert state.expire(1_199, 100) == 1


def test_a_restored_producer_is_idle_since_its_segments_last_write() -> None:
    before = state_after(*(header(0, producer_id=one, offset=one, timestamp=1) for one in (7, 8, 9)))
    snapshot = parse_snapshot(before.format_snapshot())
    assert [entry.heard_ms for entry in snapshot] == [-1] * 3, "it has only record timestamps"
    snapshot[1].heard_ms = 901
    state = ProducerState()
    state.restore(10, snapshot)
    state.note(header(1, offset=10, timestamp=2))
    assert state.expire(1_000, 100) == 1
    assert list(state.producers) == [7, 8]
    assert state.expire(1_001, 100) == 1
    assert list(state.producers) == [7]


def test_transactions_are_unstable_until_the_high_watermark_passes_their_marker() -> None:
    state = state_after(header(0, offset=10, is_transactional=True), header(1, offset=11, is_transactional=True))
    assert state.first_unstable_offset == 10
    assert refusal(state, header(2)) is ErrorCode.INVALID_TXN_STATE
    marker = build_batch(
        [Record(-1, 1_000, b"\0\0\0\1", b"\0\0\0\0\0\5")],
        base_offset=12,
        producer_id=PRODUCER,
        producer_epoch=0,
        is_transactional=True,
        is_control=True,
    )
    said = read_marker(marker, 0)
    assert said == TransactionMarker(is_commit=True, coordinator_epoch=5)
    state.note(BatchHeader(marker), said)
    assert state.first_unstable_offset == 10
    state.on_high_watermark(12)
    assert state.first_unstable_offset == 10
    state.on_high_watermark(13)
    assert state.first_unstable_offset is None
    assert state.producers[PRODUCER].coordinator_epoch == 5


def test_a_snapshot_has_kafkas_format() -> None:
    written_by_kafka = bytes.fromhex(
        "0001e93702cb0000000100000000000000000000000012f200000000"
        "000012f200000008000001a1fe74f09dffffffffffffffffffffffff"
    )
    (entry,) = parse_snapshot(written_by_kafka)
    assert (entry.producer_id, entry.producer_epoch, entry.coordinator_epoch) == (0, 0, -1)
    assert list(entry.batches) == [RememberedBatch(4850, 4850, 8, 1795270439069)]
    assert format_snapshot([entry]) == written_by_kafka
    assert format_snapshot([]).hex() == "0001" + "48674bc7" + "00000000"


def test_a_snapshot_survives_a_round_trip() -> None:
    state = state_after(header(0, count=3, offset=20, is_transactional=True))
    copy = ProducerState()
    copy.restore(23, parse_snapshot(state.format_snapshot()))
    assert copy.end_offset == 23
    assert copy.open_transactions == {20: PRODUCER}
    assert copy.check(header(3, offset=23, is_transactional=True)) is None
    assert copy.check(header(0, count=3, is_transactional=True)) == state.producers[PRODUCER].batches[-1]


@pytest.mark.parametrize("damage", ["cut", "flip", "version", "empty", "count"])
def test_d5_a_damaged_snapshot_raises_value_error(damage: str) -> None:
    good = state_after(header(0)).format_snapshot()
    bad = {
        "cut": good[:-1],
        "flip": good[:20] + bytes([good[20] ^ 1]) + good[21:],
        "version": b"\0\2" + good[2:],
        "empty": b"",
        "count": good[:9] + b"\2" + good[10:],
    }[damage]
    with pytest.raises(ValueError):
        parse_snapshot(bad)


def newcomer(producer_id: int, offset: int, *, sequence: int = 0, transactional: bool = False) -> BatchHeader:
    """A batch of a producer, usually its first."""
    return header(sequence, offset=offset, producer_id=producer_id, is_transactional=transactional)


def test_w12_above_100000_producers_the_oldest_are_evicted() -> None:
    state, first = ProducerState(), header(0)
    for number in range(120_000):
        first.producer_id = first.base_offset = number
        state.note(first)
    assert 90_000 <= len(state) <= 100_000
    assert min(state.producers) > 19_999
    assert set(state.producers) == set(range(min(state.producers), 120_000))


def test_w12_a_producer_that_sends_again_is_not_evicted() -> None:
    state = ProducerState(limit=10)
    for number in range(10):
        state.note(newcomer(number, number))
    state.note(newcomer(0, 10, sequence=1))
    state.note(newcomer(99, 11))
    assert set(state.producers) == {0, 2, 3, 4, 5, 6, 7, 8, 9, 99}
    assert state.check(newcomer(1, 12, sequence=5)) is None, "an evicted producer is unknown"


def test_w12_a_producer_in_a_transaction_is_not_evicted() -> None:
    state = ProducerState(limit=3)
    for number in range(3):
        state.note(newcomer(number, number, transactional=number < 2))
    for number in range(3, 9):
        state.note(newcomer(number, number))
    assert set(state.producers) == {0, 1, 8}


def test_w12_a_state_above_the_limit_shrinks_with_the_next_producer() -> None:
    larger = ProducerState(limit=100)
    for number in range(100):
        larger.note(newcomer(number, number))
    state = ProducerState(limit=32)
    state.restore(100, parse_snapshot(larger.format_snapshot()))
    state.note(newcomer(500, 100))
    assert len(state) == 31
    assert {99, 500} <= set(state.producers)


def test_w12_a_producer_costs_less_than_700_bytes() -> None:
    state, count = ProducerState(), 5_000
    headers = [newcomer(10**9 + number, 10**9 + number) for number in range(count)]
    tracemalloc.start()
    for one in headers:
        state.note(one)
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert used / count < 700
