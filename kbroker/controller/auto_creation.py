"""Automatic creation: which unknown topics a Metadata request may create, and with which settings.

Topic names must be legal. Internal topics get the partitions and settings of their owner, all others the broker's
defaults. The creation is an ordinary CreateTopics request, so concurrent requests are safe: the second one finds that
the topic exists.

Source: Kafka's AutoTopicCreationManager.
"""

from __future__ import annotations

from collections.abc import Iterable

from kbroker.controller.context import ControllerSettings
from kbroker.metadata.names import CLUSTER_METADATA_TOPIC, topic_name_fault
from wire.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest


def may_create(name: str, settings: ControllerSettings) -> bool:
    """Whether a Metadata request that allows auto-creation creates this topic if it does not exist."""
    return settings.auto_create_topics_enable and name != CLUSTER_METADATA_TOPIC and topic_name_fault(name) is None


def auto_creation_request(names: Iterable[str], settings: ControllerSettings) -> CreateTopicsRequest:
    """The CreateTopics request for these names, which must be legal. Duplicates are removed."""
    return CreateTopicsRequest(topics=[_creatable(name, settings) for name in dict.fromkeys(names)])


def _creatable(name: str, settings: ControllerSettings) -> CreatableTopic:
    internal = settings.internal_topics.get(name)
    if internal is None:
        return CreatableTopic(name=name, num_partitions=-1, replication_factor=-1, assignments=[], configs=[])
    return CreatableTopic(
        name=name,
        num_partitions=internal.partitions,
        replication_factor=internal.replication_factor,
        assignments=[],
        configs=[CreatableTopicConfig(name=key, value=value) for key, value in internal.configs.items()],
    )
