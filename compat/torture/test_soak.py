"""The report of the long runs."""

from __future__ import annotations

import os
import select
import sys

import pytest

from compat.torture.soak import ATTACKS, STEPS, Outcome, Step, run, run_step, total
from tests.sweep.crash_sweep import Report


def test_runs_are_summed_up() -> None:
    lines = [str(Report(workloads=4, operations=1_000, recoveries=20_000)), str(Report(workloads=4, operations=500))]
    assert total(lines) == "8 workloads, 1,500 operations, 20,000 recoveries of 0 batches, 0 failures"
    assert total(["1 kill", "something else"]) == "something else"
    waits = ["arrays: longest Produce 7 ms (at most 100)", "arrays: longest Produce 9 ms (at most 100)"]
    assert total(waits, is_worst=True) == waits[1]


@pytest.mark.parametrize("step", ATTACKS, ids=lambda step: step.name)
def test_attacks_support_untimed_runs(step: Step) -> None:
    """Every program accepts the soak's arguments."""
    timed, untimed = step.command(7), step.command(7, is_timed=False)
    assert timed[-2:] == untimed[-2:] == ["--seed", "7"]
    assert len(untimed) > len(timed)
    passed, said = run([*timed, "--help"])
    assert passed, said
    assert step.untimed[0] in "\n".join(said)


def test_a_step_runs_at_least_once_and_names_failures() -> None:
    step = STEPS[0]
    small = Step(step.name, step.module, ("--workloads", "1", "--steps", "3", "--losses", "1"), 1.0)
    outcome = Outcome(small)
    run_step(small, outcome, seconds=0, first_seed=7)
    assert (outcome.runs, outcome.failed) == (1, [])
    assert "1 workloads" in str(outcome)
    broken = Step("broken", step.module, ("--no-such-option",), 1.0)
    outcome = Outcome(broken)
    run_step(broken, outcome, seconds=0, first_seed=7)
    assert len(outcome.failed) == 1
    assert f"FAILED {sys.executable} -m {step.module} --no-such-option --seed 7" in str(outcome)


def ends(process: int) -> bool:
    """Whether a process has ended, or ends within a moment."""
    try:
        descriptor = os.pidfd_open(process)
    except ProcessLookupError:
        return True
    with os.fdopen(descriptor) as handle:
        return bool(select.select([handle], [], [], 10)[0])


@pytest.mark.parametrize("trap", ["true", "trap '' INT"], ids=["interrupted", "killed"])
def test_a_slow_step_is_killed_with_its_children(trap: str) -> None:
    passed, said = run(["bash", "-c", f"{trap}; sleep 300 & echo $!; wait"], within=0.5, grace=0.5)
    assert (passed, said[1:]) == (False, ["(it took more than 0.5 s)"])
    assert ends(int(said[0]))


def test_leftover_processes_of_a_step_are_killed() -> None:
    passed, said = run(["bash", "-c", "sleep 300 >&- 2>&- & echo $!"])
    assert passed
    assert ends(int(said[0]))


def test_a_missing_program_is_a_failure() -> None:
    assert run(["/nowhere/python", "-m", "compat"]) == (False, ["(there is no /nowhere/python)"])
    assert run(["false"]) == (False, ["(it said nothing)"])
    assert run(["echo", "well"]) == (True, ["well"])
