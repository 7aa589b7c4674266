"""A connection polls for its next request for a short time before it sleeps."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from kbroker.runtime.env import RealEnv
from kbroker.runtime.net import BusyPoll, SocketStream

WINDOW_NS = 1_000_000
TURN_NS = 10_000
"""The test clock advances by this at every read: a window is a hundred turns."""
PATIENCE = 16


class Clock:
    """A clock that advances only when it is read."""

    def __init__(self) -> None:
        self.ns = 0
        self.looks = 0

    def __call__(self) -> int:
        self.looks += 1
        self.ns += TURN_NS
        return self.ns


class Pair:
    """Both ends of a connection; `stream` polls."""

    def __init__(self, poll: BusyPoll) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listening:
            self.peer = socket.create_connection(listening.getsockname())
            ours, address = listening.accept()
        self.stream = SocketStream(ours, address, run_blocking=RealEnv().run_blocking, busy_poll=poll)

    def close(self) -> None:
        self.peer.close()
        self.stream.close()


@contextmanager
def pairs(poll: BusyPoll, count: int = 1) -> Iterator[list[Pair]]:
    made = [Pair(poll) for _ in range(count)]
    try:
        yield made
    finally:
        for each in made:
            each.close()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def poll(clock: Clock) -> BusyPoll:
    return BusyPoll(window_ns=WINDOW_NS, now_ns=clock)


async def short_wait(pair: Pair, data: bytes = b"x") -> None:
    """Wait for bytes that the peer sends at once."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pair.stream.receive, 1 << 20)
        await wait_all_tasks_blocked()
        pair.peer.sendall(data)


async def make_lively(pair: Pair) -> None:
    for _ in range(PATIENCE):
        await short_wait(pair)


async def turns_of_a_wait(pair: Pair, clock: Clock) -> int:
    """The number of polls of a failed wait before it sleeps."""
    before = clock.looks
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pair.stream.receive, 1 << 20)
        await wait_all_tasks_blocked()
        looked = clock.looks - before
        pair.peer.sendall(b"late")
    return looked


async def until_polling(poll: BusyPoll) -> None:
    with trio.fail_after(5):
        while poll.is_free:
            await trio.lowlevel.checkpoint()


async def test_a_connection_polls_only_after_several_short_waits(poll: BusyPoll, clock: Clock) -> None:
    with pairs(poll) as [pair]:
        for _ in range(PATIENCE - 1):
            await short_wait(pair)
        assert await turns_of_a_wait(pair, clock) == 1
        assert await turns_of_a_wait(pair, clock) > 50


async def test_polling_keeps_the_byte_order_and_lets_other_tasks_run(poll: BusyPoll) -> None:
    with pairs(poll) as [pair]:
        await make_lively(pair)
        steps = 0

        async def peer() -> None:
            nonlocal steps
            for _ in range(5):
                await trio.lowlevel.checkpoint()
                assert not poll.is_free
                steps += 1
            pair.peer.sendall(b"found")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(peer)
            assert await pair.stream.receive(100) == b"found"
        assert steps == 5
        assert poll.is_free


async def test_a_failed_poll_ends_with_the_window_and_stops_polling(poll: BusyPoll, clock: Clock) -> None:
    with pairs(poll) as [pair]:
        await make_lively(pair)
        assert WINDOW_NS / TURN_NS <= await turns_of_a_wait(pair, clock) <= WINDOW_NS / TURN_NS + 2
        assert await turns_of_a_wait(pair, clock) == 1


async def test_a_long_wait_resets_the_count_of_short_waits(poll: BusyPoll, clock: Clock) -> None:
    with pairs(poll) as [pair]:
        for _ in range(PATIENCE - 1):
            await short_wait(pair)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(pair.stream.receive, 100)
            await wait_all_tasks_blocked()
            clock.ns += WINDOW_NS
            pair.peer.sendall(b"late")
        for _ in range(PATIENCE):
            assert await turns_of_a_wait(pair, clock) == 1
        assert await turns_of_a_wait(pair, clock) > 50


async def test_one_connection_polls_at_a_time(poll: BusyPoll, clock: Clock) -> None:
    with pairs(poll, 2) as [one, other]:
        await make_lively(one)
        await make_lively(other)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one.stream.receive, 100)
            await until_polling(poll)
            nursery.start_soon(other.stream.receive, 100)
            await wait_all_tasks_blocked()
            assert clock.looks < 2 * WINDOW_NS / TURN_NS
            one.peer.sendall(b"1")
            other.peer.sendall(b"2")
        assert poll.is_free


async def test_no_poll_follows_heavy_traffic(poll: BusyPoll, clock: Clock) -> None:
    with pairs(poll) as [pair]:
        await make_lively(pair)
        pair.peer.sendall(bytes(97 * 1024))
        received = 0
        while received < 97 * 1024:
            received += len(await pair.stream.receive(1 << 20))
        assert await turns_of_a_wait(pair, clock) == 1


async def test_a_poll_ends_with_the_connection(poll: BusyPoll) -> None:
    with pairs(poll) as [pair]:
        await make_lively(pair)
        async with trio.open_nursery() as nursery:

            async def meet_the_end() -> None:
                assert await pair.stream.receive(100) == b""

            nursery.start_soon(meet_the_end)
            await until_polling(poll)
            pair.peer.close()
        assert poll.is_free


async def test_a_cancelled_poll_lets_another_connection_poll(poll: BusyPoll) -> None:
    with pairs(poll) as [pair]:
        await make_lively(pair)
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(pair.stream.receive, 100)
                await until_polling(poll)
                scope.cancel()
        assert scope.cancelled_caught
        assert poll.is_free


async def test_closing_our_end_ends_a_poll(poll: BusyPoll) -> None:
    with pairs(poll) as [pair]:
        await make_lively(pair)
        async with trio.open_nursery() as nursery:

            async def meet_the_end() -> None:
                with pytest.raises(trio.ClosedResourceError):
                    await pair.stream.receive(100)

            nursery.start_soon(meet_the_end)
            await until_polling(poll)
            pair.stream.close()
        assert poll.is_free
