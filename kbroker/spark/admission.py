"""Limits the next batch of a stream by maxOffsetsPerTrigger, minOffsetsPerTrigger and maxTriggerDelay.

Source  KafkaMicroBatchStream of spark-sql-kafka-0-10 4.0.0
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

K = TypeVar("K")


def admitted(start: Mapping[K, int], end: Mapping[K, int], *, most: int | None) -> dict[K, int]:
    """The end offsets of a batch of about `most` offsets; each partition gets a share in proportion to its backlog.

    Shape  start and end have the same partitions, and no end is below its start
    """
    waiting = {partition: end[partition] - start[partition] for partition in end}
    total = sum(waiting.values())
    if most is None or total <= most:
        return dict(end)
    # At least one offset of each partition that has any, so that no partition starves.
    return {at: start[at] + min(count, max(1, most * count // total)) for at, count in waiting.items()}


class Pace:
    """Delays a batch until it has enough offsets, or until the maximum delay is over. Units: milliseconds."""

    def __init__(self, *, least: int | None, max_delay_ms: int) -> None:
        self._least = least
        self._max_delay_ms = max_delay_ms
        self._last_ms: int | None = None  # as in the Kafka source, the first batch is not delayed

    def holds(self, waiting: int, *, now_ms: int) -> bool:
        """Whether a batch of `waiting` offsets has to wait. If not, the batch counts as started."""
        is_early = self._last_ms is not None and now_ms - self._last_ms < self._max_delay_ms
        if is_early and self._least is not None and waiting < self._least:
            return True
        if waiting:
            self._last_ms = now_ms
        return False
