"""Settings of the log cleaner, and the defaults of compacted topics."""

from __future__ import annotations

from kbroker.config.settings import DAY, MAX_INT64, MB, Dynamic, Long, setting, settings

CLUSTER_WIDE = Dynamic.CLUSTER_WIDE
NO_LIMIT = 1.7976931348623157e308


@settings
class CleanerSettings:
    """The log cleaner, which compacts topics."""

    log_cleaner_enable: bool = setting(default=True, doc="Whether this broker compacts topics.")
    log_cleaner_threads: int = setting(
        default=1,
        at_least=0,
        dynamic=CLUSTER_WIDE,
        doc="Number of logs that are cleaned at the same time, each by a process of its own.",
    )
    log_cleaner_dedupe_buffer_size: Long = setting(
        default=128 * MB,
        dynamic=CLUSTER_WIDE,
        doc="Memory for looking up keys, in bytes, for all cleaners together. If a log has more keys than fit, several "
        "passes clean it.",
    )
    log_cleaner_io_buffer_load_factor: float = setting(
        default=0.9, dynamic=CLUSTER_WIDE, doc="The fraction of log.cleaner.dedupe.buffer.size that is used."
    )
    log_cleaner_io_max_bytes_per_second: float = setting(
        default=NO_LIMIT,
        dynamic=CLUSTER_WIDE,
        doc="Bytes that all cleaners together may read and write per second.",
    )
    log_cleaner_backoff_ms: Long = setting(
        default=15_000, at_least=0, dynamic=CLUSTER_WIDE, doc="Time between looking for logs to clean, if none is due."
    )
    log_cleaner_min_cleanable_ratio: float = setting(
        default=0.5,
        at_least=0,
        at_most=1,
        dynamic=CLUSTER_WIDE,
        doc="Fraction of uncompacted bytes above which a log is compacted.",
    )
    log_cleaner_min_compaction_lag_ms: Long = setting(
        default=0, at_least=0, dynamic=CLUSTER_WIDE, doc="Minimum time for which a record stays uncompacted."
    )
    log_cleaner_max_compaction_lag_ms: Long = setting(
        default=MAX_INT64,
        at_least=1,
        dynamic=CLUSTER_WIDE,
        doc="Maximum time for which a record stays uncompacted, if it is not in the active segment.",
    )
    log_cleaner_delete_retention_ms: Long = setting(
        default=DAY,
        at_least=0,
        dynamic=CLUSTER_WIDE,
        doc="How long a tombstone stays in a compacted topic after it was first cleaned.",
    )
