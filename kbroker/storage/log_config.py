"""What one partition's log is told about itself.

`kbroker.config` builds a `LogConfig` from the topic's settings, the broker's and the defaults; here are Kafka's names
with `.` as `_`, Kafka's units and Kafka's defaults (4.3.1), so that a log can be made without a broker. Only
max_producers and kbroker_remote_flush_timestamp_ms are kbroker's own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

MAX_INT64: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class LogConfig:
    """Settings of one log; immutable, so a change is a new object given to the log.

    Units   `_bytes` and `_ms` as the names say; -1 in a retention means "no limit", -2 in a local one "as the whole
            log's"
    Source  TopicConfig and LogConfig of Apache Kafka 4.3.1
    """

    segment_bytes: int = 1 << 30
    segment_ms: int = 604_800_000
    segment_jitter_ms: int = 0
    segment_index_bytes: int = 10 << 20
    index_interval_bytes: int = 4096
    flush_messages: int = MAX_INT64
    flush_ms: int = MAX_INT64
    retention_ms: int = 604_800_000
    retention_bytes: int = -1
    local_retention_ms: int = -2
    local_retention_bytes: int = -2
    max_message_bytes: int = 1_048_588
    message_timestamp_type: str = "CreateTime"
    message_timestamp_before_max_ms: int = MAX_INT64
    message_timestamp_after_max_ms: int = 3_600_000
    compression_type: str = "producer"
    compression_gzip_level: int = -1
    compression_lz4_level: int = 9
    compression_zstd_level: int = 3
    cleanup_policy: frozenset[str] = frozenset({"delete"})
    delete_retention_ms: int = 86_400_000
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = MAX_INT64
    min_cleanable_dirty_ratio: float = 0.5
    min_insync_replicas: int = 1
    unclean_leader_election_enable: bool = False
    file_delete_delay_ms: int = 60_000
    preallocate: bool = False
    remote_storage_enable: bool = False
    remote_log_copy_disable: bool = False
    remote_log_delete_on_disable: bool = False
    kbroker_remote_flush_timestamp_ms: int = -1
    producer_id_expiration_ms: int = 86_400_000
    max_producers: int = 100_000

    @property
    def is_deleting(self) -> bool:
        """Retention by time and size applies."""
        return "delete" in self.cleanup_policy

    @property
    def is_compacting(self) -> bool:
        return "compact" in self.cleanup_policy

    @property
    def is_copied_to_tier(self) -> bool:
        """Closed segments are copied to the tier, and only then may the local ones go."""
        return self.remote_storage_enable and not self.remote_log_copy_disable and not self.is_compacting

    @property
    def is_log_append_time(self) -> bool:
        return self.message_timestamp_type == "LogAppendTime"

    @property
    def offset_index_entries(self) -> int:
        """How many entries an offset index holds before the segment must roll."""
        return self.segment_index_bytes // 8

    @property
    def time_index_entries(self) -> int:
        """The same for the time index; one entry more is kept free for the one written on a roll."""
        return self.segment_index_bytes // 12 - 1
