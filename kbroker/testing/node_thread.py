"""A node in a thread of this process."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from threading import Event, Thread
from typing import Any, Final

import trio

from kbroker.config import Settings
from kbroker.handlers import discover
from kbroker.node import Node
from kbroker.runtime.event_log import ROOT_NAME, TerminalFormatter
from kbroker.testing.control import Command, perform
from kbroker.testing.node_child import load
from kbroker.testing.node_clock import ClockedEnv, NodeClock
from kbroker.testing.node_process import one_broker
from kbroker.testing.rules import RuleBook, applied
from kbroker.testing.servers import START_S, STOP_S, pages_address

_LEVELS: Final = logging.getLevelNamesMapping()


class NodeThread:
    """A running node; its log goes to a file. Errors: RuntimeError from the constructor."""

    def __init__(self, settings: Settings, log: Path, *, log_level: str) -> None:
        self.log = log
        self.address = ""
        self._clock, self._book = NodeClock(), RuleBook()
        self._node = Node(ClockedEnv(self._clock), settings, handlers=applied(self._book, discover()))
        self._failure: Exception | None = None
        self._ready = Event()
        self._token: trio.lowlevel.TrioToken | None = None
        self._handler = logging.FileHandler(log)
        self._handler.setFormatter(TerminalFormatter())
        self._logger = logging.getLogger(ROOT_NAME)
        self._level_before = self._logger.level
        self._logger.addHandler(self._handler)
        self._logger.setLevel(_LEVELS[log_level.upper()])
        self._thread = Thread(target=self._run, name="kbroker", daemon=True)
        self._thread.start()
        self._ready.wait(START_S)
        self.http = pages_address(log)
        if not self.address:
            self.stop()
            raise RuntimeError(f"the broker did not start: {self._failure or 'it is not ready yet'}")

    def _run(self) -> None:
        try:
            trio.run(self._serve, clock=self._clock)
        except Exception as failure:  # noqa: BLE001  (the constructor or `stop` raises it in the test's thread)
            self._failure = failure
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        await self._node.run(on_ready=self._on_ready)

    def _on_ready(self, host: str, port: int) -> None:
        self.address = f"{host}:{port}"
        self._ready.set()

    @property
    def is_running(self) -> bool:
        """Whether the node has not ended."""
        return self._thread.is_alive()

    def control(self, command: Command) -> dict[str, Any]:
        """Tell the broker a command; see kbroker.testing.control."""
        assert self._token is not None, "the constructor waits until it is ready"
        done = Event()
        answers: list[dict[str, Any]] = []

        def carry_out() -> None:
            answers.append(perform(command, self._book, self._clock))
            done.set()

        self._token.run_sync_soon(carry_out)
        if not done.wait(STOP_S):
            raise RuntimeError("the broker does not run")
        return answers[0]

    def stop(self) -> None:
        """End the node in order. Errors: what has ended it before."""
        if self._token is not None and self._thread.is_alive():
            self._token.run_sync_soon(self._node.stop)
        self._thread.join(STOP_S)
        self._logger.removeHandler(self._handler)
        self._logger.setLevel(self._level_before)
        self._handler.close()
        if self._failure is not None and self.address:
            raise self._failure


def start_thread(settings: Mapping[str, str], directory: Path, *, port: int, log_level: str) -> list[NodeThread]:
    """One broker with its own controller. Errors: RuntimeError, ConfigError."""
    directory.mkdir(parents=True, exist_ok=True)
    loaded = load(one_broker(settings, directory, port=port))
    return [NodeThread(loaded, directory / "broker-1.log", log_level=log_level)]
