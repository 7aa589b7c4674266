"""Tells a scenario in the terminal: time downwards, replicas as columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import zip_longest
from shutil import get_terminal_size
from textwrap import wrap
from typing import Any, Final

from kbroker.cli._story_cells import BOTH, GONE, LOCAL, MARKS, NEW, TIER, Cell, Column, Picture, picture
from kbroker.cli._terminal import show

MOST_COLUMNS: Final = 120
_GUTTER: Final = 6
_WIDEST: Final = 36
_EPOCH_STYLES: Final = ("cyan", "yellow", "magenta", "blue", "green", "bright_red")


class Teller:
    """Prints runs of a scenario as they come: the opening before the first one, the lesson after the last."""

    def __init__(self) -> None:
        self._width = min(get_terminal_size().columns, MOST_COLUMNS)
        self._has_begun = False

    def tell(self, lines: Iterable[Mapping[str, Any]], *, is_last: bool) -> None:
        """Print the lines of a run."""
        before: Mapping[str, Any] | None = None
        for line in lines:
            if "step" in line:
                self._step(picture(line, before))
                before = line
            elif "lesson" not in line:
                self._beginning(line)
            elif is_last:
                self._say()
                self._say("What to learn from it", "bold")
                self._say(line["lesson"])

    def _say(self, text: str = "", style: str = "", indent: str = "") -> None:
        """Print a paragraph."""
        for row in wrap(text, self._width, initial_indent=indent, subsequent_indent=indent) or [""]:
            show((row, style))

    def _beginning(self, line: Mapping[str, Any]) -> None:
        if not self._has_begun:
            self._has_begun = True
            self._say(line["title"], "bold")
            self._say(line["source"], "dim")
            self._say()
            self._say(line["opening"])
            self._say()
            self._say("e0  record of leader epoch 0   ✓  below the replica's high watermark (HW)", "dim")
            self._say("+   new in this step           ✗  no longer there", "dim")
            self._say("epochs 0@0 1@4  leader epoch 0 begins at offset 0, epoch 1 at offset 4", "dim")
            if line["has_tier"]:
                self._say(
                    f"{MARKS[LOCAL]} only on the local disk   {MARKS[BOTH]} on the disk and in the tier   "
                    f"{MARKS[TIER]} only in the tier",
                    "dim",
                )
        if line["rule_text"]:
            self._say()
            self._rule(f"{line['rule']} rule", "═", "bold")
            self._say(line["rule_text"])

    def _rule(self, title: str, line: str, style: str) -> None:
        show((f"{title} ".ljust(self._width, line), style))

    def _step(self, one: Picture) -> None:
        self._say()
        self._rule(f"{one.number}   {one.at_ms / 1000:.3f} s", "─", "dim")
        self._say(one.text, "bold")
        for note in one.notes:
            self._say(note, "italic", "  ")
        self._say()
        width = min(_WIDEST, (self._width - _GUTTER) // max(1, len(one.columns)))
        headings = [column.heading_rows(width - 1) for column in one.columns]
        for row, words in enumerate(zip_longest(*headings, fillvalue="")):
            parts = zip(one.columns, words, strict=True)
            show((" " * _GUTTER, ""), *((_fitted(part, width), _heading_style(column, row)) for column, part in parts))
        for offset in one.offsets:
            line = [(f"{offset:>{_GUTTER - 2}}  ", "dim")]
            for column in one.columns:
                cell = column.cells.get(offset)
                line.append((_fitted(cell.text if cell else "", width), _style(cell, column)))
            show(*line)
        for number, segment in enumerate(one.tier):
            self._say(f"{'' if number else 'tier':<{_GUTTER}}{segment}", "cyan")


def _fitted(text: str, width: int) -> str:
    """A text in a column, with a blank behind it."""
    return (text if len(text) < width else f"{text[: width - 2]}…").ljust(width)


def _heading_style(column: Column, row: int) -> str:
    if column.is_down:
        return "red" if row == 0 else "dim"
    return ("bold green" if column.is_leader else "bold") if row == 0 else ""


def _style(cell: Cell | None, column: Column) -> str:
    if cell is None:
        return ""
    if cell.change == GONE:
        return "red"
    style = "cyan dim" if cell.place == TIER else _EPOCH_STYLES[cell.epoch % len(_EPOCH_STYLES)]
    if cell.change == NEW:
        return f"bold {style}"
    return f"{style} dim" if column.is_down else style
