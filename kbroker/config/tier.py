"""Settings of tier, none of which has an effect yet: known, so that files written for Kafka can be read."""

from __future__ import annotations

from kbroker.config.settings import (
    GB,
    MAX_INT64,
    MINUTE,
    SECOND,
    Dynamic,
    Setting,
    harmless,
    refused,
)
from kbroker.config.values import Kind

CLUSTER_WIDE, PER_BROKER = Dynamic.CLUSTER_WIDE, Dynamic.PER_BROKER

KNOWN: tuple[Setting, ...] = (
    *refused(
        "Tiered storage is not implemented yet.",
        remote_log_storage_system_enable=Setting(False),
    ),
    *harmless(
        "Tiered storage is not implemented yet, and cannot be switched on.",
        remote_fetch_max_wait_ms=Setting(500, at_least=1, dynamic=CLUSTER_WIDE),
        remote_list_offsets_request_timeout_ms=Setting(30 * SECOND, kind=Kind.LONG, at_least=1, dynamic=CLUSTER_WIDE),
        remote_log_index_file_cache_total_size_bytes=Setting(GB, kind=Kind.LONG, at_least=1, dynamic=CLUSTER_WIDE),
        remote_log_index_file_cache_ttl_ms=Setting(15 * MINUTE, kind=Kind.LONG, at_least=-1, internal=True),
        remote_log_manager_copier_thread_pool_size=Setting(10, at_least=1, dynamic=CLUSTER_WIDE),
        remote_log_manager_copy_max_bytes_per_second=Setting(
            MAX_INT64, kind=Kind.LONG, at_least=1, dynamic=CLUSTER_WIDE
        ),
        remote_log_manager_copy_quota_window_num=Setting(11, at_least=1),
        remote_log_manager_copy_quota_window_size_seconds=Setting(1, at_least=1),
        remote_log_manager_expiration_thread_pool_size=Setting(10, at_least=1, dynamic=CLUSTER_WIDE),
        remote_log_manager_fetch_max_bytes_per_second=Setting(
            MAX_INT64, kind=Kind.LONG, at_least=1, dynamic=CLUSTER_WIDE
        ),
        remote_log_manager_fetch_quota_window_num=Setting(11, at_least=1),
        remote_log_manager_fetch_quota_window_size_seconds=Setting(1, at_least=1),
        remote_log_manager_follower_thread_pool_size=Setting(2, at_least=1, dynamic=CLUSTER_WIDE),
        remote_log_manager_task_interval_ms=Setting(30 * SECOND, kind=Kind.LONG, at_least=1),
        remote_log_manager_task_retry_backoff_max_ms=Setting(30 * SECOND, kind=Kind.LONG, at_least=1, internal=True),
        remote_log_manager_task_retry_backoff_ms=Setting(500, kind=Kind.LONG, at_least=1, internal=True),
        remote_log_manager_task_retry_jitter=Setting(0.2, at_least=0, at_most=0.5, internal=True),
        remote_log_manager_thread_pool_size=Setting(2, at_least=1),
        remote_log_metadata_custom_metadata_max_bytes=Setting(128, at_least=0),
        remote_log_metadata_manager_class_name=Setting(
            "org.apache.kafka.server.log.remote.metadata.storage.TopicBasedRemoteLogMetadataManager"
        ),
        remote_log_metadata_manager_class_path=Setting(kind=Kind.STRING),
        remote_log_metadata_manager_impl_prefix=Setting("rlmm.config."),
        remote_log_metadata_manager_listener_name=Setting(kind=Kind.STRING),
        remote_log_reader_max_pending_tasks=Setting(100, at_least=1),
        remote_log_reader_threads=Setting(10, at_least=1, dynamic=CLUSTER_WIDE),
        remote_log_storage_manager_class_name=Setting(kind=Kind.STRING),
        remote_log_storage_manager_class_path=Setting(kind=Kind.STRING),
        remote_log_storage_manager_impl_prefix=Setting("rsm.config."),
    ),
)
