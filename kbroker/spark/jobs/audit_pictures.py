"""Charts of the tier as inline SVG. They are drawn without a library, because the page is self-contained.

Colours are the page's CSS variables, so that they fit light and dark screens. A legend and the title of each mark,
which browsers show as a tooltip, repeat the meaning of the colours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Final

from kbroker.spark.jobs.audit_report import PartitionView, SegmentView

WIDTH: Final = 960
LABELS: Final = 190
LANE: Final = 30
AXIS: Final = 26
BAR: Final = 16
MAX_LANES: Final = 200
NOTHING: Final = "\u2013"
"""Shown for unknown values."""
_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_STEPS_MS: Final = (
    1, 10, 100, 1_000, 5_000, 15_000, 60_000, 300_000, 900_000, 3_600_000, 3 * 3_600_000, 6 * 3_600_000, 12 * 3_600_000,
    86_400_000, 2 * 86_400_000, 7 * 86_400_000, 30 * 86_400_000, 91 * 86_400_000, 365 * 86_400_000, 3650 * 86_400_000,
)  # fmt: skip

Scale = Callable[[float], float]


def size_text(size: float) -> str:
    """A size in readable units."""
    for unit in _UNITS:
        if size < 1024 or unit == _UNITS[-1]:
            return f"{size:.0f} {unit}" if unit == "B" or size >= 100 else f"{size:.1f} {unit}"
        size /= 1024
    raise AssertionError(size)


def time_text(timestamp_ms: int) -> str:
    """A time in UTC; a dash if there is none."""
    try:
        return f"{datetime.fromtimestamp(timestamp_ms / 1000, UTC):%Y-%m-%d %H:%M:%S}" if timestamp_ms >= 0 else NOTHING
    except (OverflowError, ValueError, OSError):
        return NOTHING


def over_time(partitions: Sequence[PartitionView]) -> str:
    """The segments of each partition by the time of their records; empty if no segment has a time."""
    shown = [(view, _spans(view)) for view in partitions[:MAX_LANES]]
    times = [at for _, spans in shown for start, end, _ in spans for at in (start, end)]
    if not times:
        return ""
    low, high = min(times), max(times)
    scale = _scale(low, max(high, low + 1))
    marks = []
    for lane, (view, spans) in enumerate(shown):
        top = AXIS + lane * LANE
        marks.append(_label(view, top))
        for start, end, segment in spans:
            title = f"{_title(view, segment)}\nrecords up to {time_text(segment.max_timestamp_ms)} UTC"
            marks.append(_bar(scale(start), scale(end), top + 7, _kind(segment), title))
    ticks = _time_ticks(low, high)
    return _svg(len(shown), marks, [(scale(at), text) for at, text in ticks], "Segments of the tier by time of records")


def _spans(view: PartitionView) -> list[tuple[int, int, SegmentView]]:
    """Each segment, from the largest timestamp before it to its own."""
    found = []
    previous = view.first_timestamp_ms
    for segment in view.segments:
        at = segment.max_timestamp_ms
        if time_text(at) == NOTHING:
            continue
        found.append((at if previous is None or previous > at else previous, at, segment))
        previous = at if previous is None else max(previous, at)
    return found


def both_tiers(partitions: Sequence[PartitionView]) -> str:
    """The offsets of each partition in the tier and in the broker's local log."""
    shown = partitions[:MAX_LANES]
    ends = [_end(view) for view in shown]
    if not ends or max(ends) <= 0:
        return ""
    low = min((each.start_offset for view in shown for each in view.segments), default=0)
    scale = _scale(low, max(ends))
    marks = []
    for lane, view in enumerate(shown):
        top = AXIS + lane * LANE
        marks.append(_label(view, top))
        for segment in view.segments:
            left, right = scale(segment.start_offset), scale(segment.end_offset + 1)
            marks.append(_bar(left, right, top + 4, _kind(segment), _title(view, segment), height=10))
        if view.local_log_start_offset is not None and view.end_offset is not None:
            left, right = scale(max(low, view.local_log_start_offset)), scale(view.end_offset)
            title = (
                f"{view.topic}-{view.partition}: local, offsets {view.local_log_start_offset} to {view.end_offset - 1}"
            )
            if view.end_offset > view.local_log_start_offset:
                marks.append(_bar(left, right, top + 16, "local", title, height=10))
    ticks = [(scale(at), f"{at:,}") for at in _nice_ticks(low, max(ends))]
    return _svg(len(shown), marks, ticks, "Offsets in the tier and in the local log")


def sizes(partitions: Sequence[PartitionView]) -> str:
    """The bytes of each partition's segments, one after the other."""
    shown = partitions[:MAX_LANES]
    most = max((sum(each.size for each in view.segments) for view in shown), default=0)
    if most <= 0:
        return ""
    scale = _scale(0, most)
    marks = []
    for lane, view in enumerate(shown):
        top = AXIS + lane * LANE
        marks.append(_label(view, top))
        at = 0
        for segment in view.segments:
            marks.append(_bar(scale(at), scale(at + segment.size), top + 7, _kind(segment), _title(view, segment)))
            at += segment.size
        marks.append(f'<text class="value" x="{scale(at) + 6:.1f}" y="{top + 19}">{size_text(at)}</text>')
    unit = 1024 ** max(0, (most.bit_length() - 1) // 10)
    ticks = [
        (scale(at), size_text(at)) for at in _nice_ticks(0, most, unit=unit if most >= 2 * unit else unit // 8 or 1)
    ]
    return _svg(len(shown), marks, ticks, "Bytes in the tier", margin=80)


def legend(kinds: Iterable[tuple[str, str]]) -> str:
    """The meaning of the colours: pairs of a CSS class and a text."""
    return (
        '<p class="legend">'
        + "".join(f'<span><i class="{kind}"></i>{escape(text)}</span>' for kind, text in kinds)
        + "</p>"
    )


def _end(view: PartitionView) -> int:
    return max([view.end_offset or 0, *(each.end_offset + 1 for each in view.segments)])


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


def _scale(low: float, high: float) -> Scale:
    span = max(high - low, 1e-9)
    return lambda value: LABELS + (value - low) / span * (WIDTH - LABELS)


def _label(view: PartitionView, top: int) -> str:
    text = f"{view.topic}-{view.partition}"
    short = text if len(text) <= 26 else f"{text[:12]}…{text[-13:]}"
    gone = "" if view.exists else " gone"
    return (
        f'<text class="label{gone}" x="{LABELS - 10}" y="{top + 19}">'
        f"<title>{escape(text)}</title>{escape(short)}</text>"
        f'<line class="lane" x1="{LABELS}" x2="{WIDTH}" y1="{top + LANE}" y2="{top + LANE}"/>'
    )


def _bar(left: float, right: float, top: int, kind: str, title: str, *, height: int = BAR) -> str:
    width = max(right - left - 1, 1.5)  # leaves space between neighbours, and keeps the smallest visible
    return (
        f'<rect class="{kind}" x="{left:.1f}" y="{top}" width="{width:.1f}" height="{height}" rx="2">'
        f"<title>{escape(title)}</title></rect>"
    )


def _svg(lanes: int, marks: Iterable[str], ticks: Iterable[tuple[float, str]], title: str, *, margin: int = 30) -> str:
    height = AXIS + lanes * LANE + 4
    grid = "".join(
        f'<line class="grid" x1="{at:.1f}" x2="{at:.1f}" y1="{AXIS - 6}" y2="{height - 4}"/>'
        f'<text class="tick" x="{at:.1f}" y="{AXIS - 11}">{escape(text)}</text>'
        for at, text in ticks
    )
    return (
        f'<svg viewBox="0 0 {WIDTH + margin} {height}" role="img" aria-label="{escape(title)}" '
        f'xmlns="http://www.w3.org/2000/svg">{grid}{"".join(marks)}</svg>'
    )


def _nice_ticks(low: int, high: int, *, unit: int = 1) -> list[int]:
    """At most about six round multiples of a unit between two numbers."""
    times = 1
    while (high - low) / (times * unit) > 6:
        times = times * 2 if str(times)[0] in "15" else times * 5 // 2
    step = times * unit
    first = -(-low // step) * step
    return list(range(first, high + 1, step))


def _time_ticks(low: int, high: int) -> list[tuple[int, str]]:
    """At most about six round times between two, in UTC."""
    step = next((each for each in _STEPS_MS if (high - low) / each <= 6), _STEPS_MS[-1])
    form = "%H:%M:%S" if step < 60_000 else "%m-%d %H:%M" if step < 86_400_000 else "%Y-%m-%d"
    first = -(-low // step) * step
    found = range(first, high + 1, step)
    return [(at, f"{datetime.fromtimestamp(at / 1000, UTC):{form}}") for at in (found if len(found) > 0 else [low])]
