"""Convert a node's settings to those of its controller."""

from __future__ import annotations

from kbroker.config import Settings
from kbroker.controller.context import ControllerSettings
from kbroker.controller.metadata_log import MetadataLogConfig
from kbroker.metadata.names import REMOTE_LOG_METADATA_TOPIC


def controller_settings(settings: Settings, cluster_id: str) -> ControllerSettings:
    """The settings that decisions depend on."""
    undeletable_topics = {}
    if settings.tier.remote_log_storage_system_enable:
        undeletable_topics[REMOTE_LOG_METADATA_TOPIC] = (
            f"{REMOTE_LOG_METADATA_TOPIC} lists what is in the tier: while remote.log.storage.system.enable is true, "
            "it cannot be deleted, repartitioned or compacted"
        )
    return ControllerSettings(
        cluster_id=cluster_id,
        node_id=settings.node_id,
        num_partitions=settings.log.num_partitions,
        default_replication_factor=settings.log.default_replication_factor,
        delete_topic_enable=settings.log.delete_topic_enable,
        unclean_leader_election_enable=settings.log.unclean_leader_election_enable,
        undeletable_topics=undeletable_topics,
    )


def metadata_log_config(settings: Settings) -> MetadataLogConfig:
    """The settings of the metadata log."""
    metadata = settings.metadata
    return MetadataLogConfig(
        segment_bytes=metadata.metadata_log_segment_bytes,
        segment_ms=metadata.metadata_log_segment_ms,
        max_record_bytes_between_snapshots=metadata.metadata_log_max_record_bytes_between_snapshots,
        max_snapshot_interval_ms=metadata.metadata_log_max_snapshot_interval_ms,
        max_retention_bytes=metadata.metadata_max_retention_bytes,
        max_retention_ms=metadata.metadata_max_retention_ms,
    )
