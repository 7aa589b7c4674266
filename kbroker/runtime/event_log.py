"""Structured log events: a constant short message, and variable fields.

    logger = get_logger(__name__)
    logger.info("topic created", topic=name, partitions=6)

As text this is `2026-11-27 12:30:01.204 INFO  topic created topic=orders partitions=6`; as JSON, one object per line.
Many logged values come from clients, so both formats escape and truncate every value: a client cannot start a new line,
move the cursor or fill the disk. Events go through the standard library's `logging`, under the module's logger, so
levels and handlers work as usual.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping
from textwrap import indent
from typing import Any, Final, TextIO

from kbroker.runtime.visible import visible, visible_lines

ROOT: Final = "root"
ROOT_NAME: Final = "kbroker"
LEVELS: Final[Mapping[str, int]] = {
    "TRACE": logging.DEBUG,
    "DEBUG": logging.DEBUG,
    "INFO": logging.INFO,
    "WARN": logging.WARNING,
    "ERROR": logging.ERROR,
    "FATAL": logging.CRITICAL,
}
"""Kafka's level names -> levels of `logging`. No event is finer than DEBUG."""

_LEVEL_NAMES: Final = {number: name for name, number in LEVELS.items()}
_MAX_VALUE_LENGTH = 500
_FIELDS = "kbroker_fields"


class Logger:
    """Writes the events of one module."""

    __slots__ = ("_logger",)

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(name)

    def debug(self, event: str, **fields: object) -> None:
        """An event for debugging only."""
        self._write(logging.DEBUG, event, fields)

    def info(self, event: str, **fields: object) -> None:
        """A normal and rare event."""
        self._write(logging.INFO, event, fields)

    def warning(self, event: str, **fields: object) -> None:
        """An event on which an operator may want to act."""
        self._write(logging.WARNING, event, fields)

    def error(self, event: str, **fields: object) -> None:
        """An event that an operator must investigate."""
        self._write(logging.ERROR, event, fields)

    def exception(self, event: str, **fields: object) -> None:
        """An error, with the traceback of the current exception."""
        self._write(logging.ERROR, event, fields, traceback=True)

    def _write(self, level: int, event: str, fields: dict[str, object], *, traceback: bool = False) -> None:
        if self._logger.isEnabledFor(level):
            self._logger.log(level, "%s", event, extra={_FIELDS: fields}, exc_info=traceback)


def get_logger(name: str) -> Logger:
    """The log of the module called `name`."""
    return Logger(name)


def configure(*, as_json: bool = False, level: str = "INFO", stream: TextIO | None = None) -> None:
    """Write the events of kbroker to `stream` (default: standard error); replaces earlier handlers."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if as_json else TerminalFormatter())
    root = logging.getLogger(ROOT_NAME)
    root.handlers[:] = [handler]
    root.setLevel(level)
    root.propagate = False


def levels() -> dict[str, str]:
    """Logger name -> effective level, for all loggers of this process; the root logger is called ROOT."""
    names = [ROOT_NAME, *(name for name in logging.root.manager.loggerDict if name.startswith(f"{ROOT_NAME}."))]
    return {
        _shown(name): _LEVEL_NAMES.get(logging.getLogger(name).getEffectiveLevel(), "DEBUG") for name in sorted(names)
    }


def set_level(name: str, level: str | None) -> None:
    """Set the level of a logger in `levels` and of its children; None inherits the parent's level.

    The level is lost when the process ends.
    Errors  KeyError for a level that is not in LEVELS
    """
    logging.getLogger(ROOT_NAME if name == ROOT else name).setLevel(logging.NOTSET if level is None else LEVELS[level])


def _shown(name: str) -> str:
    return ROOT if name == ROOT_NAME else name


def escape(value: object) -> str:
    """`value` as one word of printable ASCII; if it is not one already, quoted and escaped as in JSON."""
    text = _cut(value)
    if text and text.isascii() and text.isprintable() and not any(character in text for character in ' "=\\'):
        return text
    return json.dumps(text).replace("\x7f", "\\u007f")


def _cut(value: object) -> str:
    text = str(value)
    return text if len(text) <= _MAX_VALUE_LENGTH else text[:_MAX_VALUE_LENGTH] + "..."


def fields_of(record: logging.LogRecord) -> dict[str, Any]:
    """The variable fields of an event."""
    fields: dict[str, Any] = getattr(record, _FIELDS, {})
    return fields


class TerminalFormatter(logging.Formatter):
    """Local date and time, level, event, then key=value; a traceback follows on separate lines."""

    default_time_format = "%Y-%m-%d %H:%M:%S"
    default_msec_format = "%s.%03d"

    def format(self, record: logging.LogRecord) -> str:
        """One event as text."""
        words = [f"{self.formatTime(record)} {record.levelname:<5} {visible(record.getMessage())}"]
        words += [f"{key}={escape(value)}" for key, value in fields_of(record).items()]
        line = " ".join(words)
        if not record.exc_info:
            return line
        return f"{line}\n{indent(visible_lines(self.formatException(record.exc_info)), '    ')}"


class JsonFormatter(logging.Formatter):
    """One JSON object per line: time (seconds since the epoch), level, module, event, fields, optional traceback."""

    def format(self, record: logging.LogRecord) -> str:
        """One event as JSON."""
        event: dict[str, object] = {
            "time": round(record.created, 6),
            "level": record.levelname,
            "module": record.name,
            "event": record.getMessage(),
        }
        event |= {key: _json_value(value) for key, value in fields_of(record).items()}
        if record.exc_info:
            event["traceback"] = self.formatException(record.exc_info)
        return json.dumps(event).replace("\x7f", "\\u007f")


def _json_value(value: object) -> object:
    return value if value is None or isinstance(value, bool | int | float) else _cut(value)
