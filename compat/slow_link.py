"""A slow and unreliable link: a TCP proxy that delays bytes, limits their rate, and resets connections.

Source: Apache Kafka's Trogdor (delay and rate of a degraded network), franz-go's chaos proxy (short connections).
"""

from __future__ import annotations

import contextlib
import queue
import random
import socket
import struct
import threading
import time
from dataclasses import dataclass
from typing import Final

_CHUNK: Final = 4096
_CHUNKS_ON_THE_WAY: Final = 64
_END: Final = b""
_RESET_AT_CLOSE: Final = struct.pack("ii", 1, 0)


@dataclass(frozen=True)
class Quality:
    """How bad a link is.

    Units  delay_s and bytes_per_s are for each direction; resets: probability that a chunk (at most 4 KiB) resets the
           connection; life_s: a connection is reset after a time between these
    """

    delay_s: float = 0.1
    bytes_per_s: float = 3_000_000 / 8
    resets: float = 0.01
    life_s: tuple[float, float] = (0.5, 1.5)


class SlowLink:
    """A proxy from a port of this machine to an address. `connections` counts what it has accepted.

    A context manager: at the end it accepts nothing more. Each direction of a connection has two threads.
    """

    def __init__(self, port: int, upstream: tuple[str, int], quality: Quality) -> None:
        self.connections = 0
        self._upstream, self._quality = upstream, quality
        self._listener = socket.create_server(("127.0.0.1", port))

    def __enter__(self) -> SlowLink:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                try:
                    server = socket.create_connection(self._upstream)
                except OSError:
                    client.close()
                    continue
                self.connections += 1
                for ends in ((client, server), (server, client)):
                    on_the_way: queue.Queue[tuple[float, bytes]] = queue.Queue(_CHUNKS_ON_THE_WAY)
                    threading.Thread(target=self._receive, args=(ends[0], on_the_way), daemon=True).start()
                    threading.Thread(target=self._send, args=(on_the_way, ends), daemon=True).start()
                life = threading.Timer(random.uniform(*self._quality.life_s), _reset, (client, server))
                life.daemon = True
                life.start()

    def _receive(self, source: socket.socket, on_the_way: queue.Queue[tuple[float, bytes]]) -> None:
        chunk = b"..."
        while chunk:
            try:
                chunk = source.recv(_CHUNK)
            except OSError:
                chunk = _END
            on_the_way.put((time.monotonic() + self._quality.delay_s, chunk))

    def _send(self, on_the_way: queue.Queue[tuple[float, bytes]], ends: tuple[socket.socket, socket.socket]) -> None:
        free_at = 0.0
        while True:
            due, chunk = on_the_way.get()
            free_at = max(due, free_at) + len(chunk) / self._quality.bytes_per_s
            time.sleep(max(0.0, free_at - time.monotonic()))
            try:
                if chunk and random.random() >= self._quality.resets:
                    ends[1].sendall(chunk)
                    continue
            except OSError:
                pass
            _reset(*ends)
            while chunk:  # so that the receiving thread ends
                _, chunk = on_the_way.get()
            return


def _reset(*ends: socket.socket) -> None:
    """Reset both connections, and wake the threads that read them."""
    for end in ends:
        with contextlib.suppress(OSError):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_AT_CLOSE)
            end.shutdown(socket.SHUT_RD)
            end.close()
