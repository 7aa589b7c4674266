"""The server: listeners, connections, and the limits that protect clients from each other.

Theory of operation: an accept loop for each listener starts a task for each connection (`server.connection`). No
connection has a timer: one sweeper task checks all connections about once a second, compares their progress with
the last sweep, and closes those that have been idle, or stuck in a frame or a reply, for too long. An idle connection
costs a look at a few attributes each second, and a busy connection costs nothing.

Accepting stops while there are `max.connections` connections; the server then closes one of those that have not
authenticated within a second (`server.newcomers` says which). If brokers have a listener of their own, its connections
are counted apart from those of all other listeners: clients must not keep replicas from connecting. Accepting pauses
while clients connect faster than `max.connection.creation.rate`, and backs off while the system lacks file descriptors
or memory. It resumes by itself.

To stop, the server accepts no new connections, ends waits, lets running requests finish, and then closes all
connections. This takes at most the time that the caller allows.

Source: rows W1-W3, W8-W10 and D13 of the fault list; Kafka's SocketServer and ConnectionQuotas for the meaning of the
limits.
"""

from __future__ import annotations

import math

import trio

from kbroker.broker.client_quotas import AT_ONCE
from kbroker.config import Settings
from kbroker.config.listeners import counted_address, is_loopback
from kbroker.config.server import connections_by_address
from kbroker.handlers import CloseConnection
from kbroker.runtime.event_log import get_logger
from kbroker.runtime.limits import RateLimitedLog, TokenBucket
from kbroker.runtime.metrics import Metrics
from kbroker.runtime.net_ports import Env, Listener, Stream
from kbroker.runtime.retrying import accept
from kbroker.security.listener import OPEN, ListenerSecurity
from kbroker.server.connection import Connection, State
from kbroker.server.dispatch import Dispatcher
from kbroker.server.memory import Memory
from kbroker.server.newcomers import Newcomers
from wire.framing import BufferPool

logger = get_logger(__name__)

_LOG_INTERVAL_MS = 10_000
_COMPARED = 48
_DIGITS = str.maketrans("", "", "0123456789")
"""Reasons are compared by their beginnings without numbers, which clients can choose."""
_SWEEP_INTERVAL_MS = 1_000
_SWEPT_BETWEEN_YIELDS = 100
_ACCEPTED_BETWEEN_YIELDS = 8
_NEWCOMER_MS = 1_000
"""An honest client authenticates in this time."""
_HAS_OWN_LIMIT = (State.ANSWERING, State.WAITING_FOR_MEMORY, State.MUTED, State.AUTHENTICATING)


class Server:
    """Serves any number of listeners with one dispatcher: `run` it in a nursery, `add` listeners, `stop` it.

    A frame being received must average at least kbroker.progress.bytes.per.second after kbroker.frame.grace.ms, a reply
    being sent after kbroker.send.grace.ms; neither may pause for longer than kbroker.send.grace.ms. So a frame is
    complete after at most max(frame grace, its size / progress rate). While other connections wait for a budget of
    which it holds bytes, a frame must reach that rate within every kbroker.memory.grace.ms. A negative
    connections.max.idle.ms, as in Kafka, allows connections to be idle forever.

    Bound  max.connections for clients and as many for brokers, plus one for each additional listener
    """

    def __init__(self, env: Env, dispatcher: Dispatcher, *, metrics: Metrics, settings: Settings) -> None:
        self.connections: dict[Connection, Observed] = {}
        self._env = env
        self._dispatcher = dispatcher
        # On the listeners of clients, and on that of brokers.
        self._newcomers: tuple[Newcomers[Connection], Newcomers[Connection]] = (Newcomers(), Newcomers())
        self._by_host: dict[str, int] = {}
        self._buffers = BufferPool()
        self.memory = Memory(
            max_request_bytes=settings.server.queued_max_request_bytes,
            max_answer_bytes=settings.limits.kbroker_queued_max_response_bytes,
            max_login_bytes=settings.limits.kbroker_max_login_bytes,
        )
        self._listeners: list[tuple[str, Listener, trio.CancelScope]] = []
        rate = settings.server.max_connection_creation_rate
        self._creations = TokenBucket(rate, rate, now_ms=env.now_ms())
        self._nursery: trio.Nursery | None = None
        self._departures = trio.lowlevel.ParkingLot()
        self.apply(settings)
        self._log_limit = RateLimitedLog(interval_ms=_LOG_INTERVAL_MS)
        self._accepted = metrics.counter("connections.accepted")
        self._accept_errors = metrics.counter("connections.accept_errors")
        self._refused = metrics.counter("connections.refused")
        self._closed_for_fault = metrics.counter("connections.closed_for_fault")
        self._closed_for_room = metrics.counter("connections.closed_for_room")
        self._closed_for_delay = metrics.counter("connections.closed_for_delay")

    def apply(self, settings: Settings) -> None:
        """Use the limits in these settings from now on. Existing connections keep their frame limits."""
        self._settings = settings
        self._max_by_host = connections_by_address(settings.server.max_connections_per_ip_overrides)
        self._creations.rate = self._creations.burst = settings.server.max_connection_creation_rate
        self._departures.unpark_all()  # max_connections may be higher now

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until `stop` or cancellation; reports started when `add` may be called."""
        try:
            async with trio.open_nursery() as self._nursery:
                self._nursery.start_soon(self._close_stuck_connections)
                task_status.started()
        finally:
            for _, listener, _ in self._listeners:
                listener.close()

    def add(self, listener: Listener, *, name: str, security: ListenerSecurity = OPEN) -> None:
        """Accept connections from `listener`, whose name is `name` (PLAINTEXT, ...)."""
        assert self._nursery is not None, "run() must be called first"
        scope = trio.CancelScope()
        self._listeners.append((name, listener, scope))
        self._nursery.start_soon(listener.notice_closed_peers)
        self._nursery.start_soon(self._accept, listener, scope, name, security)

    def connections_by_listener(self) -> dict[str, int]:
        """The number of connections of each listener: for metrics."""
        found = dict.fromkeys((name for name, _, _ in self._listeners), 0)
        for connection in self.connections:
            found[connection.listener] += 1
        return found

    async def stop(self, *, grace_ms: int) -> None:
        """Stop accepting, end waits, give running requests at most `grace_ms` to finish, then close all connections."""
        assert self._nursery is not None
        for _, listener, scope in self._listeners:
            scope.cancel()
            listener.close()
        for connection in self.connections:
            connection.finish()
        with trio.move_on_after(grace_ms / 1000):
            while self.connections:
                await self._departures.park()
        if self.connections:
            logger.warning("closing connections that are still busy", connections=len(self.connections))
        self._nursery.cancel_scope.cancel()

    async def _accept(self, listener: Listener, scope: trio.CancelScope, name: str, security: ListenerSecurity) -> None:
        since_yield = 0
        with scope:
            while True:
                while self._is_full(name):
                    with trio.move_on_after(self._make_room(name) / 1000):
                        await self._departures.park()
                stream = await accept(listener, self._env, self._cannot_accept)
                self._admit(stream, name, security)
                pause_ms = self._creations.take(1, now_ms=self._env.now_ms())
                since_yield += 1
                if pause_ms:
                    await self._env.sleep_ms(pause_ms)
                elif since_yield >= _ACCEPTED_BETWEEN_YIELDS:
                    await trio.lowlevel.checkpoint()
                else:
                    continue
                since_yield = 0

    def _is_full(self, listener: str) -> bool:
        """Whether a listener must not accept another connection now."""
        limit = self._settings.server.max_connections
        if len(self.connections) < limit:
            return False
        is_of_brokers, counts = self._is_of_brokers(listener), self.connections_by_listener()
        return sum(counts[name] for name in counts if self._is_of_brokers(name) == is_of_brokers) >= limit

    def _is_of_brokers(self, listener: str) -> bool:
        """Whether brokers have this listener for themselves."""
        if listener != self._settings.listeners.inter_broker_name:
            return False
        return any(name != listener for name, _, _ in self._listeners)

    def _cannot_accept(self, error: OSError) -> None:
        self._accept_errors.add()
        self._warn("cannot accept connections; will retry", "accept", error=error)

    def _admit(self, stream: Stream, listener: str, security: ListenerSecurity) -> None:
        host = stream.peer_host
        allowed = self._max_by_host.get(host.partition("%")[0])
        counted = counted_address(host) if allowed is None else host
        if allowed is None:
            allowed = self._settings.server.max_connections_per_ip
        others = self._by_host.get(counted, 0)
        # Any client can lower these limits: always allow one connection from this machine, so that it can raise them.
        if others >= allowed and (others or not is_loopback(host)):
            self._refused.add()
            stream.close()
            self._warn("too many connections from one address", counted, peer=host)
            return
        self._accepted.value += 1
        quotas, now_ms = self._dispatcher.quotas, self._env.now_ms()
        admission = quotas.admit(host, now_ms) if quotas.limits.limits_addresses else AT_ONCE
        self._by_host[counted] = others + 1
        newcomers = self._newcomers[self._is_of_brokers(listener)]
        connection = Connection(
            stream,
            listener=listener,
            dispatcher=self._dispatcher,
            env=self._env,
            max_frame_bytes=self._settings.server.socket_request_max_bytes,
            max_request_bytes=self._settings.limits.kbroker_max_request_bytes,
            memory=self.memory,
            buffers=self._buffers,
            admission=admission,
            security=security,
            authentication_timeout_ms=self._settings.limits.kbroker_authentication_timeout_ms,
            on_authenticated=newcomers.discard,
        )
        self.connections[connection] = Observed(connection, now_ms, counted)
        if not connection.is_authenticated:
            newcomers.add(connection, counted, now_ms)
            while len(newcomers) > self._settings.limits.kbroker_max_unauthenticated_connections:
                # One that has had its second first: a slow flood from many addresses must not end logins of one host.
                if not self._close_newcomer(newcomers, accepted_by_ms=now_ms - _NEWCOMER_MS):
                    self._close_newcomer(newcomers)
        assert self._nursery is not None
        self._nursery.start_soon(self._serve, connection)

    def _make_room(self, listener: str) -> float:
        """If no connection is left, close one that should have authenticated; return when to look again.

        Without this, clients that never log in could take all connections that max.connections leaves, for as long as
        kbroker.authentication.timeout.ms. Units: milliseconds.
        """
        newcomers, now_ms = self._newcomers[self._is_of_brokers(listener)], self._env.now_ms()
        if self._close_newcomer(newcomers, accepted_by_ms=now_ms - _NEWCOMER_MS):
            return _NEWCOMER_MS
        return newcomers.oldest_ms() + _NEWCOMER_MS - now_ms

    def _close_newcomer(self, newcomers: Newcomers[Connection], *, accepted_by_ms: float = math.inf) -> bool:
        """Close the most suspicious one of those that were accepted by this time; False if there is none."""
        suspect = newcomers.suspect(accepted_by_ms=accepted_by_ms)
        if suspect is None:
            return False
        newcomers.discard(suspect)
        suspect.hang_up()
        self._closed_for_room.add()
        self._warn(
            "too many unauthenticated connections; closing the oldest of the address with most",
            "newcomers",
            peer=suspect.stream.peer_host,
        )
        return True

    async def _serve(self, connection: Connection) -> None:
        stream = connection.stream
        try:
            await connection.serve()
        except CloseConnection as reason:
            self._closed_for_fault.add()
            peer, name = stream.peer_host, connection.listener
            # Clients of one machine can have different faults, each of which deserves a line.
            subject = f"{name} {counted_address(peer)} {str(reason).translate(_DIGITS)[:_COMPARED]}"
            self._warn("connection closed", subject, listener=name, peer=peer, reason=reason)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # the client has disconnected
        except OSError as error:
            self._warn("cannot send a reply: reading a file failed", "file", peer=stream.peer_host, error=error)
        except Exception:
            logger.exception("fault in a connection", peer=stream.peer_host)
        finally:
            connection.stream.close()
            self._forget(connection)

    def _forget(self, connection: Connection) -> None:
        host = self.connections.pop(connection).counted
        for newcomers in self._newcomers:
            newcomers.discard(connection)
        self._by_host[host] -= 1
        if not self._by_host[host]:
            del self._by_host[host]
        if self._departures:  # unparking no task costs a twentieth of a close
            self._departures.unpark_all()

    async def _close_stuck_connections(self) -> None:
        while True:
            server, limits = self._settings.server, self._settings.limits
            times_ms = (
                server.connections_max_idle_ms,
                limits.kbroker_frame_grace_ms,
                limits.kbroker_send_grace_ms,
                limits.kbroker_authentication_timeout_ms,
            )
            interval_ms = min(_SWEEP_INTERVAL_MS, *(max(1, time_ms // 4) for time_ms in times_ms if time_ms >= 0))
            await self._env.sleep_ms(interval_ms)
            now_ms = self._env.now_ms()
            for index, (connection, observed) in enumerate(list(self.connections.items())):
                reason = observed.stuck(self._settings, now_ms=now_ms)
                if observed.moved_ms == now_ms:
                    connection.note_progress()
                connection.forget_long_client_id()
                if connection.is_late(now_ms):
                    connection.hang_up()  # it says why
                elif reason is not None:
                    self._closed_for_delay.add()
                    logger.debug("connection closed", peer=connection.stream.peer_host, reason=reason)
                    connection.hang_up()
                if index % _SWEPT_BETWEEN_YIELDS == _SWEPT_BETWEEN_YIELDS - 1:
                    await trio.lowlevel.checkpoint()

    def _warn(self, event: str, subject: str, **fields: object) -> None:
        """Log at most one line per subject (usually an address) in _LOG_INTERVAL_MS."""
        left_out = self._log_limit.admit(subject, now_ms=self._env.now_ms())
        if left_out is not None:
            logger.warning(event, **fields, left_out=left_out)


class Observed:
    """The sweeper's record of a connection: when its current activity began, and when it last moved a byte.

    Shape  counted is the address or network that has one connection more because of it
    """

    __slots__ = ("_bytes", "_bytes_then", "_connection", "_doing", "_since_ms", "_window", "counted", "moved_ms")

    def __init__(self, connection: Connection, now_ms: int, counted: str) -> None:
        self.counted = counted
        self._connection = connection
        self._doing: object = None
        self._bytes = self._bytes_then = 0
        self._since_ms = self.moved_ms = now_ms
        self._window = (now_ms, 0)  # start time and byte count of the current window of kbroker.memory.grace.ms

    def unchanged_ms(self, now_ms: int) -> int:
        """Milliseconds since the current activity began: the idle time, if the connection is receiving."""
        return now_ms - self._since_ms

    def stuck(self, settings: Settings, *, now_ms: int) -> str | None:
        """Compare the connection with the last sweep; return the reason to close it, or None."""
        connection, limits = self._connection, settings.limits
        stream, state, of_frame = connection.stream, connection.state, connection.frames.pending_bytes
        moved = stream.received_bytes + stream.sent_bytes
        doing = (state, of_frame > 0, connection.requests)
        if doing != self._doing or state in _HAS_OWN_LIMIT:
            self._doing = doing
            self._bytes = self._bytes_then = moved
            self._since_ms = self.moved_ms = now_ms
            self._window = (now_ms, moved)
            return None
        if moved != self._bytes:
            self._bytes, self.moved_ms = moved, now_ms
        took_ms = now_ms - self._since_ms
        if state is State.RECEIVING and not of_frame:
            return "idle" if 0 <= settings.server.connections_max_idle_ms <= took_ms else None
        if now_ms - self.moved_ms >= limits.kbroker_send_grace_ms:
            return "stalled"
        if connection.keeps_others_waiting and now_ms - self._window[0] >= limits.kbroker_memory_grace_ms:
            (began_ms, began), self._window = self._window, (now_ms, moved)
            if (moved - began) * 1000 < limits.kbroker_progress_bytes_per_second * (now_ms - began_ms):
                return "too slow while others wait for memory"
        if state is State.RECEIVING:
            grace_ms, of_this = limits.kbroker_frame_grace_ms, of_frame
        else:
            grace_ms, of_this = limits.kbroker_send_grace_ms, moved - self._bytes_then
        too_slow = of_this * 1000 < limits.kbroker_progress_bytes_per_second * took_ms
        return "too slow" if took_ms >= grace_ms and too_slow else None
