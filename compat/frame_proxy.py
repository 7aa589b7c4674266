"""A proxy that a broker advertises: forwards Kafka's frames in both directions, and shows them to a subclass."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

Frame = bytes


class FrameProxy:
    """One thread forwards each direction of a connection. The frames that a subclass sees lack the length field."""

    def __init__(self, port: int, upstream: tuple[str, int]) -> None:
        self._upstream = upstream
        self._listener = socket.create_server(("127.0.0.1", port))
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Stop accepting connections."""
        self._listener.close()

    def on_request(self, frame: Frame) -> Any:
        """What to remember of a request until its response."""
        return frame

    def on_response(self, remembered: Any, frame: Frame) -> bool:  # noqa: ARG002
        """Whether to forward the response."""
        return True

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                try:
                    broker = socket.create_connection(self._upstream)
                except OSError:
                    client.close()
                    continue
                waiting: dict[bytes, Any] = {}  # by correlation id; a Produce with acks=0 stays
                for source, target, note in (
                    (client, broker, partial(self._request, waiting)),
                    (broker, client, partial(self._response, waiting)),
                ):
                    threading.Thread(target=_pass_on, args=(source, target, note), daemon=True).start()

    def _request(self, waiting: dict[bytes, Any], frame: Frame) -> bool:
        waiting[frame[4:8]] = self.on_request(frame)
        return True

    def _response(self, waiting: dict[bytes, Any], frame: Frame) -> bool:
        return self.on_response(waiting.pop(frame[:4]), frame)


def _pass_on(source: socket.socket, target: socket.socket, note: Callable[[Frame], bool]) -> None:
    with contextlib.suppress(OSError, struct.error), source.makefile("rb") as stream:
        while size := stream.read(4):
            frame = stream.read(*struct.unpack(">i", size))
            if note(frame):
                target.sendall(size + frame)
    for end in (source, target):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
