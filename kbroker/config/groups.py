"""Settings of classic consumer groups and their offsets. Settings of other kinds of groups have no effect."""

from __future__ import annotations

from kbroker.config.settings import (
    KB,
    MAX_INT32,
    MB,
    MINUTE,
    SECOND,
    Dynamic,
    Setting,
    harmless,
    setting,
    settings,
)
from kbroker.config.values import Kind

CLUSTER_WIDE, PER_BROKER = Dynamic.CLUSTER_WIDE, Dynamic.PER_BROKER


def _codec_fault(value: int) -> str | None:
    return None if 0 <= value <= 4 else f"Unknown compression type id: {value}"


@settings
class GroupSettings:
    """Bounds and delays of classic groups, and the topic that stores their offsets."""

    group_initial_rebalance_delay_ms: int = setting(
        default=3000, doc="How long the first rebalance of an empty group waits for more members."
    )
    group_max_session_timeout_ms: int = setting(
        default=30 * MINUTE, doc="Longest session timeout that a member may request."
    )
    group_max_size: int = setting(default=MAX_INT32, at_least=1, doc="Maximum number of members in one group.")
    group_min_session_timeout_ms: int = setting(default=6000, doc="Shortest session timeout that a member may request.")
    kbroker_group_max_pending_member_bytes: int = setting(
        default=16 * MB,
        at_least=0,
        doc="Memory for member ids that the broker has assigned and the clients have not used yet. When it is full, the"
        " oldest ids become invalid.",
    )
    offset_metadata_max_bytes: int = setting(
        default=4096, doc="Maximum length, in characters, of the metadata that a client commits with an offset."
    )
    offsets_commit_timeout_ms: int = setting(
        default=5000, at_least=1, doc="How long a write to a group waits for the replicas of its offsets partition."
    )
    offsets_load_buffer_size: int = setting(
        default=5 * MB, at_least=1, doc="Size of one read of an offsets partition while the broker loads its groups."
    )
    offsets_retention_check_interval_ms: int = setting(
        default=10 * MINUTE, kind=Kind.LONG, at_least=1, doc="How often the broker looks for expired offsets."
    )
    offsets_retention_minutes: int = setting(
        default=10_080,
        at_least=1,
        doc="An offset expires this long after its group became empty. An offset of a simple consumer expires this long"
        " after its commit.",
    )
    offsets_topic_compression_codec: int = setting(
        default=0,
        check=_codec_fault,
        doc="Compression codec of __consumer_offsets: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd.",
    )
    offsets_topic_num_partitions: int = setting(
        default=50, at_least=1, doc="Number of partitions of __consumer_offsets when it is created."
    )
    offsets_topic_replication_factor: int = setting(
        default=3,
        kind=Kind.SHORT,
        at_least=1,
        doc="Replication factor of __consumer_offsets when it is created.",
    )
    offsets_topic_segment_bytes: int = setting(default=100 * MB, at_least=1, doc="Segment size of __consumer_offsets.")


KNOWN: tuple[Setting, ...] = (
    *harmless(
        "The group coordinator runs in the event loop and writes each batch at once.",
        group_coordinator_append_linger_ms=Setting(-1, at_least=-1),
        group_coordinator_background_threads=Setting(2, at_least=1),
        group_coordinator_cached_buffer_max_bytes=Setting(1_048_588, at_least=512 * KB, dynamic=CLUSTER_WIDE),
        group_coordinator_threads=Setting(4, at_least=1),
    ),
    *harmless(
        "Groups of the consumer protocol (KIP-848) are not supported yet.",
        group_consumer_assignment_interval_ms=Setting(1000, at_least=0, dynamic=CLUSTER_WIDE),
        group_consumer_assignors=Setting(("uniform", "range")),
        group_consumer_heartbeat_interval_ms=Setting(5000, at_least=1),
        group_consumer_max_assignment_interval_ms=Setting(15 * SECOND, at_least=0),
        group_consumer_max_heartbeat_interval_ms=Setting(15 * SECOND, at_least=1),
        group_consumer_max_session_timeout_ms=Setting(MINUTE, at_least=1),
        group_consumer_max_size=Setting(MAX_INT32, at_least=1),
        group_consumer_migration_policy=Setting("bidirectional"),
        group_consumer_min_assignment_interval_ms=Setting(0, at_least=0),
        group_consumer_min_heartbeat_interval_ms=Setting(5000, at_least=1),
        group_consumer_min_session_timeout_ms=Setting(45 * SECOND, at_least=1),
        group_consumer_regex_refresh_interval_ms=Setting(10 * MINUTE, at_least=10_000, internal=True),
        group_consumer_session_timeout_ms=Setting(45 * SECOND, at_least=1),
        group_coordinator_rebalance_protocols=Setting(
            ("classic", "consumer", "streams"), one_of=("consumer", "classic", "share", "streams")
        ),
    ),
    *harmless(
        "Share groups are not supported.",
        group_share_assignment_interval_ms=Setting(1000, at_least=0, dynamic=CLUSTER_WIDE),
        group_share_assignors=Setting(("simple",)),
        group_share_delivery_count_limit=Setting(5, at_least=2, at_most=10),
        group_share_heartbeat_interval_ms=Setting(5000, at_least=1),
        group_share_initialize_retry_interval_ms=Setting(30 * SECOND, at_least=1, internal=True),
        group_share_max_assignment_interval_ms=Setting(15 * SECOND, at_least=0),
        group_share_max_delivery_count_limit=Setting(10, at_least=5, at_most=25),
        group_share_max_heartbeat_interval_ms=Setting(15 * SECOND, at_least=1),
        group_share_max_partition_max_record_locks=Setting(4000, at_least=2000, at_most=10000),
        group_share_max_record_lock_duration_ms=Setting(MINUTE, at_least=30_000, at_most=3600000),
        group_share_max_session_timeout_ms=Setting(MINUTE, at_least=1),
        group_share_max_share_sessions=Setting(2000, at_least=1),
        group_share_max_size=Setting(200, at_least=1, at_most=1000),
        group_share_min_assignment_interval_ms=Setting(0, at_least=0),
        group_share_min_delivery_count_limit=Setting(2, at_least=2, at_most=5),
        group_share_min_heartbeat_interval_ms=Setting(5000, at_least=1),
        group_share_min_partition_max_record_locks=Setting(100, at_least=100, at_most=2000),
        group_share_min_record_lock_duration_ms=Setting(15 * SECOND, at_least=1000, at_most=30000),
        group_share_min_session_timeout_ms=Setting(45 * SECOND, at_least=1),
        group_share_partition_max_record_locks=Setting(2000, at_least=100, at_most=10000),
        group_share_persister_class_name=Setting(
            "org.apache.kafka.server.share.persister.DefaultStatePersister", internal=True
        ),
        group_share_record_lock_duration_ms=Setting(30 * SECOND, at_least=1000, at_most=3600000),
        group_share_session_timeout_ms=Setting(45 * SECOND, at_least=1),
        share_coordinator_append_linger_ms=Setting(-1, at_least=-1),
        share_coordinator_cached_buffer_max_bytes=Setting(1_048_588, at_least=512 * KB, dynamic=CLUSTER_WIDE),
        share_coordinator_cold_partition_snapshot_interval_ms=Setting(5 * MINUTE, at_least=1, internal=True),
        share_coordinator_load_buffer_size=Setting(5 * MB, at_least=1),
        share_coordinator_snapshot_update_records_per_snapshot=Setting(500, at_least=0, at_most=500),
        share_coordinator_state_topic_compression_codec=Setting(0),
        share_coordinator_state_topic_min_isr=Setting(2, kind=Kind.SHORT, at_least=1),
        share_coordinator_state_topic_num_partitions=Setting(50, at_least=1),
        share_coordinator_state_topic_prune_interval_ms=Setting(5 * MINUTE, at_least=1, internal=True),
        share_coordinator_state_topic_replication_factor=Setting(3, kind=Kind.SHORT, at_least=1),
        share_coordinator_state_topic_segment_bytes=Setting(100 * MB, at_least=1),
        share_coordinator_threads=Setting(1, at_least=1),
        share_coordinator_write_timeout_ms=Setting(5000, at_least=1),
    ),
    *harmless(
        "Streams groups are not supported.",
        group_streams_assignment_interval_ms=Setting(1000, at_least=0, dynamic=CLUSTER_WIDE),
        group_streams_heartbeat_interval_ms=Setting(5000, at_least=1),
        group_streams_initial_rebalance_delay_ms=Setting(3000, at_least=0),
        group_streams_max_assignment_interval_ms=Setting(15 * SECOND, at_least=0),
        group_streams_max_heartbeat_interval_ms=Setting(15 * SECOND, at_least=1),
        group_streams_max_session_timeout_ms=Setting(MINUTE, at_least=1),
        group_streams_max_size=Setting(MAX_INT32, at_least=1),
        group_streams_max_standby_replicas=Setting(2, at_least=0),
        group_streams_min_assignment_interval_ms=Setting(0, at_least=0),
        group_streams_min_heartbeat_interval_ms=Setting(5000, at_least=1),
        group_streams_min_session_timeout_ms=Setting(45 * SECOND, at_least=1),
        group_streams_num_standby_replicas=Setting(0, at_least=0),
        group_streams_session_timeout_ms=Setting(45 * SECOND, at_least=1),
    ),
)
