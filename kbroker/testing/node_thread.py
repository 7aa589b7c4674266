"""A node in a thread of this process."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextvars import ContextVar
from pathlib import Path
from threading import Event, Thread
from typing import Any, ClassVar, Final

import trio

from kbroker.config import Settings
from kbroker.handlers import discover
from kbroker.node import Node
from kbroker.runtime.event_log import ROOT_NAME, TerminalFormatter
from kbroker.testing.control import Command
from kbroker.testing.node_child import load
from kbroker.testing.node_clock import ClockedEnv, NodeClock
from kbroker.testing.node_process import one_broker
from kbroker.testing.rules import RuleBook, applied, perform
from kbroker.testing.starting import START_S, STOP_S, Running

_LEVELS: Final = logging.getLevelNamesMapping()
_NODE: ContextVar[Path | None] = ContextVar("kbroker_node", default=None)
"""The log of the node that runs in this context; trio's worker threads inherit it."""


class _Log(logging.FileHandler):
    """The log of one of the nodes in this process. Lines of unknown origin are in each of them."""

    _running: ClassVar[list[_Log]] = []
    _level_before: ClassVar[int] = logging.NOTSET

    def __init__(self, path: Path, level: int) -> None:
        super().__init__(path)
        self.path = path
        self.setFormatter(TerminalFormatter())
        self.setLevel(level)
        logger = logging.getLogger(ROOT_NAME)
        if not self._running:
            _Log._level_before = logger.level
        self._running.append(self)
        logger.addHandler(self)
        self._set_level()

    def filter(self, record: logging.LogRecord) -> bool:
        return _NODE.get() in (None, self.path) and bool(super().filter(record))

    def close(self) -> None:
        if self in self._running:
            self._running.remove(self)
            logging.getLogger(ROOT_NAME).removeHandler(self)
            self._set_level()
        super().close()

    def _set_level(self) -> None:
        """Let the logger pass what the most verbose node wants."""
        levels = [each.level for each in self._running]
        logging.getLogger(ROOT_NAME).setLevel(min(levels, default=self._level_before))


class NodeThread(Running):
    """A running node; its log goes to a file."""

    def __init__(self, settings: Settings, log: Path, *, log_level: str) -> None:
        self.log = log
        self.address = ""
        self._clock, self._book = NodeClock(), RuleBook()
        handlers = applied(self._book, discover())
        self._node = Node(ClockedEnv(self._clock), settings, handlers=handlers, pages_on_demand=True)
        self._failure: Exception | None = None
        self._ready = Event()
        self._token: trio.lowlevel.TrioToken | None = None
        self.http: str | None = None
        self._log = _Log(log, _LEVELS[log_level.upper()])
        self._thread = Thread(target=self._run, name="kbroker", daemon=True)
        self._thread.start()

    def await_ready(self) -> None:
        """Wait until it accepts connections. Errors: RuntimeError."""
        self._ready.wait(START_S)
        self.http = self._node.pages_address
        if not self.address:
            self.stop()
            raise RuntimeError(f"the broker did not start: {self._failure or 'it is not ready yet'}")

    def _run(self) -> None:
        _NODE.set(self.log)
        try:
            trio.run(self._serve, clock=self._clock)
        except Exception as failure:  # noqa: BLE001  (`await_ready` or `stop` raises it in the test's thread)
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
        assert self._token is not None, "`await_ready` has waited for it"
        done = Event()
        answers: list[dict[str, Any]] = []

        async def carry_out() -> None:
            answers.append(await perform(command, self._book, self._clock, self._node))
            done.set()

        self._token.run_sync_soon(trio.lowlevel.spawn_system_task, carry_out)
        if not done.wait(STOP_S):
            raise RuntimeError("the broker does not run")
        return answers[0]

    def stop(self) -> None:
        """End the node in order. Errors: what has ended it before."""
        if self._token is not None and self._thread.is_alive():
            self._token.run_sync_soon(self._node.stop)
        self._thread.join(STOP_S)
        self._log.close()
        if self._failure is not None and self.address:
            raise self._failure


def start_thread(settings: Mapping[str, str], directory: Path, *, port: int, log_level: str) -> list[NodeThread]:
    """One broker with its own controller. Errors: ConfigError."""
    directory.mkdir(parents=True, exist_ok=True)
    loaded = load(one_broker(settings, directory, port=port))
    return [NodeThread(loaded, directory / "broker-1.log", log_level=log_level)]
