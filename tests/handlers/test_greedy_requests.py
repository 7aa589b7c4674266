"""Well-formed requests with as many array elements as fit: what they cost is bounded, and others are served between.

Cost is counted in calls of functions, which is the same in every run: about 0.2 us each.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from types import FrameType
from typing import Any

import trio

from kbroker.handlers import discover
from kbroker.testing.broker import Client, ConnectionClosed, MemoryBroker, memory_broker
from kbroker.testing.env import MemoryEnv
from kbroker.testing.greedy import World, greedy_requests
from tests.handlers.asking import create_topic
from tests.handlers.groups import commit, find

ELEMENTS = 2_000
CALLS_AT_ONCE = 14_000
"""Between two passes of the event loop. At ELEMENTS this is 7 for each, as for checking and answering it in one go."""

TOPIC, GROUP = 2, 32
_IN_A_THREAD = MemoryEnv.run_blocking.__code__


class Longest(trio.abc.Instrument):
    """The most calls that one task made without giving the event loop a turn; those of blocking functions are free."""

    def __init__(self) -> None:
        self.calls = 0
        self._now = 0
        self._in_a_thread = False

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._now = 0
        sys.setprofile(self._count)

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        sys.setprofile(None)
        self.calls = max(self.calls, self._now)

    def _count(self, frame: FrameType, event: str, argument: Any) -> None:
        if frame.f_code is _IN_A_THREAD:
            self._in_a_thread = event != "return"
        elif event in ("call", "c_call") and not self._in_a_thread:
            self._now += 1


@contextmanager
def watched() -> Iterator[Longest]:
    longest = Longest()
    trio.lowlevel.add_instrument(longest)
    try:
        yield longest
    finally:
        trio.lowlevel.remove_instrument(longest)
        sys.setprofile(None)


@asynccontextmanager
async def world() -> AsyncIterator[tuple[MemoryBroker, Client, World]]:
    async with memory_broker(settings={"kbroker.max.request.elements": ELEMENTS}) as broker:
        client = await broker.connect()
        topic_id = await create_topic(client, "t", partitions=50)
        await find(client)
        assert await commit(client, {("t", index): 1 for index in range(50)})
        yield broker, client, World("t", topic_id, "g")


async def reply_bytes(broker: MemoryBroker, frame: bytes) -> int | None:
    """The size of what one request is answered; None if its connection was closed."""
    client = await broker.connect()
    try:
        await client.send_bytes(frame)
        return len(await client._next_frame())
    except ConnectionClosed:
        return None
    finally:
        client.close()


async def test_no_array_of_any_request_holds_the_event_loop() -> None:
    async with world() as (broker, _, exists):
        slow: list[str] = []
        for request in greedy_requests(discover(), exists, max_bytes=400_000, max_elements=ELEMENTS):
            with watched() as longest:
                await reply_bytes(broker, request.frame)
            if longest.calls > CALLS_AT_ONCE:
                slow.append(f"{longest.calls} calls: {request}")
        assert not slow, "\n".join(slow)
