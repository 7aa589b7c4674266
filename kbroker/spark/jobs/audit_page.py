"""An audit as one self-contained HTML page without scripts, for light and dark screens and for paper."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Final

from kbroker.spark.jobs import audit_pictures as pictures
from kbroker.spark.jobs.audit_report import AuditReport, PartitionView
from kbroker.tiered.catalogue import name_of
from kbroker.tiered.scrubbing import Finding

MAX_ROWS: Final = 1_000
STYLE: Final = """
:root { color-scheme: light dark; --page: #f7f8fa; --card: #ffffff; --ink: #1c2430; --soft: #5d6878; --line: #dfe3e9;
  --tier: #2f6fd6; --local: #e39b21; --bad: #cf2f3c; --unused: #a9b2bf; --good: #1d8a4e; --tint: #eef2f8; }
@media (prefers-color-scheme: dark) { :root { --page: #12161c; --card: #1a2029; --ink: #e4e9f0; --soft: #97a3b4;
  --line: #2c3543; --tier: #5b95f2; --local: #e8ac45; --bad: #f2606b; --unused: #5a6576; --good: #4cc184;
  --tint: #222a36; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink); font: 15px/1.5 system-ui,
  -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif; }
main { max-width: 1080px; margin: 0 auto; padding: 32px 20px 64px; }
h1 { font-size: 26px; line-height: 1.25; margin: 0 0 4px; letter-spacing: -.01em; }
h2 { font-size: 17px; margin: 0 0 4px; }
p { margin: 0 0 12px; }
.soft { color: var(--soft); }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 18px 20px;
  margin: 18px 0; }
.verdict { border-left: 5px solid var(--good); font-size: 17px; font-weight: 600; }
.verdict.found { border-left-color: var(--bad); }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 12px; margin: 18px 0; }
.tile { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 12px 16px; }
.tile b { display: block; font-size: 22px; line-height: 1.3; font-variant-numeric: tabular-nums; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 14px; }
th { text-align: left; font-weight: 600; color: var(--soft); }
th, td { padding: 6px 12px 6px 0; border-bottom: 1px solid var(--line); vertical-align: top; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
td.long { overflow-wrap: break-word; min-width: 300px; }
tr.bad td:first-child { color: var(--bad); font-weight: 600; }
tr:last-child td { border-bottom: 0; }
svg { display: block; width: 100%; min-width: 640px; height: auto; margin-top: 8px; }
svg text { fill: var(--ink); font-size: 12.5px; }
svg .label { text-anchor: end; } svg .label.gone { fill: var(--soft); font-style: italic; }
svg .tick, svg .value { fill: var(--soft); font-size: 11.5px; } svg .tick { text-anchor: middle; }
svg .grid, svg .lane { stroke: var(--line); stroke-width: 1; }
.tier { fill: var(--tier); background: var(--tier); } .local { fill: var(--local); background: var(--local); }
.bad { fill: var(--bad); } i.bad { background: var(--bad); } .unused { fill: var(--unused); background: var(--unused); }
rect:hover { opacity: .75; }
.legend { color: var(--soft); font-size: 13px; margin: 0; }
.legend span { margin-right: 18px; white-space: nowrap; }
.legend i { display: inline-block; width: 11px; height: 11px; border-radius: 3px; margin-right: 6px; }
@media print { body { background: #fff; } .card, .tile { break-inside: avoid; } }
"""
COLOURS: Final = (
    ("tier", "in the tier"),
    ("bad", "has findings"),
    ("unused", "not in the log's history, or unfinished"),
)


def page(report: AuditReport) -> str:
    """The page's HTML."""
    when = pictures.time_text(report.timestamp_ms)
    depth = "names, sizes and every byte" if report.is_deep else "names and sizes"
    subtitle = " · ".join((f"{when} UTC", depth, f"by {report.source}", report.store))
    body = [
        f'<h1>Audit of the tier</h1><p class="soft">{escape(subtitle)}</p>',
        _verdict(report),
        _tiles(report),
        *(f'<p class="soft">Note that {escape(each)}.</p>' for each in report.warnings),
        _findings("Findings", report.findings, is_bad=True),
        _picture(
            "Segments over time", "Each bar is a segment, from the newest timestamp before it to its own newest one.",
            pictures.over_time(report.partitions), pictures.legend(COLOURS), report.partitions,
        ),
        _picture(
            "Both tiers", "Offsets of each partition: in the tier (above) and in the broker's local log (below).",
            pictures.both_tiers(report.partitions),
            pictures.legend([COLOURS[0], ("local", "in the local log"), *COLOURS[1:]]), report.partitions,
        ),
        _picture(
            "Sizes", "Bytes of each partition's segments, one after the other.", pictures.sizes(report.partitions),
            pictures.legend(COLOURS), report.partitions,
        ),
        _partitions(report.partitions),
        _findings("Notes: in progress, or harmless", report.notes, is_bad=False),
    ]  # fmt: skip
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Audit of the tier, {when} UTC</title><style>{STYLE}</style></head>\n<body><main>\n"
        + "\n".join(each for each in body if each)
        + "\n</main></body></html>\n"
    )


def _verdict(report: AuditReport) -> str:
    if not report.findings:
        return '<div class="card verdict">No findings.</div>'
    count = len(report.findings)
    counts = ", ".join(f"{number} {escape(problem)}" for problem, number in sorted(report.problems.items()))
    return f'<div class="card verdict found">{count} finding{"s" if count != 1 else ""}: {counts}</div>'


def _tiles(report: AuditReport) -> str:
    shown = [
        (f"{len(report.partitions):,}", "partitions"),
        (f"{report.segments:,}", "finished segments"),
        (pictures.size_text(report.bytes), "in them"),
        (f"{report.read_segments:,}" if report.is_deep else pictures.NOTHING, "segments read"),
        (f"{report.objects:,}", "objects in the store"),
        (pictures.size_text(report.object_bytes), "in all objects"),
    ]
    tiles = (f'<div class="tile"><b>{value}</b><span class="soft">{text}</span></div>' for value, text in shown)
    return f'<div class="tiles">{"".join(tiles)}</div>'


def _picture(title: str, text: str, svg: str, legend: str, partitions: Sequence[PartitionView]) -> str:
    if not svg:
        return ""
    more = len(partitions) - pictures.MAX_LANES
    caption = f"{text} {more:,} more partitions are not shown." if more > 0 else text
    head = f'<h2>{escape(title)}</h2><p class="soft">{escape(caption)}</p>{legend}'
    return f'<section class="card">{head}<div class="wide">{svg}</div></section>'


def _findings(title: str, found: Sequence[Finding], *, is_bad: bool) -> str:
    if not found:
        return ""
    rows = []
    for each in found[:MAX_ROWS]:
        subject = each.name if each.segment is None else name_of(each.segment)
        cells = f'<td>{escape(each.problem)}</td><td class="long">{escape(subject)}</td>'
        rows.append(f'<tr{" class=bad" if is_bad else ""}>{cells}<td class="long">{escape(each.text)}</td></tr>')
    head = "<tr><th>Problem</th><th>Where</th><th>Details</th></tr>"
    return _table(title, head, rows, more=len(found) - MAX_ROWS)


def _partitions(partitions: Sequence[PartitionView]) -> str:
    if not partitions:
        return ""
    rows = []
    for view in partitions[:MAX_ROWS]:
        name = f"{view.topic}-{view.partition}" + ("" if view.exists else " (deleted)")
        used = max((each.end_offset for each in view.segments if each.is_used), default=None)
        numbers = (view.log_start_offset, view.local_log_start_offset, used, view.end_offset, len(view.segments))
        cells = "".join(f'<td class="n">{pictures.NOTHING if each is None else f"{each:,}"}</td>' for each in numbers)
        size = pictures.size_text(sum(each.size for each in view.segments))
        is_bad = any(each.problems for each in view.segments)
        rows.append(
            f"<tr{' class=bad' if is_bad else ''}><td>{escape(name)}</td>{cells}<td class='n'>{escape(size)}</td></tr>"
        )
    titles = ("Log start", "Local start", "Tiered to", "End", "Segments", "Bytes")
    head = "<tr><th>Partition</th>" + "".join(f'<th class="n">{each}</th>' for each in titles) + "</tr>"
    return _table("Partitions", head, rows, more=len(partitions) - MAX_ROWS)


def _table(title: str, head: str, rows: Iterable[str], *, more: int) -> str:
    """A table; `more` is the number of omitted rows."""
    inner = f'<div class="wide"><table>{head}{"".join(rows)}</table></div>'
    inner += f'<p class="soft">and {more:,} more</p>' if more > 0 else ""
    return f'<section class="card"><h2>{escape(title)}</h2>{inner}</section>'
