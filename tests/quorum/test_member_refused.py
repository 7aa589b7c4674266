"""A broker that cannot join the cluster, or may not stay in it, ends with one line that says why."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest
import trio

from kbroker.node import NodeFailed
from kbroker.runtime.net_ports import Stream
from kbroker.testing.net import MemoryNetwork
from tests.quorum.member import DATA, Member, fenced, refusal
from tests.quorum.site import CLUSTER_ID, HOST, PORT, Site, controller_site, registration
from wire.messages.broker_registration import BrokerRegistrationResponse


async def test_a_node_id_that_a_live_broker_has_is_refused(site: Site) -> None:
    async with Member(site.env.network).running():
        second = Member(site.env.network)
        second.address = ("elsewhere.example", 9092)
        second.starts = 50
        node = second.node(listeners="PLAINTEXT://elsewhere.example:9092")
        assert "another running broker has node.id=1" in await refusal(node)
        assert not fenced(site)


async def test_c7_a_broker_that_was_replaced_stops_with_one_line(site: Site) -> None:
    node = Member(site.env.network).node()
    lines: list[str] = []

    async def run(*, task_status: trio.TaskStatus[None]) -> None:
        try:
            await node.run(on_ready=lambda _host, _port: task_status.started())
        except NodeFailed as failure:
            lines.append(str(failure))

    async with trio.open_nursery() as nursery:
        await nursery.start(run)
        other = registration(1, incarnation=7)
        site.controller.sessions.own_incarnation = other.incarnation_id  # it need not wait for the session to expire
        await site.controller.ask(other, BrokerRegistrationResponse, version=4)
    assert lines == [
        "DUPLICATE_BROKER_REGISTRATION: another process has registered as broker 1: give each broker its own node.id"
    ]


async def test_a_directory_of_another_cluster_is_refused(site: Site) -> None:
    member = Member(site.env.network)
    async with member.running():
        pass
    path = f"{DATA}/meta.properties"
    file = member.disk.open(path)
    text = file.pread(file.size(), 0).replace(CLUSTER_ID.encode(), b"AAAAAAAAAAAAAAAAAAAAAA")
    file.pwrite(text, 0)
    file.close()
    line = await refusal(member.node())
    assert f"the controller at {HOST}:{PORT} belongs to another cluster than this data directory" in line


async def silence(stream: Stream) -> None:
    await stream.receive(1_000)
    await trio.sleep_forever()


async def garbage(stream: Stream) -> None:
    await stream.receive(1_000)
    await stream.send([b"HTTP/1.1 400 Bad Request\r\n\r\n" * 20])


async def close(stream: Stream) -> None:
    stream.close()


@pytest.mark.parametrize("answer", [silence, garbage, close])
@pytest.mark.parametrize("has_directory", [False, True])
async def test_controllers_that_do_not_answer_end_the_start_with_one_line(
    answer: Callable[[Stream], Awaitable[None]], *, has_directory: bool
) -> None:
    network = MemoryNetwork()
    member = Member(network)
    if has_directory:
        async with controller_site(network=network), member.running():
            pass
    listener = await network.listen(HOST, PORT)

    async def serve() -> None:
        async with trio.open_nursery() as connections:
            while True:
                connections.start_soon(_serve_one, await listener.accept())

    async def _serve_one(stream: Stream) -> None:
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            await answer(stream)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve)
        before = trio.current_time()
        line = await refusal(member.node())
        assert 59 < trio.current_time() - before < 80
        nursery.cancel_scope.cancel()
    assert "no controller has answered within 60000 ms" in line
    assert f"{HOST}:{PORT}" in line


async def test_no_controller_at_all_ends_the_start_with_one_line() -> None:
    assert "Check controller.quorum.bootstrap.servers" in await refusal(Member(MemoryNetwork()).node())
