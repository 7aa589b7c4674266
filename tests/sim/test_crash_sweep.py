"""A log crashed at every disk operation keeps the promises of ARCHITECTURE.md: rows D1, D7 and D13.

This runs a reduced sweep; `python -m tests.sweep.crash_sweep` or KBROKER_SWEEP_WORKLOADS=200 run the full counts.
"""

from __future__ import annotations

import os

import pytest

from kbroker.testing.disk_nodes import Loss
from tests.sweep.crash_sweep import Options, Report, Sweep

WORKLOADS = int(os.environ.get("KBROKER_SWEEP_WORKLOADS", "6"))


def failures(report: Report) -> str:
    return "\n".join(f"{complaint}\n    again: {crash.command()}" for crash, complaint in report.failures[:10])


@pytest.mark.long
@pytest.mark.parametrize("seed", range(WORKLOADS))
def test_d1_d7_d13_k1_a_log_recovers_from_crashes_at_every_operation(seed: int) -> None:
    """Process death keeps every completed append; a power loss leaves a prefix with everything synced."""
    report = Sweep(seed, Options(steps=40, losses=2, deep=0.04)).run()
    assert not report.failures, failures(report)
    assert report.operations > 80, "the workload wrote almost nothing"
    assert report.recoveries > 2 * report.operations
    assert report.batches > report.recoveries


def test_a_crash_repeats_from_its_printed_command() -> None:
    from tests.sweep.crash_sweep import Crash

    crash = Crash(seed=3, operation=70, loss=Loss.TORN, done=0.5)
    reports = [Sweep(3, Options(steps=40, only=crash)).run() for _ in range(2)]
    assert reports[0].recoveries > 3
    assert reports[0] == reports[1]
    assert "--seed 3 --operation 70 --loss torn --done 0.5" in crash.command()
