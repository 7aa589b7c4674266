"""Clients that never log in take neither memory nor connections from those that have (W9, W10)."""

from __future__ import annotations

import struct

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.server.serving import Client, Rig, framed, heart
from tests.server.test_login import RIGHT, WRONG, authenticate, beats, choose, logged_in, login_server
from wire.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from wire.messages.sasl_authenticate import SaslAuthenticateRequest

KIB, MIB = 1024, 1 << 20
LOGIN_BYTES = MIB
SMALL = ("queued.max.request.bytes=4194304", f"kbroker.max.login.bytes={LOGIN_BYTES}")
"""All but one MiB for requests, in two halves, and a quarter for requests that arrived in part."""


def token_of(size: int) -> bytes:
    """A login request with a token of this size that is wrong."""
    return framed(SaslAuthenticateRequest(auth_bytes=WRONG + bytes(size - len(WRONG))), 2, 2)


async def attack(rig: Rig, count: int, data: bytes) -> list[Client]:
    """New connections that choose a mechanism and then send some bytes."""
    attackers = []
    for _ in range(count):
        client = await rig.connect()
        await choose(client)
        await client.stream.send([data])
        attackers.append(client)
    await wait_all_tasks_blocked()
    return attackers


async def produce(client: Client, size: int) -> None:
    data = PartitionProduceData(index=0, records=bytes(size))
    request = ProduceRequest(acks=1, timeout_ms=1, topic_data=[TopicProduceData(name="t", partition_data=[data])])
    frame = framed(request, 8, 5)
    await client.stream.send([frame[: len(frame) // 2]])
    await wait_all_tasks_blocked()
    await client.stream.send([frame[len(frame) // 2 :]])
    await client.receive(ProduceResponse, 8)


@pytest.mark.parametrize("announced", [20 * KIB, 60 * KIB, 500 * KIB])
async def test_w9_half_sent_logins_leave_others_their_memory(autojump_clock: MockClock, announced: int) -> None:
    async with login_server(*SMALL) as rig:
        honest, half = await logged_in(rig), await logged_in(rig)
        beat = framed(heart(member_id="m" * 30_000), 4, 3)
        await half.stream.send([beat[:-1]])
        await attack(rig, 20 * MIB // announced, token_of(announced)[: announced * 9 // 10])
        memory = rig.server.memory
        assert memory.logins.used_bytes <= LOGIN_BYTES + 2 * announced
        assert memory.logins.evicted
        assert memory.evicted == memory.logins.evicted
        await produce(honest, MIB)
        await half.stream.send([beat[-1:]])
        assert await beats(half)
        await logged_in(rig)
        assert trio.current_time() == 0, "no wait was needed"
        await trio.sleep(15)
        assert memory.logins.used_bytes == memory.request_bytes == 0


@pytest.mark.parametrize("announced", [60 * KIB, 500 * KIB])
async def test_w9_failed_logins_that_wait_for_their_answer_count(autojump_clock: MockClock, announced: int) -> None:
    async with login_server(*SMALL, "connection.failed.authentication.delay.ms=5000") as rig:
        attackers = await attack(rig, 20 * MIB // announced, token_of(announced))
        memory = rig.server.memory
        assert 0 < memory.logins.used_bytes <= LOGIN_BYTES + 2 * announced
        assert await attackers[0].ends_without_reply()
        await logged_in(rig)
        assert trio.current_time() < 1  # attempts of this address wait before they are checked
        await trio.sleep(20)
        assert memory.logins.used_bytes == 0


async def test_w10_silent_connections_make_room_when_all_are_taken(autojump_clock: MockClock) -> None:
    async with login_server("max.connections=20") as rig:
        honest = [await logged_in(rig) for _ in range(10)]
        for _ in range(30):
            await (await rig.connect()).stream.send([struct.pack(">i", 100)])
        await wait_all_tasks_blocked()
        assert len(rig.server.connections) == 20
        await trio.sleep(0.5)
        began = trio.current_time()
        late = await logged_in(rig)
        assert trio.current_time() - began < 5, "sooner than kbroker.authentication.timeout.ms"
        for client in (*honest, late):
            assert await beats(client)


async def slow_login(client: Client) -> bool:
    """Log in with pauses that are long for a flood; whether the connection then answers requests."""
    await trio.sleep(0.2)
    await choose(client)
    await trio.sleep(0.2)
    await authenticate(client, RIGHT)
    return await beats(client)


@pytest.mark.parametrize("attackers", [1, 20])
async def test_w10_addresses_that_flood_close_only_their_own_connections(
    autojump_clock: MockClock, attackers: int
) -> None:
    """2,500 connections a second; without a choice by address, each login would have 40 ms."""
    async with login_server("kbroker.max.unauthenticated.connections=100") as rig, trio.open_nursery() as nursery:

        async def flood() -> None:
            while True:
                for number in range(25):
                    rig.connect_from(f"203.0.113.{number % attackers}")
                await trio.sleep(0.01)

        nursery.start_soon(flood)
        await trio.sleep(0.5)
        for _ in range(3):
            assert await slow_login(rig.connect_from("192.0.2.8"))
        assert rig.count("connections.closed_for_room") > 1_000
        assert len(rig.server.connections) <= 100 + 3 + 25
        nursery.cancel_scope.cancel()


async def test_w10_logged_in_clients_are_no_longer_unauthenticated_connections(autojump_clock: MockClock) -> None:
    async with login_server("kbroker.max.unauthenticated.connections=3") as rig:
        for _ in range(5):
            await logged_in(rig)
        strangers = [await rig.connect() for _ in range(3)]
        await wait_all_tasks_blocked()
        assert rig.count("connections.closed_for_room") == 0
        await rig.connect()
        assert await strangers[0].ends_without_reply()


async def test_w10_the_address_with_most_unauthenticated_connections_makes_room(autojump_clock: MockClock) -> None:
    async with login_server("max.connections=20") as rig:
        honest = rig.connect_from("192.0.2.8")
        await choose(honest)
        for _ in range(30):
            rig.connect_from("203.0.113.7")
        await trio.sleep(5)
        assert rig.count("connections.closed_for_room") >= 11
        assert (await authenticate(honest, RIGHT)).error_code == 0
        assert await beats(honest)


async def test_w10_many_young_connections_do_not_protect_old_ones(autojump_clock: MockClock) -> None:
    """Those of the address with most of them are too young to be closed when all connections are taken."""
    async with login_server("max.connections=20") as rig:
        old = [rig.connect_from("203.0.113.7") for _ in range(5)]
        await trio.sleep(0.8)
        for _ in range(16):
            rig.connect_from("203.0.113.8")
        await trio.sleep(0.4)
        assert await old[0].ends_without_reply()
        assert trio.current_time() < 1.5
        assert rig.count("connections.closed_for_room") == 2, "for the one that waited, and for the next one"


async def test_w10_clients_that_have_logged_in_are_not_closed_for_others(autojump_clock: MockClock) -> None:
    async with login_server("max.connections=5", "kbroker.max.unauthenticated.connections=2") as rig:
        honest = [await logged_in(rig) for _ in range(5)]
        waiting = await rig.connect()
        await trio.sleep(20)
        for client in honest:
            assert await beats(client)
        honest[0].stream.close()
        assert (await choose(waiting)).error_code == 0
