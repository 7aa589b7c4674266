"""Structured log events: a short message that never varies, and fields that do.

    log = logger(__name__)
    log.info("topic created", topic=name, partitions=6)

On a terminal that is `12:30:01.204 INFO  topic created topic=orders partitions=6`; with JSON, one object a line. Much
of what is logged was sent by clients, so every value is escaped in both forms: no client can begin a line, move a
cursor or fill a disk (values are cut). Events go through the standard library's `logging`, under the logger of the
module, so levels and handlers work as everywhere.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping
from typing import Any, Final, TextIO

from kbroker.runtime.visible import visible

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
"""Kafka's names of levels. There is nothing finer than DEBUG here."""

_LEVEL_NAMES: Final = {number: name for name, number in LEVELS.items()}
_MAX_VALUE_LENGTH = 500
_FIELDS = "kbroker_fields"


class Log:
    """The events of one module."""

    __slots__ = ("_logger",)

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(name)

    def debug(self, event: str, **fields: object) -> None:
        """Of use only to who looks for a fault."""
        self._write(logging.DEBUG, event, fields)

    def info(self, event: str, **fields: object) -> None:
        """Something that is as it should be, and rare."""
        self._write(logging.INFO, event, fields)

    def warning(self, event: str, **fields: object) -> None:
        """Something that an operator may want to change."""
        self._write(logging.WARNING, event, fields)

    def error(self, event: str, **fields: object) -> None:
        """Something that an operator has to look at."""
        self._write(logging.ERROR, event, fields)

    def exception(self, event: str, **fields: object) -> None:
        """An error, with the traceback of the exception that is being handled."""
        self._write(logging.ERROR, event, fields, traceback=True)

    def _write(self, level: int, event: str, fields: dict[str, object], *, traceback: bool = False) -> None:
        if self._logger.isEnabledFor(level):
            self._logger.log(level, "%s", event, extra={_FIELDS: fields}, exc_info=traceback)


def logger(name: str) -> Log:
    """The log of the module called `name`."""
    return Log(name)


def configure(*, as_json: bool = False, level: str = "INFO", stream: TextIO | None = None) -> None:
    """Write the events of kbroker to `stream` (by default the standard error), in place of any handler set before."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if as_json else TerminalFormatter())
    root = logging.getLogger(ROOT_NAME)
    root.handlers[:] = [handler]
    root.setLevel(level)
    root.propagate = False


def levels() -> dict[str, str]:
    """The loggers of this process by name, with the level at which each writes; the one above all is ROOT."""
    names = [ROOT_NAME, *(name for name in logging.root.manager.loggerDict if name.startswith(f"{ROOT_NAME}."))]
    return {
        _shown(name): _LEVEL_NAMES.get(logging.getLogger(name).getEffectiveLevel(), "DEBUG") for name in sorted(names)
    }


def set_level(name: str, level: str | None) -> None:
    """Have a logger that `levels` names, and those below it, write from this level on; None is as the one above it.

    It holds until the process ends.
    Errors  KeyError for a level that is not in LEVELS
    """
    logging.getLogger(ROOT_NAME if name == ROOT else name).setLevel(logging.NOTSET if level is None else LEVELS[level])


def _shown(name: str) -> str:
    return ROOT if name == ROOT_NAME else name


def escape(value: object) -> str:
    """`value` as one word of printable ASCII: bare if it is one already, else quoted and escaped as in JSON."""
    text = _cut(value)
    if text and text.isascii() and text.isprintable() and not any(character in text for character in ' "=\\'):
        return text
    return json.dumps(text).replace("\x7f", "\\u007f")


def _cut(value: object) -> str:
    text = str(value)
    return text if len(text) <= _MAX_VALUE_LENGTH else text[:_MAX_VALUE_LENGTH] + "..."


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    fields: dict[str, Any] = getattr(record, _FIELDS, {})
    return fields


class TerminalFormatter(logging.Formatter):
    """Time, level, event, then key=value; a traceback on lines of its own."""

    default_msec_format = "%s.%03d"

    def __init__(self) -> None:
        super().__init__(datefmt="%H:%M:%S")

    def format(self, record: logging.LogRecord) -> str:
        """One event as text."""
        time = f"{self.formatTime(record, self.datefmt)}.{int(record.msecs):03d}"
        words = [f"{time} {record.levelname:<5} {visible(record.getMessage())}"]
        words += [f"{key}={escape(value)}" for key, value in _fields(record).items()]
        line = " ".join(words)
        return f"{line}\n{_escaped_lines(self.formatException(record.exc_info))}" if record.exc_info else line


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time (seconds since the epoch), level, module, event, the fields, perhaps a traceback."""

    def format(self, record: logging.LogRecord) -> str:
        """One event as JSON."""
        event: dict[str, object] = {
            "time": round(record.created, 6),
            "level": record.levelname,
            "module": record.name,
            "event": record.getMessage(),
        }
        event |= {key: _json_value(value) for key, value in _fields(record).items()}
        if record.exc_info:
            event["traceback"] = self.formatException(record.exc_info)
        return json.dumps(event).replace("\x7f", "\\u007f")


def _json_value(value: object) -> object:
    return value if value is None or isinstance(value, bool | int | float) else _cut(value)


def _escaped_lines(text: str) -> str:
    """Each line of a traceback, indented and without anything that a terminal obeys."""
    return "\n".join(
        "    " + line.encode("unicode_escape", "backslashreplace").decode("ascii") for line in text.splitlines()
    )
