"""One member of a consumer group: what its heartbeats reported, its epochs, and the partitions it may use.

Source: ConsumerGroupMember and MemberState of Apache Kafka 4.3.1.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import IntEnum
from types import MappingProxyType
from typing import Final, NamedTuple
from uuid import UUID

from wire.stored.groups import (
    ClassicMemberMetadata,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataValue,
    TopicPartitions,
)

LEAVE_EPOCH: Final = -1
STATIC_LEAVE_EPOCH: Final = -2
"""The epoch of a static member that left for a while. Its partitions wait for it until its session expires."""

Epochs = Mapping[UUID, Mapping[int, int]]
"""Partitions by topic id, each with the epoch at which the member got it."""

Partitions = Mapping[UUID, frozenset[int]]
"""Partitions by topic id, without topics that have none."""

NO_EPOCHS: Final[Epochs] = MappingProxyType({})
NO_PARTITIONS: Final[Partitions] = MappingProxyType({})


class MemberState(IntEnum):
    """Where a member is on its way to its target assignment; the values are those of the stored record."""

    STABLE = 0
    UNREVOKED_PARTITIONS = 1
    UNRELEASED_PARTITIONS = 2
    UNKNOWN = 127


STABLE, UNREVOKED = MemberState.STABLE, MemberState.UNREVOKED_PARTITIONS
UNRELEASED, UNKNOWN = MemberState.UNRELEASED_PARTITIONS, MemberState.UNKNOWN


class ConsumerMember(NamedTuple):
    """A member; immutable.

    Shape   assigned are the partitions that the member may use, pending_revocation those that it must give up; it may
            still own both. subscribed_topic_regex is "" without a regular expression. classic is set if the member uses
            the classic protocol
    Units   a member epoch is the group epoch of the assignment that the member has
    """

    member_id: str
    member_epoch: int = 0
    previous_member_epoch: int = -1
    state: MemberState = STABLE
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    client_id: str = ""
    client_host: str = ""
    subscribed_topic_names: frozenset[str] = frozenset()
    subscribed_topic_regex: str | None = ""
    server_assignor: str | None = None
    assigned: Epochs = NO_EPOCHS
    pending_revocation: Epochs = NO_EPOCHS
    classic: ClassicMemberMetadata | None = None

    def is_reconciled_to(self, epoch: int) -> bool:
        """Whether the member has its whole assignment of this epoch."""
        return self.state is STABLE and self.member_epoch == epoch

    def subscribes_as(self, other: ConsumerMember) -> bool:
        """Whether both subscribe to the same names and the same regular expression."""
        return (
            self.subscribed_topic_names == other.subscribed_topic_names
            and self.subscribed_topic_regex == other.subscribed_topic_regex
        )

    def assignment_epoch(self, topic_id: UUID, partition: int) -> int | None:
        """The epoch at which the member got a partition that it may still own; None if it may not."""
        for epochs in (self.assigned, self.pending_revocation):
            if (epoch := epochs.get(topic_id, {}).get(partition)) is not None:
                return epoch
        return None

    def at_epoch(self, epoch: int, state: MemberState, assigned: Epochs, pending_revocation: Epochs) -> ConsumerMember:
        """The member after a step of its reconciliation."""
        return self._replace(
            state=state,
            member_epoch=epoch,
            previous_member_epoch=self.member_epoch,
            assigned=assigned,
            pending_revocation=pending_revocation,
        )

    def with_metadata(self, value: ConsumerGroupMemberMetadataValue) -> ConsumerMember:
        """The member after its stored metadata was replayed."""
        return self._replace(
            instance_id=value.instance_id,
            rack_id=value.rack_id,
            client_id=value.client_id,
            client_host=value.client_host,
            subscribed_topic_names=frozenset(value.subscribed_topic_names),
            subscribed_topic_regex=value.subscribed_topic_regex,
            rebalance_timeout_ms=value.rebalance_timeout_ms,
            server_assignor=value.server_assignor,
            classic=value.classic_member_metadata,
        )

    def with_assignment(self, value: ConsumerGroupCurrentMemberAssignmentValue) -> ConsumerMember:
        """The member after its stored assignment was replayed."""
        is_known = value.state in MemberState._value2member_map_
        return self._replace(
            member_epoch=value.member_epoch,
            previous_member_epoch=value.previous_member_epoch,
            state=MemberState(value.state) if is_known else UNKNOWN,
            assigned=_epochs(value.assigned_partitions, value.member_epoch),
            pending_revocation=_epochs(value.partitions_pending_revocation, value.member_epoch),
        )


def _epochs(topics: Iterable[TopicPartitions], member_epoch: int) -> Epochs:
    """Assigned partitions with their epochs. Records of Kafka before 4.2 have none; the member's epoch then counts."""
    found: dict[UUID, Mapping[int, int]] = {}
    for topic in topics:
        epochs = topic.assignment_epochs
        if epochs is None or len(epochs) != len(topic.partitions):
            epochs = [max(member_epoch, 0)] * len(topic.partitions)
        found[topic.topic_id] = dict(zip(topic.partitions, epochs, strict=True))
    return found


def stored_epochs(epochs: Epochs) -> list[TopicPartitions]:
    """Assigned partitions as they are stored."""
    return [
        TopicPartitions(topic_id=topic_id, partitions=list(of_topic), assignment_epochs=list(of_topic.values()))
        for topic_id, of_topic in epochs.items()
    ]
