"""Which segments of a log have to go.

Segments go from the front and whole. Three rules, each applied to what the one before leaves: all below
log_start_offset; as many as the log is larger than retention.bytes; those whose newest record is older than
retention.ms. Nothing at or above the high_watermark goes. If even the active segment has to go, a new one is begun
first.

With a tier the limits are the local ones, a segment goes only when the tier has it, and what rises is
local_log_start_offset alone. An active segment that has to go is closed so that it can be copied first; and with an
empty cleanup.policy, where nothing is deleted from the log, the local limits hold all the same.

Source  UnifiedLog.deletableSegments, deleteOldSegments of Apache Kafka 4.3.1
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from kbroker.storage.log_config import LogConfig


class Retained(Protocol):
    """What retention sees of a segment."""

    @property
    def base_offset(self) -> int: ...

    @property
    def size(self) -> int: ...


class Reason(StrEnum):
    """Why a segment goes, as operators are told."""

    LOG_START = "log start offset"
    SIZE = "retention.bytes"
    TIME = "retention.ms"


@dataclass(frozen=True, slots=True)
class RetentionPlan:
    """The segments that go, by base_offset and oldest first; whether the active one is among them or must be closed for
    the tier.

    Shape  reasons is parallel to doomed
    """

    doomed: tuple[int, ...] = ()
    rolls: bool = False
    reasons: tuple[Reason, ...] = field(default=(), compare=False)

    def __bool__(self) -> bool:
        return bool(self.doomed) or self.rolls


def plan_retention(
    segments: Sequence[Retained],
    *,
    largest_timestamp: Callable[[int], int],
    config: LogConfig,
    log_start_offset: int,
    log_end_offset: int,
    high_watermark: int,
    timestamp_ms: int,
    highest_offset_in_remote_storage: int | None = None,
) -> RetentionPlan:
    """Decide for segments in order, the active one last.

    `largest_timestamp(i)` is that of segment i, -1 if it has none; it is asked only where time decides, since it may
    cost a read. `highest_offset_in_remote_storage` is None for a log without a tier, or whose copying is switched off.
    """
    tiered = highest_offset_in_remote_storage is not None
    retention_ms, retention_bytes = config.retention_ms, config.retention_bytes
    if tiered:
        retention_ms = retention_ms if config.local_retention_ms == -2 else config.local_retention_ms
        retention_bytes = retention_bytes if config.local_retention_bytes == -2 else config.local_retention_bytes
    elif not config.is_deleting:
        retention_ms = retention_bytes = -1

    upper_bounds = [segment.base_offset for segment in segments[1:]] + [log_end_offset]
    excess = sum(segment.size for segment in segments) - retention_bytes if retention_bytes >= 0 else 0
    doomed: list[int] = []
    reasons: list[Reason] = []
    rolls = False
    by_size = retention_bytes >= 0
    for at, (segment, upper_bound) in enumerate(zip(segments, upper_bounds, strict=True)):
        is_active = at == len(segments) - 1
        if high_watermark < upper_bound or (is_active and segment.size == 0):
            break
        below_start = not is_active and upper_bound <= log_start_offset
        by_size = by_size and excess - segment.size >= 0
        reason = Reason.LOG_START if below_start else Reason.SIZE if by_size else Reason.TIME
        if reason is Reason.TIME:
            newest = largest_timestamp(at) if retention_ms >= 0 else 0
            if retention_ms < 0 or timestamp_ms - newest <= retention_ms:
                break
        if tiered and is_active:
            rolls = True
        copied = highest_offset_in_remote_storage is not None and upper_bound - 1 <= highest_offset_in_remote_storage
        if tiered and not copied and not below_start:
            break
        excess -= segment.size
        doomed.append(segment.base_offset)
        reasons.append(reason)
        rolls = rolls or is_active
    return RetentionPlan(tuple(doomed), rolls, tuple(reasons))
