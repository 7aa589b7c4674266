"""Runs plans in processes of their own, many of them at a time, and reduces a plan that breaks a promise."""

from __future__ import annotations

import gc
import multiprocessing
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import cache
from multiprocessing.pool import Pool
from typing import Final

from kbroker.testing.drawing import drawn_plan
from kbroker.testing.plan import Plan, smaller
from kbroker.testing.simulated_run import Outcome, run_plan

_FORK: Final = multiprocessing.get_context("fork")
"""A child has all modules at once, and no state of another run but that of `_warm_up`."""
_WARM_UP: Final = 0
"""The seed of a tiered topic with a group."""


@cache
def _warm_up() -> None:
    """Import late modules and compile codecs once, not in each child."""
    run_plan(replace(drawn_plan(_WARM_UP), duration_ms=1_000, acts=()))


def _pool(jobs: int) -> Pool:
    _warm_up()
    return _FORK.Pool(jobs, initializer=_collect_nothing, maxtasksperchild=1)


def _collect_nothing() -> None:
    """A child ends after one run."""
    gc.disable()
    gc.freeze()


def in_child(plan: Plan) -> Outcome:
    """Run a plan in a new process."""
    return next(in_children([plan], jobs=1))


def in_children(plans: Iterable[Plan], *, jobs: int) -> Iterator[Outcome]:
    """Run plans in new processes, `jobs` at a time; the outcomes are in the order of the plans."""
    with _pool(jobs) as pool:
        yield from pool.imap(run_plan, plans)


def of_seeds(seeds: Iterable[int], *, jobs: int, draw: Callable[[int], Plan] = drawn_plan) -> Iterator[Outcome]:
    """Run the plans of seeds; see `in_children`. An endless iterable needs an end by the caller."""
    with _pool(jobs) as pool:
        pending = []
        for seed in seeds:
            pending.append(pool.apply_async(_of_seed, (draw, seed)))
            if len(pending) > 2 * jobs:
                yield pending.pop(0).get()
        for one in pending:
            yield one.get()


def _of_seed(draw: Callable[[int], Plan], seed: int) -> Outcome:
    return run_plan(draw(seed))


def shrink(outcome: Outcome, *, jobs: int, tries: int, say: Callable[[str], object]) -> Outcome:
    """The outcome of the smallest plan that is found in so many runs and breaks the same promise in the same way."""
    check, kind = outcome.findings[0].check, outcome.findings[0].kind
    runs = 0
    while runs < tries:
        for found in in_children(smaller(outcome.plan)[: tries - runs], jobs=jobs):
            runs += 1
            if found.has(check, kind):
                outcome = found
                say(f"{runs} runs: {len(found.plan.acts)} acts, {found.plan.duration_ms / 1000:.1f} s")
                break
        else:
            break
    return outcome


def is_repeatable(outcome: Outcome) -> bool:
    """K16: whether another run of a plan gives the same trace."""
    return in_child(outcome.plan).digest == outcome.digest
