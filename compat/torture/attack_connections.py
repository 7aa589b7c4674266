"""Two thousand connections that never complete a request: what another client waits, and the broker's memory (W9, W10).

    python -m compat.torture.attack_connections
    python -m compat.torture.attack_connections --broker kafka

A quarter of them says nothing, a quarter sends half a length, a quarter half a request. The rest sends a request byte
by byte, a byte of each in turn, again and again. Then all of them leave at the same time without a farewell (RST), and
as many connect at the same time, twice. The bystander produces all the time.
"""

from __future__ import annotations

import contextlib
import resource
import socket
import struct
import sys
import time
from collections.abc import Sequence

from compat.torture.bystander import Measure, Target, frame, main
from kbroker.testing.draws import Draws
from wire.messages.metadata import MetadataRequest

CONNECTIONS, ROUNDS = 2_000, 2
SLOW_BYTES = 20
LONGEST_MS, MEMORY_MIB = 100, 100
METADATA_VERSION = 12
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER with no time: close() sends RST


def attack(target: Target, draws: Draws) -> list[Measure]:
    """Open them, hold them, and drop them."""
    allow_files(CONNECTIONS + 200)
    request = frame(MetadataRequest(topics=[]), METADATA_VERSION)
    with target.watched() as seen:
        for _ in range(ROUNDS):
            held = hold(target.address, request, CONNECTIONS, draws)
            assert len(held) == CONNECTIONS, f"{len(held)} of {CONNECTIONS} were accepted"
            trickle(held[3::4], request, SLOW_BYTES)
            drop(held)
    with target.client() as client:
        assert client.ask(MetadataRequest(topics=[]), version=METADATA_VERSION).brokers
    return seen.measures(longest_ms=LONGEST_MS, memory_mib=MEMORY_MIB)


def allow_files(count: int) -> None:
    """Let this process have so many open files, as far as the machine allows it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, count)), hard))


def hold(address: tuple[str, int], request: bytes, count: int, draws: Draws) -> list[socket.socket]:
    """Connections that have begun nothing, a length, or a request; of each kind a quarter, the last to be continued."""
    held = []
    for number in range(count):
        connection = socket.create_connection(address, timeout=30)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        held.append(connection)
        match number % 4:
            case 1:
                connection.sendall(request[: 1 + draws.below(3)])
            case 2:
                connection.sendall(request[: 5 + draws.below(len(request) - 6)])
    return held


def trickle(connections: Sequence[socket.socket], request: bytes, size: int) -> None:
    """Send the first bytes of a request on each, one byte of each in turn."""
    for at in range(min(size, len(request) - 1)):
        for connection in connections:
            with contextlib.suppress(OSError):  # the broker may have closed it
                connection.sendall(request[at : at + 1])
        time.sleep(0.01)


def drop(connections: Sequence[socket.socket]) -> None:
    """Reset them all."""
    for connection in connections:
        connection.close()


if __name__ == "__main__":
    sys.exit(main(__doc__, attack))
