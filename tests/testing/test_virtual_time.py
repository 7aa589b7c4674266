"""Virtual time: what ends a nap, what comes before a jump of the clock, and that real threads are not forgotten."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from kbroker.testing import run
from kbroker.testing.virtual_time import Nap, VirtualClock, sleep

CLOCKS = [VirtualClock, lambda: MockClock(autojump_threshold=0)]


@pytest.mark.parametrize("clock", CLOCKS)
def test_naps_and_waits_of_trio_end_in_the_order_of_their_times(clock: type[VirtualClock]) -> None:
    ended: list[tuple[str, float]] = []

    async def napping(name: str, seconds: float) -> None:
        await sleep(seconds)
        ended.append((name, trio.current_time()))

    async def waiting(name: str, seconds: float) -> None:
        await trio.sleep(seconds)
        ended.append((name, trio.current_time()))

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(napping, "c", 3)
            nursery.start_soon(waiting, "b", 2)
            nursery.start_soon(waiting, "d", 4)
            nursery.start_soon(napping, "a", 1)

    trio.run(main, clock=clock())
    assert ended == [("a", 1), ("b", 2), ("c", 3), ("d", 4)]


@pytest.mark.parametrize("clock", CLOCKS)
def test_a_nap_can_end_early_and_leaves_nothing_behind(clock: type[VirtualClock]) -> None:
    async def main() -> None:
        nap = Nap()
        nap.end()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(nap.until, 5.0)
            await trio.sleep(1)
            nap.end()
            nap.end()
        assert trio.current_time() == 1
        await sleep(10)
        assert trio.current_time() == 11

    trio.run(main, clock=clock())


@pytest.mark.parametrize("clock", CLOCKS)
@pytest.mark.parametrize(("shield", "ends_at"), [(False, 1), (True, 5)])
def test_only_a_shielded_nap_outlasts_a_cancellation(clock: type[VirtualClock], shield: bool, ends_at: float) -> None:
    async def main() -> None:
        with trio.move_on_after(1) as scope:
            try:
                await sleep(5, shield=shield)
            finally:
                assert trio.current_time() == ends_at
            await trio.lowlevel.checkpoint()
        assert scope.cancelled_caught
        await sleep(0)
        assert trio.current_time() == ends_at

    trio.run(main, clock=clock())


def test_the_clock_does_not_jump_while_a_task_waits_for_the_others() -> None:
    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(sleep, 5)
            await wait_all_tasks_blocked(0.001)
            assert trio.current_time() == 0
        assert trio.current_time() == 5

    trio.run(main, clock=VirtualClock())


def test_results_of_threads_arrive() -> None:
    async def main() -> int:
        return await trio.to_thread.run_sync(lambda: 7)

    assert run(main, seed=1) == 7
