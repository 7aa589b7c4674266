"""Whole clusters under simulation: a few seeds, the pinned plans, and the program itself. CI runs many more seeds."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kbroker.testing.calm import calm_plan, small_plan
from kbroker.testing.drawing import drawn_plan
from kbroker.testing.plan import plan_of
from kbroker.testing.searching import in_child

CORPUS = Path(__file__).parent / "corpus"
PLANS = sorted(CORPUS.glob("*.json"))


def simulate(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "kbroker.testing.simulate", *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, "PYTHONHASHSEED": "0"},
    )


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2))
def test_k11_promises_hold_whatever_fails(seed: int) -> None:
    outcome = in_child(drawn_plan(seed))
    assert not outcome.findings, "\n".join(map(str, outcome.findings))
    assert outcome.counts["send-ok"] > 0  # some plans have a single slow producer
    assert outcome.counts["poll-ok"] > 0


@pytest.mark.long
def test_k1_promises_hold_while_each_replica_cleans_its_log() -> None:
    seed = next(
        seed for seed in range(100)
        if any(topic.is_compacted for topic in small_plan(seed).topics) and not small_plan(seed).workload.transactions
    )  # fmt: skip
    outcome = in_child(small_plan(seed))
    assert not outcome.findings, "\n".join(map(str, outcome.findings))
    assert outcome.counts["final-info"] > 100, "few records were removed"


@pytest.mark.long
def test_k11_promises_hold_in_calm_times() -> None:
    outcome = in_child(calm_plan(4, duration_ms=900_000))
    assert not outcome.findings, "\n".join(map(str, outcome.findings))
    assert outcome.counts["poll-ok"] > 0


@pytest.mark.long
@pytest.mark.parametrize("path", PLANS, ids=lambda path: path.stem)
def test_a_pinned_plan_breaks_no_promise(path: Path) -> None:
    outcome = in_child(plan_of(path.read_text()))
    assert not outcome.findings, "\n".join(map(str, outcome.findings))


@pytest.mark.long
def test_k16_a_plan_repeats_event_by_event(tmp_path: Path) -> None:
    traces = [tmp_path / "first", tmp_path / "again"]
    seed = next(str(seed) for seed in range(100) if len(small_plan(seed).acts) > 4)
    for trace in traces:
        ran = simulate("--seed", seed, "--small", "--trace", str(trace))
        assert ran.returncode == 0, ran.stdout
    first, again = (trace.read_text().splitlines() for trace in traces)
    assert len(first) > 1_000
    assert first == again


@pytest.mark.long
def test_a_finding_fails_the_program_and_its_plan_becomes_smaller(tmp_path: Path) -> None:
    """With the canary of the mutants, which breaks a promise in every run."""
    saved = tmp_path / "least.json"
    ran = simulate("--mutant", "always-fails", "--seed", "1", "--shrink", "--tries", "6", "--save", str(saved))
    assert ran.returncode == 1
    assert "again: python -m kbroker.testing.simulate --seed 1 --mutant always-fails" in ran.stdout
    least, drawn = plan_of(saved.read_text()), drawn_plan(1)
    assert not least.acts
    assert drawn.acts
    assert least.duration_ms < drawn.duration_ms
    again = simulate("--mutant", "always-fails", "--plan", str(saved))
    assert again.returncode == 1
    assert f"again: python -m kbroker.testing.simulate --plan {saved} --mutant always-fails" in again.stdout


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ("--seeds 0..3 --trace FILE", "--trace is for one run"),
        ("--seed 0 --hours 1", "--hours is for a search"),
        ("--seed 0 --first", "--first is for a search"),
        ("--seed 0 --jobs 2", "--jobs is for a search or --shrink"),
        ("--seed 0 --tries 9", "--tries is for --shrink"),
        ("--seeds 0..3 --runs 9", "--runs is for --seed"),
        ("--plan FILE --calm", "--calm is for --seed or --seeds"),
        ("--plan FILE --small", "--small is for --seed or --seeds"),
        ("--seed 0 --calm --small", "argument --small: not allowed with argument --calm"),
        ("--seed 0 --mutant nothing", "tests/mutants has no nothing"),
    ],
)
def test_an_argument_that_would_have_no_effect_is_refused(arguments: str, complaint: str) -> None:
    ran = simulate(*arguments.split())
    assert ran.returncode == 2
    assert complaint in ran.stderr


@pytest.mark.long
def test_a_search_reports_its_findings() -> None:
    ran = simulate("--seeds", "0..3", "--small", "--jobs", "2")
    assert ran.returncode == 0, ran.stdout
    assert "3 runs, " in ran.stdout
    assert "no findings" in ran.stdout
    ran = simulate("--mutant", "always-fails", "--seeds", "1..", "--first")
    assert ran.returncode == 1
    assert "seeds with findings: [1]" in ran.stdout
