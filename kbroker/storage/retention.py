"""Decide which segments of a log retention deletes, and why each of the others stays.

Retention deletes whole segments from the start of the log. Three rules apply one after the other: segments below
log_start_offset, segments in excess of retention.bytes, and segments whose newest record is older than retention.ms.
Nothing at or above the high watermark is deleted. If the active segment is to be deleted too, the log rolls first.

In a tiered log the local limits apply, a segment is deleted only after it was copied to the tier, and only
local_log_start_offset rises. An active segment that is due is closed first, so that it can be copied. The local limits
apply even if cleanup.policy is empty and nothing is deleted from the log itself.

`judge` gives a verdict for each segment. The plan takes the verdicts up to the first segment that stays; /state and
`kbroker tier why` show all of them (`kbroker.tiered.kept`).

Source  UnifiedLog.deletableSegments, deleteOldSegments of Apache Kafka 4.3.1
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from itertools import pairwise
from typing import Final, NamedTuple, Protocol

from kbroker.storage.log_config import LogConfig

AS_THE_WHOLE_LOG: Final = -2


class LocalSegment(Protocol):
    """The fields of a local segment that decisions about it use."""

    @property
    def base_offset(self) -> int: ...

    @property
    def size(self) -> int: ...


class Reason(StrEnum):
    """Why a segment is deleted, for the log."""

    LOG_START = "log start offset"
    SIZE = "retention.bytes"
    TIME = "retention.ms"


class Hold(Enum):
    """What keeps a segment that is past the limits."""

    UNSTABLE = 0
    """It reaches beyond the high watermark."""
    TIER_UNKNOWN = 1
    COPY_PENDING = 2
    LEASED = 3


class Limits(NamedTuple):
    """The limits of the local log, -1 for none, and the names of the settings that give them."""

    ms: int
    bytes: int
    ms_name: str = "retention.ms"
    bytes_name: str = "retention.bytes"


def local_limits(config: LogConfig, *, is_copied: bool) -> Limits:
    """The limits of a local log; `is_copied` says whether its closed segments are copied to the tier."""
    if not is_copied:
        return Limits(config.retention_ms, config.retention_bytes) if config.is_deleting else Limits(-1, -1)
    limits = Limits(config.retention_ms, config.retention_bytes)
    if config.local_retention_ms != AS_THE_WHOLE_LOG:
        limits = limits._replace(ms=config.local_retention_ms, ms_name="local.retention.ms")
    if config.local_retention_bytes != AS_THE_WHOLE_LOG:
        limits = limits._replace(bytes=config.local_retention_bytes, bytes_name="local.retention.bytes")
    return limits


class Verdict(NamedTuple):
    """What retention says about one segment.

    Units   size and excess are bytes, and excess is that of the log without the segments deleted before; end_offset is
            inclusive; due_ms is the wall time at which the time limit is reached, None if another rule decides
    Shape   past says which limit the segment is past, None if it stays within all of them; held says what keeps it
            nevertheless; is_copied says that the tier has the whole segment
    Note    each segment is judged as if it were the first of the log
    """

    base_offset: int
    end_offset: int
    size: int
    excess: int
    is_active: bool
    is_copied: bool
    past: Reason | None
    held: Hold | None
    due_ms: int | None

    @property
    def is_doomed(self) -> bool:
        """Whether the segment is deleted, provided that those before it are."""
        return self.past is not None and self.held is None


def judge(
    segments: Sequence[LocalSegment],
    *,
    largest_timestamp: Callable[[int], int],
    limits: Limits,
    log_start_offset: int,
    log_end_offset: int,
    high_watermark: int,
    timestamp_ms: int,
    waits_for_copy: bool,
    highest_offset_in_remote_storage: int | None,
    leased_from: int | None = None,
) -> Iterator[Verdict]:
    """Judge the segments in order; the active one is last.

    `largest_timestamp(i)` is that of segment i, -1 if it has none; it may cost a read and is called only if time
    decides. With `waits_for_copy`, segments stay until they are copied. `highest_offset_in_remote_storage` is -1 if the
    tier has nothing, None while that is unknown, or for a log without a tier. A lease holds the records from
    `leased_from` on, unless the tier has them.
    """
    ends = [following.base_offset for _, following in pairwise(segments)] + [log_end_offset]
    excess = sum(segment.size for segment in segments) - limits.bytes if limits.bytes >= 0 else 0
    by_size, is_first = limits.bytes >= 0, True
    for at, (segment, end) in enumerate(zip(segments, ends, strict=True)):
        is_active = at == len(segments) - 1
        highest = highest_offset_in_remote_storage
        is_unused = is_active and not segment.size
        is_copied = highest is not None and end - 1 <= highest and not is_unused
        by_size = by_size and excess - segment.size >= 0
        past = due_ms = held = None
        if high_watermark < end:
            held = Hold.UNSTABLE
        if end <= log_start_offset and not is_active:
            past = Reason.LOG_START
        elif by_size and not is_unused:
            past = Reason.SIZE
        elif limits.ms >= 0 and held is None and not is_unused:
            due_ms = largest_timestamp(at) + limits.ms + 1
            if timestamp_ms >= due_ms:
                past, due_ms = Reason.TIME, None
        if waits_for_copy and held is None and not is_copied and past is not Reason.LOG_START:
            held = Hold.TIER_UNKNOWN if highest is None else Hold.COPY_PENDING
        is_leased = leased_from is not None and end > leased_from and not waits_for_copy
        if is_leased and held is None and past is not None and past is not Reason.LOG_START:
            held = Hold.LEASED
        verdict = Verdict(segment.base_offset, end - 1, segment.size, excess, is_active, is_copied, past, held, due_ms)
        yield verdict
        is_first = is_first and verdict.is_doomed
        if is_first:
            excess -= segment.size


@dataclass(frozen=True, slots=True)
class RetentionPlan:
    """The segments to delete, by base_offset and oldest first, and whether to roll the active segment, either to
    delete it or to copy it to the tier.

    Shape  reasons is parallel to doomed. is_copied: the tier has the doomed segments, so log_start_offset stays
    """

    doomed: tuple[int, ...] = ()
    rolls: bool = False
    reasons: tuple[Reason, ...] = field(default=(), compare=False)
    is_copied: bool = field(default=False, compare=False)

    def __bool__(self) -> bool:
        return bool(self.doomed) or self.rolls


def plan_retention(verdicts: Iterable[Verdict], *, is_copied: bool) -> RetentionPlan:
    """The plan that follows from the verdicts; asks for none after the first segment that stays."""
    doomed: list[int] = []
    reasons: list[Reason] = []
    rolls = False
    for verdict in verdicts:
        if verdict.past is None or verdict.held is Hold.UNSTABLE:
            break
        rolls = verdict.is_active
        if verdict.held is not None:
            break
        doomed.append(verdict.base_offset)
        reasons.append(verdict.past)
    return RetentionPlan(tuple(doomed), rolls, tuple(reasons), is_copied)
