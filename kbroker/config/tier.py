"""Settings of tiered storage, those of its plug-ins included.

What begins with `rsm.config.` belongs to the storage manager, with `rlmm.config.` to the metadata manager: both are
handed on without the prefix, are never shown (nobody but the plug-in knows which of them is a secret), and it is the
plug-in that refuses a key which it does not know. The metadata manager on `__remote_log_metadata` is our own, and its
keys are declared here.

Source: `RemoteLogManagerConfig`, `TopicBasedRemoteLogMetadataManagerConfig` of Apache Kafka 4.3.1.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from kbroker.config.settings import (
    GB,
    MAX_INT64,
    MB,
    MINUTE,
    SECOND,
    Dynamic,
    Effect,
    Setting,
    harmless,
    refused,
    setting,
    settings,
)
from kbroker.config.values import Kind, Value

CLUSTER_WIDE = Dynamic.CLUSTER_WIDE

RSM_PREFIX = "rsm.config."
RLMM_PREFIX = "rlmm.config."
TOPIC_BASED_METADATA = "org.apache.kafka.server.log.remote.metadata.storage.TopicBasedRemoteLogMetadataManager"


def _not_empty(text: str | None) -> str | None:
    return None if text is None or text else "String must be non-empty"


@settings
class TierSettings:
    """Whether there is a tier, by which plug-ins, and how much of the machine it may take.

    Shape   rsm_configs and rlmm_configs are the plug-ins' settings as they were given, without their prefix
    """

    remote_log_storage_system_enable: bool = setting(
        default=False, doc="Whether topics can be tiered: their closed segments are copied to a remote store."
    )
    remote_log_storage_manager_class_name: str | None = setting(
        kind=Kind.STRING,
        check=_not_empty,
        doc="The plug-in that stores segments, by its entry point or its class; the local directory where unset.",
    )
    remote_log_metadata_manager_class_name: str = setting(
        default=TOPIC_BASED_METADATA,
        check=_not_empty,
        doc="The plug-in that knows which segments are stored; Kafka's name means the topic __remote_log_metadata.",
    )
    remote_log_manager_task_interval_ms: int = setting(
        default=30 * SECOND,
        kind=Kind.LONG,
        at_least=1,
        doc="How often it is looked what of a partition is to be copied or has expired.",
    )
    remote_log_manager_copier_thread_pool_size: int = setting(
        default=10, at_least=1, dynamic=CLUSTER_WIDE, doc="How many segments are copied at once."
    )
    remote_log_manager_expiration_thread_pool_size: int = setting(
        default=10, at_least=1, dynamic=CLUSTER_WIDE, doc="How many partitions delete expired segments at once."
    )
    remote_log_reader_threads: int = setting(
        default=10, at_least=1, dynamic=CLUSTER_WIDE, doc="How many reads of the tier are made at once."
    )
    remote_log_reader_max_pending_tasks: int = setting(
        default=100, at_least=1, doc="How many reads may wait for one of these; more are refused."
    )
    remote_log_manager_copy_max_bytes_per_second: int = setting(
        default=MAX_INT64,
        kind=Kind.LONG,
        at_least=1,
        dynamic=CLUSTER_WIDE,
        doc="What all copies to the tier together may take.",
    )
    remote_log_manager_copy_quota_window_num: int = setting(
        default=11, at_least=1, doc="The rate of copying is held over so many windows."
    )
    remote_log_manager_copy_quota_window_size_seconds: int = setting(
        default=1, at_least=1, doc="How long one of these is."
    )
    remote_log_manager_fetch_max_bytes_per_second: int = setting(
        default=MAX_INT64,
        kind=Kind.LONG,
        at_least=1,
        dynamic=CLUSTER_WIDE,
        doc="What all reads of the tier together may take.",
    )
    remote_log_manager_fetch_quota_window_num: int = setting(
        default=11, at_least=1, doc="The rate of reading is held over so many windows."
    )
    remote_log_manager_fetch_quota_window_size_seconds: int = setting(
        default=1, at_least=1, doc="How long one of these is."
    )
    remote_fetch_max_wait_ms: int = setting(
        default=500,
        at_least=1,
        dynamic=CLUSTER_WIDE,
        doc="A Fetch waits so long for the tier; what is read later is kept for the next one.",
    )
    remote_list_offsets_request_timeout_ms: int = setting(
        default=30 * SECOND,
        kind=Kind.LONG,
        at_least=1,
        dynamic=CLUSTER_WIDE,
        doc="A search by timestamp in the tier may take so long.",
    )
    remote_log_index_file_cache_total_size_bytes: int = setting(
        default=GB,
        kind=Kind.LONG,
        at_least=1,
        dynamic=CLUSTER_WIDE,
        doc="The disk space for copies of remote indexes, in the data directory.",
    )
    remote_log_index_file_cache_ttl_ms: int = setting(
        default=15 * MINUTE,
        kind=Kind.LONG,
        at_least=-1,
        internal=True,
        doc="A copy that nobody has looked at for so long goes; -1 is never.",
    )
    remote_log_metadata_custom_metadata_max_bytes: int = setting(
        default=128, at_least=0, doc="The most that a storage plug-in may have kept for it beside a segment."
    )
    kbroker_remote_copy_process_enable: bool = setting(
        default=True,
        doc="What takes the processor in copying segments is done by another process, so that producers do not notice.",
    )
    kbroker_remote_chunk_bytes: int = setting(
        default=-1,
        at_least=64 * 1024,
        also=-1,
        doc="Segments are read from the tier in pieces of this size; -1: 1 MiB of a directory, else 4 MiB.",
    )
    kbroker_remote_chunk_cache_bytes: int = setting(
        default=96 * MB, kind=Kind.LONG, at_least=0, doc="The memory for such pieces, of all partitions together."
    )
    kbroker_remote_read_ahead_bytes: int = setting(
        default=16 * MB,
        kind=Kind.LONG,
        at_least=0,
        doc="So much is read ahead of a consumer that reads one piece after the other; neighbours by one request.",
    )
    rsm_configs: Mapping[str, str] = dataclasses.field(default_factory=dict, repr=False)
    rlmm_configs: Mapping[str, str] = dataclasses.field(default_factory=dict, repr=False)

    @property
    def is_directory(self) -> bool:
        """Whether segments go to a local directory."""
        return self.remote_log_storage_manager_class_name in (None, "directory")

    @property
    def has_topic_based_metadata(self) -> bool:
        """Whether the metadata is kept in `__remote_log_metadata`, by our own manager."""
        return self.remote_log_metadata_manager_class_name in (TOPIC_BASED_METADATA, "topic")

    @property
    def topic_num_partitions(self) -> int:
        """Partitions of `__remote_log_metadata`, when it is made."""
        return self._of_topic("remote.log.metadata.topic.num.partitions")

    @property
    def topic_replication_factor(self) -> int:
        """Replicas of `__remote_log_metadata`, when it is made."""
        return self._of_topic("remote.log.metadata.topic.replication.factor")

    @property
    def topic_min_isr(self) -> int:
        """The least of them that must be in sync."""
        return self._of_topic("remote.log.metadata.topic.min.isr")

    @property
    def topic_retention_ms(self) -> int:
        """How long its records stay; -1 is for ever."""
        return self._of_topic("remote.log.metadata.topic.retention.ms")

    @property
    def consume_wait_ms(self) -> int:
        """The longest that a change waits until the manager has read it back."""
        return self._of_topic("remote.log.metadata.consume.wait.ms")

    @property
    def initialization_retry_interval_ms(self) -> int:
        """After so long another attempt is made to have the topic."""
        return self._of_topic("remote.log.metadata.initialization.retry.interval.ms")

    def _of_topic(self, name: str) -> int:
        declaration = METADATA_TOPIC[name]
        text = self.rlmm_configs.get(name)
        value = declaration.default if text is None else declaration.parse(text)
        assert isinstance(value, int)
        return value


def _metadata_retention(value: Value) -> str | None:
    return None if value == -1 or (isinstance(value, int) and value > 0) else "must be -1 or at least 1"


METADATA_TOPIC: Mapping[str, Setting] = {
    one.name: one
    for one in (
        Setting(
            50,
            name="remote.log.metadata.topic.num.partitions",
            at_least=1,
            doc="Partitions of __remote_log_metadata, when it is made.",
        ),
        Setting(
            3,
            kind=Kind.SHORT,
            name="remote.log.metadata.topic.replication.factor",
            at_least=1,
            doc="Its replicas.",
        ),
        Setting(
            2,
            kind=Kind.SHORT,
            name="remote.log.metadata.topic.min.isr",
            at_least=1,
            doc="How many of them must be in sync.",
        ),
        Setting(
            -1,
            kind=Kind.LONG,
            name="remote.log.metadata.topic.retention.ms",
            check=_metadata_retention,
            doc="How long its records stay: longer than those of any tiered topic. -1 is for ever.",
        ),
        Setting(
            2 * MINUTE,
            kind=Kind.LONG,
            name="remote.log.metadata.consume.wait.ms",
            at_least=0,
            doc="The longest that a change waits until it has been read back.",
        ),
        Setting(
            100,
            kind=Kind.LONG,
            name="remote.log.metadata.initialization.retry.interval.ms",
            at_least=0,
            doc="After so long it is tried again to have the topic, for as long as it takes.",
        ),
        Setting(
            2 * MINUTE,
            kind=Kind.LONG,
            name="remote.log.metadata.initialization.retry.max.timeout.ms",
            at_least=0,
            effect=Effect.HARMLESS,
            why="The topic is on this broker, and whoever needs it waits for as long as it takes.",
        ),
    )
}
"""What our own metadata manager takes, by its names below `rlmm.config.`."""

_OF_ITS_CLIENTS = tuple(
    f"remote.log.metadata.{client}." for client in ("common.client", "producer", "consumer", "admin")
)


def metadata_topic_setting(name: str) -> Setting | None:
    """The declaration of a key below `rlmm.config.` of our own manager; None if it has no such key."""
    if name.startswith(_OF_ITS_CLIENTS):
        why = "The topic of the metadata is read and written in this process, without clients."
        return Setting(kind=Kind.UNKNOWN, name=name, effect=Effect.HARMLESS, why=why)
    return METADATA_TOPIC.get(name)


KNOWN: tuple[Setting, ...] = (
    *refused(
        "Plug-ins are Python packages that are installed beside kbroker; see docs/tiered-storage.md.",
        remote_log_metadata_manager_class_path=Setting(kind=Kind.STRING),
        remote_log_storage_manager_class_path=Setting(kind=Kind.STRING),
    ),
    *refused(
        "What belongs to a plug-in is told by this prefix in every file.",
        remote_log_metadata_manager_impl_prefix=Setting(RLMM_PREFIX),
        remote_log_storage_manager_impl_prefix=Setting(RSM_PREFIX),
    ),
    *harmless(
        "The metadata manager reads and writes its topic in this process, by no listener.",
        remote_log_metadata_manager_listener_name=Setting(kind=Kind.STRING),
    ),
    *harmless(
        "This broker follows no leader, so nothing is done for followers.",
        remote_log_manager_follower_thread_pool_size=Setting(2, at_least=1, dynamic=CLUSTER_WIDE),
        remote_log_manager_thread_pool_size=Setting(2, at_least=1),
    ),
    *harmless(
        "What failed is tried again after a pause that doubles, up to remote.log.manager.task.interval.ms.",
        remote_log_manager_task_retry_backoff_max_ms=Setting(30 * SECOND, kind=Kind.LONG, at_least=1, internal=True),
        remote_log_manager_task_retry_backoff_ms=Setting(500, kind=Kind.LONG, at_least=1, internal=True),
        remote_log_manager_task_retry_jitter=Setting(0.2, at_least=0, at_most=0.5, internal=True),
    ),
)
