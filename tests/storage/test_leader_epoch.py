from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import pairwise
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.storage.leader_epoch import LeaderEpochs, format_epochs, parse_epochs


def epochs(*entries: tuple[int, int]) -> LeaderEpochs:
    return LeaderEpochs(entries)


@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        (-1, (-1, -1)),  # undefined
        (9, (9, 100)),  # the newest ends where the log ends
        (10, (-1, -1)),  # not known yet
        (1, (1, 10)),  # older than all: it ends where the first known one begins
        (2, (2, 20)),
        (3, (2, 20)),  # unknown: the next lower one
        (5, (5, 40)),
        (8, (5, 40)),
    ],
)
def test_an_epoch_ends_where_the_next_higher_one_begins(asked: int, answer: tuple[int, int]) -> None:
    assert epochs((2, 10), (5, 20), (9, 40)).end_offset_for(asked, log_end_offset=100) == answer


def test_without_entries_the_end_of_an_epoch_is_unknown() -> None:
    assert epochs().end_offset_for(0, log_end_offset=5) == (-1, -1)


def test_assigning_removes_entries_of_a_diverged_history() -> None:
    one = epochs((1, 0), (2, 10), (3, 20))
    one.assign(2, 15)
    assert one.entries == [(1, 0), (2, 15)]
    one.assign(4, 12)
    assert one.entries == [(1, 0), (4, 12)]
    assert one.latest == 4


def test_assigning_the_newest_epoch_again_changes_nothing() -> None:
    one = epochs((1, 0), (2, 10))
    one.assign(2, 30)
    assert one.entries == [(1, 0), (2, 10)]
    assert not one.needs_writing(99)
    one.assign(-1, 40)
    assert one.latest == 2


def test_truncating_the_end_drops_epochs_that_begin_there() -> None:
    one = epochs((1, 0), (2, 10), (3, 20))
    one.truncate_from_end(20)
    assert one.entries == [(1, 0), (2, 10)]
    assert one.latest == 2
    one.truncate_from_end(0)
    assert one.latest == -1


def test_truncating_the_start_keeps_the_epoch_that_covers_it() -> None:
    one = epochs((1, 0), (2, 10), (3, 20))
    one.truncate_from_start(15)
    assert one.entries == [(2, 15), (3, 20)]
    one.truncate_from_start(15)
    assert one.entries == [(2, 15), (3, 20)]


def test_an_offset_has_the_epoch_that_began_last_before_it() -> None:
    one = epochs((1, 5), (4, 10))
    assert [one.epoch_for_offset(offset) for offset in (4, 5, 9, 10, 99)] == [-1, 1, 1, 4, 4]


def test_the_checkpoint_has_kafkas_format() -> None:
    assert format_epochs([(0, 0), (3, 250)]) == "0\n2\n0 0\n3 250\n"
    assert parse_epochs("0\n2\n0 0\n3 250\n") == [(0, 0), (3, 250)]
    assert parse_epochs("") == []


@pytest.mark.parametrize(
    "text", ["1\n0\n", "0\n2\n0 0\n", "0\n1\n0\n", "0\nx\n", "0\n2\n3 5\n2 9\n", "\0\0", "0\n1\na b\n"]
)
def test_d4_a_malformed_epoch_checkpoint_raises_value_error(text: str) -> None:
    with pytest.raises(ValueError):
        parse_epochs(text)


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 60))))
def test_entries_always_ascend_and_survive_a_round_trip(assigned: list[tuple[int, int]]) -> None:
    one = epochs()
    for epoch, start in assigned:
        one.assign(epoch, start)
    entries = one.entries
    assert all(a < c and b < d for (a, b), (c, d) in pairwise(entries))
    assert parse_epochs(format_epochs(entries)) == entries
    if assigned:
        assert one.latest == entries[-1][0]


def at_each_step(step: Callable[[], None], check: Callable[[], None]) -> None:
    """Run `step`, and `check` before each of its instructions, as another thread might."""
    checked = 0

    def trace(frame: FrameType, event: str, _argument: object) -> Callable[..., Any]:
        nonlocal checked
        frame.f_trace_opcodes = True
        if event == "opcode":
            checked += 1
            check()
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        step()
    finally:
        sys.settrace(before)
    assert checked > 10


def test_a_concurrent_read_sees_epochs_before_or_after_a_change() -> None:
    one = epochs((1, 0), (2, 10), (3, 20), (4, 30))
    asked = [*range(6)]

    def answers() -> tuple[object, ...]:
        return (
            [one.end_offset_for(epoch, 100) for epoch in asked],
            [one.epoch_for_offset(offset) for offset in (0, 12, 17, 25, 40)],
            one.entries,
        )

    steps: list[Callable[[], None]] = [
        lambda: one.truncate_from_start(15),
        lambda: one.truncate_from_start(25),
        lambda: one.assign(5, 40),
        lambda: one.truncate_from_end(35),
        one.clear,
    ]
    for step in steps:
        seen: list[tuple[object, ...]] = []
        before = answers()
        at_each_step(step, lambda: seen.append(answers()))  # noqa: B023 - called before seen changes
        assert all(answer in (before, answers()) for answer in seen)


def test_an_epoch_assigned_while_the_start_rises_is_kept() -> None:
    one = epochs((1, 0), (2, 10))
    coming = iter(range(3, 1_000))
    at_each_step(lambda: one.truncate_from_start(15), lambda: one.assign(epoch := next(coming), 10 * epoch))
    assert one.entries == [(2, 15), *((epoch, 10 * epoch) for epoch in range(3, next(coming)))]


def test_an_epoch_assigned_during_a_checkpoint_write_still_needs_writing() -> None:
    one = epochs((1, 0))
    one.assign(2, 10)
    written = one.entries
    one.assign(3, 20)
    one.note_written(written)
    seen = [one.needs_writing(99)]
    one.note_written(one.entries)
    seen.append(one.needs_writing(99))
    one.note_unwritten()
    seen.append(one.needs_writing(99))
    assert seen == [True, False, True]


def test_an_epoch_needs_writing_once_it_has_batches() -> None:
    one = epochs((1, 0))
    one.assign(2, 10)
    assert not one.needs_writing(10)
    assert one.needs_writing(11)
    one.note_written(one.entries)
    one.assign(3, 10)
    assert not one.needs_writing(10)
    assert one.needs_writing(11)
    one.truncate_from_end(5)
    assert not one.needs_writing(5)
    one.truncate_from_start(3)
    assert one.needs_writing(5)


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("assign"), st.integers(0, 20), st.integers(0, 40)),
            st.tuples(st.sampled_from(["start", "end"]), st.just(0), st.integers(0, 40)),
        )
    )
)
def test_epochs_match_a_model_with_the_epoch_of_each_offset(steps: list[tuple[str, int, int]]) -> None:
    one, model = epochs(), list[tuple[int, int]]()
    for kind, epoch, offset in steps:
        if kind == "assign":
            one.assign(epoch, offset)
            if not (model and model[-1][0] == epoch and model[-1][1] <= offset):
                model = [*(entry for entry in model if entry[0] < epoch and entry[1] < offset), (epoch, offset)]
        elif kind == "end":
            one.truncate_from_end(offset)
            model = [entry for entry in model if entry[1] < offset]
        else:
            one.truncate_from_start(offset)
            below = [entry for entry in model if entry[1] <= offset]
            if below:
                model = [(below[-1][0], offset), *model[len(below) :]]
        assert one.entries == model
        assert one.latest == (model[-1][0] if model else -1)
        assert len(one) == len(model)
