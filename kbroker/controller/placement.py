"""Replica placement.

The usable brokers form a ring that alternates between the racks, and by id within a rack. Each partition of a topic is
led by the next broker of the ring; each topic begins one broker later than the one before it, so that topics with one
partition are spread too. Each further replica goes to a rack with the fewest replicas of this partition, there to the
next broker of the ring. So leaders and replicas are spread evenly, and no rack holds two replicas while another one
holds none. A topic that grows continues where it ended.

A fenced broker gets a replica only if its rack has no other broker left. It never leads a new partition.

Kafka's StripedReplicaPlacer has the same rules, but starts at a random broker; this one gives the same assignment for
the same cluster every time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import zip_longest
from uuid import UUID

from kbroker.metadata.image import BrokerImage, Image, PartitionImage
from kbroker.metadata.parts import UNASSIGNED_DIRECTORY, partition_record
from wire.errors import ErrorCode, KafkaError
from wire.stored.metadata import PartitionRecord


def usable_brokers(image: Image) -> list[BrokerImage]:
    """Brokers that may get new replicas: registered and not shutting down."""
    return [broker for broker in image.brokers.values() if not broker.in_controlled_shutdown]


def place_replicas(
    brokers: Sequence[BrokerImage], *, start: int, partitions: int, replication_factor: int
) -> list[tuple[int, ...]]:
    """The replicas of each new partition; `start` is the place of the first leader in the ring.

    Raises INVALID_REPLICATION_FACTOR if there are too few brokers.
    """
    ring = _alternated(broker for broker in brokers if not broker.fenced)
    if not ring:
        raise KafkaError(ErrorCode.INVALID_REPLICATION_FACTOR, "All brokers are currently fenced.")
    if replication_factor > len(brokers):
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"The target replication factor of {replication_factor} cannot be reached because only {len(brokers)} "
            "broker(s) are registered or some brokers have all their log directories cordoned.",
        )
    fenced = _alternated(broker for broker in brokers if broker.fenced)
    count = len(ring)

    @cache  # the assignments repeat after one turn of the ring
    def replicas_from(start: int) -> tuple[int, ...]:
        return _first_of_each_rack([*ring[start:], *ring[:start], *fenced], replication_factor)

    return [replicas_from(index % count) for index in range(start, start + partitions)]


def place_of(brokers: Sequence[BrokerImage], leader: int) -> int:
    """The place of a broker in the ring; 0 if it cannot lead new partitions."""
    ring = [broker.id for broker in _alternated(broker for broker in brokers if not broker.fenced)]
    return ring.index(leader) if leader in ring else 0


def _alternated(brokers: Iterable[BrokerImage]) -> list[BrokerImage]:
    """The first broker of each rack, then the second one of each, and so on; brokers without a rack form one."""
    racks: dict[str, list[BrokerImage]] = {}
    for broker in sorted(brokers, key=lambda broker: (broker.rack or "", broker.id)):
        racks.setdefault(broker.rack or "", []).append(broker)
    return [broker for turn in zip_longest(*racks.values()) for broker in turn if broker is not None]


def _first_of_each_rack(candidates: list[BrokerImage], count: int) -> tuple[int, ...]:
    """The first candidate, then each time the first one of a rack that was chosen the least."""
    chosen: Counter[str | None] = Counter()
    replicas = []
    for _ in range(count):
        broker = min(candidates, key=lambda broker: chosen[broker.rack])
        candidates.remove(broker)
        chosen[broker.rack] += 1
        replicas.append(broker.id)
    return tuple(replicas)


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
