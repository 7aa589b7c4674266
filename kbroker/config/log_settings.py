"""Settings of the logs: the data directory, and the defaults of topics."""

from __future__ import annotations

from kbroker.config.settings import GB, HOUR, KB, MAX_INT64, MB, MINUTE, Dynamic, Long, setting, settings

CLUSTER_WIDE = Dynamic.CLUSTER_WIDE

COMPRESSION_TYPES = ("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")
TIMESTAMP_TYPES = ("CreateTime", "LogAppendTime")
MIN_SEGMENT_BYTES = 1 * MB  # Kafka's minimum; kbroker accepts less, with a warning
SMALLEST_SEGMENT_BYTES = 14  # Kafka's minimum before 4.0: the size of the smallest record of any format


def _one_directory(directories: tuple[str, ...] | None) -> str | None:
    if directories is not None and (len(directories) != 1 or not directories[0]):
        return "exactly one log directory is required; several are not implemented yet"
    return None


def _retention(value: int | None) -> str | None:
    return None if value is None or value != 0 else "must be unlimited (-1) or, greater than or equal to 1"


@settings
class LogSettings:
    """The data directory and the defaults of topics' logs."""

    log_dir: tuple[str, ...] = setting(
        default=("/var/lib/kbroker",), check=_one_directory, doc="Data directory, if log.dirs is not set."
    )
    log_dirs: tuple[str, ...] | None = setting(check=_one_directory, doc="Data directory. Only one is supported.")
    num_partitions: int = setting(
        default=1, at_least=1, doc="Number of partitions of a topic that is created without one."
    )
    default_replication_factor: int = setting(
        default=1, doc="Replication factor of a topic that is created without one."
    )
    auto_create_topics_enable: bool = setting(
        default=True, doc="Whether a Metadata request for an unknown topic may create it."
    )
    delete_topic_enable: bool = setting(default=True, doc="Whether topics can be deleted.")
    message_max_bytes: int = setting(
        default=1 * MB + 12,
        at_least=0,
        dynamic=CLUSTER_WIDE,
        doc="Largest record batch, after compression, including the 12 bytes of base offset and length.",
    )
    min_insync_replicas: int = setting(
        default=1,
        at_least=1,
        dynamic=CLUSTER_WIDE,
        doc="Minimum number of in-sync replicas for a produce with acks=all.",
    )
    compression_type: str = setting(
        default="producer",
        one_of=COMPRESSION_TYPES,
        dynamic=CLUSTER_WIDE,
        doc="Compression of stored batches; producer keeps the producer's compression.",
    )
    compression_gzip_level: int = setting(
        default=-1,
        at_least=1,
        at_most=9,
        also=-1,
        dynamic=CLUSTER_WIDE,
        doc="Level for batches that the broker compresses with gzip.",
    )
    compression_lz4_level: int = setting(
        default=9,
        at_least=1,
        at_most=17,
        dynamic=CLUSTER_WIDE,
        doc="Level for batches that the broker compresses with lz4.",
    )
    compression_zstd_level: int = setting(
        default=3,
        at_least=-131072,
        at_most=22,
        dynamic=CLUSTER_WIDE,
        doc="Level for batches that the broker compresses with zstd.",
    )
    unclean_leader_election_enable: bool = setting(
        default=False,
        dynamic=CLUSTER_WIDE,
        doc="Whether an out-of-sync replica may become leader if no other replica is left. Records may be lost.",
    )
    log_segment_bytes: int = setting(
        default=1 * GB,
        at_least=SMALLEST_SEGMENT_BYTES,
        warn_below=MIN_SEGMENT_BYTES,
        dynamic=CLUSTER_WIDE,
        doc="Maximum segment size. The broker rolls the segment before it would exceed this. Less than 1 MiB, Kafka's "
        "minimum, causes a warning.",
    )
    log_roll_ms: Long | None = setting(
        at_least=1,
        dynamic=CLUSTER_WIDE,
        doc="Age at which the broker rolls a segment. If unset, log.roll.hours applies.",
    )
    log_roll_hours: int = setting(default=168, at_least=1, doc="Age at which the broker rolls a segment, in hours.")
    log_roll_jitter_ms: Long | None = setting(
        at_least=0,
        dynamic=CLUSTER_WIDE,
        doc="Maximum random time by which a segment rolls earlier. If unset, log.roll.jitter.hours applies.",
    )
    log_roll_jitter_hours: int = setting(
        default=0, at_least=0, doc="Maximum random time by which a segment rolls earlier, in hours."
    )
    log_index_size_max_bytes: int = setting(
        default=10 * MB,
        at_least=4,
        dynamic=CLUSTER_WIDE,
        doc="Maximum index size. The broker rolls a segment whose index is full.",
    )
    log_index_interval_bytes: int = setting(
        default=4 * KB,
        at_least=0,
        dynamic=CLUSTER_WIDE,
        doc="Approximate number of log bytes between two index entries.",
    )
    log_flush_interval_messages: Long = setting(
        default=MAX_INT64,
        at_least=1,
        dynamic=CLUSTER_WIDE,
        doc="Number of records after which the broker syncs a log. With 1, every acknowledged record survives a power "
        "failure.",
    )
    log_flush_interval_ms: Long | None = setting(
        dynamic=CLUSTER_WIDE,
        doc="Time after which the broker syncs unsynced records. If unset, log.flush.scheduler.interval.ms applies.",
    )
    log_flush_scheduler_interval_ms: Long = setting(
        default=MAX_INT64, doc="How often the broker looks for logs that are due for a sync."
    )
    log_flush_offset_checkpoint_interval_ms: int = setting(
        default=MINUTE,
        at_least=0,
        doc="How often the broker writes the recovery points, the offsets below which every record is synced.",
    )
    log_flush_start_offset_checkpoint_interval_ms: int = setting(
        default=MINUTE, at_least=0, doc="How often the broker writes the log start offsets."
    )
    log_retention_ms: Long | None = setting(
        check=_retention,
        dynamic=CLUSTER_WIDE,
        doc="The broker deletes closed segments that are older than this. If unset, log.retention.minutes applies.",
    )
    log_retention_minutes: int | None = setting(
        check=_retention, doc="The same in minutes. If unset, log.retention.hours applies."
    )
    log_retention_hours: int = setting(
        default=168, check=_retention, doc="The same in hours. A negative value means no limit."
    )
    log_retention_bytes: Long = setting(
        default=-1,
        dynamic=CLUSTER_WIDE,
        doc="Maximum size of a partition. The broker deletes the oldest segments. A negative value means no limit.",
    )
    log_retention_check_interval_ms: Long = setting(
        default=5 * MINUTE, at_least=1, doc="How often the broker applies retention."
    )
    log_segment_delete_delay_ms: Long = setting(
        default=MINUTE,
        at_least=0,
        dynamic=CLUSTER_WIDE,
        doc="Time between the deletion of a segment, which renames its files, and the removal of the files.",
    )
    log_cleanup_policy: tuple[str, ...] = setting(
        default=("delete",),
        one_of=("compact", "delete"),
        dynamic=CLUSTER_WIDE,
        doc="What happens to old records. With delete, retention deletes them. With compact, records must have keys, "
        "and the log cleaner deletes those that have a later record with the same key.",
    )
    log_message_timestamp_type: str = setting(
        default="CreateTime",
        one_of=TIMESTAMP_TYPES,
        dynamic=CLUSTER_WIDE,
        doc="Source of record timestamps: the producer (CreateTime) or the broker (LogAppendTime).",
    )
    log_message_timestamp_before_max_ms: Long = setting(
        default=MAX_INT64,
        at_least=0,
        dynamic=CLUSTER_WIDE,
        doc="The broker refuses a record whose timestamp is further in the past than this.",
    )
    log_message_timestamp_after_max_ms: Long = setting(
        default=HOUR,
        at_least=0,
        dynamic=CLUSTER_WIDE,
        doc="The broker refuses a record whose timestamp is further in the future than this.",
    )
    num_recovery_threads_per_data_dir: int = setting(
        default=2,
        at_least=1,
        dynamic=CLUSTER_WIDE,
        doc="Number of worker processes that recover logs after an unclean shutdown. If not set, one for each core.",
    )
    log_local_retention_ms: Long = setting(
        default=-2,
        at_least=-2,
        dynamic=CLUSTER_WIDE,
        doc="Retention time of a tiered topic's local segments. -2 means the retention time of the whole log.",
    )
    log_local_retention_bytes: Long = setting(
        default=-2,
        at_least=-2,
        dynamic=CLUSTER_WIDE,
        doc="Retention size of a tiered topic's local segments. -2 means the retention size of the whole log.",
    )
