"""Search the seeds with which the simulator finds mutants.

    python -m tests.mutants                                   all of them
    python -m tests.mutants truncate-by-hw --seeds 0..50      one
    python -m tests.mutants --seed 1000                       one, which the number chooses: for `make soak`

For each mutant it prints a row for docs/simulation.md: the first seed with a finding of a check that the mutant
expects. Other findings, for example a run that ends with an error, do not count. The exit status is 1 if a mutant was
not found.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from kbroker.testing.simulate import seed_range
from tests.mutants import MUTANTS
from tests.mutants.hunting import hunt


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutants", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", choices=[[], *MUTANTS], help="by default all")
    parser.add_argument(
        "--seeds", type=seed_range, default="0..200", metavar="A..B", help="the seeds to try, B excluded"
    )
    parser.add_argument("--seed", type=int, metavar="N", help="only one mutant, which this number chooses")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    options = parser.parse_args(arguments)
    names = options.names or list(MUTANTS)
    if options.seed is not None:
        names = [names[options.seed % len(names)]]
    os.environ["PYTHONHASHSEED"] = "0"  # of the children
    is_missed = False
    for name in names:
        row = hunt(MUTANTS[name], options.seeds, jobs=options.jobs)
        is_missed |= row is None
        sys.stdout.write(f"| {name} | {MUTANTS[name].why} | {row or 'not found'} |\n")
        sys.stdout.flush()
    return int(is_missed)


if __name__ == "__main__":
    sys.exit(main())
