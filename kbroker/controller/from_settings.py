"""Convert a node's settings to those of its controller."""

from __future__ import annotations

from kbroker.config import Settings
from kbroker.controller.context import ControllerSettings
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
