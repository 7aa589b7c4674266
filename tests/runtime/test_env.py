"""The real environment and the one in memory."""

from __future__ import annotations

import threading

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from kbroker.runtime.env import RealEnv
from kbroker.testing.disk import SimulatedDisk
from kbroker.testing.env import MemoryEnv
from wire.types import uuid_to_text


async def test_new_ids_are_random_and_never_look_like_an_option() -> None:
    env = RealEnv()
    made = [env.new_uuid() for _ in range(2_000)]
    assert len(set(made)) == 2_000
    assert {one.version for one in made} == {4}
    assert not any(uuid_to_text(one).startswith("-") for one in made)


async def test_what_it_draws_does_not_tell_what_comes_next() -> None:
    with pytest.raises(NotImplementedError):  # it has no state that could be computed from what clients get to see
        RealEnv().random.getstate()


async def test_the_monotonic_clock_is_not_the_wall_clock() -> None:
    env = RealEnv()
    before = env.now_ms()
    assert before <= env.now_ms()
    assert env.timestamp_ms() > 1_600_000_000_000 > env.now_ms()


async def test_blocking_functions_run_in_a_bounded_number_of_threads() -> None:
    env = RealEnv(max_threads=2)
    running, most, lock = 0, 0, threading.Lock()
    both = threading.Barrier(2)

    def work() -> int:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        both.wait()
        with lock:
            running -= 1
        return threading.get_ident()

    threads: set[int] = set()

    async def call() -> None:
        threads.add(await env.run_blocking(work))

    async with trio.open_nursery() as nursery:
        for _ in range(6):
            nursery.start_soon(call)
    assert most == 2
    assert threading.get_ident() not in threads


async def test_separate_threads_leave_those_of_the_environment_free() -> None:
    env = RealEnv(max_threads=1)
    threads, may_end = env.threads(1), threading.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(threads.run_blocking, may_end.wait, 10)
        await wait_all_tasks_blocked()
        assert await env.run_blocking(lambda: "free") == "free"
        may_end.set()


async def test_a_resized_pool_starts_waiting_calls_and_finishes_running_ones() -> None:
    threads = RealEnv().threads(1)
    both, may_end, done = threading.Barrier(2), threading.Event(), []

    async def meet() -> None:
        await threads.run_blocking(both.wait, 10)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(meet)
        nursery.start_soon(meet)
        await wait_all_tasks_blocked()
        threads.resize(2)  # so that both calls can meet

    async def wait_and_note() -> None:
        await threads.run_blocking(may_end.wait, 10)
        done.append(trio.current_time())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait_and_note)
        nursery.start_soon(wait_and_note)
        await wait_all_tasks_blocked()
        threads.resize(1)
        may_end.set()
    assert len(done) == 2
    running = 0

    def work() -> int:
        nonlocal running
        running += 1
        found = running
        running -= 1
        return found

    found: list[int] = []

    async def call() -> None:
        found.append(await threads.run_blocking(work))

    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(call)
    assert found == [1] * 20, "one at a time"


async def test_an_exception_of_a_blocking_function_reaches_its_caller() -> None:
    with pytest.raises(ZeroDivisionError):
        await RealEnv().run_blocking(divmod, 1, 0)


async def test_in_memory_both_clocks_run_on_virtual_time(autojump_clock: MockClock) -> None:
    env = MemoryEnv(SimulatedDisk())
    now_ms, timestamp_ms = env.now_ms(), env.timestamp_ms()
    await env.sleep_ms(86_400_000)
    assert env.now_ms() - now_ms == env.timestamp_ms() - timestamp_ms == 86_400_000


async def test_a_cancelled_caller_waits_until_the_function_has_returned() -> None:
    env, began, ended = RealEnv(), threading.Event(), threading.Event()

    def work() -> str:
        began.set()
        assert may_end.wait(10)
        ended.set()
        return "done"

    may_end = threading.Event()
    results = []
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:

            async def call() -> None:
                results.append(await env.run_blocking(work))

            nursery.start_soon(call)
            while not began.is_set():
                await trio.lowlevel.checkpoint()
            scope.cancel()
            may_end.set()
    assert ended.is_set()
    assert results == ["done"]


async def test_at_process_end_hanging_calls_are_abandoned() -> None:
    env, began, may_end = RealEnv(), threading.Event(), threading.Event()
    threads = env.threads(1)

    def work() -> None:
        began.set()
        assert may_end.wait(10)

    env.abandon_threads()
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(threads.run_blocking, work)
            while not began.is_set():
                await trio.lowlevel.checkpoint()
            scope.cancel()
    assert env.abandoned == 1
    assert await threads.run_blocking(len, "abc") == 3, "its place is free"
    may_end.set()
    with trio.fail_after(5):
        while env.abandoned:
            await trio.lowlevel.checkpoint()


async def test_a_caller_cancelled_before_the_call_starts_nothing() -> None:
    with trio.CancelScope() as scope:
        scope.cancel()
        await RealEnv().run_blocking(pytest.fail, "it ran")
    assert scope.cancelled_caught


async def test_a_thread_that_fails_to_start_frees_its_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    env = RealEnv(max_threads=1)

    def refuse(*_arguments: object) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(trio.lowlevel, "start_thread_soon", refuse)
        with pytest.raises(RuntimeError, match="new thread"):
            await env.run_blocking(len, "abc")
    with trio.fail_after(5):
        assert await env.run_blocking(len, "abc") == 3
