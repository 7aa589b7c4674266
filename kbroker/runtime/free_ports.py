"""Ports for servers that start later, such as the nodes of a cluster, which must know each other's addresses before."""

from __future__ import annotations

import os
import socket
from collections import deque
from typing import Final

LOOPBACK: Final = "127.0.0.1"
RANGE: Final = range(20_000, 32_768)
"""Below the ports of outgoing connections on Linux and macOS: such a connection could take a port before its server."""
MOST_HELD: Final = 256
"""A process that reserves more gives back the oldest."""

_held: deque[int] = deque()
_next = 0


def free_ports(count: int) -> list[int]:
    """Reserve ports of the loopback address until this process ends.

    Raises  OSError if all are in use
    Note    other processes that use this function get other ports, also while no server listens, for example because a
            test has killed it. A reservation is a UDP socket with the same number, which the system closes with the
            process
    """
    global _next  # noqa: PLW0603
    found: list[int] = []
    tried = 0
    while len(found) < count:
        if tried == len(RANGE):
            raise OSError(f"fewer than {count} ports from {RANGE.start} to {RANGE.stop - 1} are free")
        tried += 1
        # Processes begin at different places, so that they seldom try the same ports.
        port = RANGE[(os.getpid() * 61 + _next) % len(RANGE)]
        _next += 1
        reserved = _reserve(port)
        if reserved is not None:
            found.append(port)
            _held.append(reserved)
            if len(_held) > MOST_HELD:
                os.close(_held.popleft())
    return found


def _reserve(port: int) -> int | None:
    """The file descriptor that holds a reservation; None if the port is in use or reserved."""
    with socket.socket(type=socket.SOCK_DGRAM) as mark, socket.socket() as probe:
        try:
            mark.bind((LOOPBACK, port))
            probe.bind((LOOPBACK, port))
        except OSError:
            return None
        return mark.detach()
