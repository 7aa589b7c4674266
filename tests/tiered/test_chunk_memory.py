"""Reusable memory for chunks: `kbroker.tiered.chunk_memory`."""

from __future__ import annotations

import ctypes
import threading
from random import Random

import pytest

from kbroker.tiered.chunk_memory import ChunkMemory, room_for

SIZE = 4_096


def test_memory_without_views_is_reused() -> None:
    memory = ChunkMemory(SIZE)
    view = memory.take(SIZE)
    view[:] = b"a" * SIZE
    assert memory.free_bytes == 0
    del view
    assert memory.free_bytes == SIZE
    assert bytes(memory.take(SIZE)) == b"a" * SIZE, "it is not even cleared"


def test_a_nested_view_keeps_its_buffer_from_being_reused() -> None:
    memory = ChunkMemory(SIZE)
    view = memory.take(SIZE)
    view[:] = b"a" * SIZE
    part = memoryview(view[1_000:2_000])[10:20]
    del view
    other = memory.take(SIZE)
    other[:] = b"b" * SIZE
    assert memory.free_bytes == 0
    assert part == b"a" * 10
    del part
    assert memory.free_bytes == SIZE


@pytest.mark.parametrize("seed", range(5))
def test_a_view_never_changes_while_other_buffers_are_reused(seed: int) -> None:
    draws, memory = Random(seed), ChunkMemory(SIZE)
    held: list[tuple[int, memoryview]] = []
    for number in range(1_000):
        mark = number % 251
        view = memory.take(SIZE if draws.random() < 0.9 else draws.randrange(1, 3 * SIZE))
        view[:] = bytes([mark]) * len(view)
        start = draws.randrange(len(view))
        held.append((mark, view[start : start + draws.randrange(1, SIZE)]))
        del view
        while len(held) > draws.randrange(1, 9):
            held.pop(draws.randrange(len(held)))
        for kept, part in held:
            assert part == bytes([kept]) * len(part)
    held.clear()
    assert 0 < memory.free_bytes <= 10 * SIZE, "the maximum in use at a time"


def test_excess_free_memory_is_returned_to_the_system() -> None:
    memory = ChunkMemory(SIZE)
    taken = [memory.take(SIZE) for _ in range(5)]
    del taken
    memory.keep(2 * SIZE + 1)
    assert memory.free_bytes == 2 * SIZE
    memory.keep(0)
    assert memory.free_bytes == 0


def test_buffers_of_another_chunk_size_are_not_kept() -> None:
    memory = ChunkMemory(SIZE)
    former = memory.take(SIZE)
    memory.resize(2 * SIZE)
    del former
    assert memory.free_bytes == 0
    assert len(memory.take(2 * SIZE)) == 2 * SIZE
    assert memory.free_bytes == 2 * SIZE


CHUNK = 1 << 20


@pytest.mark.parametrize(
    ("size", "room"),
    [
        (CHUNK, CHUNK),
        (CHUNK - 1, CHUNK),
        (CHUNK // 2 + 1, CHUNK),
        (CHUNK // 2, CHUNK // 2),
        (100_000, 128 << 10),
        (40_000, 64 << 10),
        (20_000, 20_000),
        (1, 1),
        (CHUNK + 1, CHUNK + 1),
    ],
)
def test_a_short_chunk_takes_less_than_twice_its_size(size: int, room: int) -> None:
    assert room_for(size, CHUNK) == room
    memory = ChunkMemory(CHUNK)
    view = memory.take(size)
    assert len(view) == size
    view[-1] = 7
    del view
    is_kept = 64 << 10 <= room <= CHUNK
    assert memory.free_bytes == (room if is_kept else 0)
    assert memory.take(size)[-1] == (7 if is_kept else 0), "fresh memory would be zeroed"


def test_chunks_of_all_sizes_reuse_the_same_memory() -> None:
    memory, seen = ChunkMemory(CHUNK), set()
    for size in [CHUNK, CHUNK, CHUNK, CHUNK - 5] * 20:
        views = [memory.take(size)]
        seen.add(ctypes.addressof(ctypes.c_ubyte.from_buffer(views[0])))
        views.clear()
        memory.keep(CHUNK)
    assert len(seen) == 1


def test_memory_of_each_size_is_returned_to_the_system() -> None:
    memory = ChunkMemory(CHUNK)
    taken = [memory.take(size) for size in (CHUNK, CHUNK // 2, CHUNK // 4, CHUNK // 4)]
    taken.clear()
    assert memory.free_bytes == 2 * CHUNK
    memory.keep(CHUNK)
    assert 0 < memory.free_bytes <= CHUNK
    memory.keep(0)
    assert memory.free_bytes == 0


def test_memory_may_be_released_in_any_thread() -> None:
    memory = ChunkMemory(SIZE)
    held = [memory.take(SIZE)]
    thread = threading.Thread(target=held.clear)
    thread.start()
    thread.join()
    assert memory.free_bytes == SIZE
