"""An HTTP/1.1 server for a few pages: h11 parses and builds messages, this module does the I/O.

Theory of operation: each connection has one task, which waits for a request, answers it, and waits for the next one. A
page is made in pieces that take about a millisecond each. A long page takes turns with the long requests of the
broker's clients (`kbroker.runtime.turns`), so it does not delay the short ones.

Every resource of a client has a bound: the size of a request's head and body, the time for it to arrive, the time to
read a reply, and the number of connections. If there are too many connections, the server closes one of the address
with most connections: the one that has waited longest for a request. If all of them are being answered, it closes the
oldest connection of the path with the most connections. So neither idle connections nor slow readers of one page block
other pages, and one address that connects again and again does not keep others out, whether or not it reads replies.

The server answers requests only under its own host names. Otherwise a foreign web page could let its host name resolve
to this address and read the pages through the browser of a user who may connect (DNS rebinding). This attack needs a
public host name, so IP addresses, names without a dot and names under .localhost are always accepted.

Source: RFC 9110, RFC 9112.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Final
from urllib.parse import urlsplit

import h11
import trio

from kbroker.config.listeners import counted_address
from kbroker.config.server import is_ip
from kbroker.runtime.event_log import get_logger
from kbroker.runtime.limits import RateLimitedLog
from kbroker.runtime.metrics import Metrics
from kbroker.runtime.net_ports import Env, Listener, Part, Stream
from kbroker.runtime.retrying import accept
from kbroker.runtime.turns import Turns
from kbroker.security.listener import Acceptor, HandshakeFailed
from kbroker.web.gate import CHALLENGES, Gate

TEXT: Final = "text/plain; charset=utf-8"
OTHER = "other"
"""The path under which requests for unknown paths are counted."""

_METHODS = (b"GET", b"HEAD")
_RECEIVE_BYTES = 16 * 1024
_SEND_BYTES = 16 * 1024
_MAX_LINES = 100
"""Lines before the body. Each takes some microseconds to parse, and 16 KiB have room for thousands."""
_BLANK_LINE = re.compile(rb"\n\r?\n")
_LOG_INTERVAL_MS = 10_000
_PORT = re.compile(r":[0-9]*$")
_UNSENT = (h11.IDLE, h11.SEND_RESPONSE)

logger = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits for clients of the pages, in bytes and milliseconds.

    idle_ms     from the end of one request to the first byte of the next
    request_ms  from the first byte of a request to its last, and for the TLS handshake
    send_ms     for reading one reply
    stall_ms    for reading the next 16 KiB of a reply
    """

    max_connections: int = 32
    head_bytes: int = 16 * 1024
    body_bytes: int = 64 * 1024
    idle_ms: int = 75_000
    request_ms: int = 10_000
    send_ms: int = 60_000
    stall_ms: int = 10_000


@dataclass(frozen=True, slots=True)
class Reply:
    """A page. Its pieces are made while they are sent; none may take longer than one or two milliseconds. An empty
    piece lets other tasks run at once.
    """

    status: int
    content_type: str
    pieces: Iterable[bytes]
    headers: tuple[tuple[str, str], ...] = ()


Page = Callable[[str], Reply]
"""Makes the reply to a request with this query: the part of its target after the question mark, "" without one."""
Find = Callable[[str], Page | None]
_UNAUTHORIZED: Final = (
    "the token of kbroker.http.token is missing or wrong: send it as 'Authorization: Bearer TOKEN', or as the password"
)


class _Refused(Exception):
    """A request that gets only a status; the connection then closes."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


@dataclass(eq=False, slots=True)
class _Connection:
    stream: Stream
    machine: h11.Connection
    address: str  # what limits count as one client
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    is_waiting: bool = True  # for a request, or for the rest of one
    is_leaving: bool = False  # it is being closed to make room
    path: str = OTHER  # of the current request


class HttpServer:
    """Serves pages on any number of listeners: run `serve` for each.

    Shape  find maps a path to its page or None; names are host names of this server, in lower case; clients without
           the token of the gate get only the pages that find_public finds
    Bound  max_connections, and for a moment one more while another connection is being closed
    """

    def __init__(
        self,
        env: Env,
        find: Find,
        *,
        turns: Turns,
        metrics: Metrics,
        names: Collection[str] = (),
        limits: Limits | None = None,
        gate: Gate | None = None,
        find_public: Find = lambda _path: None,
        tls: Acceptor | None = None,
    ) -> None:
        self._env = env
        self._find = find
        self._gate = gate
        self._find_public = find_public
        self._tls = tls
        self._turns = turns
        self._names = names
        self._limits = limits or Limits()
        # Ordered by the start of their wait, oldest first.
        self.connections: dict[_Connection, None] = {}
        self._requests = metrics.tally("http.requests")
        self._log_limit = RateLimitedLog(interval_ms=_LOG_INTERVAL_MS)
        self._refused = metrics.counter("http.connections.refused")

    async def serve(self, listener: Listener, *, first: Stream | None = None) -> None:
        """Accept and answer until cancelled; `first` is a connection that was accepted before."""
        async with trio.open_nursery() as nursery:
            while True:
                stream, first = first or await accept(listener, self._env, _cannot_accept), None
                self._make_room()
                machine = h11.Connection(h11.SERVER, max_incomplete_event_size=self._limits.head_bytes)
                connection = _Connection(stream, machine, counted_address(stream.peer_host))
                self.connections[connection] = None
                nursery.start_soon(self._serve, connection)
                await trio.lowlevel.checkpoint()

    def _make_room(self) -> None:
        staying = [connection for connection in self.connections if not connection.is_leaving]
        if len(staying) < self._limits.max_connections:
            return
        counts = Counter(connection.address for connection in staying)
        most = max(counts.values())
        # Those of all addresses with equally many, so that an answer is not cut off while a connection waits.
        crowd = [connection for connection in staying if counts[connection.address] == most]
        waiting = (connection for connection in crowd if connection.is_waiting)
        leaving = next(waiting, None) or _oldest_of_most_read_path(crowd)
        leaving.is_leaving = True
        leaving.scope.cancel()
        self._refused.add()

    async def _serve(self, connection: _Connection) -> None:
        try:
            with connection.scope:
                if self._tls is not None and not await self._secure(connection, self._tls):
                    return
                while await self._serve_one(connection):
                    connection.machine.start_next_cycle()
                    connection.is_waiting = True
                    del self.connections[connection]
                    self.connections[connection] = None
                    await trio.lowlevel.checkpoint()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # the client has disconnected
        except Exception:
            logger.exception("fault in a page", peer=connection.stream.peer_host)
        finally:
            connection.stream.close()
            del self.connections[connection]

    async def _secure(self, connection: _Connection, tls: Acceptor) -> bool:
        """Do the TLS handshake; False if it fails or takes too long."""
        why: object = f"it takes longer than {self._limits.request_ms} ms"
        with trio.move_on_after(self._limits.request_ms / 1000):
            try:
                connection.stream = await tls.accept(connection.stream)
            except HandshakeFailed as error:
                why = error
            else:
                return True
        self._warn("a TLS handshake for the pages failed", connection, why=why)
        return False

    async def _serve_one(self, connection: _Connection) -> bool:
        """Answer one request; return whether the connection can serve another one."""
        request: h11.Request | None = None
        path = OTHER
        try:
            request = await self._request(connection)
            connection.is_waiting = False
            if request is None:
                return False
            self._turns.begin(self._env.now_ns())
            path, reply = self._reply(request)
            connection.path = path
        except _Refused as refused:
            reply = _plain(refused.status, str(refused))
        except h11.RemoteProtocolError as error:
            reply = _plain(error.error_status_hint, "the request is malformed")
        connection.is_waiting = False
        self._requests.add(path, str(reply.status))
        if reply.status == HTTPStatus.UNAUTHORIZED:
            self._warn("a request for the pages without a valid token", connection)
        if connection.machine.our_state not in _UNSENT:
            return False
        with_body = request is None or request.method != b"HEAD"
        machine = connection.machine
        was_taken = await self._send(connection, reply, with_body=with_body)
        return was_taken and machine.our_state is h11.DONE and machine.their_state is h11.DONE

    async def _request(self, connection: _Connection) -> h11.Request | None:
        """Wait for the next complete request; None if the client closes the connection or is idle for too long."""
        machine, stream, limits = connection.machine, connection.stream, self._limits
        request: h11.Request | None = None
        body_bytes = 0
        began = bool(machine.trailing_data[0])
        with trio.move_on_after((limits.request_ms if began else limits.idle_ms) / 1000) as in_time:
            while True:
                if request is None:
                    _demand_few_lines(machine.trailing_data[0])
                event = machine.next_event()
                if event is h11.NEED_DATA:
                    if machine.they_are_waiting_for_100_continue:
                        return request  # answer without reading the body
                    data = await stream.receive(_RECEIVE_BYTES)
                    machine.receive_data(data)
                    if data and not began:
                        began = True
                        in_time.deadline = trio.current_time() + limits.request_ms / 1000
                elif isinstance(event, h11.Request):
                    request = event
                    if _header(event, b"transfer-encoding"):  # chunks of one byte take milliseconds to parse
                        raise _Refused(411, "a request has no body, or one with Content-Length")
                elif isinstance(event, h11.Data):
                    body_bytes += len(event.data)
                    if body_bytes > limits.body_bytes:
                        raise _Refused(413, "the request body is too large")
                elif isinstance(event, h11.EndOfMessage):
                    return request
                else:
                    return None
        if began:
            raise _Refused(408, "the request took too long")
        return None

    def _reply(self, request: h11.Request) -> tuple[str, Reply]:
        """The path under which a request is counted, and its reply."""
        if not self._is_own_name(request):
            raise _Refused(421, "unknown host name: use the server's IP address, or add the name to kbroker.http.hosts")
        path, query = _path_and_query(request.target)
        is_admitted = self._gate is None or self._gate.admits(_header(request, b"authorization"))
        page = (self._find if is_admitted else self._find_public)(path)
        if page is None and not is_admitted:
            return OTHER, _plain(401, _UNAUTHORIZED, *CHALLENGES)
        if page is None:
            return OTHER, _plain(404, "no such page; / links to the others")
        if request.method not in _METHODS:
            return path, _plain(405, "only GET and HEAD are allowed", ("Allow", "GET, HEAD"))
        return path, page(query)

    def _warn(self, event: str, connection: _Connection, **fields: object) -> None:
        """Log at most one line of a kind for each address in _LOG_INTERVAL_MS."""
        peer = connection.stream.peer_host
        left_out = self._log_limit.admit((event, counted_address(peer)), now_ms=self._env.now_ms())
        if left_out is not None:
            logger.warning(event, peer=peer, **fields, left_out=left_out)

    def _is_own_name(self, request: h11.Request) -> bool:
        """Whether the Host header names this server. A missing one is accepted: every browser sends it."""
        host = _header(request, b"host").decode("latin-1")
        name = host.rpartition(":")[0] if _PORT.search(host) else host
        name = name.removeprefix("[").removesuffix("]").rstrip(".").lower()
        return "." not in name or name.endswith(".localhost") or name in self._names or is_ip(name)

    async def _send(self, connection: _Connection, reply: Reply, *, with_body: bool) -> bool:
        """Send a reply; False if the client reads too slowly."""
        machine, stream, limits = connection.machine, connection.stream, self._limits
        headers = [
            ("Content-Type", reply.content_type),
            ("Cache-Control", "no-store"),
            ("X-Content-Type-Options", "nosniff"),
            ("Cross-Origin-Resource-Policy", "same-origin"),
            *reply.headers,
        ]
        if isinstance(reply.pieces, tuple):
            headers.append(("Content-Length", str(sum(map(len, reply.pieces)))))
        if machine.their_state is not h11.DONE:
            headers.append(("Connection", "close"))
        end = trio.current_time() + limits.send_ms / 1000
        ready: list[Part] = []
        size = 0
        for event in _events(reply, headers, with_body=with_body):
            data = machine.send(event)
            if data:
                ready.append(data)
                size += len(data)
            if size >= _SEND_BYTES or (ready and isinstance(event, h11.EndOfMessage)):
                with trio.move_on_at(min(end, trio.current_time() + limits.stall_ms / 1000)) as in_time:
                    await stream.send(ready)
                if in_time.cancelled_caught:
                    return False
                ready, size = [], 0
            if self._turns.due() or (isinstance(event, h11.Data) and not event.data):
                await self._turns.next()
        return True


def _oldest_of_most_read_path(connections: Sequence[_Connection]) -> _Connection:
    """The first of the connections whose path is the most frequent one."""
    ((most, _),) = Counter(connection.path for connection in connections).most_common(1)
    return next(connection for connection in connections if connection.path == most)


def _demand_few_lines(waiting: bytes) -> None:
    """Refuse a request with too many lines before it is parsed. Errors: _Refused."""
    end = _BLANK_LINE.search(waiting)
    if waiting.count(b"\n", 0, end.start() if end else len(waiting)) > _MAX_LINES:
        raise _Refused(431, f"a request has at most {_MAX_LINES} lines of headers")


def _header(request: h11.Request, wanted: bytes) -> bytes:
    """The value of a request's first header of this name, b"" without one."""
    return next((value for name, value in request.headers if name == wanted), b"")


def _events(
    reply: Reply, headers: list[tuple[str, str]], *, with_body: bool
) -> Iterable[h11.Response | h11.Data | h11.EndOfMessage]:
    yield h11.Response(status_code=reply.status, reason=HTTPStatus(reply.status).phrase, headers=headers)
    if with_body:
        for piece in reply.pieces:
            yield h11.Data(data=piece)
    yield h11.EndOfMessage()


def _cannot_accept(error: OSError) -> None:
    logger.debug("cannot accept connections to the pages; will retry", error=error)


def _plain(status: int, text: str, *headers: tuple[str, str]) -> Reply:
    return Reply(status, TEXT, (text.encode() + b"\n",), headers)


def _path_and_query(target: bytes) -> tuple[str, str]:
    """The path and the query of a request's target, which may be a full URL; "" and "" if it is malformed."""
    try:
        found = urlsplit(target.decode("ascii"))
    except ValueError:
        return "", ""
    return found.path, found.query
