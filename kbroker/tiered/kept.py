"""Explains why each segment of a local log is still here, in terms of retention: for /state and `kbroker tier why`.

Retention deletes whole segments from the front, so the first retained segment keeps all later ones. For each later
segment the explanation says what would keep it if it were the first. The rules are those of
`kbroker.storage.retention`: the segments reported as due are exactly those that the next retention round deletes.

Source  KIP-405, KIP-950; UnifiedLog.deleteOldSegments of Apache Kafka 4.3.1
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import Final, Protocol

from kbroker.storage.log_config import LogConfig

AS_A_WHOLE: Final = -2
QUOTA: Final = "remote.log.manager.copy.max.bytes.per.second"


class LocalSegment(Protocol):
    """The view of a segment that the explanation needs."""

    @property
    def base_offset(self) -> int: ...

    @property
    def size(self) -> int: ...


class Kept(StrEnum):
    """What keeps a segment, in a few words."""

    ACTIVE = "active"
    UNSTABLE = "not below the last stable offset"
    COPY_PENDING = "copy pending"
    COPY_DISABLED = "copying is disabled"
    RETENTION = "within retention"
    FOREVER = "kept for ever"
    BEHIND = "behind one that stays"
    UNKNOWN = "the tier's metadata are not read yet"
    DUE = "due"


@dataclass(frozen=True, slots=True)
class KeptSegment:
    """A segment and what keeps it.

    Units   sizes are bytes, end_offset is inclusive; due_ms is the wall time at which the time limit is reached, None
            if another limit decides
    Shape   is_copied says that the tier has the whole segment
    """

    base_offset: int
    end_offset: int
    size: int
    is_copied: bool
    why: Kept
    text: str
    due_ms: int | None = None


@dataclass(frozen=True, slots=True)
class TierView:
    """The tier's state of a partition.

    Shape  is_tiered: its topic is tiered and the broker has a tier; copies: remote.log.copy.disable is off;
           highest_offset_in_remote_storage is -1 if the tier holds nothing, None while that is unknown
    """

    is_tiered: bool
    copies: bool = True
    highest_offset_in_remote_storage: int | None = None
    last_error: str = ""
    waits_for_quota: bool = False


def why_kept(
    segments: Sequence[LocalSegment],
    *,
    largest_timestamp: Callable[[int], int],
    config: LogConfig,
    tier: TierView,
    log_start_offset: int,
    log_end_offset: int,
    high_watermark: int,
    last_stable_offset: int,
    timestamp_ms: int,
) -> list[KeptSegment]:
    """Explain the segments in order, the active one last; `largest_timestamp(i)` is that of segment i, -1 if none."""
    is_copying = tier.is_tiered and tier.copies
    retention = _Retention(config, is_local=is_copying)
    excess = sum(segment.size for segment in segments) - retention.bytes if retention.bytes >= 0 else 0
    ends = [following.base_offset for _, following in pairwise(segments)] + [log_end_offset]
    highest = tier.highest_offset_in_remote_storage
    explained: list[KeptSegment] = []
    first_kept: int | None = None
    by_size = retention.bytes >= 0
    for at, (segment, end) in enumerate(zip(segments, ends, strict=True)):
        is_active = at == len(segments) - 1
        is_copied = tier.is_tiered and segment.size > 0 and highest is not None and end - 1 <= highest
        by_size = by_size and excess - segment.size >= 0
        newest = largest_timestamp(at) if retention.ms >= 0 else -1
        is_late = retention.ms >= 0 and timestamp_ms - newest > retention.ms
        due_ms = newest + retention.ms + 1 if retention.ms >= 0 and not (by_size or is_late) else None
        if end <= log_start_offset and not is_active:
            why, text = Kept.DUE, "it lies below the log start offset; the next retention round deletes it"
        elif is_active:
            why, text = Kept.ACTIVE, _active_text(config, is_copying, is_due=segment.size > 0 and (by_size or is_late))
        elif is_copying and end > last_stable_offset:
            why = Kept.UNSTABLE
            text = f"it reaches beyond the last stable offset, {last_stable_offset}; records beyond it are not copied"
        elif end > high_watermark:
            why, text = Kept.UNSTABLE, f"it reaches beyond the high watermark, {high_watermark}"
        elif is_copying and highest is None:
            why, text = Kept.UNKNOWN, "segments are kept until the tier's metadata are read"
        elif is_copying and not is_copied:
            why, text = Kept.COPY_PENDING, _pending_text(end, highest, tier)
        elif not (by_size or is_late):
            why, text = retention.explain(segment.size, excess)
            if tier.is_tiered and not tier.copies and not is_copied:
                why, text = Kept.COPY_DISABLED, f"it is not in the tier, and remote.log.copy.disable is set; {text}"
            elif is_copied:
                text = f"it is in the tier; {text}"
        else:
            reason = f"{retention.bytes_name}={retention.bytes}" if by_size else f"{retention.ms_name}={retention.ms}"
            why, text = Kept.DUE, f"it is past {reason}; the next retention round deletes it"
        if why is Kept.DUE and first_kept is not None:
            why, text = Kept.BEHIND, f"segments are deleted from the front, and the one at {first_kept} is kept"
        if why is not Kept.DUE and first_kept is None:
            first_kept = segment.base_offset
        excess -= segment.size if why is Kept.DUE else 0
        explained.append(KeptSegment(segment.base_offset, end - 1, segment.size, is_copied, why, text, due_ms))
    return explained


class _Retention:
    """The limits of the local log, and the names of their settings."""

    def __init__(self, config: LogConfig, *, is_local: bool) -> None:
        self.ms_name, self.bytes_name = "retention.ms", "retention.bytes"
        self.ms, self.bytes = config.retention_ms, config.retention_bytes
        if is_local and config.local_retention_ms != AS_A_WHOLE:
            self.ms_name, self.ms = "local.retention.ms", config.local_retention_ms
        if is_local and config.local_retention_bytes != AS_A_WHOLE:
            self.bytes_name, self.bytes = "local.retention.bytes", config.local_retention_bytes
        if not is_local and not config.is_deleting:
            self.ms = self.bytes = -1

    def explain(self, size: int, excess: int) -> tuple[Kept, str]:
        """What keeps a segment that exceeds neither limit."""
        if self.ms < 0 and self.bytes < 0:
            return Kept.FOREVER, f"neither {self.ms_name} nor {self.bytes_name} sets a limit"
        limits = []
        if self.ms >= 0:
            limits.append(f"{self.ms_name}={self.ms} has not passed since its newest record")
        if self.bytes >= 0:
            by_how_much = f"by {excess} bytes, it has {size}" if excess > 0 else "by nothing"
            limits.append(f"the log exceeds {self.bytes_name}={self.bytes} {by_how_much}")
        return Kept.RETENTION, " and ".join(limits)


def _active_text(config: LogConfig, is_copying: bool, *, is_due: bool) -> str:
    if is_due:
        return "it is the active segment, and past the limits of retention; the next retention round closes it"
    closed = f"it is closed at segment.bytes={config.segment_bytes} or segment.ms={config.segment_ms}"
    if not is_copying:
        return f"it is the active segment; {closed}"
    return f"it is the active segment, and only closed segments are copied; {closed}, or by `kbroker tier flush`"


def _pending_text(end: int, highest: int | None, tier: TierView) -> str:
    behind = end - 1 - (highest if highest is not None else -1)
    failure = f"; the last copy failed: {tier.last_error}" if tier.last_error else ""
    if tier.waits_for_quota:
        failure += f"; copies are delayed by the quota {QUOTA}"
    return f"it waits to be copied: the tier ends {behind} offsets before its end{failure}"
