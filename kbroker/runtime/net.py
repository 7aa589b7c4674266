"""Real connections: TCP sockets on trio's event loop.

Theory of operation: each operation first tries its system call, and waits for the socket (`wait_readable`,
`wait_writable`) only when the kernel has no data or no buffer space. trio's own streams add a checkpoint, several
microseconds, to every call. Here a call that does not wait does not yield; a caller that uses a stream in a loop (the
server) must yield itself from time to time.

Files are sent with `sendfile`, from the page cache to the socket. Data outside the page cache would block the event
loop during the disk read. So a range is probed first (`preadv2` with RWF_NOWAIT, one byte in each step of the kernel's
read-ahead); if a probe fails, a thread reads the range once. The parts before a range are sent with MSG_MORE, so that
they share a packet with its first bytes.

A connection that waits for its next request may poll for a while before it sleeps: see `BusyPoll`.

Each listener (listening.py) has an epoll for EPOLLRDHUP to detect closed peers. It reports the end of a connection even
behind unread requests, and one task per listener serves all connections. A socket is registered by its first watch and
stays registered, so that later watches need no system call.

Source: tcp(7), epoll(7), sendfile(2), preadv2(2), sched_yield(2).
"""

from __future__ import annotations

import errno
import os
import select
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeAlias

import trio

from kbroker.runtime.net_ports import FileBytes, Part
from kbroker.runtime.ports import Buffer

# Parts up to this size are joined into one system call; beyond it the copy costs more than a call.
_JOIN_BYTES: Final = 64 * 1024
# A file range up to this size is read and joined with its neighbours: two calls and two copies instead of four calls
# (send, two probes, sendfile).
_COPY_BYTES: Final = 32 * 1024
_SENDFILE_BYTES: Final = 1024 * 1024
# The kernel reads ahead in steps of this size by default, and evicts the pages of a step together.
_PROBE_STEP_BYTES: Final = 128 * 1024

_NOT_READ_AT_ONCE: Final = frozenset({errno.EAGAIN, errno.EOPNOTSUPP})
_GONE: Final = frozenset(
    {errno.ECONNRESET, errno.EPIPE, errno.ETIMEDOUT, errno.ENOTCONN, errno.ECONNABORTED, errno.EHOSTUNREACH}
)


# A connection starts to poll after this many short waits in a row, also after a failed poll.
_SHORT_WAITS_WANTED: Final = 16
# No poll if more bytes moved since the last wait, in both directions: the peer is busy with the data, and the cost of
# a sleep is small compared to that.
_POLL_BYTES: Final = 96 * 1024

# A function that calls another one off the event loop: `Env.run_blocking`.
RunBlocking: TypeAlias = Callable[..., Awaitable[Any]]


class SocketStream:
    """A connected socket; see `kbroker.runtime.net_ports.Stream`."""

    __slots__ = (
        "_busy_poll",
        "_moved_bytes",
        "_peers",
        "_run_blocking",
        "_short_waits_wanted",
        "_socket",
        "_waits",
        "peer_host",
        "peer_port",
        "received_bytes",
        "sent_bytes",
    )

    def __init__(
        self,
        connected: socket.socket,
        address: Any,
        *,
        run_blocking: RunBlocking,
        peers: ClosedPeers | None = None,
        busy_poll: BusyPoll | None = None,
    ) -> None:
        connected.setblocking(False)
        self._socket = connected
        self._waits = 0  # tasks that wait for the socket, and cancelled waits
        self._peers = peers
        self._run_blocking = run_blocking
        host, self.peer_port = address[:2]
        # A socket for every address sees a client over IPv4 as ::ffff:192.0.2.1.
        self.peer_host: str = host.removeprefix("::ffff:") if "." in host else host
        if len(address) > 2 and (scope_id := address[3]):  # of a link-local address; ACLs name it, as in Kafka
            self.peer_host = f"{host}%{scope_id}"
        self.received_bytes = 0
        self.sent_bytes = 0
        self._busy_poll = busy_poll
        self._short_waits_wanted = _SHORT_WAITS_WANTED
        self._moved_bytes = 0

    async def receive(self, max_bytes: int) -> bytes:
        while True:
            try:
                data = self._socket.recv(max_bytes)
            except BlockingIOError:
                await self._until_readable()
            except OSError as error:
                raise _broken(error) from error
            else:
                self.received_bytes += len(data)
                return data

    async def receive_into(self, buffer: memoryview | bytearray) -> int:
        while True:
            try:
                received = self._socket.recv_into(buffer)
            except BlockingIOError:
                await self._until_readable()
            except OSError as error:
                raise _broken(error) from error
            else:
                self.received_bytes += received
                return received

    async def _until_readable(self) -> None:
        poll = self._busy_poll
        if poll is None:
            self._waits += 1
            await trio.lowlevel.wait_readable(self._socket)
            self._waits -= 1
            return
        began = poll.now_ns()
        moved = self.sent_bytes + self.received_bytes
        since, self._moved_bytes = moved - self._moved_bytes, moved
        if not self._short_waits_wanted and since <= _POLL_BYTES and poll.is_free:
            if await poll.finds(self._socket, until_ns=began + poll.window_ns):
                return
            self._short_waits_wanted = _SHORT_WAITS_WANTED
        self._waits += 1
        await trio.lowlevel.wait_readable(self._socket)
        self._waits -= 1
        if self._short_waits_wanted:
            is_short = poll.now_ns() - began < poll.window_ns
            self._short_waits_wanted = self._short_waits_wanted - 1 if is_short else _SHORT_WAITS_WANTED

    def send_nowait(self, data: Buffer) -> int:
        try:
            sent = self._socket.send(data)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise _broken(error) from error
        self.sent_bytes += sent
        return sent

    async def send(self, parts: Sequence[Part]) -> None:
        small: list[Buffer] = []
        small_size = 0
        last = len(parts) - 1
        for index, part in enumerate(parts):
            data = part if isinstance(part, bytes | bytearray | memoryview) else await self._read_if_small(part)
            if data is not None and small_size + len(data) <= _JOIN_BYTES:
                small.append(data)
                small_size += len(data)
                continue
            if small:
                await self._send_bytes(_join(small), socket.MSG_MORE)
                small, small_size = [], 0
            if data is not None:
                await self._send_bytes(data, 0 if index == last else socket.MSG_MORE)
            elif not isinstance(part, bytes | bytearray | memoryview):
                await self._send_file(part)
        if small:
            await self._send_bytes(_join(small), 0)

    async def _send_bytes(self, data: Buffer, flags: int) -> None:
        rest: Buffer = data
        while rest:
            try:
                sent = self._socket.send(rest, flags)
            except BlockingIOError:
                await self._until_writable()
                continue
            except OSError as error:
                raise _broken(error) from error
            self.sent_bytes += sent
            if sent == len(rest):
                return
            rest = memoryview(rest)[sent:]

    async def _until_writable(self) -> None:
        self._waits += 1
        await trio.lowlevel.wait_writable(self._socket)
        self._waits -= 1

    async def _read_if_small(self, part: FileBytes) -> Buffer | None:
        """The bytes of a range that is cheaper to copy than to send in its own call; None for larger ranges."""
        return await self.read_range(part) if part.size <= _COPY_BYTES else None

    async def read_range(self, part: FileBytes) -> Buffer:
        data = bytearray(part.size)
        try:
            if os.preadv(part.file.fileno(), [data], part.position, os.RWF_NOWAIT) == part.size:
                return data
        except OSError as error:
            if error.errno not in _NOT_READ_AT_ONCE:
                raise
        read: bytes = await self._run_blocking(part.file.pread, part.size, part.position)
        if len(read) < part.size:
            raise _file_ended(part)
        return read

    async def _send_file(self, part: FileBytes) -> None:
        position = part.position
        end = position + part.size
        if not _is_cached(part.file.fileno(), position, end):
            await self._run_blocking(_read_through, part)
        out = self._socket.fileno()
        while True:
            try:
                # Get the descriptor each time: the cache of open files may have reopened the file.
                sent = os.sendfile(out, part.file.fileno(), position, min(end - position, _SENDFILE_BYTES))
            except BlockingIOError:
                await self._until_writable()
                out = self._socket.fileno()
                continue
            except OSError as error:
                if error.errno in _GONE:
                    raise _broken(error) from error
                raise
            if sent == 0:
                raise _file_ended(part)
            position += sent
            self.sent_bytes += sent
            if position == end:
                return
            await trio.lowlevel.checkpoint()

    def watch(self, on_peer_closed: Callable[[], object]) -> None:
        if self._peers is not None:
            self._peers.watch(self._socket.fileno(), on_peer_closed)

    def unwatch(self) -> None:
        if self._peers is not None:
            self._peers.unwatch(self._socket.fileno())

    def close(self) -> None:
        if self._socket.fileno() != -1:
            if self._waits:
                trio.lowlevel.notify_closing(self._socket)
            if self._peers is not None:
                self._peers.forget(self._socket.fileno())
            self._socket.close()


def _join(small: list[Buffer]) -> Buffer:
    return small[0] if len(small) == 1 else b"".join(small)


def _file_ended(part: FileBytes) -> OSError:
    return OSError(errno.EIO, "the file ends before the range that is sent", part.file.path)


def _broken(error: OSError) -> trio.BrokenResourceError | trio.ClosedResourceError:
    if error.errno == errno.EBADF:
        return trio.ClosedResourceError("we closed the connection")
    return trio.BrokenResourceError(error.strerror or str(error))


def _is_cached(descriptor: int, position: int, end: int) -> bool:
    """Whether the range seems to be in the page cache; checks one byte in each read-ahead step."""
    one = bytearray(1)
    buffers = [one]
    try:
        for probe in range(position, end, _PROBE_STEP_BYTES):
            os.preadv(descriptor, buffers, probe, os.RWF_NOWAIT)
        os.preadv(descriptor, buffers, end - 1, os.RWF_NOWAIT)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno == errno.EOPNOTSUPP:  # the file system does not support the probe: assume that it is cached
            return True
        raise
    return True


def _read_through(part: FileBytes) -> None:
    """Bring the range into the page cache; runs in a thread."""
    position, end = part.position, part.position + part.size
    while position < end:
        read = len(part.file.pread(min(end - position, _SENDFILE_BYTES), position))
        if not read:
            return  # sendfile reports the end of the file
        position += read


class BusyPoll:
    """Polls for a peer's next request for a short time before sleeping.

    Theory of operation: waking an idle processor, especially a virtual one, takes as long as answering a small request.
    So if a peer has sent each of its last requests soon after the previous reply, its connection polls once in each
    pass of the event loop, for at most `window_ns`. Other tasks and sockets run between polls, each poll first yields
    to other threads and processes, and only one connection polls at a time. After a failed poll the connection sleeps,
    and needs a number of short waits in a row before it polls again. So slow peers cost nothing.

    Units  nanoseconds on the clock now_ns
    """

    __slots__ = ("_one", "is_free", "now_ns", "window_ns")

    def __init__(self, *, window_ns: int, now_ns: Callable[[], int]) -> None:
        self.window_ns = window_ns
        self.now_ns = now_ns
        self.is_free = True
        self._one = bytearray(1)

    async def finds(self, connected: socket.socket, *, until_ns: int) -> bool:
        """Poll until `until_ns`; whether there is something to receive (bytes, the end or an error)."""
        assert self.is_free
        self.is_free = False
        try:
            while self.now_ns() < until_ns:
                os.sched_yield()
                await trio.lowlevel.checkpoint()
                try:
                    connected.recv_into(self._one, 1, socket.MSG_PEEK)
                except BlockingIOError:
                    continue
                except OSError:
                    return True
                return True
            return False
        finally:
            self.is_free = True


class ClosedPeers:
    """Calls back for each watched socket whose peer has closed its side.

    Bound  one entry for each connection that was ever watched, until `forget`
    """

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._watched: dict[int, Callable[[], object] | None] = {}
        self._closed: set[int] = set()

    def watch(self, descriptor: int, on_peer_closed: Callable[[], object]) -> None:
        """Watch a socket, until `unwatch`; it must not be watched now. Calls back at once if its peer has closed."""
        watched = self._watched
        if descriptor not in watched:
            # Edge-triggered: an end that was reported once is not reported again.
            self._epoll.register(descriptor, select.EPOLLRDHUP | select.EPOLLET)
            watched[descriptor] = None
        assert watched[descriptor] is None
        if descriptor in self._closed:
            on_peer_closed()
        else:
            watched[descriptor] = on_peer_closed

    def unwatch(self, descriptor: int) -> None:
        """Stop watching a socket; no effect if it is not watched."""
        if descriptor in self._watched:
            self._watched[descriptor] = None

    def forget(self, descriptor: int) -> None:
        """The socket is about to be closed."""
        if descriptor in self._watched:
            del self._watched[descriptor]
            self._closed.discard(descriptor)
            self._epoll.unregister(descriptor)

    async def notice(self) -> None:
        """Wait for closed peers and call back, forever."""
        while True:
            await trio.lowlevel.wait_readable(self._epoll.fileno())
            for descriptor, _events in self._epoll.poll(0):
                if descriptor in self._watched:
                    self._closed.add(descriptor)
                    on_peer_closed, self._watched[descriptor] = self._watched[descriptor], None
                    if on_peer_closed is not None:
                        on_peer_closed()


async def connect(host: str, port: int, *, run_blocking: RunBlocking) -> SocketStream:
    """Connect to the first address of `host` that answers; see `kbroker.runtime.net_ports.Env.connect`."""
    failure: OSError | None = None
    for family, kind, protocol, _name, address in await trio.socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        with trio.socket.socket(family, kind, protocol) as connecting:
            try:
                await connecting.connect(address)
            except OSError as error:
                failure = error
            else:
                connected = socket.socket(fileno=connecting.detach())
                connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                return SocketStream(connected, address, run_blocking=run_blocking)
    raise failure or OSError(errno.EHOSTUNREACH, f"{host} has no address")
