"""Large writes run on the event loop while they are fast, and in threads after a slow one."""

from __future__ import annotations

from kbroker.broker.appending import (
    INLINE_LARGE_WRITE_BYTES,
    QUICK_WRITE_NS,
    QUICK_WRITES_WANTED,
    WritePace,
)
from kbroker.storage.plans import INLINE_WRITE_BYTES

LARGE = INLINE_WRITE_BYTES + 1


def test_large_writes_are_inline_until_one_is_slow() -> None:
    pace = WritePace()
    pace.note(QUICK_WRITE_NS)
    assert pace.is_inline(1)
    assert pace.is_inline(INLINE_LARGE_WRITE_BYTES)
    assert not pace.is_inline(INLINE_LARGE_WRITE_BYTES + 1)


def test_a_slow_write_moves_only_large_writes_into_threads() -> None:
    pace = WritePace()
    pace.note(QUICK_WRITE_NS + 1)
    assert not pace.is_inline(LARGE)
    assert pace.is_inline(INLINE_WRITE_BYTES)


def test_enough_fast_writes_in_a_row_move_large_writes_back() -> None:
    pace = WritePace()
    pace.note(QUICK_WRITE_NS + 1)
    for _ in range(QUICK_WRITES_WANTED - 1):
        pace.note(QUICK_WRITE_NS)
    assert not pace.is_inline(LARGE)
    pace.note(QUICK_WRITE_NS + 1)  # the count starts again
    for _ in range(QUICK_WRITES_WANTED):
        assert not pace.is_inline(LARGE)
        pace.note(1)
    assert pace.is_inline(LARGE)
