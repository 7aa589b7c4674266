"""The result of an audit as values, for the table, JSON and HTML outputs."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from kbroker.tiered.scrubbing import Finding


class SegmentView(NamedTuple):
    """A segment in the report. Shape: problems are texts of findings; is_used: it is part of the log's history."""

    segment_id: str
    start_offset: int
    end_offset: int
    size: int
    max_timestamp_ms: int
    event_timestamp_ms: int
    state: str
    is_used: bool
    problems: tuple[str, ...]


class PartitionView(NamedTuple):
    """A partition in the report; offsets are None if no broker is named.

    Units  first_timestamp_ms is the first one in the time index of the first segment; None if there is none
    Note   exists is False for a partition of a deleted topic that still has segments in the tier
    """

    topic: str
    topic_id: str
    partition: int
    exists: bool
    log_start_offset: int | None
    local_log_start_offset: int | None
    end_offset: int | None
    first_timestamp_ms: int | None
    segments: tuple[SegmentView, ...]

    @property
    def tiered_to(self) -> int | None:
        """The highest offset in segments of the log's history."""
        return max((each.end_offset for each in self.segments if each.is_used), default=None)

    @property
    def size(self) -> int:
        """Bytes of all segments."""
        return sum(each.size for each in self.segments)


@dataclass(slots=True)
class AuditReport:
    """The result of an audit.

    Shape  deleted_meanwhile counts segments whose findings were dropped, because they were being deleted
    Units  bytes of segments that were read, and of objects that were listed
    """

    source: str
    store: str
    timestamp_ms: int
    is_deep: bool
    findings: list[Finding] = field(default_factory=list)
    notes: list[Finding] = field(default_factory=list)
    partitions: list[PartitionView] = field(default_factory=list)
    segments: int = 0
    bytes: int = 0
    read_segments: int = 0
    read_bytes: int = 0
    objects: int = 0
    object_bytes: int = 0
    deleted_meanwhile: int = 0
    warnings: list[str] = field(default_factory=list)

    @property
    def problems(self) -> Counter[str]:
        """The number of findings of each kind."""
        return Counter(each.problem for each in self.findings)

    def as_json(self) -> dict[str, Any]:
        """For machines, without the findings, which are printed separately."""
        found = {name: getattr(self, name) for name in self.__slots__}
        counts = {"findings": len(self.findings), "notes": len(self.notes), "problems": dict(self.problems)}
        partitions = [
            {**each._asdict(), "segments": [one._asdict() for one in each.segments]} for each in self.partitions
        ]
        return found | counts | {"partitions": partitions}
