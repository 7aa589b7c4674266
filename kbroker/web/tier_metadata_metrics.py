"""Metrics of the tier's metadata: events read from `__remote_log_metadata`, and records that were not usable.

They stay 0 until a topic is tiered, and if a plug-in stores the metadata elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kbroker.broker import Broker
from kbroker.web.metrics import COUNTER, of_broker


def _counted(name: str, help: str, read: Callable[[Any], int]) -> None:
    def total(broker: Broker) -> float:
        manager = broker.tier.manager
        counters = None if manager is None else getattr(manager.tools.metadata, "counters", None)
        return 0 if counters is None else read(counters)

    of_broker(COUNTER, name, help=help)(total)


_counted(
    "kbroker_tier_metadata_events_read_total",
    "Events read from the log of the tier's metadata; events from a snapshot do not count.",
    lambda counters: counters.events_read,
)
_counted(
    "kbroker_tier_metadata_skipped_records_total",
    "Records of the tier's metadata that could not be read (damaged, or from a foreign writer); each one is logged.",
    lambda counters: counters.skipped_records,
)
_counted(
    "kbroker_tier_metadata_dropped_events_total",
    "Events of the tier's metadata that contradict earlier events, such as an impossible state change.",
    lambda counters: counters.dropped_events,
)
