"""The HTTP server with well-behaved and misbehaving clients."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise

import h11
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from kbroker.runtime.metrics import Metrics
from kbroker.runtime.turns import Turns
from kbroker.testing.disk import SimulatedDisk
from kbroker.testing.env import MemoryEnv
from kbroker.testing.net import MemoryListener, stream_pair
from kbroker.web.http import HttpServer, Limits, Page, Reply
from tests.web.asking import ADDRESS, Browser, get

LINE = b"GET /short HTTP/1.1\r\n"
HEAD = LINE + b"Host: x\r\n\r\n"


@dataclass
class Site:
    """A server with two pages and one that fails."""

    env: MemoryEnv = field(default_factory=lambda: MemoryEnv(SimulatedDisk()))
    metrics: Metrics = field(default_factory=Metrics)
    server: HttpServer = field(init=False)
    listener: MemoryListener = field(init=False)
    pieces_made: int = 0
    make_piece: Callable[[], None] = lambda: None
    make_step: Callable[[], None] = lambda: None

    def find(self, path: str) -> Page | None:
        pages: dict[str, Page] = {
            "/short": lambda _query: Reply(200, "text/plain", (b"short",)),
            "/long": lambda _query: Reply(200, "text/plain", self._pieces()),
            "/longer": lambda _query: Reply(200, "text/plain", self._pieces()),
            "/steps": lambda _query: Reply(200, "text/plain", self._steps()),
            "/fault": lambda _query: Reply(200, "text/plain", (b"x" for _ in [1 / 0])),
            "/early-fault": lambda _query: Reply(1 // 0, "text/plain", ()),
        }
        return pages.get(path)

    def _pieces(self) -> Iterator[bytes]:
        for _ in range(1000):
            self.make_piece()
            self.pieces_made += 1
            yield b"%0999d\n" % self.pieces_made

    def _steps(self) -> Iterator[bytes]:
        for _ in range(20):
            self.make_step()
            yield b""
        yield b"done"

    async def answers(self) -> bool:
        return (await get(self.env, "/short")).body == b"short"


@asynccontextmanager
async def a_site(limits: Limits | None = None) -> AsyncIterator[Site]:
    site = Site()
    names = {ADDRESS[0]}
    site.server = HttpServer(
        site.env, site.find, turns=Turns(site.env.now_ns), metrics=site.metrics, names=names, limits=limits
    )
    site.listener = await site.env.listen(*ADDRESS)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(site.server.serve, site.listener)
        yield site
        nursery.cancel_scope.cancel()


async def test_other_tasks_run_after_an_empty_piece() -> None:
    async with a_site() as site, trio.open_nursery() as nursery:
        ticks, seen = 0, list[int]()
        site.make_step = lambda: seen.append(ticks)

        async def tick() -> None:
            nonlocal ticks
            while True:
                ticks += 1
                await trio.lowlevel.checkpoint()

        nursery.start_soon(tick)
        assert (await get(site.env, "/steps")).body == b"done"
        nursery.cancel_scope.cancel()
    # In each pass of the event loop the order of the tasks is random.
    assert seen[-1] - seen[0] >= len(seen) - 2


async def test_a_connection_can_be_reused_after_a_page() -> None:
    async with a_site() as site:
        browser = await Browser.connect(site.env)
        for _ in range(3):
            got = await browser.get("/short")
            assert (got.status, got.body) == (200, b"short")
            assert got.headers["content-length"] == "5"
            assert got.headers["x-content-type-options"] == "nosniff"


async def test_pipelined_requests_are_answered_in_order() -> None:
    async with a_site() as site:
        browser = await Browser.connect(site.env)
        last = b"GET /none HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        await browser.send(HEAD * 200 + last)
        data = await browser.rest()
        assert data.count(b"HTTP/1.1 200 OK\r\n") == 200
        assert data.rindex(b"200 OK") < data.index(b"HTTP/1.1 404 Not Found\r\n")


@pytest.mark.parametrize("path", ["/short", "/long"])
async def test_head_gets_only_the_headers(path: str) -> None:
    async with a_site() as site:
        browser = await Browser.connect(site.env)
        await browser.send(b"HEAD %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n" % path.encode())
        data = await browser.rest()
        assert data.startswith(b"HTTP/1.1 200 OK\r\n")
        assert data.endswith(b"\r\n\r\n")
        assert not site.pieces_made


async def test_an_http_1_0_client_gets_a_page_and_close() -> None:
    async with a_site() as site:
        browser = await Browser.connect(site.env)
        await browser.send(b"GET /long HTTP/1.0\r\n\r\n")
        head, _, body = (await browser.rest()).partition(b"\r\n\r\n")
        assert b"chunked" not in head
        assert len(body) == 1_000_000


async def test_a_query_and_a_whole_url_name_the_same_page() -> None:
    async with a_site() as site:
        assert (await get(site.env, "/short?a=/none")).body == b"short"
        assert (await get(site.env, "http://anywhere:1/short")).body == b"short"


@pytest.mark.parametrize(
    ("path", "method", "status"),
    [
        ("/none", "GET", 404),
        ("/", "POST", 404),
        ("/short", "POST", 405),
        ("/short", "DELETE", 405),
        ("*", "OPTIONS", 404),
    ],
)
async def test_unknown_paths_get_404_and_other_methods_405(path: str, method: str, status: int) -> None:
    async with a_site() as site:
        browser = await Browser.connect(site.env)
        got = await browser.get(path, method=method, body=b"some body" if method == "POST" else b"")
        assert got.status == status
        assert (got.headers.get("allow") == "GET, HEAD") == (status == 405)
        assert (await browser.get("/short")).status == 200


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"\x00\x00\x00\x12\x00\x12\x00\x00\x00\x00\x00\x01 ApiVersions\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
        (b"GET /short HTTP/1.1\r\n\r\n", 400),
        (b"GET /short HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n", 400),
        (b"GET /short HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\n", 400),
        (b"GET /short HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\n\r\n", 501),
        (b"GET /short HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 2_500, 411),
        (LINE + b"Host: x\r\nX: " + b"x" * 60_000 + b"\r\n\r\n", 431),
        (b"GET /" + b"x" * 60_000, 431),
        (LINE + b"Host: x\r\n" + b"a:b\r\n" * 200 + b"\r\n", 431),
        (LINE + b"Host: x\n" + b"a:b\n" * 200, 431),
        (b"GET /short HTTP/1.1\r\nHost: x\r\nContent-Length: 70000\r\n\r\n" + b"x" * 70_000, 413),
    ],
)
async def test_malformed_requests_get_a_status_and_are_closed(data: bytes, status: int) -> None:
    async with a_site() as site:
        browser = await Browser.connect(site.env)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_send_what_is_taken, browser, data)
            received = await browser.rest()
        assert received.startswith(b"HTTP/1.1 %d " % status)
        assert b"onnection: close" in received
        assert await site.answers()


async def _send_what_is_taken(browser: Browser, data: bytes) -> None:
    with suppress(trio.BrokenResourceError):
        await browser.send(data)


async def test_a_client_that_disconnects_within_a_request_is_removed() -> None:
    async with a_site() as site:
        browser = await Browser.connect(site.env)
        await browser.send(LINE)
        browser.stream.close()
        assert await site.answers()
        await trio.testing.wait_all_tasks_blocked()
        assert len(site.server.connections) == 0


async def test_a_request_with_expect_100_continue_needs_no_body() -> None:
    async with a_site() as site:
        browser = await Browser.connect(site.env)
        await browser.send(b"POST /short HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\nExpect: 100-continue\r\n\r\n")
        assert (await browser.rest()).startswith(b"HTTP/1.1 405 ")


async def test_a_trickling_request_times_out_after_ten_seconds(autojump_clock: MockClock) -> None:
    async with a_site() as site:
        browser = await Browser.connect(site.env)
        await trio.sleep(60)  # the idle timeout is longer
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_trickle, browser)
            assert (await browser.rest()).startswith(b"HTTP/1.1 408 ")
        assert trio.current_time() - began == pytest.approx(10, abs=1.1)
        assert await site.answers()


async def _trickle(browser: Browser) -> None:
    with suppress(trio.BrokenResourceError):
        for byte in LINE + b"X: " + b"x" * 1000:
            await browser.send(bytes([byte]))
            await trio.sleep(1)


async def test_an_idle_connection_is_closed_without_a_reply(autojump_clock: MockClock) -> None:
    async with a_site() as site:
        browser = await Browser.connect(site.env)
        assert await browser.rest() == b""
        assert trio.current_time() == pytest.approx(75, abs=0.1)
        again = await Browser.connect(site.env)
        await again.get("/short")
        began = trio.current_time()
        assert await again.rest() == b""
        assert trio.current_time() - began == pytest.approx(75, abs=0.1)


async def test_a_client_that_reads_nothing_is_closed(autojump_clock: MockClock) -> None:
    async with a_site() as site:
        browser = await Browser.connect(site.env)
        await browser.send(b"GET /long HTTP/1.1\r\nHost: x\r\n\r\n")
        await trio.sleep(9)
        assert len(site.server.connections) == 1
        assert site.pieces_made < 200  # pieces are made only as fast as they are read
        await trio.sleep(2)
        assert len(site.server.connections) == 0
        assert await site.answers()


async def test_the_connection_that_has_waited_longest_makes_room(autojump_clock: MockClock) -> None:
    async with a_site(Limits(max_connections=3)) as site:
        busy, silent, slow = [await Browser.connect(site.env) for _ in range(3)]
        await busy.send(b"GET /long HTTP/1.1\r\nHost: x\r\n\r\n")
        await slow.send(LINE)
        await trio.sleep(1)
        assert await site.answers()
        assert await silent.rest() == b""
        assert site.metrics.counters["http.connections.refused"].value == 1
        await slow.send(b"Host: x\r\n\r\n")
        slow.machine.send(h11_request())
        assert (await slow.reply()).body == b"short"
        assert len(await _body_of_long(busy)) == 1_000_000


async def test_an_address_that_connects_again_and_again_keeps_no_other_out(autojump_clock: MockClock) -> None:
    async with a_site(Limits(max_connections=3)) as site:
        honest, far = stream_pair(client_host="203.0.113.7")
        site.listener.arrivals.send_nowait(far)
        browser = Browser(honest)
        await browser.send(LINE)
        flood = [await Browser.connect(site.env) for _ in range(20)]
        await trio.sleep(1)
        assert len(site.server.connections) == 3
        assert await flood[0].rest() == b""
        await browser.send(b"Host: x\r\n\r\n")
        browser.machine.send(h11_request())
        assert (await browser.reply()).body == b"short"


async def test_an_address_that_reads_no_replies_keeps_no_other_out(autojump_clock: MockClock) -> None:
    """Its connections do not wait for a request, so those of others may be the only ones that wait."""
    async with a_site(Limits(max_connections=8)) as site:
        for _ in range(8):
            await (await Browser.connect(site.env)).send(b"GET /long HTTP/1.1\r\nHost: x\r\n\r\n")
        await trio.testing.wait_all_tasks_blocked()
        for _ in range(10):
            honest, far = stream_pair(client_host="203.0.113.7")
            site.listener.arrivals.send_nowait(far)
            browser = Browser(honest)
            await browser.send(LINE)
            for _ in range(5):
                stalled = await Browser.connect(site.env)
                await stalled.send(b"GET /long HTTP/1.1\r\nHost: x\r\n\r\n")
                await trio.testing.wait_all_tasks_blocked()
            await browser.send(b"Host: x\r\n\r\n")
            browser.machine.send(h11_request())
            assert (await browser.reply()).body == b"short"
            assert len(site.server.connections) == 8
        assert trio.current_time() == 0


async def test_a_connection_that_waits_makes_room_for_addresses_with_equally_many(autojump_clock: MockClock) -> None:
    async with a_site(Limits(max_connections=2)) as site:
        busy = await Browser.connect(site.env)
        await busy.send(b"GET /long HTTP/1.1\r\nHost: x\r\n\r\n")
        await trio.testing.wait_all_tasks_blocked()
        silent, far = stream_pair(client_host="203.0.113.7")
        site.listener.arrivals.send_nowait(far)
        await trio.testing.wait_all_tasks_blocked()
        assert await site.answers()
        assert await Browser(silent).rest() == b""
        assert len(await _body_of_long(busy)) == 1_000_000


def h11_request() -> h11.Request:
    return h11.Request(method="GET", target="/short", headers=[("Host", "x")])


async def _body_of_long(browser: Browser) -> bytes:
    browser.machine.send(h11_request())
    return (await browser.reply()).body


async def test_a_slow_reply_ends_after_a_minute(autojump_clock: MockClock) -> None:
    async with a_site() as site:
        browser = await Browser.connect(site.env)
        await browser.send(b"GET /long HTTP/1.1\r\nHost: x\r\n\r\n")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_take_slowly, browser)
        assert trio.current_time() == pytest.approx(60, abs=15)


async def _take_slowly(browser: Browser) -> None:
    for _ in range(1_000):
        await trio.sleep(0.5)
        try:
            if not await browser.stream.receive(4096):
                return
        except trio.BrokenResourceError:
            return


async def test_stalled_readers_of_one_page_do_not_block_other_pages(autojump_clock: MockClock) -> None:
    async with a_site(Limits(max_connections=8)) as site:
        other = await Browser.connect(site.env)
        await other.send(b"GET /longer HTTP/1.1\r\nHost: x\r\n\r\n")
        for _ in range(40):
            await (await Browser.connect(site.env)).send(b"GET /long HTTP/1.1\r\nHost: x\r\n\r\n")
            await trio.testing.wait_all_tasks_blocked()
        began = trio.current_time()
        assert await site.answers()
        assert trio.current_time() == began
        assert len(site.server.connections) <= 8
        assert len(await _body_of_long(other)) == 1_000_000, "the only reader of a page is not closed"


async def test_unread_replies_do_not_block_other_clients(autojump_clock: MockClock) -> None:
    """Short replies also fill a connection, if a client pipelines many requests and reads no reply."""
    async with a_site(Limits(max_connections=2)) as site, trio.open_nursery() as nursery:
        for _ in range(2):
            nursery.start_soon(_send_what_is_taken, await Browser.connect(site.env), HEAD * 10_000)
        await trio.testing.wait_all_tasks_blocked()
        assert await site.answers()
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:9644", 200),
        ("[::1]:9644", 200),
        ("localhost", 200),
        ("pages.localhost:80", 200),
        ("kbroker:9644", 200),
        ("Pages.Example.:9644", 200),
        ("attacker.example:9644", 421),
        ("127.0.0.1.attacker.example", 421),
        ("pages.example.attacker.example", 421),
        ("attacker.example:", 421),
    ],
)
async def test_pages_are_served_only_under_own_host_names(host: str, status: int) -> None:
    async with a_site() as site:
        browser = await Browser.connect(site.env)
        for path in ("/short", "/none"):
            await browser.send(f"GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
        data = await browser.stream.receive(65536)
        assert data.startswith(b"HTTP/1.1 %d " % status)


@pytest.mark.parametrize("path", ["/fault", "/early-fault"])
async def test_a_failing_page_closes_only_its_connection(path: str, caplog: pytest.LogCaptureFixture) -> None:
    async with a_site() as site:
        browser = await Browser.connect(site.env)
        await browser.send(b"GET %s HTTP/1.1\r\nHost: x\r\n\r\n" % path.encode())
        await browser.rest()
        assert await site.answers()
    assert "ZeroDivisionError" in caplog.text


async def test_others_run_while_a_long_page_is_made(autojump_clock: MockClock) -> None:
    async with a_site() as site:
        site.make_piece = lambda: autojump_clock.jump(0.001)
        browser = await Browser.connect(site.env)
        made_at: list[int] = []
        async with trio.open_nursery() as nursery:

            async def watch() -> None:
                while site.pieces_made < 1000:
                    made_at.append(site.pieces_made)
                    await trio.lowlevel.checkpoint()

            nursery.start_soon(watch)
            assert len((await browser.get("/long")).body) == 1_000_000
        most = max(later - earlier for earlier, later in pairwise(made_at))
        assert most <= 6, "two slices of 2 ms, because the order of tasks in a pass of the event loop is random"


async def test_requests_for_unknown_paths_are_counted_together() -> None:
    async with a_site() as site:
        for path in ("/short", "/a", "/b", "/short"):
            await get(site.env, path)
        browser = await Browser.connect(site.env)
        await browser.send(b"garbage\r\n\r\n")
        await browser.rest()
        counts = site.metrics.tallies["http.requests"].counts
        assert counts == {("/short", "200"): 2, ("other", "404"): 2, ("other", "400"): 1}


@given(st.lists(st.binary(max_size=80) | st.sampled_from([HEAD, LINE, b"\r\n", b"Host: x\r\n", b": "]), max_size=6))
def test_no_bytes_stop_the_server(pieces: list[bytes]) -> None:
    async def send_all() -> None:
        async with a_site() as site:
            browser = await Browser.connect(site.env)
            await _send_what_is_taken(browser, b"".join(pieces))
            browser.stream.close()
            assert await site.answers()
            await trio.testing.wait_all_tasks_blocked()
            assert len(site.server.connections) == 0

    trio.run(send_all)
