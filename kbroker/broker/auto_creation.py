"""Automatic creation: which unknown topics a broker creates when they are named, and with which settings.

Topic names must be legal. Internal topics get the partitions and settings of their owner, all others the controller's
defaults. The creation is an ordinary CreateTopics request, so concurrent requests are safe: the second one finds that
the topic exists.

Source: Kafka's AutoTopicCreationManager.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

import trio

from kbroker.config import Settings
from kbroker.controller.port import Sender
from kbroker.metadata.names import (
    CLUSTER_METADATA_TOPIC,
    GROUP_METADATA_TOPIC,
    REMOTE_LOG_METADATA_TOPIC,
    TRANSACTION_STATE_TOPIC,
    topic_name_fault,
)
from kbroker.runtime.event_log import get_logger
from wire.errors import ErrorCode, KafkaError, code_of
from wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)

if TYPE_CHECKING:
    from kbroker.broker.broker import Broker

PATIENCE_S: Final = 3
"""How long a client's next requests wait for an automatic creation. It usually takes milliseconds; if the controller
hangs or is busy for longer, the client asks again."""
_CREATED: Final = (0, ErrorCode.TOPIC_ALREADY_EXISTS)

logger = get_logger(__name__)


class AutoCreator:
    """Asks the controller of a broker for topics that clients named."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    async def create(self, names: list[str], sender: Sender | None = None) -> None:
        """Create topics with the defaults. Failures are logged; the client asks again.

        The client's other requests wait behind this one, so a controller that does not answer delays it only briefly.
        """
        broker = self._broker
        request = auto_creation_request(names, broker.settings)
        is_needed = names in ([GROUP_METADATA_TOPIC], [TRANSACTION_STATE_TOPIC]) and broker.groups.has_space
        why, answer = "no controller is active", None
        if broker.controller.active_id >= 0:
            why = f"no answer from the controller in {PATIENCE_S} s"
            with trio.move_on_after(PATIENCE_S):
                try:
                    answer = await broker.controller.ask(
                        request, CreateTopicsResponse, is_needed=is_needed, sender=sender
                    )
                except KafkaError as error:
                    why = str(error)
        if answer is None:
            left_out = broker.log_limit.admit("automatic creation", now_ms=broker.env.now_ms())
            if left_out is not None:
                first, count = names[0], len(names)
                logger.warning("automatic creation failed", topic=first, topics=count, why=why, left_out=left_out)
            return
        asked_by = sender or Sender()
        await broker.change_log.write(
            request, answer, principal=asked_by.principal, client_id=asked_by.client_id, peer=asked_by.host
        )
        if failed := [one for one in answer.topics if one.error_code not in _CREATED]:
            # One log line, because a request can name thousands of topics.
            codes = sorted({code_of(one.error_code).name for one in failed})
            logger.warning("automatic creation failed", topic=failed[0].name, failed=len(failed), codes=codes)


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
