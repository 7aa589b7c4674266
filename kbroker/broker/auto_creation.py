"""Automatic creation: which unknown topics a broker creates when they are named, and with which settings.

Topic names must be legal. Internal topics get the partitions and settings of their owner, all others the controller's
defaults. The creation is an ordinary CreateTopics request, so concurrent requests are safe: the second one finds that
the topic exists.

Source: Kafka's AutoTopicCreationManager.
"""

from __future__ import annotations

from collections.abc import Iterable

from kbroker.config import Settings
from kbroker.metadata.names import (
    CLUSTER_METADATA_TOPIC,
    GROUP_METADATA_TOPIC,
    REMOTE_LOG_METADATA_TOPIC,
    TRANSACTION_STATE_TOPIC,
    topic_name_fault,
)
from wire.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest


def may_create(name: str, settings: Settings) -> bool:
    """Whether a Metadata request that allows auto-creation creates this topic if it does not exist."""
    is_allowed = settings.log.auto_create_topics_enable and name != CLUSTER_METADATA_TOPIC
    return is_allowed and topic_name_fault(name) is None


def auto_creation_request(names: Iterable[str], settings: Settings) -> CreateTopicsRequest:
    """The CreateTopics request for these names, which must be legal. Duplicates are removed."""
    return CreateTopicsRequest(topics=[_creatable(name, settings) for name in dict.fromkeys(names)])


def _creatable(name: str, settings: Settings) -> CreatableTopic:
    topic = CreatableTopic(name=name, num_partitions=-1, replication_factor=-1, assignments=[], configs=[])
    configs: dict[str, str] = {}
    if name == GROUP_METADATA_TOPIC:
        groups = settings.groups
        topic.num_partitions = groups.offsets_topic_num_partitions
        topic.replication_factor = groups.offsets_topic_replication_factor
        configs = {
            "cleanup.policy": "compact",
            "compression.type": "producer",
            "segment.bytes": str(groups.offsets_topic_segment_bytes),
        }
    elif name == TRANSACTION_STATE_TOPIC:
        transactions = settings.transactions
        topic.num_partitions = transactions.transaction_state_log_num_partitions
        topic.replication_factor = transactions.transaction_state_log_replication_factor
        configs = {
            "cleanup.policy": "compact",
            "compression.type": "uncompressed",
            "min.insync.replicas": str(transactions.transaction_state_log_min_isr),
            "segment.bytes": str(transactions.transaction_state_log_segment_bytes),
            "unclean.leader.election.enable": "false",
        }
    elif name == REMOTE_LOG_METADATA_TOPIC and settings.tier.remote_log_storage_system_enable:
        tier = settings.tier
        topic.num_partitions = tier.of_metadata_topic("topic.num.partitions")
        topic.replication_factor = tier.of_metadata_topic("topic.replication.factor")
        configs = {
            "cleanup.policy": "delete",
            "min.insync.replicas": str(tier.of_metadata_topic("topic.min.isr")),
            "remote.storage.enable": "false",
            "retention.ms": str(tier.of_metadata_topic("topic.retention.ms")),
        }
    topic.configs = [CreatableTopicConfig(name=key, value=value) for key, value in configs.items()]
    return topic
