"""Run targets in processes of their own, several at a time; see the docstring of the package."""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import tests.fuzz
from tests.fuzz.target import Target, Watch, covered_lines, inputs, keep, kept
from tests.fuzz.targets import MODULES, find

RUNS, MANY_RUNS, LONG_SECONDS = 800, 100_000, 120
KEPT, KEPT_BYTES = 120, 600
_UNITS = re.compile(r"stat::number_of_executed_units:\s+(\d+)")


@dataclass(frozen=True, slots=True)
class Result:
    """The outcome of one target; `found` is the file of the input that failed."""

    target: Target
    runs: int
    seconds: float
    cpu_seconds: float
    found: Path | None
    output: str

    def __str__(self) -> str:
        rate = self.runs / self.cpu_seconds if self.cpu_seconds else 0
        return (
            f"{self.target.name}: {self.runs:,} runs in {self.seconds:.0f} s,"
            f" {rate:,.0f} for each second of CPU{', FAILED' if self.is_failed else ''}"
        )

    @property
    def is_failed(self) -> bool:
        """Whether an input failed, or the process died."""
        return self.found is not None or not self.runs


def fuzz(target: Target, scratch: Path, *, runs: int, seconds: float, seed: int, does_keep: bool) -> Result:
    """Run atheris on one target, for this number of runs or this time."""
    corpus = scratch / target.name
    corpus.mkdir()
    for data in inputs(target):
        (corpus / hashlib.sha256(data).hexdigest()[:20]).write_bytes(data)
    seeds = {file.name for file in corpus.iterdir()}
    bound = (
        [f"-max_total_time={max(1, int(seconds))}"] if seconds else [f"-runs={round(runs * target.ratio) + len(seeds)}"]
    )
    kind = "all-code" if seconds >= LONG_SECONDS or runs >= MANY_RUNS else "modules"
    # Slow units of libFuzzer are a matter of wall time, and so of how busy the machine is; Watch judges CPU time.
    command = [
        sys.executable, "-m", "tests.fuzz.worker", target.name, kind, str(corpus), *bound, f"-seed={seed or 1}",
        f"-max_len={target.max_bytes}", "-len_control=0", "-timeout=60", "-report_slow_units=60", "-rss_limit_mb=2048",
        "-print_final_stats=1", f"-artifact_prefix={scratch}/{target.name}-found-",
    ]  # fmt: skip
    began = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    assert process.stdout is not None
    output = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    units = _UNITS.search(output)
    found = sorted(scratch.glob(f"{target.name}-found-*"))
    if does_keep:
        _keep_new(target, corpus, seeds)
    return Result(
        target,
        runs=int(units.group(1)) if units and process.returncode == 0 else 0,
        seconds=time.monotonic() - began,
        cpu_seconds=usage.ru_utime + usage.ru_stime,
        found=found[0] if found else None,
        output=output,
    )


def _keep_new(target: Target, corpus: Path, seeds: set[str]) -> None:
    """Add the shortest new inputs that execute lines which no seed and no shorter one executes."""
    seen: set[tuple[str, int]] = set()
    for data in inputs(target):
        seen |= covered_lines(target, data)
    chosen = kept(target.name)
    new = [file.read_bytes() for file in corpus.iterdir() if file.name not in seeds]
    for data in sorted((data for data in new if len(data) <= KEPT_BYTES), key=len):
        lines = covered_lines(target, data)
        if len(chosen) < KEPT and not lines <= seen:
            seen |= lines
            chosen.append(data)
    keep(target.name, chosen)


def report(result: Result) -> None:
    """Print the result, and how to reproduce a failure."""
    print(result, flush=True)
    if result.is_failed:
        print(result.output[-6000:], flush=True)
    if result.found is not None:
        file = Path(tempfile.gettempdir(), f"fuzz-{result.found.name}")
        file.write_bytes(result.found.read_bytes())
        print(f"again: python -m tests.fuzz {result.target.name} --input {file}", flush=True)


def main() -> int:
    """Fuzz; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz",
        description=tests.fuzz.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("target", nargs="*", default=["all"], help=f"all, or some of {', '.join(MODULES)}")
    parser.add_argument("--runs", type=int, default=RUNS, help=f"of each target, besides its seeds (default {RUNS})")
    parser.add_argument("--seconds", type=float, default=0, help="for all targets together, instead of runs")
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time (default 2)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--input", type=Path, help="run this input only")
    parser.add_argument("--keep", action="store_true", help="keep inputs that reach new code in the repository")
    options = parser.parse_args()
    targets = [find(name) for name in (MODULES if "all" in options.target else options.target)]
    if options.input is not None:
        Watch(targets[0])(options.input.read_bytes())
        return 0
    if find_spec("atheris") is None:
        print("fuzzing needs atheris, which `make fuzz` installs")
        return 1
    jobs = min(options.jobs, len(targets))
    weight = sum(target.weight for target in targets)

    with tempfile.TemporaryDirectory(prefix="fuzz-") as scratch, ThreadPoolExecutor(jobs) as pool:

        def run(target: Target) -> Result:
            seconds = options.seconds * jobs * target.weight / weight
            result = fuzz(
                target, Path(scratch), runs=options.runs, seconds=seconds, seed=options.seed, does_keep=options.keep
            )
            report(result)
            return result

        results = list(pool.map(run, sorted(targets, key=lambda one: -one.weight)))
    failed = sum(result.is_failed for result in results)
    total, cpu = sum(result.runs for result in results), sum(result.cpu_seconds for result in results)
    print(f"fuzz: {total} runs of {len(results)} targets in {cpu:.0f} s of CPU, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
