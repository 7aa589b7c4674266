"""Metrics of the tier's metadata: how much of `__remote_log_metadata` was read, and what in it was of no use.

They stay 0 until something is tiered, and where a plug-in keeps the metadata in another way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kbroker.broker import Broker
from kbroker.web.metrics import COUNTER, Samples, of_broker, one


def _counted(name: str, help: str, read: Callable[[Any], int]) -> None:
    def samples(broker: Broker) -> Samples:
        manager = broker.tier.manager
        counters = None if manager is None else getattr(manager.tools.metadata, "counters", None)
        return one(0 if counters is None else read(counters))

    of_broker(COUNTER, name, help)(samples)


_counted(
    "kbroker_tier_metadata_events_read_total",
    "Events that were read from the log of the tier's metadata, and not from a snapshot.",
    lambda counters: counters.events_read,
)
_counted(
    "kbroker_tier_metadata_skipped_records_total",
    "Records of the tier's metadata that could not be read, damaged ones or a stranger's; each is told of in the log.",
    lambda counters: counters.skipped_records,
)
_counted(
    "kbroker_tier_metadata_dropped_events_total",
    "Events of the tier's metadata that did not fit what was known, such as an impossible state.",
    lambda counters: counters.dropped_events,
)
