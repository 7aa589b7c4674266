"""Which offsets a member of a consumer group may commit and fetch.

A member may commit with its epoch, or with an older one if it has the partition at least since then. So a member whose
epoch rises does not lose commits that are on their way. KIP-1251.

Source: validateOffsetCommit and validateOffsetFetch of ConsumerGroup of Apache Kafka 4.3.1.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final
from uuid import UUID

from kbroker.coordinator.consumer.group import ConsumerGroup
from kbroker.coordinator.consumer.member import ConsumerMember
from wire.errors import ErrorCode, KafkaError

FIRST_VERSION_WITH_EPOCHS: Final = 9
"""Of OffsetCommit."""


def require_commit(
    group: ConsumerGroup,
    member_id: str,
    epoch: int,
    partitions: Iterable[tuple[UUID | None, int]],
    *,
    api_version: int | None,
) -> None:
    """Raise the error that refuses a commit of these partitions; api_version is None in a transaction. A topic id is
    None if the topic does not exist.

    Errors  UNKNOWN_MEMBER_ID, UNSUPPORTED_VERSION; STALE_MEMBER_EPOCH, or ILLEGAL_GENERATION for members of the classic
            protocol and in transactions
    """
    if epoch < 0 and group.is_empty:
        return
    member = group.member(member_id)
    if api_version is not None and member.classic is None and api_version < FIRST_VERSION_WITH_EPOCHS:
        text = "OffsetCommit version 9 or above must be used by members using the consumer group protocol"
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, text)
    if epoch == member.member_epoch:
        return
    stale = ErrorCode.ILLEGAL_GENERATION if api_version is None else _stale(member)
    if epoch > member.member_epoch:
        raise KafkaError(stale, f"epoch {epoch} is newer than that of the member, {member.member_epoch}")
    for topic_id, partition in partitions:
        since = None if topic_id is None else member.assignment_epoch(topic_id, partition)
        if since is None or epoch < since:
            raise KafkaError(stale, f"the member does not have the partition since epoch {epoch}")


def require_fetch(group: ConsumerGroup, member_id: str | None, epoch: int) -> None:
    """Raise the error that refuses a fetch. Clients that are no members give no member.

    Errors  UNKNOWN_MEMBER_ID, STALE_MEMBER_EPOCH, ILLEGAL_GENERATION
    """
    if member_id is None and epoch < 0:
        return
    member = group.member(member_id or "")
    if epoch != member.member_epoch:
        raise KafkaError(_stale(member), f"epoch {epoch} is not that of the member, {member.member_epoch}")


def _stale(member: ConsumerMember) -> ErrorCode:
    return ErrorCode.STALE_MEMBER_EPOCH if member.classic is None else ErrorCode.ILLEGAL_GENERATION
