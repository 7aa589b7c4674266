"""ListOffsets before the tier's metadata is loaded waits; it neither guesses nor fails at once (KAFKA-19599)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from kbroker.replication.offset_lookup import DEBUGGING
from kbroker.testing.disk import SimulatedDisk
from kbroker.testing.env import WALL_START_MS
from kbroker.testing.memory_node import MemoryBroker, memory_broker
from kbroker.tiered.api import TopicIdPartition
from kbroker.tiered.metadata_manager import TopicRemoteLogMetadataManager
from tests.broker.test_tier_lifecycle import QUICK, TIERED, alter, fill, local_start, segments, until
from tests.broker.test_tier_settings import NeverReady
from tests.handlers.asking import create_topic, delete_topic, list_offset
from wire.errors import ErrorCode
from wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING_UPLOAD = range(-1, -7, -1)
DELAY_S = 10
COUNT = 4
"""The number of records; all but the last one are only in the tier."""


class Late(TopicRemoteLogMetadataManager):
    """A plug-in that takes DELAY_S to load the tier's metadata."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._begins_at = trio.current_time() + DELAY_S

    def is_ready(self, partition: TopicIdPartition) -> bool:
        return trio.current_time() >= self._begins_at and super().is_ready(partition)

    async def wait_until_ready(self, partition: TopicIdPartition) -> None:
        await trio.sleep_until(self._begins_at)
        await super().wait_until_ready(partition)


@asynccontextmanager
async def restarted(manager: type[TopicRemoteLogMetadataManager], **more: str) -> AsyncIterator[MemoryBroker]:
    """A broker with topic t in both tiers, before it has loaded the tier's metadata."""
    disk = SimulatedDisk()
    async with memory_broker(disk, settings=QUICK) as broker:
        client = await broker.connect()
        await create_topic(client, "t", settings=TIERED)
        await fill(client, "t", COUNT)
        await until(lambda: segments(broker, "t") == COUNT - 1 == local_start(broker, "t"))
    name = f"{manager.__module__}:{manager.__name__}"
    settings = {**QUICK, **more, "remote.log.metadata.manager.class.name": name}
    async with memory_broker(disk, settings=settings) as broker:
        yield broker


def expired(broker: MemoryBroker) -> tuple[int, int | None]:
    """The number of look-ups that timed out: in total, and for t-0."""
    assert broker.node.broker is not None
    remote = broker.node.broker.replicas.partitions["t", 0].remote
    return broker.node.broker.tier.expired_lookups, None if remote is None else remote.counters.expired_lookups


async def test_kafka_19599_early_requests_wait_for_the_tiers_metadata() -> None:
    """KAFKA-15181: they must not use partly loaded metadata."""
    answers: dict[int, tuple[int, int]] = {}
    times: dict[int, float] = {}

    async def ask(broker: MemoryBroker, name: int) -> None:
        code, offset, _, _ = await list_offset(await broker.connect(), "t", name, version=11)
        answers[name], times[name] = (code, offset), trio.current_time() - began

    async with restarted(Late) as broker:
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            for name in (*range(EARLIEST_PENDING_UPLOAD, 0), WALL_START_MS):
                nursery.start_soon(ask, broker, name)
        assert expired(broker) == (0, 0)
    borders = {LATEST: COUNT, EARLIEST: 0, EARLIEST_LOCAL: COUNT - 1}
    in_the_tier = {LATEST_TIERED: COUNT - 2, EARLIEST_PENDING_UPLOAD: COUNT - 1}
    assert {name: answers.pop(name) for name in borders} == {name: (0, offset) for name, offset in borders.items()}
    assert {times.pop(name) for name in borders} == {0.0}, "these do not need the tier"
    assert {name: answers[name] for name in in_the_tier} == {name: (0, at) for name, at in in_the_tier.items()}
    assert {code for code, _ in answers.values()} == {0}
    assert all(DELAY_S - 1 < time < DELAY_S + 1 for time in times.values()), times


async def test_a_tool_does_not_wait_for_the_tiers_metadata() -> None:
    """`kbroker health` asks so, and agrees with /health."""
    async with restarted(Late) as broker:
        client, node, began = await broker.connect(), broker.node.broker, trio.current_time()
        assert node is not None
        for code in (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NONE):
            assert bool(node.tier.waits_for) == bool(code)
            found = await list_offset(client, "t", LATEST_TIERED, version=11, replica_id=DEBUGGING)
            assert found[:2] == (code, -1 if code else COUNT - 2)
            assert (trio.current_time() - began < 1) == bool(code)
            await trio.sleep(DELAY_S + 1)
        assert expired(broker) == (0, 0)


@pytest.mark.parametrize("name", [LATEST_TIERED, EARLIEST_PENDING_UPLOAD, MAX_TIMESTAMP, WALL_START_MS])
async def test_early_requests_fail_after_the_timeout(name: int) -> None:
    async with restarted(NeverReady, **{"remote.list.offsets.request.timeout.ms": "7000"}) as broker:
        client = await broker.connect()
        for count, (timeout_ms, waits_s) in enumerate([(0, 7.0), (2_000, 2.0)], start=1):
            asked = ListOffsetsPartition(partition_index=0, current_leader_epoch=-1, timestamp=name)
            topic = ListOffsetsTopic(name="t", partitions=[asked])
            request = ListOffsetsRequest(replica_id=-1, isolation_level=0, topics=[topic], timeout_ms=timeout_ms)
            began = trio.current_time()
            found = (await client.ask(request, version=11)).topics[0].partitions[0]
            assert (found.error_code, found.offset) == (ErrorCode.REQUEST_TIMED_OUT, -1)
            assert trio.current_time() - began == pytest.approx(waits_s)
            assert expired(broker) == (count, count)


async def test_the_wait_ends_with_partition_tier_or_client() -> None:
    async with restarted(NeverReady) as broker:
        client, other = await broker.connect(), await broker.connect()

        async def ask(expected: tuple[int, int]) -> None:
            began = trio.current_time()
            assert (await list_offset(client, "t", LATEST_TIERED))[:2] == expected
            assert trio.current_time() - began < 5

        gone = await broker.connect()
        async with trio.open_nursery() as nursery:
            topic = ListOffsetsTopic(
                name="t",
                partitions=[ListOffsetsPartition(partition_index=0, current_leader_epoch=-1, timestamp=LATEST_TIERED)],
            )
            await gone.send(ListOffsetsRequest(replica_id=-1, isolation_level=0, topics=[topic]))
            await trio.sleep(1)
            gone.close()
            await trio.sleep(40)
            assert expired(broker) == (0, 0), "requests of disconnected clients do not count as expired"
            nursery.start_soon(ask, (0, -1))
            await trio.sleep(1)
            changes = {"remote.storage.enable": "false", "remote.log.delete.on.disable": "true"}
            assert await alter(other, "t", changes) == (0, None)
        await create_topic(other, "u", settings=TIERED)
        async with trio.open_nursery() as nursery:

            async def ask_of_another() -> None:
                began = trio.current_time()
                code = (await list_offset(client, "u", LATEST_TIERED))[0]
                assert code in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
                assert trio.current_time() - began < 5

            nursery.start_soon(ask_of_another)
            await trio.sleep(1)
            await delete_topic(other, "u")
