"""Where large writes are made: on the event loop while they are quick, in a thread after one that was not."""

from __future__ import annotations

from kbroker.broker.appending import (
    INLINE_LARGE_WRITE_BYTES,
    INLINE_WRITE_BYTES,
    QUICK_WRITE_NS,
    QUICK_WRITES_WANTED,
    WritePace,
)

LARGE = INLINE_WRITE_BYTES + 1


def test_writes_are_inline_up_to_the_large_size_as_long_as_none_was_slow() -> None:
    pace = WritePace()
    pace.note(QUICK_WRITE_NS)
    assert pace.is_inline(1)
    assert pace.is_inline(INLINE_LARGE_WRITE_BYTES)
    assert not pace.is_inline(INLINE_LARGE_WRITE_BYTES + 1)


def test_one_slow_write_sends_large_ones_into_threads_and_leaves_small_ones() -> None:
    pace = WritePace()
    pace.note(QUICK_WRITE_NS + 1)
    assert not pace.is_inline(LARGE)
    assert pace.is_inline(INLINE_WRITE_BYTES)


def test_a_whole_row_of_quick_writes_brings_large_ones_back() -> None:
    pace = WritePace()
    pace.note(QUICK_WRITE_NS + 1)
    for _ in range(QUICK_WRITES_WANTED - 1):
        pace.note(QUICK_WRITE_NS)
    assert not pace.is_inline(LARGE)
    pace.note(QUICK_WRITE_NS + 1)  # the row begins anew
    for _ in range(QUICK_WRITES_WANTED):
        assert not pace.is_inline(LARGE)
        pace.note(1)
    assert pace.is_inline(LARGE)
