"""K4, K5, K10 and K11 accept correct histories with transactions, and classify each planted fault."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kbroker.testing.checkers import check_history
from kbroker.testing.draws import Draws
from kbroker.testing.group_checker import check_groups
from kbroker.testing.history import BadHistory, Event, Function, Type, to_line
from kbroker.testing.transaction_checker import check_transactions, sort_transactions
from tests.testing.perfect_transactions import ALLOWED, perfect_transactions
from tests.testing.planted_transactions import FAULTS, Plant
from tests.testing.recorded_history import event_of

SEEDS = 40


def found(history: list[Event]) -> list[tuple[str, str]]:
    findings = [
        *check_history(history, ALLOWED),
        *check_groups(history, ALLOWED),
        *check_transactions(history, ALLOWED),
    ]
    return [(finding.check, finding.kind) for finding in findings]


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 1 << 32))
def test_k4_k5_k10_accept_a_correct_history_of_transactions(seed: int) -> None:
    assert found(perfect_transactions(seed)) == []


def test_the_correct_histories_have_every_outcome() -> None:
    histories = [perfect_transactions(seed) for seed in range(30)]
    events = [event for history in histories for event in history]
    kinds = {(event.function, event.type) for event in events}
    assert kinds >= {(Function.TXN, kind) for kind in Type} | {(Function.COMMITTED, Type.FAIL)}
    ended = [one for history in histories for one in sort_transactions(history, ALLOWED).values()]
    assert {(one.type, one.is_committed) for one in ended} >= {(Type.INFO, True), (Type.INFO, False)}
    assert any(one.sources for one in ended)
    assert any(len(one.seen) > 3 for one in ended)


@pytest.mark.parametrize(("plant", "expected"), FAULTS, ids=[plant.__name__ for plant, _ in FAULTS])
def test_k4_k5_k10_k11_find_a_planted_fault(plant: Plant, expected: set[tuple[str, str]]) -> None:
    planted = 0
    for seed in range(SEEDS):
        damaged = plant(perfect_transactions(seed), Draws("plant", seed))
        if damaged is not None:
            planted += 1
            assert set(found(damaged)) >= expected, f"seed {seed}"
    assert planted > SEEDS / 10


def line(process: str, function: Function, kind: Type, key: str = "", **more: object) -> Event:
    return Event(at_ms=0, process=process, function=function, type=kind, key=key, **more)  # type: ignore[arg-type]


def wrote(*records: tuple[str, int], outcome: Type | None = Type.INFO) -> list[Event]:
    """One transaction with records at (partition, offset)."""
    events = []
    for key, offset in records:
        more = {"value": f"v{key}{offset}", "transaction": "t"}
        events += [
            line("p", Function.SEND, Type.INVOKE, key, **more),
            line("p", Function.SEND, Type.OK, key, offset=offset, **more),
        ]
    asked = [] if outcome is None else [line("p", Function.TXN, Type.INVOKE, value="t")]
    return [*events, *asked, *([line("p", Function.TXN, outcome, value="t")] if outcome else [])]


def reader(key: str, *offsets: int, end: int) -> list[Event]:
    polls = [line("r", Function.POLL, Type.OK, key, value=f"v{key}{each}", offset=each) for each in offsets]
    begins, ends = (
        line("r", Function.ASSIGN, Type.OK, key, offset=0),
        line("r", Function.POLL, Type.INFO, key, offset=end),
    )
    return [begins, *polls, ends]


def judged(*parts: list[Event]) -> list[tuple[str, str]]:
    return [(one.check, one.kind) for one in check_transactions([event for part in parts for event in part], ALLOWED)]


def test_k5_an_unknown_outcome_may_be_either_but_whole() -> None:
    both = wrote(("a", 0), ("b", 0))
    assert judged(both, reader("a", 0, end=2), reader("b", 0, end=2)) == []
    assert judged(both, reader("a", end=2), reader("b", end=2)) == []
    assert judged(both, reader("a", 0, end=2), reader("b", end=2)) == [("K5", "torn-transaction")]


def test_k5_a_reader_that_has_not_come_so_far_misses_nothing() -> None:
    both = wrote(("a", 0), ("b", 5), outcome=Type.OK)
    assert judged(both, reader("a", 0, end=2), reader("b", end=5)) == []
    assert judged(both, reader("a", 0, end=2), reader("b", end=6)) == [("K5", "torn-transaction")]


def test_k5_records_without_a_commit_are_aborted() -> None:
    assert judged(wrote(("a", 0), outcome=None), reader("a", end=2)) == []
    assert judged(wrote(("a", 0), outcome=None), reader("a", 0, end=2)) == [("K5", "aborted-read")]
    assert judged(wrote(("a", 0), outcome=Type.FAIL), reader("a", 0, end=2)) == [("K5", "aborted-read")]


def test_k5_a_circle_of_three_is_found() -> None:
    events = []
    for name, source in (("a", "c"), ("b", "a"), ("c", "b")):
        more = {"value": name, "transaction": name}
        events += [
            line(name, Function.SEND, Type.INVOKE, "k", **more),
            line(name, Function.TXN, Type.INVOKE, value=name),
            line(name, Function.TXN, Type.OK, value=name),
            line(name, Function.POLL, Type.OK, "k", value=source, offset=ord(source), transaction=name),
        ]
    finding = next(one for one in check_transactions(events) if one.kind == "circular-flow")
    assert finding.text == "transactions have read from each other: a from c from b from a"


def test_a_transaction_line_survives_a_file() -> None:
    event = line("p", Function.SEND, Type.INVOKE, "k", value="v", transaction="t")
    assert event_of(to_line(event)) == event
    assert '"txn":"t"' in to_line(event)


ASK, OK = line("p", Function.TXN, Type.INVOKE, value="t"), line("p", Function.TXN, Type.OK, value="t")


@pytest.mark.parametrize(
    "history",
    [
        [OK],
        [ASK, ASK],
        [ASK, OK, OK],
        [ASK, line("q", Function.TXN, Type.OK, value="t")],
        [line("p", Function.TXN, Type.INVOKE)],
        [line("1", Function.STABLE, Type.OK, "k", offset=1)],
    ],
    ids=["not-asked", "asked-twice", "ended-twice", "of-another", "no-name", "no-high-watermark"],
)
def test_a_recording_of_transactions_that_contradicts_itself_is_refused(history: list[Event]) -> None:
    with pytest.raises(BadHistory):
        check_transactions(history)


@pytest.mark.parametrize(("epochs", "expected"), [((9, 10), [("K4", "zombie-send")]), ((10, 9), [])])
def test_k4_the_answer_with_the_older_epoch_may_arrive_last(epochs: tuple[int, int], expected: object) -> None:
    history = [
        line("p", Function.INIT, Type.OK, value="id", epoch=epochs[0]),
        line("q", Function.INIT, Type.OK, value="id", epoch=epochs[1]),
        *wrote(("t-0", 0), outcome=None),
    ]
    assert [(one.check, one.kind) for one in check_transactions(history)] == expected
