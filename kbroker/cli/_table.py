"""Tables: drawn on a terminal; elsewhere lines in columns, as Kafka's tools print them."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from shutil import get_terminal_size
from typing import Final
from unicodedata import combining, east_asian_width

from kbroker.cli._terminal import painted
from kbroker.runtime.visible import visible, visible_lines

_GAP: Final = 3
_LEAST_WIDTH: Final = 4
draws = True
"""Whether tables are drawn on a terminal; the image's kafka-* tools never draw."""


def is_terminal() -> bool:
    """Whether to draw for a terminal."""
    return draws and sys.stdout.isatty()


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Draw a table, at most as wide as the terminal if its columns can be folded; numbers are right-aligned."""
    held = [list(row) for row in rows]
    cells = [[visible(str(cell)) for cell in row] for row in [columns, *held]]
    is_right = [bool(held) and all(isinstance(row[index], int) for row in held) for index in range(len(columns))]
    widths = [max(map(_cells, column)) for column in zip(*cells, strict=True)]
    while (excess := sum(widths) + _GAP * (len(widths) - 1) - get_terminal_size().columns) > 0:
        widest = max(range(len(widths)), key=widths.__getitem__)
        if widths[widest] <= _LEAST_WIDTH:
            break
        widths[widest] = max(_LEAST_WIDTH, widths[widest] - max(1, excess // 2))
    if title:
        print(painted(visible_lines(title), "italic"))
    print()
    for number, row in enumerate(cells):
        folded = [_folded(cell, width) for cell, width in zip(row, widths, strict=True)]
        for pieces in zip_longest(*folded, fillvalue=""):
            blanks = [" " * (width - _cells(piece)) for piece, width in zip(pieces, widths, strict=True)]
            parts = [
                b + piece if right else piece + b for b, piece, right in zip(blanks, pieces, is_right, strict=True)
            ]
            print(painted((" " * _GAP).join(parts).rstrip(), "" if number else "bold"))
        if number == 0:
            print("─" * (sum(widths) + _GAP * (len(widths) - 1)))


def _cells(text: str) -> int:
    """The columns that a text takes on a terminal. Source: Unicode TR 11; combining marks take none."""
    if text.isascii():
        return len(text)
    return sum(0 if combining(each) else 1 + (east_asian_width(each) in "WF") for each in text)


def _folded(text: str, width: int) -> list[str]:
    """The text in pieces that fit a width."""
    pieces, used = [""], 0
    for each in text:
        size = _cells(each)
        if used + size > width:
            pieces.append("")
            used = 0
        pieces[-1] += each
        used += size
    return pieces


def print_rows(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table on a terminal; elsewhere a heading and one line per row, with blanks between the columns."""
    held = [list(row) for row in rows]
    if is_terminal():
        print_table("", columns, held)
        return
    lines = [[visible(str(cell)) for cell in row] for row in [columns, *held]]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        print(" ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
