"""OffsetCommit, TxnOffsetCommit, OffsetFetch and OffsetDelete.

Members of the current generation commit offsets, which also extends their sessions. While a group is empty, any client
can commit: a consumer that assigns partitions to itself, or a tool that resets a group. Such a commit creates the group
if it does not exist.

Offsets of a transaction are stored as records of its producer, and are pending until its marker (offsets.py). Members
commit them in any state of the group, which does not extend their sessions. Producers older than Kafka 2.5 do not know
the member for which they commit, so a commit without a member is accepted even by a group that has members.

Source: OffsetMetadataManager of Apache Kafka 4.3.1; KIP-447 (TxnOffsetCommit with a member), KIP-496 (OffsetDelete).
"""

from __future__ import annotations

from typing import Final
from uuid import UUID

from kbroker.coordinator.caller import Caller
from kbroker.coordinator.consumer.group import ConsumerGroup
from kbroker.coordinator.consumer.offsets import require_commit, require_fetch
from kbroker.coordinator.context import Context
from kbroker.coordinator.group import COMPLETING_REBALANCE, EMPTY, PREPARING_REBALANCE, STABLE, Group
from kbroker.coordinator.offsets import CommittedOffset
from kbroker.coordinator.records import NO_EXPIRY, OffsetRecord, offset_tombstone
from wire.errors import ErrorCode, KafkaError
from wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from wire.messages.offset_fetch import (
    OffsetFetchRequestGroup,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponseTopic,
)
from wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from wire.stored.groups import OffsetCommitKey, OffsetCommitValue
from wire.types import ZERO_UUID

GROUP_ID_NOT_FOUND_VERSION: Final = 9
NO_GENERATION: Final = -1
LAST_TIMESTAMP_MS: Final = 2**63 - 1


def offset_commit(context: Context, request: OffsetCommitRequest, caller: Caller) -> OffsetCommitResponse:
    """Commit offsets. The request has topic names, and topic ids where the broker knows them."""
    _validate_commit(context, request, caller)
    timestamp_ms = context.timestamp_ms
    retention_ms = request.retention_time_ms
    # A very large retention must not overflow the timestamp.
    expire_timestamp_ms = (
        NO_EXPIRY if retention_ms == NO_EXPIRY else min(timestamp_ms + retention_ms, LAST_TIMESTAMP_MS)
    )
    topics = []
    for topic in request.topics:
        partitions = [
            OffsetCommitResponsePartition(
                partition_index=partition.partition_index,
                error_code=_store(
                    context, request.group_id, topic.name, partition, expire_timestamp_ms, topic_id=topic.topic_id
                ),
            )
            for partition in topic.partitions
        ]
        topics.append(OffsetCommitResponseTopic(name=topic.name, topic_id=topic.topic_id, partitions=partitions))
    context.counts.offset_commits += len(context.records)
    return OffsetCommitResponse(topics=topics)


def txn_offset_commit(context: Context, request: TxnOffsetCommitRequest, _caller: Caller) -> TxnOffsetCommitResponse:
    """Commit offsets in a transaction; the runtime appends them as records of the producer."""
    _validate_transactional_commit(context, request)
    topics = []
    for topic in request.topics:
        partitions = [
            TxnOffsetCommitResponsePartition(
                partition_index=partition.partition_index,
                error_code=_store(context, request.group_id, topic.name, partition, NO_EXPIRY),
            )
            for partition in topic.partitions
        ]
        topics.append(TxnOffsetCommitResponseTopic(name=topic.name, partitions=partitions))
    context.counts.offset_commits += len(context.records)
    return TxnOffsetCommitResponse(topics=topics)


def _store(
    context: Context,
    group_id: str,
    topic: str,
    asked: OffsetCommitRequestPartition | TxnOffsetCommitRequestPartition,
    expire_timestamp_ms: int,
    *,
    topic_id: UUID = ZERO_UUID,
) -> ErrorCode:
    """Add the record of an offset to the decision, or refuse its metadata."""
    metadata, longest = asked.committed_metadata or "", context.settings.offset_metadata_max_bytes
    if len(metadata) * 2 > longest and utf16_length(metadata) > longest:
        return ErrorCode.OFFSET_METADATA_TOO_LARGE
    value = OffsetCommitValue(
        offset=asked.committed_offset,
        leader_epoch=asked.committed_leader_epoch,
        metadata=metadata,
        commit_timestamp=context.timestamp_ms,
        expire_timestamp=expire_timestamp_ms,
        topic_id=topic_id,
    )
    key = OffsetCommitKey(group=group_id, topic=topic, partition=asked.partition_index)
    context.records.append(OffsetRecord(key, value))
    return ErrorCode.NONE


def _validate_commit(context: Context, request: OffsetCommitRequest, caller: Caller) -> None:
    """Raise the error that refuses the whole request."""
    generation_id = request.generation_id_or_member_epoch
    group = context.groups.get(request.group_id)
    if group is None:
        if generation_id < 0:
            return  # replaying the record creates the group
        knows_code = caller.api_version >= GROUP_ID_NOT_FOUND_VERSION
        raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND if knows_code else ErrorCode.ILLEGAL_GENERATION)
    if isinstance(group, ConsumerGroup):
        partitions = ((topic.topic_id, one.partition_index) for topic in request.topics for one in topic.partitions)
        require_commit(group, request.member_id, generation_id, partitions, api_version=caller.api_version)
        return
    if generation_id < 0 and group.state is EMPTY:
        return
    if generation_id < 0 and not request.member_id and request.group_instance_id is None:
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
    member = group.validate_member(request.member_id, request.group_instance_id)
    if generation_id != group.generation_id:
        raise KafkaError(ErrorCode.ILLEGAL_GENERATION)
    if group.state is COMPLETING_REBALANCE:
        # The member knows the generation but does not have its assignment yet.
        raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS)
    if group.state in (STABLE, PREPARING_REBALANCE):
        context.extend_session(member)


def _validate_transactional_commit(context: Context, request: TxnOffsetCommitRequest) -> None:
    """Raise the error that refuses the whole request."""
    generation_id, member_id = request.generation_id, request.member_id
    group = context.groups.get(request.group_id)
    if group is None:
        if generation_id >= 0:
            raise KafkaError(ErrorCode.ILLEGAL_GENERATION)
        return  # replaying the record creates the group
    if isinstance(group, ConsumerGroup):
        if generation_id != NO_GENERATION or member_id or request.group_instance_id is not None:
            by_name = context.image.topics_by_name
            partitions = (
                (by_name[topic.name].id if topic.name in by_name else None, one.partition_index)
                for topic in request.topics
                for one in topic.partitions
            )
            require_commit(group, member_id, generation_id, partitions, api_version=None)
        return
    if generation_id < 0 and (group.state is EMPTY or (not member_id and request.group_instance_id is None)):
        return
    group.validate_member(member_id, request.group_instance_id)
    if generation_id != group.generation_id:
        raise KafkaError(ErrorCode.ILLEGAL_GENERATION)


def utf16_length(text: str) -> int:
    """The length of the text in Java: characters outside the basic multilingual plane count twice."""
    return len(text) + sum(character > "\uffff" for character in text)


def offset_fetch(
    context: Context, request: OffsetFetchRequestGroup, *, require_stable: bool
) -> OffsetFetchResponseGroup:
    """The offsets of one group, or all of them if topics is None. The offset is -1 if none is committed or the group
    does not exist.

    With require_stable, a partition with an offset commit in an open transaction is answered with
    UNSTABLE_OFFSET_COMMIT.
    """
    group_id = request.group_id
    group = context.groups.get(group_id)
    try:
        context.unserved.refuse(group_id)
        if isinstance(group, ConsumerGroup):
            require_fetch(group, request.member_id, request.member_epoch)
    except KafkaError as error:
        return OffsetFetchResponseGroup(group_id=group_id, topics=[], error_code=error.code)
    known = {} if group is None else context.offsets.of_group(group_id)
    answered = []
    if request.topics is None:
        for name, of_topic in known.items():
            partitions = [
                _fetched(context, group_id, name, index, one, require_stable=require_stable)
                for index, one in of_topic.items()
            ]
            answered.append(OffsetFetchResponseTopic(name=name, topic_id=ZERO_UUID, partitions=partitions))
        return OffsetFetchResponseGroup(group_id=group_id, topics=answered)
    for topic in request.topics:
        of_topic = known.get(topic.name, {})
        partitions = []
        for index in topic.partition_indexes:
            found = of_topic.get(index)
            if found is not None and not found.is_of(topic.topic_id):
                found = None
            partitions.append(_fetched(context, group_id, topic.name, index, found, require_stable=require_stable))
        answered.append(OffsetFetchResponseTopic(name=topic.name, topic_id=topic.topic_id, partitions=partitions))
    return OffsetFetchResponseGroup(group_id=group_id, topics=answered)


def _fetched(
    context: Context,
    group_id: str,
    topic: str,
    index: int,
    found: CommittedOffset | None,
    *,
    require_stable: bool,
) -> OffsetFetchResponsePartition:
    code = ErrorCode.NONE
    if require_stable and (topic, index) in context.offsets.pending.places(group_id):
        code, found = ErrorCode.UNSTABLE_OFFSET_COMMIT, None
    if found is None:
        return OffsetFetchResponsePartition(partition_index=index, committed_offset=-1, metadata="", error_code=code)
    return OffsetFetchResponsePartition(
        partition_index=index,
        committed_offset=found.offset,
        committed_leader_epoch=found.leader_epoch,
        metadata=found.metadata,
    )


def offset_delete(context: Context, request: OffsetDeleteRequest, _caller: Caller) -> OffsetDeleteResponse:
    """Delete offsets of topics that no member subscribes to."""
    group = _validate_delete(context, request.group_id)
    topics = []
    for topic in request.topics:
        is_read = group.is_subscribed_to(topic.name)
        code = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if is_read else ErrorCode.NONE
        partitions = []
        for partition in topic.partitions:
            index = partition.partition_index
            if not is_read and _is_known(context, request.group_id, topic.name, index):
                context.records.append(offset_tombstone(request.group_id, topic.name, index))
            partitions.append(OffsetDeleteResponsePartition(partition_index=index, error_code=code))
        topics.append(OffsetDeleteResponseTopic(name=topic.name, partitions=partitions))
    context.counts.offset_deletions += len(context.records)
    return OffsetDeleteResponse(topics=topics)


def _validate_delete(context: Context, group_id: str) -> Group | ConsumerGroup:
    group = context.groups.get(group_id)
    if group is None:
        raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND)
    if isinstance(group, Group) and group.state is not EMPTY and not group.uses_consumer_protocol():
        # The broker cannot decode the subscriptions of other protocol types.
        raise KafkaError(ErrorCode.NON_EMPTY_GROUP)
    return group


def _is_known(context: Context, group_id: str, topic: str, partition: int) -> bool:
    offsets = context.offsets
    is_pending = (topic, partition) in offsets.pending.places(group_id)
    return is_pending or offsets.find(group_id, topic, partition) is not None
