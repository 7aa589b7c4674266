"""Hunt mutants with the simulator: which seed and which checker finds each of them.

    python -m kbroker.testing.mutants                                      hunt all that can be found
    python -m kbroker.testing.mutants truncate-by-hw --seeds 0..50         hunt one
    python -m kbroker.testing.mutants --seed 1000                          hunt the next one, in turn by this number

Prints a row for docs/simulation.md for each. The exit status is 1 if a mutant was not found.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Sequence
from typing import Final

from kbroker.testing.mutants import MUTANTS

_FOUND: Final = re.compile(r"^seed (\d+)\n  (\w+) ([\w-]+)", re.MULTILINE)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m kbroker.testing.mutants", description="Hunt mutants.")
    parser.add_argument("names", nargs="*", metavar="NAME", choices=[[], *MUTANTS], help="by default all")
    parser.add_argument("--seeds", default="0..200", metavar="A..B", help="the seeds to try, B excluded")
    parser.add_argument("--seed", type=int, metavar="N", help="hunt one mutant, in turn by this number")
    parser.add_argument("--jobs", default="1", help="processes at a time")
    options = parser.parse_args(arguments)
    hunted = [name for name, mutant in MUTANTS.items() if mutant.expected]
    if options.seed is not None:
        hunted = [hunted[options.seed % len(hunted)]]
    missed = []
    for name in options.names or hunted:
        row = hunt(name, seeds=options.seeds, jobs=options.jobs)
        sys.stdout.write(f"| {name} | {row or 'not found'} |\n")
        sys.stdout.flush()
        if row is None:
            missed.append(name)
    return 1 if missed else 0


def hunt(name: str, *, seeds: str, jobs: str = "1") -> str | None:
    """The first of these seeds that finds a mutant, with the finding; None if none does."""
    program = [sys.executable, "-m", "kbroker.testing.simulate", "--mutant", name, "--first"]
    ended = subprocess.run(  # noqa: S603 - our own program
        [*program, "--seeds", seeds, "--jobs", jobs], capture_output=True, text=True, check=False
    )
    assert ended.returncode in (0, 1), ended.stderr
    found = _FOUND.search(ended.stdout)
    return None if found is None else f"{found[1]} | {found[2]} {found[3]}"


if __name__ == "__main__":
    sys.exit(main())
