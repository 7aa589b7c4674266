"""Connections over real sockets and in memory; both behave the same."""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from ipaddress import IPv6Address
from pathlib import Path
from typing import TypeVar, TypeVarTuple

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from kbroker.runtime.env import RealEnv
from kbroker.runtime.net_ports import Env, Stream
from kbroker.runtime.ports import File
from kbroker.testing.disk import SimulatedDisk
from kbroker.testing.env import MemoryEnv

Result = TypeVar("Result")
Arguments = TypeVarTuple("Arguments")

MIB = 1024 * 1024


@dataclass(frozen=True)
class Range:
    file: File
    position: int
    size: int


@dataclass
class Ends:
    """Both ends of a connection."""

    client: Stream
    server: Stream


@pytest.fixture(params=["sockets", "memory"])
def env(request: pytest.FixtureRequest) -> Env:
    """The real environment and the one in memory."""
    return RealEnv() if request.param == "sockets" else MemoryEnv(SimulatedDisk())


@asynccontextmanager
async def connection(env: Env) -> AsyncIterator[Ends]:
    with ExitStack() as resources:
        listener = await env.listen("127.0.0.1", 0)
        resources.callback(listener.close)
        client = await env.connect("127.0.0.1", listener.port)
        resources.callback(client.close)
        server = await listener.accept()
        resources.callback(server.close)
        with trio.fail_after(20):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(listener.notice_closed_peers)
                yield Ends(client, server)
                nursery.cancel_scope.cancel()


async def receive_exactly(stream: Stream, size: int) -> bytes:
    data = bytearray(size)
    view, done = memoryview(data), 0
    while done < size:
        received = await stream.receive_into(view[done:])
        assert received, f"the connection ended after {done} of {size} bytes"
        done += received
    return bytes(data)


async def test_bytes_arrive_in_order_and_are_counted_on_both_sides(env: Env) -> None:
    parts = [bytes([number]) * size for number, size in enumerate([1, 100_000, 3, 65_536, 65_537, 0, 2])]
    async with connection(env) as ends, trio.open_nursery() as nursery:
        nursery.start_soon(ends.server.send, parts)
        assert await receive_exactly(ends.client, 231_079) == b"".join(parts)
        assert ends.client.received_bytes == ends.server.sent_bytes == 231_079


async def test_receive_returns_no_bytes_at_the_end_of_stream(env: Env) -> None:
    async with connection(env) as ends:
        await ends.client.send([b"last"])
        ends.client.close()
        assert await ends.server.receive(100) == b"last"
        assert await ends.server.receive(100) == b""


async def test_sending_to_a_closed_peer_breaks_the_stream(env: Env) -> None:
    async with connection(env) as ends:
        ends.client.close()
        with pytest.raises(trio.BrokenResourceError):
            await ends.server.send([bytes(MIB)] * 100)


async def test_a_closed_stream_raises_closed_resource_error(env: Env) -> None:
    async with connection(env) as ends:
        ends.server.close()
        ends.server.close()
        with pytest.raises(trio.ClosedResourceError):
            await ends.server.receive(1)
        with pytest.raises(trio.ClosedResourceError):
            await ends.server.send([b"x"])


async def test_closing_a_stream_ends_a_receive_on_it(env: Env) -> None:
    async with connection(env) as ends, trio.open_nursery() as nursery:

        async def receive() -> None:
            with pytest.raises(trio.ClosedResourceError):
                await ends.server.receive(1)

        nursery.start_soon(receive)
        await wait_all_tasks_blocked()
        ends.server.close()


async def test_send_nowait_takes_what_fits_and_does_not_wait(env: Env) -> None:
    async with connection(env) as ends:
        taken = 0
        while sent := ends.server.send_nowait(bytes(MIB)):
            taken += sent
            assert taken < 100 * MIB
        assert len(await receive_exactly(ends.client, taken)) == taken


async def test_a_watch_sees_a_closed_peer_behind_unread_bytes(env: Env) -> None:
    async with connection(env) as ends:
        closed = trio.Event()
        await ends.client.send([b"pipelined"])
        ends.server.watch(closed.set)
        await wait_all_tasks_blocked(0.01)
        assert not closed.is_set(), "bytes are not the end of the connection"
        ends.client.close()
        await closed.wait()
        ends.server.unwatch()
        assert await ends.server.receive(100) == b"pipelined"


async def test_a_watch_calls_back_when_the_peer_had_closed_before(env: Env) -> None:
    async with connection(env) as ends:
        ends.client.close()
        assert await ends.server.receive(1) == b""
        closed = trio.Event()
        ends.server.watch(closed.set)
        await closed.wait()
        ends.server.unwatch()


async def test_a_watch_of_a_later_connection_with_the_same_descriptor_is_its_own(env: Env) -> None:
    for _ in range(2):
        async with connection(env) as ends:
            closed = trio.Event()
            ends.server.watch(closed.set)
            await wait_all_tasks_blocked(0.01)
            assert not closed.is_set()
            ends.client.close()
            await closed.wait()
            ends.server.unwatch()
            ends.server.close()


async def test_an_ended_watch_does_not_call_back(env: Env) -> None:
    async with connection(env) as ends:
        closed, later = trio.Event(), trio.Event()
        ends.server.watch(closed.set)
        ends.server.unwatch()
        ends.server.unwatch()
        ends.client.close()
        assert await ends.server.receive(1) == b""
        ends.server.watch(later.set)
        await later.wait()
        assert not closed.is_set()


async def test_ranges_of_files_are_sent_between_bytes(env: Env, tmp_path: Path) -> None:
    path = str(tmp_path / "data") if isinstance(env, RealEnv) else "data"
    file = env.disk.open(path, create=True)
    contents = os.urandom(5 * MIB)
    file.pwrite(contents, 0)
    cuts = [(0, 1), (7, 4 * MIB), (4 * MIB, MIB), (100, 30_000), (5 * MIB - 40_000, 40_000)]
    parts: list[bytes | Range] = [b"head"]
    for position, size in cuts:
        parts += [Range(file, position, size), b"between"]
    expected = b"head" + b"".join(contents[position : position + size] + b"between" for position, size in cuts)
    async with connection(env) as ends, trio.open_nursery() as nursery:
        nursery.start_soon(ends.server.send, parts)
        assert await receive_exactly(ends.client, len(expected)) == expected
    file.close()


class ObservedEnv(RealEnv):
    """Counts the calls that left the event loop."""

    blocking_calls = 0

    async def run_blocking(self, function: Callable[[*Arguments], Result], *arguments: *Arguments) -> Result:
        self.blocking_calls += 1
        return await super().run_blocking(function, *arguments)


@pytest.mark.parametrize("size", [10_000, MIB])
async def test_files_outside_the_page_cache_are_read_in_a_thread(tmp_path: Path, size: int) -> None:
    env = ObservedEnv()
    file = env.disk.open(str(tmp_path / "data"), create=True)
    contents = os.urandom(2 * MIB)
    file.pwrite(contents, 0)
    file.sync()
    async with connection(env) as ends, trio.open_nursery() as nursery:
        for evicted in (True, False):
            if evicted:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            is_cold = not is_in_page_cache(file, 300_000)
            calls = env.blocking_calls
            nursery.start_soon(ends.server.send, [b"head", Range(file, 300_000, size)])
            assert await receive_exactly(ends.client, 4 + size) == b"head" + contents[300_000 : 300_000 + size]
            # A file system in memory cannot evict pages, and others may keep some of them.
            if is_cold or not evicted:
                assert env.blocking_calls - calls == is_cold
        assert not is_cold
    file.close()


def is_in_page_cache(file: File, position: int) -> bool:
    try:
        return os.preadv(file.fileno(), [bytearray(1)], position, os.RWF_NOWAIT) == 1
    except BlockingIOError:
        return False


@pytest.mark.parametrize("size", [10_000, MIB])
async def test_a_file_shorter_than_the_range_is_an_os_error(tmp_path: Path, size: int) -> None:
    env = RealEnv()
    file = env.disk.open(str(tmp_path / "data"), create=True)
    file.pwrite(bytes(size - 1), 0)
    async with connection(env) as ends, trio.open_nursery() as nursery:

        async def read_on() -> None:
            while await ends.client.receive(MIB):
                pass

        nursery.start_soon(read_on)
        with pytest.raises(OSError, match="the file ends"):
            await ends.server.send([b"head", Range(file, 0, size)])
        ends.server.close()
    file.close()


async def test_connecting_without_a_listener_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(ConnectionRefusedError):
        await RealEnv().connect("127.0.0.1", port)
    with pytest.raises(ConnectionRefusedError):
        await MemoryEnv(SimulatedDisk()).connect("127.0.0.1", 9092)


async def test_a_port_in_use_is_refused(env: Env) -> None:
    listener = await env.listen("127.0.0.1", 0)
    with pytest.raises(OSError, match=r"taken|in use"):
        await env.listen("127.0.0.1", listener.port)
    listener.close()


async def test_a_bound_port_refuses_connections_until_it_listens(env: Env) -> None:
    for port in (0, 23_911):
        listener = await env.listen("127.0.0.1", port, accepts=False)
        with pytest.raises(ConnectionRefusedError):
            await env.connect("127.0.0.1", listener.port)
        listener.listen()
        client = await env.connect("127.0.0.1", listener.port)
        for one in (client, await listener.accept(), listener):
            one.close()


async def test_a_bound_port_is_in_use_before_it_listens(env: Env) -> None:
    for port in (0, 23_912):
        listener = await env.listen("127.0.0.1", port, accepts=False)
        for accepts in (False, True):
            with pytest.raises(OSError, match=r"taken|in use"):
                await env.listen("127.0.0.1", listener.port, accepts=accepts)
        listener.close()


async def test_a_port_of_recent_connections_can_be_bound() -> None:
    env, port = RealEnv(), 23_913
    for _ in range(2):
        listener = await env.listen("127.0.0.1", port, accepts=False)
        listener.listen()
        client = await env.connect("127.0.0.1", port)
        server = await listener.accept()
        for one in (server, client, listener):  # the side that closes first keeps TIME_WAIT
            one.close()


async def test_no_host_means_every_address() -> None:
    env = RealEnv()
    listener = await env.listen("", 0)
    client = await env.connect("127.0.0.1", listener.port)
    server = await listener.accept()
    assert server.peer_host == "127.0.0.1", "limits and ACLs for addresses know no other form"
    for one in (client, server, listener):
        one.close()


def link_local() -> tuple[str, int] | None:
    """A link-local address of this machine, and the number of its interface."""
    table = Path("/proc/net/if_inet6")
    for line in table.read_text().splitlines() if table.exists() else ():
        address, number, *_ = line.split()
        if address.startswith("fe80"):
            return str(IPv6Address(int(address, 16))), int(number, 16)
    return None


async def test_a_link_local_peer_has_the_number_of_its_interface() -> None:
    if (found := link_local()) is None:
        pytest.skip("no interface has a link-local address")
    address, number = found
    env = RealEnv()
    listener = await env.listen("::", 0)
    client = await env.connect(f"{address}%{number}", listener.port)
    server = await listener.accept()
    assert server.peer_host == client.peer_host == f"{address}%{number}"
    for one in (client, server, listener):
        one.close()
