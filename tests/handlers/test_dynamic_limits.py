"""W10: connection limits that change while the broker runs; and the idle timeout, which cannot change."""

from __future__ import annotations

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from kbroker.client.streaming import ConnectionClosed
from kbroker.testing.memory_node import Client, MemoryBroker, memory_broker
from tests.handlers.asking import BROKER
from tests.handlers.test_configs import alter, describe
from wire.errors import ErrorCode
from wire.messages.api_versions import ApiVersionsRequest

ADDRESS = "198.51.100.1"  # the address of every client in memory
REQUEST = ApiVersionsRequest(client_software_name="t", client_software_version="1")


async def is_served(client: Client) -> bool:
    """Whether a connection gets a reply; False if it was closed."""
    try:
        answer = await client.ask(REQUEST)
    except ConnectionClosed:
        return False
    assert answer.error_code == 0
    return True


@pytest.mark.parametrize("where", ["", "1"])
async def test_w10_a_changed_address_limit_applies_to_the_next_connection(
    broker: MemoryBroker, client: Client, where: str
) -> None:
    second = await broker.connect()
    assert await alter(client, BROKER, where, "max.connections.per.ip", "2") == 0
    assert await is_served(second), "existing connections stay open"
    assert not await is_served(await broker.connect())
    assert await alter(client, BROKER, where, "max.connections.per.ip", None) == 0
    assert await is_served(await broker.connect())


async def test_w10_an_address_can_get_its_own_limit(broker: MemoryBroker, client: Client) -> None:
    overrides = "max.connections.per.ip.overrides"
    assert await alter(client, BROKER, "", overrides, f"192.0.2.7:1,{ADDRESS}:2") == 0
    second = await broker.connect()
    assert await is_served(second)
    assert not await is_served(await broker.connect())
    assert await alter(client, BROKER, "1", overrides, f"{ADDRESS}:3") == 0
    assert await is_served(await broker.connect())
    assert await alter(client, BROKER, "1", overrides, None) == 0
    assert not await is_served(await broker.connect())


async def test_w10_connections_beyond_max_connections_wait(broker: MemoryBroker, client: Client) -> None:
    assert await alter(client, BROKER, "", "max.connections", "1") == 0
    waiting = [await broker.connect() for _ in range(3)]
    for one in waiting:
        await one.send(REQUEST)
    await wait_all_tasks_blocked()
    # The accept in progress at the change is still admitted.
    assert len(broker.node.server.connections) == 2
    assert await alter(client, BROKER, "", "max.connections", None) == 0
    for one in waiting:
        assert (await one.receive()).error_code == 0


async def test_w10_a_changed_creation_rate_applies_at_once(broker: MemoryBroker, client: Client) -> None:
    async def seconds_for(count: int) -> float:
        began = trio.current_time()
        for one in [await broker.connect() for _ in range(count)]:
            assert await is_served(one)
            one.close()
        return trio.current_time() - began

    assert await seconds_for(50) == 0
    assert await alter(client, BROKER, "", "max.connection.creation.rate", "10") == 0
    assert await seconds_for(50) == pytest.approx(4, abs=1.1)
    assert await alter(client, BROKER, "", "max.connection.creation.rate", None) == 0
    await trio.sleep(10)
    assert await seconds_for(50) == 0


async def test_the_idle_timeout_cannot_be_changed_while_running() -> None:
    async with memory_broker(settings={"connections.max.idle.ms": 5_000}) as broker:
        client = await broker.connect()
        assert await alter(client, BROKER, "1", "connections.max.idle.ms", "60000") == ErrorCode.INVALID_REQUEST
        assert await describe(client, BROKER, "1", "connections.max.idle.ms") == ("5000", 4)
        await trio.sleep(4)
        assert await is_served(client)
        await trio.sleep(8)
        assert not await is_served(client)


async def test_w10_a_flood_of_connections_is_refused_and_leaves_no_state() -> None:
    """One address opens five thousand connections, a thousand at a time, while another client works."""
    settings = {"max.connections.per.ip": 0, "max.connections.per.ip.overrides": f"{ADDRESS}:200"}
    async with memory_broker(settings=settings) as broker:
        honest = await broker.connect()
        assert await is_served(honest)
        before = trio.lowlevel.current_statistics().tasks_living
        for _ in range(5):
            flood = [await broker.connect() for _ in range(1_000)]
            assert await is_served(honest)
            await wait_all_tasks_blocked()
            assert len(broker.node.server.connections) == 200
            for one in flood:
                one.close()
            await wait_all_tasks_blocked()
        assert broker.node.metrics.counters["connections.refused"].value == 5 * (1_000 - 199)
        assert len(broker.node.server.connections) == 1
        assert trio.lowlevel.current_statistics().tasks_living == before


async def test_w10_no_limit_locks_all_clients_out_permanently(broker: MemoryBroker, client: Client) -> None:
    """A limit of zero needs exceptions; without them no client could connect to undo it."""
    key, overrides = "max.connections.per.ip", "max.connections.per.ip.overrides"
    refused = ErrorCode.INVALID_REQUEST
    assert await alter(client, BROKER, "1", key, "0") == refused
    assert await alter(client, BROKER, "1", overrides, f"{ADDRESS}:3") == 0
    assert await alter(client, BROKER, "1", key, "0") == 0
    assert await alter(client, BROKER, "1", overrides, None) == refused
    assert await is_served(await broker.connect())
    # A combination of resources that excludes all clients passes validation, but is not applied.
    assert await alter(client, BROKER, "1", key, None) == 0
    assert await alter(client, BROKER, "", overrides, f"{ADDRESS}:3") == 0
    assert await alter(client, BROKER, "", key, "0") == 0
    assert await alter(client, BROKER, "1", overrides, "") == 0
    assert await is_served(await broker.connect())


@pytest.mark.parametrize("where", ["", "1"])
async def test_max_connections_of_zero_is_refused(broker: MemoryBroker, client: Client, where: str) -> None:
    """Apache Kafka accepts it, closes every connection, and can no longer be reconfigured."""
    assert await alter(client, BROKER, where, "max.connections", "0") == ErrorCode.INVALID_REQUEST
    assert await is_served(await broker.connect())


@pytest.mark.parametrize("exceptions", ["10.9.9.9:0", "broker.example:5", " "])
async def test_a_limit_of_zero_needs_exceptions_that_admit_an_address(
    broker: MemoryBroker, client: Client, exceptions: str
) -> None:
    assert await alter(client, BROKER, "1", "max.connections.per.ip.overrides", exceptions) == 0
    assert await alter(client, BROKER, "1", "max.connections.per.ip", "0") == ErrorCode.INVALID_REQUEST
    assert await is_served(await broker.connect())
