"""Counts ISR changes and unclean elections, which cannot be read from the node when somebody asks for metrics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from kbroker.metadata.delta import Delta
from kbroker.metadata.image import Image
from kbroker.runtime.metrics import Metrics

SHRINKS: Final = "isr.shrinks"
EXPANDS: Final = "isr.expands"
UNCLEAN: Final = "unclean.elections"


def count_isr_changes(metrics: Metrics, broker_id: int) -> Callable[[Image, Delta], None]:
    """An image listener that counts ISR changes and unclean elections of the partitions that this broker leads."""
    shrinks, expands, unclean = metrics.counter(SHRINKS), metrics.counter(EXPANDS), metrics.counter(UNCLEAN)

    def on_image(_image: Image, delta: Delta) -> None:
        for change in delta.changed_partitions:
            before, after = change.before, change.after
            if before is not None and after is not None and after.leader == broker_id:
                shrinks.add(len(after.isr) < len(before.isr))
                expands.add(len(after.isr) > len(before.isr))
                unclean.add(change.is_unclean_election)

    return on_image
