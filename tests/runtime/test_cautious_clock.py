"""T2: retention does not trust a clock that was just set."""

from __future__ import annotations

import pytest

from kbroker.runtime.cautious_clock import HOUR_MS, CautiousClock

MINUTE_MS = 60_000
YEAR_MS = 365 * 24 * HOUR_MS
START_MS = 1_700_000_000_000


class Clocks:
    """Two clocks that a test sets."""

    def __init__(self) -> None:
        self.elapsed_ms = 0
        self.set_by_ms = 0
        self.ahead_ms = 0
        self.reports: list[str] = []
        self.cautious = CautiousClock(self, report=self.reports.append)

    def now_ms(self) -> int:
        return 5_000_000 + self.elapsed_ms

    def timestamp_ms(self) -> int:
        return START_MS + self.elapsed_ms + self.set_by_ms

    def after(self, elapsed_ms: int, *, step_ms: int = 5 * MINUTE_MS) -> int:
        """The cautious clock's distance from its start after `elapsed_ms`, with a read every `step_ms`."""
        end = self.elapsed_ms + elapsed_ms
        while self.elapsed_ms < end:
            self.elapsed_ms = min(end, self.elapsed_ms + step_ms)
            self.cautious.timestamp_ms()
        return self.cautious.timestamp_ms() - START_MS


def test_t2_without_a_jump_it_is_the_wall_clock() -> None:
    clocks = Clocks()
    assert clocks.after(48 * HOUR_MS) == 48 * HOUR_MS
    assert clocks.reports == []


@pytest.mark.parametrize("jump_ms", [HOUR_MS + 1, YEAR_MS])
def test_t2_a_jump_ahead_is_trusted_after_a_stable_hour(jump_ms: int) -> None:
    clocks = Clocks()
    clocks.after(HOUR_MS)
    clocks.set_by_ms = jump_ms
    assert clocks.after(HOUR_MS) == 2 * HOUR_MS
    assert clocks.after(5 * MINUTE_MS) == 2 * HOUR_MS + 5 * MINUTE_MS + jump_ms
    assert len(clocks.reports) == 2


def test_t2_a_jump_undone_within_the_hour_has_no_effect() -> None:
    clocks = Clocks()
    clocks.after(HOUR_MS)
    clocks.set_by_ms = YEAR_MS
    clocks.after(50 * MINUTE_MS)
    clocks.set_by_ms = 0
    assert clocks.after(10 * HOUR_MS) == 11 * HOUR_MS + 50 * MINUTE_MS
    assert clocks.reports[-1] == "the wall clock is back at the time before its jump"


def test_t2_a_backward_jump_and_its_correction_apply_at_once() -> None:
    clocks = Clocks()
    clocks.after(HOUR_MS)
    clocks.set_by_ms = -YEAR_MS
    assert clocks.after(5 * MINUTE_MS) == HOUR_MS + 5 * MINUTE_MS - YEAR_MS
    clocks.set_by_ms = 0
    assert clocks.after(5 * MINUTE_MS) == HOUR_MS + 10 * MINUTE_MS


def test_t2_a_strobing_clock_is_never_trusted_ahead() -> None:
    clocks = Clocks()
    for step in range(200):
        clocks.set_by_ms = (YEAR_MS, 2 * YEAR_MS, -YEAR_MS)[step % 3]
        assert clocks.after(MINUTE_MS) <= clocks.elapsed_ms


def test_t2_small_corrections_add_up() -> None:
    clocks = Clocks()
    for _ in range(100):
        clocks.set_by_ms += 50 * MINUTE_MS
        clocks.after(5 * MINUTE_MS)
    assert clocks.after(5 * MINUTE_MS) == clocks.elapsed_ms + clocks.set_by_ms
    assert clocks.reports == []


def test_t2_a_clock_that_is_wrong_from_the_start_gives_way_to_the_controllers() -> None:
    clocks = Clocks()
    clocks.set_by_ms = clocks.ahead_ms = YEAR_MS
    clocks.cautious = CautiousClock(clocks, report=clocks.reports.append)  # it starts now, and sees no jump
    assert clocks.after(10 * HOUR_MS) == 10 * HOUR_MS
    clocks.set_by_ms = clocks.ahead_ms = 0
    assert clocks.after(HOUR_MS) == 11 * HOUR_MS
