"""Tables: drawn on a terminal; elsewhere lines in columns, as Kafka's tools print them."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

from kbroker.runtime.visible import visible, visible_lines

draws = True
"""Whether tables are drawn on a terminal; the image's kafka-* tools never draw."""


def is_terminal() -> bool:
    """Whether to draw for a terminal."""
    return draws and sys.stdout.isatty()


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Draw a table, at most as wide as the terminal; numbers are right-aligned."""
    from rich.box import SIMPLE_HEAD  # noqa: PLC0415  (slow import)
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    heading = Text(visible_lines(title)) if title else None
    table = Table(title=heading, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    held = [list(row) for row in rows]
    for index, column in enumerate(columns):
        is_numeric = bool(held) and all(isinstance(row[index], int) for row in held)
        table.add_column(column, justify="right" if is_numeric else "left", overflow="fold")
    for row in held:
        table.add_row(*(Text(visible(str(cell))) for cell in row))
    Console(file=sys.stdout).print(table)


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
