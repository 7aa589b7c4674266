"""Settings of the logs: where they are, and the defaults that topics fall back to."""

from __future__ import annotations

from kbroker.config.settings import (
    DAY,
    GB,
    HOUR,
    KB,
    MAX_INT64,
    MB,
    MINUTE,
    SECOND,
    Dynamic,
    Setting,
    harmless,
    refused,
    setting,
    settings,
)
from kbroker.config.values import Kind

CLUSTER_WIDE, PER_BROKER = Dynamic.CLUSTER_WIDE, Dynamic.PER_BROKER

COMPRESSION_TYPES = ("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")
TIMESTAMP_TYPES = ("CreateTime", "LogAppendTime")
MIN_SEGMENT_BYTES = 1 * MB  # Kafka's; kbroker takes less, with a warning
SMALLEST_SEGMENT_BYTES = 14  # what Kafka itself took before 4.0: the size of the smallest record ever


def not_compacted_yet(policy: tuple[str, ...]) -> str | None:
    """What to say of a compacting policy.

    It is taken, because nothing that it promises is broken: the newest record of each key stays, every record has a
    key, and time alone deletes nothing. When older ones go was never promised.
    """
    return "keeps every record: compaction is not implemented yet" if "compact" in policy else None


def _one_directory(directories: tuple[str, ...] | None) -> str | None:
    if directories is not None and (len(directories) != 1 or not directories[0]):
        return "exactly one log directory is needed; several are not implemented yet"
    return None


def _retention(value: int | None) -> str | None:
    return None if value is None or value != 0 else "must be unlimited (-1) or, greater than or equal to 1"


def _period(value: int | None) -> str | None:
    return None if value is None or value >= 1 else "Value must be at least 1"


def _length(value: int | None) -> str | None:
    return None if value is None or value >= 0 else "Value must be at least 0"


@settings
class LogSettings:
    """Where the logs are and how they are kept, unless a topic says otherwise."""

    log_dir: tuple[str, ...] = setting(
        default=("/var/lib/kbroker",), check=_one_directory, doc="The data directory, where log.dirs does not name one."
    )
    log_dirs: tuple[str, ...] | None = setting(
        kind=Kind.LIST, check=_one_directory, doc="The data directory. Exactly one for now."
    )
    num_partitions: int = setting(default=1, at_least=1, doc="Partitions of a topic that is created without a count.")
    default_replication_factor: int = setting(default=1, doc="Replicas of a topic that is created without a count.")
    auto_create_topics_enable: bool = setting(
        default=True, doc="A client that asks for an unknown topic by Metadata may have it created."
    )
    delete_topic_enable: bool = setting(default=True, doc="Whether DeleteTopics is allowed.")
    message_max_bytes: int = setting(
        default=1 * MB + 12,
        at_least=0,
        dynamic=CLUSTER_WIDE,
        doc="The largest batch, compressed, with its first 12 bytes.",
    )
    min_insync_replicas: int = setting(
        default=1,
        at_least=1,
        dynamic=CLUSTER_WIDE,
        doc="How many replicas must be in sync for a produce with acks=all.",
    )
    compression_type: str = setting(
        default="producer",
        one_of=COMPRESSION_TYPES,
        dynamic=CLUSTER_WIDE,
        doc="How batches are stored; producer keeps them as they came.",
    )
    compression_gzip_level: int = setting(
        default=-1,
        at_least=1,
        at_most=9,
        also=-1,
        dynamic=CLUSTER_WIDE,
        doc="The level where the broker itself compresses by gzip.",
    )
    compression_lz4_level: int = setting(
        default=9,
        at_least=1,
        at_most=17,
        dynamic=CLUSTER_WIDE,
        doc="The level where the broker itself compresses by lz4.",
    )
    compression_zstd_level: int = setting(
        default=3,
        at_least=-131072,
        at_most=22,
        dynamic=CLUSTER_WIDE,
        doc="The level where the broker itself compresses by zstd.",
    )
    unclean_leader_election_enable: bool = setting(
        default=False,
        dynamic=CLUSTER_WIDE,
        doc="Whether a replica out of sync may lead when no other is left, at the price of lost records.",
    )
    log_segment_bytes: int = setting(
        default=1 * GB,
        at_least=SMALLEST_SEGMENT_BYTES,
        warn_below=MIN_SEGMENT_BYTES,
        dynamic=CLUSTER_WIDE,
        doc="A segment file is closed before it would grow past this. Less than Kafka's 1 MiB works with a warning.",
    )
    log_roll_ms: int | None = setting(
        kind=Kind.LONG,
        check=_period,
        dynamic=CLUSTER_WIDE,
        doc="A segment this old is closed; log.roll.hours where unset.",
    )
    log_roll_hours: int = setting(default=168, at_least=1, doc="A segment this old is closed, in hours.")
    log_roll_jitter_ms: int | None = setting(
        kind=Kind.LONG,
        check=_length,
        dynamic=CLUSTER_WIDE,
        doc="Up to so much earlier a segment may roll; log.roll.jitter.hours where unset.",
    )
    log_roll_jitter_hours: int = setting(
        default=0, at_least=0, doc="Up to so much earlier a segment may roll, in hours."
    )
    log_index_size_max_bytes: int = setting(
        default=10 * MB, at_least=4, dynamic=CLUSTER_WIDE, doc="A segment whose index reaches this size is closed."
    )
    log_index_interval_bytes: int = setting(
        default=4 * KB,
        at_least=0,
        dynamic=CLUSTER_WIDE,
        doc="About so many bytes of log lie between two index entries.",
    )
    log_flush_interval_messages: int = setting(
        default=MAX_INT64,
        kind=Kind.LONG,
        at_least=1,
        dynamic=CLUSTER_WIDE,
        doc="After so many records a log is synced; 1 survives a power cut.",
    )
    log_flush_interval_ms: int | None = setting(
        kind=Kind.LONG,
        dynamic=CLUSTER_WIDE,
        doc="After so long unsynced records are synced; log.flush.scheduler.interval.ms where unset.",
    )
    log_flush_scheduler_interval_ms: int = setting(
        default=MAX_INT64, kind=Kind.LONG, doc="How often it is looked which logs are due for a sync."
    )
    log_flush_offset_checkpoint_interval_ms: int = setting(
        default=MINUTE,
        at_least=0,
        doc="How often the recovery points are written: the offsets below which everything is synced.",
    )
    log_flush_start_offset_checkpoint_interval_ms: int = setting(
        default=MINUTE, at_least=0, doc="How often the log start offsets are written."
    )
    log_retention_ms: int | None = setting(
        kind=Kind.LONG,
        check=_retention,
        dynamic=CLUSTER_WIDE,
        doc="Closed segments older than this are deleted; log.retention.minutes where unset.",
    )
    log_retention_minutes: int | None = setting(
        kind=Kind.INT, check=_retention, doc="The same in minutes; log.retention.hours where unset."
    )
    log_retention_hours: int = setting(
        default=168, check=_retention, doc="The same in hours. Below 0 there is no limit."
    )
    log_retention_bytes: int = setting(
        default=-1,
        kind=Kind.LONG,
        dynamic=CLUSTER_WIDE,
        doc="A partition larger than this loses its oldest segments. Below 0 there is no limit.",
    )
    log_retention_check_interval_ms: int = setting(
        default=5 * MINUTE, kind=Kind.LONG, at_least=1, doc="How often it is looked what retention deletes."
    )
    log_segment_delete_delay_ms: int = setting(
        default=MINUTE,
        kind=Kind.LONG,
        at_least=0,
        dynamic=CLUSTER_WIDE,
        doc="How long a deleted segment's files stay, renamed, before they go.",
    )
    log_cleanup_policy: tuple[str, ...] = setting(
        default=("delete",),
        one_of=("compact", "delete"),
        warn=not_compacted_yet,
        dynamic=CLUSTER_WIDE,
        doc="What happens to old records. With compact they must have keys, and all of them stay for now.",
    )
    log_message_timestamp_type: str = setting(
        default="CreateTime",
        one_of=TIMESTAMP_TYPES,
        dynamic=CLUSTER_WIDE,
        doc="Whose clock stamps records: the producer's or the broker's.",
    )
    log_message_timestamp_before_max_ms: int = setting(
        default=MAX_INT64,
        kind=Kind.LONG,
        at_least=0,
        dynamic=CLUSTER_WIDE,
        doc="A record stamped further back than this is refused.",
    )
    log_message_timestamp_after_max_ms: int = setting(
        default=HOUR,
        kind=Kind.LONG,
        at_least=0,
        dynamic=CLUSTER_WIDE,
        doc="A record stamped further ahead than this is refused.",
    )
    num_recovery_threads_per_data_dir: int = setting(
        default=2,
        at_least=1,
        dynamic=CLUSTER_WIDE,
        doc="Worker processes that recover logs after an unclean shutdown; one for each core unless this is set.",
    )
    log_local_retention_ms: int = setting(
        default=-2,
        kind=Kind.LONG,
        at_least=-2,
        dynamic=CLUSTER_WIDE,
        doc="The time for local segments of a tiered topic; -2 is that of the whole log.",
    )
    log_local_retention_bytes: int = setting(
        default=-2,
        kind=Kind.LONG,
        at_least=-2,
        dynamic=CLUSTER_WIDE,
        doc="The size for local segments of a tiered topic; -2 is that of the whole log.",
    )


KNOWN: tuple[Setting, ...] = (
    *harmless(
        "Compaction is not implemented yet; a compacted topic keeps every record.",
        log_cleaner_backoff_ms=Setting(15 * SECOND, kind=Kind.LONG, at_least=0, dynamic=CLUSTER_WIDE),
        log_cleaner_dedupe_buffer_size=Setting(128 * MB, kind=Kind.LONG, dynamic=CLUSTER_WIDE),
        log_cleaner_delete_retention_ms=Setting(DAY, kind=Kind.LONG, at_least=0, dynamic=CLUSTER_WIDE),
        log_cleaner_enable=Setting(True),
        log_cleaner_io_buffer_load_factor=Setting(0.9, dynamic=CLUSTER_WIDE),
        log_cleaner_io_buffer_size=Setting(512 * KB, at_least=0, dynamic=CLUSTER_WIDE),
        log_cleaner_io_max_bytes_per_second=Setting(1.7976931348623157e308, dynamic=CLUSTER_WIDE),
        log_cleaner_max_compaction_lag_ms=Setting(MAX_INT64, kind=Kind.LONG, at_least=1, dynamic=CLUSTER_WIDE),
        log_cleaner_min_cleanable_ratio=Setting(0.5, at_least=0, at_most=1, dynamic=CLUSTER_WIDE),
        log_cleaner_min_compaction_lag_ms=Setting(0, kind=Kind.LONG, at_least=0, dynamic=CLUSTER_WIDE),
        log_cleaner_threads=Setting(1, at_least=0, dynamic=CLUSTER_WIDE),
    ),
    *harmless(
        "There is one log directory, so nothing moves between directories.",
        alter_log_dirs_replication_quota_window_num=Setting(11, at_least=1),
        alter_log_dirs_replication_quota_window_size_seconds=Setting(1, at_least=1),
        log_dir_failure_timeout_ms=Setting(30 * SECOND, kind=Kind.LONG, at_least=1),
        num_replica_alter_log_dirs_threads=Setting(kind=Kind.INT),
    ),
    *harmless(
        "Segments grow as they are written; preallocation only ever saved time on some file systems.",
        log_preallocate=Setting(False, dynamic=CLUSTER_WIDE),
    ),
    *harmless(
        "The log's tasks start with the broker.",
        log_initial_task_delay_ms=Setting(30 * SECOND, kind=Kind.LONG, at_least=0, internal=True),
    ),
    *refused(
        "With one log directory there is none to keep new partitions away from.",
        cordoned_log_dirs=Setting((), dynamic=PER_BROKER),
    ),
)
