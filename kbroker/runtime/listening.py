"""Sockets that listen, and their addresses.

A listener has the exclusive use of its address from its creation, and accepts connections (net.py) from `listen` on.

Source: socket(7), ip(7), ipv6(7).
"""

from __future__ import annotations

import errno
import socket
from typing import Any, Final

import trio

from kbroker.runtime.net import BusyPoll, ClosedPeers, RunBlocking, SocketStream
from kbroker.runtime.net_ports import SocketOptions


class SocketListener:
    """A listening socket; see `kbroker.runtime.net_ports.Listener`."""

    def __init__(
        self, bound: socket.socket, *, backlog: int, run_blocking: RunBlocking, busy_poll: BusyPoll | None = None
    ) -> None:
        bound.setblocking(False)
        self._socket = bound
        self._backlog = backlog
        self._run_blocking = run_blocking
        self._busy_poll = busy_poll
        self._peers = ClosedPeers()
        self.host, self.port = bound.getsockname()[:2]

    def listen(self) -> None:
        # Accepted sockets inherit both. Without the first, their TIME_WAIT state prevents the next broker from binding.
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.listen(self._backlog)

    async def accept(self) -> SocketStream:
        while True:
            try:
                connected, address = self._socket.accept()
            except BlockingIOError:
                await trio.lowlevel.wait_readable(self._socket)
            except (ConnectionAbortedError, ConnectionResetError, InterruptedError):
                continue  # the client gave up before the connection was accepted
            else:
                return SocketStream(
                    connected, address, run_blocking=self._run_blocking, peers=self._peers, busy_poll=self._busy_poll
                )

    async def notice_closed_peers(self) -> None:
        await self._peers.notice()

    def close(self) -> None:
        if self._socket.fileno() != -1:
            trio.lowlevel.notify_closing(self._socket)
            self._socket.close()


_NO_SUCH_FAMILY: Final = frozenset({errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL})
"""Errors of a system without IPv6: try the next address of the host."""


async def listen(
    host: str,
    port: int,
    options: SocketOptions,
    *,
    run_blocking: RunBlocking,
    busy_poll: BusyPoll | None,
    accepts: bool,
) -> SocketListener:
    """Bind and listen; see `kbroker.runtime.net_ports.Env.listen`."""
    found = await trio.socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    if not host:
        # For "every address" prefer IPv6: one such socket also serves IPv4.
        found.sort(key=lambda entry: entry[0] != socket.AF_INET6)
    failure: OSError | None = None
    for family, kind, protocol, _name, address in found:
        try:
            bound = _bound(family, kind, protocol, address, options, every=not host)
            listener = SocketListener(bound, backlog=options.backlog, run_blocking=run_blocking, busy_poll=busy_poll)
            if accepts:
                listener.listen()
        except OSError as error:
            failure = error
            if error.errno not in _NO_SUCH_FAMILY:
                raise
        else:
            return listener
    raise failure or OSError(errno.EADDRNOTAVAIL, f"{host} has no address")


def _bound(
    family: int, kind: int, protocol: int, address: Any, options: SocketOptions, *, every: bool
) -> socket.socket:
    """A socket with exclusive use of its address; it refuses connections until it listens."""
    bound = socket.socket(family, kind, protocol)
    try:
        if family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0 if every else 1)
        # Accepted sockets inherit both sizes. Without a fixed size the system adapts it.
        if options.send_buffer_bytes != -1:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, options.send_buffer_bytes)
        if options.receive_buffer_bytes != -1:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, options.receive_buffer_bytes)
        if not address[1]:
            bound.bind(address)
            return bound
        # SO_REUSEADDR ignores the TIME_WAIT of earlier connections, but allows any number of non-listening sockets to
        # bind the same address. So this socket listens for a moment, which fails if another one listens, and then
        # clears the option: from then on Linux refuses the address to all other sockets.
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
        bound.listen(0)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
        bound.shutdown(socket.SHUT_RDWR)
    except OSError:
        bound.close()
        raise
    return bound
