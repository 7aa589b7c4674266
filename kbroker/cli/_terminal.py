"""What a terminal can show besides lines: styles, a bar, and lines that are drawn again in place.

Source  ECMA-48 (SGR, CUU, ED); DECAWM, so that a long line is cut instead of wrapped while it is drawn in place
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout
from threading import RLock
from typing import Any, Final, TextIO, cast

from kbroker.runtime.clocks import RealClocks
from kbroker.runtime.visible import visible

_CODES: Final = {
    "bold": 1, "dim": 2, "italic": 3,
    "red": 31, "green": 32, "yellow": 33, "blue": 34, "magenta": 35, "cyan": 36, "bright_red": 91,
}  # fmt: skip
_BAR_WIDTH: Final = 40
_FRAME_MS: Final = 100


def painted(text: str, style: str) -> str:
    """The text in a style, which is words such as "bold red"; unchanged unless standard output is a terminal."""
    if not style or not sys.stdout.isatty() or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return text
    return f"\x1b[{';'.join(str(_CODES[word]) for word in style.split())}m{text}\x1b[0m"


def show(*parts: tuple[str, str]) -> None:
    """Print one line of texts with their styles, without blanks at the end."""
    held = list(parts)
    while held and not held[-1][0].strip():
        held.pop()
    if held:
        held[-1] = (held[-1][0].rstrip(), held[-1][1])
    print("".join(painted(visible(text), style) for text, style in held))


class InPlace:
    """Lines at the end of a terminal, drawn again in place. From any thread."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._height = 0
        self._lock = RLock()

    def draw(self, lines: Sequence[str]) -> None:
        """Replace the lines."""
        with self._lock:
            self.erase()
            self._out.write("\x1b[?7l" + "".join(f"{line}\n" for line in lines) + "\x1b[?7h")
            self._height = len(lines)
            self._out.flush()

    def erase(self) -> None:
        """Remove the lines, so that something else can be written."""
        with self._lock:
            if self._height:
                self._out.write(f"\x1b[{self._height}A\x1b[J")
                self._out.flush()
                self._height = 0


class _Above:
    """Standard output, if it is a terminal too: what is written replaces the lines, until they are drawn again."""

    def __init__(self, lines: InPlace, out: TextIO) -> None:
        self._lines, self._out = lines, out

    def write(self, text: str) -> int:
        self._lines.erase()
        return self._out.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._out, name)


class Progress:
    """A line of progress on standard error, drawn at most ten times a second."""

    def __init__(self, lines: InPlace) -> None:
        self._lines = lines
        self._clocks = RealClocks()
        self._began_ms = self._clocks.now_ms()
        self._drawn_ms = self._began_ms - _FRAME_MS

    def show(self, text: str, done: int, total: int, amount: str) -> None:
        """Draw a text, a bar, the amount that is done, and the time since the start."""
        now_ms = self._clocks.now_ms()
        if now_ms - self._drawn_ms >= _FRAME_MS:
            self._drawn_ms = now_ms
            seconds = (now_ms - self._began_ms) // 1000
            self._lines.draw([f"{text} {_bar(done, total)} {amount} {seconds // 60}:{seconds % 60:02}"])


@contextmanager
def progress() -> Iterator[Progress]:
    """A line of progress, which is erased afterwards. What is printed in between appears above it."""
    lines = InPlace(sys.stderr)
    shared = redirect_stdout(cast(TextIO, _Above(lines, sys.stdout))) if sys.stdout.isatty() else nullcontext()
    with shared:
        try:
            yield Progress(lines)
        finally:
            lines.erase()


def _bar(done: int, total: int) -> str:
    filled = _BAR_WIDTH * min(done, total) // total if total > 0 else 0
    return "━" * filled + "╺" * (_BAR_WIDTH - filled)
