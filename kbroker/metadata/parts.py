"""The parts of an image (topics, partitions, brokers, controllers), and how PartitionChange records apply."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple
from uuid import UUID

from wire.messages.broker_registration import Endpoint, FeatureRange
from wire.stored.metadata import PartitionChangeRecord, PartitionRecord

NO_LEADER: Final = -1
NO_LEADER_CHANGE: Final = -2

RECOVERED: Final = 0
RECOVERING: Final = 1
"""The leader recovery states. A leader recovers after an unclean election until it has told the controller."""

TOPIC_RESOURCE: Final = 2
BROKER_RESOURCE: Final = 4
BROKER_LOGGER_RESOURCE: Final = 8
CLIENT_METRICS_RESOURCE: Final = 16
GROUP_RESOURCE: Final = 32
NODE_ID_DIGITS = 10
"""A longer text is not an int32, and Python refuses to convert texts of thousands of digits."""

CLUSTER_METADATA_TOPIC_ID: Final = UUID(int=1)
MIGRATING_DIRECTORY: Final = UUID(int=0)
UNASSIGNED_DIRECTORY: Final = UUID(int=1)
LOST_DIRECTORY: Final = UUID(int=2)
RESERVED_DIRECTORIES: Final = 100
"""Directory ids below this number are reserved and name no directory."""

METADATA_VERSION_FEATURE: Final = "metadata.version"
KRAFT_VERSION_FEATURE: Final = "kraft.version"
TRANSACTION_VERSION_FEATURE: Final = "transaction.version"
GROUP_VERSION_FEATURE: Final = "group.version"


class PartitionImage(NamedTuple):
    """One partition's replicas and leader.

    Shape      replicas in order of preference; directories is parallel to replicas; isr is a subset of replicas
    Invariant  leader is in isr, or NO_LEADER; leader_epoch and partition_epoch never fall; leader_epoch rises no faster
               than partition_epoch
    """

    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader: int
    leader_epoch: int
    partition_epoch: int
    directories: tuple[UUID, ...] = ()
    removing_replicas: tuple[int, ...] = ()
    adding_replicas: tuple[int, ...] = ()
    leader_recovery_state: int = RECOVERED
    eligible_leader_replicas: tuple[int, ...] = ()
    last_known_elr: tuple[int, ...] = ()

    def directory(self, broker_id: int) -> UUID | None:
        """The log directory that holds this broker's replica; None if the broker has none."""
        try:
            return self.directories[self.replicas.index(broker_id)]
        except (ValueError, IndexError):
            return None


class TopicImage(NamedTuple):
    """One topic; partitions are in ascending order of their index."""

    name: str
    id: UUID
    partitions: Mapping[int, PartitionImage]


class BrokerImage(NamedTuple):
    """One registration. epoch is the offset of the RegisterBroker record that started this incarnation."""

    id: int
    epoch: int
    incarnation_id: UUID
    endpoints: Mapping[str, Endpoint]
    features: Mapping[str, tuple[int, int]]
    rack: str | None = None
    fenced: bool = True
    in_controlled_shutdown: bool = False
    log_dirs: tuple[UUID, ...] = ()
    cordoned_log_dirs: tuple[UUID, ...] | None = None
    is_migrating_zk_broker: bool = False

    @property
    def active(self) -> bool:
        """Whether the broker may lead partitions and join an ISR."""
        return not self.fenced and not self.in_controlled_shutdown

    def has_online_directory(self, directory: UUID | None) -> bool:
        """Whether a replica in this directory can be served. Of the reserved ids only LOST means that it cannot."""
        if directory == LOST_DIRECTORY:
            return False
        return (
            directory is None or not self.log_dirs or directory.int < RESERVED_DIRECTORIES or directory in self.log_dirs
        )


class ControllerImage(NamedTuple):
    """One controller's registration."""

    id: int
    incarnation_id: UUID
    endpoints: Mapping[str, Endpoint]
    features: Mapping[str, tuple[int, int]]
    zk_migration_ready: bool = False


def feature_ranges(features: Mapping[str, tuple[int, int]]) -> list[FeatureRange]:
    """The lowest and the highest supported level of each feature."""
    return [
        FeatureRange(name=name, min_supported_version=lowest, max_supported_version=highest)
        for name, (lowest, highest) in features.items()
    ]


def changed_partition(before: PartitionImage, record: PartitionChangeRecord) -> PartitionImage:
    """The partition after one PartitionChange record.

    Fields that the record does not carry stay the same. partition_epoch always rises; leader_epoch rises if the record
    has a leader, even the same one. Directories stay positional: only an array without any real directory follows a
    change of replicas.
    """
    replicas = before.replicas if record.replicas is None else tuple(record.replicas)
    directories = before.directories if record.directories is None else tuple(record.directories)
    if all(directory == MIGRATING_DIRECTORY for directory in directories):
        directories = (MIGRATING_DIRECTORY,) * len(replicas)
    elected = record.leader != NO_LEADER_CHANGE
    return PartitionImage(
        replicas,
        before.isr if record.isr is None else tuple(record.isr),
        record.leader if elected else before.leader,
        before.leader_epoch + 1 if elected else before.leader_epoch,
        before.partition_epoch + 1,
        directories,
        before.removing_replicas if record.removing_replicas is None else tuple(record.removing_replicas),
        before.adding_replicas if record.adding_replicas is None else tuple(record.adding_replicas),
        before.leader_recovery_state if record.leader_recovery_state == -1 else record.leader_recovery_state,
        before.eligible_leader_replicas
        if record.eligible_leader_replicas is None
        else tuple(record.eligible_leader_replicas),
        before.last_known_elr if record.last_known_elr is None else tuple(record.last_known_elr),
    )


def partition_record(topic_id: UUID, index: int, partition: PartitionImage) -> PartitionRecord:
    """The record that creates the partition in its current state."""
    return PartitionRecord(
        partition_id=index,
        topic_id=topic_id,
        replicas=list(partition.replicas),
        isr=list(partition.isr),
        removing_replicas=list(partition.removing_replicas),
        adding_replicas=list(partition.adding_replicas),
        leader=partition.leader,
        leader_recovery_state=partition.leader_recovery_state,
        leader_epoch=partition.leader_epoch,
        partition_epoch=partition.partition_epoch,
        directories=list(partition.directories),
        eligible_leader_replicas=list(partition.eligible_leader_replicas) or None,
        last_known_elr=list(partition.last_known_elr) or None,
    )
