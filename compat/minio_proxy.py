"""A proxy in front of a store that simulates faults of networks and stores: HTTP/1.1, one thread per connection.

    with MinioProxy(server.port) as proxy:
        proxy.rule(answer(503, "SlowDown"), method="GET", times=2)

The first matching rule that is not used up handles a request; without one the proxy forwards it unchanged. The Host
header stays the client's, because it is signed. `requests` lists all received requests, so that a test can check
retries.
"""

from __future__ import annotations

import contextlib
import http.client
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

PIECE_BYTES = 1 << 16
_OF_ONE_HOP = {"connection", "keep-alive", "transfer-encoding"}


class Exchange:
    """One received request, and the operations of an action on it."""

    def __init__(self, handler: _Handler) -> None:
        self._handler = handler
        self.method, self.path = handler.command, handler.path
        self.headers = dict(handler.headers.items())
        self._left = int(self.headers.get("Content-Length", 0))

    def body(self) -> Iterator[bytes]:
        """The remaining bytes of the request's body."""
        while self._left:
            piece = self._handler.rfile.read(min(PIECE_BYTES, self._left))
            if not piece:
                raise ConnectionResetError("the client left")
            self._left -= len(piece)
            yield piece

    def forward(self) -> tuple[int, dict[str, str], bytes]:
        """Forward the request; returns the store's complete answer."""
        upstream = http.client.HTTPConnection("127.0.0.1", self._handler.server.upstream_port)
        try:
            upstream.putrequest(self.method, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() not in _OF_ONE_HOP:
                    upstream.putheader(name, value)
            upstream.endheaders()
            for piece in self.body():
                upstream.send(piece)
            response = upstream.getresponse()
            headers = {name: value for name, value in response.getheaders() if name.lower() not in _OF_ONE_HOP}
            return response.status, headers, response.read()
        finally:
            upstream.close()

    def reply(self, status: int, headers: dict[str, str], body: bytes, *, cut: int | None = None) -> None:
        """Answer; with `cut`, send only that many bytes of the body and close the connection."""
        self.begin_reply(status, {"Content-Length": str(len(body)), **headers})
        if self.method != "HEAD":
            self.write(body if cut is None else body[:cut])
        if cut is not None:
            self.hang_up()

    def begin_reply(self, status: int, headers: dict[str, str]) -> None:
        self._handler.send_response_only(status)
        for name, value in headers.items():
            self._handler.send_header(name, value)
        self._handler.end_headers()

    def write(self, data: bytes) -> None:
        """Send more of the answer's body."""
        self._handler.wfile.write(data)

    def hang_up(self) -> None:
        """Close the connection after this."""
        self._handler.close_connection = True

    def wait_for_release(self) -> None:
        """Block until the proxy is healed or closed."""
        self._handler.server.released.wait()


Action = Callable[[Exchange], None]


def pass_on(exchange: Exchange) -> None:
    """No fault."""
    status, headers, body = exchange.forward()
    exchange.reply(status, headers, body)


def answer(status: int, code: str, *, xml: bool = True) -> Action:
    """Answer instead of the store, which does not receive the request."""

    def act(exchange: Exchange) -> None:
        for _ in exchange.body():
            pass
        text = f"<Error><Code>{code}</Code><Message>as told</Message></Error>" if xml else f"<html>{code}</html>"
        kind = "application/xml" if xml else "text/html"
        exchange.reply(status, {"Content-Type": kind}, text.encode())

    return act


def lose_reply(exchange: Exchange) -> None:
    """The store handles the request, and the reply is lost."""
    exchange.forward()
    exchange.hang_up()


def silence(exchange: Exchange) -> None:
    """Read the request and never answer."""
    for _ in exchange.body():
        pass
    exchange.wait_for_release()
    exchange.hang_up()


def deaf(exchange: Exchange) -> None:
    """Do not even read the body of the request."""
    exchange.wait_for_release()
    exchange.hang_up()


def cut_short(exchange: Exchange) -> None:
    """Send half of the body, then close the connection."""
    status, headers, body = exchange.forward()
    exchange.reply(status, headers, body, cut=len(body) // 2)


def damage(exchange: Exchange) -> None:
    """Change one byte of the answer's body."""
    status, headers, body = exchange.forward()
    damaged = bytearray(body)
    if damaged:
        damaged[len(damaged) // 2] ^= 0x01
    exchange.reply(status, headers, bytes(damaged))


def damage_request(exchange: Exchange) -> None:
    """Change one byte of the request's body."""
    pieces = list(exchange.body())
    if pieces:
        pieces[-1] = pieces[-1][:-1] + bytes([pieces[-1][-1] ^ 0x01])
    exchange.body = lambda: iter(pieces)  # type: ignore[method-assign]
    pass_on(exchange)


def shift_range(exchange: Exchange) -> None:
    """Send bytes that begin one byte after the requested start, with a matching Content-Range."""
    status, headers, body = exchange.forward()
    start, end, size = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+)", headers["Content-Range"]).groups()  # type: ignore[union-attr]
    headers["Content-Range"] = f"bytes {int(start) + 1}-{int(end) + 1}/{size}"
    exchange.reply(status, headers, body[1:] + b"\0")


def ignore_range(exchange: Exchange) -> None:
    """Send the whole object with status 200, like a server without ranges."""
    _, headers, body = exchange.forward()
    exchange.reply(200, {name: value for name, value in headers.items() if name != "Content-Range"}, body)


def trickle(*, piece_bytes: int, pause_s: float) -> Action:
    """Send the body in small pieces with a pause before each, so that no socket time-out applies."""

    def act(exchange: Exchange) -> None:
        status, headers, body = exchange.forward()
        exchange.begin_reply(status, headers)
        released = exchange._handler.server.released
        for position in range(0, len(body), piece_bytes):
            released.wait(pause_s)
            exchange.write(body[position : position + piece_bytes])

    return act


def late(delay_s: float) -> Action:
    """The correct answer after a delay."""

    def act(exchange: Exchange) -> None:
        status, headers, body = exchange.forward()
        exchange._handler.server.released.wait(delay_s)
        exchange.reply(status, headers, body)

    return act


class Stale:
    """Repeats its first answer to each request, like an outdated list."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[int, dict[str, str], bytes]] = {}

    def __call__(self, exchange: Exchange) -> None:
        if exchange.path not in self._seen:
            self._seen[exchange.path] = exchange.forward()
        exchange.reply(*self._seen[exchange.path])


@dataclass
class Rule:
    """An action for requests of a method whose path and query contain a text. Shape: times None is unlimited."""

    action: Action
    method: str = ""
    path: str = ""
    without: str = "\n"
    times: int | None = None
    used: int = field(default=0, init=False)

    def fits(self, exchange: Exchange) -> bool:
        return (
            self.method in {"", exchange.method}
            and self.path in exchange.path
            and self.without not in exchange.path
            and (self.times is None or self.used < self.times)
        )


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, upstream_port: int, port: int, proxy: MinioProxy) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.upstream_port, self.proxy = upstream_port, proxy
        self.released = threading.Event()
        self.connections: set[Any] = set()

    def get_request(self) -> tuple[Any, Any]:
        connection, address = super().get_request()
        self.connections.add(connection)
        return connection, address

    def shutdown_request(self, request: Any) -> None:
        self.connections.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that disconnect are expected here."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def log_message(self, format: str, *args: Any) -> None:
        """No log."""

    def _serve(self) -> None:
        exchange = Exchange(self)
        action = self.server.proxy.action_for(exchange)
        try:
            action(exchange)
        except (OSError, http.client.HTTPException):
            self.close_connection = True

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _serve  # noqa: N815


class MinioProxy:
    """See the module's docstring. `down` and `up` close and open its port, which stays the same."""

    def __init__(self, upstream_port: int) -> None:
        self._upstream_port = upstream_port
        self.port = 0
        self._lock = threading.Lock()
        self._rules: list[Rule] = []
        self._server: _Server | None = None
        self._thread: threading.Thread | None = None
        self.requests: list[str] = []

    def __enter__(self) -> Self:
        self.up()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.down()

    @property
    def endpoint(self) -> str:
        """The URL."""
        return f"http://127.0.0.1:{self.port}"

    def up(self) -> None:
        """Accept connections."""
        self._server = _Server(self._upstream_port, self.port, self)
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self._thread.start()

    def down(self) -> None:
        """Refuse connections, and cut the open ones."""
        server, self._server = self._server, None
        if server is None:
            return
        server.released.set()
        server.shutdown()
        server.server_close()
        for connection in list(server.connections):
            with contextlib.suppress(OSError):
                connection.shutdown(2)
        assert self._thread is not None
        self._thread.join()

    def rule(
        self, action: Action, *, method: str = "", path: str = "", without: str = "\n", times: int | None = None
    ) -> Rule:
        """Apply this action to requests; the first matching rule wins."""
        made = Rule(action, method, path, without, times)
        with self._lock:
            self._rules.append(made)
        return made

    def heal(self) -> None:
        """Remove all rules and release the blocked requests."""
        with self._lock:
            self._rules.clear()
        if self._server is not None:
            released, self._server.released = self._server.released, threading.Event()
            released.set()

    def action_for(self, exchange: Exchange) -> Action:
        with self._lock:
            self.requests.append(f"{exchange.method} {exchange.path}")
            for rule in self._rules:
                if rule.fits(exchange):
                    rule.used += 1
                    return rule.action
        return pass_on

    def count(self, start: str, containing: str = "") -> int:
        """The number of requests that start with this and contain that."""
        return sum(request.startswith(start) and containing in request for request in self.requests)
