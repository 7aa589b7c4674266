"""request_percentage: what counts as the time of a request, and how long its client is muted."""

from __future__ import annotations

import gc

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from kbroker.broker.client_quotas import ClientQuotas
from kbroker.config.quotas import QuotaSettings
from kbroker.handlers import Context, Later, handles
from kbroker.metadata.image import Image
from kbroker.runtime.turns import Turns
from tests.server.serving import HANDLERS, Rig, heart, serving
from tests.server.test_login import (
    LOGIN_HANDLERS,
    RIGHT,
    SETTINGS,
    VERSIONS,
    authenticate,
    beats,
    choose,
    logged_in,
    secured,
)
from wire.errors import ErrorCode, KafkaError
from wire.messages.api_versions import ApiVersionsResponse
from wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from wire.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from wire.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse


@handles(HeartbeatRequest, versions="0-4")
async def busy(request: HeartbeatRequest, broker: object, context: Context) -> HeartbeatResponse:
    """Keep the event loop busy for 200 ms, and wait for five seconds; fail in the group "fail"."""
    clock = trio.lowlevel.current_clock()
    assert isinstance(clock, MockClock)
    clock.jump(0.1)
    await trio.sleep(5)
    clock.jump(0.1)
    if request.group_id == "fail":
        raise KafkaError(ErrorCode.INVALID_GROUP_ID)
    return HeartbeatResponse(error_code=0)


@handles(ProduceRequest, versions="3-11")
async def later(request: ProduceRequest, broker: object, context: Context) -> Later:
    """Acknowledge after three seconds."""

    async def complete() -> ProduceResponse:
        await trio.sleep(3)
        return ProduceResponse(responses=[])

    return Later(complete)


async def limited(percent: float) -> ClientQuotas:
    """Quotas for all users together."""
    quotas = ClientQuotas(QuotaSettings())
    image = Image()._replace(client_quotas={(("user", None),): {"request_percentage": percent}})
    await quotas.follow(image, Turns(lambda: 0))
    return quotas


async def duration(rig: Rig, group_id: str = "") -> tuple[float, int, int]:
    """How long two heartbeats take, and the throttle times in their responses."""
    client, began = await rig.connect(), trio.current_time()
    times = []
    for number in (1, 2):
        await client.send((heart(group_id), 1, number))
        _, response = await client.receive(HeartbeatResponse, 1)
        times.append(response.throttle_time_ms)
    return trio.current_time() - began, times[0], times[1]


@pytest.mark.parametrize("group_id", ["", "fail"])
@pytest.mark.parametrize(("percent", "first_ms", "second_ms"), [(1.5, 1_000, 1_000), (2.5, 0, 1_000), (5.0, 0, 0)])
async def test_only_the_time_on_the_event_loop_counts(
    autojump_clock: MockClock, group_id: str, percent: float, first_ms: int, second_ms: int
) -> None:
    """Each request takes 2 % of the ten seconds that the first windows count as."""
    handlers = {**HANDLERS, busy.api_key: busy}
    async with serving(in_memory=True, handlers=handlers, quotas=await limited(percent)) as rig:
        total_s, *times = await duration(rig, group_id)
        assert times == [first_ms, second_ms]
        assert total_s == pytest.approx(10.4 + first_ms / 1000, abs=0.01)


async def test_an_exempt_request_is_not_throttled(autojump_clock: MockClock) -> None:
    handlers = {**HANDLERS, busy.api_key: busy._replace(is_exempt=True)}
    async with serving(in_memory=True, handlers=handlers, quotas=await limited(0.001)) as rig:
        assert (await duration(rig))[1:] == (0, 0)


async def test_a_produce_that_waits_for_replicas_is_muted_after_its_reply(autojump_clock: MockClock) -> None:
    quotas = await limited(100)
    quotas.charge_produce = lambda *_: 700  # type: ignore[method-assign]
    async with serving(in_memory=True, handlers={**HANDLERS, later.api_key: later}, quotas=quotas) as rig:
        client = await rig.connect()
        request = ProduceRequest(acks=-1, timeout_ms=1, topic_data=[])
        await client.send((request, 7, 1), (request, 7, 2))
        for number, at_s in ((1, 3.0), (2, 6.7)):
            correlation_id, response = await client.receive(ProduceResponse, 7)
            assert (correlation_id, response.throttle_time_ms) == (number, 700)
            assert trio.current_time() == pytest.approx(at_s, abs=0.01)


def is_large(view: memoryview) -> bool:
    try:
        return view.nbytes > 1_000_000
    except ValueError:
        return False  # released


async def test_a_muted_connection_does_not_hold_its_last_request(autojump_clock: MockClock) -> None:
    quotas = await limited(100)
    quotas.charge_produce = lambda *_: 60_000  # type: ignore[method-assign]
    async with serving(in_memory=True, quotas=quotas) as rig:
        client = await rig.connect()
        data = [PartitionProduceData(index=0, records=bytes(4_000_000))]
        request = ProduceRequest(acks=1, timeout_ms=1, topic_data=[TopicProduceData(name="t", partition_data=data)])
        await client.send((request, 7, 1))
        assert (await client.receive(ProduceResponse, 7))[1].throttle_time_ms == 60_000
        del request, data
        await wait_all_tasks_blocked()
        assert not any(type(one) is memoryview and is_large(one) for one in gc.get_objects())


async def test_a_muted_connection_is_neither_idle_nor_stuck(autojump_clock: MockClock) -> None:
    quotas = await limited(100)
    quotas.charge_request = lambda *_: 60_000  # type: ignore[method-assign]
    async with serving("connections.max.idle.ms=1000", in_memory=True, quotas=quotas) as rig:
        client = await rig.connect()
        for number in (1, 2):
            await client.send((heart(), 0, number))
        assert await client.receive_heartbeat() == (1, 0)
        assert await client.receive_heartbeat() == (2, 0)
        assert 60 <= trio.current_time() < 63


async def test_the_addresses_of_an_ipv6_network_share_the_default_rate() -> None:
    quotas = ClientQuotas(QuotaSettings())
    rates = {None: 1.0, "2400:cb00::9": 1.0}
    client_quotas = {(("ip", name),): {"connection_creation_rate": rate} for name, rate in rates.items()}
    await quotas.follow(Image()._replace(client_quotas=client_quotas), Turns(lambda: 0))
    for number in range(11):  # as many as all windows allow at once
        assert quotas.admit(f"2400:cb00::1:{number}", 0) == (0, False)
    assert quotas.admit("2400:cb00::2", 0).delay_ms > 0
    for other in ("2400:cb00::9", "2400:cb00:0:1::1"):
        assert quotas.admit(other, 0) == (0, False)


async def test_a_connection_above_the_rate_waits_before_its_login(autojump_clock: MockClock) -> None:
    """The quota is to limit the cost of handshakes and logins. The wait is not part of the time for the login."""
    quotas = ClientQuotas(QuotaSettings())
    await quotas.follow(
        Image()._replace(client_quotas={(("ip", None),): {"connection_creation_rate": 1.0}}), Turns(lambda: 0)
    )
    timeout = "kbroker.authentication.timeout.ms=1000"
    async with serving(
        *SETTINGS, timeout, in_memory=True, handlers=LOGIN_HANDLERS, quotas=quotas, security=secured
    ) as rig:
        for _ in range(11):
            await logged_in(rig)
        assert trio.current_time() < 0.1
        waiting, gone = await rig.connect(), await rig.connect()
        await waiting.send((SaslHandshakeRequest(mechanism="PLAIN"), 1, 1))
        gone.stream.close()
        await trio.sleep(0.9)
        assert rig.count("requests.SaslHandshake") == 11
        assert len(rig.server.connections) == 12
        assert (await waiting.receive(SaslHandshakeResponse, 1))[1].error_code == 0
        assert (await authenticate(waiting, RIGHT)).error_code == 0
        assert 1 <= trio.current_time() < 2


async def test_requests_before_a_login_use_no_quota(autojump_clock: MockClock) -> None:
    """A stranger can give any client id, and so would use up the quota of the clients with this id."""
    quotas, charged = await limited(50), list[str]()
    charge = quotas.charge_request

    def note(client: Context, loop_ns: int, now_ms: int) -> int:
        charged.append(client.principal.name)
        return charge(client, loop_ns, now_ms)

    quotas.charge_request = note  # type: ignore[method-assign,assignment]
    async with serving(*SETTINGS, in_memory=True, handlers=LOGIN_HANDLERS, quotas=quotas, security=secured) as rig:
        client = await rig.connect()
        await client.send((VERSIONS, 3, 7))
        await client.receive(ApiVersionsResponse, 3)
        await choose(client)
        await authenticate(client, RIGHT)
        assert await beats(client)
    assert charged == ["al"]
