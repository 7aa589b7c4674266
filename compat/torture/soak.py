"""The long runs, one after the other, for a given time: `make soak ARGS="--minutes 60"`.

    python -m compat.torture.soak --minutes 6 --seed 9100
    python -m compat.torture.soak --minutes 30 --only deep-sweep
    python -m compat.torture.soak --minutes 10 --attack

Crash sweeps over generated workloads and simulated clusters take most of the time, `kill -9` of real brokers under load
the rest. Each step is a short command that is repeated with other seeds until its share of the time is over, at least
once, so a run ends about on time. Spark's step runs in PySpark's environment. A step that takes too long is killed with
all its child processes. The report at the end (or at Ctrl-C) sums up the runs, and prints every failed command, which
reproduces the failure. The exit status is 1 if any of them failed.

With --attack the steps are programs that attack a real broker with well-formed requests and slow clients, and judge how
long another client waits and how much memory the broker uses. They report the worst of their runs. With --untimed the
waits are reported but not judged, for busy machines.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

STEP_SECONDS = 1_800.0
ATTACK_SECONDS = 600.0
END_SECONDS = 30.0
# PySpark has its own environment, which `make soak` creates.
SPARK_PYTHON = str(Path(__file__).parents[2] / ".venv-spark" / "bin" / "python")
_NUMBER = re.compile(r"\d+(?:\.\d+)?")


@dataclass(frozen=True, slots=True)
class Step:
    """One command.

    Shape  untimed are the arguments with which it does not judge times
    Units  weight is its share of the time; seeds_a_run is the number of seeds that one run uses; a run is killed after
           most_seconds
    Note   the report adds up the numbers of its runs, or takes their maxima if is_worst
    """

    name: str
    module: str
    arguments: tuple[str, ...]
    weight: float
    seeds_a_run: int = 1
    python: str = sys.executable
    most_seconds: float = STEP_SECONDS
    is_worst: bool = False
    untimed: tuple[str, ...] = ()

    def command(self, seed: int, *, is_timed: bool = True) -> list[str]:
        """The command line of one run."""
        more = () if is_timed else self.untimed
        return [self.python, "-m", self.module, *self.arguments, *more, "--seed", str(seed)]


def _attack(name: str, *arguments: str, untimed: tuple[str, ...] = ("--untimed",)) -> Step:
    module = f"compat.torture.attack_{name}"
    return Step(name, module, arguments, 1.0, most_seconds=ATTACK_SECONDS, is_worst=True, untimed=untimed)


STEPS = (
    Step("crash-sweep", "tests.sweep.crash_sweep", ("--workloads", "4"), 0.5, 4),
    Step("deep-sweep", "tests.sweep.crash_sweep", ("--workloads", "1", "--deep", "1", "--losses", "3"), 0.2),
    Step("simulation", "kbroker.testing.simulate", ("--runs", "60", "--jobs", "2"), 0.5, 60),
    # 20 minutes of it on two idle cores are more than ten million runs: --only fuzz --minutes 20.
    Step("fuzz", "tests.fuzz", ("all", "--seconds", "300"), 0.3),
    Step("mutants", "tests.mutants", ("--jobs", "2"), 0.2),
    Step("kill-9", "compat.torture.kill9", ("--kills", "5", "--segment-bytes", "200000"), 0.2),
    Step("copier", "compat.torture.copier", ("--records", "100000", "--kills", "3"), 0.1),
    Step("words", "compat.main_job_words", ("--kills", "3"), 0.05),
    Step("words-cluster", "compat.main_job_words", ("--kills", "3", "--brokers", "3"), 0.05),
    Step("tier", "compat.torture.tier_reads", ("--megabytes", "1000", "--kills", "2", "--damages", "30"), 0.1),
    Step("tier-clients", "compat.torture.tier_clients", ("--megabytes", "1000"), 0.1),
    Step(
        "storm-kafka",
        "compat.cluster.storm",
        ("--controllers", "kafka", "--brokers", "kafka,kafka,kafka", "--scenarios", "killed_leaders"),
        0.05,
    ),  # the checkers find nothing on Apache Kafka
    Step("tier-storm", "compat.cluster.tier_storm", ("--kills", "20"), 0.1),
    Step("tier-storm-minio", "compat.cluster.tier_storm", ("--kills", "20", "--store", "minio"), 0.1),
    Step("spark", "compat.torture.spark", ("--kills", "20"), 0.1, python=SPARK_PYTHON),
)

ATTACKS = (
    _attack("arrays"),
    _attack("retention"),
    _attack("connections"),
    _attack("logins"),
    _attack("memory", untimed=("--longest-ms", str(int(ATTACK_SECONDS * 1000)))),
)


@dataclass(slots=True)
class Outcome:
    """The results of one step's runs.

    Shape  last_lines are the summaries of the runs, failed the commands with their last output
    """

    step: Step
    seconds: float = 0.0
    runs: int = 0
    last_lines: list[str] = field(default_factory=list)
    failed: list[tuple[str, str]] = field(default_factory=list)

    def __str__(self) -> str:
        summary = total(self.last_lines, is_worst=self.step.is_worst) if self.last_lines else "nothing was run"
        lines = [f"{self.step.name}: {self.runs} runs in {self.seconds:.0f} s, {len(self.failed)} failed: {summary}"]
        for command, last in self.failed:
            lines += [f"  FAILED {command}", f"         {last}"]
        return "\n".join(lines)


def total(lines: list[str], *, is_worst: bool = False) -> str:
    """One line for lines that differ only in their numbers, with the sums, or with the maxima if is_worst.

    The last line if they differ otherwise.
    """
    if len({_NUMBER.sub("#", line) for line in lines}) > 1:
        return lines[-1]
    columns = zip(*[[float(number) for number in _NUMBER.findall(line)] for line in lines], strict=True)
    sums = [max(column) if is_worst else sum(column) for column in columns]
    return _NUMBER.sub(lambda _: f"{sums.pop(0):,.10g}", lines[-1])


def run_step(step: Step, outcome: Outcome, *, seconds: float, first_seed: int, is_timed: bool = True) -> None:
    """Repeat a step until its time is over, at least once; `outcome` is up to date even after an interrupt."""
    began, seed = time.monotonic(), first_seed
    while not outcome.runs or time.monotonic() - began < seconds:
        command = step.command(seed, is_timed=is_timed)
        print("$", *command, flush=True)
        passed, said = run(command, within=step.most_seconds)
        outcome.runs += 1
        outcome.last_lines.append(said[-1])
        outcome.seconds = time.monotonic() - began
        if not passed:
            print("\n".join(said[-40:]), flush=True)
            outcome.failed.append((" ".join(command), said[-1]))
        seed += step.seeds_a_run


def run(command: list[str], *, within: float = STEP_SECONDS, grace: float = END_SECONDS) -> tuple[bool, list[str]]:
    """Whether a command succeeded within the time, and its output.

    It has its own process group, with the brokers that it starts. After an interrupt it ends these itself. Processes
    that are left are killed, because they would disturb all following steps.
    """
    try:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, process_group=0
        )  # fmt: skip
    except FileNotFoundError:
        return False, [f"(there is no {command[0]})"]
    late = False
    try:
        with process:
            try:
                output, _ = process.communicate(timeout=within)
            except (subprocess.TimeoutExpired, KeyboardInterrupt) as error:
                late = True
                process.send_signal(signal.SIGINT)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.communicate(timeout=grace)
                _kill_group(process.pid)
                output, _ = process.communicate()
                if isinstance(error, KeyboardInterrupt):
                    raise
    finally:
        _kill_group(process.pid)
    said = output.strip().splitlines()
    if late:
        return False, [*said, f"(it took more than {within:g} s)"]
    return process.returncode == 0, said or ["(it said nothing)"]


def _kill_group(group: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def main() -> int:
    """Run the steps; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m compat.torture.soak", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=60, help="for all steps together (default 60)")
    parser.add_argument("--seed", type=int, default=1_000, help="of the first run of each step; the others follow")
    names = [step.name for step in (*STEPS, *ATTACKS)]
    parser.add_argument("--only", choices=names, help="this step for all of the time")
    parser.add_argument("--attack", action="store_true", help="attack brokers, instead of the other steps")
    parser.add_argument("--untimed", action="store_true", help="attacks report waits, but do not judge them")
    options = parser.parse_args()
    chosen = ATTACKS if options.attack else STEPS if options.only is None else (*STEPS, *ATTACKS)
    steps = [step for step in chosen if options.only in (None, step.name)]
    if not steps:
        parser.error(f"--attack has no step {options.only}")
    weights = sum(step.weight for step in steps)
    outcomes: list[Outcome] = []
    try:
        for step in steps:
            outcomes.append(Outcome(step))
            seconds = options.minutes * 60 * step.weight / weights
            run_step(step, outcomes[-1], seconds=seconds, first_seed=options.seed, is_timed=not options.untimed)
    except KeyboardInterrupt:
        print("interrupted")
    failed = sum(len(outcome.failed) for outcome in outcomes)
    print("\nsoak report, seeds from", options.seed)
    print("\n".join(str(outcome) for outcome in outcomes))
    print(f"{'FAILED' if failed else 'passed'}: {sum(outcome.runs for outcome in outcomes)} runs, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
