"""Waiting requests."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from kbroker.runtime.purgatory import Purgatory


async def test_a_satisfied_request_does_not_yield() -> None:
    other_ran = False

    async def other() -> None:
        nonlocal other_ran
        other_ran = True

    async with trio.open_nursery() as nursery:
        nursery.start_soon(other)
        assert await Purgatory().wait("orders-0", until=lambda: True, max_wait_ms=1000)
        assert not await Purgatory().wait("orders-0", until=lambda: False, max_wait_ms=0)
        assert not other_ran


async def test_a_wait_ends_after_max_wait_ms(autojump_clock: MockClock) -> None:
    assert not await Purgatory().wait("orders-0", until=lambda: False, max_wait_ms=5_000)
    assert trio.current_time() == 5.0


@pytest.mark.parametrize("key", ["orders-0", "orders-1"])
async def test_waking_any_key_of_a_waiter_evaluates_its_predicate(autojump_clock: MockClock, key: str) -> None:
    purgatory, ready = Purgatory(), False

    async def change() -> None:
        nonlocal ready
        await trio.sleep(1)
        purgatory.wake(key)  # too early: the predicate does not hold yet
        await trio.sleep(1)
        ready = True
        await trio.sleep(1)  # the predicate holds, but there was no wake
        purgatory.wake_many(["another", key])

    async with trio.open_nursery() as nursery:
        nursery.start_soon(change)
        assert await purgatory.wait("orders-0", "orders-1", until=lambda: ready, max_wait_ms=60_000)
        assert trio.current_time() == 3.0


async def test_a_change_without_a_wake_is_seen_at_the_deadline(autojump_clock: MockClock) -> None:
    assert await Purgatory().wait("orders-0", until=lambda: trio.current_time() >= 1, max_wait_ms=2_000)


async def test_two_wakes_before_a_waiter_runs_are_one() -> None:
    purgatory, looks = Purgatory(), 0

    def until() -> bool:
        nonlocal looks
        looks += 1
        return looks == 3

    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: purgatory.wait("orders-0", until=until, max_wait_ms=60_000))
        await wait_all_tasks_blocked()
        purgatory.wake("orders-0")
        purgatory.wake("orders-0")
        await wait_all_tasks_blocked()
        assert looks == 2
        purgatory.wake("orders-0")


async def test_waking_a_cancelled_waiter_is_safe() -> None:
    purgatory = Purgatory()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: purgatory.wait("orders-0", until=lambda: False, max_wait_ms=60_000))
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
        purgatory.wake("orders-0")


async def test_a_key_without_waiters_takes_no_memory(autojump_clock: MockClock) -> None:
    purgatory = Purgatory()
    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(lambda: purgatory.wait("orders-0", "orders-0", until=lambda: False, max_wait_ms=10))
        await wait_all_tasks_blocked()
        assert purgatory.waiting("orders-0") == 3
    assert purgatory.waiting("orders-0") == 0
    assert not purgatory._waiters


async def test_a_failing_predicate_removes_its_waiter() -> None:
    purgatory, parked = Purgatory(), False

    async def wait() -> None:
        with pytest.raises(ZeroDivisionError):
            await purgatory.wait("orders-0", until=lambda: parked and bool(1 // 0), max_wait_ms=60_000)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await wait_all_tasks_blocked()
        parked = True
        purgatory.wake("orders-0")
    assert purgatory.waiting("orders-0") == 0


async def test_an_append_and_a_high_watermark_wake_different_waiters(autojump_clock: MockClock) -> None:
    purgatory = Purgatory()
    evaluated = {"follower": 0, "consumer": 0}

    async def wait(name: str) -> None:
        def count() -> bool:
            evaluated[name] += 1
            return False

        await purgatory.park(
            "orders-0",
            until=count,
            max_wait_ms=60_000,
            scope=trio.CancelScope(),
            waits_for_appends=name == "follower",
        )

    async with trio.open_nursery() as nursery:
        for name in evaluated:
            nursery.start_soon(wait, name)
        for wake, expected in (
            (purgatory.wake_for_append, {"follower": 1, "consumer": 0}),
            (purgatory.wake_for_high_watermark, {"follower": 1, "consumer": 1}),
            (purgatory.wake, {"follower": 2, "consumer": 2}),
        ):
            await wait_all_tasks_blocked()
            wake("orders-0")
            await wait_all_tasks_blocked()
            assert evaluated == expected
        nursery.cancel_scope.cancel()
