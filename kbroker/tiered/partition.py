"""The tier's view of one partition, kept with it while its topic is tiered: no I/O, no waiting.

The three offsets of a tiered partition are three fields, and none is derived from another: log_start_offset and
local_log_start_offset belong to the log, highest_offset_in_remote_storage is here.

    Lx  local_log_start_offset      Ry  highest_offset_in_remote_storage
    Ly  last_stable_offset          Rx  log_start_offset, while it lies below the local log
    Lz  log_end_offset              Lz >= Ly >= Lx, Ly >= Ry >= Rx, and Lx <= Ry + 1: no hole between the tiers

Source  KIP-405
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from kbroker.tiered.api import TopicIdPartition

NOTHING = -1


@dataclass(slots=True)
class TierCounters:
    """What the tier did for one partition since the broker started; names and meaning as Kafka's BrokerTopicMetrics."""

    copy_bytes: int = 0
    copy_requests: int = 0
    copy_errors: int = 0
    fetch_bytes: int = 0
    fetch_requests: int = 0
    fetch_errors: int = 0
    delete_requests: int = 0
    delete_errors: int = 0
    expired_lookups: int = 0

    def add(self, other: TierCounters) -> None:
        """Count what `other` counted as well."""
        for one in fields(self):
            setattr(self, one.name, getattr(self, one.name) + getattr(other, one.name))


@dataclass(slots=True)
class RemotePartition:
    """What the broker knows of a tiered partition beside its log.

    Units  offsets count records; NOTHING (-1) for a highest offset where the tier holds nothing
    Note   highest_offset_in_remote_storage is None until the metadata has been read: nothing local may go before that
    Note   copies says whether segments are copied (remote.log.copy.disable is off)
    Note   waits_for_quota: what is next to be copied is held by remote.log.manager.copy.max.bytes.per.second
    Note   lags and sizes are those of the last look, which is taken also when copies fail; size_computation_ms is how
           long that took
    Note   retention_percent is how much of retention.bytes the whole log takes, local_retention_percent how much of
           local.retention.bytes what is here does; 0 without a limit, None before the first look
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
