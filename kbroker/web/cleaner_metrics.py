"""Metrics of the log cleaner: those of Kafka's LogCleaner and LogCleanerManager.

Kafka's DeadThreadCount is missing: a pass has a process of its own, and the next pass gets a new one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from kbroker.broker import Broker
from kbroker.broker.log_cleaner import PassResult
from kbroker.web.metrics import GAUGE, of_broker

_CLEANER: Final = "kafka_log_logcleaner"
_MANAGER: Final = "kafka_log_logcleanermanager"


def _largest(name: str, help: str, read: Callable[[PassResult], float]) -> None:
    def largest(broker: Broker) -> float:
        return max(map(read, broker.cleaner.last_results), default=0)

    of_broker(GAUGE, f"{_CLEANER}_{name}", help=help)(largest)


_largest("max_clean_time_secs", "Longest of the last passes, in seconds.", lambda result: result.elapsed_ms / 1000)
_largest(
    "max_buffer_utilization_percent",
    "How full the map of keys was at most in the last passes.",
    lambda result: 100 * result.utilization,
)
_largest(
    "max_compaction_delay_secs",
    "By how much the last passes exceeded max.compaction.lag.ms at most, in seconds.",
    lambda result: result.delay_ms / 1000,
)


@of_broker(GAUGE, f"{_CLEANER}_cleaner_recopy_percent")
def _recopy_percent(broker: Broker) -> float:
    """Percentage of the bytes that the last passes read and kept."""
    results = broker.cleaner.last_results
    return 100 * sum(one.bytes_kept for one in results) / max(1, sum(one.bytes_read for one in results))


@of_broker(GAUGE, f"{_MANAGER}_max_dirty_percent")
def _max_dirty_percent(broker: Broker) -> float:
    """Percentage of the dirtiest log that was not cleaned when the cleaner last looked."""
    return 100 * broker.cleaner.dirty_ratio


@of_broker(GAUGE, f"{_MANAGER}_time_since_last_run_ms")
def _time_since_last_run(broker: Broker) -> float:
    """Milliseconds since the cleaner last looked for a log to clean."""
    return broker.env.now_ms() - broker.cleaner.last_run_ms


@of_broker(GAUGE, f"{_MANAGER}_uncleanable_partitions_count")
def _uncleanable_partitions(broker: Broker) -> float:
    """Partitions that cannot be cleaned until the next start."""
    return len(broker.cleaner.uncleanable)


@of_broker(GAUGE, f"{_MANAGER}_uncleanable_bytes")
def _uncleanable_bytes(broker: Broker) -> float:
    """Bytes of closed but not cleaned segments of these partitions."""
    return broker.cleaner.uncleanable_bytes
