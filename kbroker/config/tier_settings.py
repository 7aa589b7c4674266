"""Settings of tiered storage and of its plug-ins.

Keys under `rsm.config.` belong to the storage manager, keys under `rlmm.config.` to the metadata manager. The broker
passes them on without the prefix and never shows their values, because only the plug-in knows which of them are
secrets. The plug-in refuses unknown keys. This module declares the keys of kbroker's own metadata manager, which uses
`__remote_log_metadata`.

Source: `RemoteLogManagerConfig`, `TopicBasedRemoteLogMetadataManagerConfig` of Apache Kafka 4.3.1.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from kbroker.config.settings import GB, MAX_INT64, MB, MINUTE, SECOND, Dynamic, Effect, Long, Setting, setting, settings
from kbroker.config.values import Kind, Value

CLUSTER_WIDE = Dynamic.CLUSTER_WIDE

RSM_PREFIX = "rsm.config."
RLMM_PREFIX = "rlmm.config."
TOPIC_BASED_METADATA = "org.apache.kafka.server.log.remote.metadata.storage.TopicBasedRemoteLogMetadataManager"


def _not_empty(text: str | None) -> str | None:
    return None if text is None or text else "String must be non-empty"


@settings
class TierSettings:
    """The tier's plug-ins, and its limits of bandwidth, concurrency, memory and disk space.

    Shape   rsm_configs and rlmm_configs are the plug-ins' settings as given, without their prefix
    """

    remote_log_storage_system_enable: bool = setting(
        default=False, doc="Whether topics can be tiered: the broker copies their closed segments to a remote store."
    )
    remote_log_storage_manager_class_name: str | None = setting(
        check=_not_empty,
        doc="Plug-in that stores segments: an entry point or a class. If unset, segments go to a local directory.",
    )
    remote_log_metadata_manager_class_name: str = setting(
        default=TOPIC_BASED_METADATA,
        check=_not_empty,
        doc="Plug-in that stores the metadata of remote segments. The default keeps them in __remote_log_metadata.",
    )
    remote_log_manager_task_interval_ms: Long = setting(
        default=30 * SECOND,
        at_least=1,
        doc="How often the broker looks for segments of a partition to copy or to expire.",
    )
    remote_log_manager_copier_thread_pool_size: int = setting(
        default=10, at_least=1, dynamic=CLUSTER_WIDE, doc="Maximum number of concurrent segment copies."
    )
    remote_log_manager_expiration_thread_pool_size: int = setting(
        default=10,
        at_least=1,
        dynamic=CLUSTER_WIDE,
        doc="Maximum number of partitions that delete expired segments concurrently.",
    )
    remote_log_manager_follower_thread_pool_size: int = setting(
        default=2,
        at_least=1,
        dynamic=CLUSTER_WIDE,
        doc="Maximum number of followers that read leader epochs and producers from the tier concurrently.",
    )
    follower_fetch_last_tiered_offset_enable: bool = setting(
        default=False,
        dynamic=CLUSTER_WIDE,
        doc="Whether an empty follower of a tiered topic starts at the first offset that is not in the tier, instead of"
        " at the leader's local log start. Requires metadata.version 4.2-IV0 or newer (KIP-1023).",
    )
    remote_log_reader_threads: int = setting(
        default=10, at_least=1, dynamic=CLUSTER_WIDE, doc="Maximum number of concurrent reads from the tier."
    )
    remote_log_reader_max_pending_tasks: int = setting(
        default=100, at_least=1, doc="Maximum number of reads that wait for a reader. The broker refuses further ones."
    )
    remote_log_manager_copy_max_bytes_per_second: Long = setting(
        default=MAX_INT64, at_least=1, dynamic=CLUSTER_WIDE, doc="Maximum rate of all copies to the tier together."
    )
    remote_log_manager_copy_quota_window_num: int = setting(
        default=11, at_least=1, doc="Number of windows over which the copy rate is measured."
    )
    remote_log_manager_copy_quota_window_size_seconds: int = setting(
        default=1, at_least=1, doc="Length of one window of the copy rate."
    )
    remote_log_manager_fetch_max_bytes_per_second: Long = setting(
        default=MAX_INT64, at_least=1, dynamic=CLUSTER_WIDE, doc="Maximum rate of all reads from the tier together."
    )
    remote_log_manager_fetch_quota_window_num: int = setting(
        default=11, at_least=1, doc="Number of windows over which the read rate is measured."
    )
    remote_log_manager_fetch_quota_window_size_seconds: int = setting(
        default=1, at_least=1, doc="Length of one window of the read rate."
    )
    remote_fetch_max_wait_ms: int = setting(
        default=500,
        at_least=1,
        dynamic=CLUSTER_WIDE,
        doc="Maximum time that a Fetch waits for the tier. Data that arrives later is kept for the next Fetch.",
    )
    remote_list_offsets_request_timeout_ms: Long = setting(
        default=30 * SECOND, at_least=1, dynamic=CLUSTER_WIDE, doc="Maximum time of a search by timestamp in the tier."
    )
    remote_log_index_file_cache_total_size_bytes: Long = setting(
        default=GB,
        at_least=1,
        dynamic=CLUSTER_WIDE,
        doc="Disk space in the data directory for the cache of remote indexes.",
    )
    remote_log_index_file_cache_ttl_ms: Long = setting(
        default=15 * MINUTE,
        at_least=-1,
        internal=True,
        doc="The broker removes a cached remote index that is unused for this long. -1 means never.",
    )
    remote_log_metadata_custom_metadata_max_bytes: int = setting(
        default=128, at_least=0, doc="Largest custom metadata that a storage plug-in may attach to a segment."
    )
    kbroker_remote_copy_process_enable: bool = setting(
        default=True,
        doc="Whether a separate process does the CPU work of segment copies, so that they do not slow down producers.",
    )
    kbroker_remote_chunk_bytes: int = setting(
        default=-1,
        at_least=64 * 1024,
        also=-1,
        doc="Size of the chunks in which segments are read from the tier. -1 means 1 MiB for a directory, else 4 MiB.",
    )
    kbroker_remote_chunk_cache_bytes: Long = setting(
        default=96 * MB, at_least=0, doc="Memory for the cache of these chunks, for all partitions together."
    )
    kbroker_remote_read_ahead_bytes: Long = setting(
        default=16 * MB,
        at_least=0,
        doc="Bytes that the broker reads ahead for a sequential consumer. One request reads adjacent chunks.",
    )
    rsm_configs: Mapping[str, str] = dataclasses.field(default_factory=dict, repr=False)
    rlmm_configs: Mapping[str, str] = dataclasses.field(default_factory=dict, repr=False)

    @property
    def is_directory(self) -> bool:
        """Whether the store is a local directory."""
        return self.remote_log_storage_manager_class_name in (None, "directory")

    @property
    def has_topic_based_metadata(self) -> bool:
        """Whether kbroker's own manager keeps the metadata in `__remote_log_metadata`."""
        return self.remote_log_metadata_manager_class_name in (TOPIC_BASED_METADATA, "topic")

    def of_metadata_topic(self, key: str) -> int:
        """The value of `rlmm.config.remote.log.metadata.<key>`, a key of kbroker's own metadata manager."""
        declaration = METADATA_TOPIC[f"remote.log.metadata.{key}"]
        text = self.rlmm_configs.get(declaration.name)
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
            kind=Kind.INT,
            name="remote.log.metadata.topic.num.partitions",
            at_least=1,
            doc="Number of partitions of __remote_log_metadata when the broker creates it.",
        ),
        Setting(
            3,
            kind=Kind.SHORT,
            name="remote.log.metadata.topic.replication.factor",
            at_least=1,
            doc="Replication factor of __remote_log_metadata when the broker creates it.",
        ),
        Setting(
            2,
            kind=Kind.SHORT,
            name="remote.log.metadata.topic.min.isr",
            at_least=1,
            doc="Minimum number of in-sync replicas of __remote_log_metadata.",
        ),
        Setting(
            -1,
            kind=Kind.LONG,
            name="remote.log.metadata.topic.retention.ms",
            check=_metadata_retention,
            doc="Retention time of __remote_log_metadata; must exceed that of every tiered topic. -1 means no limit.",
        ),
        Setting(
            2 * MINUTE,
            kind=Kind.LONG,
            name="remote.log.metadata.consume.wait.ms",
            at_least=0,
            doc="Maximum time that a metadata change waits until the broker has read it back.",
        ),
        Setting(
            100,
            kind=Kind.LONG,
            name="remote.log.metadata.initialization.retry.interval.ms",
            at_least=0,
            doc="Pause between attempts to create or find the topic. The broker retries without a limit.",
        ),
        Setting(
            2 * MINUTE,
            kind=Kind.LONG,
            name="remote.log.metadata.initialization.retry.max.timeout.ms",
            at_least=0,
            effect=Effect.HARMLESS,
            why="The topic is on this broker, and the tier waits for it without a limit.",
        ),
    )
}
"""The keys of kbroker's own metadata manager, without the prefix `rlmm.config.`."""

_OF_ITS_CLIENTS = tuple(
    f"remote.log.metadata.{client}." for client in ("common.client", "producer", "consumer", "admin")
)


def metadata_topic_setting(name: str) -> Setting | None:
    """The declaration of a key of kbroker's own metadata manager, without `rlmm.config.`; None if it is unknown."""
    if name.startswith(_OF_ITS_CLIENTS):
        why = "The broker reads and writes the metadata topic in this process, without clients."
        return Setting(name=name, effect=Effect.HARMLESS, why=why)
    return METADATA_TOPIC.get(name)
