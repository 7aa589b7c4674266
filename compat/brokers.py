"""A broker under test: a child process with a data directory, or an external broker.

`KbrokerProcess`, `compat.kafka.KafkaNode` and `ExternalBroker` have the same interface, so every test can be verified
on Apache Kafka first and then run against kbroker.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol

from kbroker.runtime.free_ports import free_ports

# Many tests write records that are years old, which retention would delete during the test. With these settings Kafka
# checks retention only once, when it starts, and the broker under test never does.
WITHOUT_RETENTION = {"log.initial.task.delay.ms": "0", "log.retention.check.interval.ms": "31536000000"}
CHECKOUT = Path(__file__).parents[1]
READY = "kbroker ready on "
START_TIMEOUT_S = 30.0
# ApiVersions v0, correlation id 0, null client id: the smallest request that every broker answers.
API_VERSIONS_V0 = bytes.fromhex("0000000a 0012 0000 00000000 ffff")


class Broker(Protocol):
    """The interface of a broker for tests."""

    @property
    def bootstrap_servers(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def log_directory(self) -> Path | None: ...
    def log_tail(self) -> str: ...


class StartFailed(RuntimeError):
    """The broker did not start; the message contains the end of its log."""


def address_of(bootstrap_servers: str) -> tuple[str, int]:
    """`host:port` (the first of a comma list) as a socket address."""
    host, _, port = bootstrap_servers.split(",", maxsplit=1)[0].rpartition(":")
    return host.strip("[]"), int(port)


def free_port() -> int:
    """A port of 127.0.0.1 that no other test gets; see `free_ports`."""
    return free_ports(1)[0]


def answers(address: tuple[str, int], *, timeout_s: float = 1.0) -> bool:
    """True if the broker at `address` answers ApiVersions."""
    try:
        with socket.create_connection(address, timeout=timeout_s) as connection:
            connection.sendall(API_VERSIONS_V0)
            return len(connection.recv(4)) > 0
    except OSError:
        return False


def await_answer(address: tuple[str, int], process: subprocess.Popen[bytes], *, timeout_s: float) -> None:
    """Wait until the broker answers ApiVersions.

    Errors: StartFailed if the process ends or the time is up.
    """
    deadline = time.monotonic() + timeout_s
    while not answers(address):
        if process.poll() is not None:
            raise StartFailed(f"the broker ended with {process.returncode}")
        if time.monotonic() > deadline:
            raise StartFailed(f"no answer on {address} within {timeout_s} s")
        time.sleep(0.02)


def end(process: subprocess.Popen[bytes], *, signal_number: int = signal.SIGTERM, timeout_s: float = 15) -> int:
    """Ask a process to end, and kill it after the time-out. Returns its exit status."""
    if process.poll() is None:
        process.send_signal(signal_number)
        try:
            process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    return process.returncode


@dataclass(frozen=True)
class ExternalBroker:
    """An external broker: KBROKER_BOOTSTRAP_SERVERS, and KBROKER_DATA_DIR if its files are readable."""

    bootstrap_servers: str
    log_directory: Path | None
    name: str = "external"

    def log_tail(self) -> str:
        """The log of an external broker is not available."""
        return ""


class KbrokerProcess:
    """`python -m kbroker serve` as a child process.

    The data directory survives `kill` and `stop`; `start` may be called again and keeps the port. With `tier`, segments
    in the tier are below that directory, otherwise in the default directory next to the data. `checkout` is the
    directory whose packages run.
    """

    name = "kbroker"

    def __init__(
        self,
        directory: Path,
        *,
        overrides: Sequence[str] = (),
        python: str = sys.executable,
        port: int = 0,
        tier: Path | None = None,
        checkout: Path = CHECKOUT,
    ) -> None:
        self.directory = directory
        self.checkout = checkout
        self.log_directory: Path | None = directory / "data"
        self.port = port
        self.process: subprocess.Popen[bytes] | None = None
        overrides = overrides if tier is None else (f"rsm.config.dir={tier}", *overrides)
        self._overrides = [argument for override in overrides for argument in ("--override", override)]
        self._python = python
        self._log = directory / "stderr.txt"

    @property
    def bootstrap_servers(self) -> str:
        """`host:port` of the listener."""
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """The broker's process id."""
        assert self.process is not None, "not started"
        return self.process.pid

    def start(self, *, timeout_s: float = START_TIMEOUT_S) -> float:
        """Start the broker and wait for its ready line. Returns the seconds until then.

        Errors: StartFailed with the end of its log.
        """
        self.directory.mkdir(parents=True, exist_ok=True)
        command = [self._python, "-m", "kbroker", "serve"]
        if not any(override.startswith("listeners=") for override in self._overrides):
            command += ["--listen", f"127.0.0.1:{self.port}"]
        command += ["--data-dir", str(self.log_directory), *self._overrides]
        began = time.monotonic()
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, cwd=self.checkout
            )
        timer = threading.Timer(timeout_s, self.process.kill)
        timer.start()
        assert self.process.stdout is not None
        try:
            for line in self.process.stdout:
                text = line.decode(errors="replace").strip()
                if text.startswith(READY):
                    self.port = address_of(text.removeprefix(READY))[1]
                    break
            else:
                end(self.process)
                self.process.stdout.close()
                raise StartFailed(f"no line {READY!r} from {command}\n{self.log_tail()}")
        finally:
            timer.cancel()
        took = time.monotonic() - began
        # Drain further output, so that a full pipe does not block the broker.
        self._reader = threading.Thread(target=self._drain, args=(self.process.stdout,), daemon=True)
        self._reader.start()
        return took

    @staticmethod
    def _drain(stream: IO[bytes]) -> None:
        with contextlib.suppress(ValueError), stream:
            stream.read()

    def kill(self) -> None:
        """`kill -9`."""
        assert self.process is not None, "not started"
        end(self.process, signal_number=signal.SIGKILL)

    def stop(self) -> int:
        """SIGTERM: a controlled shutdown. Returns the exit status."""
        return 0 if self.process is None else end(self.process)

    def log_tail(self) -> str:
        """The end of its standard error."""
        return self._log.read_text(errors="replace")[-4000:] if self._log.exists() else ""


def in_ci() -> bool:
    """True if a missing tool is a failure and not a reason to skip."""
    return os.environ.get("CI", "").lower() in {"1", "true", "yes"}
