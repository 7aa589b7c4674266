"""An audit as one self-contained HTML page without scripts, for light and dark screens and for paper.

This module computes the charts as coordinates; `audit.html` draws them as SVG.

Units  of all coordinates: those of the SVG's view box
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from functools import partial
from importlib.resources import files
from typing import Final, NamedTuple

from jinja2 import Environment, StrictUndefined
from jinja2.filters import do_filesizeformat

from kbroker.spark.jobs.audit_report import AuditReport, PartitionView, SegmentView
from kbroker.tiered.catalogue import name_of

MAX_ROWS: Final = 1_000
LABELS: Final = 190
RIGHT: Final = 960
MAX_LANES: Final = 200
NOTHING: Final = "\u2013"
"""Shown for unknown values."""
KINDS: Final = {
    "tier": "in the tier",
    "local": "in the local log",
    "bad": "has findings",
    "unused": "not in the log's history, or unfinished",
}
"""The CSS classes of bars, with their meaning."""
size_text: Final = partial(do_filesizeformat, binary=True)
_STEPS_MS: Final = (
    1, 10, 100, 1_000, 5_000, 15_000, 60_000, 300_000, 900_000, 3_600_000, 3 * 3_600_000, 6 * 3_600_000, 12 * 3_600_000,
    86_400_000, 2 * 86_400_000, 7 * 86_400_000, 30 * 86_400_000, 91 * 86_400_000, 365 * 86_400_000, 3650 * 86_400_000,
)  # fmt: skip


def page(report: AuditReport) -> str:
    """The page's HTML."""
    # Autoescape: no name in the report becomes a part of the page.
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined)
    environment.filters |= {
        "size": size_text,
        "time": time_text,
        "number": lambda number: NOTHING if number is None else f"{number:,}",
        "subject": lambda finding: finding.name if finding.segment is None else name_of(finding.segment),
    }
    template = environment.from_string(files(__package__).joinpath("audit.html").read_text(encoding="utf-8"))
    return template.render(
        report=report,
        charts=list(charts(report.partitions)),
        kinds=KINDS,
        labels=LABELS,
        right=RIGHT,
        max_rows=MAX_ROWS,
    )


class Bar(NamedTuple):
    """A bar of a lane. Shape: kind is a key of KINDS; top is relative to the lane; title is the tooltip."""

    kind: str
    left: float
    width: float
    title: str
    top: int
    height: int


class Lane(NamedTuple):
    """A line of a chart. Shape: total is a text at the end of the bars."""

    view: PartitionView
    bars: list[Bar]
    total: str = ""


class Chart(NamedTuple):
    """A chart. Shape: ticks are positions and texts on the axis; omitted counts partitions without a lane."""

    title: str
    text: str
    ticks: list[tuple[float, str]]
    lanes: list[Lane]
    omitted: int
    kinds: Sequence[str] = ("tier", "bad", "unused")


class _Scale:
    """Maps values to positions right of the labels."""

    def __init__(self, low: float, high: float) -> None:
        self._low = low
        self._unit = (RIGHT - LABELS) / max(high - low, 1e-9)

    def __call__(self, value: float) -> float:
        return LABELS + (value - self._low) * self._unit

    def bar(self, kind: str, start: float, end: float, title: str, *, top: int = 7, height: int = 16) -> Bar:
        # Leaves space between neighbours, and keeps the smallest bar visible.
        return Bar(kind, self(start), max(self(end) - self(start) - 1, 1.5), title, top, height)


def time_text(timestamp_ms: int) -> str:
    """A time in UTC; a dash if there is none."""
    try:
        return f"{datetime.fromtimestamp(timestamp_ms / 1000, UTC):%Y-%m-%d %H:%M:%S}" if timestamp_ms >= 0 else NOTHING
    except (OverflowError, ValueError, OSError):
        return NOTHING


def charts(partitions: Sequence[PartitionView]) -> Iterable[Chart]:
    """The charts that have something to show."""
    shown, omitted = partitions[:MAX_LANES], max(0, len(partitions) - MAX_LANES)
    return filter(None, (_over_time(shown, omitted), _both_tiers(shown, omitted), _sizes(shown, omitted)))


def _over_time(partitions: Sequence[PartitionView], omitted: int) -> Chart | None:
    """The segments of each partition by the time of their records; None if no segment has a time."""
    spans = [_spans(view) for view in partitions]
    times = [at for each in spans for start, end, _ in each for at in (start, end)]
    if not times:
        return None
    scale = _Scale(min(times), max(times))
    lanes = [
        Lane(
            view,
            [
                scale.bar(_kind(segment), start, end, f"{_title(view, segment)}\nrecords up to {time_text(end)} UTC")
                for start, end, segment in found
            ],
        )
        for view, found in zip(partitions, spans, strict=True)
    ]
    text = "Each bar is a segment, from the newest timestamp before it to its own newest one."
    ticks = [(scale(at), text) for at, text in _time_ticks(min(times), max(times))]
    return Chart("Segments over time", text, ticks, lanes, omitted)


def _spans(view: PartitionView) -> list[tuple[int, int, SegmentView]]:
    """Each segment with a time, from the largest timestamp before it to its own."""
    found = []
    previous = view.first_timestamp_ms
    for segment in view.segments:
        at = segment.max_timestamp_ms
        if time_text(at) == NOTHING:
            continue
        found.append((at if previous is None else min(previous, at), at, segment))
        previous = at if previous is None else max(previous, at)
    return found


def _both_tiers(partitions: Sequence[PartitionView], omitted: int) -> Chart | None:
    """The offsets of each partition in the tier and in the broker's local log."""
    segments = [segment for view in partitions for segment in view.segments]
    end = max([0, *(view.end_offset or 0 for view in partitions), *(each.end_offset + 1 for each in segments)])
    if not end:
        return None
    low = min((each.start_offset for each in segments), default=0)
    scale = _Scale(low, end)
    lanes = []
    for view in partitions:
        bars = [
            scale.bar(_kind(each), each.start_offset, each.end_offset + 1, _title(view, each), top=4, height=10)
            for each in view.segments
        ]
        local, last = view.local_log_start_offset, view.end_offset
        if local is not None and last is not None and last > local:
            title = f"{view.topic}-{view.partition}: local, offsets {local} to {last - 1}"
            bars.append(scale.bar("local", max(low, local), last, title, top=16, height=10))
        lanes.append(Lane(view, bars))
    text = "Offsets of each partition: in the tier (above) and in the broker's local log (below)."
    ticks = [(scale(at), f"{at:,}") for at in _nice_ticks(low, end)]
    return Chart("Both tiers", text, ticks, lanes, omitted, tuple(KINDS))


def _sizes(partitions: Sequence[PartitionView], omitted: int) -> Chart | None:
    """The bytes of each partition's segments, one after the other."""
    most = max((view.size for view in partitions), default=0)
    if most <= 0:
        return None
    scale = _Scale(0, most)
    lanes = []
    for view in partitions:
        bars, at = [], 0
        for segment in view.segments:
            bars.append(scale.bar(_kind(segment), at, at + segment.size, _title(view, segment)))
            at += segment.size
        lanes.append(Lane(view, bars, size_text(at)))
    text = "Bytes of each partition's segments, one after the other."
    unit = 1024 ** max(0, (most.bit_length() - 1) // 10)
    ticks = _nice_ticks(0, most, unit=unit if most >= 2 * unit else unit // 8 or 1)
    return Chart("Sizes", text, [(scale(at), size_text(at)) for at in ticks], lanes, omitted)


def _kind(segment: SegmentView) -> str:
    if segment.problems:
        return "bad"
    return "tier" if segment.is_used else "unused"


def _title(view: PartitionView, segment: SegmentView) -> str:
    lines = [
        f"{view.topic}-{view.partition} {segment.segment_id}",
        f"offsets {segment.start_offset} to {segment.end_offset}, {size_text(segment.size)}",
        *([segment.state] if segment.state != "COPY_SEGMENT_FINISHED" else []),
        *segment.problems[:5],
    ]
    return "\n".join(lines)


def _nice_ticks(low: int, high: int, *, unit: int = 1) -> list[int]:
    """At most about six round multiples of a unit between two numbers."""
    times = 1
    while (high - low) / (times * unit) > 6:
        times = times * 2 if str(times)[0] in "15" else times * 5 // 2
    step = times * unit
    return list(range(-(-low // step) * step, high + 1, step))


def _time_ticks(low: int, high: int) -> list[tuple[int, str]]:
    """At most about six round times between two, in UTC."""
    step = next((each for each in _STEPS_MS if (high - low) / each <= 6), _STEPS_MS[-1])
    form = "%H:%M:%S" if step < 60_000 else "%m-%d %H:%M" if step < 86_400_000 else "%Y-%m-%d"
    found = range(-(-low // step) * step, high + 1, step) or [low]
    return [(at, f"{datetime.fromtimestamp(at / 1000, UTC):{form}}") for at in found]
