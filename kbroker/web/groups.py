"""How far groups are behind."""

from __future__ import annotations

from collections.abc import Iterator

from kbroker.broker import Broker
from kbroker.web.ports import GroupView


def lags(view: GroupView, broker: Broker) -> Iterator[tuple[tuple[str, int], int]]:
    """((topic, partition), records between the committed offset and the high watermark) for what is led here.

    A committed offset beyond the high watermark (of a topic that was made anew) is no lag.
    """
    for key, offset in tuple(view.offsets.items()):
        partition = broker.replicas.partitions.get(key)
        if partition is not None and partition.progress is not None and offset >= 0:
            yield key, max(0, partition.progress.high_watermark - offset)
