"""The leader of a partition after a change of its ISR, its replicas or a broker's state, as one PartitionChange record
or none.

A clean election chooses a member of the ISR. An unclean one, where the topic allows it, chooses any live replica and
may lose records; it reduces the ISR to that replica and marks the leader as recovering. If no replica can lead, the
leader becomes NO_LEADER and the ISR stays, because its members have all records. A cluster with a single broker only
ever sees this: a shutdown or crash sets NO_LEADER (leader_epoch + 1), and the broker's return elects it again
(leader_epoch + 1). Apache Kafka 4.3.1 on one node writes the same records.

Source: Kafka's PartitionChangeBuilder and PartitionReassignmentReplicas (without eligible leader replicas, which
metadata.version 21 lacks).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Any, NamedTuple
from uuid import UUID

from kbroker.config.values import as_boolean
from kbroker.controller.context import Context
from kbroker.controller.placement import default_directory
from kbroker.metadata.image import NO_LEADER, BrokerImage, Image, PartitionImage, TopicImage
from kbroker.metadata.parts import RECOVERING
from wire.stored.metadata import PartitionChangeRecord

_UNCLEAN_ELECTION_KEY = "unclean.leader.election.enable"


class Election(Enum):
    """The kind of election: keep a leader that can still lead, return to the preferred one, or also choose outside of
    the ISR.
    """

    ONLINE = "online"
    PREFERRED = "preferred"
    UNCLEAN = "unclean"


def allowed_election(context: Context, topic: str) -> Election:
    """UNCLEAN if the topic's settings allow it (topic overrides, then dynamic, then static broker settings)."""
    image = context.image
    for configs in (
        image.topic_configs(topic),
        image.broker_configs(context.settings.node_id),
        image.broker_configs(None),
    ):
        value = configs.get(_UNCLEAN_ELECTION_KEY)
        if value is not None:
            return Election.UNCLEAN if as_boolean(value) else Election.ONLINE
    return Election.UNCLEAN if context.settings.unclean_leader_election_enable else Election.ONLINE


class Assignment(NamedTuple):
    """The replicas of a partition, with those that a reassignment removes and adds."""

    replicas: tuple[int, ...]
    removing: tuple[int, ...] = ()
    adding: tuple[int, ...] = ()


def plan_change(
    context: Context,
    topic: TopicImage,
    index: int,
    *,
    election: Election,
    brokers: Mapping[int, BrokerImage] | None = None,
    isr: Sequence[int] | None = None,
    leader_recovery_state: int | None = None,
    assignment: Assignment | None = None,
    directories: Mapping[int, UUID] | None = None,
) -> PartitionChangeRecord | None:
    """The record that gives a partition this ISR, these replicas with their directories, and a leader among these
    brokers, or None if nothing changes.

    A broker can lead if it is active and the log directory of its replica is online. `brokers` says how they will be
    after the decision; without it, they are those of the image. If this ISR completes a reassignment, the same record
    finishes it. The leader epoch rises when the leader changes or when a replica is removed.
    """
    before = topic.partitions[index]
    if assignment is None:
        assignment = Assignment(before.replicas, before.removing_replicas, before.adding_replicas)
    target_isr, (replicas, removing, adding) = _completed(assignment, before.isr if isr is None else tuple(isr))
    record = PartitionChangeRecord(partition_id=index, topic_id=topic.id)
    able = _able_replicas(before, replicas, context.image.brokers if brokers is None else brokers)
    leader, unclean = _elect(before, replicas, target_isr, election, able)
    target_recovery = before.leader_recovery_state if leader_recovery_state is None else leader_recovery_state
    if leader != before.leader:
        record.leader = leader
        if unclean:
            target_isr = (leader,)
            target_recovery = RECOVERING
    elif not set(before.replicas) <= set(replicas):
        record.leader = before.leader
    if target_isr and target_isr != before.isr:
        record.isr = list(target_isr)
    if replicas != before.replicas:
        record.replicas = list(replicas)
    if replicas != before.replicas or directories is not None:
        placed = _directories(context.image, before, replicas, directories or {})
        if placed != list(before.directories):
            record.directories = placed
    if removing != before.removing_replicas:
        record.removing_replicas = list(removing)
    if adding != before.adding_replicas:
        record.adding_replicas = list(adding)
    if target_recovery != before.leader_recovery_state:
        record.leader_recovery_state = target_recovery
    return None if record == PartitionChangeRecord(partition_id=index, topic_id=topic.id) else record


def _elect(
    before: PartitionImage,
    replicas: tuple[int, ...],
    isr: tuple[int, ...],
    election: Election,
    able: Sequence[int],
) -> tuple[int, bool]:
    """The leader and whether the election was unclean."""
    candidates = [before.leader, *replicas]
    if election is Election.PREFERRED:
        candidates.insert(0, replicas[0])
    for candidate in candidates:
        if candidate in isr and candidate in able:
            return candidate, False
    if election is Election.UNCLEAN and able:
        return able[0], True
    return NO_LEADER, False


def _able_replicas(partition: PartitionImage, replicas: Sequence[int], brokers: Mapping[int, BrokerImage]) -> list[int]:
    """The replicas that can lead."""
    return [
        replica
        for replica in replicas
        if (broker := brokers.get(replica)) is not None
        and broker.active
        and broker.has_online_directory(partition.directory(replica))
    ]


def _completed(target: Assignment, isr: tuple[int, ...]) -> tuple[tuple[int, ...], Assignment]:
    """The ISR and the assignment. A reassignment ends once every remaining replica is in the ISR."""
    if not target.removing and not target.adding:
        return isr, target
    replicas = tuple(replica for replica in target.replicas if replica not in target.removing)
    staying = tuple(replica for replica in isr if replica not in target.removing)
    if not replicas or not set(replicas) <= set(staying):
        return isr, target
    return staying, Assignment(replicas)


def _directories(
    image: Image, before: PartitionImage, replicas: tuple[int, ...], changed: Mapping[int, UUID]
) -> list[UUID]:
    known = {**dict(zip(before.replicas, before.directories, strict=False)), **changed}
    return [
        known[replica] if replica in known else default_directory(image.brokers.get(replica)) for replica in replicas
    ]


# -- changes of many partitions


Place = tuple[TopicImage, int, PartitionImage]


def partitions(image: Image) -> Iterator[Place]:
    """Every partition with its topic and index."""
    for topic in image.topics_by_id.values():
        for index, partition in topic.partitions.items():
            yield topic, index, partition


def leaderless(image: Image) -> Iterator[Place]:
    """The partitions without a leader."""
    return (place for place in partitions(image) if place[2].leader == NO_LEADER)


def moves_away_from(context: Context, broker_id: int, places: Iterable[Place] | None = None) -> list[Any]:
    """The changes that take a broker out of the ISR of these partitions, by default all, and elect other leaders."""
    brokers = {known: broker for known, broker in context.image.brokers.items() if known != broker_id}
    concerned = partitions(context.image) if places is None else places
    return changes(
        context, (place for place in concerned if broker_id in place[2].isr), brokers=brokers, removed=broker_id
    )


def changes(
    context: Context,
    places: Iterable[Place],
    *,
    brokers: Mapping[int, BrokerImage] | None = None,
    removed: int | None = None,
) -> list[Any]:
    """The changes of these partitions when the brokers are as given, with `removed` taken out of their ISR."""
    planned = (
        plan_change(
            context,
            topic,
            index,
            election=allowed_election(context, topic.name),
            brokers=brokers,
            isr=[replica for replica in partition.isr if replica != removed],
        )
        for topic, index, partition in places
    )
    return [record for record in planned if record is not None]
