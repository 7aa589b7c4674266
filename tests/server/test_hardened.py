"""The limits of the profile `hardened`, from the side of clients that exceed them."""

from __future__ import annotations

import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from kbroker.config import Settings
from kbroker.config.profiles import PROFILES
from kbroker.metadata.principal import ANONYMOUS, Principal
from kbroker.runtime.net_ports import Env, Stream
from kbroker.security.listener import ListenerSecurity
from tests.server.serving import heart, serving

HARDENED = [f"{key}={text}" for key, text in PROFILES["hardened"].items()]
FROM_ANYWHERE = "max.connections.per.ip.overrides=198.51.100.1:100000"


async def test_w10_one_address_gets_500_connections(autojump_clock: MockClock) -> None:
    async with serving(*HARDENED, in_memory=True) as rig:
        admitted = [await rig.connect() for _ in range(500)]
        assert await (await rig.connect()).ends_without_reply()
        assert len(rig.server.connections) == 500
        assert rig.count("connections.refused") == 1
        await admitted[0].send((heart(), 0, 1))
        assert await admitted[0].receive_heartbeat() == (1, 0)


async def test_w10_this_machine_is_exempt_from_the_limit_per_address() -> None:
    with trio.fail_after(10):
        async with serving(*HARDENED, "max.connections.per.ip=1", in_memory=False) as rig:
            for number in range(3):
                client = await rig.connect()
                await client.send((heart(), 0, number))
                assert await client.receive_heartbeat() == (number, 0)
            assert rig.count("connections.refused") == 0


async def test_w10_all_addresses_together_get_2000_connections(autojump_clock: MockClock) -> None:
    async with serving(*HARDENED, FROM_ANYWHERE, "max.connection.creation.rate=100000", in_memory=True) as rig:
        clients = []
        for number in range(2_001):
            clients.append(await rig.connect())
            if number % 500 == 0:
                await wait_all_tasks_blocked()
        await trio.sleep(60)
        assert len(rig.server.connections) == 2_000
        clients[0].stream.close()
        await clients[-1].send((heart(), 0, 1))
        assert await clients[-1].receive_heartbeat() == (1, 0)


async def test_w10_a_flood_is_accepted_at_200_connections_a_second(autojump_clock: MockClock) -> None:
    async with serving(*HARDENED, FROM_ANYWHERE, in_memory=True) as rig:
        _clients = [await rig.connect() for _ in range(1_000)]
        await wait_all_tasks_blocked()
        await trio.sleep(2)
        assert len(rig.server.connections) <= 200 + 2 * 200 + 1
        await trio.sleep(3)
        assert len(rig.server.connections) == 1_000


class Knocking:
    """Authenticates a client that sends one byte."""

    async def accept(self, stream: Stream) -> Stream:
        await stream.receive(1)
        return stream

    def principal(self, _stream: Stream) -> Principal:
        return ANONYMOUS


def knocking(_env: Env, _settings: Settings) -> ListenerSecurity:
    return ListenerSecurity("SSL", Knocking())


async def test_w9_unauthenticated_connections_are_closed_after_10_s(autojump_clock: MockClock) -> None:
    async with serving(*HARDENED, in_memory=True, security=knocking) as rig:
        silent, honest = await rig.connect(), await rig.connect()
        await honest.stream.send([b"k"])
        await trio.sleep(9)
        assert len(rig.server.connections) == 2
        assert await silent.ends_without_reply()
        assert 10 <= trio.current_time() < 11
        await honest.send((heart(), 0, 1))
        assert await honest.receive_heartbeat() == (1, 0)


async def test_w10_the_oldest_unauthenticated_connections_make_room(autojump_clock: MockClock) -> None:
    settings = [*HARDENED, "kbroker.max.unauthenticated.connections=50"]
    async with serving(*settings, in_memory=True, security=knocking) as rig:
        honest = await rig.connect()
        await honest.stream.send([b"k"])
        await wait_all_tasks_blocked()
        flood = [await rig.connect() for _ in range(100)]
        await wait_all_tasks_blocked()
        assert len(rig.server.connections) == 51
        assert rig.count("connections.closed_for_room") == 50
        assert await flood[0].ends_without_reply()
        late = await rig.connect()
        await late.stream.send([b"k"])
        for client in (honest, late):
            await client.send((heart(), 0, 1))
            assert await client.receive_heartbeat() == (1, 0)
        assert trio.current_time() == 0, "no wait was needed"


async def test_w10_unauthenticated_clients_do_not_end_the_handshakes_of_brokers(autojump_clock: MockClock) -> None:
    settings = [
        *HARDENED, "kbroker.max.unauthenticated.connections=50", "max.connections=60",
        "listeners=PLAINTEXT://127.0.0.1:1,CLIENTS://127.0.0.1:2",
        "listener.security.protocol.map=PLAINTEXT:SSL,CLIENTS:SSL",
    ]  # fmt: skip
    async with serving(*settings, in_memory=True, security=knocking) as rig:
        for_clients = await rig.env.listen("127.0.0.1", 0)
        rig.server.add(for_clients, name="CLIENTS", security=ListenerSecurity("SSL", Knocking()))
        broker = await rig.connect()
        await wait_all_tasks_blocked()
        for _ in range(2):
            _flood = [await rig.env.connect(for_clients.host, for_clients.port) for _ in range(100)]
            await wait_all_tasks_blocked()
            assert rig.server.connections_by_listener() == {"PLAINTEXT": 1, "CLIENTS": 50}
            await trio.sleep(2)
        await broker.stream.send([b"k"])
        await broker.send((heart(), 0, 1))
        assert await broker.receive_heartbeat() == (1, 0)


def test_the_profile_bounds_what_kafka_leaves_unbounded() -> None:
    settings = Settings.load(profile="hardened")
    assert settings.server.queued_max_request_bytes == 256 << 20
    assert settings.groups.group_max_size == settings.groups.group_consumer_max_size == 5_000
    assert settings.limits.kbroker_max_decompressed_batch_bytes == 128 << 20
    assert settings.limits.kbroker_progress_bytes_per_second == 16 << 10
    assert settings.limits.kbroker_max_producers_per_partition == 100_000
    assert (settings.tier.remote_log_reader_threads, settings.tier.remote_log_reader_max_pending_tasks) == (4, 100)
    assert not settings.tier.remote_log_storage_system_enable
    assert settings.warnings == ()


def test_a_broker_of_a_hardened_cluster_has_kafkas_number_of_replicas() -> None:
    member = ["process.roles=broker", "controller.listener.names=CONTROLLER", "controller.quorum.bootstrap.servers=c:1"]
    settings = Settings.load(overrides=member, profile="hardened")
    assert settings.value("offsets.topic.replication.factor") == 3
    assert settings.server.max_connections == 2_000
