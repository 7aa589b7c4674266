"""Valid requests with the maximum number of array elements have a bounded cost and do not delay other requests.

Cost is the number of function calls, which is the same in every run; a call takes about 0.2 us.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from types import FrameType
from typing import Any

import pytest
import trio

from kbroker.client.streaming import ConnectionClosed
from kbroker.handlers import discover
from kbroker.testing.env import MemoryEnv
from kbroker.testing.memory_node import Client, MemoryBroker, memory_broker
from tests.greedy import Shape, World, greedy_requests
from tests.handlers.asking import create_topic
from tests.handlers.groups import commit, find, form, offsets_of
from wire.errors import ErrorCode
from wire.framing import encode_request_frame
from wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from wire.messages.describe_groups import DescribeGroupsRequest
from wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchRequestTopic

ELEMENTS = 2_000
CALLS_AT_ONCE = 14_000
"""The limit between two passes of the event loop. With ELEMENTS elements these are 7 calls for each element."""

TOPIC, BROKER, GROUP = 2, 4, 32
APPEND = 2
_IN_A_THREAD = MemoryEnv.run_blocking.__code__


class Longest(trio.abc.Instrument):
    """The largest number of calls that a task made without yielding. Calls in blocking functions do not count, nor do
    calls of compiled functions, which a profiler does not see; so a compiled checkout is tested less strictly.
    """

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


async def reply_bytes(client: Client, frame: bytes) -> int | None:
    """The size of the reply to one request; None if the connection was closed. The client is closed then."""
    try:
        await client.send_bytes(frame)
        received = bytearray()
        while len(received) < 4 or len(received) < 4 + int.from_bytes(received[:4], "big"):
            data = await client.stream.receive(1 << 16)
            if not data:
                return None
            received += data
    except (ConnectionClosed, trio.BrokenResourceError):
        return None
    else:
        return len(received) - 4
    finally:
        client.close()


@pytest.mark.long
async def test_no_array_of_any_request_blocks_the_event_loop() -> None:
    async with world() as (broker, _, exists):
        slow: list[str] = []
        answered = 0
        for request in greedy_requests(discover(), exists, max_bytes=400_000, max_elements=ELEMENTS):
            with watched() as longest:
                answered += await reply_bytes(await broker.connect(), request.frame) is not None
            if longest.calls > CALLS_AT_ONCE:
                slow.append(f"{longest.calls} calls: {request}")
        assert not slow, "\n".join(slow)
        assert answered > 50


@pytest.mark.parametrize(("keys", "parts"), [(ELEMENTS - 1, 1), (3, 6_000)])
async def test_long_changes_of_broker_settings_are_checked_in_a_thread(keys: int, parts: int) -> None:
    async with world() as (broker, _, _exists):
        value = ",".join(map(str, range(parts)))
        configs = [
            AlterableConfig(name=f"listener.name.x{key}.sasl.enabled.mechanisms", config_operation=APPEND, value=value)
            for key in range(keys)
        ]
        resource = AlterConfigsResource(resource_type=BROKER, resource_name="1", configs=configs)
        request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=True)
        frame = encode_request_frame(request, 1, correlation_id=1, client_id="greedy")
        with watched() as longest:
            assert await reply_bytes(
                await broker.connect(), b"".join(part for part in frame if isinstance(part, bytes))
            )
        assert longest.calls < CALLS_AT_ONCE


async def test_duplicate_names_are_answered_once_and_completely() -> None:
    async with world() as (_, client, _exists):
        await form(client, "members")
        resources = [
            DescribeConfigsResource(resource_type=TOPIC, resource_name="t", configuration_keys=[key])
            for key in ("retention.ms", "segment.bytes", "retention.ms")
        ]
        (described,) = (await client.ask(DescribeConfigsRequest(resources=resources))).results
        assert [entry.name for entry in described.configs] == ["retention.ms", "segment.bytes"]

        groups = [
            OffsetFetchRequestGroup(group_id="g", topics=[OffsetFetchRequestTopic(name="t", partition_indexes=indexes)])
            for indexes in ([1, 1], [0, 1, 70])
        ]
        (fetched,) = (await client.ask(OffsetFetchRequest(groups=groups), version=9)).groups
        found = {(one.partition_index, one.committed_offset) for topic in fetched.topics for one in topic.partitions}
        assert found == {(0, 1), (1, 1), (70, -1)}
        assert sum(len(topic.partitions) for topic in fetched.topics) == 3

        listed = [group.group_id for group in (await client.ask(DescribeGroupsRequest(groups=["members"] * 3))).groups]
        assert listed == ["members"]


async def test_a_reply_beyond_the_bound_is_refused() -> None:
    settings = {"kbroker.max.reply.bytes": 1 << 20}
    async with memory_broker(settings=settings) as broker:
        client = await broker.connect()
        many = [
            DescribeConfigsResource(resource_type=GROUP, resource_name=f"{number}", configuration_keys=None)
            for number in range(3_000)
        ]
        request = DescribeConfigsRequest(resources=many, include_documentation=True)
        results = (await client.ask(request)).results
        assert len(results) == len(many)
        assert {(one.error_code, len(one.configs)) for one in results} == {(ErrorCode.INVALID_REQUEST, 0)}


async def test_too_many_elements_close_the_connection() -> None:
    async with world() as (broker, client, exists):
        refused = served = 0
        for request in greedy_requests(discover(), exists, max_bytes=100_000, max_elements=ELEMENTS + 1):
            if request.shape is not Shape.EMPTY:
                continue
            is_too_long = request.elements > ELEMENTS
            answered = await reply_bytes(await broker.connect(), request.frame) is not None
            assert not (is_too_long and answered), str(request)
            refused, served = refused + is_too_long, served + answered
        assert refused > 50
        assert (await client.ask(DescribeGroupsRequest(groups=[]))).groups == []


async def test_a_large_commit_is_complete_and_answers_each_partition_once() -> None:
    async with memory_broker() as broker:
        client = await broker.connect()
        await create_topic(client, "t", partitions=1_200)
        await find(client)
        asked = {("t", index): index for index in range(1_300)}
        codes = await commit(client, asked)
        assert codes == {
            place: ErrorCode.NONE if place[1] < 1_200 else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION for place in asked
        }
        assert await offsets_of(client) == {place: offset for place, offset in asked.items() if offset < 1_200}
