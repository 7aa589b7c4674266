"""Settings of one topic, each with the broker's settings that it falls back to, strongest first."""

from __future__ import annotations

import re
from collections.abc import Callable

from kbroker.config.log import (
    COMPRESSION_TYPES,
    MIN_SEGMENT_BYTES,
    SMALLEST_SEGMENT_BYTES,
    TIMESTAMP_TYPES,
    not_compacted_yet,
)
from kbroker.config.settings import DAY, GB, HOUR, KB, MAX_INT64, MB, MINUTE, Effect, Setting, setting, settings
from kbroker.config.values import Kind

NO_COMPACTION = "Compaction is not implemented yet; a compacted topic keeps every record."
NO_FOLLOWERS = "This broker has no followers whose reading could be throttled yet."
NO_PREALLOCATION = "Segments grow as they are written; preallocation only ever saved time on some file systems."

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
    """What the log of one topic is told, before the units and names of the storage."""

    cleanup_policy: tuple[str, ...] = setting(
        default=("delete",),
        one_of=("compact", "delete"),
        warn=not_compacted_yet,
        synonyms=(("log.cleanup.policy", 1),),
        doc="What happens to old records. With compact they must have keys, and all of them stay for now.",
    )
    compression_type: str = setting(
        default="producer",
        one_of=COMPRESSION_TYPES,
        synonyms=(("compression.type", 1),),
        doc="How batches are stored; producer keeps them as they came.",
    )
    compression_gzip_level: int = setting(
        default=-1,
        at_least=1,
        at_most=9,
        also=-1,
        synonyms=(("compression.gzip.level", 1),),
        doc="The level of the broker's own gzip.",
    )
    compression_lz4_level: int = setting(
        default=9,
        at_least=1,
        at_most=17,
        synonyms=(("compression.lz4.level", 1),),
        doc="The level of the broker's own lz4.",
    )
    compression_zstd_level: int = setting(
        default=3,
        at_least=-131072,
        at_most=22,
        synonyms=(("compression.zstd.level", 1),),
        doc="The level of the broker's own zstd.",
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
        doc="How long a deleted segment's files stay, renamed, before they go.",
    )
    flush_messages: int = setting(
        default=MAX_INT64,
        kind=Kind.LONG,
        at_least=1,
        synonyms=(("log.flush.interval.messages", 1),),
        doc="After so many records the log is synced; 1 keeps every acknowledged record through a power cut.",
    )
    flush_ms: int = setting(
        default=MAX_INT64,
        kind=Kind.LONG,
        at_least=0,
        synonyms=(("log.flush.interval.ms", 1), ("log.flush.scheduler.interval.ms", 1)),
        doc="After so long unsynced records are synced.",
    )
    follower_replication_throttled_replicas: tuple[str, ...] = setting(
        default=(),
        check=_throttled("follower.replication.throttled.replicas"),
        effect=Effect.HARMLESS,
        why=NO_FOLLOWERS,
        doc="Replicas whose fetching is throttled during a reassignment.",
    )
    index_interval_bytes: int = setting(
        default=4 * KB,
        at_least=0,
        synonyms=(("log.index.interval.bytes", 1),),
        doc="About so many bytes of log lie between two index entries.",
    )
    leader_replication_throttled_replicas: tuple[str, ...] = setting(
        default=(),
        check=_throttled("leader.replication.throttled.replicas"),
        effect=Effect.HARMLESS,
        why=NO_FOLLOWERS,
        doc="Replicas whose being fetched from is throttled during a reassignment.",
    )
    local_retention_bytes: int = setting(
        default=-2,
        kind=Kind.LONG,
        at_least=-2,
        synonyms=(("log.local.retention.bytes", 1),),
        doc="The size for local segments of a tiered topic; -2 is retention.bytes.",
    )
    local_retention_ms: int = setting(
        default=-2,
        kind=Kind.LONG,
        at_least=-2,
        synonyms=(("log.local.retention.ms", 1),),
        doc="The time for local segments of a tiered topic; -2 is retention.ms.",
    )
    max_compaction_lag_ms: int = setting(
        default=MAX_INT64,
        kind=Kind.LONG,
        at_least=1,
        synonyms=(("log.cleaner.max.compaction.lag.ms", 1),),
        effect=Effect.HARMLESS,
        why=NO_COMPACTION,
        doc="The longest that a record stays out of compaction.",
    )
    max_message_bytes: int = setting(
        default=1 * MB + 12,
        at_least=0,
        synonyms=(("message.max.bytes", 1),),
        doc="The largest batch, compressed, with its first 12 bytes.",
    )
    message_timestamp_after_max_ms: int = setting(
        default=HOUR,
        kind=Kind.LONG,
        at_least=0,
        synonyms=(("log.message.timestamp.after.max.ms", 1),),
        doc="A record stamped further ahead than this is refused.",
    )
    message_timestamp_before_max_ms: int = setting(
        default=MAX_INT64,
        kind=Kind.LONG,
        at_least=0,
        synonyms=(("log.message.timestamp.before.max.ms", 1),),
        doc="A record stamped further back than this is refused.",
    )
    message_timestamp_type: str = setting(
        default="CreateTime",
        one_of=TIMESTAMP_TYPES,
        synonyms=(("log.message.timestamp.type", 1),),
        doc="Whose clock stamps records: the producer's (CreateTime) or the broker's (LogAppendTime).",
    )
    min_cleanable_dirty_ratio: float = setting(
        default=0.5,
        at_least=0,
        at_most=1,
        synonyms=(("log.cleaner.min.cleanable.ratio", 1),),
        effect=Effect.HARMLESS,
        why=NO_COMPACTION,
        doc="The share of uncompacted bytes at which a log is compacted.",
    )
    min_compaction_lag_ms: int = setting(
        default=0,
        kind=Kind.LONG,
        at_least=0,
        synonyms=(("log.cleaner.min.compaction.lag.ms", 1),),
        effect=Effect.HARMLESS,
        why=NO_COMPACTION,
        doc="The shortest that a record stays out of compaction.",
    )
    min_insync_replicas: int = setting(
        default=1,
        at_least=1,
        synonyms=(("min.insync.replicas", 1),),
        doc="How many replicas must be in sync for a produce with acks=all.",
    )
    preallocate: bool = setting(
        default=False,
        synonyms=(("log.preallocate", 1),),
        effect=Effect.HARMLESS,
        why=NO_PREALLOCATION,
        doc="Whether segment files are made at full size.",
    )
    kbroker_remote_flush_timestamp_ms: int = setting(
        default=-1,
        kind=Kind.LONG,
        at_least=-1,
        internal=True,
        doc="What a tiered topic was sent before this wall time is copied as soon as possible; `kbroker tier flush`.",
    )
    remote_log_copy_disable: bool = setting(
        default=False, doc="A tiered topic copies nothing more; what is in the tier is read, and expires, as before."
    )
    remote_log_delete_on_disable: bool = setting(
        default=False, doc="Whether a topic that is tiered no more loses what is in the tier; it must, to be so."
    )
    remote_storage_enable: bool = setting(
        default=False, doc="Whether the topic is tiered: its closed segments are copied to the tier."
    )
    retention_bytes: int = setting(
        default=-1,
        kind=Kind.LONG,
        synonyms=(("log.retention.bytes", 1),),
        doc="A partition larger than this loses its oldest segments. Below 0 there is no limit.",
    )
    retention_ms: int = setting(
        default=7 * DAY,
        kind=Kind.LONG,
        at_least=-1,
        synonyms=(("log.retention.ms", 1), ("log.retention.minutes", MINUTE), ("log.retention.hours", HOUR)),
        doc="Closed segments older than this are deleted. -1 is no limit.",
    )
    segment_bytes: int = setting(
        default=1 * GB,
        at_least=SMALLEST_SEGMENT_BYTES,
        warn_below=MIN_SEGMENT_BYTES,
        synonyms=(("log.segment.bytes", 1),),
        doc="A segment file is closed before it would grow past this. Less than Kafka's 1 MiB works with a warning.",
    )
    segment_index_bytes: int = setting(
        default=10 * MB,
        at_least=4,
        synonyms=(("log.index.size.max.bytes", 1),),
        doc="A segment whose index reaches this size is closed.",
    )
    segment_jitter_ms: int = setting(
        default=0,
        kind=Kind.LONG,
        at_least=0,
        synonyms=(("log.roll.jitter.ms", 1), ("log.roll.jitter.hours", HOUR)),
        doc="Up to so much earlier a segment may roll, so that not all roll at once.",
    )
    segment_ms: int = setting(
        default=7 * DAY,
        kind=Kind.LONG,
        at_least=1,
        synonyms=(("log.roll.ms", 1), ("log.roll.hours", HOUR)),
        doc="A segment this old is closed even if it is not full.",
    )
    unclean_leader_election_enable: bool = setting(
        default=False,
        synonyms=(("unclean.leader.election.enable", 1),),
        doc="Whether a replica out of sync may lead when no other is left, at the price of lost records.",
    )


KNOWN: tuple[Setting, ...] = (
    Setting(
        kind=Kind.INT,
        name="internal.segment.bytes",
        at_least=SMALLEST_SEGMENT_BYTES,
        internal=True,
        doc="Kafka's own tests set it; segment.bytes does the same here.",
    ),
)
