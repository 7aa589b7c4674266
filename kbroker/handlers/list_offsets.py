"""ListOffsets: the offset for a timestamp, or for one of the named ends of a partition."""

from __future__ import annotations

from collections import Counter

from kbroker.broker import Broker
from kbroker.handlers import Context, handles
from kbroker.replication.offset_lookup import OffsetAsked, OffsetFound, look_up, refuse_unknown_name
from wire.errors import ErrorCode, KafkaError
from wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)

READ_COMMITTED = 1
FIRST_VERSION_WITH_LEADER_EPOCH = 4


def _refused(request: ListOffsetsRequest, code: ErrorCode) -> ListOffsetsResponse:
    return ListOffsetsResponse(
        topics=[
            ListOffsetsTopicResponse(
                name=topic.name,
                partitions=[
                    ListOffsetsPartitionResponse(partition_index=partition.partition_index, error_code=code)
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


@handles(ListOffsetsRequest, versions="1-11", on_error=_refused)
async def list_offsets(request: ListOffsetsRequest, broker: Broker, context: Context) -> ListOffsetsResponse:
    """Answer every partition by itself; one that is named twice is an INVALID_REQUEST."""
    named = Counter(
        (topic.name, partition.partition_index) for topic in request.topics for partition in topic.partitions
    )

    async def look_up_one(name: str, asked: ListOffsetsPartition) -> OffsetFound:
        if named[name, asked.partition_index] > 1:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"{name}-{asked.partition_index} is named twice")
        question = OffsetAsked(
            timestamp=asked.timestamp,
            version=context.api_version,
            replica_id=request.replica_id,
            read_committed=request.isolation_level == READ_COMMITTED,
            current_leader_epoch=asked.current_leader_epoch,
        )
        refuse_unknown_name(question)
        partition = broker.find(name, asked.partition_index)
        # A search by timestamp reads the disk, perhaps a cold part of it.
        if question.reads_the_log:
            found = await broker.env.run_blocking(look_up, partition, question)
            partition.leading()  # else another topic may have taken the name of the files meanwhile
            return found
        return look_up(partition, question)

    async def answer(name: str, asked: ListOffsetsPartition) -> ListOffsetsPartitionResponse:
        try:
            found = await look_up_one(name, asked)
        except KafkaError as error:
            return ListOffsetsPartitionResponse(partition_index=asked.partition_index, error_code=error.code)
        return ListOffsetsPartitionResponse(
            partition_index=asked.partition_index,
            timestamp=found.timestamp,
            offset=found.offset,
            leader_epoch=found.leader_epoch if context.api_version >= FIRST_VERSION_WITH_LEADER_EPOCH else -1,
        )

    topics = []
    for topic in request.topics:
        once = {partition.partition_index: partition for partition in topic.partitions}
        topics.append(
            ListOffsetsTopicResponse(
                name=topic.name, partitions=[await answer(topic.name, partition) for partition in once.values()]
            )
        )
    return ListOffsetsResponse(topics=topics)
