"""What a piece of a program leaves to the collector of garbage, which comes by when it likes."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def left_to_the_collector() -> Iterator[list[object]]:
    """Fills the list, at the end of the block, with what became unreachable in it and was not gone by then."""
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
