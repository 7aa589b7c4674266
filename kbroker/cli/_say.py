"""Printing for people.

Names, ids, metadata and error messages come from clients and brokers, so `say` and the tables escape control
characters. The contents of records stay as they are, except on a terminal.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import BinaryIO, TextIO, cast

from kbroker.runtime.visible import visible, visible_json, visible_lines


def say(text: object = "", *, file: TextIO | None = None) -> None:
    """Print one line."""
    print(visible(str(text)), file=file)


def say_json(value: object) -> None:
    """Print one line of JSON."""
    say(json.dumps(value))


def note(text: str) -> None:
    """Print one line on standard error: a warning or a summary. It appears after everything that was printed before."""
    sys.stdout.flush()
    say(text, file=sys.stderr)


def visible_writer(out: TextIO, escape: Callable[[str], str]) -> Callable[[str], object]:
    """The write method of a text file for the contents of records, escaped if it is a terminal."""
    return (lambda text: out.write(escape(text))) if out.isatty() else out.write


def records_out(*, is_json: bool) -> BinaryIO:
    """The output for the contents of records: standard output, escaped if it is a terminal."""
    if not sys.stdout.isatty():
        return sys.stdout.buffer
    return cast(BinaryIO, _VisibleOutput(sys.stdout.buffer, visible_json if is_json else visible_lines))


class _VisibleOutput:
    def __init__(self, out: BinaryIO, escape: Callable[[str], str]) -> None:
        self._out, self._escape = out, escape
        self.flush = out.flush

    def write(self, data: bytes) -> int:
        self._out.write(self._escape(data.decode(errors="backslashreplace")).encode())
        return len(data)
