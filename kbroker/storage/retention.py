"""Decide which segments of a log retention deletes.

Retention deletes whole segments from the start of the log. Three rules apply one after the other: segments below
log_start_offset, segments in excess of retention.bytes, and segments whose newest record is older than retention.ms.
Nothing at or above the high watermark is deleted. If the active segment is to be deleted too, the log rolls first.

In a tiered log the local limits apply, a segment is deleted only after it was copied to the tier, and only
local_log_start_offset rises. An active segment that is due is closed first, so that it can be copied. The local limits
apply even if cleanup.policy is empty and nothing is deleted from the log itself.

Source  UnifiedLog.deletableSegments, deleteOldSegments of Apache Kafka 4.3.1
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from kbroker.storage.log_config import LogConfig


class Retained(Protocol):
    """The fields of a segment that retention uses."""

    @property
    def base_offset(self) -> int: ...

    @property
    def size(self) -> int: ...


class Reason(StrEnum):
    """Why a segment is deleted, for the log."""

    LOG_START = "log start offset"
    SIZE = "retention.bytes"
    TIME = "retention.ms"


@dataclass(frozen=True, slots=True)
class RetentionPlan:
    """The segments to delete, by base_offset and oldest first, and whether to roll the active segment, either to
    delete it or to copy it to the tier.

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
    """Decide for the segments in order; the active one is last.

    `largest_timestamp(i)` is that of segment i, -1 if it has none; it may cost a read and is called only if time
    decides. `highest_offset_in_remote_storage` is None for a log that is not copied to a tier.
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
