"""Settings of one topic, each with the broker settings that it falls back to, strongest first."""

from __future__ import annotations

import re
from collections.abc import Callable

from kbroker.config.log_settings import (
    COMPRESSION_TYPES,
    MIN_SEGMENT_BYTES,
    SMALLEST_SEGMENT_BYTES,
    TIMESTAMP_TYPES,
    not_compacted_yet,
)
from kbroker.config.settings import DAY, GB, HOUR, KB, MAX_INT64, MB, MINUTE, Effect, Setting, setting, settings
from kbroker.config.values import Kind

NO_COMPACTION = "Compaction is not implemented yet; a compacted topic keeps every record."
NO_FOLLOWERS = "Replication to followers is not implemented yet, so there is nothing to throttle."
NO_PREALLOCATION = "Segment files grow as the broker writes them. Preallocation saves time only on some file systems."

_REPLICAS = re.compile(r"([0-9]+:[0-9]+)(,[0-9]+:[0-9]+)*", re.ASCII)


def _throttled(key: str) -> Callable[[tuple[str, ...]], str | None]:
    def check(replicas: tuple[str, ...]) -> str | None:
        if replicas in ((), ("*",)) or _REPLICAS.fullmatch(",".join(replicas)):
            return None
        form = "[partitionId]:[brokerId],[partitionId]:[brokerId],..."
        return f"{key} must be the literal '*' or a list of replicas in the following format: {form}"

    return check


@settings
class TopicSettings:
    """The settings of one topic, in Kafka's names and units."""

    cleanup_policy: tuple[str, ...] = setting(
        default=("delete",),
        one_of=("compact", "delete"),
        warn=not_compacted_yet,
        synonyms=(("log.cleanup.policy", 1),),
        doc="What happens to old records. With compact, records must have keys, and no record is deleted yet.",
    )
    compression_type: str = setting(
        default="producer",
        one_of=COMPRESSION_TYPES,
        synonyms=(("compression.type", 1),),
        doc="Compression of stored batches; producer keeps the producer's compression.",
    )
    compression_gzip_level: int = setting(
        default=-1,
        at_least=1,
        at_most=9,
        also=-1,
        synonyms=(("compression.gzip.level", 1),),
        doc="Level for batches that the broker compresses with gzip.",
    )
    compression_lz4_level: int = setting(
        default=9,
        at_least=1,
        at_most=17,
        synonyms=(("compression.lz4.level", 1),),
        doc="Level for batches that the broker compresses with lz4.",
    )
    compression_zstd_level: int = setting(
        default=3,
        at_least=-131072,
        at_most=22,
        synonyms=(("compression.zstd.level", 1),),
        doc="Level for batches that the broker compresses with zstd.",
    )
    delete_retention_ms: int = setting(
        default=DAY,
        kind=Kind.LONG,
        at_least=0,
        synonyms=(("log.cleaner.delete.retention.ms", 1),),
        effect=Effect.HARMLESS,
        why=NO_COMPACTION,
        doc="How long a tombstone stays in a compacted topic.",
    )
    file_delete_delay_ms: int = setting(
        default=MINUTE,
        kind=Kind.LONG,
        at_least=0,
        synonyms=(("log.segment.delete.delay.ms", 1),),
        doc="Time between the deletion of a segment, which renames its files, and the removal of the files.",
    )
    flush_messages: int = setting(
        default=MAX_INT64,
        kind=Kind.LONG,
        at_least=1,
        synonyms=(("log.flush.interval.messages", 1),),
        doc="Number of records after which the broker syncs the log. With 1, every acknowledged record survives a "
        "power failure.",
    )
    flush_ms: int = setting(
        default=MAX_INT64,
        kind=Kind.LONG,
        at_least=0,
        synonyms=(("log.flush.interval.ms", 1), ("log.flush.scheduler.interval.ms", 1)),
        doc="Time after which the broker syncs unsynced records.",
    )
    follower_replication_throttled_replicas: tuple[str, ...] = setting(
        default=(),
        check=_throttled("follower.replication.throttled.replicas"),
        effect=Effect.HARMLESS,
        why=NO_FOLLOWERS,
        doc="Follower replicas that fetch at a throttled rate during a reassignment.",
    )
    index_interval_bytes: int = setting(
        default=4 * KB,
        at_least=0,
        synonyms=(("log.index.interval.bytes", 1),),
        doc="Approximate number of log bytes between two index entries.",
    )
    leader_replication_throttled_replicas: tuple[str, ...] = setting(
        default=(),
        check=_throttled("leader.replication.throttled.replicas"),
        effect=Effect.HARMLESS,
        why=NO_FOLLOWERS,
        doc="Leader replicas that serve followers at a throttled rate during a reassignment.",
    )
    local_retention_bytes: int = setting(
        default=-2,
        kind=Kind.LONG,
        at_least=-2,
        synonyms=(("log.local.retention.bytes", 1),),
        doc="Retention size of a tiered topic's local segments. -2 means retention.bytes.",
    )
    local_retention_ms: int = setting(
        default=-2,
        kind=Kind.LONG,
        at_least=-2,
        synonyms=(("log.local.retention.ms", 1),),
        doc="Retention time of a tiered topic's local segments. -2 means retention.ms.",
    )
    max_compaction_lag_ms: int = setting(
        default=MAX_INT64,
        kind=Kind.LONG,
        at_least=1,
        synonyms=(("log.cleaner.max.compaction.lag.ms", 1),),
        effect=Effect.HARMLESS,
        why=NO_COMPACTION,
        doc="Maximum time for which a record stays uncompacted.",
    )
    max_message_bytes: int = setting(
        default=1 * MB + 12,
        at_least=0,
        synonyms=(("message.max.bytes", 1),),
        doc="Largest record batch, after compression, including the 12 bytes of base offset and length.",
    )
    message_timestamp_after_max_ms: int = setting(
        default=HOUR,
        kind=Kind.LONG,
        at_least=0,
        synonyms=(("log.message.timestamp.after.max.ms", 1),),
        doc="The broker refuses a record whose timestamp is further in the future than this.",
    )
    message_timestamp_before_max_ms: int = setting(
        default=MAX_INT64,
        kind=Kind.LONG,
        at_least=0,
        synonyms=(("log.message.timestamp.before.max.ms", 1),),
        doc="The broker refuses a record whose timestamp is further in the past than this.",
    )
    message_timestamp_type: str = setting(
        default="CreateTime",
        one_of=TIMESTAMP_TYPES,
        synonyms=(("log.message.timestamp.type", 1),),
        doc="Source of record timestamps: the producer (CreateTime) or the broker (LogAppendTime).",
    )
    min_cleanable_dirty_ratio: float = setting(
        default=0.5,
        at_least=0,
        at_most=1,
        synonyms=(("log.cleaner.min.cleanable.ratio", 1),),
        effect=Effect.HARMLESS,
        why=NO_COMPACTION,
        doc="Fraction of uncompacted bytes at which a log is compacted.",
    )
    min_compaction_lag_ms: int = setting(
        default=0,
        kind=Kind.LONG,
        at_least=0,
        synonyms=(("log.cleaner.min.compaction.lag.ms", 1),),
        effect=Effect.HARMLESS,
        why=NO_COMPACTION,
        doc="Minimum time for which a record stays uncompacted.",
    )
    min_insync_replicas: int = setting(
        default=1,
        at_least=1,
        synonyms=(("min.insync.replicas", 1),),
        doc="Minimum number of in-sync replicas for a produce with acks=all.",
    )
    preallocate: bool = setting(
        default=False,
        synonyms=(("log.preallocate", 1),),
        effect=Effect.HARMLESS,
        why=NO_PREALLOCATION,
        doc="Whether segment files are created at full size.",
    )
    kbroker_remote_flush_timestamp_ms: int = setting(
        default=-1,
        kind=Kind.LONG,
        at_least=-1,
        internal=True,
        doc="The broker copies records produced before this wall clock time to the tier as soon as possible. Set by "
        "`kbroker tier flush`.",
    )
    remote_log_copy_disable: bool = setting(
        default=False,
        doc="Whether a tiered topic stops copying segments. Segments in the tier can still be read, and still expire.",
    )
    remote_log_delete_on_disable: bool = setting(
        default=False,
        doc="Whether disabling remote.storage.enable deletes the topic's data in the tier. It cannot be disabled "
        "without this.",
    )
    remote_storage_enable: bool = setting(
        default=False, doc="Whether the topic is tiered: the broker copies its closed segments to the tier."
    )
    retention_bytes: int = setting(
        default=-1,
        kind=Kind.LONG,
        synonyms=(("log.retention.bytes", 1),),
        doc="Maximum size of a partition. The broker deletes the oldest segments. A negative value means no limit.",
    )
    retention_ms: int = setting(
        default=7 * DAY,
        kind=Kind.LONG,
        at_least=-1,
        synonyms=(("log.retention.ms", 1), ("log.retention.minutes", MINUTE), ("log.retention.hours", HOUR)),
        doc="The broker deletes closed segments that are older than this. -1 means no limit.",
    )
    segment_bytes: int = setting(
        default=1 * GB,
        at_least=SMALLEST_SEGMENT_BYTES,
        warn_below=MIN_SEGMENT_BYTES,
        synonyms=(("log.segment.bytes", 1),),
        doc="Maximum segment size. The broker rolls the segment before it would exceed this. Less than 1 MiB, Kafka's "
        "minimum, causes a warning.",
    )
    segment_index_bytes: int = setting(
        default=10 * MB,
        at_least=4,
        synonyms=(("log.index.size.max.bytes", 1),),
        doc="Maximum index size. The broker rolls a segment whose index is full.",
    )
    segment_jitter_ms: int = setting(
        default=0,
        kind=Kind.LONG,
        at_least=0,
        synonyms=(("log.roll.jitter.ms", 1), ("log.roll.jitter.hours", HOUR)),
        doc="Maximum random time by which a segment rolls earlier, so that not all segments roll at once.",
    )
    segment_ms: int = setting(
        default=7 * DAY,
        kind=Kind.LONG,
        at_least=1,
        synonyms=(("log.roll.ms", 1), ("log.roll.hours", HOUR)),
        doc="Age at which the broker rolls a segment even if it is not full.",
    )
    unclean_leader_election_enable: bool = setting(
        default=False,
        synonyms=(("unclean.leader.election.enable", 1),),
        doc="Whether an out-of-sync replica may become leader if no other replica is left. Records may be lost.",
    )


KNOWN: tuple[Setting, ...] = (
    Setting(
        kind=Kind.INT,
        name="internal.segment.bytes",
        at_least=SMALLEST_SEGMENT_BYTES,
        internal=True,
        doc="Set by Kafka's own tests. It overrides segment.bytes.",
    ),
)
