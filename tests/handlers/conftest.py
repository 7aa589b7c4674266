"""A node in memory and a client of it; all tests here and in tests/broker run on virtual time."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from inspect import iscoroutinefunction
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from kbroker.testing.memory_node import Client, MemoryBroker, memory_broker


def run_on_virtual_time(
    function: Callable[[], Awaitable[Any]], *, clock: None = None, instruments: Sequence[trio.abc.Instrument] = ()
) -> Any:
    """Like trio.run, with a clock that jumps to the next deadline when all tasks wait."""
    return trio.run(function, clock=MockClock(autojump_threshold=0), instruments=instruments)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent.name in ("handlers", "broker") and iscoroutinefunction(getattr(item, "obj", None)):
            item.add_marker(pytest.mark.trio(run=run_on_virtual_time))


@pytest.fixture
async def broker() -> AsyncIterator[MemoryBroker]:
    async with memory_broker() as running:
        yield running


@pytest.fixture
async def client(broker: MemoryBroker) -> Client:
    return await broker.connect()
