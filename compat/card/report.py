"""The report: a table for a terminal, JSON, JUnit XML, and one HTML page without outside assets."""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Final
from xml.etree import ElementTree as Xml

from compat.card.runner import ACCEPTED, DIFFERS, EQUAL, NOT_OFFERED, NOT_RUN, Card, Result
from kbroker.runtime.visible import visible

KAFKA: Final = "Apache Kafka 4.3.1"
STATUSES: Final = (EQUAL, DIFFERS, ACCEPTED, NOT_OFFERED, NOT_RUN)
_SIGNS: Final = {EQUAL: "=", DIFFERS: "x", ACCEPTED: "~", NOT_OFFERED: "-", NOT_RUN: "?"}


def areas(card: Card) -> list[str]:
    """The areas of the card, in their order."""
    return [area for area, _ in groupby(each.row.area for each in card.results)]


def summary(card: Card) -> str:
    """One line: how many rows have which status."""
    counts = [f"{card.count(status)} {status}" for status in STATUSES if card.count(status)]
    return f"{len(card.results)} rows: {', '.join(counts)}; {card.seconds:.1f} s"


def table(card: Card) -> str:
    """The table by area, then each row that is not equal, with what differs."""
    head = ["area", *STATUSES]
    body = [[area, *(str(card.count(status, area) or "") for status in STATUSES)] for area in areas(card)]
    body.append(["all", *(str(card.count(status)) for status in STATUSES)])
    widths = [max(len(line[index]) for line in [head, *body]) for index in range(len(head))]
    lines = [f"{card.place} compared with {KAFKA}", ""]
    for line in [head, *body]:
        cells = [
            line[0].ljust(widths[0]),
            *(cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True)),
        ]
        lines.append("  ".join(cells).rstrip())
    for status in (DIFFERS, NOT_RUN, ACCEPTED, NOT_OFFERED):
        lines += _section(status, [each for each in card.results if each.status == status])
    lines += ["", summary(card)]
    if card.gone:
        lines.append(f"INCOMPLETE: {card.gone}")
    lines += [f"not removed: {each}" for each in card.left]
    return "\n".join(visible(line) for line in lines)


def _section(status: str, results: list[Result]) -> Iterator[str]:
    if not results:
        return
    yield ""
    yield f"{status}:"
    # Rows that lack the same thing, or were not run for the same reason, are listed together.
    if status in (NOT_OFFERED, NOT_RUN):
        for text in dict.fromkeys(each.text for each in results):
            yield f"  {text}"
            yield from (f"    {_SIGNS[status]} {each.row.id}" for each in results if each.text == text)
        return
    for each in results:
        yield f"  {_SIGNS[status]} {each.row.id}"
        yield from (f"      {line}" for line in each.lines())


def as_json(card: Card) -> str:
    """Every row with its status, and what it noted."""
    rows = [
        {
            "area": each.row.area,
            "name": each.row.name,
            "status": each.status,
            "seconds": round(each.seconds, 3),
            "text": each.text,
            "differences": [
                {"where": where, "kafka": theirs, "broker": ours} for where, theirs, ours in each.differences
            ],
            "notes": each.notes,
        }
        for each in card.results
    ]
    counts = {status: card.count(status) for status in STATUSES}
    whole = {
        "broker": card.place, "compared_with": KAFKA, "is_equal": card.is_equal, "seconds": round(card.seconds, 1),
        "counts": counts, "incomplete": card.gone, "not_removed": list(card.left), "rows": rows,
    }  # fmt: skip
    return json.dumps(whole, indent=1)


def as_junit(card: Card) -> str:
    """JUnit XML: a test suite for each area; rows that differ are failures, rows that are not offered are skipped."""
    root = Xml.Element("testsuites", name=f"{card.place} compared with {KAFKA}")
    for area in areas(card):
        results = [each for each in card.results if each.row.area == area]
        failures, skipped = card.count(DIFFERS, area) + card.count(NOT_RUN, area), card.count(NOT_OFFERED, area)
        suite = Xml.SubElement(
            root, "testsuite", name=area, tests=str(len(results)), failures=str(failures), skipped=str(skipped),
            errors="0", time=f"{sum(each.seconds for each in results):.3f}",
        )  # fmt: skip
        for each in results:
            case = Xml.SubElement(
                suite, "testcase", classname=f"card.{area}", name=each.row.name, time=f"{each.seconds:.3f}"
            )
            lines = [visible(line) for line in each.lines()]
            if each.status in (DIFFERS, NOT_RUN):
                failure = Xml.SubElement(case, "failure", message=lines[0] if lines else each.status)
                failure.text = "\n".join(lines)
            elif each.status == NOT_OFFERED:
                Xml.SubElement(case, "skipped", message=visible(each.text))
            elif lines:
                Xml.SubElement(case, "system-out").text = "\n".join(lines)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + Xml.tostring(root, encoding="unicode") + "\n"


_STYLE: Final = """
:root { color-scheme: light dark; --line: #8884; --good: #1a7f37; --bad: #cf222e; --soft: #9a6700; }
body { font: 15px/1.45 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; }
td, th { padding: .2rem .7rem; border-bottom: 1px solid var(--line); text-align: left; }
td.number { text-align: right; font-variant-numeric: tabular-nums; }
summary { cursor: pointer; padding: .2rem 0; } code { white-space: pre-wrap; overflow-wrap: anywhere; }
.equal { color: var(--good); } .differs, .not-run { color: var(--bad); font-weight: 600; }
.accepted { color: var(--soft); }
"""


def as_html(card: Card) -> str:
    """One page; everything that comes from the broker is escaped."""
    return "\n".join(_page(card)) + "\n"


def _escaped(text: str) -> str:
    return html.escape(visible(text))


def _page(card: Card) -> Iterable[str]:
    title = _escaped(f"{card.place} compared with {KAFKA}")
    yield f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
    yield f"<style>{_STYLE}</style></head><body><h1>{title}</h1><p>{_escaped(summary(card))}</p>"
    if card.gone:
        yield f'<p class="differs">Incomplete: {_escaped(card.gone)}</p>'
    yield "<table><tr><th>area</th>" + "".join(f"<th>{status}</th>" for status in STATUSES) + "</tr>"
    for area in areas(card):
        cells = "".join(
            f'<td class="number {_class(status)}">{card.count(status, area) or ""}</td>' for status in STATUSES
        )
        yield f"<tr><td>{_escaped(area)}</td>{cells}</tr>"
    yield "</table>"
    for area in areas(card):
        yield f"<h2>{_escaped(area)}</h2>"
        for each in card.results:
            if each.row.area == area:
                yield _entry(each)
    yield "</body></html>"


def _class(status: str) -> str:
    return status.replace(" ", "-")


def _entry(result: Result) -> str:
    opened = " open" if result.status in (DIFFERS, NOT_RUN) else ""
    heading = f'<span class="{_class(result.status)}">{result.status}</span> {_escaped(result.row.name)}'
    text = f"<p>{_escaped(result.text)}</p>" if result.text else ""
    rows = "".join(
        f"<tr><td>{_escaped(where)}</td><td><code>{_escaped(theirs)}</code></td>"
        f"<td><code>{_escaped(ours)}</code></td></tr>"
        for where, theirs, ours in result.differences
    )
    differing = f"<table><tr><th>where</th><th>Kafka</th><th>this broker</th></tr>{rows}</table>" if rows else ""
    notes = f"<code>{html.escape(json.dumps(result.notes, indent=1))}</code>" if result.notes and not rows else ""
    return f"<details{opened}><summary>{heading}</summary>{text}{differing}{notes}</details>"
