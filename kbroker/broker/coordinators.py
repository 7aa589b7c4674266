"""The coordinators of a broker: groups and transactional ids, and which broker coordinates a key."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbroker.coordinator.common.ports import partition_for
from kbroker.coordinator.group_coordinator import GroupCoordinator
from kbroker.coordinator.transactions.transaction_coordinator import TransactionCoordinator
from kbroker.metadata.names import GROUP_METADATA_TOPIC, SHARE_GROUP_STATE_TOPIC
from wire.errors import ErrorCode, KafkaError
from wire.messages.produce import NodeEndpoint

if TYPE_CHECKING:
    from kbroker.broker.broker import Broker


def group_coordinator(broker: Broker) -> GroupCoordinator:
    """The coordinator of this broker's groups."""
    return GroupCoordinator(
        broker.env,
        broker.settings.groups,
        replicas=broker.replicas,
        purgatory=broker.purgatory,
        logs=broker,
        lowest_free_bytes=broker.settings.limits.kbroker_groups_min_free_bytes,
    )


def transaction_coordinator(broker: Broker) -> TransactionCoordinator:
    """The coordinator of this broker's transactional ids."""
    return TransactionCoordinator(
        broker.env,
        broker.settings.transactions,
        replicas=broker.replicas,
        purgatory=broker.purgatory,
        turns=broker.turns,
        logs=broker,
        next_producer_id=broker.producer_ids.next,
        send_markers=broker.marker_sender.submit,
        commit_timeout_ms=broker.settings.server.request_timeout_ms,
        lowest_free_bytes=broker.settings.limits.kbroker_groups_min_free_bytes,
    )


async def find_coordinator(broker: Broker, topic: str, key: str, *, listener: str) -> NodeEndpoint:
    """The broker that coordinates a group, a transactional id or the state of a share group's partition: the leader of
    the key's partition of an internal topic. The first call creates the topic, except for that of share groups, which
    only brokers of Apache Kafka have.

    Errors  COORDINATOR_NOT_AVAILABLE
    """
    if topic == SHARE_GROUP_STATE_TOPIC:
        if (state := broker.image.topics_by_name.get(topic)) is None:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"there is no {topic}")
        index = partition_for(key, len(state.partitions))
    else:
        if topic not in broker.image.topics_by_name:
            await broker.auto_creator.create([topic])
        runtime = broker.groups.runtime if topic == GROUP_METADATA_TOPIC else broker.transactions.runtime
        index = runtime.partition_of(key)
    leader, _ = broker.current_leader(topic, index)
    for node in broker.nodes(listener):
        if node.node_id == leader:
            return node
    raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{topic}-{index} has no leader")
