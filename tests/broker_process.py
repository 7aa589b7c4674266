"""A broker in its own process, and a blocking client that sends typed messages."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from kbroker.client.blocking import Connection

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
        """Wait for the ready line."""
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

    def client(self) -> Connection:
        """A new connection."""
        return connect(self.host, self.port)

    def stop(self, number: int = signal.SIGTERM) -> tuple[int, float]:
        """Signal it and wait; returns its exit code and the duration in seconds."""
        start = time.monotonic()
        self.process.send_signal(number)
        code = self.process.wait(timeout=20)
        return code, time.monotonic() - start

    def stop_and_read_errors(self) -> str:
        """Kill it if necessary; returns its log."""
        if self.process.poll() is None:
            self.process.kill()
        _, errors = self.process.communicate()
        return str(errors)


def connect(host: str, port: int) -> Connection:
    """A new connection to a broker."""
    return Connection(host, port, client_id="test", timeout_s=20)


def serve_and_fail(
    directory: Path, *arguments: Sequence[str] | str, listen: str | None = "127.0.0.1:0"
) -> tuple[int, str]:
    """Run `kbroker serve` where it must not start; returns its exit code and output."""
    broker = BrokerProcess(directory, *[str(argument) for argument in arguments], listen=listen)
    code = broker.process.wait(timeout=20)
    return code, broker.stop_and_read_errors()
