"""Replica placement.

With the n usable brokers sorted by id, replica j of partition i goes to broker ((i + j) mod n). When a topic grows, the
partition numbers continue. The first replica is the preferred leader, so leaders are spread evenly. Kafka's placement
starts at a random broker and strides over racks; this one gives the same assignment for the same cluster every time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from uuid import UUID

from kbroker.metadata.image import BrokerImage, Image, PartitionImage
from kbroker.metadata.parts import UNASSIGNED_DIRECTORY, partition_record
from wire.errors import ErrorCode, KafkaError
from wire.stored.metadata import PartitionRecord


def usable_brokers(image: Image) -> list[int]:
    """Brokers that may get new replicas, sorted by id: registered, unfenced, not shutting down."""
    return sorted(broker.id for broker in image.brokers.values() if broker.active)


def place_replicas(
    brokers: Sequence[int], *, first_partition: int, partitions: int, replication_factor: int
) -> list[tuple[int, ...]]:
    """The replicas of each new partition. Raises INVALID_REPLICATION_FACTOR if there are too few brokers."""
    count = len(brokers)
    if count == 0:
        raise KafkaError(ErrorCode.INVALID_REPLICATION_FACTOR, "All brokers are currently fenced.")
    if replication_factor > count:
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"The target replication factor of {replication_factor} cannot be reached because only {count} broker(s) "
            "are registered or some brokers have all their log directories cordoned.",
        )
    return [
        tuple(brokers[(index + replica) % count] for replica in range(replication_factor))
        for index in range(first_partition, first_partition + partitions)
    ]


def check_manual_assignment(image: Image, replicas: Sequence[int], replication_factor: int | None) -> None:
    """Raise INVALID_REPLICA_ASSIGNMENT unless these are distinct registered brokers, and as many as replication_factor
    if that is given.
    """
    if not replicas:
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT, "The manual partition assignment includes an empty replica list."
        )
    previous = None
    for broker in sorted(replicas):
        if broker not in image.brokers:
            raise KafkaError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"The manual partition assignment includes broker {broker}, but no such broker is registered.",
            )
        if broker == previous:
            raise KafkaError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"The manual partition assignment includes the broker {broker} more than once.",
            )
        previous = broker
    if replication_factor is not None and len(replicas) != replication_factor:
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"The manual partition assignment includes a partition with {len(replicas)} replica(s), but this is not "
            f"consistent with previous partitions, which have {replication_factor} replica(s).",
        )


def new_partition(image: Image, index: int, replicas: Sequence[int]) -> PartitionImage:
    """The new partition with this index, led by its first usable replica.

    Raises INVALID_REPLICA_ASSIGNMENT if no replica is usable.
    """
    isr = tuple(broker for broker in replicas if image.brokers[broker].active)
    if not isr:
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"All brokers specified in the manual partition assignment for partition {index} are fenced or in "
            "controlled shutdown.",
        )
    return PartitionImage(
        replicas=tuple(replicas),
        isr=isr,
        leader=isr[0],
        leader_epoch=0,
        partition_epoch=0,
        directories=tuple(default_directory(image.brokers.get(broker)) for broker in replicas),
    )


def default_directory(broker: BrokerImage | None) -> UUID:
    """The directory of a new replica on this broker: its only log directory, or unassigned if the broker has several
    and chooses later.
    """
    if broker is not None and len(broker.log_dirs) == 1:
        return broker.log_dirs[0]
    return UNASSIGNED_DIRECTORY


def partition_records(topic_id: UUID, first: int, partitions: Iterable[PartitionImage]) -> list[PartitionRecord]:
    """The records that create consecutive partitions."""
    return [partition_record(topic_id, first + step, partition) for step, partition in enumerate(partitions)]
