"""Generated histories of one shard: several producers with one transactional id, lost replies, delayed requests, time,
markers in any order, and restarts from the log.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kbroker.config.transactions import TransactionSettings
from kbroker.coordinator.common.ports import Decided
from kbroker.coordinator.transactions.markers import Ending
from kbroker.coordinator.transactions.records import TransactionRecord
from kbroker.coordinator.transactions.shard import TransactionShard
from kbroker.coordinator.transactions.state import (
    COMPLETE_ABORT,
    COMPLETE_COMMIT,
    LAST_EPOCH_OF_CLIENTS,
    ONGOING,
    PREPARE_COMMIT,
    PREPARED,
    Transaction,
)
from kbroker.coordinator.transactions.transitions import NEEDS_PRODUCER_ID, Add, End, Init, Step, Verify
from wire.errors import ErrorCode

NAMES = ("x", "y")
PARTITIONS = [("t", 0), ("t", 1), ("u", 0)]
TIMEOUT_MS = 1_000
SETTINGS = TransactionSettings(
    transaction_abort_timed_out_transaction_cleanup_interval_ms=100,
    transaction_remove_expired_transaction_cleanup_interval_ms=500,
    transactional_id_expiration_ms=20_000,
)


class History(RuleBasedStateMachine):
    """All clients speak one protocol; the epochs of x start just below the last one."""

    @initialize(version=st.sampled_from([0, 1, 2]))
    def begin(self, version: int) -> None:
        self.version = version
        self.now_ms = 0
        self.next_id = 100
        self.log: list[tuple[bytes, bytes | None]] = []
        self.endings: list[Ending] = []
        self.producers: dict[str, list[tuple[int, int]]] = {name: [] for name in NAMES}
        self.decided: list[Transaction] = []
        self.ended: list[End] = []
        self.results: dict[str, list[bool]] = {name: [] for name in NAMES}
        self.open: dict[str, set[tuple[str, int]]] = {name: set() for name in NAMES}
        self.shard = self.fresh()
        known = Transaction(
            "x", 50, LAST_EPOCH_OF_CLIENTS - 3, state=COMPLETE_COMMIT, start_timestamp_ms=0, last_update_timestamp_ms=0
        )
        self.apply(Decided([TransactionRecord("x", known, version)], None))
        self.apply(self.shard.on_loaded(now_ms=0, timestamp_ms=0))

    def fresh(self) -> TransactionShard:
        return TransactionShard(SETTINGS, server_version=lambda: self.version)

    def apply(self, decided: Any) -> None:
        """Append the records and replay them, as the runtime does."""
        for record in decided.records:
            self.log.append((record.key, record.value))
            if record.transaction is not None and record.transaction.state in PREPARED:
                self.decided.append(record.transaction)
                self.results[record.transactional_id].append(record.transaction.state is PREPARE_COMMIT)
        self.shard.on_appended(decided, now_ms=self.now_ms, timestamp_ms=self.now_ms)
        self.endings += self.shard.take_endings()

    def ask(self, request: Any) -> Any:
        decided = self.shard.decide(request, -1, now_ms=self.now_ms, timestamp_ms=self.now_ms)
        if decided.response is NEEDS_PRODUCER_ID:
            self.next_id += 1
            decided = self.shard.decide(request, self.next_id, now_ms=self.now_ms, timestamp_ms=self.now_ms)
        self.apply(decided)
        return decided.response

    def producer(self, name: str, age: int) -> tuple[int, int]:
        known = self.producers[name]
        return known[-1 - age % len(known)] if known else (1, 0)

    @rule(name=st.sampled_from(NAMES), age=st.integers(0, 3), is_new=st.booleans(), is_lost=st.booleans())
    def init(self, name: str, age: int, is_new: bool, is_lost: bool) -> None:
        who = (-1, -1) if is_new or not self.producers[name] else self.producer(name, age)
        step: Step = self.ask(Init(name, TIMEOUT_MS, *who))
        if step.code is ErrorCode.NONE:
            assert 0 <= step.producer_epoch <= LAST_EPOCH_OF_CLIENTS
            if not is_lost:
                self.producers[name].append((step.producer_id, step.producer_epoch))

    @rule(name=st.sampled_from(NAMES), age=st.sampled_from([0, 0, 0, 1, 2]), which=st.sampled_from(PARTITIONS))
    def add(self, name: str, age: int, which: tuple[str, int]) -> None:
        client_version = 2 if self.version == 2 else 0
        before = self.shard.transactions.get(name)
        step: Step = self.ask(Add(name, *self.producer(name, age), [which], client_version))
        if step.code is ErrorCode.NONE:
            assert before is not None
            if before.state is not ONGOING:
                self.open[name] = set()
            self.open[name].add(which)
            known = self.shard.transactions[name]
            assert set(known.partitions) == self.open[name]
            assert self.ask(Verify(name, known.producer_id, known.producer_epoch, [which])) == {which: ErrorCode.NONE}

    @rule(
        name=st.sampled_from(NAMES), age=st.sampled_from([0, 0, 0, 1]), is_commit=st.booleans(), is_lost=st.booleans()
    )
    def end(self, name: str, age: int, is_commit: bool, is_lost: bool) -> None:
        client_version = 2 if self.version == 2 else 0
        request = End(name, *self.producer(name, age), is_commit, client_version)
        before = self.shard.transactions.get(name)
        step: Step = self.ask(request)
        after = self.shard.transactions.get(name)
        if step.code is not ErrorCode.NONE:
            assert after == before
            return
        assert after is not None
        assert (after.state in (PREPARE_COMMIT, COMPLETE_COMMIT)) == is_commit
        self.ended.append(request)
        if client_version == 2 and not is_lost:
            assert step.producer_epoch <= LAST_EPOCH_OF_CLIENTS
            self.producers[name].append((step.producer_id, step.producer_epoch))

    @rule(
        name=st.sampled_from(NAMES),
        partitions=st.lists(st.sampled_from(PARTITIONS), min_size=1, max_size=4),
        is_commit=st.booleans(),
        is_lost=st.booleans(),
        is_marked=st.booleans(),
    )
    def transact(
        self, name: str, partitions: list[tuple[str, int]], is_commit: bool, is_lost: bool, is_marked: bool
    ) -> None:
        """What a producer without faults does, from where it is."""
        for _ in range(2):
            while self.endings:
                self.markers_are_written(0, False)
            if not self.is_current(name):
                self.init(name, 0, True, False)
        for which in partitions:
            self.add(name, 0, which)
        assert set(self.shard.transactions[name].partitions) >= set(partitions)
        self.end(name, 0, is_commit, is_lost)
        assert self.results[name][-1] == is_commit
        if is_marked:
            self.markers_are_written(-1, True)

    def is_current(self, name: str) -> bool:
        """Whether the latest producer that knows its epoch can go on."""
        known = self.shard.transactions.get(name)
        return known is not None and self.producer(name, 0) == (known.producer_id, known.producer_epoch)

    @precondition(lambda self: self.ended)
    @rule(which=st.integers(0, 1000))
    def a_delayed_end_arrives_again(self, which: int) -> None:
        """With version 2 it changes nothing; before, it can end a later transaction of the same producer."""
        request = self.ended[which % len(self.ended)]
        before = self.shard.transactions.get(request.transactional_id)
        if self.version == 2:
            self.ask(request)
            assert self.shard.transactions.get(request.transactional_id) == before

    @precondition(lambda self: self.endings)
    @rule(which=st.integers(0, 1000), is_late=st.booleans())
    def markers_are_written(self, which: int, is_late: bool) -> None:
        ending = self.endings.pop(which % len(self.endings))
        before = (
            self.shard.transactions[ending.transaction.transactional_id] if self.shard.is_prepared(ending) else None
        )
        self.apply(self.shard.complete([ending], now_ms=self.now_ms, timestamp_ms=self.now_ms))
        if before is not None:
            after = self.shard.transactions[ending.transaction.transactional_id]
            assert after.state is (COMPLETE_COMMIT if before.state is PREPARE_COMMIT else COMPLETE_ABORT)
            assert ending.transaction == before
            assert set(ending.remaining) == set(before.partitions)
        if is_late:
            assert not self.shard.complete([ending], now_ms=self.now_ms, timestamp_ms=self.now_ms).records

    @rule(ms=st.sampled_from([1, 100, 900, 30_000]))
    def time_passes(self, ms: int) -> None:
        self.now_ms += ms
        if (self.shard.next_deadline_ms() or 0) <= self.now_ms:
            self.apply(self.shard.on_time(now_ms=self.now_ms, timestamp_ms=self.now_ms))
        for known in self.shard.transactions.values():
            if known.state is ONGOING:
                assert self.now_ms - known.start_timestamp_ms <= TIMEOUT_MS + 100 + ms

    @rule()
    def the_coordinator_restarts(self) -> None:
        before = self.shard
        before.unload(now_ms=self.now_ms, timestamp_ms=self.now_ms)
        assert all(
            ending.is_cancelled
            for ending in self.endings
            if before.transactions.get(ending.transaction.transactional_id)
        )
        self.shard, self.endings = self.fresh(), []
        for key, value in self.log:
            self.shard.replay(key, value)
        assert {name: stored(one, self.version) for name, one in before.transactions.items()} == {
            name: stored(one, self.version) for name, one in self.shard.transactions.items()
        }
        self.apply(self.shard.on_loaded(now_ms=self.now_ms, timestamp_ms=self.now_ms))
        prepared = {name for name, one in self.shard.transactions.items() if one.state in PREPARED}
        assert {ending.transaction.transactional_id for ending in self.endings} == prepared

    @invariant()
    def epochs_of_a_producer_id_never_fall(self) -> None:
        latest: dict[int, int] = {}
        for one in getattr(self, "decided", ()):
            assert latest.get(one.producer_id, -1) <= one.producer_epoch
            latest[one.producer_id] = one.producer_epoch


def stored(known: Transaction, version: int) -> Transaction:
    """What a restart keeps of a value."""
    kept = replace(known, last_producer_epoch=-1)
    if version == 0:
        kept = replace(kept, previous_producer_id=-1, next_producer_id=-1, client_version=0)
    return kept


TestHistories = History.TestCase
TestHistories.settings = settings(max_examples=40, stateful_step_count=60, deadline=None)
