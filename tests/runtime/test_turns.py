from __future__ import annotations

import trio

from kbroker.runtime.turns import MAX_STEPS, SLICE_NS, Turns


class Clock:
    def __init__(self) -> None:
        self.ns = 0

    def now_ns(self) -> int:
        return self.ns


async def test_only_one_long_task_works_in_each_pass() -> None:
    clock = Clock()
    turns = Turns(clock.now_ns)
    passes: list[int] = []  # how many slices each pass of the event loop had
    is_over = False

    async def work() -> None:
        for _ in range(5):
            clock.ns += SLICE_NS
            passes[-1] += 1
            assert turns.due()
            await turns.next()

    async def count_passes() -> None:
        while not is_over:
            passes.append(0)
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(count_passes)
        await trio.lowlevel.checkpoint()
        async with trio.open_nursery() as workers:
            for _ in range(10):
                workers.start_soon(work)
        is_over = True
    assert sum(passes) == 50
    assert sorted(passes)[-2] <= 2, "the first slices of all ten come at once, before anybody has stood in line"


async def test_who_is_cancelled_hands_the_turn_on() -> None:
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
    assert turns.due(), "it came just behind the one before, whose slice goes on"
