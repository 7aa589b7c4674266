"""The picture of one step of a scenario, for text and for SVG: replicas as columns, offsets as rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from textwrap import wrap
from typing import Any, Final

NEW, GONE, SAME = "new", "gone", "same"
LOCAL, BOTH, TIER = "local", "both", "tier"
MARKS: Final = {LOCAL: "▓", BOTH: "█", TIER: "▒"}

_FINISHED: Final = "COPY_SEGMENT_FINISHED"
_STATES: Final = {
    "COPY_SEGMENT_STARTED": "being copied by",
    _FINISHED: "copied by",
    "DELETE_SEGMENT_STARTED": "being deleted; copied by",
    "DELETE_SEGMENT_FINISHED": "deleted; copied by",
}


@dataclass(frozen=True, slots=True)
class Cell:
    """An offset of a replica.

    Shape  change is NEW, GONE or SAME, compared with the step before; was is the value that was here before; place is
           where the record is, "" in a story without a tier; is_committed: it is below the replica's high watermark
    """

    value: str = ""
    epoch: int = -1
    change: str = SAME
    was: str = ""
    place: str = ""
    is_committed: bool = False

    @property
    def text(self) -> str:
        """The cell in a few characters."""
        mark = f"{MARKS[self.place]} " if self.place else ""
        sign = {NEW: "+", GONE: "✗", SAME: " "}[self.change]
        words = f"{sign} {mark}{self.value} e{self.epoch}"
        words += " ✓" if self.is_committed else ""
        return words + (f" (was {self.was})" if self.was else "")


@dataclass(frozen=True, slots=True)
class Column:
    """A replica. Shape: cells maps offsets to what is there; heading is lines."""

    name: str
    is_leader: bool
    is_down: bool
    heading: Sequence[str]
    cells: Mapping[int, Cell]
    high_watermark: int | None

    def heading_rows(self, width: int) -> list[str]:
        """The heading in a column of so many characters."""
        return [row for words in self.heading for row in wrap(words, width, subsequent_indent="  ")]


@dataclass(frozen=True, slots=True)
class Picture:
    """One step. Shape: notes are lines about clients, tier lines about segments in the tier."""

    number: int
    at_ms: int
    text: str
    columns: Sequence[Column]
    offsets: Sequence[int]
    notes: Sequence[str]
    tier: Sequence[str] = field(default_factory=tuple)


def picture(step: Mapping[str, Any], before: Mapping[str, Any] | None) -> Picture:
    """The picture of a step; `before` is the step before it."""
    earlier = {one["name"]: one["records"] for one in before["replicas"]} if before is not None else {}
    tier = step["tier"]
    columns = [
        _column(one, earlier.get(one["name"], ()), None if tier is None else _copied(tier), is_first=before is None)
        for one in step["replicas"]
    ]
    offsets = sorted({offset for column in columns for offset in column.cells})
    return Picture(
        step["step"], step["at_ms"], step["text"], columns, offsets, _notes(step), [_segment(one) for one in tier or ()]
    )


def _copied(tier: Sequence[Mapping[str, Any]]) -> dict[tuple[int, int], str]:
    """Offset and leader epoch -> the value of each record of the finished copies in the tier."""
    return {
        (record["offset"], record["epoch"]): record["value"]
        for segment in tier
        if segment["is_finished"]
        for record in segment["records"]
    }


def _column(
    replica: Mapping[str, Any],
    earlier: Iterable[Mapping[str, Any]],
    copied: Mapping[tuple[int, int], str] | None,
    *,
    is_first: bool,
) -> Column:
    now = {one["offset"]: one for one in replica["records"]}
    then = {one["offset"]: one for one in earlier}
    committed_to = replica["high_watermark"]
    remote = _remote(replica, copied or {})
    cells = {}
    for offset in sorted({*now, *then, *remote}):
        one, old = now.get(offset), then.get(offset)
        is_committed = committed_to is not None and offset < committed_to
        if one is not None:
            is_changed = old is None or (old["value"], old["epoch"]) != (one["value"], one["epoch"])
            place = "" if copied is None else BOTH if (offset, one["epoch"]) in copied else LOCAL
            change = NEW if is_changed and not is_first else SAME
            was = old["value"] if is_changed and old is not None and old["value"] != one["value"] else ""
            cells[offset] = Cell(one["value"], one["epoch"], change, was, place, is_committed)
        elif offset in remote:
            value, epoch = remote[offset]
            cells[offset] = Cell(value, epoch, place=TIER, is_committed=is_committed)
        elif old is not None:
            cells[offset] = Cell(old["value"], old["epoch"], GONE)
    is_down = replica["log_end_offset"] is None
    return Column(replica["name"], replica["state"] == "leader", is_down, _heading(replica), cells, committed_to)


def _remote(replica: Mapping[str, Any], copied: Mapping[tuple[int, int], str]) -> dict[int, tuple[str, int]]:
    """Offset -> value and leader epoch of what only the tier has for this replica, along the replica's own epochs."""
    if replica["log_start_offset"] is None:
        return {}
    found = {}
    for offset in range(replica["log_start_offset"], replica["local_log_start_offset"]):
        epoch = max((epoch for epoch, start in replica["epochs"] if start <= offset), default=-1)
        found[offset] = (copied.get((offset, epoch), "?"), epoch)
    return found


def _heading(replica: Mapping[str, Any]) -> list[str]:
    name, state = replica["name"], replica["state"]
    if replica["log_end_offset"] is None:
        lines = [f"{name}  {state}"]
    else:
        lines = [f"{name}  {state}, epoch {replica['leader_epoch']}"]
        lines.append(f"HW {replica['high_watermark']}, log end {replica['log_end_offset']}")
        if replica["local_log_start_offset"]:
            lines.append(f"log start {replica['log_start_offset']}, local {replica['local_log_start_offset']}")
        epochs = " ".join(f"{epoch}@{start}" for epoch, start in replica["epochs"])
        lines.append(f"epochs {epochs or 'none'}")
    if replica["isr"]:
        lines.append(f"ISR {' '.join(replica['isr'])}")
    if replica["does_not_hear"]:
        lines.append(f"does not hear {', '.join(replica['does_not_hear'])}")
    return lines


def _notes(step: Mapping[str, Any]) -> list[str]:
    notes = []
    for one in step["writes"]:
        answer = "acknowledged" if one["code"] == 0 else "no answer yet"
        if one["code"]:
            answer = f"{one['answer']} ({one['code']})"
        notes.append(f"producer: {', '.join(one['values'])} with acks={one['acks']}: {answer}")
    if step["read"] is not None:
        found = " ".join(one["value"] for one in step["read"]["records"]) or "nothing"
        start = step["read"]["start"]
        notes.append(f"consumer: reads from {step['read']['from']}, offset {start}: {found}")
    return notes


def _segment(segment: Mapping[str, Any]) -> str:
    epochs = " ".join(f"{epoch}@{start}" for epoch, start in segment["epochs"])
    values = " ".join(one["value"] for one in segment["records"]) or "no data"
    return (
        f"{segment['start_offset']}-{segment['end_offset']}  epochs {epochs}; {_STATES[segment['state']]} "
        f"{segment['copied_by']}: {values}"
    )
