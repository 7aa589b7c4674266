"""Settings of groups of consumers, of both protocols, and of their offsets."""

from __future__ import annotations

from typing import Final

from kbroker.config.settings import MAX_INT32, MB, MINUTE, Dynamic, Long, Short, setting, settings

ASSIGNORS: Final = ("uniform", "range")
MIGRATION_POLICIES: Final = ("bidirectional", "upgrade", "downgrade", "disabled")


def _assignors_fault(value: tuple[str, ...]) -> str | None:
    if not value:
        return "Configuration 'group.consumer.assignors' must not be empty."
    if len(set(value)) < len(value):
        return "Configuration 'group.consumer.assignors' values must not be duplicated."
    unknown = [name for name in value if name not in ASSIGNORS]
    return f"{', '.join(unknown)} is not one of the assignors {', '.join(ASSIGNORS)}" if unknown else None


def _policy_fault(value: str) -> str | None:
    if value.lower() in MIGRATION_POLICIES:
        return None
    return f"String must be one of (case insensitive): {', '.join(name.upper() for name in MIGRATION_POLICIES)}"


def groups_fault(settings: GroupSettings) -> str | None:
    """Why the settings of consumer groups contradict each other; None if they do not. The messages are Kafka's."""
    for what in ("heartbeat.interval.ms", "session.timeout.ms", "assignment.interval.ms"):
        name = f"group.consumer.{what}"
        least, most = f"group.consumer.min.{what}", f"group.consumer.max.{what}"
        for large, small in ((most, least), (name, least)):
            if _value(settings, large) < _value(settings, small):
                return f"{large} must be greater than or equal to {small}"
        if _value(settings, name) > _value(settings, most):
            return f"{name} must be less than or equal to {most}"
    if settings.group_consumer_heartbeat_interval_ms >= settings.group_consumer_session_timeout_ms:
        return "group.consumer.heartbeat.interval.ms must be less than group.consumer.session.timeout.ms"
    return None


def _value(settings: GroupSettings, name: str) -> int:
    return int(getattr(settings, name.replace(".", "_")))


def _codec_fault(value: int) -> str | None:
    return None if 0 <= value <= 4 else f"Unknown compression type id: {value}"


@settings
class GroupSettings:
    """Bounds and delays of groups, and the topic that stores their offsets. `group_consumer_` settings are those of the
    protocol of KIP-848.
    """

    group_consumer_assignment_interval_ms: int = setting(
        default=1000,
        at_least=0,
        dynamic=Dynamic.CLUSTER_WIDE,
        doc="Shortest time between two target assignments of a consumer group. A group can override it.",
    )
    group_consumer_assignors: tuple[str, ...] = setting(
        default=ASSIGNORS,
        check=_assignors_fault,
        doc="Assignors that the members of consumer groups may choose from. The first one is the default.",
    )
    group_consumer_heartbeat_interval_ms: int = setting(
        default=5000, at_least=1, doc="How often members of consumer groups send heartbeats. A group can override it."
    )
    group_consumer_max_assignment_interval_ms: int = setting(
        default=15_000, at_least=0, doc="Longest assignment interval that a consumer group may set."
    )
    group_consumer_max_heartbeat_interval_ms: int = setting(
        default=15_000, at_least=1, doc="Longest heartbeat interval that a consumer group may set."
    )
    group_consumer_max_session_timeout_ms: int = setting(
        default=60_000, at_least=1, doc="Longest session timeout that a consumer group may set."
    )
    group_consumer_max_size: int = setting(
        default=MAX_INT32, at_least=1, doc="Maximum number of members in one consumer group."
    )
    group_consumer_migration_policy: str = setting(
        default="bidirectional",
        check=_policy_fault,
        doc="Which groups with members may move between the classic protocol and that of KIP-848: `upgrade` to KIP-848,"
        " `downgrade` to the classic protocol, `bidirectional` or `disabled`. Empty groups always move.",
    )
    group_consumer_min_assignment_interval_ms: int = setting(
        default=0, at_least=0, doc="Shortest assignment interval that a consumer group may set."
    )
    group_consumer_min_heartbeat_interval_ms: int = setting(
        default=5000, at_least=1, doc="Shortest heartbeat interval that a consumer group may set."
    )
    group_consumer_min_session_timeout_ms: int = setting(
        default=45_000, at_least=1, doc="Shortest session timeout that a consumer group may set."
    )
    group_consumer_regex_refresh_interval_ms: int = setting(
        default=10 * MINUTE,
        at_least=10_000,
        internal=True,
        doc="How often the broker looks for topics that match the regular expressions of a consumer group.",
    )
    group_consumer_session_timeout_ms: int = setting(
        default=45_000,
        at_least=1,
        doc="A member of a consumer group that sends no heartbeat for this long is removed. A group can override it.",
    )
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
