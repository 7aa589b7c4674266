"""Waiting for what others do: never longer than a patient person would."""

from __future__ import annotations

import time
from collections.abc import Callable

PATIENCE_S = 900
MEASURE_S = 600
"""How long one measure of a worker may take, waiting included."""


def until(reached: Callable[[], bool], *, each_s: float = 0.02, patience_s: float = PATIENCE_S) -> None:
    """Look every so many seconds until it is so. Errors: AssertionError after `patience_s`."""
    deadline = time.monotonic() + patience_s
    while not reached():
        assert time.monotonic() < deadline, f"not reached within {patience_s:.0f} s"
        time.sleep(each_s)
