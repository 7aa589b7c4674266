"""The log events of simulated nodes: who logged what, and when in virtual time."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final

import trio

from kbroker.runtime.event_log import ROOT_NAME, fields_of

NO_NODE: Final = -1
_node: ContextVar[int] = ContextVar("node", default=NO_NODE)


@contextmanager
def running_as(node_id: int) -> Iterator[None]:
    """Events of this task and of its children belong to a node."""
    token = _node.set(node_id)
    try:
        yield
    finally:
        _node.reset(token)


@dataclass(frozen=True, slots=True)
class EventLine:
    """One event.

    Units  at is seconds of virtual time
    """

    at: float
    node: int
    level: str
    event: str
    fields: dict[str, Any]

    def __str__(self) -> str:
        words = " ".join(f"{key}={value}" for key, value in self.fields.items())
        return f"{self.at:9.4f} node {self.node} {self.level} {self.event} {words}".rstrip()


class EventLines(logging.Handler):
    """Keeps the events of all nodes while it is `recording`, and passes each one to `listener`."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[EventLine] = []
        self.listener: Callable[[EventLine], object] = lambda _: None

    def emit(self, record: logging.LogRecord) -> None:
        """Called by `logging`."""
        line = EventLine(
            trio.current_time(), _node.get(), record.levelname, record.getMessage(), dict(fields_of(record))
        )
        if record.exc_info:
            line.fields["traceback"] = logging.Formatter().formatException(record.exc_info)
        self.lines.append(line)
        self.listener(line)

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Take the place of the other handlers of kbroker's log."""
        root = logging.getLogger(ROOT_NAME)
        before, level, propagates = root.handlers[:], root.level, root.propagate
        root.handlers[:], root.propagate = [self], False
        root.setLevel(logging.INFO)
        try:
            yield
        finally:
            root.handlers[:], root.propagate = before, propagates
            root.setLevel(level)
