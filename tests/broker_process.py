"""A broker in a process of its own, and a blocking client that speaks to it in typed messages."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from wire.framing import decode_response, encode_request_frame

Response = TypeVar("Response")

READY = "kbroker ready on "


class BrokerProcess:
    """`kbroker serve` on a directory. Use as a context manager: it is killed at the end if it still runs."""

    def __init__(
        self,
        directory: Path,
        *arguments: str,
        listen: str | None = "127.0.0.1:0",
        start_seconds: float = 20,
        module: str = "kbroker",
    ) -> None:
        self.directory = directory
        command = [sys.executable, "-m", module, "serve", "--data-dir", str(directory)]
        if listen is not None:
            command += ["--listen", listen]
        self.process = subprocess.Popen(
            [*command, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=dict(os.environ)
        )
        self.host, self.port = "", 0
        self._start_seconds = start_seconds

    def wait_until_ready(self) -> BrokerProcess:
        """Wait for the line that says so."""
        assert self.process.stdout is not None
        readable, _, _ = select.select([self.process.stdout], [], [], self._start_seconds)
        line = self.process.stdout.readline() if readable else ""
        assert line.startswith(READY), f"{line!r}; {self.stop_and_read_errors()}"
        host, _, port = line.removeprefix(READY).strip().rpartition(":")
        self.host, self.port = host, int(port)
        return self

    def __enter__(self) -> BrokerProcess:
        return self.wait_until_ready()

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()

    def client(self) -> Client:
        """A new connection."""
        return Client(self.host, self.port)

    def stop(self, number: int = signal.SIGTERM) -> tuple[int, float]:
        """Signal it and wait; its exit code and how long that took in seconds."""
        start = time.monotonic()
        self.process.send_signal(number)
        code = self.process.wait(timeout=20)
        return code, time.monotonic() - start

    def stop_and_read_errors(self) -> str:
        """Kill it if need be; what it wrote to its log."""
        if self.process.poll() is None:
            self.process.kill()
        _, errors = self.process.communicate()
        return str(errors)


class Client:
    """One blocking connection."""

    def __init__(self, host: str, port: int) -> None:
        self.socket = socket.create_connection((host, port), timeout=20)
        self._correlation_id = 0

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.socket.close()

    def send(self, request: Any, version: int) -> None:
        """Send a request and do not wait for its reply."""
        self._correlation_id += 1
        parts = encode_request_frame(request, version, correlation_id=self._correlation_id, client_id="test")
        self.socket.sendall(b"".join(part for part in parts if isinstance(part, bytes)))

    def receive(self, response_class: type[Response], version: int) -> Response:
        """The next reply."""
        size = int.from_bytes(self._exactly(4), "big")
        _, response = decode_response(response_class, version, self._exactly(size))
        return response

    def ask(self, request: Any, response_class: type[Response], version: int) -> Response:
        """Send a request and wait for its reply."""
        self.send(request, version)
        return self.receive(response_class, version)

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = self.socket.recv(size - len(data))
            if not more:
                raise ConnectionError("the broker closed the connection")
            data += more
        return data


def serve_and_fail(
    directory: Path, *arguments: Sequence[str] | str, listen: str | None = "127.0.0.1:0"
) -> tuple[int, str]:
    """Run `kbroker serve` where it must not start; its exit code and what it said."""
    broker = BrokerProcess(directory, *[str(argument) for argument in arguments], listen=listen)
    code = broker.process.wait(timeout=20)
    return code, broker.stop_and_read_errors()
