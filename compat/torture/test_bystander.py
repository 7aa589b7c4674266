"""The shared part of the attack programs, on an idle broker and on a suspended one."""

from __future__ import annotations

import os
import signal

from compat.torture.bystander import Measure, Report, Target, run
from kbroker.testing.draws import Draws


def test_the_bystander_measures_a_suspended_broker() -> None:
    def attack(target: Target, _: Draws) -> list[Measure]:
        with target.watched() as seen:
            os.kill(target.broker.pid, signal.SIGSTOP)
            signal.sigtimedwait([], 0.3)
            os.kill(target.broker.pid, signal.SIGCONT)
        assert seen.produced > 0
        assert 10 < seen.idle_mib <= seen.peak_mib
        return seen.measures(longest_ms=250, memory_mib=500)

    report = run(attack)
    assert report.broken(with_timing=False) == []
    assert len(report.broken()) == 1, report
    assert "longest Produce" in report.broken()[0]


def test_a_dead_broker_does_not_serve() -> None:
    def attack(target: Target, _: Draws) -> list[Measure]:
        with target.watched() as seen:
            target.broker.kill()
        return seen.measures()

    assert "the bystander was not served" in run(attack).broken(with_timing=False)[0]


def test_a_report_names_each_broken_bound() -> None:
    report = Report("survey", [Measure("memory", 120, 100, "MiB"), Measure("wait", 5, 100, "ms", is_timing=True)])
    assert str(report) == "survey: memory 120 MiB (at most 100, BROKEN); wait 5 ms (at most 100)"
    assert report.broken() == ["memory 120 MiB (at most 100, BROKEN)"]
