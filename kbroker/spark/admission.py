"""How far the next batch of a stream goes, by maxOffsetsPerTrigger, minOffsetsPerTrigger and maxTriggerDelay.

Source  KafkaMicroBatchStream of spark-sql-kafka-0-10 4.0.0, but for its rounding: here a batch never has more
"""

from __future__ import annotations

from collections.abc import Mapping

from kbroker.spark.positions import Offsets, Partition


def admitted(start: Mapping[Partition, int], end: Mapping[Partition, int], *, most: int | None) -> Offsets:
    """Where a batch from `start` ends that has at most so many offsets: of each partition in proportion to what waits.

    Shape  both have the same partitions, and no end lies before its start
    """
    waiting = {partition: end[partition] - start[partition] for partition in end}
    total = sum(waiting.values())
    if most is None or total <= most:
        return dict(end)
    shares = {partition: most * count // total for partition, count in waiting.items()}
    # What rounding left over goes to those of whom it took most; the order of names decides among equals.
    left = most - sum(shares.values())
    by_remainder = sorted(waiting, key=lambda partition: (-(most * waiting[partition] % total), partition))
    for partition in by_remainder[:left]:
        shares[partition] += 1
    return {partition: start[partition] + share for partition, share in shares.items()}


class Pace:
    """Holds a batch back until enough has come together, or long enough was waited. Units: milliseconds."""

    def __init__(self, *, least: int | None, max_delay_ms: int) -> None:
        self._least = least
        self._max_delay_ms = max_delay_ms
        self._last_ms: int | None = None  # as in the Kafka source, the first batch is not held back

    def holds(self, waiting: int, *, now_ms: int) -> bool:
        """Whether a batch of so many offsets has to wait; one that need not is taken for begun."""
        is_early = self._last_ms is not None and now_ms - self._last_ms < self._max_delay_ms
        if is_early and self._least is not None and waiting < self._least:
            return True
        if waiting:
            self._last_ms = now_ms
        return False
