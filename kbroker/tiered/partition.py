"""The tier's state of one partition, held by the partition while its topic is tiered: no I/O, no waiting.

A tiered partition has three offsets in three independent fields: log_start_offset and local_log_start_offset belong to
the log, highest_offset_in_remote_storage is here.

    Lx  local_log_start_offset      Ry  highest_offset_in_remote_storage
    Ly  last_stable_offset          Rx  log_start_offset, while it is below the local log
    Lz  log_end_offset              Lz >= Ly >= Lx, Ly >= Ry >= Rx, and Lx <= Ry + 1: no gap between the tiers

Source  KIP-405
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # not imported by a broker without a tier
    from kbroker.tiered.api import TopicIdPartition

NOTHING = -1


@dataclass(slots=True)
class TierCounters:
    """What the tier did for one partition since the broker started. Names and meaning follow BrokerTopicMetrics."""

    copy_bytes: int = 0
    copy_requests: int = 0
    copy_errors: int = 0
    fetch_bytes: int = 0
    fetch_requests: int = 0
    fetch_errors: int = 0
    delete_requests: int = 0
    delete_errors: int = 0
    expired_lookups: int = 0
    build_requests: int = 0
    build_errors: int = 0

    def add(self, other: TierCounters) -> None:
        """Add the counts of `other`."""
        for one in fields(self):
            setattr(self, one.name, getattr(self, one.name) + getattr(other, one.name))


@dataclass(slots=True)
class RemotePartition:
    """The tier's state of a tiered partition.

    Units  offsets count records; highest offset NOTHING (-1) means that the tier holds nothing
    Note   highest_offset_in_remote_storage is None until the metadata was read; until then nothing is deleted locally
    Note   copies: whether segments are copied (remote.log.copy.disable is off)
    Note   waits_for_quota: remote.log.manager.copy.max.bytes.per.second delays the next copy
    Note   lags and sizes are from the last check, which also runs when copies fail; size_computation_ms is how long the
           check took
    Note   retention_percent is the whole log's share of retention.bytes, local_retention_percent the local log's share
           of local.retention.bytes; 0 without a limit, None before the first check
    """

    topic_id_partition: TopicIdPartition
    copies: bool = True
    highest_offset_in_remote_storage: int | None = None
    copy_lag_bytes: int = 0
    copy_lag_segments: int = 0
    delete_lag_bytes: int = 0
    delete_lag_segments: int = 0
    remote_size_bytes: int = 0
    remote_segments: int = 0
    size_computation_ms: int = 0
    retention_percent: int | None = None
    local_retention_percent: int | None = None
    last_error: str = ""
    waits_for_quota: bool = False
    counters: TierCounters = field(default_factory=TierCounters)
