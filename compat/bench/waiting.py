"""Waiting for a broker that is measured: never longer than a patient person would."""

from __future__ import annotations

import time
from collections.abc import Callable

PATIENCE_S = 900


def until(reached: Callable[[], bool], *, each_s: float = 0.02) -> None:
    """Look every so many seconds until it is so. Errors: AssertionError after `PATIENCE_S`."""
    deadline = time.monotonic() + PATIENCE_S
    while not reached():
        assert time.monotonic() < deadline, f"not reached within {PATIENCE_S} s"
        time.sleep(each_s)
