"""The in-sync replicas of a partition as its leader sees them: the committed ISR and the change that is proposed.

Theory of operation: only the controller changes an ISR. The leader proposes one member more, or the members without
those that lag, and at most one proposal is open. Until the outcome is known the maximal ISR counts for the high
watermark: the committed ISR and the member that may have joined; a member that may have left still counts. So the high
watermark is right whether or not the controller has accepted the proposal. A proposal ends with the answer of the
controller or with newer metadata of the partition, whichever comes first. After most errors the leader cannot know what
the controller decided, so the proposal stays open until newer metadata arrives.

Source: KIP-497, KIP-841 (fenced brokers and controlled shutdown), KIP-903 (broker epochs of the members); the
AlterPartition manager and `Partition` of Apache Kafka 4.3.1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from kbroker.metadata.image import Image
from wire.errors import ErrorCode
from wire.messages.alter_partition import (
    AlterPartitionRequestPartition,
    AlterPartitionResponsePartition,
    BrokerState,
)

NO_BROKER_EPOCH: Final = -1
NOT_FETCHED: Final = -2
"""The broker epoch of a follower that has not fetched since the leader's election."""


@dataclass(slots=True, eq=False)
class LiveBrokers:
    """The broker epochs of the brokers that may be in sync: neither fenced nor in a controlled shutdown.

    All partitions of a broker share one object, which follows the newest image.
    """

    epochs: Mapping[int, int] = field(default_factory=dict)

    def follow(self, image: Image) -> None:
        """Take the brokers of a new image."""
        self.epochs = {broker.id: broker.epoch for broker in image.brokers.values() if broker.active}

    def may_join(self, broker_id: int, fetched_epoch: int) -> bool:
        """Whether a follower may join the ISR; `fetched_epoch` is the broker epoch of its last Fetch.

        A Fetch without a broker epoch (-1, before version 15) is accepted from any incarnation.
        """
        epoch = self.epochs.get(broker_id)
        return epoch is not None and fetched_epoch in (NO_BROKER_EPOCH, epoch)


@dataclass(frozen=True, slots=True, eq=False)
class IsrProposal:
    """One change of the ISR that the controller has not decided yet.

    Shape  members maps each proposed member to the broker epoch of its last Fetch, -1 for unknown; added is the member
           that joins, None if members leave
    """

    leader_epoch: int
    partition_epoch: int
    members: Mapping[int, int]
    added: int | None = None

    def request(self, index: int) -> AlterPartitionRequestPartition:
        """The proposal as a part of an AlterPartition request."""
        return AlterPartitionRequestPartition(
            partition_index=index,
            leader_epoch=self.leader_epoch,
            new_isr_with_epochs=[
                BrokerState(broker_id=broker_id, broker_epoch=epoch)
                for broker_id, epoch in sorted(self.members.items())
            ],
            partition_epoch=self.partition_epoch,
        )


class Verdict(Enum):
    """What the controller's answer means for a proposal."""

    COMMITTED = "the answer has the new ISR"
    REFUSED = "the old ISR is still in effect"
    UNKNOWN = "only newer metadata can tell"
    RETRY = "the controller has not decided"


# The controller has certainly not made the change, and the leader's partition epoch is current.
_REFUSALS: Final = (ErrorCode.INELIGIBLE_REPLICA, ErrorCode.OPERATION_NOT_ATTEMPTED)
_UNKNOWN: Final = (
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.INVALID_UPDATE_VERSION,
    ErrorCode.INVALID_REQUEST,
    ErrorCode.NEW_LEADER_ELECTED,
)


def verdict(answer: AlterPartitionResponsePartition, *, leader_epoch: int, partition_epoch: int) -> Verdict:
    """What an answer means to a leader with these epochs."""
    if answer.error_code in _REFUSALS:
        return Verdict.REFUSED
    if answer.error_code in _UNKNOWN:
        return Verdict.UNKNOWN
    if answer.error_code != ErrorCode.NONE:
        return Verdict.RETRY
    if answer.leader_epoch != leader_epoch or answer.partition_epoch < partition_epoch:
        return Verdict.UNKNOWN
    return Verdict.COMMITTED
