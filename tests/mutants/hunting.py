"""Whether the simulator finds a mutant: a run has a finding of a check that the mutant expects."""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor

from kbroker.testing.mutants import Mutant, install


def hunt(mutant: Mutant, seeds: Iterable[int], *, jobs: int = 1) -> str | None:
    """The first of these seeds with a finding that a mutant expects, and that finding; None if there is none.

    The seeds give the same runs as in `simulate` if PYTHONHASHSEED is 0.
    """
    # A mutant has a process of its own, which has not imported the modules yet.
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:
        return process.submit(_hunt, mutant, seeds, jobs).result()


def _hunt(mutant: Mutant, seeds: Iterable[int], jobs: int) -> str | None:
    install(mutant)
    from kbroker.testing.searching import of_seeds

    for outcome in of_seeds(seeds, jobs=jobs):
        for finding in outcome.findings:
            if finding.check in mutant.expected:
                return f"{outcome.plan.seed} | {finding.check} {finding.kind}"
            sys.stderr.write(f"seed {outcome.plan.seed}, not expected: {str(finding).splitlines()[0][:200]}\n")
    return None
