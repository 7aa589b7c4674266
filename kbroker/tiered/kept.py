"""Explains why each segment of a local log is still here, in terms of retention: for /state and `kbroker tier why`.

The explanation puts the verdicts of `kbroker.storage.retention` into words: the segments reported as due are exactly
those that the next retention round deletes. Retention deletes whole segments from the front, so the first retained
segment keeps all later ones. For each later segment the explanation says what would keep it if it were the first.

Source  KIP-405, KIP-950; UnifiedLog.deleteOldSegments of Apache Kafka 4.3.1
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

from kbroker.storage.log_config import LogConfig
from kbroker.storage.retention import Hold, Limits, Reason, Verdict, local_limits

QUOTA: Final = "remote.log.manager.copy.max.bytes.per.second"


class Kept(StrEnum):
    """What keeps a segment, in a few words."""

    ACTIVE = "active"
    UNSTABLE = "not below the last stable offset"
    COPY_PENDING = "copy pending"
    COPY_DISABLED = "copying is disabled"
    RETENTION = "within retention"
    FOREVER = "kept for ever"
    LEASED = "leased"
    BEHIND = "behind one that stays"
    UNKNOWN = "the tier's metadata are not read yet"
    DUE = "due"


class KeptSegment(NamedTuple):
    """A segment and what keeps it."""

    verdict: Verdict
    why: Kept
    text: str


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

    @property
    def is_copied(self) -> bool:
        """Whether closed segments are copied to the tier."""
        return self.is_tiered and self.copies


def why_kept(
    verdicts: Iterable[Verdict], config: LogConfig, tier: TierView, *, high_watermark: int, last_stable_offset: int
) -> list[KeptSegment]:
    """Explain the verdicts about the segments of a log."""
    limits = local_limits(config, is_copied=tier.is_copied)
    explained: list[KeptSegment] = []
    first_kept: int | None = None
    for one in verdicts:
        if one.is_active:
            why, text = (
                Kept.ACTIVE,
                _active_text(config, tier, is_due=one.past is not None and one.held is not Hold.UNSTABLE),
            )
        elif tier.is_copied and not (one.is_copied or one.is_doomed) and one.end_offset >= last_stable_offset:
            why = Kept.UNSTABLE
            text = f"it reaches beyond the last stable offset, {last_stable_offset}; records beyond it are not copied"
        else:
            why, text = _explain(one, limits, tier, high_watermark)
        if why is Kept.DUE and first_kept is not None:
            why, text = Kept.BEHIND, f"segments are deleted from the front, and the one at {first_kept} is kept"
        if why is not Kept.DUE and first_kept is None:
            first_kept = one.base_offset
        explained.append(KeptSegment(one, why, text))
    return explained


def _explain(one: Verdict, limits: Limits, tier: TierView, high_watermark: int) -> tuple[Kept, str]:
    """What keeps a closed segment, if it is the first."""
    if one.held is Hold.UNSTABLE:
        return Kept.UNSTABLE, f"it reaches beyond the high watermark, {high_watermark}"
    if one.held is Hold.TIER_UNKNOWN:
        return Kept.UNKNOWN, "segments are kept until the tier's metadata are read"
    if one.held is Hold.COPY_PENDING:
        return Kept.COPY_PENDING, _pending_text(one, tier)
    if one.held is Hold.LEASED:
        return Kept.LEASED, "a lease holds it for a job that reads it; `kbroker tier lease --list` shows the leases"
    if one.past is Reason.LOG_START:
        return Kept.DUE, "it lies below the log start offset; the next retention round deletes it"
    if one.past is not None:
        by_size = one.past is Reason.SIZE
        limit = f"{limits.bytes_name}={limits.bytes}" if by_size else f"{limits.ms_name}={limits.ms}"
        return Kept.DUE, f"it is past {limit}; the next retention round deletes it"
    why, text = _within(one, limits)
    if one.is_copied:
        return why, f"it is in the tier; {text}"
    if tier.is_tiered:
        return Kept.COPY_DISABLED, f"it is not in the tier, and remote.log.copy.disable is set; {text}"
    return why, text


def _within(one: Verdict, limits: Limits) -> tuple[Kept, str]:
    """What keeps a segment that exceeds neither limit."""
    if limits.ms < 0 and limits.bytes < 0:
        return Kept.FOREVER, f"neither {limits.ms_name} nor {limits.bytes_name} sets a limit"
    reasons = []
    if limits.ms >= 0:
        reasons.append(f"{limits.ms_name}={limits.ms} has not passed since its newest record")
    if limits.bytes >= 0:
        by_how_much = f"by {one.excess} bytes, it has {one.size}" if one.excess > 0 else "by nothing"
        reasons.append(f"the log exceeds {limits.bytes_name}={limits.bytes} {by_how_much}")
    return Kept.RETENTION, " and ".join(reasons)


def _active_text(config: LogConfig, tier: TierView, *, is_due: bool) -> str:
    if is_due:
        return "it is the active segment, and past the limits of retention; the next retention round closes it"
    closed = f"it is closed at segment.bytes={config.segment_bytes} or segment.ms={config.segment_ms}"
    if not tier.is_copied:
        return f"it is the active segment; {closed}"
    return f"it is the active segment, and only closed segments are copied; {closed}, or by `kbroker tier flush`"


def _pending_text(one: Verdict, tier: TierView) -> str:
    assert tier.highest_offset_in_remote_storage is not None
    behind = one.end_offset - tier.highest_offset_in_remote_storage
    failure = f"; the last copy failed: {tier.last_error}" if tier.last_error else ""
    if tier.waits_for_quota:
        failure += f"; copies are delayed by the quota {QUOTA}"
    return f"it waits to be copied: the tier ends {behind} offsets before its end{failure}"
