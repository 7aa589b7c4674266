"""The long runs, one after the other: `make soak`, or `python -m compat.torture.soak --minutes 60`.

Crash sweeps over generated workloads take most of the time, `kill -9` of real brokers under load the rest. Each step
is a command that can be run by itself; its last line goes into the report, which is printed at the end. The exit
status is 1 when any of them failed.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

WORKLOADS_A_STEP = 20
STEP_SECONDS = 1_800


@dataclass(frozen=True, slots=True)
class Step:
    """One command; weight is its share of the time, spent by repeating it with other seeds."""

    name: str
    module: str
    arguments: tuple[str, ...]
    weight: float
    seeds_a_run: int = 1


STEPS = (
    Step("crash sweep", "kbroker.testing.crash_sweep", ("--workloads", str(WORKLOADS_A_STEP)), 0.5, WORKLOADS_A_STEP),
    Step("deep crash sweep", "kbroker.testing.crash_sweep", ("--workloads", "2", "--deep", "1"), 0.2, 2),
    Step("kill -9 under load", "compat.torture.kill9", ("--kills", "10", "--segment-bytes", "200000"), 0.3),
)


def runs(step: Step, seconds: float, first_seed: int) -> Iterator[tuple[bool, str]]:
    """Repeat a step until its time is over, at least once; (whether it passed, its last line)."""
    end, seed = time.monotonic() + seconds, first_seed
    while True:
        command = [sys.executable, "-m", step.module, *step.arguments, "--seed", str(seed)]
        print("$", *command[1:], flush=True)
        done = subprocess.run(
            command, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=STEP_SECONDS
        )
        lines = done.stdout.strip().splitlines() or ["(it said nothing)"]
        if done.returncode:
            print("\n".join(lines[-40:]), flush=True)
        yield done.returncode == 0, lines[-1]
        seed += step.seeds_a_run
        if time.monotonic() >= end:
            return


def main() -> int:
    """Run every step; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m compat.torture.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60, help="for all steps together (default 60)")
    parser.add_argument("--seed", type=int, default=1_000, help="of the first run of each step; the others follow")
    options = parser.parse_args()
    report, failed = [], 0
    for step in STEPS:
        began, count, bad, last = time.monotonic(), 0, 0, ""
        for passed, line in runs(step, options.minutes * 60 * step.weight, options.seed):
            count, bad, last = count + 1, bad + (not passed), line
        failed += bad
        report.append(f"{step.name}: {count} runs in {time.monotonic() - began:.0f} s, {bad} failed; the last: {last}")
    print("\nsoak report")
    print("\n".join(f"  {line}" for line in report))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
