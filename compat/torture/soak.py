"""The long runs, one after the other, for a given time: `make soak ARGS="--minutes 60"`.

    python -m compat.torture.soak --minutes 6 --seed 9100
    python -m compat.torture.soak --minutes 30 --only deep-sweep

Crash sweeps over generated workloads take most of the time, `kill -9` of real brokers under load the rest. Each step
is a short command that is repeated with other seeds until its share of the time is over, at least once, so a run ends
about when it should. Spark's step is run in PySpark's environment. The report at the end (or at Ctrl-C) sums up what
was done, and names every command that failed, which repeats the failure by itself. The exit status is 1 when any of
them failed.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

STEP_SECONDS = 1_800
# PySpark is in an environment of its own, which `make soak` sees to.
SPARK_PYTHON = str(Path(__file__).parents[2] / ".venv-spark" / "bin" / "python")
_NUMBER = re.compile(r"\d+(?:\.\d+)?")


@dataclass(frozen=True, slots=True)
class Step:
    """One command; weight is its share of the time, seeds_a_run how many seeds one run uses up."""

    name: str
    module: str
    arguments: tuple[str, ...]
    weight: float
    seeds_a_run: int = 1
    python: str = sys.executable


STEPS = (
    Step("crash-sweep", "kbroker.testing.crash_sweep", ("--workloads", "4"), 0.5, 4),
    Step("deep-sweep", "kbroker.testing.crash_sweep", ("--workloads", "1", "--deep", "1", "--losses", "3"), 0.2),
    Step("kill-9", "compat.torture.kill9", ("--kills", "5", "--segment-bytes", "200000"), 0.2),
    Step("tier", "compat.torture.tier", ("--megabytes", "1000", "--kills", "2", "--damages", "30"), 0.1),
    Step("tier-clients", "compat.torture.tier_clients", ("--megabytes", "1000"), 0.1),
    Step("spark", "compat.torture.spark", ("--kills", "20"), 0.1, python=SPARK_PYTHON),
)


@dataclass(slots=True)
class Outcome:
    """What became of one step's runs.

    Shape  last_lines are the summaries of the runs, failed the commands with what they said last
    """

    step: Step
    seconds: float = 0.0
    runs: int = 0
    last_lines: list[str] = field(default_factory=list)
    failed: list[tuple[str, str]] = field(default_factory=list)

    def __str__(self) -> str:
        summary = total(self.last_lines) if self.last_lines else "nothing was run"
        lines = [f"{self.step.name}: {self.runs} runs in {self.seconds:.0f} s, {len(self.failed)} failed: {summary}"]
        for command, last in self.failed:
            lines += [f"  FAILED {command}", f"         {last}"]
        return "\n".join(lines)


def total(lines: list[str]) -> str:
    """Lines that differ in their numbers alone as one line with the sums; the last one if they differ otherwise."""
    if len({_NUMBER.sub("#", line) for line in lines}) > 1:
        return lines[-1]
    columns = zip(*[[float(number) for number in _NUMBER.findall(line)] for line in lines], strict=True)
    sums = [sum(column) for column in columns]
    return _NUMBER.sub(lambda _: f"{sums.pop(0):,.10g}", lines[-1])


def run_step(step: Step, outcome: Outcome, *, seconds: float, first_seed: int) -> None:
    """Repeat a step until its time is over, at least once; what was done is in `outcome`, also if it is interrupted."""
    began, seed = time.monotonic(), first_seed
    while not outcome.runs or time.monotonic() - began < seconds:
        command = ["-m", step.module, *step.arguments, "--seed", str(seed)]
        print("$ python", *command, flush=True)
        try:
            done = subprocess.run(
                [step.python, *command],
                check=False,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=STEP_SECONDS,
            )
            passed, said = done.returncode == 0, done.stdout.strip().splitlines() or ["(it said nothing)"]
        except FileNotFoundError:
            passed, said = False, [f"(there is no {step.python})"]
        except subprocess.TimeoutExpired:
            passed, said = False, [f"(it took more than {STEP_SECONDS} s)"]
        outcome.runs += 1
        outcome.last_lines.append(said[-1])
        outcome.seconds = time.monotonic() - began
        if not passed:
            print("\n".join(said[-40:]), flush=True)
            outcome.failed.append((" ".join(["python", *command]), said[-1]))
        seed += step.seeds_a_run


def main() -> int:
    """Run the steps; the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m compat.torture.soak", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=60, help="for all steps together (default 60)")
    parser.add_argument("--seed", type=int, default=1_000, help="of the first run of each step; the others follow")
    parser.add_argument("--only", choices=[step.name for step in STEPS], help="this step for all of the time")
    options = parser.parse_args()
    steps = [step for step in STEPS if options.only in (None, step.name)]
    weights = sum(step.weight for step in steps)
    outcomes: list[Outcome] = []
    try:
        for step in steps:
            outcomes.append(Outcome(step))
            seconds = options.minutes * 60 * step.weight / weights
            run_step(step, outcomes[-1], seconds=seconds, first_seed=options.seed)
    except KeyboardInterrupt:
        print("interrupted")
    failed = sum(len(outcome.failed) for outcome in outcomes)
    print("\nsoak report, seeds from", options.seed)
    print("\n".join(str(outcome) for outcome in outcomes))
    print(f"{'FAILED' if failed else 'passed'}: {sum(outcome.runs for outcome in outcomes)} runs, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
