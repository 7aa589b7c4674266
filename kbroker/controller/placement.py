"""Which brokers hold which replicas.

With the n usable brokers sorted by id, the i-th partition's j-th replica goes to broker ((i + j) mod n); partition
numbers go on counting when a topic grows. The first replica is the preferred leader, so that leaders spread evenly.
Kafka's own placement starts at a random broker and strides over racks; this one gives the same assignment for the same
cluster every time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from uuid import UUID

from kbroker.metadata.image import UNASSIGNED_DIRECTORY, BrokerImage, Image, PartitionImage
from kbroker.metadata.parts import partition_record
from wire.errors import ErrorCode, KafkaError
from wire.stored.metadata import PartitionRecord


def usable_brokers(image: Image) -> list[int]:
    """Brokers that may get new replicas, by id: registered, unfenced, not shutting down."""
    return sorted(broker.id for broker in image.brokers.values() if broker.active)


def place_replicas(
    brokers: Sequence[int], *, first_partition: int, partitions: int, replication_factor: int
) -> list[tuple[int, ...]]:
    """The replicas of each new partition. Raises INVALID_REPLICATION_FACTOR when the brokers do not suffice."""
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
    """Raise INVALID_REPLICA_ASSIGNMENT unless these are distinct registered brokers, as many as in the other
    partitions.
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


def new_partition(image: Image, replicas: Sequence[int]) -> PartitionImage | None:
    """A new partition led by its first usable replica; None when none of them is usable."""
    isr = tuple(broker for broker in replicas if image.brokers[broker].active)
    if not isr:
        return None
    return PartitionImage(
        replicas=tuple(replicas),
        isr=isr,
        leader=isr[0],
        leader_epoch=0,
        partition_epoch=0,
        directories=tuple(default_directory(image.brokers.get(broker)) for broker in replicas),
    )


def default_directory(broker: BrokerImage | None) -> UUID:
    """Where a new replica on this broker lives: its only log directory, else the broker's own choice later."""
    if broker is not None and len(broker.log_dirs) == 1:
        return broker.log_dirs[0]
    return UNASSIGNED_DIRECTORY


def partition_records(topic_id: UUID, first: int, partitions: Iterable[PartitionImage]) -> list[PartitionRecord]:
    """The records that create consecutive partitions."""
    return [partition_record(topic_id, first + step, partition) for step, partition in enumerate(partitions)]
