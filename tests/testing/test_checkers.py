"""The checkers accept correct histories, and classify each planted fault."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from kbroker.testing.checkers import NOTHING_ALLOWED, Allowances, check_history
from kbroker.testing.draws import Draws
from kbroker.testing.history import BadHistory, Event, Function, Type
from tests.testing.perfect_run import perfect_history
from tests.testing.planted import FAULTS, Planted
from tests.testing.recorded_history import recorded_history

SEEDS = st.integers(0, 1 << 32)


@settings(max_examples=150, deadline=None)
@given(seed=SEEDS)
def test_k1_k2_k3_k4_accept_a_correct_history(seed: int) -> None:
    assert check_history(perfect_history(seed)) == []


def test_the_correct_histories_are_not_empty() -> None:
    events = [event for seed in range(20) for event in perfect_history(seed)]
    kinds = {(event.function, event.type) for event in events}
    assert kinds >= {
        (Function.SEND, Type.OK), (Function.SEND, Type.INFO), (Function.SEND, Type.FAIL), (Function.POLL, Type.OK),
        (Function.ASSIGN, Type.OK), (Function.SUBSCRIBE, Type.OK), (Function.FINAL, Type.INFO),
    }  # fmt: skip
    assert sum(event.function is Function.POLL for event in events) > 200


@pytest.mark.parametrize(("plant", "expected"), FAULTS, ids=[plant.__name__ for plant, _ in FAULTS])
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
@given(seed=SEEDS)
def test_k1_k2_k3_k4_find_a_planted_fault(
    plant: Callable[[list[Event], Draws], Planted], expected: set[tuple[str, str]], seed: int
) -> None:
    damaged = plant(perfect_history(seed), Draws("plant", seed))
    assume(damaged is not None)
    assert damaged is not None
    found = {(finding.check, finding.kind) for finding in check_history(damaged)}
    assert found >= expected


def event(process: str, function: Function, kind: Type, offset: int | None, value: str | None, **more: int) -> Event:
    return Event(
        at_ms=0,
        process=process,
        function=function,
        type=kind,
        key="t-0",
        offset=offset,
        value=value,
        acks=more.get("acks", -1),
    )


def sent(process: str, value: str, offset: int | None, kind: Type = Type.OK, *, acks: int = -1) -> list[Event]:
    invocation = event(process, Function.SEND, Type.INVOKE, None, value, acks=acks)
    return [invocation, event(process, Function.SEND, kind, offset, value)]


def log_of(*values: str | None, start: int = 0) -> list[Event]:
    records = [event("1", Function.FINAL, Type.OK, start + at, value) for at, value in enumerate(values) if value]
    return [*records, event("1", Function.BOUNDS, Type.OK, start + len(values), str(start))]


def kinds(history: list[Event], allowances: Allowances = NOTHING_ALLOWED) -> list[tuple[str, str]]:
    return [(finding.check, finding.kind) for finding in check_history(history, allowances)]


def test_k1_ends_at_a_raised_log_start() -> None:
    assert kinds([*sent("p", "a", 0), *sent("p", "b", 1), *log_of("b", start=1)]) == []


def test_k1_depends_on_acks_and_on_the_leader() -> None:
    assert kinds([*sent("p", "a", None, acks=0), *log_of()]) == []
    leader_only = [*sent("p", "a", 0, acks=1), *log_of()]
    assert kinds(leader_only) == [("K1", "lost")]
    assert kinds(leader_only, Allowances(leader_lost=frozenset({"t-0"}))) == []


def test_k1_includes_acknowledgements_without_an_offset() -> None:
    assert kinds([*sent("p", "a", -1), *log_of("a")]) == []
    assert kinds([*sent("p", "a", -1), *log_of()]) == [("K1", "lost")]


def test_k3_accepts_interleaved_producers() -> None:
    assert kinds([*sent("p", "a", 0), *sent("q", "x", 1), *sent("p", "b", 2), *log_of("a", "x", "b")]) == []


def test_k3_judges_unacknowledged_sends_by_their_observed_offsets() -> None:
    history = [*sent("p", "a", None, Type.INFO), *sent("p", "b", 0), *log_of("b", "a")]
    assert kinds(history) == [("K3", "nonmonotonic-send")]
    assert kinds(history, Allowances(unordered=frozenset({"p"}))) == []


def test_k4_allows_repeats_only_without_idempotence() -> None:
    history = [*sent("p", "a", None, Type.INFO), *log_of("a", "a")]
    assert kinds(history) == [("K4", "duplicate")]
    assert kinds(history, Allowances(unordered=frozenset({"p"}))) == []


def test_k3_a_first_poll_after_the_assigned_offset_is_a_skip() -> None:
    history = [*sent("p", "a", 0), *sent("p", "b", 1), *log_of("a", "b")]
    assigned = event("r", Function.ASSIGN, Type.OK, 0, None)
    assert kinds([*history, assigned, event("r", Function.POLL, Type.OK, 1, "b")]) == [("K3", "poll-skip")]


def test_k4_a_record_after_the_end_is_found() -> None:
    history = [*sent("p", "a", 0), *log_of("a")]
    history[-1] = event("1", Function.BOUNDS, Type.OK, 0, "0")
    assert kinds(history) == [("K4", "behind-end")]


def test_a_finding_shows_its_evidence() -> None:
    (finding,) = check_history([*sent("p", "a", 0), *log_of()])
    assert str(finding) == ("K1 lost t-0@0: 'a' of p is acknowledged at 0; 1 has no record there (its log is [0, 0))")


@pytest.mark.parametrize(
    "history",
    [
        [*sent("p", "a", 0), *sent("q", "a", 1), *log_of("a", "a")],
        [event("p", Function.SEND, Type.OK, 0, "a"), *log_of("a")],
        [*sent("p", "a", 0), event("p", Function.SEND, Type.OK, 0, "a"), *log_of("a")],
        [*sent("p", "a", 0)],
        [*sent("p", "a", 0), event("1", Function.FINAL, Type.OK, 0, "a")],
        [event("r", Function.POLL, Type.OK, None, "a")],
        [event("p", Function.SEND, Type.INVOKE, None, None)],
    ],
    ids=["value-twice", "no-invocation", "completed-twice", "never-read", "no-bounds", "no-offset", "no-value"],
)
def test_a_recording_that_contradicts_itself_is_refused(history: list[Event]) -> None:
    with pytest.raises(BadHistory):
        check_history(history)


KAFKA_HISTORY = Path(__file__).parent / "fixtures" / "kafka-4.3.1-killed-once.jsonl"


def test_k1_k2_k3_k4_accept_a_history_of_apache_kafka() -> None:
    """Recorded by compat/torture: two idempotent producers, two readers, one kill -9 of the broker in the middle."""
    history = recorded_history(KAFKA_HISTORY)
    assert check_history(history) == []
    acknowledged = [e for e in history if e.function is Function.SEND and e.type is Type.OK]
    assert len(acknowledged) == 350
    assert len([e for e in history if e.function is Function.POLL]) > 350
    assert max(e.epoch or 0 for e in history) > 0, "the broker was not restarted while this was recorded"


@pytest.mark.parametrize("seed", range(10))
def test_k1_reports_a_record_removed_from_apache_kafkas_history(seed: int) -> None:
    history = recorded_history(KAFKA_HISTORY)
    records = [e for e in history if e.function is Function.FINAL]
    history.remove(Draws("take out", seed).choice(records))
    assert {(finding.check, finding.kind) for finding in check_history(history)} == {("K1", "lost"), ("K4", "gap")}
