"""The report of the long runs."""

from __future__ import annotations

from compat.torture.soak import STEPS, Outcome, Step, run_step, total
from kbroker.testing.crash_sweep import Report


def test_runs_are_summed_up() -> None:
    lines = [str(Report(workloads=4, operations=1_000, recoveries=20_000)), str(Report(workloads=4, operations=500))]
    assert total(lines) == "8 workloads, 1,500 operations, 20,000 recoveries of 0 batches, 0 failures"
    assert total(["1 kill", "something else"]) == "something else"


def test_a_step_is_run_once_at_least_and_names_what_failed() -> None:
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
    assert f"FAILED python -m {step.module} --no-such-option --seed 7" in str(outcome)
