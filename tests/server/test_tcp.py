"""The server's limits and its shutdown: rows W8 to W10 and D13."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import struct
from itertools import pairwise

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from kbroker.config import Settings
from kbroker.testing.net import MemoryListener, MemoryStream, stream_pair
from tests.server.serving import Rig, framed, heart, serving
from wire.errors import ErrorCode
from wire.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData


def produce(size: int) -> bytes:
    """A Produce of `size` bytes."""
    data = [PartitionProduceData(index=0, records=bytes(size))]
    request = ProduceRequest(acks=1, timeout_ms=1, topic_data=[TopicProduceData(name="orders", partition_data=data)])
    return framed(request, 7, 1)


async def test_an_idle_connection_is_closed_after_connections_max_idle_ms(autojump_clock: MockClock) -> None:
    async with serving(in_memory=True) as rig:
        idle, busy = await rig.connect(), await rig.connect()

        async def keep_busy() -> None:
            while True:
                await busy.send((heart(), 0, 1))
                await busy.receive_heartbeat()
                await trio.sleep(500)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(keep_busy)
            assert await idle.ends_without_reply()
            assert 600 <= trio.current_time() < 603
            await trio.sleep(3_000)
            assert len(rig.server.connections) == 1
            nursery.cancel_scope.cancel()


async def test_a_connection_that_waits_for_its_reply_is_not_idle(autojump_clock: MockClock) -> None:
    async with serving(in_memory=True) as rig:
        client = await rig.connect()
        await client.send((heart("wait", wait_ms=3_600_000), 0, 1))
        assert await client.receive_heartbeat() == (1, ErrorCode.REQUEST_TIMED_OUT)


@pytest.mark.parametrize("begun", [1, 4, 5, 40])
async def test_w9_a_stalled_frame_is_closed_after_30_s(autojump_clock: MockClock, begun: int) -> None:
    async with serving(in_memory=True) as rig:
        client = await rig.connect()
        await trio.sleep(100)
        await client.stream.send([produce(50_000)[:begun]])
        assert await client.ends_without_reply()
        assert 130 <= trio.current_time() < 133


async def test_w9_one_byte_a_second_does_not_keep_a_connection(autojump_clock: MockClock) -> None:
    async with serving(in_memory=True) as rig:
        client = await rig.connect()

        async def drip() -> None:
            for byte in produce(1_000):
                await client.stream.send([bytes([byte])])
                await trio.sleep(1)

        with pytest.raises(trio.BrokenResourceError):
            await drip()
        assert 30 <= trio.current_time() < 34
        assert rig.count("connections.closed_for_delay") == 1
        assert rig.count("requests.Produce") == 0


async def test_w9_a_large_frame_may_arrive_at_16_kib_per_second(autojump_clock: MockClock) -> None:
    async with serving(in_memory=True) as rig:
        client = await rig.connect()
        data = produce(4 * 1024 * 1024)
        for start in range(0, len(data), 20_000):
            await client.stream.send([data[start : start + 20_000]])
            await trio.sleep(1)
        assert trio.current_time() > 200
        assert (await client.receive(ProduceResponse, 7))[0] == 1


async def test_w9_a_fast_large_frame_that_stalls_is_closed(autojump_clock: MockClock) -> None:
    async with serving(in_memory=True) as rig:
        client = await rig.connect()
        await client.stream.send([produce(8 * 1024 * 1024)[:-1]])
        assert await client.ends_without_reply()
        assert 60 <= trio.current_time() < 63


async def test_w9_over_sockets_with_small_limits() -> None:
    with trio.fail_after(10):
        async with serving("kbroker.frame.grace.ms=40", in_memory=False) as rig:
            client = await rig.connect()
            await client.stream.send([produce(1_000)[:-1]])
            assert await client.ends_without_reply()
            assert rig.count("connections.closed_for_delay") == 1


async def test_w9_many_slow_connections_do_not_slow_an_honest_one(autojump_clock: MockClock) -> None:
    async with serving(in_memory=True) as rig:
        slow = [await rig.connect() for _ in range(500)]
        for client in slow:
            await client.stream.send([produce(1_000)[:50]])
        honest = await rig.connect()
        for number in range(100):
            await honest.send((heart(), 0, number))
            assert await honest.receive_heartbeat() == (number, 0)
        assert trio.current_time() == 0, "no wait was needed"
        assert len(rig.server.connections) == 501


async def test_w10_more_than_max_connections_per_ip_are_closed() -> None:
    with trio.fail_after(10):
        async with serving("max.connections.per.ip=2", in_memory=False) as rig:
            first, second = await rig.connect(), await rig.connect()
            await rig.until("connections.accepted", 2)
            assert await (await rig.connect()).ends_without_reply()
            assert rig.count("connections.refused") == 1
            first.stream.close()
            while len(rig.server.connections) == 2:
                await trio.lowlevel.checkpoint()
            for client in (second, await rig.connect()):
                await client.send((heart(), 0, 1))
                assert await client.receive_heartbeat() == (1, 0)


async def test_w10_this_machine_can_always_open_one_connection() -> None:
    """No limit for addresses can lock out the operator who must change it."""
    settings = "max.connections.per.ip=0", "max.connections.per.ip.overrides=192.0.2.1:5,127.0.0.1:0"
    with trio.fail_after(10):
        async with serving(*settings, in_memory=False) as rig:
            client = await rig.connect()
            await client.send((heart(), 0, 1))
            assert await client.receive_heartbeat() == (1, 0)
            assert await (await rig.connect()).ends_without_reply()


async def test_w10_an_address_can_have_its_own_limit(autojump_clock: MockClock) -> None:
    settings = "max.connections.per.ip=0", "max.connections.per.ip.overrides=198.51.100.1:1"
    async with serving(*settings, in_memory=True) as rig:
        client = await rig.connect()
        await client.send((heart(), 0, 1))
        assert await client.receive_heartbeat() == (1, 0)
        assert await (await rig.connect()).ends_without_reply()


async def test_w10_the_addresses_of_an_ipv6_network_have_one_limit(autojump_clock: MockClock) -> None:
    settings = "max.connections.per.ip=2", "max.connections.per.ip.overrides=[2400:cb00::9]:1,[fe80::9]:1"
    async with serving(*settings, in_memory=True) as rig:

        async def is_served(host: str) -> bool:
            near, far = stream_pair(client_host=host)
            assert isinstance(rig.listener, MemoryListener)
            rig.listener.arrivals.send_nowait(far)
            clients.append(near)
            await near.send([framed(heart(), 0, 1)])
            return bool(await near.receive(100))

        clients: list[MemoryStream] = []
        hosts = "2400:cb00::1", "2400:cb00::2:1", "2400:cb00::3", "2400:cb00:0:1::1", "2400:cb00::9", "2400:cb00::9"
        assert [await is_served(host) for host in hosts] == [True, True, False, True, True, False]
        assert [await is_served("fe80::9%4") for _ in range(2)] == [True, False]
        rig.server.apply(Settings.load(overrides=["max.connections.per.ip=2"]))  # which forgets the exception
        for client in clients:
            client.close()
        await trio.sleep(1)
        assert not rig.server.connections
        assert [await is_served(host) for host in hosts[2:3] * 3] == [True, True, False]


async def test_w10_a_connection_beyond_max_connections_waits_until_another_one_ends() -> None:
    with trio.fail_after(10):
        async with serving("max.connections=1", in_memory=False) as rig:
            first, second = await rig.connect(), await rig.connect()
            await second.send((heart(), 0, 2))
            await first.send((heart(), 0, 1))
            assert await first.receive_heartbeat() == (1, 0)
            await wait_all_tasks_blocked(0.01)
            assert rig.count("requests.Heartbeat") == 1
            first.stream.close()
            assert await second.receive_heartbeat() == (2, 0)


async def test_w10_clients_take_no_connections_from_brokers(autojump_clock: MockClock) -> None:
    settings = (
        "max.connections=2",
        "listeners=PLAINTEXT://127.0.0.1:1,CLIENTS://127.0.0.1:2",
        "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CLIENTS:PLAINTEXT",
    )
    async with serving(*settings, in_memory=True) as rig:
        for_clients = await rig.env.listen("127.0.0.1", 0)
        rig.server.add(for_clients, name="CLIENTS")
        _clients = [await rig.env.connect(for_clients.host, for_clients.port) for _ in range(5)]
        await wait_all_tasks_blocked()
        assert rig.server.connections_by_listener() == {"PLAINTEXT": 0, "CLIENTS": 2}
        brokers = [await rig.connect() for _ in range(3)]
        for broker in brokers[:2]:
            await broker.send((heart(), 0, 1))
            assert await broker.receive_heartbeat() == (1, 0)
        await wait_all_tasks_blocked()
        assert rig.server.connections_by_listener() == {"PLAINTEXT": 2, "CLIENTS": 2}
        brokers[0].stream.close()
        await brokers[2].send((heart(), 0, 1))
        assert await brokers[2].receive_heartbeat() == (1, 0)


async def test_w10_connections_of_brokers_keep_no_client_out(autojump_clock: MockClock) -> None:
    settings = (
        "max.connections=2",
        "listeners=PLAINTEXT://127.0.0.1:1,CLIENTS://127.0.0.1:2",
        "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CLIENTS:PLAINTEXT",
    )
    async with serving(*settings, in_memory=True) as rig:
        for_clients = await rig.env.listen("127.0.0.1", 0)
        rig.server.add(for_clients, name="CLIENTS")
        _brokers = [await rig.connect() for _ in range(3)]
        _clients = [await rig.env.connect(for_clients.host, for_clients.port) for _ in range(3)]
        await wait_all_tasks_blocked()
        assert rig.server.connections_by_listener() == {"PLAINTEXT": 2, "CLIENTS": 2}


async def test_accepting_gives_turns_after_a_pause_too() -> None:
    with trio.fail_after(10), contextlib.ExitStack() as clients:
        async with serving("max.connection.creation.rate=7", in_memory=False) as rig:

            def connect(count: int) -> None:
                for _ in range(count):
                    clients.enter_context(socket.create_connection((rig.listener.host, rig.listener.port)))

            connect(8)  # the pause comes after the eighth
            await trio.sleep(0.5)
            assert len(rig.server.connections) == 8
            rig.server.apply(Settings.load(overrides=["max.connection.creation.rate=1000"]))
            await trio.sleep(0.3)
            connect(60)
            numbers = [8]
            while numbers[-1] < 68:
                await trio.lowlevel.checkpoint()
                numbers.append(len(rig.server.connections))
            # Eight in each pass of the event loop, and the order of the tasks in a pass is random.
            assert max(after - before for before, after in pairwise(numbers)) <= 16


async def test_w10_limits_can_change_while_connections_wait(autojump_clock: MockClock) -> None:
    async with serving("max.connections=1", in_memory=True) as rig:
        _first, client = await rig.connect(), await rig.connect()
        await wait_all_tasks_blocked()
        assert len(rig.server.connections) == 1
        rig.server.apply(Settings.load(overrides=["connections.max.idle.ms=5000"]))
        await client.send((heart(), 0, 1))
        assert await client.receive_heartbeat() == (1, 0)
        assert await client.ends_without_reply()
        assert 5 <= trio.current_time() < 8


async def test_w10_connections_are_accepted_at_the_creation_rate(autojump_clock: MockClock) -> None:
    async with serving("max.connection.creation.rate=10", in_memory=True) as rig:
        clients = [await rig.connect() for _ in range(40)]
        for client in clients:
            await client.send((heart(), 0, 1))
            await client.receive_heartbeat()
        assert trio.current_time() == pytest.approx(3, abs=0.2), "10 at once, 30 at 10 a second"


async def test_d13_accepting_backs_off_without_descriptors_and_resumes_later() -> None:
    with trio.fail_after(10):
        async with serving(in_memory=False) as rig:
            served, waiting = await rig.connect(), await rig.connect()
            await rig.until("connections.accepted", 2)
            served.stream.close()
            while len(rig.server.connections) == 2:
                await trio.lowlevel.checkpoint()
            await without_descriptors(rig)
            late = await rig.connect()
            for client in (waiting, late):
                await client.send((heart(), 0, 1))
                assert await client.receive_heartbeat() == (1, 0)


async def without_descriptors(rig: Rig) -> None:
    """Let accepting fail, and check that the server does not retry in a busy loop."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest_free = os.dup(0)
    os.close(lowest_free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free + 1, limits[1]))
    try:
        client = await rig.connect()  # takes the last one
        await rig.until("connections.accept_errors", 1)
        for _ in range(1_000):
            await trio.lowlevel.checkpoint()
        assert rig.count("connections.accept_errors") <= 3
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    await client.send((heart(), 0, 1))
    assert await client.receive_heartbeat() == (1, 0)


@pytest.mark.parametrize("in_memory", [True, False])
async def test_a_stop_ends_waits_finishes_requests_and_closes_everything(in_memory: bool) -> None:
    with trio.fail_after(10):
        async with serving(in_memory=in_memory) as rig:
            idle, waiting, running = [await rig.connect() for _ in range(3)]
            gated = PartitionProduceData(index=0, records=b"data")
            request = ProduceRequest(
                acks=1, timeout_ms=1, topic_data=[TopicProduceData(name="gated", partition_data=[gated])]
            )
            await waiting.send((heart("wait", wait_ms=600_000), 0, 1))
            await running.send((request, 7, 2), (heart(), 0, 3))
            while not (rig.broker.purgatory.waiting("key") and rig.count("requests.Produce")):
                await trio.lowlevel.checkpoint()
            async with trio.open_nursery() as nursery:

                async def stop() -> None:
                    await rig.server.stop(grace_ms=5_000)

                nursery.start_soon(stop)
                assert await waiting.receive_heartbeat() == (1, ErrorCode.REQUEST_TIMED_OUT)
                assert await idle.ends_without_reply()
                while len(rig.server.connections) > 1:
                    await trio.lowlevel.checkpoint()
                assert not rig.broker.appended
                rig.broker.gate.set()
                assert (await running.receive(ProduceResponse, 7))[0] == 2
            assert rig.broker.appended == [b"data"]
            with pytest.raises(ConnectionRefusedError):
                await rig.env.connect(rig.listener.host, rig.listener.port)


async def test_a_stop_takes_no_longer_than_its_grace(autojump_clock: MockClock) -> None:
    async with serving(in_memory=True) as rig:
        client = await rig.connect()
        stuck = PartitionProduceData(index=0, records=b"data")
        request = ProduceRequest(
            acks=1, timeout_ms=1, topic_data=[TopicProduceData(name="gated", partition_data=[stuck])]
        )
        await client.send((request, 7, 1))
        await rig.until("requests.Produce", 1)
        await rig.server.stop(grace_ms=5_000)
        assert trio.current_time() == pytest.approx(5)
        assert await client.ends_without_reply()


async def test_a_reset_connection_is_not_a_fault() -> None:
    with trio.fail_after(10):
        async with serving(in_memory=False) as rig:
            with socket.create_connection((rig.listener.host, rig.listener.port)) as abrupt:
                abrupt.sendall(framed(heart(), 0, 1))
                abrupt.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            await rig.until("connections.accepted", 1)
            while len(rig.server.connections):
                await trio.lowlevel.checkpoint()
            assert rig.count("connections.closed_for_fault") == 0
