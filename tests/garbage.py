"""Detects objects that are left to the garbage collector, which runs at unpredictable times."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def left_to_the_collector() -> Iterator[list[object]]:
    """Fills the list, at the end of the block, with objects that became unreachable in it but were not freed."""
    left: list[object] = []
    flags = gc.get_debug()
    gc.collect()
    gc.disable()
    try:
        yield left
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        left += gc.garbage
    finally:
        gc.garbage.clear()
        gc.set_debug(flags)
        gc.enable()
        gc.collect()
