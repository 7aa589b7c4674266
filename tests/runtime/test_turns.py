from __future__ import annotations

import trio

from kbroker.runtime.turns import MAX_STEPS, SLICE_NS, Turns


class Clock:
    def __init__(self) -> None:
        self.ns = 0

    def now_ns(self) -> int:
        return self.ns


class Passes(trio.abc.Instrument):
    """Counts the slices of work in each pass of the event loop."""

    def __init__(self) -> None:
        self.slices = [0]

    def before_io_wait(self, timeout: float) -> None:
        self.slices.append(0)


async def test_only_one_long_task_works_in_each_pass() -> None:
    clock, passes = Clock(), Passes()
    turns = Turns(clock.now_ns)

    async def work() -> None:
        for _ in range(5):
            clock.ns += SLICE_NS
            passes.slices[-1] += 1
            assert turns.due()
            await turns.next()

    trio.lowlevel.add_instrument(passes)
    async with trio.open_nursery() as nursery:
        for _ in range(10):
            nursery.start_soon(work)
    trio.lowlevel.remove_instrument(passes)
    first, *later = [count for count in passes.slices if count]
    assert first == 10, "all tasks run their first slice before any of them waits"
    assert later == [1] * 40


async def test_a_cancelled_task_passes_its_turn_on() -> None:
    turns = Turns(lambda: 0)
    order: list[str] = []

    async def work(name: str, scope: trio.CancelScope) -> None:
        with scope:
            await turns.next()
            order.append(name)

    scopes = [trio.CancelScope() for _ in range(4)]
    async with trio.open_nursery() as nursery:
        for number, scope in enumerate(scopes):
            nursery.start_soon(work, str(number), scope)
        scopes[0].cancel()
        scopes[2].cancel()
    assert sorted(order) == ["1", "3"]
    await turns.next()


def test_a_turn_is_due_after_a_slice_or_many_steps() -> None:
    clock = Clock()
    turns = Turns(clock.now_ns)
    assert not turns.due(MAX_STEPS - 1)
    assert turns.due()
    turns = Turns(clock.now_ns)
    clock.ns += SLICE_NS
    assert turns.due()


def test_a_request_after_a_pause_begins_a_slice() -> None:
    clock = Clock()
    turns = Turns(clock.now_ns)
    clock.ns += 10 * SLICE_NS
    turns.begin(clock.ns)
    assert not turns.due()
    clock.ns += SLICE_NS // 2
    turns.begin(clock.ns)
    clock.ns += SLICE_NS // 2
    assert turns.due(), "it follows the previous request directly, so that slice continues"
