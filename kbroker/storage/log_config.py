"""The settings of one partition's log.

`kbroker.config` builds a `LogConfig` from the topic's settings, the broker's and the defaults. Fields have Kafka's
names (with `.` as `_`), units and defaults (4.3.1), so that a log can be created without a broker. Only max_producers,
retention_lease_max_ms and those that begin with kbroker_ are kbroker's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Final

from kbroker.config.leases import held_from

MAX_INT64: Final = (1 << 63) - 1


@lru_cache(64)
def attached_ends(entries: frozenset[str]) -> Mapping[int, int]:
    """The end offsets in kbroker.attached.end.offsets by partition. Errors: ValueError."""
    return {int(partition): int(end) for partition, _, end in (entry.partition(":") for entry in entries)}


@dataclass(frozen=True, slots=True)
class LogConfig:
    """The settings of one log; immutable: to change them, give the log a new object.

    Units   `_bytes` and `_ms` as in the names; -1 in a retention setting means "no limit", -2 in a local one "same as
            the whole log's"
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
    min_insync_replicas: int = 1
    unclean_leader_election_enable: bool = False
    file_delete_delay_ms: int = 60_000
    min_cleanable_dirty_ratio: float = 0.5
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = MAX_INT64
    delete_retention_ms: int = 86_400_000
    remote_storage_enable: bool = False
    remote_log_copy_disable: bool = False
    remote_log_delete_on_disable: bool = False
    kbroker_attached_end_offsets: frozenset[str] = frozenset()
    kbroker_attached_leader_epoch: int = -1
    kbroker_read_only: bool = False
    kbroker_remote_flush_timestamp_ms: int = -1
    kbroker_retention_leases: frozenset[str] = frozenset()
    leader_replication_throttled_replicas: frozenset[str] = frozenset()
    follower_replication_throttled_replicas: frozenset[str] = frozenset()
    producer_id_expiration_ms: int = 86_400_000
    max_producers: int = 100_000
    retention_lease_max_ms: int = 86_400_000

    def __reduce__(self) -> tuple[type[LogConfig], tuple[object, ...]]:
        # For worker processes. By default pickle would set the attributes of a new object, which is frozen.
        return LogConfig, tuple(getattr(self, one.name) for one in fields(self))

    @property
    def is_deleting(self) -> bool:
        """Retention by time and size applies."""
        return "delete" in self.cleanup_policy

    @property
    def is_compacting(self) -> bool:
        return "compact" in self.cleanup_policy

    @property
    def is_copied_to_tier(self) -> bool:
        """Whether closed segments are copied to the tier; local segments may be deleted only after that."""
        return self.remote_storage_enable and not self.remote_log_copy_disable and not self.is_compacting

    def attached_end(self, partition: int) -> int:
        """The offset up to which the partition was attached from another cluster's tier; 0 if it was not."""
        return attached_ends(self.kbroker_attached_end_offsets).get(partition, 0)

    def held_from(self, partition: int, timestamp_ms: int) -> int | None:
        """The first offset of the partition that a lease holds against retention; None if there is none."""
        return held_from(self.kbroker_retention_leases, partition, timestamp_ms, max_ms=self.retention_lease_max_ms)

    @property
    def is_log_append_time(self) -> bool:
        return self.message_timestamp_type == "LogAppendTime"

    @property
    def offset_index_entries(self) -> int:
        """The number of entries that an offset index may hold before the segment must roll."""
        return self.segment_index_bytes // 8

    @property
    def time_index_entries(self) -> int:
        """The same for the time index; the entry that a roll adds is reserved."""
        return self.segment_index_bytes // 12 - 1
