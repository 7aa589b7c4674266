"""Settings of classic consumer groups and their offsets. Settings of other kinds of groups have no effect."""

from __future__ import annotations

from kbroker.config.settings import MAX_INT32, MB, MINUTE, Long, Short, setting, settings


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
    offsets_retention_check_interval_ms: Long = setting(
        default=10 * MINUTE, at_least=1, doc="How often the broker looks for expired offsets."
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
    offsets_topic_replication_factor: Short = setting(
        default=3, at_least=1, doc="Replication factor of __consumer_offsets when it is created."
    )
    offsets_topic_segment_bytes: int = setting(default=100 * MB, at_least=1, doc="Segment size of __consumer_offsets.")
