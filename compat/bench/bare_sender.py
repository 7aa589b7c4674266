"""A comparison for the Fetch rows: threads that only receive a frame and call `sendfile`, without any broker.

Each thread answers the frames of one connection with the next 1 MB of a segment: one blocking call from the page cache
to the socket. The send buffer of 2 MiB holds a whole answer; for blocking threads it was the fastest of the sizes tried
(100 KiB to 4 MiB). A broker also has to read requests, find offsets and encode headers.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

FRAME_BYTES: Final = 100
_ANSWER_BYTES: Final = 1_000_000
_HEAD: Final = struct.pack(">i", 96 + _ANSWER_BYTES) + bytes(96)
_SEND_BUFFER_BYTES: Final = 2 << 20


@contextlib.contextmanager
def bare_sender(segments: Sequence[str], connections: int) -> Iterator[list[socket.socket]]:
    """Connections to a new process that sends the segments; connection N gets segment N. It ends with the block."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
        server = os.fork()
        if not server:
            status = 1
            try:
                _serve(listener, segments, connections)
                status = 0
            finally:
                os._exit(status)
        sockets = [socket.create_connection(listener.getsockname(), timeout=60) for _ in range(connections)]
    try:
        yield sockets
    finally:
        for each in sockets:
            each.close()
        os.waitpid(server, 0)


def _serve(listener: socket.socket, segments: Sequence[str], connections: int) -> None:
    threads = []
    for number in range(connections):
        connected, _address = listener.accept()
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        threads.append(threading.Thread(target=_answer, args=(connected, Path(segments[number % len(segments)]))))
        threads[-1].start()
    for thread in threads:
        thread.join()


def _answer(connected: socket.socket, segment: Path) -> None:
    with segment.open("rb") as file, connected:
        size, position = segment.stat().st_size, 0
        while connected.recv(FRAME_BYTES):
            if position + _ANSWER_BYTES > size:
                position = 0
            connected.send(_HEAD, socket.MSG_MORE)
            end = position + _ANSWER_BYTES
            while position < end:
                position += os.sendfile(connected.fileno(), file.fileno(), position, end - position)
