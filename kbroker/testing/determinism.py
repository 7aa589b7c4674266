"""Runs of trio that are the same for the same seed: virtual time, and tasks in an order that the seed decides."""

from __future__ import annotations

import gc
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import trio
from trio._core import _run as trio_run  # trio offers its switch to Hypothesis only

from kbroker.testing.virtual_time import VirtualClock

Result = TypeVar("Result")

_TURNS: Final = 1_000
"""A run looks for signals and results of threads once in so many turns of the event loop."""
_trio: Any = trio_run
_Waits: Any = _trio.TheIOManager


class _SeldomWaits(_Waits):  # type: ignore[misc]
    """Tasks in virtual time wait for no real sockets, so nearly all system calls for them are left out."""

    def __init__(self) -> None:
        super().__init__()
        self._turns = 0

    def get_events(self, timeout: float) -> Any:
        """See trio."""
        self._turns += 1
        return super().get_events(timeout) if timeout or self._turns % _TURNS == 0 else []


@contextmanager
def deterministic(seed: int) -> Iterator[VirtualClock]:
    """Until the end of the block each run of trio is decided by the seed, if it uses the clock of the block.

    The clock jumps to the next deadline as soon as all tasks wait. The order within one set of Python, where it depends
    on the hashes of texts, is the same only with PYTHONHASHSEED set. The garbage collector runs before and after, and
    not during, because finalizers would run at arbitrary points; not after if it is off anyway.
    """
    before, state = _trio._ALLOW_DETERMINISTIC_SCHEDULING, _trio._r.getstate()
    collects = gc.isenabled()
    gc.collect()
    gc.disable()
    _trio._ALLOW_DETERMINISTIC_SCHEDULING = True
    _trio._r.seed(seed)
    _trio.TheIOManager = _SeldomWaits
    try:
        yield VirtualClock()
    finally:
        _trio.TheIOManager = _Waits
        _trio._ALLOW_DETERMINISTIC_SCHEDULING = before
        _trio._r.setstate(state)
        if collects:
            gc.enable()
            gc.collect()


def run(main: Callable[..., Awaitable[Result]], *arguments: object, seed: int) -> Result:
    """`trio.run` in virtual time, decided by the seed; see `deterministic`."""
    with deterministic(seed) as clock:
        return trio.run(main, *arguments, clock=clock)
