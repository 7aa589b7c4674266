"""Draws a scenario as SVG: time downwards, replicas as columns, offsets as rows, a colour for each leader epoch.

The picture follows the light or dark scheme of the reader's browser.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from textwrap import wrap
from typing import Any, Final

from kbroker.cli._story_cells import BOTH, GONE, LOCAL, MARKS, NEW, TIER, Cell, Column, Picture, picture

_CHARACTER: Final = 7.8
_LINE: Final = 18
_CELL: Final = 24
_COLUMN: Final = 270
_GUTTER: Final = 60
_MARGIN: Final = 24
_LEAST_COLUMNS: Final = 3
_EPOCHS: Final = 6

_STYLE: Final = """\
text { font: 13px ui-monospace, Menlo, Consolas, monospace; fill: #1f2328; white-space: pre; }
.page { fill: #ffffff; } .title { font-weight: bold; font-size: 17px; } .strong { font-weight: bold; }
.dim, .down { fill: #6e7781; } .tier { fill: #0550ae; } .line { stroke: #d0d7de; } .mark { stroke: #cf222e; }
.cell { stroke: #8c959f; } .gone { fill: none; stroke: #cf222e; stroke-dasharray: 4 3; }
.remote { fill: none; stroke: #0969da; stroke-dasharray: 2 3; } .lost { fill: #cf222e; text-decoration: line-through; }
.e0 { fill: #ddf4ff; } .e1 { fill: #fff8c5; } .e2 { fill: #fbefff; } .e3 { fill: #dafbe1; } .e4 { fill: #ffebe9; }
.e5 { fill: #fff1e5; } .new { stroke-width: 2.5; }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3; } .page { fill: #0d1117; } .dim, .down { fill: #8b949e; } .tier { fill: #79c0ff; }
.line { stroke: #30363d; } .mark { stroke: #ff7b72; } .cell { stroke: #6e7681; } .gone { stroke: #ff7b72; }
.remote { stroke: #58a6ff; } .lost { fill: #ff7b72; }
.e0 { fill: #0c2d6b; } .e1 { fill: #4b2900; } .e2 { fill: #3c1e70; } .e3 { fill: #033a16; } .e4 { fill: #67060c; }
.e5 { fill: #5a1e02; }
}
"""


def drawn(runs: Sequence[Sequence[Mapping[str, Any]]]) -> str:
    """The runs of a scenario as one picture, the first one on top."""
    steps = [line for run in runs for line in run if "step" in line]
    columns = max(_LEAST_COLUMNS, *(len(step["replicas"]) for step in steps))
    page = _Page(2 * _MARGIN + _GUTTER + columns * _COLUMN)
    for run in runs:
        _draw_run(page, run, is_first=run is runs[0], is_last=run is runs[-1])
    return page.text(runs[0][0]["title"])


def _draw_run(page: _Page, run: Sequence[Mapping[str, Any]], *, is_first: bool, is_last: bool) -> None:
    before: Mapping[str, Any] | None = None
    for line in run:
        if "step" in line:
            _draw_step(page, picture(line, before))
            before = line
        elif "lesson" not in line:
            if is_first:
                page.paragraph(line["title"], "title")
                page.paragraph(line["source"], "dim")
                page.skip()
                page.paragraph(line["opening"])
                page.skip()
                page.paragraph(
                    "Each colour is a leader epoch; epochs 0@0 1@4: epoch 1 begins at offset 4. "
                    "A red line is the high watermark that the replica knows. A thick "
                    "frame is new in this step, a dashed red one no longer there"
                    + (
                        f". {MARKS[LOCAL]} only on the local disk, {MARKS[BOTH]} on the disk "
                        f"and in the tier, {MARKS[TIER]} only in the tier."
                        if line["has_tier"]
                        else "."
                    ),
                    "dim",
                )
            if line["rule_text"]:
                page.skip()
                page.paragraph(f"{line['rule'].capitalize()} rule", "title")
                page.paragraph(line["rule_text"])
        elif is_last:
            page.skip()
            page.paragraph("What to learn from it", "strong")
            page.paragraph(line["lesson"])


def _draw_step(page: _Page, one: Picture) -> None:
    page.skip()
    page.line(_MARGIN, page.width - _MARGIN, page.y, "line")
    page.paragraph(f"{one.number}   {one.at_ms / 1000:.3f} s", "dim")
    page.paragraph(one.text, "strong")
    for note in one.notes:
        page.paragraph(note, "dim")
    top = page.y + _CELL
    headings = [column.heading_rows(int((_COLUMN - 30) / _CHARACTER)) for column in one.columns]
    for index, (column, heading) in enumerate(zip(one.columns, headings, strict=True)):
        kind = "down" if column.is_down else ""
        for row, words in enumerate(heading):
            page.words(_left(index), top + row * _LINE, words, "strong" if not row and not column.is_down else kind)
    page.y = top + max(map(len, headings), default=0) * _LINE - _LINE // 2
    for offset in one.offsets:
        page.words(_MARGIN, page.y + _LINE - 2, f"{offset:>4}", "dim")
        for index, column in enumerate(one.columns):
            _draw_cell(page, _left(index), column, offset)
        page.y += _CELL
    page.y += _LINE
    for segment in one.tier:
        page.paragraph(f"tier  {segment}", "tier")


def _draw_cell(page: _Page, left: int, column: Column, offset: int) -> None:
    cell = column.cells.get(offset)
    if cell is not None:
        page.cell(left, page.y, _COLUMN - 30, _class(cell))
        words = cell.text.replace("✓", "").rstrip()
        page.words(left + 6, page.y + _LINE - 2, words, "lost" if cell.change == GONE else "")
    if column.high_watermark == offset + 1:
        page.line(left - 6, left + _COLUMN - 24, page.y + _CELL - 1, "mark")


def _class(cell: Cell) -> str:
    if cell.change == GONE:
        return "gone"
    if cell.place == TIER:
        return "remote"
    return f"cell e{cell.epoch % _EPOCHS}" + (" new" if cell.change == NEW else "")


def _left(index: int) -> int:
    return _MARGIN + _GUTTER + index * _COLUMN


class _Page:
    """What is drawn so far. Units: pixels; y is the top of what comes next."""

    def __init__(self, width: int) -> None:
        self.width = width
        self.y = _MARGIN + _LINE
        self._parts: list[str] = []

    def skip(self) -> None:
        self.y += _LINE // 2

    def paragraph(self, text: str, kind: str = "") -> None:
        factor = 1.3 if kind == "title" else 1.0
        for row in wrap(text, int((self.width - 2 * _MARGIN) / (_CHARACTER * factor))):
            self.y += _LINE
            self.words(_MARGIN, self.y, row, kind)
        self.y += 2

    def words(self, x: int, y: int, text: str, kind: str = "") -> None:
        self._parts.append(f'<text x="{x}" y="{y}" class="{kind}">{escape(text)}</text>')

    def line(self, left: int, right: int, y: int, kind: str) -> None:
        self._parts.append(f'<line x1="{left}" x2="{right}" y1="{y}" y2="{y}" stroke-width="2" class="{kind}"/>')

    def cell(self, x: int, y: int, width: int, kind: str) -> None:
        self._parts.append(
            f'<rect x="{x}" y="{y + 2}" width="{width}" height="{_CELL - 5}" rx="3" stroke-width="1" class="{kind}"/>'
        )

    def text(self, title: str) -> str:
        height = self.y + _MARGIN
        box = f"0 0 {self.width} {height}"
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" width="{self.width}" height="{height}" viewBox="{box}">',
                f"<title>{escape(title)}</title>",
                f"<style>{_STYLE}</style>",
                f'<rect class="page" width="{self.width}" height="{height}"/>',
                *self._parts,
                "</svg>\n",
            ]
        )
