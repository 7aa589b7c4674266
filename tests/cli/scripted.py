"""A peer that answers its connections from a script, for states that a healthy broker does not have."""

from __future__ import annotations

import socket
import threading
from collections.abc import Mapping
from contextlib import suppress
from types import TracebackType

from wire.codec import decode
from wire.framing import FrameBuffer, decode_request_header, encode_response_frame
from wire.schema import request_class

RECEIVE_BYTES = 65_536


class Scripted:
    """Listens on a free port; `greeting` is sent unasked and raw.

    `answers` maps api keys to responses, or to functions that make the response to a request.
    """

    def __init__(self, answers: Mapping[int, object], *, greeting: bytes | None = None) -> None:
        self._answers = answers
        self._greeting = greeting
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve)

    def __enter__(self) -> Scripted:
        self._thread.start()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join(timeout=20)
        self._listener.close()

    def _serve(self) -> None:
        answering = []
        with suppress(OSError):  # the listener was shut down
            while True:
                answering.append(threading.Thread(target=self._answer, args=self._listener.accept()[:1]))
                answering[-1].start()
        for each in answering:
            each.join(timeout=20)

    def _answer(self, connection: socket.socket) -> None:
        # The client closed the connection early, or an answer raised an OSError to close it.
        with suppress(OSError), connection:
            if self._greeting is not None:
                connection.sendall(self._greeting)
            buffer = FrameBuffer(1 << 20)
            while data := connection.recv(RECEIVE_BYTES):
                buffer.feed(data)
                while (frame := buffer.next_frame()) is not None:
                    header, body = decode_request_header(frame)
                    answer = self._answers.get(header.api_key)
                    if callable(answer):
                        asked = request_class(header.api_key)
                        assert asked is not None
                        answer = answer(decode(asked, header.api_version, body))
                    if answer is not None:
                        parts = encode_response_frame(header.correlation_id, answer, header.api_version)
                        connection.sendall(b"".join(part for part in parts if isinstance(part, bytes)))
