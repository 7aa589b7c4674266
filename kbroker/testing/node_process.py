"""Nodes in processes of their own, which end with the process of the test."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from select import select
from threading import Lock
from typing import TYPE_CHECKING, Any, Final

from kbroker.runtime.clocks import RealClocks
from kbroker.runtime.free_ports import free_ports
from kbroker.testing.starting import LOCALHOST, START_S, STOP_S, Running

if TYPE_CHECKING:
    from kbroker.testing.control import Command

_LAST_LINES: Final = 3
_CHUNK_BYTES: Final = 1 << 16
_ANSWER_S: Final = 30


class NodeProcess(Running):
    """A process of `kbroker.testing.node_child`.

    Shape  name is that of its log file; address is host:port, empty until `await_ready`, and for a controller
    """

    def __init__(self, name: str, directory: Path, asked: Mapping[str, Any], *, is_broker: bool = True) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.name = name
        self.log = directory / f"{name}.log"
        self.address = ""
        self.http: str | None = None
        self._asked = dict(asked)
        self._is_broker = is_broker
        self._lock = Lock()  # of `control`
        self._begin()

    def _begin(self) -> None:
        # -P: a folder of the project under test must not hide a package.
        command = [sys.executable, "-P", "-m", "kbroker.testing.node_start", json.dumps(self._asked)]
        with self.log.open("ab") as errors:
            # A process group of its own, so that Ctrl-C reaches only the test, which then stops its brokers in order.
            self._process = subprocess.Popen(  # noqa: S603  (this program itself)
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, process_group=0
            )
        self._received = b""
        self._commands = 0
        self._is_paused = False

    @property
    def pid(self) -> int:
        """The id of the process."""
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether the process has not ended."""
        return self._process.poll() is None

    def await_ready(self) -> None:
        """Wait until it accepts connections. Errors: RuntimeError with the end of its log."""
        answer = self._answer(0, START_S)
        if answer is None:
            self.kill()
            words = "; ".join(self.log.read_text(errors="replace").splitlines()[-_LAST_LINES:])
            raise RuntimeError(f"{self.name} did not start: {words or 'it is not ready yet'}")
        self.address = answer["address"] if self._is_broker else ""
        self.http = answer["http"]

    def control(self, command: Command) -> dict[str, Any]:
        """Tell the broker a command; see kbroker.testing.control. Errors: RuntimeError if it does not answer."""
        if self._is_paused:
            raise RuntimeError(f"{self.name} is paused")
        assert self._process.stdin is not None
        answer = None
        # The broker has ended, or `kill` has closed the pipe.
        with self._lock, suppress(BrokenPipeError, ValueError):
            self._commands += 1
            self._process.stdin.write(json.dumps({**command, "number": self._commands}).encode() + b"\n")
            self._process.stdin.flush()
            answer = self._answer(self._commands, _ANSWER_S)
        if answer is None:
            raise RuntimeError(f"{self.name} {'does not answer' if self.is_running else 'does not run'}")
        return answer

    def _answer(self, number: int, seconds: int) -> dict[str, Any] | None:
        """The answer with this number, 0 for the first line; None if the process ends, or after that time."""
        output = self._process.stdout
        assert output is not None
        clocks = RealClocks()
        deadline_ms = clocks.now_ms() + seconds * 1000
        while True:
            line, ended, rest = self._received.partition(b"\n")
            if ended:
                self._received = rest
                answer: dict[str, Any] = json.loads(line)
                if answer.get("number", 0) == number:
                    return answer
            elif not select([output], [], [], max(0, deadline_ms - clocks.now_ms()) / 1000)[0]:
                return None
            elif chunk := os.read(output.fileno(), _CHUNK_BYTES):
                self._received += chunk
            else:
                return None

    def restart(self) -> None:
        """Start it again after `stop` or `kill`, at the same address, with the same directory. Rules are gone."""
        self._close()
        before = self.address
        if before and "defaults" in self._asked:
            self._asked["defaults"] = {**self._asked["defaults"], "listeners": f"PLAINTEXT://{before}"}
        self._begin()
        self.await_ready()
        self.address = before

    def pause(self) -> None:
        """Freeze the process until `resume`."""
        self._is_paused = True
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """End `pause`."""
        self._is_paused = False
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """End it at once, as `kill -9`."""
        self._process.kill()
        self._process.wait()
        self._close()

    def stop(self) -> None:
        """End it in order."""
        if self.is_running:
            self._process.terminate()
            self.resume()
            try:
                self._process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._close()

    def _close(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()


def start_process(settings: Mapping[str, str], directory: Path, *, port: int, log_level: str) -> list[NodeProcess]:
    """One broker with its own controller."""
    return [NodeProcess("broker-1", directory, one_broker(settings, directory, port=port) | {"log_level": log_level})]


def one_broker(settings: Mapping[str, str], directory: Path, *, port: int) -> dict[str, Any]:
    """The settings of a broker that is its own controller, for `node_child.load`."""
    defaults = {
        "log.dirs": str(directory / "data"),
        "listeners": f"PLAINTEXT://{LOCALHOST}:{port}",
        "kbroker.http.listener": f"{LOCALHOST}:0",
    }
    return {"settings": dict(settings), "defaults": defaults, "profile": "test"}


def start_cluster(count: int, settings: Mapping[str, str], directory: Path, *, log_level: str) -> list[NodeProcess]:
    """Brokers and, at the end, their controller."""
    from kbroker.cli.cluster import node_settings  # noqa: PLC0415  (slow import)

    nodes: list[NodeProcess] = []
    directory.mkdir(parents=True, exist_ok=True)
    try:
        for name, values in node_settings(directory, count, host=LOCALHOST, ports=free_ports(count + 1)).items():
            chosen = {"group.initial.rebalance.delay.ms": "0", **values, **settings}
            is_broker = name != "controller"
            if is_broker:
                chosen["kbroker.http.listener"] = f"{LOCALHOST}:0"
            file = directory / f"{name}.properties"
            file.write_text("".join(f"{key}={value}\n" for key, value in chosen.items()))
            asked = {"file": str(file), "settings": {}, "log_level": log_level}
            nodes.append(NodeProcess(name, directory, asked, is_broker=is_broker))
    except BaseException:
        for node in nodes:
            node.kill()
        raise
    controller, *brokers = nodes
    return [*brokers, controller]
