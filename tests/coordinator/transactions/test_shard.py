"""The bounds of a shard: what a timer does at once, and how many ids it holds."""

from __future__ import annotations

import pytest

from kbroker.config.transactions import TransactionSettings
from kbroker.coordinator.common.ports import Decided
from kbroker.coordinator.transactions.records import TransactionRecord, decode_record
from kbroker.coordinator.transactions.shard import BYTES_OF_AN_ID, SCANNED_AT_ONCE, TransactionShard
from kbroker.coordinator.transactions.state import (
    COMPLETE_COMMIT,
    ONGOING,
    PREPARE_ABORT,
    Transaction,
    TransactionState,
)
from kbroker.coordinator.transactions.transitions import Init, Step
from wire.errors import ErrorCode, Malformed

SETTINGS = TransactionSettings(
    transaction_abort_timed_out_transaction_cleanup_interval_ms=10_000,
    transaction_remove_expired_transaction_cleanup_interval_ms=10_000,
    transactional_id_expiration_ms=5_000,
)


def shard(*, max_ids: int = 10**6, ids: int = 0, state: TransactionState = ONGOING) -> TransactionShard:
    """A shard with some ids whose transactions began at 0 and may take a second."""
    made = TransactionShard(SETTINGS, server_version=lambda: 2, max_ids=max_ids)
    for number in range(ids):
        store(made, f"x{number}", state)
    made.on_loaded(now_ms=0, timestamp_ms=0)
    return made


def store(to: TransactionShard, name: str, state: TransactionState) -> None:
    known = Transaction(
        name, 7, 1, timeout_ms=1_000, state=state, start_timestamp_ms=0, last_update_timestamp_ms=0, partitions={}
    )
    to.replay(*stored(name, known))


def stored(name: str, known: Transaction | None) -> tuple[bytes, bytes | None]:
    record = TransactionRecord(name, known, 2)
    return record.key, record.value


def on_time(of: TransactionShard, now_ms: int) -> Decided:
    decided = of.on_time(now_ms=now_ms, timestamp_ms=now_ms)
    of.on_appended(decided, now_ms=now_ms, timestamp_ms=now_ms)
    return decided


def test_many_timed_out_transactions_are_aborted_in_several_decisions() -> None:
    found = shard(ids=2 * SCANNED_AT_ONCE + 1)
    sizes, now_ms = [], 10_000
    while (due_ms := found.next_deadline_ms()) is not None and due_ms <= now_ms:
        sizes.append(len(on_time(found, now_ms).records))
        now_ms += 1
    assert sizes == [SCANNED_AT_ONCE, SCANNED_AT_ONCE, 1]
    assert {known.state for known in found.transactions.values()} == {PREPARE_ABORT}
    assert len(found.take_timed_out()) == found.timed_out_count == len(found.take_endings()) == 2 * SCANNED_AT_ONCE + 1


def test_many_expired_ids_are_removed_in_several_decisions() -> None:
    found = shard(ids=SCANNED_AT_ONCE + 1, state=TransactionState.COMPLETE_COMMIT)
    store(found, "open", PREPARE_ABORT)
    assert len(on_time(found, 10_000).records) == SCANNED_AT_ONCE
    assert {record.value for record in on_time(found, 10_001).records} == {None}
    assert list(found.transactions) == ["open"]


def initialize(at: TransactionShard, name: str) -> Step:
    decided = at.decide(Init(name, 1_000), 99, now_ms=0, timestamp_ms=0)
    at.on_appended(decided, now_ms=0, timestamp_ms=0)
    assert isinstance(decided.response, Step)
    return decided.response


def test_ids_that_are_idle_longest_make_room() -> None:
    found = shard(max_ids=3, ids=1)
    for name in ("a", "b", "c", "d"):
        assert initialize(found, name).code == 0
        assert initialize(found, "a" if name == "b" else name).code == 0
    assert set(found.transactions) == {"x0", "c", "d"}


def test_long_ids_take_the_room_of_several() -> None:
    found = shard(max_ids=4)
    for name in ("a", "b", "c"):
        initialize(found, name)
    assert initialize(found, "l" * (4 * BYTES_OF_AN_ID - 1)).code == 0
    assert {len(name) for name in found.transactions} == {1, 4 * BYTES_OF_AN_ID - 1}
    assert initialize(found, "l" * (4 * BYTES_OF_AN_ID + 1)).code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    initialize(found, "d")
    assert sum(map(len, found.transactions)) <= 4 * BYTES_OF_AN_ID


def test_records_that_are_never_stored_are_malformed() -> None:
    key, value = stored("x", Transaction("x", 7, 1, state=TransactionState.EMPTY))
    assert value is not None
    place = value.index(bytes([7, 0, 1])) + 3 + 4  # after producer id, epoch and timeout
    for status in (6, 7, 8, 127):
        damaged = value[:place] + bytes([status]) + value[place + 1 :]
        with pytest.raises(Malformed, match=f"status {status}"):
            decode_record(key, damaged)
    assert decode_record(b"\x00\x05later", value) is None


def test_expiry_pauses_after_a_failed_append() -> None:
    found = shard(ids=SCANNED_AT_ONCE, state=COMPLETE_COMMIT)
    decided = found.on_time(now_ms=20_000, timestamp_ms=20_000)
    assert len(decided.records) == SCANNED_AT_ONCE
    found.on_append_failed(decided, ErrorCode.NOT_ENOUGH_REPLICAS, now_ms=20_000, timestamp_ms=20_000)
    assert not found.on_time(now_ms=20_002, timestamp_ms=20_002).records
    assert len(found.on_time(now_ms=40_000, timestamp_ms=40_000).records) == SCANNED_AT_ONCE


def test_an_id_of_the_newer_protocol_can_be_used_after_a_downgrade() -> None:
    version = 2
    made = TransactionShard(SETTINGS, server_version=lambda: version)
    known = Transaction("x", 7, 1, timeout_ms=1_000, state=COMPLETE_COMMIT, client_version=2)
    made.replay(*stored("x", known))
    made.on_loaded(now_ms=0, timestamp_ms=0)
    version = 0
    decided = made.decide(Init("x", 1_000), -1, now_ms=1, timestamp_ms=1)
    assert decided.response.code is ErrorCode.NONE
