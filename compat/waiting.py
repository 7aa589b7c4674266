"""Waiting for external programs, with a time-out."""

from __future__ import annotations

import time
from collections.abc import Callable

PATIENCE_S = 900
MEASURE_S = 600
"""The time-out of one measurement of a worker, in seconds."""


def until(reached: Callable[[], bool], *, each_s: float = 0.02, patience_s: float = PATIENCE_S) -> None:
    """Check the condition every `each_s` seconds until it holds. Errors: AssertionError after `patience_s`."""
    deadline = time.monotonic() + patience_s
    while not reached():
        assert time.monotonic() < deadline, f"not reached within {patience_s:.0f} s"
        time.sleep(each_s)
