"""Every event in every state of a transactional id."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import pytest

from kbroker.coordinator.transactions.state import (
    IDLE,
    LAST_EPOCH_OF_CLIENTS,
    MAX_EPOCH,
    NO_PARTITIONS,
    ONGOING,
    PREPARE_EPOCH_FENCE,
    PREPARED,
    PREVIOUS,
    STORED,
    Transaction,
    TransactionState,
)
from kbroker.coordinator.transactions.transitions import (
    NEEDS_PRODUCER_ID,
    Add,
    End,
    Init,
    Step,
    Verify,
    add,
    complete,
    end,
    fence,
    has_timed_out,
    init,
    is_expired,
    verify,
)
from wire.errors import ErrorCode

NAME, ID, EPOCH, NEW_ID, NOW = "x", 7, 5, 99, 1_000_000
KNOWN, OTHER = ("t", 0), ("t", 1)


def transaction(state: TransactionState, *, version: int = 2, epoch: int = EPOCH) -> Transaction:
    """A transactional id in a state, as a client of a transaction.version leaves it there."""
    is_open = state is ONGOING or state in PREPARED or state is PREPARE_EPOCH_FENCE
    return Transaction(
        NAME,
        ID,
        producer_epoch=epoch,
        previous_producer_id=ID,
        last_producer_epoch=epoch - 1,
        timeout_ms=60_000,
        state=state,
        partitions={KNOWN: None} if is_open else NO_PARTITIONS,
        start_timestamp_ms=NOW - 10 if is_open else -1,
        last_update_timestamp_ms=NOW - 10,
        client_version=version,
    )


Event = Callable[[Transaction | None], Step]


def initialize(*, producer: tuple[int, int] = (-1, -1), version: int = 2) -> Event:
    request = Init(NAME, 30_000, *producer)
    return lambda known: init(known, request, server_version=version, new_producer_id=NEW_ID, timestamp_ms=NOW)


def ending(*, is_commit: bool, version: int, producer: tuple[int, int] = (ID, EPOCH)) -> Event:
    request = End(NAME, *producer, is_commit, version)
    return lambda known: end(known, request, new_producer_id=NEW_ID, timestamp_ms=NOW)


def adding(*partitions: tuple[str, int], producer: tuple[int, int] = (ID, EPOCH)) -> Event:
    return lambda known: add(known, Add(NAME, *producer, partitions, 2), timestamp_ms=NOW)


EVENTS: dict[str, Event] = {
    "init": initialize(),
    "init by the producer": initialize(producer=(ID, EPOCH)),
    "init again": initialize(producer=(ID, EPOCH - 1)),
    "add": adding(OTHER),
    "add again": adding(KNOWN),
    "commit": ending(is_commit=True, version=0),
    "abort": ending(is_commit=False, version=0),
    "commit v2": ending(is_commit=True, version=2),
    "abort v2": ending(is_commit=False, version=2),
    "commit v2 again": ending(is_commit=True, version=2, producer=(ID, EPOCH - 1)),
    "abort v2 again": ending(is_commit=False, version=2, producer=(ID, EPOCH - 1)),
}
TABLE = """
                     E        O        PC       PA       CC       CA       PF       D
init                 E+1      51:PA+1  51       51       E+1      E+1      51       51
init by the producer E+1      51:PA+1  51       51       E+1      E+1      51       51
init again           E+0      51:PA+1  51       51       E+0      E+0      51       51
add                  O+0      O+0      51       51       O+0      O+0      51       49
add again            O+0      0        51       51       O+0      O+0      51       49
commit               48       PC+0     51       51       0        48       51       49
abort                48       PA+0     51       51       48       0        51       49
commit v2            48       PC+1     51       51       48       48       51       49
abort v2             PA+1     PA+1     51       51       PA+1     PA+1     51       49
commit v2 again      90       90       51       51       0        48       51       49
abort v2 again       90       90       51       51       48       0        51       49
"""
"""Columns are states by their initials. A cell is an error code, and nothing changes; or the next state with the rise
of the epoch, after a code if the client gets an error nevertheless."""
STATES = {"".join(word[0] for word in state.name.split("_")): state for state in TransactionState} | {
    "PF": PREPARE_EPOCH_FENCE
}


class Cell(NamedTuple):
    event: str
    state: TransactionState
    outcome: str


def cells() -> list[Cell]:
    header, *rows = TABLE.strip("\n").splitlines()
    found = []
    for row in rows:
        event = max((name for name in EVENTS if row.startswith(name + " ")), key=len)
        outcomes = row[len(event) :].split()
        found += [Cell(event, STATES[label], text) for label, text in zip(header.split(), outcomes, strict=True)]
    return found


def test_the_table_has_every_state_and_event() -> None:
    assert {(cell.event, cell.state) for cell in cells()} == {
        (event, state) for event in EVENTS for state in TransactionState
    }


@pytest.mark.parametrize("cell", cells(), ids=lambda cell: f"{cell.event} in {cell.state.label}")
def test_each_event_in_each_state_has_the_result_of_the_table(cell: Cell) -> None:
    known = transaction(cell.state)
    step = EVENTS[cell.event](known)
    code, _, change = cell.outcome.rpartition(":")
    if change.isdigit():
        assert (step.code, step.after) == (int(change), None)
        return
    name, _, bump = change.partition("+")
    assert step.code == int(code or 0)
    assert step.after is not None
    assert (step.after.state, step.after.producer_epoch - EPOCH) == (STATES[name], int(bump))
    assert step.after.producer_id == ID
    assert step.after.last_update_timestamp_ms == NOW
    if step.code == 0 and not cell.event.startswith("add"):
        assert (step.producer_id, step.producer_epoch) == step.after.successor


@pytest.mark.parametrize("state", TransactionState)
@pytest.mark.parametrize("version", [0, 2])
def test_a_wrong_producer_changes_nothing(state: TransactionState, version: int) -> None:
    known = transaction(state, version=version)
    for wrong in ((ID + 1, EPOCH), (ID, EPOCH + 1), (ID, EPOCH - 2), (ID + 1, EPOCH - 1)):
        events = [
            adding(OTHER, producer=wrong),
            *(ending(is_commit=is_commit, version=version, producer=wrong) for is_commit in (True, False)),
            initialize(producer=wrong),
        ]
        for event in events:
            step = event(known)
            if state is ONGOING and event is events[-1] and wrong[0] == ID:
                assert step.after is not None, "InitProducerId aborts what is open, before it looks at the epoch"
            else:
                assert step.after is None
            assert step.code in (47, 48, 49, 51, 90)
            assert (step.producer_id, step.producer_epoch) == (-1, -1)


@pytest.mark.parametrize("version", [0, 2])
def test_an_unknown_id_begins_with_init_only(version: int) -> None:
    for name, event in EVENTS.items():
        step = event(None)
        if not name.startswith("init"):
            assert step == Step(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
            continue
        assert (step.producer_id, step.producer_epoch) == (NEW_ID, 0)
        assert step.after is not None
        assert step.after.timeout_ms == 30_000


def test_partitions_are_added_to_those_of_the_transaction() -> None:
    known = transaction(ONGOING)
    after = adding(OTHER, KNOWN)(known).after
    assert after is not None
    assert list(after.partitions) == [KNOWN, OTHER]
    assert after.start_timestamp_ms == known.start_timestamp_ms
    begun = adding(OTHER)(transaction(TransactionState.COMPLETE_ABORT)).after
    assert begun is not None
    assert (list(begun.partitions), begun.start_timestamp_ms) == ([OTHER], NOW)


@pytest.mark.parametrize("state", TransactionState)
def test_only_open_partitions_are_verified(state: TransactionState) -> None:
    found = verify(transaction(state), Verify(NAME, ID, EPOCH, [KNOWN, OTHER]))
    if state in PREPARED or state is PREPARE_EPOCH_FENCE:
        assert found == ErrorCode.CONCURRENT_TRANSACTIONS
    elif state is TransactionState.DEAD:
        assert found == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    else:
        is_known = ErrorCode.NONE if state is ONGOING else ErrorCode.TRANSACTION_ABORTABLE
        assert found == {KNOWN: is_known, OTHER: ErrorCode.TRANSACTION_ABORTABLE}
    assert verify(transaction(state), Verify(NAME, ID, EPOCH + 1, [KNOWN])) in (90, 49)
    assert verify(transaction(state), Verify(NAME, ID + 1, EPOCH, [KNOWN])) == 49


@pytest.mark.parametrize("state", PREPARED)
def test_a_prepared_transaction_completes_as_it_was_decided(state: TransactionState) -> None:
    known = replace(transaction(state), next_producer_id=NEW_ID, producer_epoch=MAX_EPOCH)
    after = complete(known, timestamp_ms=NOW)
    assert after.state.label == "Complete" + state.label.removeprefix("Prepare")
    assert (after.producer_id, after.producer_epoch, after.partitions) == (NEW_ID, 0, {})
    assert (after.previous_producer_id, after.next_producer_id) == (ID, -1)


@pytest.mark.parametrize("state", TransactionState)
def test_only_open_transactions_time_out_and_only_idle_ids_expire(state: TransactionState) -> None:
    known = transaction(state)
    late = known.start_timestamp_ms + known.timeout_ms + 1
    assert not has_timed_out(known, late - 1)
    assert has_timed_out(known, late) == (state is ONGOING)
    assert not is_expired(known, NOW, expiration_ms=100)
    assert is_expired(known, NOW, expiration_ms=10) == (state in IDLE)


@pytest.mark.parametrize("version", [0, 2])
def test_a_timeout_fences_the_producer(version: int) -> None:
    step = fence(transaction(ONGOING, version=version), server_version=version, timestamp_ms=NOW)
    assert step.after is not None
    fenced = complete(step.after, timestamp_ms=NOW)
    for is_commit in (True, False):
        late = ending(is_commit=is_commit, version=version)(fenced)
        assert late.after is None
        # With version 2 an abort is already done, and the producer gets the epoch with which it continues.
        is_answered = version == 2 and not is_commit
        assert late.code == (0 if is_answered else 48 if version == 2 else 90)
    assert adding(KNOWN)(fenced).code == ErrorCode.PRODUCER_FENCED


# Named regressions


def test_r7_a_delayed_end_does_not_complete_the_next_transaction() -> None:
    first = transaction(ONGOING)
    for is_commit in (True, False):
        delayed = ending(is_commit=is_commit, version=2)
        prepared = delayed(first).after
        assert prepared is not None
        begun = adding(KNOWN, producer=(ID, EPOCH + 1))(complete(prepared, timestamp_ms=NOW)).after
        assert begun is not None
        for state in (begun, ending(is_commit=True, version=2, producer=(ID, EPOCH + 1))(begun).after):
            assert delayed(state).after is None
            assert delayed(state).code in (ErrorCode.PRODUCER_FENCED, ErrorCode.CONCURRENT_TRANSACTIONS)


@pytest.mark.parametrize("epoch", [EPOCH, LAST_EPOCH_OF_CLIENTS])
@pytest.mark.parametrize("is_commit", [True, False])
def test_r6_an_end_whose_reply_was_lost_is_answered_again(epoch: int, is_commit: bool) -> None:
    event = ending(is_commit=is_commit, version=2, producer=(ID, epoch))
    first = event(transaction(ONGOING, epoch=epoch))
    assert first.after is not None
    again = event(complete(first.after, timestamp_ms=NOW))
    assert again == first._replace(after=None)
    assert again.producer_epoch <= LAST_EPOCH_OF_CLIENTS
    assert ending(is_commit=not is_commit, version=2, producer=(ID, epoch))(
        complete(first.after, timestamp_ms=NOW)
    ) == Step(ErrorCode.INVALID_TXN_STATE)


def test_an_exhausted_epoch_needs_a_new_producer_id() -> None:
    known = transaction(ONGOING, epoch=LAST_EPOCH_OF_CLIENTS)
    request = End(NAME, ID, LAST_EPOCH_OF_CLIENTS, True, 2)
    assert end(known, request, new_producer_id=-1, timestamp_ms=NOW) is NEEDS_PRODUCER_ID
    idle = replace(known, state=TransactionState.EMPTY, partitions={})
    assert init(idle, Init(NAME, 1), server_version=0, new_producer_id=-1, timestamp_ms=NOW) is NEEDS_PRODUCER_ID
    step = initialize(producer=(ID, LAST_EPOCH_OF_CLIENTS))(idle)
    assert (step.producer_id, step.producer_epoch) == (NEW_ID, 0)
    again = initialize(producer=(ID, LAST_EPOCH_OF_CLIENTS))(step.after)
    assert (again.producer_id, again.producer_epoch) == (NEW_ID, 0), "the reply was lost"


@pytest.mark.parametrize("version", [0, 2])
def test_a_fenced_producer_with_the_last_epoch_gets_a_new_id(version: int) -> None:
    known = transaction(ONGOING, epoch=LAST_EPOCH_OF_CLIENTS)
    fenced = fence(known, server_version=version, timestamp_ms=NOW).after
    assert fenced is not None
    assert fenced.producer_epoch == MAX_EPOCH
    idle = complete(fenced, timestamp_ms=NOW)
    for producer in ((-1, -1), (ID, LAST_EPOCH_OF_CLIENTS)):
        step = initialize(producer=producer, version=version)(idle)
        if version == 0 and producer != (-1, -1):
            assert step.code == ErrorCode.PRODUCER_FENCED
        else:
            assert (step.code, step.producer_id, step.producer_epoch) == (0, NEW_ID, 0)
    late = ending(is_commit=False, version=2, producer=(ID, LAST_EPOCH_OF_CLIENTS))(idle)
    assert late == Step(ErrorCode.PRODUCER_FENCED), "no client gets the last epoch of all"


def test_states_follow_each_other_as_declared() -> None:
    for before in TransactionState:
        for after in TransactionState:
            known = transaction(before)
            if before in PREVIOUS[after]:
                assert known.to(after).previous_producer_id == ID
            else:
                with pytest.raises(AssertionError):
                    known.to(after)
    assert {TransactionState.DEAD, PREPARE_EPOCH_FENCE} == set(TransactionState) - STORED
