"""Runs of trio that are the same for the same seed: virtual time, and tasks in an order that the seed decides."""

from __future__ import annotations

import gc
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import trio
import trio.testing
from trio._core import _run as trio_run  # trio offers this switch to Hypothesis only

Result = TypeVar("Result")


@contextmanager
def deterministic(seed: int) -> Iterator[trio.testing.MockClock]:
    """Until the end of the block each run of trio is decided by the seed, if it uses the clock of the block.

    The clock jumps to the next deadline as soon as all tasks wait. The order within one set of Python, where it depends
    on the hashes of texts, is the same only with PYTHONHASHSEED set. The garbage collector runs before and after, and
    not during, because finalizers would run at arbitrary points.
    """
    scheduling: Any = trio_run
    before, state = scheduling._ALLOW_DETERMINISTIC_SCHEDULING, scheduling._r.getstate()
    collects = gc.isenabled()
    gc.collect()
    gc.disable()
    scheduling._ALLOW_DETERMINISTIC_SCHEDULING = True
    scheduling._r.seed(seed)
    try:
        yield trio.testing.MockClock(autojump_threshold=0)
    finally:
        scheduling._ALLOW_DETERMINISTIC_SCHEDULING = before
        scheduling._r.setstate(state)
        if collects:
            gc.enable()
        gc.collect()


def run(main: Callable[..., Awaitable[Result]], *arguments: object, seed: int) -> Result:
    """`trio.run` in virtual time, decided by the seed; see `deterministic`."""
    with deterministic(seed) as clock:
        return trio.run(main, *arguments, clock=clock)
